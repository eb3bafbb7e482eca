//! SPECIFICATION.md, THREAT-MODEL.md and COMPARISON.md: every test that they name exists; every promise of the first
//! names its proof.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cofferdam_tests::markdown::{quantity, rows, spans};
use relay_proto::limits;

use super::{BENCHMARKS, COMPARISON, CRATES, README, SPECIFICATION, THREAT_MODEL, root};

#[test]
fn every_test_that_the_documents_name_exists() {
    let sources = sources();
    for (document, text) in [
        ("SPECIFICATION.md", SPECIFICATION),
        ("THREAT-MODEL.md", THREAT_MODEL),
        ("COMPARISON.md", COMPARISON),
    ] {
        let named: Vec<String> = spans(text).filter(|span| is_test_name(span)).collect();
        assert!(named.len() > 30, "{document} names {} tests", named.len());
        for name in named {
            assert!(exists(&name, &sources), "{document} names {name}, which is no test");
        }
    }
    for document in ["packaging/SPECIFICATION.md", "packaging/THREAT-MODEL.md"] {
        assert!(spans(README).any(|span| span == document), "the README does not name {document}");
    }
}

#[test]
fn every_promise_names_its_proof() {
    let mut seen = BTreeSet::new();
    for row in rows(SPECIFICATION).filter(|row| row[0].contains('.')) {
        let [number, promise, proof] = &row[..] else { panic!("not three cells: {row:?}") };
        assert!(seen.insert(number.clone()), "there are two promises {number}");
        let benchmark = proof.strip_prefix("row: ").map(|name| BENCHMARKS.contains(&format!("\n| {name} |")));
        let tested = spans(proof).any(|span| is_test_name(&span));
        assert!(
            benchmark.unwrap_or(tested || proof.starts_with("pending")),
            "{number} ({promise}) has no proof: {proof}"
        );
    }
    assert!(seen.len() > 50, "{seen:?}");
}

#[test]
fn limits_in_the_specification_match_the_constants() {
    let largest = "10,484,736";
    assert_eq!(quantity(&format!("{largest} bytes")), limits::MAX_MESSAGE as u64);
    for stated in
        [largest, &format!("Nesting past {}", limits::MAX_DEPTH), &format!("\nVersion {},", limits::VERSION)]
    {
        assert!(SPECIFICATION.contains(stated), "SPECIFICATION.md does not contain {stated:?}");
    }
}

/// `folder::file::name`, with the folder of a crate.
pub(super) fn is_test_name(span: &str) -> bool {
    let parts: Vec<&str> = span.split("::").collect();
    parts.len() == 3 && CRATES.contains(&parts[0])
}

pub(super) fn exists(name: &str, sources: &[(PathBuf, String)]) -> bool {
    let [folder, file, test] = name.split("::").collect::<Vec<_>>()[..] else { return false };
    sources.iter().any(|(path, text)| {
        let within = path.strip_prefix(root().join(folder)).is_ok_and(|path| {
            path.with_extension("").components().any(|component| component.as_os_str() == file)
        });
        within && has_test(text, test)
    })
}

/// Whether the text defines this function and marks it as a test.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let definition = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, line)| line.contains(&definition)).any(|(place, _)| {
        let above =
            lines[..place].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test"))
    })
}

/// Every Rust file in `src` and `tests` of the crates in `CRATES`.
pub(super) fn sources() -> Vec<(PathBuf, String)> {
    let mut pending: Vec<PathBuf> = CRATES
        .iter()
        .flat_map(|folder| ["src", "tests"].map(|part| root().join(folder).join(part)))
        .collect();
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.extension() {
                _ if path.is_dir() => pending.push(path),
                Some(extension) if extension == "rs" => {
                    let text = std::fs::read_to_string(&path).expect("sources are text");
                    found.push((path, text));
                }
                _ => {}
            }
        }
    }
    found
}
