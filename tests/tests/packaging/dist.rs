//! What `just dist` builds: everything that is published, the same bytes in another folder, and a shim for aarch64 that works.
//! Builds take minutes, so this runs in `just slow`.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_base::elf::read_section;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{command, output_of, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

use super::published::{ARCHITECTURE, Published, VERSION, build, clone_into};

/// The largest section with a list of dependencies that is read.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// Prints the list of dependencies that `cargo auditable` has compressed.
const DECOMPRESS: &str =
    "import sys, zlib; sys.stdout.buffer.write(zlib.decompress(open(sys.argv[1], 'rb').read()))";

#[track_caller]
fn printed(mut command: Command, directory: &Path) -> Vec<u8> {
    let name = format!("{command:?}");
    command.current_dir(directory);
    let output = output_of(command, &name);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[track_caller]
fn text_of(command: Command, directory: &Path) -> String {
    String::from_utf8(printed(command, directory)).expect("it prints text")
}

/// What the ecosystems call a processor.
struct Processor {
    name: &'static str,
    debian: &'static str,
    npm: &'static str,
}

const PROCESSORS: [Processor; 2] = [
    Processor { name: "aarch64", debian: "arm64", npm: "arm64" },
    Processor { name: "x86_64", debian: "amd64", npm: "x64" },
];

/// A program of one processor on this machine, which needs an emulator for that of another.
fn runnable(program: &Path, processor: &Processor, emulator: &Path) -> Command {
    if processor.name == ARCHITECTURE {
        return command(program);
    }
    let mut emulated = command(emulator);
    // Where the cross compiler has the C library.
    emulated.args(["-L", &format!("/usr/{}-linux-gnu", processor.name)]).arg(program);
    emulated
}

/// The sidecar as each of the packages that a user installs carries it.
#[track_caller]
fn sidecars(published: &Published, processor: &Processor, directory: &Path) -> Vec<PathBuf> {
    let Processor { name: architecture, debian, npm } = processor;
    let directory = directory.join(architecture);
    std::fs::create_dir(&directory).expect("a temporary directory is writable");
    let archive = published.file(&format!("cofferdam-{VERSION}-{architecture}-linux.tar.gz"));
    let package = published.file(&format!("cofferdam_{VERSION}-1_{debian}.deb"));
    let wheel = published.file(&published_wheel(published, architecture));
    let tarball = published.file(&format!("cofferdam-linux-{npm}-{VERSION}.tgz"));
    let unpack = |program: &str, options: &[&str], file: &Path, name: &str, inside: &str| {
        let folder = directory.join(name);
        std::fs::create_dir(&folder).expect("a temporary directory is writable");
        let mut unpack = command(program);
        unpack.args(options).arg(file);
        if program == "dpkg-deb" {
            unpack.arg(".");
        }
        printed(unpack, &folder);
        folder.join(inside)
    };
    let folder = format!("cofferdam-{VERSION}-{architecture}-linux");
    let scripts = format!("cofferdam_mcp-{VERSION}.data/scripts/cofferdam");
    vec![
        unpack("tar", &["-xf"], &archive, "archive", &format!("{folder}/cofferdam")),
        unpack("dpkg-deb", &["-x"], &package, "deb", "usr/bin/cofferdam"),
        unpack("python3", &["-c", UNZIP], &wheel, "wheel", &scripts),
        unpack("tar", &["-xf"], &tarball, "npm", "package/bin/cofferdam"),
    ]
}

/// Like `unzip`, and the programs may be run then.
const UNZIP: &str = "\
import os, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
archive.extractall()
for entry in archive.infolist(): os.chmod(entry.filename, entry.external_attr >> 16)";

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("the directory is there").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The name of the wheel for a processor, which says what the program needs.
#[track_caller]
fn published_wheel(published: &Published, architecture: &str) -> String {
    let ending = format!("_{architecture}.whl");
    let wheels: Vec<String> =
        names(published.directory()).into_iter().filter(|name| name.ends_with(&ending)).collect();
    let [wheel] = &wheels[..] else { panic!("not one wheel: {wheels:?}") };
    assert!(wheel.starts_with(&format!("cofferdam_mcp-{VERSION}-py3-none-")), "{wheel}");
    wheel.clone()
}

#[test]
#[ignore = "a build of everything: just slow"]
fn everything_is_published_by_one_recipe() {
    let (Some(python), Some(emulator)) = (Tool::Python.path(), Tool::QemuAarch64.path()) else { return };
    let Some(published) = Published::open() else { return };
    let dist = published.directory();
    let mut expected = BTreeSet::from([
        "SHA256SUMS".to_owned(),
        format!("cofferdam-image-{VERSION}.tar"),
        format!("cofferdam-mcp-{VERSION}.tgz"),
        format!("cofferdam-shim-image-{VERSION}.tar"),
        "install.sh".to_owned(),
    ]);
    for Processor { name, debian, npm } in &PROCESSORS {
        expected.extend([
            format!("cofferdam-{VERSION}-{name}-linux.tar.gz"),
            format!("cofferdam-{VERSION}-{name}.cdx.json"),
            format!("cofferdam-linux-{npm}-{VERSION}.tgz"),
            format!("cofferdam-shim-{VERSION}-{name}"),
            format!("cofferdam-shim-{VERSION}-{name}.cdx.json"),
            format!("cofferdam_{VERSION}-1_{debian}.deb"),
            published_wheel(&published, name),
        ]);
    }
    assert_eq!(names(dist), expected);

    let mut check = command("sha256sum");
    check.args(["--check", "--strict", "SHA256SUMS"]);
    assert_eq!(text_of(check, dist).lines().count(), expected.len() - 1);

    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let mut commits = BTreeSet::new();
    for processor in &PROCESSORS {
        for sidecar in sidecars(&published, processor, directory.path()) {
            let mut version = runnable(&sidecar, processor, &emulator);
            version.arg("--version");
            commits.insert(commit_in(&text_of(version, directory.path()), "cofferdam"));
            let needed = ["cofferdam", "relay-proto", "tokio", "vaultrs"];
            assert_lists_its_dependencies(&sidecar, &python, &needed);
            for inside in &PROCESSORS {
                let mut shim = runnable(&sidecar, processor, &emulator);
                shim.args(["shim", "--arch", inside.name]);
                let shim = printed(shim, directory.path());
                assert!(shim == read(&published.shim(inside.name)), "{}", sidecar.display());
            }
        }
        let shim = published.shim(processor.name);
        let mut version = runnable(&shim, processor, &emulator);
        version.arg("--version");
        commits.insert(commit_in(&text_of(version, directory.path()), "cofferdam-shim"));
        assert_lists_its_dependencies(&shim, &python, &["cofferdam-shim", "relay-proto", "tokio"]);
        for (name, needed) in [("cofferdam", "vaultrs"), ("cofferdam-shim", "relay-carriage")] {
            let list = published.file(&format!("{name}-{VERSION}-{}.cdx.json", processor.name));
            assert_components(&list, name, needed);
        }
    }
    assert_eq!(commits.len(), 1, "the programs are of different commits: {commits:?}");
    if let Some(built) = &published.commit {
        assert_eq!(commits.first(), Some(built));
    }
}

/// The commit in the output of `--version`, which also has the version of the program and that of the protocol.
#[track_caller]
fn commit_in(version: &str, name: &str) -> String {
    let inside = version.strip_prefix(&format!("{name} {VERSION} (")).unwrap_or_else(|| panic!("{version}"));
    let (commit, protocol) = inside.split_once(", ").unwrap_or_else(|| panic!("no commit: {version}"));
    assert_eq!(protocol, format!("relay protocol {})\n", relay_proto::limits::VERSION));
    let commit = commit.strip_prefix("commit ").unwrap_or_else(|| panic!("no commit: {version}"));
    let digits = commit.strip_suffix("-changed").unwrap_or(commit);
    assert!(digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{version}");
    commit.to_owned()
}

/// `cargo audit bin` reads the same section. It is there after stripping, and after the shims were put in.
#[track_caller]
fn assert_lists_its_dependencies(program: &Path, python: &Path, expected: &[&str]) {
    let file = File::open(program).expect("the program is there");
    let section = read_section(&file, ".dep-v0", MAX_LIST_BYTES).expect("it is a program");
    let section = section.unwrap_or_else(|| panic!("{} does not list its dependencies", program.display()));
    let compressed = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(compressed.path(), section).expect("a temporary file is writable");
    let mut decompress = command(python);
    decompress.args(["-c", DECOMPRESS]).arg(compressed.path());
    let list: Value = serde_json::from_slice(&printed(decompress, Path::new("/"))).expect("the list is JSON");
    let packages = list["packages"].as_array().expect("the list has packages");
    for name in expected {
        let package = packages.iter().find(|package| package["name"] == *name);
        let version = package.and_then(|package| package["version"].as_str());
        assert!(version.is_some_and(|version| version.contains('.')), "{}: {name}", program.display());
    }
}

/// A CycloneDX file of one program, without a path of the machine that built it.
#[track_caller]
fn assert_components(file: &Path, program: &str, needed: &str) {
    let text = String::from_utf8(read(file)).expect("the file is text");
    let document: Value = serde_json::from_str(&text).expect("the file is JSON");
    assert_eq!(document["bomFormat"], "CycloneDX");
    assert_eq!(document["specVersion"], "1.5");
    assert!(document["serialNumber"].as_str().is_some_and(|serial| serial.starts_with("urn:uuid:")));
    let subject = &document["metadata"]["component"];
    assert_eq!((&subject["name"], &subject["version"]), (&json!(program), &json!(VERSION)));
    let components = document["components"].as_array().expect("it lists components");
    assert!(components.len() > 50, "{} components", components.len());
    for component in components {
        let named = ["name", "version", "purl"].iter().all(|key| component[key].is_string());
        assert!(named, "{component}");
    }
    let names: BTreeSet<&str> =
        components.iter().filter_map(|component| component["name"].as_str()).collect();
    assert!(names.contains("tokio") && names.contains(needed), "{names:?}");
    for folder in ["file:///", "/home/", "/root/", "/tmp/", env!("CARGO_MANIFEST_DIR")] {
        let ours = text.replace("file:///src", "");
        assert!(!ours.contains(folder), "{} contains {folder}", file.display());
    }
}

/// Builds both shims as they are published, from the sources in `folder`.
#[track_caller]
fn build_shims(folder: &Path, target: &Path) -> Option<[PathBuf; 2]> {
    let tools = Tool::CargoAuditable.path()?;
    let out = tempfile::tempdir().expect("a temporary directory can be made");
    let mut dist: Command = command(folder.join("packaging/dist"));
    dist.arg(out.path()).arg("shims").current_dir(folder);
    let path = std::env::var("PATH").expect("PATH is set");
    let tools = tools.parent().expect("a program is in a directory");
    dist.env("PATH", format!("{path}:{}", tools.display())).env("CARGO_TARGET_DIR", target);
    build(dist, "packaging/dist", &out.path().join("log"));
    Some(
        ["x86_64", "aarch64"].map(|architecture| {
            target.join(format!("{architecture}-unknown-linux-musl/shim/cofferdam-shim"))
        }),
    )
}

/// One build is that of `just dist`, of the commit that is checked out. With `COFFERDAM_DIST` that has to be its commit too.
#[test]
#[ignore = "minutes: just slow"]
fn two_builds_of_the_shim_in_different_folders_have_the_same_bytes() {
    let Some(published) = Published::open() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let folder = directory.path().join("a/folder/with/a/longer/path");
    clone_into(&folder);
    let Some(shims) = build_shims(&folder, &folder.join("target")) else { return };
    let here = directory.path().display().to_string();
    for (architecture, again) in ["x86_64", "aarch64"].into_iter().zip(&shims) {
        let (one, two) = (read(&published.shim(architecture)), read(again));
        assert!(!one.is_empty() && one == two, "the builds for {architecture} differ");
        let text = String::from_utf8_lossy(&two);
        assert!(
            !text.contains(&here) && !text.contains("registry/src"),
            "a folder of this machine is in the shim"
        );
    }
}

#[test]
#[ignore = "minutes: just slow"]
fn the_shim_for_aarch64_relays_a_call() {
    let Some(emulator) = Tool::QemuAarch64.path() else { return };
    let Some(published) = Published::open() else { return };
    let world = World::new().server("tools", Server::fixture()).start();
    let mut command = command(emulator);
    command.arg(published.shim("aarch64")).args(["--server", "tools", "--relay", &world.link()]).env_clear();
    let mut harness = Harness::start(command, "cofferdam-shim for aarch64").initialized();
    assert_eq!(harness.call_text("add", json!({"a": 20, "b": 22})), "42");
    harness.close_stdin();
    assert!(harness.wait_for_exit().success(), "{}", harness.stderr());
}
