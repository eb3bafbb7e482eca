//! Every code of `cofferdam doctor` and `cofferdam-shim doctor` is in a test that makes it happen.

use std::fs;
use std::path::Path;

/// The first literal after each of these calls.
fn literals<'text>(source: &'text str, calls: &[&str]) -> Vec<&'text str> {
    let places = calls.iter().flat_map(|call| source.split(call).skip(1));
    let literals = places.filter_map(|place| place.trim_start().strip_prefix('"')?.split('"').next());
    literals.collect()
}

#[test]
fn every_code_is_in_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read =
        |path: &str| fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut tests = String::new();
    for file in fs::read_dir(root.join("tests/tests/doctor")).unwrap().flatten() {
        tests += &fs::read_to_string(file.path()).unwrap();
    }
    // Limits of a control group, and a probe that panics, are made in unit tests.
    for file in ["sidecar/src/doctor/resources.rs", "sidecar/src/doctor/mod.rs"] {
        tests += read(file).split_once("#[cfg(test)]").map_or("", |(_, tests)| tests);
    }
    let (sidecar, shim) = (read("sidecar/src/doctor/codes.rs"), read("shim/src/doctor.rs"));
    let table = sidecar.split_once("CODES: &[Code]").expect("the table has this name").1;
    let mut codes = literals(table.split("];").next().unwrap_or_default(), &["code("]);
    codes.extend(literals(&shim, &["findings.good(", "findings.warning(", "findings.error("]));
    codes.extend(["link-refused", "link-unreachable"]);
    assert!(codes.len() > 80, "{codes:?}");
    let untested: Vec<&str> =
        codes.into_iter().filter(|code| !tests.contains(&format!("\"{code}\""))).collect();
    assert_eq!(untested, Vec::<&str>::new());
}
