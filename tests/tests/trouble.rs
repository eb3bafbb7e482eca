//! Bad input and failures on the host: a clear error, nothing lost, and other links undisturbed.

use std::os::unix::net::{UnixDatagram, UnixListener};
use std::time::Duration;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_proto::frame::{Frame, PREFACE};
use serde_json::json;

/// What is wrong, the file, the line that the error must name, and a word that it must contain.
const BAD_CONFIGURATIONS: [(&str, &str, Option<usize>, &str); 10] = [
    ("an unknown key", "colour = 1\n", Some(1), "colour"),
    ("an unknown key of a server", "[servers.one]\ncommand = [\"a\"]\ncolour = 1\n", Some(3), "colour"),
    (
        "two servers with one name",
        "[servers.one]\ncommand = [\"a\"]\n[servers.one]\ncommand = [\"b\"]\n",
        Some(3),
        "one",
    ),
    (
        "an unknown secret",
        "[servers.one]\ncommand = [\"a\"]\nenv = { K = \"{nothing.here}\" }\n",
        Some(3),
        "nothing",
    ),
    (
        "an unbalanced brace",
        "[servers.one]\ncommand = [\"a\"]\nenv = { K = \"{local.value\" }\n",
        Some(3),
        "brace",
    ),
    ("no command and no URL", "[servers.one]\nretry = true\n", None, "command"),
    ("a grant of an unknown server", "[grants.dev]\nservers = [\"nowhere\"]\n", Some(2), "nowhere"),
    (
        "no grant for the socket",
        "[relay]\nunix = \"/tmp/x/relay.sock\"\nunix-grant = \"unknown\"\n",
        Some(3),
        "unknown",
    ),
    ("a socket without a grant", "[relay]\nunix = \"/tmp/x/relay.sock\"\n", None, "unix-grant"),
    ("unreadable TOML", "[servers.one\ncommand = \n", Some(1), ""),
];

