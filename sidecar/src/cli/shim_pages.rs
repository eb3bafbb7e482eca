//! The manual pages of the shim, made of the texts of its `--help`.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use cofferdam_shim::help::COMMANDS;

const PROGRAM: &str = "cofferdam-shim";

/// Writes one page for each command of the shim, such as `cofferdam-shim-doctor.1`.
pub(super) fn write(directory: &Path) -> io::Result<()> {
    for (command, help) in COMMANDS {
        let name = page_name(command);
        std::fs::write(directory.join(format!("{name}.1")), page(&name, help))?;
    }
    Ok(())
}

fn page_name(command: &str) -> String {
    match command {
        "" => PROGRAM.to_owned(),
        command => format!("{PROGRAM}-{command}"),
    }
}

/// A page of roff. Paragraphs of the help are separated by empty lines.
fn page(name: &str, help: &str) -> String {
    let (usage, others): (Vec<&str>, Vec<&str>) =
        help.trim_end().split("\n\n").partition(|paragraph| paragraph.starts_with("Usage:"));
    let summary = others.first().and_then(|first| first.split(['.', ':']).next()).unwrap_or_default();
    let mut page = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        ".TH {} 1 \"\" \"{PROGRAM} {}\"",
        escaped(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(page, ".SH NAME\n{} \\- {}", escaped(name), escaped(summary).replace('\n', " "));
    page.push_str(".SH SYNOPSIS\n");
    usage.iter().for_each(|usage| preformatted(&mut page, usage.trim_start_matches("Usage: ")));
    page.push_str(".SH DESCRIPTION\n");
    for paragraph in others {
        if paragraph.lines().any(|line| line.starts_with(' ')) {
            preformatted(&mut page, paragraph);
        } else {
            let _ = writeln!(page, ".PP\n{}", escaped(paragraph));
        }
    }
    page
}

/// Lines that are not filled, as in the help.
fn preformatted(page: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, ".PP\n.nf\n{}\n.fi", escaped(text));
}

/// Text without requests and escapes of roff.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_name_synopsis_and_description_and_text_cannot_be_a_request() {
        let help = "Looks here: and there.\n\nUsage: shim look [--json]\n\n  --json  a \\ word\n\n.so is a word.\n\nExample: shim look\n";
        assert_eq!(
            page("shim-look", help),
            format!(
                ".TH SHIM\\-LOOK 1 \"\" \"{PROGRAM} {}\"\n.SH NAME\nshim\\-look \\- Looks here\n.SH SYNOPSIS\n.PP\n.nf\nshim look [\\-\\-json]\n.fi\n\
                 .SH DESCRIPTION\n.PP\nLooks here: and there.\n.PP\n.nf\n  \\-\\-json  a \\e word\n.fi\n.PP\n\\&.so is a word.\n.PP\nExample: shim look\n",
                env!("CARGO_PKG_VERSION")
            )
        );
    }
}
