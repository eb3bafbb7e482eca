//! Tests of reading and writing manifests, and of comparing them with what a server is given.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::profile::{Home, Profile, ShownPath};

fn shown(path: &str) -> ShownPath {
    ShownPath::new(path.into(), &[]).expect("it may be shown")
}

/// Given to a server that may execute nothing else.
fn given(profile: &Profile) -> Given<'_> {
    Given { profile, directory: None, hosts: 0, variables: 0 }
}

fn closed() -> Profile {
    Profile { exec: Some(Vec::new()), ..Profile::default() }
}

fn words(manifest: &Manifest) -> Vec<&'static str> {
    manifest.permissions.iter().map(|permission| permission.word()).collect()
}

fn manifest(permissions: &[Permission]) -> Manifest {
    Manifest { about: About::default(), permissions: permissions.iter().copied().collect() }
}

#[test]
fn all_eighteen_words_are_read() {
    let list = Permission::ALL.map(|permission| format!("{:?}", permission.word())).join(",");
    let json = format!(
        r#"{{"name":"n","description":"d","registry":"npm","package_name":"p","permissions":[{list}],"code_mount":"/x"}}"#
    );
    let read = Manifest::parse(json.as_bytes()).expect("a manifest");
    assert_eq!(read.permissions, BTreeSet::from(Permission::ALL));
    assert_eq!(read.about.package_name.as_deref(), Some("p"));
}