#[test]
fn problems_of_a_configuration_are_reported_with_their_lines() {
    let world = World::new().prepare();
    for (what, text, line, word) in BAD_CONFIGURATIONS {
        std::fs::write(&world.layout().config, text).unwrap();
        let printed = refused_check(&world);
        assert!(printed.contains(word), "{what}: {printed}");
        if let Some(line) = line {
            assert!(printed.contains(&format!("cofferdam.toml:{line}:")), "{what}, line {line}: {printed}");
        }
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let world = World::new().prepare();
    let text = "colour = 1\n[servers.one]\ncommand = []\n[servers.two]\nsize = 2\ncommand = [\"a\"]\n";
    std::fs::write(&world.layout().config, text).unwrap();
    let printed = refused_check(&world);
    for word in ["colour", "size", ":3:"] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let world = World::new().prepare();
    std::fs::remove_file(&world.layout().config).unwrap();
    assert!(refused_check(&world).contains("cofferdam.toml"));
}

#[test]
fn an_admin_socket_or_the_state_in_the_sandboxs_directory_is_refused() {
    let world = World::new().server("tools", Server::fixture()).prepare();
    let text = std::fs::read_to_string(&world.layout().config).unwrap();
    let relay = world.layout().relay.parent().unwrap().display().to_string();
    let admin = world.layout().admin.display().to_string();
    std::fs::write(&world.layout().config, text.replace(&admin, &format!("{relay}/admin.sock"))).unwrap();
    assert!(refused_check(&world).contains("admin"));
    let state = world.layout().state.display().to_string();
    std::fs::write(&world.layout().config, text.replace(&state, &format!("{relay}/state"))).unwrap();
    assert!(refused_check(&world).contains("state-dir"));
}

#[test]
fn checking_a_valid_configuration_has_no_side_effects() {
    let world =
        World::new().secret_file("local", "a-secret-value").server("tools", Server::fixture()).prepare();
    let checked = world.cofferdam(&["check"]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(
        !world.layout().relay.exists() && std::fs::read_dir(&world.layout().state).unwrap().next().is_none()
    );
}

#[test]
fn unknown_clients_on_the_relay_are_refused_and_disturb_no_other() {
    let world = World::new().server("tools", Server::fixture()).limit("greeting-timeout = \"1s\"").start();
    let mut shim = world.connected("tools");
    let mut valid_hello = Vec::new();
    Frame::Hello(hello("tools", &[1])).encode(&mut valid_hello);
    let openings: [(&str, Vec<u8>); 7] = [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("a preface of a later version", b"cofferdam-relay/9\n".to_vec()),
        ("an oversize frame", [PREFACE, &[0xff, 0xff, 0xff, 0xff, 1]].concat()),
        ("garbage", [PREFACE, &[0, 0, 0, 9, 0xee, 1, 2, 3, 4, 5, 6, 7, 8]].concat()),
        ("half a Hello and silence", [PREFACE, &valid_hello[..valid_hello.len() / 2]].concat()),
        ("silence", Vec::new()),
        ("a message before the Hello", [PREFACE, &[0, 0, 0, 1, 0x70]].concat()),
    ];
    for (what, bytes) in openings {
        let mut client = RawRelay::connect(&world.layout().relay);
        client.send(&bytes);
        loop {
            match client.next_frame() {
                Next::Closed => break,
                Next::Frame(frame) => assert!(matches!(*frame, Frame::Refusal(_)), "{what}: {frame:?}"),
                Next::TimedOut => panic!("{what}: neither refused nor closed within {PATIENCE:?}"),
            }
        }
        assert_eq!(shim.call_text("echo", json!({"text": what})), what);
    }
}

#[test]
fn refusals_of_the_relay_have_their_codes() {
    let world = World::new()
        .server("tools", Server::fixture())
        .server("theirs", Server::fixture())
        .granting(&["tools"])
        .start();
    let cases: [(&str, &[u16], &str); 3] = [
        ("tools", &[7777], "version_refused"),
        ("theirs", &[1], "server_not_granted"),
        ("unknown", &[1], "server_not_granted"),
    ];
    for (server, versions, code) in cases {
        let mut client = RawRelay::connect(&world.layout().relay);
        client.send_hello(server, versions);
        match client.next_frame() {
            Next::Frame(frame) => match *frame {
                Frame::Refusal(refusal) => {
                    assert_eq!(refusal.code, code, "{server}");
                    assert!(!refusal.message.is_empty());
                }
                other => panic!("{server}: {other:?}"),
            },
            other => panic!("{server}: {other:?}"),
        }
    }
}

#[test]
fn silent_connections_cannot_take_all_slots() {
    // No handshake times out during this test: a slot becomes free only when a silent connection is closed.
    let world = World::new().server("tools", Server::fixture()).limit("greeting-timeout = \"1m\"").start();
    let mut clients: Vec<RawRelay> = (0..200).map(|_| RawRelay::connect(&world.layout().relay)).collect();
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("echo", json!({"text": "came through"})), "came through");
    assert!(
        matches!(clients[0].next_frame(), Next::Closed),
        "the longest silent connection is closed without a frame"
    );
    let newest = clients.last_mut().unwrap();
    newest.send_hello("tools", &[1]);
    assert!(
        matches!(newest.next_frame(), Next::Frame(frame) if matches!(*frame, Frame::Welcome(_))),
        "a connection that was not displaced can still send its Hello"
    );
}

#[test]
fn a_flood_of_refusals_does_not_fill_the_log() {
    let world = World::new().server("tools", Server::fixture()).start();
    for _ in 0..300 {
        let mut client = RawRelay::connect(&world.layout().relay);
        client.send_hello("tools", &[7777; 1000]);
        assert!(matches!(client.next_frame(), Next::Frame(_)));
    }
    world.wait_until("the other refusals are counted", || world.log().contains("more connections refused"));
    let log = world.log();
    let lines = log.lines().filter(|line| line.contains("connection refused"));
    assert!(lines.clone().count() < 300, "{log}");
    for line in lines {
        assert!(line.len() < 400, "{line}");
    }
}

#[test]
fn a_symbolic_link_into_the_sandboxs_directory_stops_the_start() {
    for (what, name) in [("admin.socket", "admin"), ("state-dir", "state")] {
        let mut world = World::new().server("tools", Server::fixture()).prepare();
        let (directory, relay) = (world.layout().root().join(name), world.layout().root().join("relay"));
        std::fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&relay, &directory).unwrap();
        world.launch();
        assert!(!world.sidecar().wait(PATIENCE).success(), "{what}");
        let log = world.log();
        assert!(log.contains(what) && log.contains("relay's directory"), "{what}: {log}");
        assert_eq!(std::fs::read_dir(relay).unwrap().count(), 0, "{what}: something was created there");
    }
}

#[test]
fn a_socket_that_may_be_in_use_is_left_alone() {
    let mut world = World::new().server("tools", Server::fixture()).prepare();
    let _other = UnixDatagram::bind(&world.layout().relay).unwrap();
    world.launch();
    assert!(!world.sidecar().wait(PATIENCE).success());
    assert!(world.log().contains("relay.sock"), "{}", world.log());
    assert!(world.layout().relay.exists());
}

#[test]
fn a_stop_does_not_remove_a_file_that_replaced_the_socket() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    std::fs::remove_file(&world.layout().relay).unwrap();
    let _other = UnixListener::bind(&world.layout().relay).unwrap();
    world.stop_sidecar();
    assert!(world.layout().relay.exists());
    assert!(!world.layout().admin.exists(), "the sidecar's admin socket was not removed");
}

#[test]
fn the_number_of_links_is_limited_and_ended_links_free_it() {
    let world = World::new().server("tools", Server::fixture()).limit("links = 2").start();
    let mut first = world.connected("tools");
    let _second = world.connected("tools");
    let (code, message) = RawRelay::refused(&world.layout().relay, "tools");
    assert_eq!(code, "relay_unavailable");
    assert!(message.contains("limits.links`"), "{message}");
    first.close_stdin();
    // This shim waits until a link is free, as long as its harness waits.
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "room"})), "room");
}

