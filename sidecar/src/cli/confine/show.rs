//! `confine show`: what a server gets when it starts.
//!
//! What must stay true: on a terminal no line but one with a long path is wider than it; in a pipe each item is on one line.

use std::path::Path;
use std::process::ExitCode;

use cofferdam_base::text::visible_lines;
use cofferdam_confine::manifest::{About, Manifest};
use cofferdam_servers::spec::{ServerSpec, StdioServer};

use super::report::{self, CONFIGURED, File, Gets, INHERITED, LimitUnit, OWN, Report};
use super::{not_confined, stdio_server, view_of};
use crate::cli::arguments::ConfineShowArguments;
use crate::cli::commands::load;
use crate::config::format_size;
use crate::terminal::colour::{Colours, Role};
use crate::terminal::failure::Failure;
use crate::terminal::print_line;
use crate::terminal::table::{Cell, Column, Table, TableWidth};
use crate::terminal::wrap::wrapped;

pub(super) fn run(file: Option<&Path>, arguments: &ConfineShowArguments) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let (server, stdio) = stdio_server(&arguments.server, &config)?;
    if arguments.manifest {
        print_line(&manifest(server, stdio)?);
        return Ok(ExitCode::SUCCESS);
    }
    let report = match &stdio.confinement {
        Some(confinement) => {
            report::confined(server, stdio, confinement, view_of(server, stdio, confinement, &config)?)
        }
        None => Report { server: server.name.to_string(), confined: false, gets: None },
    };
    match arguments.json {
        true => print_line(&serde_json::to_string_pretty(&report).expect("a report is plain data")),
        false => {
            let lines = lines(&report, TableWidth::of_stdout(), Colours::of_stdout());
            lines.iter().for_each(|line| print_line(line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The narrowest manifest of what the server is given, with what its present manifest says for people.
fn manifest(server: &ServerSpec, stdio: &StdioServer) -> Result<String, Failure> {
    let Some(given) = stdio.given(&server.scopes) else {
        return Err(not_confined(server));
    };
    let present = stdio.confinement.as_ref().and_then(|confinement| confinement.manifest.as_deref());
    let about = match present {
        Some(manifest) => manifest.about.clone(),
        None => About { name: Some(server.name.to_string()), ..About::default() },
    };
    Ok(Manifest::of(&given, about).to_json())
}

/// The report for a person.
fn lines(report: &Report, width: TableWidth, colours: Colours) -> Vec<String> {
    let Some(gets) = &report.gets else {
        let text = format!(
            "server `{}` is not confined: it runs as the sidecar's user and can reach all that this user can, the credentials of \
             other servers included",
            report.server
        );
        return wrapped("", &text, width);
    };
    let mut lines =
        wrapped("", &format!("server `{}` is confined; it runs {}", report.server, gets.program), width);
    let mut section = |title: &str, content: Vec<String>| {
        lines.push(String::new());
        lines.push(colours.paint(Role::Heading, title).to_string());
        lines.extend(content);
    };
    section("Files", file_table(&gets.files).lines(width, colours));
    if let Some(programs) = &gets.programs {
        section("Programs that it may execute, and no others", items(programs, width));
    }
    if !gets.injected_files.is_empty() {
        section("Injected files, in a directory of each process", items(&gets.injected_files, width));
    }
    section("Environment", variables(gets, width));
    section("Hosts", hosts(gets, width));
    section("Refused", items(gets.refused, width));
    let walls: Vec<String> = gets.walls.iter().map(|wall| format!("{}: {}", wall.wall, wall.what)).collect();
    section("Walls, without which it does not start", items(&walls, width));
    let limits: Vec<String> = gets
        .limits
        .iter()
        .map(|limit| {
            format!(
                "{}: {}",
                limit.limit,
                match limit.unit {
                    LimitUnit::Bytes => format_size(limit.value),
                    LimitUnit::Count => limit.value.to_string(),
                }
            )
        })
        .collect();
    section("Limits", items(&limits, width));
    if let Some(manifest) = &gets.manifest {
        let mark = |word: &&str| match manifest.unrefined.contains(word) {
            true => format!("{word}: refused, because no key refines it"),
            false => (*word).to_owned(),
        };
        section(
            "Its manifest allows at most",
            items(&manifest.permissions.iter().map(mark).collect::<Vec<_>>(), width),
        );
    }
    lines
}

fn file_table(files: &[File]) -> Table {
    let mut table =
        Table::new([Column::whole("MAY"), Column::whole("PATH"), Column::below("WHY", "because:")]);
    for file in files {
        let may: String = [(true, 'r'), (file.write, 'w'), (file.execute, 'x')]
            .map(|(allowed, letter)| if allowed { letter } else { '-' })
            .iter()
            .collect();
        let why = match &file.content {
            Some(content) => format!("{}: {content}", file.why),
            None => file.why.to_owned(),
        };
        let role = if file.write { Role::Warning } else { Role::Normal };
        table.row([Cell::new(role, may), Cell::from(file.path.clone()), Cell::new(Role::Faint, why)]);
    }
    table
}

fn variables(gets: &Gets, width: TableWidth) -> Vec<String> {
    let origins = [
        (CONFIGURED, "from the configuration: "),
        (OWN, "of every confined server: "),
        (INHERITED, "of the sidecar, if it has this environment: "),
    ];
    let line = |(origin, title): (&str, &str)| {
        let names = gets.variables.iter().filter(|variable| variable.from == origin);
        let names: Vec<&str> = names.map(|variable| variable.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("{title}{}", names.join(", ")))
    };
    items(&origins.into_iter().filter_map(line).collect::<Vec<_>>(), width)
}

fn hosts(gets: &Gets, width: TableWidth) -> Vec<String> {
    match gets.hosts.is_empty() {
        true => items(&["none"], width),
        false => {
            let line = |host: &report::Host| format!("{} at {}", host.host, host.addresses);
            items(&gets.hosts.iter().map(line).collect::<Vec<_>>(), width)
        }
    }
}

/// Each on its own line, continued with an indentation.
fn items(texts: &[impl AsRef<str>], width: TableWidth) -> Vec<String> {
    texts.iter().flat_map(|text| wrapped("  ", &visible_lines(text.as_ref()), width)).collect()
}
