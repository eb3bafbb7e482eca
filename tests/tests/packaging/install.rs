//! `packaging/install.sh` with an archive of `packaging/archive`, as a user without root and without a compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cofferdam_tests::http::{Reply, listen};
use cofferdam_tests::process::{Running, built, command, output_of};
use cofferdam_tests::run_user::contents;
use cofferdam_tests::tools::Tool;

/// A directory with a release in `dist`, and nothing installed yet.
struct Release {
    directory: tempfile::TempDir,
}

impl Release {
    /// A release of the real program.
    #[track_caller]
    fn new() -> Self {
        Self::of(&built("COFFERDAM_BIN", "cofferdam"))
    }

    /// A release of a small program, for tests that do not get to use it.
    #[track_caller]
    fn small() -> Self {
        Self::of(&built("COFFERDAM_SHIM_BIN", "cofferdam-shim"))
    }

    #[track_caller]
    fn of(program: &Path) -> Self {
        let release = Self { directory: tempfile::tempdir().expect("a temporary directory can be made") };
        for name in ["home", "tmp"] {
            fs::create_dir(release.path(name)).expect("a temporary directory is writable");
        }
        release.archive("dist", program);
        release
    }

    #[track_caller]
    fn archive(&self, out: &str, program: &Path) {
        let mut archive = command(packaging("archive"));
        let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
        archive.arg(self.path(out)).arg(program);
        archive
            .arg(format!("{}={}", std::env::consts::ARCH, shim.display()))
            .env("SOURCE_DATE_EPOCH", "1750000000");
        let output = output_of(archive, "packaging/archive");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The archive of the program.
    fn archive_file(&self) -> PathBuf {
        self.path(&format!(
            "dist/cofferdam-{}-{}-linux.tar.gz",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH
        ))
    }

    /// `install.sh` of the release, with a home of its own and little else in its environment.
    fn install_command(&self, arguments: &[&str]) -> Command {
        let mut command = command(Path::new("/bin/sh"));
        command.arg(self.path("dist/install.sh")).args(arguments).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        command
    }

    #[track_caller]
    fn install(&self, arguments: &[&str]) -> Output {
        output_of(self.install_command(arguments), &format!("install.sh {arguments:?}"))
    }

    /// Asserts that the installation fails with this exit code and this text, and leaves nothing.
    #[track_caller]
    fn assert_refused(&self, arguments: &[&str], code: i32, said: &str) {
        let output = self.install(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
        assert!(!self.path("prefix/bin/cofferdam").exists(), "{arguments:?}: a program was installed");
        assert_eq!(files_in(&self.path("tmp")), Vec::<PathBuf>::new(), "{arguments:?}: temporary files");
    }

    fn prefix(&self) -> String {
        self.path("prefix").display().to_string()
    }
}

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All files below a directory.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    contents(directory).into_iter().map(|(path, _)| path).collect()
}

/// Without root, network, compiler and any file outside of the system's directories.
#[test]
fn a_user_without_root_installs_from_a_directory_and_the_demo_works() {
    let Some(bubblewrap) = Tool::Bubblewrap.path() else { return };
    let release = Release::new();
    let mut sandbox = command(&bubblewrap);
    sandbox.args(["--unshare-all", "--die-with-parent", "--uid", "1000", "--gid", "1000", "--clearenv"]);
    for directory in ["/usr", "/bin", "/lib", "/lib64"] {
        sandbox.args(["--ro-bind", directory, directory]);
    }
    sandbox.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/home/user"]);
    sandbox.arg("--ro-bind").arg(release.path("dist")).arg("/dist");
    sandbox.args(["--setenv", "HOME", "/home/user", "--setenv", "PATH", "/usr/bin:/bin"]);
    let script = "sh /dist/install.sh && export PATH=$HOME/.local/bin:$PATH && cofferdam demo && cofferdam shim --out shim && ./shim --version";
    sandbox.args(["--chdir", "/home/user", "/bin/sh", "-c", script]);
    let output = output_of(sandbox, "install.sh in a sandbox");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("as /home/user/.local/bin/cofferdam\n"), "{stdout}");
    assert!(
        stdout.contains("next: export PATH=\"/home/user/.local/bin:$PATH\" && cofferdam demo"),
        "{stdout}"
    );
    assert!(stdout.contains("cofferdam-shim "), "{stdout}");
}

