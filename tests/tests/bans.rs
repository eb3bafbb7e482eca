//! Each ban of `.clippy.toml` still works.
//!
//! Clippy does not report a banned path that no longer resolves, for example after its item has moved to another crate.
//! So each path is used here once under `#[expect]`: a path that no longer exists does not compile, and a path that the
//! lint does not match leaves an unfulfilled `#[expect]`, which fails CI's lint step.

use std::collections::BTreeSet;

const SETTINGS: &str = include_str!("../../.clippy.toml");
const PROBES: &str = include_str!("bans.rs");

#[expect(clippy::disallowed_methods, reason = "probe: it must be banned")]
fn exposing_a_secret() {
    let _ = cofferdam_secrets::Secret::expose;
}

#[expect(clippy::disallowed_methods, reason = "probe: it must be banned")]
fn starting_a_process() {
    let _ = std::process::Command::new::<&str>;
}

#[expect(clippy::disallowed_methods, reason = "probe: it must be banned")]
fn starting_a_process_of_tokio() {
    let _ = tokio::process::Command::new::<&str>;
}

#[expect(clippy::disallowed_methods, reason = "probe: it must be banned")]
fn starting_a_task() {
    let _ = tokio::spawn::<std::future::Ready<()>>;
}

#[expect(clippy::disallowed_methods, reason = "probe: it must be banned")]
fn reading_the_monotonic_clock() {
    let _ = std::time::Instant::now;
}

#[expect(clippy::disallowed_methods, reason = "probe: it must be banned")]
fn reading_the_wall_clock() {
    let _ = std::time::SystemTime::now;
}

#[test]
fn every_ban_has_a_probe() {
    // These functions name the banned paths and call none of them.
    exposing_a_secret();
    starting_a_process();
    starting_a_process_of_tokio();
    starting_a_task();
    reading_the_monotonic_clock();
    reading_the_wall_clock();

    let settings: toml::Table = SETTINGS.parse().expect(".clippy.toml is TOML");
    let lists = settings.iter().filter(|(name, _)| name.starts_with("disallowed-"));
    let banned: BTreeSet<String> = lists
        .flat_map(|(_, list)| list.as_array().expect("a list of bans"))
        .map(|ban| ban.get("path").unwrap_or(ban).as_str().expect("a ban names a path").to_owned())
        .collect();
    let probes = PROBES.lines().filter_map(|line| line.trim().strip_prefix("let _ = ")?.strip_suffix(';'));
    let probed: BTreeSet<String> =
        probes.map(|path| path.split("::<").next().unwrap_or(path).to_owned()).collect();
    assert_eq!(banned, probed, "left: banned in .clippy.toml; right: used in this file, one function each");
}
