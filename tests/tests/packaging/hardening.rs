//! The protection of the built programs against exploits, as far as their files decide it, compared with the golden files.

use std::path::{Path, PathBuf};

use cofferdam_tests::process::{built, command, output_of};

fn hardening(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/hardening").join(name)
}

#[track_caller]
fn description(program: &Path) -> String {
    let mut describe = command(hardening("describe"));
    describe.arg(program);
    let output = output_of(describe, "packaging/hardening/describe");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the description is text")
}

#[test]
fn both_programs_are_protected_as_the_golden_files_say() {
    for (variable, name, golden) in
        [("COFFERDAM_BIN", "cofferdam", "sidecar.txt"), ("COFFERDAM_SHIM_BIN", "cofferdam-shim", "shim.txt")]
    {
        let expected = std::fs::read_to_string(hardening(golden)).expect("the golden file is there");
        assert_eq!(description(&built(variable, name)), expected, "{name}");
    }
}

/// A program whose protection is switched off line by line is described as such.
#[test]
fn a_program_without_protection_is_described_so() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let source = directory.path().join("main.c");
    let program = directory.path().join("program");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a temporary directory is writable");
    let mut compile = command("gcc");
    compile.args(["-no-pie", "-Wl,-z,norelro", "-Wl,-z,execstack", "-Wl,-rpath,/tmp", "-o"]);
    compile.arg(&program).arg(&source);
    let output = output_of(compile, "gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "position-independent: no\nread-only relocations: none\nexecutable stack: yes\n\
                    segments that are writable and executable: 0\nrelocations in code: 0\n\
                    paths to search for libraries: 1\nlibraries: libc.so.6\nstarts with the C library 2.36 of Debian 12: yes\n";
    assert_eq!(description(&program), expected);
}

/// The program is linked with a library that claims to be a C library of the future.
#[test]
fn a_program_that_needs_a_newer_c_library_is_described_so() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = |name: &str| directory.path().join(name);
    for (name, text) in [
        ("library.c", "int future(void) { return 0; }\n"),
        ("versions", "GLIBC_2.100 { global: future; };\n"),
        ("main.c", "int future(void);\nint main(void) { return future(); }\n"),
    ] {
        std::fs::write(path(name), text).expect("a temporary directory is writable");
    }
    for arguments in [
        &["-shared", "-Wl,--version-script=versions", "-o", "libfuture.so", "library.c"][..],
        &["-o", "program", "main.c", "libfuture.so"],
    ] {
        let mut compile = command("gcc");
        compile.args(arguments).current_dir(directory.path());
        let output = output_of(compile, "gcc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let description = description(&path("program"));
    let last = description.lines().last();
    assert_eq!(last, Some("starts with the C library 2.36 of Debian 12: no, it needs 2.100"));
}
