//! One packaged program is enough: it contains the shim.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::packaged::{packaged_program, program_with_shims};
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::json;

#[track_caller]
fn run(program: &Path, arguments: &[&str], directory: &Path) -> Output {
    let mut command = command(program);
    command.args(arguments).current_dir(directory);
    output_of(command, &format!("cofferdam {arguments:?}"))
}

fn static_shim() -> Vec<u8> {
    fs::read(built("COFFERDAM_SHIM_BIN", "cofferdam-shim")).expect("the shim was built")
}

#[test]
fn the_shim_command_writes_the_shim_that_the_program_contains() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let program = packaged_program(directory.path());
    let printed = run(&program, &["shim"], directory.path());
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    assert!(printed.stdout == static_shim(), "{} bytes were printed", printed.stdout.len());

    // A file is replaced, even while it runs.
    let file = directory.path().join("inside");
    fs::write(&file, "an older shim").expect("a temporary directory is writable");
    let written =
        run(&program, &["shim", "--arch", std::env::consts::ARCH, "--out", "inside"], directory.path());
    assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
    assert!(fs::read(&file).expect("it was written") == static_shim());
    assert_eq!(fs::metadata(&file).expect("it was written").permissions().mode() & 0o777, 0o755);
    let version = run(&file, &["--version"], directory.path());
    assert!(version.stdout.starts_with(b"cofferdam-shim "), "{version:?}");
    let names: Vec<_> = fs::read_dir(directory.path()).expect("it exists").flatten().collect();
    assert_eq!(names.len(), 2, "a temporary file is left: {names:?}");
}

#[test]
fn a_shim_that_the_program_does_not_contain_is_refused_with_the_way_to_get_it() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let program = packaged_program(directory.path());
    let other = if std::env::consts::ARCH == "x86_64" { "aarch64" } else { "x86_64" };
    let refused = run(&program, &["shim", "--arch", other, "--out", "inside"], directory.path());
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(66), "{stderr}");
    assert!(stderr.contains(&format!("--target {other}-unknown-linux-musl")), "{stderr}");
    assert!(!directory.path().join("inside").exists());

    let unwritable = run(&program, &["shim", "--out", "no/such/directory/inside"], directory.path());
    assert_eq!(unwritable.status.code(), Some(73), "{}", String::from_utf8_lossy(&unwritable.stderr));
}

/// The shim that is called that of the other processor is this machine's with more bytes at its end.
#[test]
fn of_two_shims_the_command_writes_the_one_for_the_named_processor() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let other = if std::env::consts::ARCH == "x86_64" { "aarch64" } else { "x86_64" };
    let other_shim = directory.path().join("other-shim");
    let other_bytes = [static_shim(), b"of another processor".to_vec()].concat();
    fs::write(&other_shim, &other_bytes).expect("a temporary directory is writable");
    let own_shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    // In either order.
    for (name, is_own_first) in [("one", true), ("two", false)] {
        let folder = directory.path().join(name);
        fs::create_dir(&folder).expect("a temporary directory is writable");
        let mut shims = [(std::env::consts::ARCH, own_shim.as_path()), (other, &other_shim)];
        if !is_own_first {
            shims.reverse();
        }
        let program = program_with_shims(&folder, &shims);
        for (arguments, expected) in [
            (&["shim"][..], &static_shim()),
            (&["shim", "--arch", std::env::consts::ARCH], &static_shim()),
            (&["shim", "--arch", other], &other_bytes),
        ] {
            let printed = run(&program, arguments, &folder);
            assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
            assert!(printed.stdout == *expected, "{arguments:?}: {} bytes", printed.stdout.len());
        }
    }
}

#[test]
fn a_program_without_a_shim_takes_the_one_beside_it() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let program = directory.path().join("cofferdam");
    fs::copy(built("COFFERDAM_BIN", "cofferdam"), &program).expect("it was built");
    let refused = run(&program, &["shim", "--out", "inside"], directory.path());
    assert_eq!(refused.status.code(), Some(66), "{}", String::from_utf8_lossy(&refused.stderr));
    fs::write(directory.path().join("cofferdam-shim"), static_shim())
        .expect("a temporary directory is writable");
    let found = run(&program, &["shim"], directory.path());
    assert!(found.stdout == static_shim(), "{}", String::from_utf8_lossy(&found.stderr));
}

#[test]
fn attach_takes_the_shim_from_the_program() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let program = packaged_program(directory.path());
    let digest = ring::digest::digest(&ring::digest::SHA256, &static_shim());
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let template = run(&program, &["attach", "e2b", "--template"], directory.path());
    let text = String::from_utf8_lossy(&template.stdout);
    assert!(text.contains(&digest), "{text}{}", String::from_utf8_lossy(&template.stderr));
}

#[test]
fn run_puts_the_shim_of_the_program_into_the_sandbox() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let program = packaged_program(directory.path());
    let user = RunUser::new(World::new().server("tools", Server::fixture()));
    let mut command = user.command_of(&program);
    command.args(["--", "cofferdam-shim", "--server", "tools"]);
    let mut client = Harness::start(command, "cofferdam run");
    client.initialize();
    assert_eq!(client.call_text("add", json!({"a": 20, "b": 22})), "42");
    client.close_stdin();
    assert!(client.wait_for_exit().success(), "{}", client.stderr());
    user.assert_nothing_left();
}

#[test]
fn both_programs_print_the_version_of_the_relay_protocol() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    for (variable, name) in [("COFFERDAM_BIN", "cofferdam"), ("COFFERDAM_SHIM_BIN", "cofferdam-shim")] {
        let output = run(&built(variable, name), &["--version"], directory.path());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with(&format!("{name} {} (", env!("CARGO_PKG_VERSION"))), "{text}");
        assert!(text.ends_with("relay protocol 1)\n"), "{text}");
    }
}
