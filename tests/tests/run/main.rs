//! `cofferdam run`: real sandboxes, real harnesses, a real terminal.

mod alternatives;
mod every_kind;
mod harnesses;
mod images;
mod imported;
mod interruptions;
mod kinds;
mod lifecycle;
mod logins;
mod names;
mod not_permitted;
mod progress;
mod refusals;
mod sandbox_kind;
mod terminal;
mod unprivileged;
mod visibility;
mod without_root;

use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

const CANARY: &str = "canary-5b0d6a3f9c-must-not-cross";

/// A user with one server whose credential is a canary.
#[track_caller]
fn user() -> RunUser {
    let server = Server::fixture().env("SECRET", "{local.value}");
    RunUser::new(World::new().secret_file("local", CANARY).server("tools", server))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
