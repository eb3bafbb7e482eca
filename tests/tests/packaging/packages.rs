//! The wheel and the npm packages that carry the program, installed without a network.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_tests::booted_debian::Shared;
use cofferdam_tests::packaged::stripped_program;
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::tools::Tool;

use super::commands_of_guide;
use super::published::Published;

/// The sections of the guide whose commands are run in a Debian that is not booted.
pub(crate) const SECTIONS: [&str; 5] =
    [INSTALLER, "pip and uv", "npm", "The shim for an image or a sandbox", "Completions"];
/// The section with `install.sh`.
pub(crate) const INSTALLER: &str = "For one user, without root";

/// Runs a script of `packaging` with this program and the shim inside; returns the files that it made.
#[track_caller]
pub(crate) fn make(script: &str, out: &Path, program: &Path) -> Vec<PathBuf> {
    let mut make = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(script));
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    make.arg(out).arg(program).arg(format!("{}={}", std::env::consts::ARCH, shim.display()));
    make.env("SOURCE_DATE_EPOCH", "1750000000");
    succeeds(make, script);
    files_of(out)
}

fn files_of(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).expect("it was made").flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[track_caller]
fn succeeds(command: Command, name: &str) -> String {
    let Output { status, stdout, stderr } = output_of(command, name);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{name}: {status}\n{}{}", text(&stdout), text(&stderr));
    text(&stdout)
}

#[track_caller]
fn assert_same_bytes_twice(script: &str, directory: &Path) {
    let small = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let [one, two] = ["one", "two"].map(|name| make(script, &directory.join(name), &small));
    assert!(!one.is_empty());
    for (one, two) in one.iter().zip(&two) {
        assert_eq!(one.file_name(), two.file_name());
        assert!(
            std::fs::read(one).expect("it was made") == std::fs::read(two).expect("it was made"),
            "{one:?}"
        );
    }
}

/// Asserts that both names start the program, with its shim inside, and that the demo works.
#[track_caller]
fn assert_installed(programs: &Path) {
    for name in ["cofferdam", "cofferdam-mcp"] {
        let mut version = command(programs.join(name));
        version.arg("--version");
        assert!(succeeds(version, name).starts_with("cofferdam "), "{name}");
    }
    let mut demo = command(programs.join("cofferdam-mcp"));
    demo.arg("demo");
    succeeds(demo, "cofferdam-mcp demo");
    let shim = programs.join("inside");
    let mut write = command(programs.join("cofferdam"));
    write.args(["shim", "--out"]).arg(&shim);
    succeeds(write, "cofferdam shim");
    assert!(shim.exists());
    let mut wrong = command(programs.join("cofferdam-mcp"));
    wrong.arg("no-such-command");
    assert_eq!(output_of(wrong, "cofferdam-mcp").status.code(), Some(64), "the exit code is lost");
}

