//! The tables of `sessions` and `enrolments`: names, states, times and columns.

use std::io::Read as _;
use std::process::Stdio;

use cofferdam_process::{Pty, Window};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::Running;
use cofferdam_tests::sandbox_files::enroll;
use cofferdam_tests::server::Server;
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::world::World;

use super::printed;

const LONG_NAME: &str = "a-sandbox-with-a-name-of-sixty-four-characters-0123456789abcdefg";

/// The cell of a column in a line, by the column's place in the line with the titles.
fn cell<'a>(titles: &str, line: &'a str, title: &str) -> &'a str {
    let start = titles.find(title).unwrap_or_else(|| panic!("no column {title} in {titles}"));
    line[start..].split("  ").next().unwrap_or_default().trim()
}

/// A world in which a sandbox with a long name is enrolled for 8 hours.
fn world_with_sandbox() -> (World, String) {
    let world = World::new().server("a-server-with-a-long-name", Server::fixture()).start();
    let directory = world.layout().root().join("box");
    let link = enroll(
        &world,
        &["--name", LONG_NAME, "--ttl", "8h", "--socket", directory.to_str().expect("the path is UTF-8")],
    );
    (world, link)
}

#[track_caller]
fn connect(world: &World, link: &str) -> Harness {
    let mut command = world.bare_shim_command();
    command.args(["--relay", link]);
    let mut shim = Harness::start(command, "cofferdam-shim");
    shim.initialize();
    shim
}

#[test]
fn enrolments_are_listed_with_sandbox_grant_state_and_expiry_and_can_be_ended() {
    let (world, link) = world_with_sandbox();
    let table = world.cofferdam_text(&["enrolments"]);
    let [titles, line] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    for (title, expected) in
        [("GRANT", "dev"), ("KIND", "socket"), ("STATE", "no links"), ("LINKS", "0"), ("SANDBOX", LONG_NAME)]
    {
        assert_eq!(cell(titles, line, title), expected, "{table}");
    }
    let expires = cell(titles, line, "EXPIRES");
    assert!(["in 8h", "in 7h59m"].contains(&expires), "{table}");

    let _shim = connect(&world, &link);
    let table = world.cofferdam_text(&["enrolments"]);
    let [titles, line] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert_eq!((cell(titles, line, "STATE"), cell(titles, line, "LINKS")), ("in use", "1"), "{table}");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(cell(titles, line, "SESSION"), session, "{table}");

    let ended = world.cofferdam_text(&["enrolments", "end", LONG_NAME]);
    assert!(ended.contains("its sandbox cannot connect again"), "{ended}");
    let none = world.cofferdam(&["enrolments"]);
    assert_eq!(printed(&none), (String::new(), "no enrolments\n".to_owned()));
}

#[test]
fn sessions_are_listed_with_sandbox_and_enrolment_in_aligned_columns() {
    let (world, link) = world_with_sandbox();
    let _enrolled = connect(&world, &link);
    let _shared = world.connected("a-server-with-a-long-name");
    let table = world.cofferdam_text(&["sessions"]);
    // What is said of a session besides its columns is indented.
    let lines: Vec<&str> = table.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(lines.len(), 3, "{table}");
    let enrolled =
        lines.iter().find(|line| line.ends_with(LONG_NAME)).expect("the name is not shortened in a pipe");
    let shared = lines[1..].iter().find(|line| !line.ends_with(LONG_NAME)).expect("the other link is listed");
    let sessions = world.sessions();
    let described = sessions
        .as_array()
        .unwrap()
        .iter()
        .find(|session| session["name"] == LONG_NAME)
        .expect("it is described");
    for (title, key) in
        [("SESSION", "session"), ("LINK", "link"), ("ENROLMENT", "enrolment"), ("SERVER", "server")]
    {
        assert_eq!(cell(lines[0], enrolled, title), described[key].as_str().unwrap(), "{title}: {table}");
    }
    for (title, expected) in [("SERVER", "a-server-with-a-long-name"), ("ENROLMENT", "-"), ("SANDBOX", "-")] {
        assert_eq!(cell(lines[0], shared, title), expected, "{title}: {table}");
    }
    assert_eq!(cell(lines[0], shared, "STATE"), "connected", "{table}");
}

