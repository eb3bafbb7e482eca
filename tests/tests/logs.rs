//! `cofferdam logs`: what servers wrote to stderr, scrubbed, from bounded files that only the sidecar's user can read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::process::{Running, into_file, output_of, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::Value;

const SECRET: &str = "canary-9d0c73e1-of-the-logs";

/// A server that runs this shell script before it serves.
fn script(text: &str) -> Server {
    Server::script(&format!("{text}\nexec \"$FIXTURE\"")).env("SECRET", "{local.value}")
}

fn world(text: &str) -> Builder {
    World::new().secret_file("local", SECRET).server("tools", script(text))
}

/// The lines of `logs tools --json`.
#[track_caller]
fn records(world: &World) -> Vec<Value> {
    let text = world.cofferdam_text(&["logs", "tools", "--json", "--lines", "1000000"]);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn has_text(records: &[Value], text: &str) -> bool {
    records.iter().any(|record| record["text"].as_str().is_some_and(|line| line.contains(text)))
}

fn files(world: &World) -> Vec<PathBuf> {
    let directory = fs::read_dir(world.layout().state.join("stderr"));
    directory.into_iter().flatten().flatten().map(|file| file.path()).collect()
}

#[test]
fn each_line_has_its_time_session_link_and_process_and_outlives_the_sidecar() {
    let mut world = world("echo 'first line' >&2").start();
    let harness = world.connected("tools");
    wait_until("the line is in the file", || has_text(&records(&world), "first line"));
    let session = world.sessions()[0].clone();
    let record = records(&world)[0].clone();
    assert_eq!((&record["session"], &record["link"]), (&session["session"], &session["link"]));
    assert_eq!(record["process"], session["pid"]);
    let human = world.cofferdam_text(&["logs", "tools"]);
    let link = format!("{}/{}", record["session"].as_str().unwrap(), record["link"].as_str().unwrap());
    assert_eq!(
        human,
        format!("{} {link} {}  first line\n", record["time"].as_str().unwrap(), record["process"])
    );
    for path in files(&world) {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(fs::metadata(world.layout().state.join("stderr")).unwrap().mode() & 0o777, 0o700);
    drop(harness);
    world.stop_sidecar();
    assert_eq!(world.cofferdam_text(&["logs", "tools"]), human, "the lines are gone with the sidecar");
    world.start_sidecar();
    let _second = world.connected("tools");
    wait_until("the next process wrote its line too", || records(&world).len() == 2);
}

/// The secret arrives in many small writes, so that it is split across reads.
#[test]
fn secrets_are_redacted_across_reads_and_controls_are_escaped() {
    let text = r#"printf 'escape \033[2J\302\233\342\200\256 end\n' >&2
        i=1; while [ $i -le ${#SECRET} ]; do printf '%s' "$SECRET" | cut -c $i | tr -d '\n' >&2; i=$((i+1)); done
        echo " was split" >&2; printf '%s' "$SECRET" | base64 >&2; echo done >&2"#;
    let world = world(text).start();
    let _harness = world.connected("tools");
    wait_until("the last line is in the file", || has_text(&records(&world), "done"));
    let records = records(&world);
    assert!(has_text(&records, "[redacted:local.value] was split"), "{records:?}");
    assert!(has_text(&records, r"escape \u{1b}[2J\u{9b}\u{202e} end"), "{records:?}");
    for path in files(&world) {
        let bytes = read(&path);
        let found = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!found(SECRET.as_bytes()) && !found(b"Y2FuYXJ5LTlkMGM3M2UxLW9m") && !found(b"\x1b"));
    }
}

#[test]
fn a_flood_is_paced_bounded_and_counted() {
    let text =
        "i=0; while [ $i -lt 3000 ]; do echo \"line $i\"; i=$((i+1)); done >&2; sleep 1.2; echo after >&2";
    let world = world(text).limit("stderr-lines-per-second = 100").start();
    let _harness = world.connected("tools");
    wait_until("the line after the flood is in the file", || has_text(&records(&world), "after"));
    let records = records(&world);
    let dropped: u64 = records.iter().filter_map(|record| record["dropped"].as_u64()).sum();
    let written = records.iter().filter(|record| record["text"].is_string()).count() as u64;
    assert_eq!(dropped + written, 3001, "each line is written or counted");
    assert!(dropped > 2000, "{dropped}");
    let human = world.cofferdam_text(&["logs", "tools"]);
    assert!(human.contains(" lines dropped: more than `limits.stderr-lines-per-second`]\n"), "{human}");
}

#[test]
fn files_rotate_within_the_limit_and_follow_prints_each_line_once() {
    // About 2.5 MB in lines of 1 KB, of which the two files keep at most 1 MiB.
    let text = "pad=$(printf '%01000d' 0); i=0; while [ $i -lt 2500 ]; do echo \"line $i $pad\"; i=$((i+1)); \
                [ $((i % 100)) = 0 ] && sleep 0.3; done >&2; echo the end >&2";
    let world =
        world(text).limit("stderr-lines-per-second = 10000").limit("stderr-log-bytes = \"1MiB\"").start();
    let followed = world.layout().root().join("followed");
    let mut follow = world.cofferdam_command();
    follow.args(["logs", "tools", "--follow", "--json", "-c"]).arg(&world.layout().config);
    follow.stdin(Stdio::null()).stdout(into_file(&followed)).stderr(Stdio::null());
    let mut following = Running::spawn(follow, "cofferdam logs --follow");
    let mut shim = world.shim("tools");
    shim.send_initialize();
    let mut most = 0;
    world.wait_until("the last line was followed", || {
        let size: u64 =
            files(&world).iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
        most = most.max(size);
        String::from_utf8_lossy(&read(&followed)).contains("the end")
    });
    following.kill9();
    assert!(most <= 1024 * 1024, "the files had {most} bytes");
    assert_eq!(files(&world).len(), 2, "the files were not rotated");
    let text = String::from_utf8(read(&followed)).unwrap();
    let numbers: Vec<u32> = text
        .lines()
        .filter_map(|line| {
            serde_json::from_str::<Value>(line).ok()?["text"].as_str()?.split(' ').nth(1)?.parse().ok()
        })
        .collect();
    assert_eq!(
        numbers,
        (0..2500).collect::<Vec<_>>(),
        "lines were lost or repeated while the files were rotated"
    );
    let last = world.cofferdam_text(&["logs", "tools", "-n", "2"]);
    assert!(last.lines().count() == 2 && last.ends_with("  the end\n"), "{last}");
}

#[test]
fn a_full_disk_blocks_no_server_and_the_missing_lines_are_counted() {
    let ticking = script("{ while :; do echo tick; sleep 0.02; done >&2; } &");
    let builder = World::new().secret_file("local", SECRET).server("tools", ticking).state_on_tmpfs(2000);
    let mut world = builder.start();
    let mut harness = world.connected("tools");
    let state = world.layout().state.strip_prefix("/").unwrap().to_owned();
    let inside = PathBuf::from(format!("/proc/{}/root", world.sidecar().id())).join(state);
    let file = inside.join("stderr/tools.jsonl");
    wait_until("lines are written", || read(&file).ends_with(b"}\n"));
    world.fill_the_state_directory();
    world.wait_until("a line cannot be written", || {
        world.log().contains("is not written for `cofferdam logs`")
    });
    // Calls are refused, because they cannot be recorded; but they are answered.
    assert!(harness.request("ping", serde_json::json!({})).is_object());
    let before = world.log().matches("stderr=tick").count();
    world.wait_until("the server goes on", || world.log().matches("stderr=tick").count() > before + 5);
    world.empty_the_state_directory();
    let missing = "they could not be written: the disk was slow or full";
    wait_until("the missing lines are counted", || String::from_utf8_lossy(&read(&file)).contains(missing));
    let text = String::from_utf8(read(&file)).unwrap();
    let damaged = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_err()).count();
    assert!(damaged <= 1, "only the line that is being written may be cut: {text}");
}

#[test]
fn an_unknown_server_gets_a_suggestion_and_a_silent_one_a_sentence() {
    let world = world("true").server("web", Server::http("http://127.0.0.1:9/")).prepare();
    let run = |server: &str| {
        let output = world.cofferdam(&["logs", server]);
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, _, stderr) = run("tolos");
    assert!(
        code == Some(64) && stderr.contains("there is no server `tolos`\n\nhint: did you mean `tools`?"),
        "{stderr}"
    );
    let (code, _, stderr) = run("../state");
    assert!(code == Some(64) && stderr.contains("hint: the servers are: `tools`, `web`"), "{stderr}");
    let (code, stdout, stderr) = run("tools");
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert!(stderr.contains("`tools` has written nothing to stderr yet"), "{stderr}");
    assert!(run("web").2.contains("is an HTTP server: it has no stderr"));
}

#[test]
fn lines_of_a_server_that_was_removed_from_the_configuration_can_still_be_read() {
    let mut world = world("echo a line to remember >&2").start();
    let harness = world.connected("tools");
    wait_until("the line is in the file", || has_text(&records(&world), "a line to remember"));
    drop(harness);
    world.stop_sidecar();
    let config = String::from_utf8(read(&world.layout().config)).unwrap();
    let renamed = config
        .replace("[servers.tools", "[servers.renamed")
        .replace("servers = [\"tools\"]", "servers = [\"renamed\"]");
    fs::write(&world.layout().config, renamed).unwrap();
    assert!(world.cofferdam_text(&["logs", "tools"]).ends_with("  a line to remember\n"));
    let mut unreadable = world.cofferdam_command();
    unreadable.args(["logs", "tolos", "-c"]).arg(&world.layout().config);
    assert_eq!(output_of(unreadable, "cofferdam logs").status.code(), Some(64));
}
