//! `cofferdam check`: what the walls of a server keep from it.

use std::path::Path;

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::Value;

use crate::check::assert_found;
use crate::printed;

/// The findings of `check --json` for a server, as code and hint.
fn findings(server: Server) -> Vec<(String, String)> {
    let world = World::new().server("tools", server).prepare();
    let (stdout, stderr) = printed(&world.cofferdam(&["check", "--json"]));
    let report: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout} {stderr}"));
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("a list").iter();
    findings.map(|finding| (text(finding, "code"), text(finding, "hint"))).collect()
}

#[track_caller]
fn assert_suggested(server: Server, code: &str, line: &str) {
    let found = findings(server);
    let is_it = |(found, hint): &(String, String)| found == code && hint.contains(line);
    assert!(found.iter().any(is_it), "no {code} with {line} in {found:#?}");
}

#[track_caller]
fn assert_nothing_found(server: Server) {
    assert_eq!(findings(server), Vec::<(String, String)>::new());
}

fn shell() -> Server {
    Server::command(["/bin/sh", "-c", "true"])
}

#[test]
fn a_server_without_walls_is_warned_of() {
    // The warning is what this test is about.
    let world = World::new().server("tools", Server::fixture().unconfined()).prepare();
    assert_found(
        &world,
        "servers.tools.confine",
        "is off: the server can do all that the sidecar's user can",
    );
    assert_nothing_found(Server::fixture());
}

#[test]
fn a_host_in_a_variable_or_an_argument_is_suggested_with_the_line_to_add() {
    let code = "server-host-closed";
    let with = |value: &str| shell().env("URL", value);
    assert_suggested(
        with("postgresql://u:pw@db.example.com:5432/x"),
        code,
        "add to `[servers.tools.confine]`: `hosts = [\"db.example.com:5432\"]`",
    );
    assert_suggested(with("http://127.0.0.1:8080/mcp"), code, "`hosts = [\"localhost:8080\"]`");
    assert_suggested(with("https://db.internal"), code, "`hosts = [\"private:db.internal:443\"]`");
    let argument = Server::command(["/bin/sh", "--api=https://api.example.com/v1"]);
    assert_suggested(argument, code, "`hosts = [\"api.example.com:443\"]`");
    let listed = with("https://b.example.com").confine("hosts = [\"a.example.com:443\"]");
    assert_suggested(listed, code, "`hosts = [\"a.example.com:443\", \"b.example.com:443\"]`");
    let scope = "scopes = [{ tools = [\"write_*\"], env = { URL = \"https://w.example.com\" } }]";
    assert_suggested(shell().line(scope), code, "`hosts = [\"w.example.com:443\"]`");
    assert_nothing_found(with("https://b.example.com").confine("hosts = [\"*.example.com:443\"]"));
    // The warning does not apply where nothing is closed; that there are no walls is another finding.
    let open = findings(with("https://b.example.com").unconfined());
    assert!(open.iter().all(|(code, _)| code == "server-unconfined"), "{open:#?}");
    let world = World::new().server("tools", with("https://user:p455word@b.example.com/token")).prepare();
    let (_, stderr) = printed(&world.cofferdam(&["check"]));
    assert!(
        stderr.contains("b.example.com:443") && !stderr.contains("p455word") && !stderr.contains("token"),
        "{stderr}"
    );
}

#[test]
fn a_directory_or_database_among_the_arguments_is_suggested_with_the_line_to_add() {
    let code = "server-path-hidden";
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(path("project")).expect("a temporary directory is writable");
    for file in ["notes.db", "script.sh"] {
        std::fs::write(path(file), "").expect("a temporary directory is writable");
    }
    let with = |argument: &str| Server::command(["/bin/sh", argument]);
    let line = format!("add to `[servers.tools.confine]`: `write = [{:?}]`", path("project"));
    assert_suggested(with(&path("project")), code, &line);
    assert_suggested(with(&format!("--directory={}", path("project"))), code, &line);
    assert_suggested(with(&path("notes.db")), code, &format!("`write = [{:?}]`", directory.path()));
    for sound in [
        with(&path("project")).writing(directory.path()),
        with(&path("project")).reading(Path::new(&path("project"))),
        with(&path("project")).line(&format!("cwd = {:?}", path("project"))),
        with(&path("script.sh")),
        with(&path("missing")),
        with("/usr/share"),
    ] {
        assert_nothing_found(sound);
    }
    let world = World::new().server("tools", shell()).prepare();
    let state = world.layout().state.display().to_string();
    let text = std::fs::read_to_string(&world.layout().config).expect("it was written");
    let text = text.replace("\"true\"", &format!("{state:?}"));
    std::fs::write(&world.layout().config, text).expect("a temporary directory is writable");
    assert_found(&world, "servers.tools.command", "which no confined server may see");
}

#[test]
fn a_server_that_is_downloaded_at_its_start_is_suggested_what_it_needs() {
    let code = "server-downloaded";
    for command in
        [&["npx", "-y", "some-server"][..], &["uvx", "some-server"], &["pipx", "run", "some-server"]]
    {
        let server = Server::command(command.iter().copied());
        assert_suggested(server.clone(), code, "`hosts = [\"REGISTRY:443\"]`");
        assert_suggested(server.clone(), code, "`home = \"keep\"` to `[servers.tools.confine]`");
        let hosts = server.clone().confine("hosts = [\"registry.example.com:443\"]");
        assert_suggested(hosts.clone(), code, "`home = \"keep\"`");
        let whole = findings(hosts.confine("home = \"keep\""));
        assert!(whole.iter().all(|(found, _)| found != code), "{whole:#?}");
    }
    let container = Server::command(["docker", "run", "--rm", "-i", "image"]);
    assert_suggested(container, code, "write `confine = \"off\"` in `[servers.tools]`");
}