#[test]
fn on_a_terminal_long_names_are_shortened_so_that_a_line_fits() {
    let (world, _link) = world_with_sandbox();
    let pty = Pty::open(Window::new(24, 100)).expect("a terminal can be made");
    let end = || Stdio::from(pty.inside.try_clone().expect("it can be duplicated"));
    let mut command = world.cofferdam_command();
    command.args(["enrolments", "-c"]).arg(&world.layout().config).stdin(end()).stdout(end()).stderr(end());
    assert!(Running::spawn(command, "cofferdam enrolments").wait(PATIENCE).success());
    drop(pty.inside);
    // The terminal is read to its end: the error means that no process has it open any more.
    let mut shown = Vec::new();
    let _ = std::fs::File::from(pty.host).read_to_end(&mut shown);
    let shown = String::from_utf8(shown).unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 2, "{shown}");
    assert!(lines[1].contains("a-sandbox") && lines[1].ends_with('…'), "{shown}");
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{shown}");
}

#[test]
fn times_are_printed_as_they_are_written_in_the_configuration() {
    let world = World::new()
        .server("tools", Server::fixture())
        .grant("ttl = \"99d23h\"")
        .relay(&format!("tls = \"{}\"", free_address()))
        .start();
    let enrolled = world.cofferdam(&["enroll", "--grant", "dev", "--ticket-ttl", "1h30m"]);
    let (_, stderr) = printed(&enrolled);
    assert!(stderr.contains("valid for 99d23h") && stderr.contains("within 1h30m"), "{stderr}");
    let table = world.cofferdam_text(&["enrolments"]);
    let [titles, line] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    let expires = cell(titles, line, "EXPIRES");
    assert!(["in 99d23h", "in 99d22h"].contains(&expires), "{table}");
    assert_eq!(
        (cell(titles, line, "KIND"), cell(titles, line, "STATE")),
        ("ticket", "not used yet"),
        "{table}"
    );
    let token = world.cofferdam(&["token", "create", "--grant", "dev", "--ttl", "45m"]);
    assert!(printed(&token).1.contains("valid for 45m;"), "{token:?}");
    let status = {
        let mut command = world.bare_shim_command();
        command.args([
            "status",
            "--relay",
            &enroll(&world, &["--ttl", "8h", "--socket", world.layout().root().join("b").to_str().unwrap()]),
        ]);
        cofferdam_tests::process::output_of(command, "cofferdam-shim status")
    };
    let (stdout, _) = printed(&status);
    assert!(stdout.contains("in 8h") || stdout.contains("in 7h59m"), "{stdout}");
}

#[test]
fn colours_are_for_terminals_and_can_be_chosen() {
    let world = World::new().server("tools", Server::fixture()).prepare();
    let shown_on_terminal = |arguments: &[&str], text: &str, no_color: Option<&str>| {
        let mut command = world.cofferdam_command();
        command.args(arguments);
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        let terminal = Terminal::of(command);
        terminal.wait_for(text);
        terminal.shown()
    };
    let is_coloured = |text: &str| text.contains("\u{1b}[");
    // An error, and clap's help.
    for (arguments, text) in [(&["sessions"][..], "found no configuration"), (&["--help"], "Usage:")] {
        let with = |option: &'static str| [&[option], arguments].concat();
        let in_pipe = |option: &'static str| {
            let (stdout, stderr) = printed(&world.cofferdam(&with(option)));
            stdout + &stderr
        };
        assert!(is_coloured(&shown_on_terminal(arguments, text, None)), "{arguments:?}");
        assert!(!is_coloured(&shown_on_terminal(arguments, text, Some("1"))), "{arguments:?}");
        assert!(!is_coloured(&shown_on_terminal(&with("--color=never"), text, None)), "{arguments:?}");
        assert!(is_coloured(&shown_on_terminal(&with("--color=always"), text, Some("1"))), "{arguments:?}");
        assert!(
            !is_coloured(&in_pipe("--color=auto")) && is_coloured(&in_pipe("--color=always")),
            "{arguments:?}"
        );
    }
    let (_, stderr) = printed(&world.cofferdam(&["sessions", "--color", "pink"]));
    assert!(stderr.contains("auto, always, never"), "{stderr}");
}
