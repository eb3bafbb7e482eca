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

/// Such a test is not run by `tests/run`: the line of the document has to say so.
#[test]
fn lines_that_name_a_slow_test_say_that_just_slow_runs_it() {
    let sources = sources();
    for (document, text) in [
        ("SPECIFICATION.md", SPECIFICATION),
        ("THREAT-MODEL.md", THREAT_MODEL),
        ("COMPARISON.md", COMPARISON),
    ] {
        for line in text.lines() {
            let slow = spans(line).find(|span| is_test_name(span) && is_slow(span, &sources));
            let Some(slow) = slow else { continue };
            assert!(
                line.contains("`just slow`"),
                "{document} does not say that {slow} is in `just slow`: {line}"
            );
        }
    }
}

#[test]
fn a_test_that_is_left_out_of_the_suite_is_recognised() {
    let slow =
        "#[test]\n#[ignore = \"minutes: just slow\"]\nfn one() {}\n\n#[test]\nfn two() {}\nfn three() {}\n";
    assert_eq!(
        ["one", "two", "three"].map(|name| attributes_of(slow, name)).map(|found| found.is_slow()),
        [true, false, false]
    );
    assert_eq!(
        ["one", "two", "three"].map(|name| attributes_of(slow, name)).map(|found| found.is_test()),
        [true, true, false]
    );
}

/// `folder::file::name`, with the folder of a crate.
pub(super) fn is_test_name(span: &str) -> bool {
    let parts: Vec<&str> = span.split("::").collect();
    parts.len() == 3 && CRATES.contains(&parts[0])
}

pub(super) fn exists(name: &str, sources: &[(PathBuf, String)]) -> bool {
    definitions(name, sources).any(|attributes| attributes.is_test())
}

/// Whether only `just slow` runs this test.
fn is_slow(name: &str, sources: &[(PathBuf, String)]) -> bool {
    definitions(name, sources).any(|attributes| attributes.is_slow())
}

/// The attributes of each function of this name in the files that the name means.
fn definitions(name: &str, sources: &[(PathBuf, String)]) -> impl Iterator<Item = Attributes> {
    let parts: Vec<String> = name.split("::").map(str::to_owned).collect();
    let files = sources.iter().filter(move |(path, _)| {
        let [folder, file, _] = &parts[..] else { return false };
        path.strip_prefix(root().join(folder)).is_ok_and(|path| {
            path.with_extension("").components().any(|component| component.as_os_str() == &file[..])
        })
    });
    let test = name.rsplit("::").next().unwrap_or_default().to_owned();
    files.map(move |(_, text)| attributes_of(text, &test))
}

/// The lines above a function.
struct Attributes(Vec<String>);

impl Attributes {
    fn is_test(&self) -> bool {
        self.0.iter().any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test"))
    }

    fn is_slow(&self) -> bool {
        self.is_test() && self.0.iter().any(|line| line.starts_with("#[ignore"))
    }
}

/// The attributes of the functions of this name.
fn attributes_of(text: &str, name: &str) -> Attributes {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let definition = format!("fn {name}(");
    let places = lines.iter().enumerate().filter(|(_, line)| line.contains(&definition));
    let above = places.flat_map(|(place, _)| {
        let above = lines[..place].iter().rev();
        above.take_while(|line| line.starts_with("#[") || line.starts_with("//"))
    });
    Attributes(above.map(|line| (*line).to_owned()).collect())
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