#[test]
fn pip_installs_the_wheel_and_both_commands_run() {
    let Some(python) = Tool::Python.path() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let made = make("wheel", &directory.path().join("dist"), &stripped_program(directory.path()));
    let [wheel] = &made[..] else { panic!("{made:?}") };
    let name = wheel.file_name().expect("the wheel has a name").to_string_lossy().into_owned();
    assert!(
        name.starts_with(&format!("cofferdam_mcp-{}-py3-none-manylinux_2_", env!("CARGO_PKG_VERSION"))),
        "{name}"
    );
    let mut install = command(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    install.args(["--no-warn-script-location", "--prefix"]).arg(directory.path().join("prefix")).arg(wheel);
    succeeds(install, "pip install");
    assert_installed(&directory.path().join("prefix/bin"));
    assert_same_bytes_twice("wheel", directory.path());
}

#[test]
fn npm_installs_the_packages_and_both_commands_run() {
    let Some(npm) = Tool::Npm.path() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let made = make("npm/build", &directory.path().join("dist"), &stripped_program(directory.path()));
    assert_eq!(made.len(), 2, "{made:?}");
    let mut install = command(&npm);
    install.args(["install", "--global", "--offline", "--no-audit", "--no-fund", "--silent", "--prefix"]);
    install.arg(directory.path().join("prefix")).args(&made);
    install.env("npm_config_cache", directory.path().join("cache"));
    succeeds(install, "npm install");
    assert_installed(&directory.path().join("prefix/bin"));

    // Without the package of the platform the command says what is missing.
    let platform = directory.path().join("prefix/lib/node_modules/@cofferdam");
    std::fs::remove_dir_all(platform).expect("the platform's package was installed");
    let mut lost = command(directory.path().join("prefix/bin/cofferdam"));
    lost.arg("--version");
    let output = output_of(lost, "cofferdam without its program");
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is not installed") && said.contains("--omit=optional"), "{said}");
    assert_same_bytes_twice("npm/build", directory.path());
}

/// What Node calls the processor of this machine, and the other one that has a package; and that one's number in ELF.
const PROCESSORS: (&str, &str, u8) = match cfg!(target_arch = "aarch64") {
    true => ("arm64", "x64", 62),
    false => ("x64", "arm64", 183),
};

/// Makes the npm packages for the other processor. The program in them is a shell script, which runs on every machine.
#[track_caller]
fn make_for_other_processor(directory: &Path) -> Vec<PathBuf> {
    let (program, embed, out) =
        (directory.join("program"), directory.join("objcopy"), directory.join("other"));
    let mut header = b"\x7fELF".to_vec();
    header.resize(18, 0);
    header.push(PROCESSORS.2);
    std::fs::write(&program, header).expect("the directory is writable");
    let script = "#!/bin/sh\nfor out; do :; done\nprintf '#!/bin/sh\\necho the other program \"$@\"\\nexit 7\\n' >\"$out\"\n";
    std::fs::write(&embed, script).expect("the directory is writable");
    std::fs::set_permissions(&embed, std::fs::Permissions::from_mode(0o755)).expect("it was just written");
    let mut make = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/npm/build"));
    make.arg(&out).arg(&program).arg("x86_64=unused").env("OBJCOPY", &embed);
    make.env("SOURCE_DATE_EPOCH", "1750000000");
    succeeds(make, "npm/build");
    files_of(&out)
}

#[test]
fn npm_installs_the_program_of_the_processor_and_the_launcher_says_which_one_is_missing() {
    let Some(npm) = Tool::Npm.path() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (own, other, _) = PROCESSORS;
    let small = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let for_own = make("npm/build", &directory.path().join("own"), &small);
    let for_other = make_for_other_processor(directory.path());
    let ([own_platform, own_main], [other_platform, other_main]) = (&for_own[..], &for_other[..]) else {
        panic!("{for_own:?} {for_other:?}")
    };
    assert!(own_platform.to_string_lossy().contains(&format!("/cofferdam-linux-{own}-")), "{own_platform:?}");
    assert!(
        other_platform.to_string_lossy().contains(&format!("/cofferdam-linux-{other}-")),
        "{other_platform:?}"
    );
    let bytes = |path: &Path| std::fs::read(path).expect("it was made");
    assert!(bytes(own_main) == bytes(other_main), "the package for all processors is not the same for all");

    let install = |name: &str, packages: &[&PathBuf], options: &[&str]| {
        let mut install = command(&npm);
        install.args(["install", "--global", "--offline", "--no-audit", "--no-fund", "--silent", "--prefix"]);
        install.arg(directory.path().join(name)).args(options).args(packages);
        install.env("npm_config_cache", directory.path().join("cache"));
        (output_of(install, "npm install"), directory.path().join(name).join("bin/cofferdam"))
    };
    // npm does not install a program for another processor, unless it is forced to.
    let (refused, _) = install("refused", &[other_main, other_platform], &[]);
    assert!(!refused.status.success(), "{refused:?}");
    let (installed, launcher) = install("other", &[other_main, other_platform], &["--force"]);
    assert!(installed.status.success(), "{installed:?}");

    // What Node says of the machine that it runs on.
    let launch = |platform: &str, processor: &str| {
        let pretend = directory.path().join("pretend.js");
        let text = format!(
            "Object.defineProperty(process, 'platform', {{ value: {platform:?} }});\n\
             Object.defineProperty(process, 'arch', {{ value: {processor:?} }});\n"
        );
        std::fs::write(&pretend, text).expect("the directory is writable");
        let mut launch = command(&launcher);
        launch.arg("demo").env("NODE_OPTIONS", format!("--require={}", pretend.display()));
        let output = output_of(launch, "cofferdam of npm");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(launch("linux", other), (Some(7), "the other program demo\n".to_owned(), String::new()));
    let missing = |platform: &str, processor: &str, parts: &[&str]| {
        let (code, _, said) = launch(platform, processor);
        assert_eq!(code, Some(69), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    let version = env!("CARGO_PKG_VERSION");
    missing(
        "linux",
        own,
        &[
            &format!("the package @cofferdam/linux-{own} {version} is not installed"),
            &format!("@cofferdam/linux-{other} is, so node_modules may have been copied"),
            "--omit=optional",
        ],
    );
    let all = "@cofferdam/linux-arm64 and @cofferdam/linux-x64";
    missing("darwin", "arm64", &["there is no package for darwin on arm64", all]);
    missing("linux", "riscv64", &["there is no package for linux on riscv64", all]);
}

/// The commands of the guide, with what is published, in a Debian without a compiler and without a network; npm and uv are those of this machine.
#[test]
#[ignore = "minutes: just slow"]
fn the_packages_run_in_a_debian_without_a_compiler() {
    let Some(uv) = Tool::Uv.path() else { return };
    let Some(published) = Published::open() else { return };
    let shared = Shared::default().path(published.directory(), "/dist");
    let Some(shared) = shared.node().and_then(Shared::npm) else { return };
    let shared = shared.path(&uv, "/usr/local/bin/uv");
    let shared = shared.path(&uv.with_file_name("uvx"), "/usr/local/bin/uvx");
    let mut script = "\
        ! command -v cargo && ! command -v gcc\n\
        export HOME=/root PATH=/usr/local/bin:/usr/bin:/bin UV_OFFLINE=1 npm_config_offline=true\n\
        ln -s /opt/npm/bin/npm-cli.js /usr/local/bin/npm && ln -s /opt/npm/bin/npx-cli.js /usr/local/bin/npx\n\
        mkdir /root/project && cd /root/project && ln -s /dist dist\n"
        .to_owned();
    for section in SECTIONS {
        script.extend(commands_of_guide(section));
        if section == INSTALLER {
            script.push_str("test $(command -v cofferdam) = /usr/local/bin/cofferdam && cofferdam demo\n");
        }
    }
    script.push_str("./cofferdam-shim --version\n");
    let Some(printed) = shared.succeeds(&script) else { return };
    assert!(printed.contains("installed cofferdam "), "{printed}");
}
