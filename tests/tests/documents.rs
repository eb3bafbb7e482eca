//! The documents are true wherever a machine can tell: what they show works, what they name exists.
//!
//! | document | what is held |
//! |---|---|
//! | README.md | its configuration checks, its harness settings start the shim, its command lines are those that the suite runs or that the programs take |
//! | packaging/examples | each checks, and the full one leaves out no limit |
//! | SPECIFICATION.md, THREAT-MODEL.md | every test they name is there, every promise names what holds it |
//! | PROTOCOL.md | its kinds, limits and codes are the codec's, its links are those that the shim names |

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Output;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::markdown::{blocks, quantity, rows, spans};
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use relay_carriage::{entrance, tls};
use relay_proto::code::Code;
use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, PREFACE};
use relay_proto::limits;
use serde_json::{Value, json};

const README: &str = include_str!("../../README.md");
const SPECIFICATION: &str = include_str!("../../packaging/SPECIFICATION.md");
const THREAT_MODEL: &str = include_str!("../../packaging/THREAT-MODEL.md");
const BENCHMARKS: &str = include_str!("../../packaging/BENCHMARKS.md");
const PROTOCOL: &str = include_str!("../../relay-proto/PROTOCOL.md");
const SUITE: &str = include_str!("../run");
const TOOLS: &str = include_str!("../tools");
const CI: &str = include_str!("../../.ci/run");
const JUSTFILE: &str = include_str!("../../Justfile");

const CRATES: [&str; 5] = ["relay-proto", "relay-proto/carriage", "shim", "sidecar", "tests"];
const COMMANDS: [&str; 10] =
    ["attach", "audit", "check", "demo", "enroll", "key", "kill", "reload", "serve", "sessions"];

#[test]
fn the_configuration_of_the_readme_checks() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("cofferdam.toml");
    std::fs::write(&file, configuration()).expect("a temporary directory is writable");
    let said = check(&file);
    assert!(said.contains("1 server, 1 secret, 1 grant"), "{said}");
}

#[test]
fn every_example_checks() {
    let examples: Vec<PathBuf> = std::fs::read_dir(root().join("packaging/examples"))
        .expect("there are examples")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(examples.len() >= 3, "{examples:?}");
    for example in examples {
        // What takes more than one file has a folder.
        check(&if example.is_dir() { example.join("cofferdam.toml") } else { example });
    }
}

#[test]
fn the_full_example_leaves_out_no_limit() {
    let schema: Value = serde_json::from_str(include_str!("../../sidecar/cofferdam.schema.json")).unwrap();
    let known = schema["$defs"]["Limits"]["properties"].as_object().expect("the schema has the limits");
    let full: toml::Table = include_str!("../../packaging/examples/full.toml").parse().unwrap();
    let limits = full["limits"].as_table().unwrap();
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(limits.keys().collect()), names(known.keys().collect()));
}

