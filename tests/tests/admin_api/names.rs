//! Names of sandboxes in `sessions`, `kill` and `enrolments`, and the names that `attach dial` shows and stores.

use super::*;

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_sandbox_is_listed_and_killed_by_its_name() {
    let world = two_grants().start();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("box/relay.sock");
    let mut arguments = exec_hub(&socket);
    arguments.splice(1..1, ["--name".into(), "box1".into()]);
    let mut attach = Attach::start(&world, &arguments);
    attach.wait_until_attached(1);

    // A sandbox without links is listed too.
    let sessions = world.sessions();
    assert_eq!(
        (&sessions[0]["name"], &sessions[0]["state"]),
        (&json!("box1"), &json!("attached")),
        "{sessions}"
    );
    assert!(sessions[0]["session"].is_null());
    let table = world.cofferdam_text(&["sessions"]);
    assert!(table.lines().any(|line| line.contains("attached") && line.ends_with("box1")), "{table}");

    let _shim = connected(&format!("unix:{}", socket.display()), "tools");
    let sessions = world.sessions();
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions}");
    assert_eq!(
        (&sessions[0]["name"], &sessions[0]["connected"]),
        (&json!("box1"), &json!(true)),
        "{sessions}"
    );
    assert!(world.cofferdam_text(&["sessions"]).contains("box1"));
    let enrolments = world.cofferdam_text(&["enrolments"]);
    let line = enrolments.lines().find(|line| line.ends_with("box1")).expect("the enrolment is not listed");
    assert!(line.contains("attached") && line.contains(" 1 "), "{enrolments}");

    let printed = world.cofferdam_text(&["kill", "box1"]);
    assert!(printed.contains("its sandbox cannot connect again"), "{printed}");
    assert!(!attach.wait().success());
    assert_eq!(world.sessions(), json!([]));
    let again = world.cofferdam(&["kill", "box1"]);
    assert_eq!(again.status.code(), Some(66));
    assert!(
        stderr(&again).contains("there is no session, enrolment or sandbox `box1`"),
        "{}",
        stderr(&again)
    );
}

#[test]
fn an_ambiguous_name_is_refused_with_the_ids() {
    let world = two_grants().start();
    let api = AdminClient::socket(&world);
    let ids =
        ["dev", "other"].map(|grant| enrol(&api, grant, "twin")["enrolment"].as_str().unwrap().to_owned());
    for command in [&["kill", "twin"][..], &["enrolments", "end", "twin"]] {
        let refused = world.cofferdam(command);
        assert_eq!(refused.status.code(), Some(66));
        let printed = stderr(&refused);
        assert!(printed.contains("2 sandboxes have the name `twin`"), "{printed}");
        assert!(
            ids.iter().all(|id| printed.contains(id)) && printed.contains("one of these ids"),
            "{printed}"
        );
    }
    world.cofferdam_text(&["enrolments", "end", &ids[0]]);
    world.cofferdam_text(&["enrolments", "end", "twin"]);
    let listed: Value = serde_json::from_str(&world.cofferdam_text(&["enrolments", "--json"])).unwrap();
    assert_eq!(listed, json!([]));
    let none = world.cofferdam(&["enrolments", "end", "twin"]);
    assert_eq!(none.status.code(), Some(66));
}

/// The query of a URL may contain a token, so it is neither stored nor shown.
#[test]
fn attach_dial_neither_shows_nor_stores_the_query_of_its_url() {
    let world = two_grants().start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
        }
    });
    let canary = "canary-token-in-a-query";
    let attach =
        Attach::start(&world, &["dial", &format!("wss://{address}/hub?token={canary}"), "--grant", "dev"]);
    attach.wait_until_output_has(&address.to_string());
    attach.wait_until_output_has("the connection ended before anything was received");
    let name = format!("wss://{address}/hub");
    let sandbox = world.sessions()[0].clone();
    assert_eq!((&sandbox["name"], &sandbox["state"]), (&json!(name), &json!("connecting")), "{sandbox}");
    assert!(sandbox["reason"].as_str().unwrap().contains("does a hub or a shim listen"), "{sandbox}");
    assert!(!attach.printed().contains("the command"), "{}", attach.printed());
    let mut stored = 0;
    for entry in std::fs::read_dir(world.layout().state.join("enrolments")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(text.contains(&name) && !text.contains(canary), "{text}");
        stored += 1;
    }
    assert_eq!(stored, 1);
    assert!(world.log().contains(&name));
    for text in [world.log(), attach.printed(), world.cofferdam_text(&["enrolments"])] {
        assert!(!text.contains(canary), "{text}");
    }
}
