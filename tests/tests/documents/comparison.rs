//! packaging/COMPARISON.md: each `yes` and `partly` of ours names a test, the tables are complete, and the numbers are
//! those of the benchmark. That the named tests exist is checked with those of the other documents, in
//! [`promises`](super::promises).

use std::collections::BTreeSet;

use cofferdam_tests::markdown::{rows, spans};

use super::guide::section;
use super::promises::is_test_name;
use super::{BENCHMARKS, COMPARISON, QUICK_STARTS, README};

/// Number, question, our column, and one column for each of ten peers.
const COMPARED_CELLS: usize = 13;
/// Number, exact statement, proof.
const STATED_CELLS: usize = 3;

/// What a peer's column may say; `url` and `own` are explained above the table of sandboxes.
const PEER_VERDICTS: [&str; 7] = ["yes", "partly", "no", "?", "–", "url", "own"];

#[test]
fn every_yes_of_the_comparison_names_its_test() {
    let stated: Vec<Vec<String>> = numbered(STATED_CELLS).collect();
    let compared: Vec<Vec<String>> = numbered(COMPARED_CELLS).collect();
    assert!(compared.len() > 50, "{} rows", compared.len());
    let numbers = |rows: &[Vec<String>]| rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>();
    assert_eq!(
        numbers(&compared),
        numbers(&stated),
        "each comparison needs one exact statement, in its order"
    );
    let mut seen = BTreeSet::new();
    for (compared, stated) in compared.iter().zip(&stated) {
        let (number, ours, proof) = (&compared[0], compared[2].as_str(), &stated[2]);
        assert!(seen.insert(number), "there are two rows {number}");
        let proved = !proof.is_empty() && spans(proof).all(|span| is_test_name(&span)) && proof.contains('`');
        match ours {
            "yes" | "partly" => assert!(proved, "{number} says {ours} and names no test: {proof}"),
            "no" => assert_eq!(proof, "–", "{number} says no and has a proof"),
            other => panic!("our column of {number} says {other:?}"),
        }
    }
}

#[test]
fn the_comparison_has_a_verdict_for_every_peer_and_names_what_was_read() {
    let headings: Vec<Vec<String>> =
        rows(COMPARISON).filter(|row| row.len() == COMPARED_CELLS && row[0] == "#").collect();
    let sources: BTreeSet<String> =
        rows(section(COMPARISON, "\n## Sources")).map(|row| row[0].clone()).collect();
    for heading in &headings {
        assert_eq!(heading, &headings[0], "the tables have different columns");
    }
    for peer in &headings[0][3..] {
        assert!(sources.contains(peer), "the sources do not name {peer}");
    }
    for row in rows(COMPARISON).filter(|row| is_number(&row[0])) {
        assert!([COMPARED_CELLS, STATED_CELLS].contains(&row.len()), "{} cells: {row:?}", row.len());
    }
    for row in numbered(COMPARED_CELLS) {
        for verdict in &row[3..] {
            assert!(PEER_VERDICTS.contains(&verdict.as_str()), "{} says {verdict:?} of a peer", row[0]);
        }
    }
    assert!(COMPARISON.contains("(2026-11)"), "the comparison has no date");
}

#[test]
fn the_numbers_of_the_comparison_are_those_of_the_benchmark() {
    let measured: BTreeSet<String> = rows(BENCHMARKS).flatten().collect();
    let shown: Vec<Vec<String>> =
        rows(section(COMPARISON, "\n## Numbers")).filter(|row| !row[0].is_empty()).collect();
    assert!(shown.len() >= 4, "{shown:?}");
    for row in shown {
        for number in &row[1..] {
            assert!(measured.contains(number), "BENCHMARKS.md has no {number} ({})", row[0]);
        }
    }
}

#[test]
fn the_readme_and_the_guide_link_to_the_comparison() {
    assert!(README.contains("](packaging/COMPARISON.md)"));
    assert!(QUICK_STARTS.contains("](../COMPARISON.md)"));
}

fn numbered(cells: usize) -> impl Iterator<Item = Vec<String>> {
    rows(COMPARISON).filter(move |row| row.len() == cells && is_number(&row[0]))
}

/// Whether a cell is the number of a row, as in `2.10`.
fn is_number(cell: &str) -> bool {
    cell.split_once('.')
        .is_some_and(|(section, row)| [section, row].iter().all(|part| part.parse::<u8>().is_ok()))
}
