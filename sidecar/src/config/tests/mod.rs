//! Tests of whole configurations, valid and invalid. Error messages are compared in full, because users act on them.

mod bad_input;
mod confine;
mod manifest;
mod platforms;
mod relay;
mod scopes;
mod servers;
mod values;
mod vault;
mod vault_auth;
mod vault_secrets;

use std::path::{Path, PathBuf};

use cofferdam_secrets::{Origin, VaultOrigin};
use cofferdam_servers::spec::ServerKind;

use super::*;

fn environment() -> Environment {
    Environment::new(1000, |name| (name == "HOME").then(|| "/home/ada".into()))
        .with_files(certificates)
        .with_manifests(manifest::manifests)
}

/// Certificate files that the configurations of these tests name.
fn certificates(path: &Path) -> std::io::Result<Vec<u8>> {
    let pem = |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
    let text = match path.to_str() {
        Some("/etc/cofferdam/empty.pem") => String::new(),
        Some("/etc/cofferdam/key.pem") => pem("PRIVATE KEY", "AAAA"),
        Some("/etc/cofferdam/invalid.pem") => pem("CERTIFICATE", "AAAA"),
        Some("/etc/cofferdam/truncated.pem") => "-----BEGIN CERTIFICATE-----\nAAAA\n".to_owned(),
        Some("/etc/cofferdam/vault-ca.pem") => include_str!("ca.pem").to_owned(),
        _ => return Err(std::io::ErrorKind::NotFound.into()),
    };
    Ok(text.into_bytes())
}

fn check(text: &str) -> Result<Config, Problems> {
    check_text_in(text, Path::new("cofferdam.toml"), &environment())
}

/// Checks a text that must be valid, as `cofferdam.toml` in the current directory.
#[track_caller]
fn valid(text: &str) -> Config {
    check(text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Checks a text that must be valid, as `/etc/cofferdam.toml`.
#[track_caller]
fn valid_as_etc_file(text: &str) -> Config {
    let config = check_text_in(text, Path::new("/etc/cofferdam.toml"), &environment());
    config.unwrap_or_else(|problems| panic!("{problems}\nconfiguration:\n{text}"))
}

/// All error messages of an invalid text.
#[track_caller]
fn problems_of(text: &str) -> String {
    check(text).map(|_| ()).expect_err("the configuration should be invalid").to_string()
}

/// Asserts all error messages of an invalid text.
#[track_caller]
fn assert_problems(text: &str, expected: &str) {
    assert_eq!(problems_of(text), expected, "configuration:\n{text}");
}

#[test]
fn every_example_is_valid() {
    let examples: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../packaging/examples"].iter().collect();
    let mut count = 0;
    for entry in std::fs::read_dir(&examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            load(&path).unwrap_or_else(|problems| panic!("{problems}"));
            count += 1;
        }
    }
    assert!(count >= 2, "no examples in {}", examples.display());
}

#[test]
fn the_full_example_is_read_as_written() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../packaging/examples/full.toml"].iter().collect();
    let config = load(&path).unwrap();
    assert_eq!(config.limits, Limits::default(), "the example shows the defaults");
    assert_eq!(config.audit_sync, cofferdam_audit::SyncMode::Write);
    let unix = config.relay.unix.unwrap();
    assert_eq!(unix.path, Path::new("/run/cofferdam/relay/relay.sock"));
    assert_eq!(unix.grant.as_str(), "dev");
    assert_eq!(config.relay.uids, Some(vec![1000]));
    let names =
        |names: &[relay_proto::name::Name]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&config.grants[&"dev".parse().unwrap()].servers), ["github", "warehouse", "linear"]);
    let ServerKind::Stdio(warehouse) = &config.servers[&"warehouse".parse().unwrap()].kind else {
        panic!("a command makes a stdio server")
    };
    assert_eq!(warehouse.env["DATABASE_URI"].files().collect::<Vec<_>>(), ["client.pem"]);
    let ServerKind::Http(linear) = &config.servers[&"linear".parse().unwrap()].kind else {
        panic!("a URL makes an HTTP server")
    };
    assert_eq!(linear.headers[0].0, http::header::AUTHORIZATION);
    assert_eq!(linear.addresses, cofferdam_net::AddressPolicy::PublicOnly);
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let config = valid("");
    assert_eq!(config.state_dir, Path::new("/home/ada/.local/state/cofferdam"));
    assert_eq!(config.admin.socket, Path::new("/home/ada/.local/state/cofferdam/admin/admin.sock"));
    assert_eq!(config.audit_sync, cofferdam_audit::SyncMode::Write);
    assert!(config.relay.unix.is_none());
    assert_eq!(config.relay.resume_grace.as_secs(), 120);
    assert_eq!(config.relay.heartbeat.as_secs(), 20);
    let config = valid("[servers.a]\ncommand = ['a']\n[grants.g]\nservers = []");
    assert_eq!(config.servers[&"a".parse().unwrap()].call_timeout.as_secs(), 240);
    assert_eq!(config.grants[&"g".parse().unwrap()].ttl.as_secs(), 8 * 3600);
}

#[test]
fn the_digest_changes_with_rules_and_grants_only() {
    let digest = |text: &str| valid(text).policy_digest;
    let base = "[servers.a]\ncommand = ['a']\ntools.allow = ['x', 'y']\n[grants.g]\nservers = ['a']";
    assert_eq!(digest(base).len(), 64);
    assert_eq!(digest(base), digest(&base.replace("'x', 'y'", "'y', 'x'")));
    assert_eq!(digest(base), digest(&base.replace("command = ['a']", "command = ['b']")));
    assert_ne!(digest(base), digest(&base.replace("'x', 'y'", "'x'")));
    assert_ne!(digest(base), digest(&base.replace("tools.allow = ['x', 'y']", "tools.ask = ['x', 'y']")));
    assert_ne!(digest(base), digest(&base.replace("servers = ['a']", "servers = []")));
    assert_ne!(digest(base), digest(&base.replace("command = ['a']", "command = ['a']\nretry = true")));
    assert_ne!(digest(base), digest(&format!("{base}\nttl = '1h'")));
}

#[test]
fn relative_paths_start_at_the_configurations_directory() {
    let text = "state-dir = './state/../kept'\n[secrets.s]\nfile = 's.json'\n\
                [servers.a]\ncommand = ['bin/a', 'rel/ative']\n[servers.b]\ncommand = ['b']\ncwd = 'work'";
    let config = check_text_in(text, Path::new("/etc/cofferdam/c.toml"), &environment()).unwrap();
    assert_eq!(config.state_dir, Path::new("/etc/cofferdam/kept"));
    let Origin::File(file) = &config.secrets[&"s".parse().unwrap()].origin else { panic!("a file") };
    assert_eq!(file, Path::new("/etc/cofferdam/s.json"));
    let stdio = |name: &str| match &config.servers[&name.parse().unwrap()].kind {
        ServerKind::Stdio(server) => server,
        other => panic!("not a command: {other:?}"),
    };
    assert_eq!(stdio("a").command, ["/etc/cofferdam/bin/a", "rel/ative"]);
    assert_eq!(stdio("a").directory, None);
    assert_eq!(stdio("b").command, ["b"], "a bare program is found by PATH");
    assert_eq!(stdio("b").directory.as_deref(), Some(Path::new("/etc/cofferdam/work")));
}
