//! The set-up with Vault that the documents show, followed as written against a real OpenBao by a user who has `bao`,
//! `cofferdam` and two MCP servers on the path. Only the address differs: every test has its own server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{Running, built, command, into_file, output_of};
use cofferdam_tests::tools::Tool;
use cofferdam_tests::vault::{leave, session_tokens, tokens};
use nix::sys::signal::Signal;
use serde_json::json;

const GUIDE: &str = include_str!("../../packaging/guide/vault.md");
const EXAMPLE: &str = "packaging/examples/vault";
/// What the person types when a command of the guide waits for a token.
const TYPED: &str = "ghp_typed_by_the_person_0123456789abcdef";
/// The address that the documents show.
const SHOWN: &str = "http://127.0.0.1:8200";

#[test]
fn the_set_up_of_the_guide_works_as_written() {
    let Some(workspace) = Workspace::new() else { return };
    let script = blocks(GUIDE, "bash").concat();
    let script = script.strip_suffix("cofferdam serve\n").expect("the script ends with `cofferdam serve`");
    assert!(!script.contains(TYPED), "the guide has a credential in a command");
    let printed = workspace.run_successfully(script);
    assert!(printed.ends_with("nothing is missing\n"), "{printed}");
    let stored = workspace.run_successfully("bao kv get -field=token secret/github");
    assert_eq!(stored.trim_end(), TYPED);
    workspace.assert_works_and_leaves_nothing();
}

#[test]
fn the_example_works_as_written() {
    let Some(workspace) = Workspace::with_example() else { return };
    let printed = workspace.run_successfully("cofferdam vault setup --yes");
    assert!(printed.ends_with("nothing is missing\n"), "{printed}");
    let printed = workspace.run_successfully("cofferdam vault setup --yes");
    assert!(printed.contains("\nnothing to do\n") && printed.ends_with("nothing is missing\n"), "{printed}");
    workspace.assert_works_and_leaves_nothing();
}

#[test]
fn the_guide_and_the_example_are_the_same() {
    let script = blocks(GUIDE, "bash").concat();
    let shown: Vec<&str> =
        script.split("<<'END'\n").skip(1).filter_map(|text| text.split("END\n").next()).collect();
    let example = fs::read_to_string(root().join(EXAMPLE).join("cofferdam.toml")).unwrap();
    assert_eq!(shown, [without_comments(&example)]);
}

#[test]
fn a_missing_policy_line_of_the_example_is_printed_and_fixes_it() {
    let Some(workspace) = Workspace::with_example() else { return };
    workspace.run_successfully("cofferdam vault setup --yes");
    for (policy, expected) in [("agent-dev", 5), ("cofferdam", 6)] {
        let text = workspace.run_successfully(&format!("bao policy read {policy}"));
        let text = without_comments(&text).replace("\n\n", "\n");
        let blocks: Vec<&str> = text.split_inclusive("}\n").collect();
        // Sessions also work without looking up their leases, and without looking up capabilities there is no check.
        let is_optional = |block: &str| {
            block.contains("sys/capabilities-self")
                || (policy == "agent-dev" && block.contains("sys/leases/lookup"))
        };
        let needed: Vec<&&str> = blocks.iter().filter(|block| !is_optional(block)).collect();
        assert_eq!(needed.len(), expected, "{text}");
        for removed_block in needed {
            let rest = text.replace(removed_block, "");
            workspace.write_policy(policy, &rest);
            let output = workspace.run("cofferdam check --online");
            let (printed, stderr) = (string(&output.stdout), string(&output.stderr));
            assert_eq!(output.status.code(), Some(77), "{printed}{stderr}");
            assert!(
                stderr.starts_with("error: Vault is not ready for this configuration: 1 missing, 0 wrong\n"),
                "{stderr}"
            );
            let (report, lines) = printed
                .split_once("\nadd to ")
                .and_then(|(report, rest)| Some((report, rest.split_once(":\n\n")?.1)))
                .expect(&printed);
            assert_eq!(without_comments(lines), *removed_block, "{printed}");
            assert_eq!(report.matches("  MISSING ").count(), 1, "{printed}");
            workspace.write_policy(policy, &format!("{rest}{lines}"));
            workspace.run_successfully("cofferdam check --online");
        }
    }
}

#[test]
fn a_wrapped_secret_id_is_delivered_as_the_guide_says() {
    let Some(workspace) = Workspace::with_example() else { return };
    workspace.run_successfully("cofferdam vault setup --yes");
    let spans: Vec<String> = cofferdam_tests::markdown::spans(GUIDE).collect();
    let wrap =
        spans.iter().find(|span| span.contains("-wrap-ttl")).expect("the command that wraps a secret-id");
    let keys = spans
        .iter()
        .find(|span| span.starts_with("secret-id-wrapped"))
        .expect("the configuration keys for a wrapped secret-id");
    workspace.run_successfully(&format!("{wrap} >secret-id"));
    let config = fs::read_to_string(workspace.file("cofferdam.toml")).unwrap();
    let file = "secret-id-file = \"secret-id\"";
    assert!(config.contains(file), "{config}");
    fs::write(workspace.file("cofferdam.toml"), config.replace(file, &format!("{file}, {keys}"))).unwrap();
    for _ in 0..2 {
        let printed = workspace.run_successfully("cofferdam check --online");
        assert!(
            printed.contains("was not unwrapped")
                && printed.ends_with("nothing is missing, as far as it was checked\n"),
            "{printed}"
        );
    }
    workspace.assert_works_and_leaves_nothing();
    let output = workspace.run("cofferdam check --online");
    assert_eq!(output.status.code(), Some(66), "{output:?}");
    assert!(string(&output.stderr).contains("this sidecar has already unwrapped"), "{output:?}");
}

