//! `cofferdam run`: real sandboxes, real harnesses, a real terminal.

mod harnesses;
mod images;
mod interruptions;
mod kinds;
mod lifecycle;
mod names;
mod progress;
mod refusals;
mod terminal;
mod unprivileged;
mod visibility;

use cofferdam_tests::local_run::LocalRun;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

const CANARY: &str = "canary-5b0d6a3f9c-must-not-cross";

/// A user with one server whose credential is a canary.
#[track_caller]
fn user() -> LocalRun {
    let server = Server::fixture().env("SECRET", "{local.value}");
    LocalRun::new(World::new().secret_file("local", CANARY).server("tools", server))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
