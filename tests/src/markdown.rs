//! Parses the Markdown of the project's documents, so that tests can check their content.

/// The fenced blocks of one language; there must be at least one.
#[track_caller]
pub fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let opening = format!("{language}\n");
    let all = markdown.split("```").skip(1).step_by(2);
    let found: Vec<String> =
        all.filter_map(|block| block.strip_prefix(&opening).map(str::to_owned)).collect();
    assert!(!found.is_empty(), "there is no block of {language}");
    found
}

/// The code spans outside fenced blocks, each on one line.
pub fn spans(markdown: &str) -> impl Iterator<Item = String> {
    let prose: String = markdown.split("```").step_by(2).collect();
    let spans: Vec<String> = prose
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    spans.into_iter()
}

/// The cells of every table row, without the lines under the headings.
pub fn rows(markdown: &str) -> impl Iterator<Item = Vec<String>> {
    let rows = markdown.lines().filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    rows.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
}

/// Parses an amount of bytes as the documents write it: `10 MiB − 1 KiB`, `65,536`, `64 bytes`.
#[track_caller]
pub fn quantity(text: &str) -> u64 {
    let amount = |text: &str| {
        let mut words = text.split_whitespace();
        let number: u64 = words.next()?.replace(',', "").parse().ok()?;
        Some(
            number
                * match words.next() {
                    None | Some("bytes") => 1,
                    Some("KiB") => 1024,
                    Some("MiB") => 1024 * 1024,
                    Some(_) => return None,
                },
        )
    };
    let amounts: Option<Vec<u64>> = text.split('−').map(amount).collect();
    let amounts = amounts.unwrap_or_else(|| panic!("`{text}` is not a quantity"));
    amounts[0] - amounts[1..].iter().sum::<u64>()
}
