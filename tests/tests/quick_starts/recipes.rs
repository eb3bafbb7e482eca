//! The recipes for `attach exec` in packaging/guide/sandboxes.md, and its row for sandboxes with outbound network.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use cofferdam_tests::attach::shim_binary;
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::markdown::{rows, spans};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{Running, command, into_file, read};
use cofferdam_tests::sandboxes::{Access, Guest, Podman, Sandbox as _, Ssh};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{Host, guide, section, stdout_of};

/// A row of the table: the sandbox, the command, and whether a test runs it.
struct Recipe {
    sandbox: String,
    command: String,
    tried: String,
}

fn recipes() -> Vec<Recipe> {
    let page = guide("sandboxes.md");
    let cells = rows(section(&page, "Recipes for `attach exec`")).skip(1);
    cells
        .map(|cells| Recipe {
            sandbox: cells[0].clone(),
            command: spans(&cells[1]).next().expect("a row has a command"),
            tried: cells[2].clone(),
        })
        .collect()
}

/// The recipe of this sandbox, which the guide says a test runs.
#[track_caller]
fn recipe_that_is_run(sandbox: &str) -> String {
    let recipe = recipes().into_iter().find(|recipe| recipe.sandbox == sandbox).expect("there is a recipe");
    assert!(recipe.tried.starts_with("run by a test"), "{}", recipe.tried);
    recipe.command
}

/// A running recipe.
struct Attached {
    process: Running,
    stderr: PathBuf,
}

impl Attached {
    #[track_caller]
    fn start(host: &Host, recipe: &str) -> Self {
        let stderr = host.project().join("stderr");
        let mut shell = host.shell(&format!("exec {recipe}"));
        shell.stdout(into_file(&stderr)).stderr(into_file(&stderr));
        let attached = Self { process: Running::spawn(shell, recipe), stderr };
        wait_until("the sandbox is attached", || attached.printed().contains("cofferdam attach: attached"));
        attached
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&read(&self.stderr)).into_owned()
    }

    #[track_caller]
    fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        assert!(self.process.wait(PATIENCE).success(), "{}", self.printed());
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("=== attach exec\n{}", self.printed());
        }
    }
}

/// A directory that has the shim as `cofferdam-shim`.
fn directory_with_shim() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let shim = directory.path().join("cofferdam-shim");
    std::fs::copy(shim_binary(), &shim).expect("a temporary directory is writable");
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

#[track_caller]
fn assert_tool_works(mut shim: Harness) {
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "from the sandbox"})), "from the sandbox");
}

#[test]
fn the_recipes_for_docker_and_podman_reach_a_container() {
    let Some(podman) = Podman::open() else { return };
    let host = Host::start(World::new().server("tools", Server::fixture()));
    let programs = directory_with_shim();
    for (sandbox, program) in [("Docker", "docker"), ("Podman", "podman")] {
        podman.write_program(&host.program(program));
        let relay = tempfile::tempdir().expect("a temporary directory can be made");
        let guest = Guest::new(&[]).mount(programs.path(), "/usr/local/bin", Access::ReadOnly).mount(
            relay.path(),
            "/run/cofferdam/relay",
            Access::ReadWrite,
        );
        let container = podman.container_named("box1", &guest);
        let attached = Attached::start(&host, &recipe_that_is_run(sandbox));
        assert_tool_works(container.exec(&Guest::new(&["--server", "tools"])));
        attached.stop();
    }
}

#[test]
fn the_recipe_for_ssh_reaches_a_host() {
    let Some(sandbox) = Ssh::open() else { return };
    let host = Host::start(World::new().server("tools", Server::fixture()));
    sandbox.write_program(&host.program("ssh"), "box1");
    let attached = Attached::start(&host, &recipe_that_is_run("a host with SSH"));
    assert_tool_works(sandbox.start(&Guest::new(&["--server", "tools"])));
    attached.stop();
}

/// The row of the table of sandboxes for those with outbound network.
#[test]
fn an_enrolled_sandbox_connects_as_the_guide_says() {
    let page = guide("sandboxes.md");
    let mut cells = rows(&page).filter(|cells| cells[0].starts_with("remote"));
    let row = cells.next().expect("there is a row");
    let mut enroll = spans(&row[1]).filter(|span| span.starts_with("cofferdam enroll "));
    let enroll = enroll.next().expect("the row has a command");
    let tls = free_address();
    let host =
        Host::start(World::new().server("tools", Server::fixture()).relay(&format!("tls = \"{tls}\"")));
    let text = stdout_of(host.shell(&enroll), "cofferdam enroll");
    let variable = spans(&row[2]).find(|span| span == "COFFERDAM_ENROLL_FILE").expect("it is named");
    let (file, state) = (host.project().join("enroll"), host.project().join("state"));
    std::fs::write(&file, text).expect("the project is writable");
    let mut shim = command(shim_binary());
    shim.env_clear().env(variable, file).args(["--server", "tools", "--state"]).arg(state);
    assert_tool_works(Harness::start(shim, "cofferdam-shim"));
}

/// Every recipe that no test runs is marked as such.
#[test]
fn every_other_recipe_is_marked_as_not_run() {
    let run = ["Docker", "Podman", "a host with SSH"];
    let mut others: Vec<String> = Vec::new();
    for recipe in recipes() {
        if !run.contains(&recipe.sandbox.as_str()) {
            assert_eq!(recipe.tried, "not run", "{}", recipe.sandbox);
            others.push(recipe.sandbox);
        }
        assert!(recipe.command.ends_with("cofferdam-shim hub --pin {pin}"), "{}", recipe.command);
    }
    for name in ["Kubernetes", "Coder", "Modal", "Sprites"] {
        assert!(others.iter().any(|other| other.starts_with(name)), "there is no recipe for {name}");
    }
}