#[test]
fn what_is_not_a_manifest_is_refused_without_a_quotation() {
    let error = |json: &str| Manifest::parse(json.as_bytes()).expect_err(json);
    assert_eq!(error(r#"{"permissions":["mcp.ac.filesystem.re"#), ManifestError::Cut);
    assert_eq!(error(""), ManifestError::Cut);
    assert_eq!(error("token=secret"), ManifestError::Syntax { line: 1, column: 2 });
    let unknown = ManifestError::UnknownWord { position: 2, word: "mcp.ac.filesystem".into() };
    assert_eq!(error(r#"{"permissions":["mcp.ac.location","mcp.ac.filesystem"]}"#), unknown);
    assert_eq!(
        error(r#"{"permissions":["mcp.ac.location","mcp.ac.location"]}"#),
        ManifestError::Duplicate(Permission::Location)
    );
    let other_shapes = [
        r#"{"token":"ghp_secret"}"#,
        r#"{"permissions":"ghp_secret"}"#,
        r#"{"permissions":[1]}"#,
        r#"{"permissions":[],"permissions":[]}"#,
        r#"{"name":1,"permissions":[]}"#,
        r#"["mcp.ac.location"]"#,
    ];
    for json in other_shapes {
        assert!(matches!(error(json), ManifestError::Shape { line: 1, .. }), "{json}: {}", error(json));
        assert!(!error(json).to_string().contains("ghp_secret"), "{json}");
    }
    let trailing = error(r#"{"permissions":[]} x"#);
    assert!(matches!(trailing, ManifestError::Syntax { .. }), "{trailing}");
}

#[test]
fn only_a_regular_file_of_bounded_size_is_read() {
    let directory = tempfile::tempdir().expect("make a directory");
    let path = |name: &str| directory.path().join(name);
    let error = |path: &Path| read_file(path).expect_err("it is refused").to_string();
    std::fs::write(path("manifest.json"), vec![b' '; 64 * 1024]).expect("write");
    assert_eq!(read_file(&path("manifest.json")).expect("it is read").len(), 64 * 1024);
    std::fs::write(path("large"), vec![b' '; 64 * 1024 + 1]).expect("write");
    assert_eq!(error(&path("large")), "it is larger than 64 KiB, so it is no manifest");
    std::os::unix::fs::symlink(path("manifest.json"), path("link")).expect("link");
    assert_eq!(error(&path("link")), "it is a symbolic link: name the file itself");
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("make a pipe");
    assert_eq!(error(&path("pipe")), "it is not a regular file");
    assert_eq!(error(directory.path()), "it is not a regular file");
    assert_eq!(error(Path::new("/dev/zero")), "it is not a regular file");
    assert!(error(&path("missing")).starts_with("No such file"));
}

#[test]
fn each_key_asks_for_its_words() {
    let asked = |given: &Given<'_>| words(&Manifest::of(given, About::default()));
    let closed = closed();
    assert!(asked(&given(&closed)).is_empty());
    let read = Profile { read: vec![shown("/srv/a")], ..closed.clone() };
    assert_eq!(asked(&given(&read)), ["mcp.ac.filesystem.read"]);
    let directory = Given { directory: Some(Path::new("/srv/a")), ..given(&closed) };
    assert_eq!(asked(&directory), ["mcp.ac.filesystem.read"]);
    let all = ["mcp.ac.filesystem.read", "mcp.ac.filesystem.write", "mcp.ac.filesystem.delete"];
    let write = Profile { write: vec![shown("/usr")], ..closed.clone() };
    assert_eq!(asked(&given(&write)), all);
    let missing = Profile { write: vec![shown("/nonexistent/a")], ..closed.clone() };
    assert_eq!(asked(&given(&missing)), all, "it may become a directory");
    let file = tempfile::NamedTempFile::new().expect("make a file");
    let path = ShownPath::new(file.path().to_owned(), &[]).expect("it may be shown");
    let one_file = Profile { write: vec![path], ..closed.clone() };
    assert_eq!(asked(&given(&one_file)), &all[..2]);
    let home = Profile { home: Home::Keep, ..closed.clone() };
    assert_eq!(asked(&given(&home)), all);
    let exec = Profile { exec: Some(vec![shown("/usr/bin/true")]), ..closed.clone() };
    assert_eq!(asked(&given(&exec)), ["mcp.ac.system.exec"]);
    assert_eq!(asked(&given(&Profile::default())), ["mcp.ac.system.exec"], "it may execute all that it sees");
    let hosts = Given { hosts: 1, ..given(&closed) };
    assert_eq!(asked(&hosts), ["mcp.ac.network.client"]);
    let variables = Given { variables: 1, ..given(&closed) };
    assert_eq!(asked(&variables), ["mcp.ac.system.env.read"]);
}

#[test]
fn what_goes_beyond_a_manifest_is_named_with_its_key() {
    let profile = Profile { write: vec![shown("/usr")], ..closed() };
    let bound = manifest(&[Permission::FilesystemRead, Permission::FilesystemWrite]);
    let exceeded = bound.exceeded_by(&Given { hosts: 2, ..given(&profile) });
    let exceeded: Vec<_> = exceeded.iter().map(|asked| (asked.permission, asked.by.path)).collect();
    assert_eq!(
        exceeded,
        [
            (Permission::FilesystemDelete, &["confine", "write"][..]),
            (Permission::NetworkClient, &["confine", "hosts"])
        ]
    );
}

#[test]
fn a_permission_waits_for_the_key_that_refines_it_unless_none_can() {
    let bound = manifest(&Permission::ALL);
    let waiting = |given: &Given<'_>| -> Vec<_> {
        bound.unrefined(given).into_iter().map(|(_, key)| key.path.join(".")).collect()
    };
    let closed = closed();
    assert_eq!(
        waiting(&given(&closed)),
        ["confine.read", "confine.write", "confine.write", "env", "confine.exec", "confine.hosts"]
    );
    let open = Profile { write: vec![shown("/usr")], exec: None, ..Profile::default() };
    let given = Given { profile: &open, directory: None, hosts: 1, variables: 1 };
    assert!(waiting(&given).is_empty());
    assert!(manifest(&[]).unrefined(&given).is_empty());
}

prop_compose! {
    fn any_manifest()(
        about in proptest::array::uniform4(proptest::option::of(any::<String>())),
        permissions in proptest::sample::subsequence(&Permission::ALL[..], 0..=Permission::ALL.len()),
    ) -> Manifest {
        let [name, description, registry, package_name] = about;
        let about = About { name, description, registry, package_name };
        Manifest { about, permissions: permissions.into_iter().collect() }
    }
}

prop_compose! {
    fn any_profile()(
        read in any::<bool>(), write in any::<bool>(), keep in any::<bool>(), exec in 0..3,
    ) -> Profile {
        let list = |listed: bool| if listed { vec![shown("/usr/lib")] } else { Vec::new() };
        Profile {
            read: list(read),
            write: list(write),
            exec: (exec > 0).then(|| list(exec == 1)),
            home: if keep { Home::Keep } else { Home::Private },
            ..Profile::default()
        }
    }
}

proptest! {
    #[test]
    fn a_manifest_that_was_written_reads_as_the_same(manifest in any_manifest()) {
        let read = Manifest::parse(manifest.to_json().as_bytes());
        prop_assert_eq!(read, Ok(manifest));
    }

    #[test]
    fn the_manifest_of_a_profile_is_the_narrowest_that_bounds_it(
        profile in any_profile(), hosts in 0..2_usize, variables in 0..2_usize,
    ) {
        let given = Given { profile: &profile, directory: None, hosts, variables };
        let narrowest = Manifest::of(&given, About::default());
        prop_assert!(narrowest.exceeded_by(&given).is_empty());
        for permission in &narrowest.permissions {
            let mut narrower = narrowest.clone();
            narrower.permissions.remove(permission);
            let exceeded: Vec<_> = narrower.exceeded_by(&given).iter().map(|asked| asked.permission).collect();
            prop_assert_eq!(exceeded, vec![*permission]);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_fail_otherwise_than_with_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Manifest::parse(&bytes);
    }
}