/// An empty directory, and an OpenBao with a login.
struct Workspace {
    bao: OpenBao,
    directory: tempfile::TempDir,
}

impl Workspace {
    #[track_caller]
    fn new() -> Option<Self> {
        let workspace =
            Self { bao: OpenBao::dev()?, directory: tempfile::tempdir().expect("a directory can be made") };
        fs::create_dir_all(workspace.file("home/bin")).expect("a temporary directory is writable");
        fs::write(workspace.file("home/typed"), format!("{TYPED}\n"))
            .expect("a temporary directory is writable");
        // Fixtures under the names of the documented servers.
        for server in ["github-mcp-server", "internal-mcp-server"] {
            let program = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
            let path = workspace.file(&format!("home/bin/{server}"));
            fs::copy(program, path).expect("a temporary directory is writable");
        }
        Some(workspace)
    }

    /// A workspace with the files of the example and the secrets that it uses.
    #[track_caller]
    fn with_example() -> Option<Self> {
        let workspace = Self::new()?;
        for entry in fs::read_dir(root().join(EXAMPLE)).expect("a temporary directory is writable").flatten()
        {
            let to = workspace.file(entry.file_name().to_str().expect("a temporary directory is writable"));
            fs::copy(entry.path(), &to).expect("a temporary directory is writable");
            if to.ends_with("cofferdam.toml") {
                let text = fs::read_to_string(&to).expect("a temporary directory is writable");
                assert!(text.contains(SHOWN), "{text}");
                fs::write(&to, text.replace(SHOWN, &workspace.bao.address()))
                    .expect("a temporary directory is writable");
            }
        }
        workspace.run_successfully(&blocks(GUIDE, "bash")[0]);
        Some(workspace)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn shell(&self) -> Command {
        let bao = Tool::OpenBao.path().expect("its server runs");
        let cofferdam = built("COFFERDAM_BIN", "cofferdam");
        let mut path = vec![self.file("home/bin")];
        path.extend([bao, cofferdam].iter().filter_map(|program| program.parent().map(Path::to_owned)));
        path.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        let mut bash = command("/bin/bash");
        bash.current_dir(self.directory.path()).env_clear().env("HOME", self.file("home"));
        bash.env("PATH", std::env::join_paths(path).expect("a temporary directory is writable"));
        bash.env("BAO_ADDR", self.bao.address()).env("BAO_TOKEN", &self.bao.root_token);
        bash
    }

    fn run(&self, script: &str) -> Output {
        let mut bash = self.shell();
        let script = script.replace(SHOWN, &self.bao.address());
        bash.args(["-euo", "pipefail", "-c"]).arg(format!("exec < ~/typed\n{script}"));
        output_of(bash, "a script of the documents")
    }

    #[track_caller]
    fn run_successfully(&self, script: &str) -> String {
        let output = self.run(script);
        let printed = string(&output.stdout);
        assert!(output.status.success(), "{script}\n{printed}\n{}", string(&output.stderr));
        printed
    }

    #[track_caller]
    fn write_policy(&self, name: &str, text: &str) {
        fs::write(self.file("changed.hcl"), text).expect("a temporary directory is writable");
        self.run_successfully(&format!("bao policy write {name} changed.hcl"));
    }

    /// Runs the sidecar, uses both servers, and checks that nothing remains in Vault afterwards.
    #[track_caller]
    fn assert_works_and_leaves_nothing(&self) {
        let mut serve = self.shell();
        let log = self.file("log");
        serve.args(["-c", "exec cofferdam serve"]).stdout(into_file(&log)).stderr(into_file(&log));
        let mut sidecar = Running::spawn(serve, "cofferdam serve");
        let relay = self.file("relay/relay.sock");
        wait_until("the sidecar listens", || {
            assert!(sidecar.is_running(), "{}", fs::read_to_string(&log).unwrap_or_default());
            relay.exists()
        });
        let shim = |server: &str| {
            let mut shim = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
            shim.env_clear()
                .arg("--relay")
                .arg(format!("unix:{}", relay.display()))
                .args(["--server", server]);
            let mut harness = Harness::start(shim, "cofferdam-shim");
            let answer = harness.initialize();
            assert!(answer.get("result").is_some(), "{answer}");
            harness
        };
        let (mut github, mut internal) = (shim("github"), shim("internal"));
        let shown = github.call("env", json!({})).to_string();
        assert!(shown.contains("GITHUB_PERSONAL_ACCESS_TOKEN=[redacted:github.token]"), "{shown}");
        let shown = internal.call("env", json!({})).to_string();
        assert!(shown.contains("client.pem"), "{shown}");
        let made = session_tokens(&self.bao);
        assert!(
            !made.is_empty() && made.iter().all(|token| token["policies"] == json!(["agent-dev"])),
            "{made:?}"
        );
        leave(github);
        leave(internal);
        wait_until("the sessions' tokens are revoked", || session_tokens(&self.bao).is_empty());
        sidecar.signal(Signal::SIGTERM);
        sidecar.wait(PATIENCE);
        let left =
            tokens(&self.bao, |token| token["display_name"] != "root" && token["display_name"] != "token");
        assert!(left.is_empty(), "{left:?}");
    }
}

fn without_comments(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    format!("{}\n", lines.join("\n").trim())
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").to_owned()
}