#[test]
fn new_links_are_limited_per_minute() {
    // One sandbox gets half of them.
    let world = World::new().server("tools", Server::fixture()).limit("links-per-minute = 4").start();
    for _ in 0..2 {
        drop(RawRelay::welcomed(&world.layout().relay, "tools"));
    }
    let (code, message) = RawRelay::refused(&world.layout().relay, "tools");
    assert_eq!(code, "relay_unavailable");
    assert!(message.contains("limits.links-per-minute"), "{message}");
}

#[test]
fn only_the_listed_users_may_connect() {
    let own_uid = nix::unistd::geteuid().as_raw();
    let world = World::new()
        .server("tools", Server::fixture())
        .relay(&format!("unix-uids = [{}]", own_uid + 1))
        .start();
    let (code, message) = RawRelay::refused(&world.layout().relay, "tools");
    assert_eq!(code, "server_not_granted");
    assert!(message.contains("unix-uids") && message.contains(&own_uid.to_string()), "{message}");
    assert_eq!(world.sessions(), json!([]), "a link was accepted");

    let world =
        World::new().server("tools", Server::fixture()).relay(&format!("unix-uids = [{own_uid}]")).start();
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "named"})), "named");
}

#[test]
fn a_full_state_directory_refuses_calls_and_they_do_not_run() {
    let world = World::new().server("tools", Server::fixture()).state_on_tmpfs(512).start();
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("count", json!({})), "ran count");
    world.fill_the_state_directory();
    // The rest of the last page may have room for a record or two.
    let mut refused = None;
    for _ in 0..200 {
        let before = world.times_executed("tools", "count");
        let answer = shim.call("count", json!({}));
        if answer.get("error").is_some() {
            assert_eq!(
                world.times_executed("tools", "count"),
                before,
                "a call ran that could not be recorded"
            );
            refused = Some(answer);
            break;
        }
    }
    assert!(refused.is_some(), "the disk is full, yet calls are made");
    let before = world.times_executed("tools", "count");
    for _ in 0..5 {
        assert!(shim.call("count", json!({})).get("error").is_some());
    }
    world.empty_the_state_directory();
    world.wait_until("calls are made again", || shim.call("count", json!({})).get("result").is_some());
    // The server runs calls in order: a refused call that had reached it would be counted by now.
    assert_eq!(world.times_executed("tools", "count"), before + 1);
}

#[test]
fn an_unwritable_state_directory_stops_the_start() {
    let mut world = World::new().server("tools", Server::fixture()).prepare();
    let state = world.layout().state.display().to_string();
    let text =
        std::fs::read_to_string(&world.layout().config).unwrap().replace(&state, "/proc/cofferdam-state");
    std::fs::write(&world.layout().config, text).unwrap();
    world.launch();
    let status = world.sidecar().wait(PATIENCE);
    assert!(!status.success());
    assert!(world.log().contains("/proc/cofferdam-state"), "{}", world.log());
}

#[test]
fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    world.kill9_sidecar();
    assert!(world.layout().relay.exists(), "kill -9 leaves the socket behind");
    world.start_sidecar();
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "new"})), "new");

    let mut second = World::new().server("tools", Server::fixture()).prepare();
    let _in_use = UnixListener::bind(&second.layout().relay).unwrap();
    second.launch();
    assert!(!second.sidecar().wait(PATIENCE).success());
    assert!(second.log().contains("relay.sock"), "{}", second.log());
}

#[test]
fn a_second_sidecar_does_not_disturb_the_first() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let second = world.cofferdam(&["serve"]);
    assert!(!second.status.success());
    assert_eq!(shim.call_text("echo", json!({"text": "undisturbed"})), "undisturbed");
    let mut another = world.connected("tools");
    assert_eq!(
        another.call_text("echo", json!({"text": "the socket is still the first's"})),
        "the socket is still the first's"
    );
}

#[test]
fn commands_without_a_running_sidecar_report_that() {
    let world = World::new().server("tools", Server::fixture()).prepare();
    for arguments in [&["sessions"][..], &["reload"], &["kill", "x"]] {
        let output = world.cofferdam(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            printed.contains("admin.sock") || printed.contains("cofferdam serve"),
            "{arguments:?}: {printed}"
        );
    }
}

#[test]
fn a_shim_without_a_sidecar_keeps_running_and_answers_after_its_timeout() {
    let world = World::new().server("tools", Server::fixture()).prepare();
    let mut shim = world.shim("tools");
    let id = shim.send_initialize();
    let answer =
        shim.answer_within(&id, Duration::from_secs(60)).expect("a handshake is answered after 20 s");
    assert_eq!(cofferdam_tests::harness::refusal_of(&answer), "relay_unavailable");
    let sentence = answer["error"]["message"].as_str().expect("an error has a message");
    for part in ["is `cofferdam serve` running on the host", "relay's directory mounted here?"] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
    assert!(!answer.to_string().to_lowercase().contains("enrol"), "{answer}");
    assert!(shim.is_running());
}

#[track_caller]
fn refused_check(world: &World) -> String {
    let output = world.cofferdam(&["check"]);
    let printed =
        String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned();
    assert!(!output.status.success(), "{printed}");
    assert!(!printed.contains("panicked"), "{printed}");
    printed
}