#[test]
fn installing_twice_replaces_a_running_program_and_uninstalling_leaves_nothing() {
    let release = Release::new();
    let prefix = release.prefix();
    assert!(release.install(&["--prefix", &prefix]).status.success());
    let program = release.path("prefix/bin/cofferdam");
    // A program that runs cannot be written to. This one runs while its stdin is open.
    let mut shim = command(&program);
    shim.args(["demo-shim", "--server", "tools", "--relay", "unix:/no/such/socket"]).stdin(Stdio::piped());
    let mut running = Running::spawn(shim, "cofferdam demo-shim");
    let again = release.install(&["--prefix", &prefix]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(running.is_running(), "the replaced program ended");
    running.kill9();
    assert_eq!(fs::metadata(&program).expect("it is installed").permissions().mode() & 0o777, 0o755);
    let names: Vec<String> = files_in(&release.path("prefix"))
        .iter()
        .map(|file| file.strip_prefix(release.path("prefix")).expect("it is below").display().to_string())
        .collect();
    let documents =
        ["CHANGELOG.md", "LICENSE", "README.md"].map(|name| format!("share/doc/cofferdam/{name}"));
    assert_eq!(names, [&["bin/cofferdam".to_owned()], &documents[..]].concat());

    let removed = release.install(&["--prefix", &prefix, "--uninstall"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert_eq!(files_in(&release.path("prefix")), Vec::<PathBuf>::new());
    release.assert_refused(&["--prefix", &prefix, "--uninstall"], 66, "is not installed");
}

#[test]
fn what_is_damaged_missing_or_unencrypted_is_refused_and_leaves_nothing() {
    let release = Release::small();
    let prefix = release.prefix();
    let install = ["--prefix", prefix.as_str()];
    let archive = release.archive_file();
    let whole = fs::read(&archive).expect("the archive was made");

    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    fs::write(&archive, &changed).expect("a temporary directory is writable");
    release.assert_refused(&install, 65, "the checksum of");
    fs::write(&archive, &whole[..whole.len() / 2]).expect("a temporary directory is writable");
    release.assert_refused(&install, 65, "incomplete");
    fs::remove_file(&archive).expect("it is there");
    release.assert_refused(&install, 66, "there is no `cofferdam-");
    fs::write(&archive, &whole).expect("a temporary directory is writable");

    release.assert_refused(&["--prefix", &prefix, "--version", "9.9.9"], 66, "no archive of version 9.9.9");
    release.assert_refused(&["--prefix", "/dev/null/prefix"], 73, "cannot create `/dev/null/prefix/bin`");
    let unreadable =
        release.install_command(&["--prefix", &prefix]).env("TMPDIR", "/no/such/directory").output();
    let unreadable = unreadable.expect("sh can be started");
    let said = text(&unreadable.stderr);
    assert_eq!(unreadable.status.code(), Some(73), "{said}");
    assert!(
        said.contains("cannot write to `/no/such/directory`") && said.contains("name another with TMPDIR"),
        "{said}"
    );
    release.assert_refused(&["--prefix", &prefix, "--from", "http://192.0.2.1/dist"], 64, "is not encrypted");
    release.assert_refused(
        &["--prefix", &prefix, "--from", "/no/such/directory"],
        66,
        "there is no `SHA256SUMS`",
    );
    release.assert_refused(&["--prefix"], 64, "--prefix needs a value");
    assert!(release.install(&install).status.success(), "the whole archive is not installed");
}

/// A directory of the installation, and the option or variable that names it.
const PLACES: [(&str, &str); 2] = [("tmp", "TMPDIR"), ("prefix", "--prefix")];

/// What happens with one of its directories on a tmpfs of this size.
#[track_caller]
fn install_with_room(release: &Release, place: &str, kibibytes: u64, from: &str) -> Output {
    // The installation and what looks for its remains share one mount namespace.
    let script = r#"mount -t tmpfs -o "size=$1k" none "$2" || exit 99
        shift 2; "$@"; code=$?
        find "$HOME" "$TMPDIR" "$PREFIX" -type f -size +0 -path '*cofferdam*' | grep . && [ $code != 0 ] && exit 98
        exit $code"#;
    let install = release.install_command(&["--prefix", &release.prefix(), "--from", from]);
    let mut small = command("unshare");
    small.arg(if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" });
    small.args(["sh", "-c", script, "sh"]).arg(kibibytes.to_string()).arg(release.path(place));
    small.arg(install.get_program()).args(install.get_args());
    small.env_clear().envs(install.get_envs().filter_map(|(name, value)| Some((name, value?))));
    small.env("PREFIX", release.prefix());
    output_of(small, "install.sh on a small disk")
}

#[test]
fn a_full_disk_is_named_with_the_way_out_and_nothing_is_left() {
    let release = Release::small();
    fs::create_dir(release.prefix()).expect("a temporary directory is writable");
    let files = release.path("dist");
    let address = listen(move |request| match fs::read(files.join(request.path.trim_start_matches('/'))) {
        Ok(content) => Reply::Bytes(content),
        Err(_) => Reply::Status(404),
    });
    let archive = fs::metadata(release.archive_file()).expect("the archive was made").len() / 1024;
    let directory = release.path("dist").display().to_string();
    for from in [directory, format!("http://{address}")] {
        for (place, option) in PLACES {
            // Room for nothing, and for the archive but not for what is in it.
            for kibibytes in [4, archive + 64] {
                let output = install_with_room(&release, place, kibibytes, &from);
                let said = text(&output.stderr);
                let what = format!("{place} of {kibibytes} KiB from {from}: {}{said}", text(&output.stdout));
                assert_eq!(output.status.code(), Some(73), "{what}");
                assert!(said.contains("there is no room ") && said.contains(option), "{what}");
            }
            let output = install_with_room(&release, place, 64 * 1024, &from);
            assert!(output.status.success(), "{place} with room: {}", text(&output.stderr));
            let _ = fs::remove_dir_all(release.path("prefix/bin"));
            let _ = fs::remove_dir_all(release.path("prefix/share"));
        }
    }
}

#[test]
fn a_release_is_installed_from_an_address() {
    let release = Release::small();
    let files = release.path("dist");
    let address = listen(move |request| match fs::read(files.join(request.path.trim_start_matches('/'))) {
        Ok(content) => Reply::Bytes(content),
        Err(_) => Reply::Status(404),
    });
    let from = format!("http://{address}");
    let output = release.install(&["--prefix", &release.prefix(), "--from", &from]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(release.path("prefix/bin/cofferdam").exists());
    let missing = format!("{from}/elsewhere");
    let release = Release::small();
    release.assert_refused(&["--prefix", &release.prefix(), "--from", &missing], 69, "cannot get");
}

#[test]
fn the_same_input_gives_the_same_archive() {
    let release = Release::small();
    release.archive("again", &built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    let sums =
        |name: &str| fs::read_to_string(release.path(name).join("SHA256SUMS")).expect("it was written");
    assert_eq!(sums("dist"), sums("again"));
    assert_eq!(sums("dist").lines().count(), 3, "archive, shim and installer:\n{}", sums("dist"));
}