#[test]
fn the_harness_settings_of_the_readme_start_the_shim() {
    let claude: Value = serde_json::from_str(&only(blocks(README, "json"))).expect("the JSON parses");
    let [_, codex] = <[String; 2]>::try_from(blocks(README, "toml")).expect("two blocks of TOML");
    let codex: toml::Table = codex.parse().expect("the TOML for Codex parses");
    let codex = serde_json::to_value(codex).unwrap();
    let granted: toml::Table = configuration().parse().unwrap();
    let granted = granted["grants"]["dev"]["servers"].as_array().unwrap();
    let help = String::from_utf8(run_shim(&["--help"]).stdout).unwrap();
    for servers in [&claude["mcpServers"], &codex["mcp_servers"]] {
        let (name, server) = servers.as_object().unwrap().iter().next().expect("one server");
        assert_eq!(server["command"], "cofferdam-shim");
        let arguments: Vec<&str> =
            server["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()).collect();
        assert_eq!(arguments, ["--server", name]);
        assert!(help.contains(&format!("{} NAME", arguments[0])), "{help}");
        assert!(granted.iter().any(|server| server.as_str() == Some(name)), "{name} is granted");
        // Its input ends at once, so an accepted command line is a success.
        let output = run_shim(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(codex["mcp_servers"]["github"]["required"], true, "Codex waits for required servers only");
    let shown =
        spans(README).find(|span| span.starts_with("\"--relay\"")).expect("how to name another socket");
    let [flag, link] = serde_json::from_str::<[String; 2]>(&format!("[{shown}]")).expect("two arguments");
    assert!(
        run_shim(&[&flag, &link]).status.success() && spans(README).any(|span| span == "COFFERDAM_RELAY")
    );
}

#[test]
fn every_command_line_of_the_readme_is_one_that_the_suite_runs() {
    // `tests/run` and `tests/tools` say the machine's musl target in a variable, the README in full.
    let musl = |text: &str, value: &str| {
        text.contains(value).then(|| text.replace("\"$musl\"", "\"$(uname -m)-unknown-linux-musl\""))
    };
    let suite = musl(SUITE, "musl=$(uname -m)-unknown-linux-musl").expect("tests/run says its target");
    let tools = musl(TOOLS, "musl=$machine-unknown-linux-musl").expect("tests/tools says its target");
    let has_line = |text: &str, line: &str| text.lines().any(|other| other.trim() == line);
    for line in blocks(README, "sh").iter().flat_map(|block| block.lines()) {
        let known = match line {
            "cargo run --release -- demo" => {
                only_default_program();
                let demo = include_str!("demo.rs");
                has_line(JUSTFILE, line)
                    && has_line(&suite, "cargo build --release --locked")
                    && suite.contains("COFFERDAM_BIN=$target/release/cofferdam\n")
                    && demo.contains(r#"built("COFFERDAM_BIN", "cofferdam")"#)
                    && demo.contains(r#".arg("demo")"#)
            }
            "tests/run" => has_line(CI, "step tests tests/run") && has_line(JUSTFILE, "tests/run {{ARGS}}"),
            line if line.starts_with("rustup ") => tools.contains(line),
            line => has_line(&suite, line) && has_line(JUSTFILE, line),
        };
        assert!(known, "nobody runs `{line}`");
    }
    let place = spans(README).find(|span| span.starts_with("target/")).expect("where the shim is then");
    assert!(suite.contains(&place.replace("target/*-unknown-linux-musl", "$target/$musl")), "{place}");
}

#[test]
fn the_mount_of_the_readme_is_enough_and_cannot_be_changed() {
    let docker = spans(README).find(|span| span.starts_with("docker run")).expect("how Docker mounts it");
    let shown = spans(README).find(|span| span.starts_with("bwrap ")).expect("how bubblewrap mounts it");
    let words: Vec<&str> = shown.split(' ').collect();
    let ["bwrap", flag, outside, inside, "…"] = words[..] else { panic!("{shown}") };
    let relay: toml::Table = configuration().parse().unwrap();
    let socket = relay["relay"]["unix"].as_str().unwrap();
    assert_eq!((outside, inside), (Path::new(socket).parent().unwrap().to_str().unwrap(), outside));
    assert_eq!(docker, format!("docker run -v {outside}:{inside}:ro …"));

    let Some(bubblewrap) = Tool::Bubblewrap.path() else { return };
    let world = World::new().server("tools", Server::fixture()).start();
    let directory = world.layout().relay.parent().unwrap();
    let mut shim = command(&bubblewrap);
    shim.args(["--unshare-all", "--die-with-parent", flag]).arg(directory).arg(inside);
    // The static shim needs no libraries; the one that stands beside the tests does.
    for libraries in ["/lib", "/lib64", "/usr/lib"] {
        shim.args(["--ro-bind-try", libraries, libraries]);
    }
    shim.arg("--ro-bind").arg(built("COFFERDAM_SHIM_BIN", "cofferdam-shim")).args(["/shim", "/shim"]);
    let mut shim = Harness::start(shim, "cofferdam-shim in bubblewrap");
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "from inside"})), "from inside");

    let mut vandal = command(&bubblewrap);
    vandal.args(["--unshare-all", "--ro-bind", "/", "/", flag]).arg(directory).arg(directory);
    vandal.arg("rm").arg(&world.layout().relay);
    assert!(!output_of(vandal, "rm in bubblewrap").status.success());
    assert!(world.layout().relay.exists(), "the socket is not the sandbox's to remove");
}

#[test]
fn the_help_lists_the_commands_that_the_readme_names() {
    let help = cofferdam(&["--help"]);
    let mut listed = commands_in(&help);
    listed.retain(|command| command != "help");
    assert_eq!(listed, BTreeSet::from(COMMANDS.map(String::from)));
    let named = spans(README).filter_map(|span| span.strip_prefix("cofferdam ").map(str::to_owned));
    let shown = blocks(README, "sh").join("\n");
    let run =
        shown.lines().filter_map(|line| line.strip_prefix("cargo run --release -- ").map(str::to_owned));
    let mut words: Vec<String> = named.chain(run).collect();
    let audit = words.iter().find_map(|words| words.strip_prefix("audit ")).expect("the README has audit");
    for command in audit.split('|') {
        assert!(commands_in(&cofferdam(&["audit", "--help"])).contains(command), "audit {command}");
    }
    for words in &mut words {
        *words = words.split(' ').next().unwrap_or_default().to_owned();
    }
    assert_eq!(words.into_iter().collect::<BTreeSet<_>>(), listed);
}

#[test]
fn the_programs_take_the_command_lines_that_the_readme_shows() {
    let (mut host, mut guest) = (0, 0);
    // Help is given when everything before it was understood.
    let help_after = |words: &[&str]| -> Vec<String> {
        words.iter().copied().chain(["--help"]).map(str::to_owned).collect()
    };
    let shows = |words: &[&str]| {
        let words = help_after(words);
        let output = run_shim(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for span in spans(README) {
        let words: Vec<&str> = span.split(' ').collect();
        match words[..] {
            ["cofferdam", "audit", _] => {}
            ["cofferdam", ref words @ ..] => {
                host += 1;
                let (words, command) = match words.iter().position(|word| *word == "--") {
                    Some(end) => (&words[..end], &words[end + 1..]),
                    None => (words, &[][..]),
                };
                let words = help_after(words);
                cofferdam(&words.iter().map(String::as_str).collect::<Vec<_>>());
                if let Some(shim) = command.iter().position(|word| *word == "cofferdam-shim") {
                    guest += 1;
                    shows(&command[shim + 1..]);
                }
            }
            ["cofferdam-shim", ref words @ ..] => {
                guest += 1;
                shows(words);
            }
            // Its input ends at once, so an accepted link is a success.
            ["--relay", link] if link != "LINK" => {
                assert!(run_shim(&["--relay", link]).status.success(), "{link}");
            }
            _ => {}
        }
    }
    assert!(host >= 10 && guest >= 4, "{host} of the host's, {guest} of the guest's");
}

#[test]
fn the_readme_lists_the_shims_flags_and_what_the_tests_install() {
    let help = String::from_utf8(run_shim(&["--help"]).stdout).unwrap();
    let (lists, words) = (rows(README).collect::<Vec<_>>(), spans(README).collect::<BTreeSet<_>>());
    let listed = lists.iter().filter_map(|row| row[0].strip_prefix('`')?.strip_suffix('`'));
    let listed: BTreeSet<&str> = listed.filter(|flag| flag.starts_with("--")).collect();
    let known = help.lines().filter_map(|line| line.strip_prefix("  --")).filter_map(|line| {
        let flag = line.split("  ").next()?;
        (!flag.starts_with("help") && !flag.starts_with("version")).then(|| format!("--{flag}"))
    });
    let known: BTreeSet<String> = known.collect();
    assert_eq!(listed, known.iter().map(String::as_str).collect());
    for variable in words.iter().filter(|word| word.starts_with("COFFERDAM_")) {
        assert!(help.contains(variable.as_str()), "the shim's help says nothing of {variable}");
    }
    // Those of the benchmark and of the machines are asked for by name.
    let always = TOOLS.lines().filter_map(|line| line.strip_prefix("want "));
    for package in always.filter_map(|line| line.split(' ').nth(1)).chain(["python3-venv"]) {
        assert!(words.contains(package), "tests/tools installs {package}");
    }
}

#[test]
fn every_test_that_the_documents_name_exists() {
    let sources = sources();
    for (document, text) in [("SPECIFICATION.md", SPECIFICATION), ("THREAT-MODEL.md", THREAT_MODEL)] {
        let named: Vec<String> = spans(text).filter(|span| is_test_name(span)).collect();
        assert!(named.len() > 30, "{document} names {} tests", named.len());
        for name in named {
            assert!(exists(&name, &sources), "{document} names {name}, which is no test");
        }
    }
    for document in ["packaging/SPECIFICATION.md", "packaging/THREAT-MODEL.md"] {
        assert!(spans(README).any(|span| span == document), "the README names {document}");
    }
}

#[test]
fn every_promise_names_what_holds_it() {
    let mut seen = BTreeSet::new();
    for row in rows(SPECIFICATION).filter(|row| row[0].contains('.')) {
        let [number, promise, held] = &row[..] else { panic!("a promise has three cells: {row:?}") };
        assert!(seen.insert(number.clone()), "{number} is there twice");
        let benchmark = held.strip_prefix("row: ").map(|name| BENCHMARKS.contains(&format!("\n| {name} |")));
        let tested = spans(held).any(|span| is_test_name(&span));
        assert!(
            benchmark.unwrap_or(tested || held.starts_with("pending")),
            "{number} ({promise}) is held by nothing: {held}"
        );
    }
    assert!(seen.len() > 50, "{seen:?}");
    let largest = "10,484,736";
    assert_eq!(quantity(&format!("{largest} bytes")), limits::MAX_MESSAGE as u64);
    for stated in
        [largest, &format!("Nesting past {}", limits::MAX_DEPTH), &format!("\nVersion {},", limits::VERSION)]
    {
        assert!(SPECIFICATION.contains(stated), "{stated}");
    }
}

#[test]
fn the_protocol_page_lists_the_kinds_of_frames() {
    let listed: BTreeMap<u8, String> = rows(PROTOCOL)
        .filter_map(|row| {
            let number = row[0].strip_prefix("`0x")?.strip_suffix('`')?;
            Some((u8::from_str_radix(number, 16).expect("a kind is a byte"), row[1].clone()))
        })
        .collect();
    let known: BTreeMap<u8, String> =
        (0..=u8::MAX).filter_map(|kind| Some((kind, kind_name(kind)?))).collect();
    assert_eq!(listed, known);
    let preface = String::from_utf8(PREFACE.to_vec()).unwrap().replace('\n', "\\n");
    assert!(
        PROTOCOL.contains(&format!("    {preface}\n"))
            && PROTOCOL.contains(&format!("these {} bytes", PREFACE.len()))
    );
}

#[test]
fn the_protocol_page_states_the_limits_of_the_wire() {
    let section = PROTOCOL.split("## 10. Limits").nth(1).expect("the page has limits");
    let section = section.split("\n## ").next().expect("a split has a first part");
    let stated: BTreeMap<String, u64> =
        rows(section).filter(|row| row[0] != "what").map(|row| (row[0].clone(), quantity(&row[1]))).collect();
    let known = [
        ("MCP bytes in one Message frame", limits::MAX_MESSAGE_PART as u64),
        ("JSON body", limits::MAX_CONTROL_BODY as u64),
        ("a link's id", limits::MAX_LINK_ID as u64),
        ("`message` of a Refusal or Goodbye, as text", limits::MAX_SENTENCE as u64),
        ("`code` of a Refusal or Goodbye", limits::MAX_CODE as u64),
        ("a message, by default", limits::MAX_MESSAGE as u64),
        ("window, at first", limits::DEFAULT_WINDOW),
        ("window, at most", limits::MAX_WINDOW),
    ];
    assert_eq!(stated, known.map(|(what, bytes)| (what.to_owned(), bytes)).into());
}

#[test]
fn the_protocol_page_names_the_links_codes_and_words_of_the_wire() {
    let section =
        |from: &str| PROTOCOL.split(from).nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let help = String::from_utf8(run_shim(&["--help"]).stdout).unwrap();
    let links: Vec<String> = rows(section("## 11. Carriage"))
        .filter(|row| row[0] != "link")
        .collect::<Vec<_>>()
        .iter()
        .flat_map(|row| spans(&row[0]).collect::<Vec<_>>())
        .collect();
    assert_eq!(links.len(), 8, "{links:?}");
    for link in links {
        assert!(help.contains(&link), "the shim's help says nothing of {link}");
    }
    let codes: Vec<String> = rows(section("## 3. Opening a connection"))
        .filter_map(|row| Some(row[0].strip_prefix('`')?.strip_suffix('`')?.to_owned()))
        .filter(|word| word.contains('_'))
        .collect();
    assert!(codes.len() > 5, "{codes:?}");
    for code in codes {
        assert!(code.parse::<Code>().is_ok(), "{code}");
    }
    let knock = String::from_utf8_lossy(entrance::KNOCK).replace('\n', "\\n");
    assert!(PROTOCOL.contains(&format!("the {} bytes `{knock}`", entrance::KNOCK.len())));
    for name in [tls::ALPN, tls::HUB_ALPN] {
        assert!(PROTOCOL.contains(&format!("`{}`", String::from_utf8_lossy(name))));
    }
}

/// The name of a kind of frame, as the codec calls it; none where it refuses the number.
fn kind_name(kind: u8) -> Option<String> {
    let mut decoder = Decoder::new();
    decoder.feed(PREFACE);
    decoder.feed(&[0, 0, 0, 3, kind, b'{', b'}']);
    match decoder.next() {
        Ok(Some(frame)) => Some(format!("{frame:?}").split(['(', ' ']).next().unwrap_or_default().to_owned()),
        Err(DecodeError::Body { kind, .. }) => Some(kind.to_owned()),
        Err(DecodeError::ShortMessage(_)) => Some("Message".to_owned()),
        Err(DecodeError::UnknownKind(_)) => None,
        other => panic!("kind {kind:#04x}: {other:?}"),
    }
}

/// `cargo run` is unambiguous: the workspace's default is one package with one program.
fn only_default_program() {
    let mut cargo = command(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"]);
    cargo.arg(root().join("Cargo.toml"));
    let metadata = output_of(cargo, "cargo metadata").stdout;
    let metadata: Value = serde_json::from_slice(&metadata).expect("cargo writes JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let defaults = list(&metadata["workspace_default_members"]);
    let packages =
        list(&metadata["packages"]).into_iter().filter(|package| defaults.contains(&package["id"]));
    let targets = packages.flat_map(|package| list(&package["targets"]));
    let programs: Vec<Value> = targets
        .filter(|target| target["kind"] == json!(["bin"]))
        .map(|target| target["name"].clone())
        .collect();
    assert_eq!(programs, ["cofferdam"]);
}

#[track_caller]
fn check(file: &Path) -> String {
    let file = file.display().to_string();
    cofferdam(&["check", "-c", &file])
}

/// What a `cofferdam` command says in a home of its own; it must succeed.
#[track_caller]
fn cofferdam(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = command(built("COFFERDAM_BIN", "cofferdam"));
    command.env_clear().env("HOME", home.path()).args(arguments);
    let Output { status, stdout, stderr } = output_of(command, "cofferdam");
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("it speaks UTF-8")
}

fn run_shim(arguments: &[&str]) -> Output {
    let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    command.env_clear().args(arguments);
    output_of(command, "cofferdam-shim")
}

fn commands_in(help: &str) -> BTreeSet<String> {
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    commands.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

fn configuration() -> String {
    blocks(README, "toml").into_iter().next().expect("the README has a configuration")
}

/// `folder::file::name`, with the folder of a crate.
fn is_test_name(span: &str) -> bool {
    let parts: Vec<&str> = span.split("::").collect();
    parts.len() == 3 && CRATES.contains(&parts[0])
}

fn exists(name: &str, sources: &[(PathBuf, String)]) -> bool {
    let [folder, file, test] = name.split("::").collect::<Vec<_>>()[..] else { return false };
    sources.iter().any(|(path, text)| {
        let within = path.strip_prefix(root().join(folder)).is_ok_and(|path| {
            path.with_extension("").components().any(|component| component.as_os_str() == file)
        });
        within && has_test(text, test)
    })
}

/// Whether the text defines this function and marks it as a test.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let definition = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, line)| line.contains(&definition)).any(|(place, _)| {
        let above =
            lines[..place].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test"))
    })
}

/// Every Rust file of the crates that tests are named by.
fn sources() -> Vec<(PathBuf, String)> {
    let mut open: Vec<PathBuf> = CRATES
        .iter()
        .flat_map(|folder| ["src", "tests"].map(|part| root().join(folder).join(part)))
        .collect();
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.extension() {
                _ if path.is_dir() => open.push(path),
                Some(extension) if extension == "rs" => {
                    let text = std::fs::read_to_string(&path).expect("sources are text");
                    found.push((path, text));
                }
                _ => {}
            }
        }
    }
    found
}

#[track_caller]
fn only(mut all: Vec<String>) -> String {
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}
