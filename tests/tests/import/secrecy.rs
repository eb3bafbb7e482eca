//! Where secrets are during an import: every file that is created, and every program that is started, as strace sees them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::strace::strace;

use super::destinations::with_vault;
use super::support::{CANARY, Person, mode, one_server};

/// The mode that the settings file has before an import. No file of an import gets it but the settings file itself.
const MODE_OF_SETTINGS: u32 = 0o640;

/// An import with a rewriting, below strace with these options. `None` if strace cannot trace.
#[track_caller]
pub(crate) fn traced_import(person: &Person, options: &[&str], trace: &Path) -> Option<Command> {
    let mut strace = strace()?;
    strace.args(["-f", "-o"]).arg(trace).args(options).arg(built("COFFERDAM_BIN", "cofferdam"));
    Some(person.through(strace, &["import", ".mcp.json", "--yes", "--rewrite"]))
}

/// The system calls of a run that succeeded, by which files and programs come into being.
struct Trace(String);

impl Trace {
    /// Runs `cofferdam ARGUMENTS` with no mask, so that a file has the mode that the program asks for, and with these variables.
    #[track_caller]
    fn of(person: &Person, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let file = person.home().join("trace");
        let mut inner = strace()?;
        inner.args(["-f", "-s", "4096", "-e", "trace=/open,creat,/chmod,/mkdir,/mknod,execve,/link,/rename"]);
        inner.arg("-o").arg(&file).arg(built("COFFERDAM_BIN", "cofferdam"));
        let inner = person.through(inner, arguments);
        let mut shell = command("sh");
        shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
        shell.env_clear().envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.envs(variables.iter().copied()).current_dir(person.project());
        let output = output_of(shell, &format!("cofferdam {arguments:?} under strace"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let traced = std::fs::read_to_string(&file).expect("strace has written it");
        std::fs::remove_file(&file).expect("it was just read");
        let trace = Self(traced);
        trace.assert_nothing_is_open_to_others(variables);
        Some(trace)
    }

    /// A call that another thread interrupts has a second line, with its result alone.
    fn calls(&self, name: &str) -> Vec<&str> {
        self.0.lines().filter(|line| line.contains(name) && !line.contains("resumed>")).collect()
    }

    /// No file was created for others to read or written in its place, no directory for secrets was open to them, and no
    /// argument of a program had a secret.
    #[track_caller]
    fn assert_nothing_is_open_to_others(&self, variables: &[(&str, &str)]) {
        assert!(self.calls("execve(").len() == 1, "{}", self.0);
        for call in self.calls("execve(") {
            let is_secret = |text: &str| call.contains(text);
            assert!(!is_secret(CANARY) && !variables.iter().any(|(_, value)| is_secret(value)), "{call}");
        }
        let writes =
            |call: &&&str| call.contains("O_WRONLY") || call.contains("O_RDWR") || call.contains("O_CREAT");
        let opened = self.calls("open");
        for call in opened.iter().filter(writes).filter(|call| !call.contains("\"/dev/")) {
            assert!(call.contains("O_CREAT"), "an existing file is written in its place: {call}");
            assert_eq!(last_argument(call), "0600", "{call}");
        }
        for call in self.calls("mkdir").iter().filter(|call| call.contains("secrets")) {
            assert_eq!(last_argument(call), "0700", "{call}");
        }
        assert!(self.calls("mknod").is_empty() && self.calls("creat(").is_empty(), "{}", self.0);
    }

    /// The files that were created.
    fn created(&self) -> usize {
        self.calls("O_CREAT").len()
    }

    /// These modes are set and no others, in this order: those of files that are replaced.
    #[track_caller]
    fn assert_sets_modes(&self, modes: &[u32]) {
        let calls = self.calls("chmod");
        for call in &calls {
            assert!(call.contains("fchmod("), "a path may lead elsewhere meanwhile: {call}");
        }
        let set: Vec<&str> = calls.iter().map(|call| last_argument(call)).collect();
        assert_eq!(set, modes.iter().map(|mode| format!("0{mode:o}")).collect::<Vec<_>>(), "{calls:?}");
    }
}

/// The last argument of a call: `0600` of `openat(3, "a", O_WRONLY|O_CREAT, 0600) = 4`, also if the call was interrupted.
fn last_argument(call: &str) -> &str {
    let arguments = call.split([')', '<']).next().unwrap_or_default();
    arguments.rsplit(", ").next().unwrap_or_default().trim()
}

/// A person with a settings file of the mode that an import has to keep.
fn with_mode(person: Person) -> Person {
    std::fs::set_permissions(settings(&person), std::fs::Permissions::from_mode(MODE_OF_SETTINGS))
        .expect("it is the test's");
    person
}

fn settings(person: &Person) -> PathBuf {
    person.project().join(".mcp.json")
}

/// Secrets are in these files and no others, with the mode 0600 in directories of mode 0700.
#[track_caller]
fn assert_secrets_are_only_in(person: &Person, expected: &[&str]) {
    let mut left = person.files_with_secrets();
    left.sort();
    for path in &left {
        assert!(path.starts_with(person.secrets()) && mode(path) == 0o600, "{}", path.display());
    }
    let names: Vec<_> = left.iter().filter_map(|path| path.strip_prefix(person.secrets()).ok()).collect();
    assert_eq!(names.len(), expected.len(), "{names:?}");
    for (name, beginning) in names.iter().zip(expected) {
        assert!(name.to_string_lossy().starts_with(beginning), "{names:?}");
    }
    for directory in [person.secrets(), person.secrets().join("import")] {
        assert!(!directory.exists() || mode(&directory) == 0o700, "{}", directory.display());
    }
}

#[test]
fn no_file_with_a_secret_is_readable_by_others_at_any_moment_and_no_argument_has_one() {
    let person = with_mode(Person::with(".mcp.json", &one_server()));
    let import = ["import", ".mcp.json", "--yes", "--rewrite"];
    let Some(first) = Trace::of(&person, &import, &[]) else { return };
    assert!(first.created() >= 6, "{}", first.0);
    assert_eq!(first.calls("mkdir").iter().filter(|call| call.contains("secrets")).count(), 2, "{}", first.0);
    // The new settings file, without a secret in it.
    first.assert_sets_modes(&[MODE_OF_SETTINGS]);
    assert_secrets_are_only_in(&person, &["github.json", "import/"]);
    assert_eq!(std::fs::read_to_string(person.secrets().join(".gitignore")).unwrap(), "*\n");
    assert!(!person.read(".mcp.json").contains(CANARY));

    // The second import finds everything done.
    let second = Trace::of(&person, &import, &[]).expect("the first was traced");
    second.assert_sets_modes(&[]);
    assert_secrets_are_only_in(&person, &["github.json", "import/"]);

    // The undoing writes the plain text back: its file is private until it has the mode of the original.
    let undo = Trace::of(&person, &["import", ".mcp.json", "--undo"], &[]).expect("the first was traced");
    assert!(undo.created() >= 1, "{}", undo.0);
    undo.assert_sets_modes(&[MODE_OF_SETTINGS]);
    assert_eq!((person.read(".mcp.json"), mode(&settings(&person))), (one_server(), MODE_OF_SETTINGS));
    std::fs::remove_file(settings(&person)).unwrap();
    assert_secrets_are_only_in(&person, &["github.json"]);
}

#[test]
fn an_import_after_an_undoing_and_a_forgetting_open_no_file_to_others() {
    let person = with_mode(Person::with(".mcp.json", &one_server()));
    person.import(".mcp.json");
    person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(0);
    let Some(again) = Trace::of(&person, &["import", ".mcp.json", "--yes", "--rewrite"], &[]) else { return };
    again.assert_sets_modes(&[MODE_OF_SETTINGS]);
    assert_secrets_are_only_in(&person, &["github.json", "import/"]);
    let forget = Trace::of(&person, &["import", "--forget", "--yes"], &[]).expect("the import was traced");
    forget.assert_sets_modes(&[]);
    assert_secrets_are_only_in(&person, &["github.json"]);
    assert_eq!(mode(&settings(&person)), MODE_OF_SETTINGS);
}

/// The backup has the secrets, which are nowhere else on this host.
#[test]
fn an_import_to_vault_opens_no_file_to_others_and_has_no_secret_and_no_token_in_an_argument() {
    let Some(bao) = OpenBao::configured() else { return };
    bao.mount_kv("imports", KvEngine::V2);
    let person = with_mode(with_vault(&bao));
    let to_vault = ["import", ".mcp.json", "--to", "vault", "--kv-path", "imports/mcp", "--yes", "--rewrite"];
    let token = [("VAULT_TOKEN", bao.root_token.as_str())];
    let Some(first) = Trace::of(&person, &to_vault, &token) else { return };
    first.assert_sets_modes(&[mode(&person.configuration()), MODE_OF_SETTINGS]);
    assert_secrets_are_only_in(&person, &["import/"]);
    assert!(!person.read(".mcp.json").contains(CANARY));
    let second = Trace::of(&person, &to_vault, &token).expect("the first was traced");
    second.assert_sets_modes(&[]);
    let forget = Trace::of(&person, &["import", "--forget", "--yes"], &[]).expect("the first was traced");
    forget.assert_sets_modes(&[]);
    assert_secrets_are_only_in(&person, &[]);
}

#[test]
fn a_secret_outside_of_the_entries_is_reported_with_its_line() {
    let settings = one_server().replacen("// of the team", &format!("// old: {}", super::support::TOKEN), 1);
    let person = Person::with(".mcp.json", &settings);
    person.import(".mcp.json").assert_prints("stays in line 2 of it, outside of the entries");
}

#[test]
fn the_rewritten_file_keeps_its_mode_and_a_dry_run_changes_nothing() {
    let person = with_mode(Person::with(".mcp.json", &one_server()));
    let before = person.everything();
    person
        .cofferdam(&["import", ".mcp.json", "--dry-run", "--rewrite"])
        .assert_code(0)
        .assert_prints("ghp_… (39 characters)");
    assert_eq!(person.everything(), before);
    person.import(".mcp.json");
    assert_eq!(mode(&settings(&person)), MODE_OF_SETTINGS);
    let rewritten = person.read(".mcp.json");
    assert!(rewritten.contains("// of the team") && rewritten.contains("\"timeout\": 60000"), "{rewritten}");
}
