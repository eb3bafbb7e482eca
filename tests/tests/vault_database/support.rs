//! Shared by these tests: sessions with a database user, and checks whether a user can log in.

use cofferdam_tests::database::{Database, LONG};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::session_tokens;
use cofferdam_tests::world::{Builder, World};

/// Starts a world whose server gets a database URL with a long lease.
pub(crate) fn start_world(database: &Database, change: impl FnOnce(Builder) -> Builder) -> World {
    database.role("agent", LONG);
    change(with_fixture(database)).start()
}

pub(crate) fn with_fixture(database: &Database) -> Builder {
    let server = database.with_url(Server::fixture().allow(&["*"]), "db");
    database.world("agent").server("tools", server)
}

/// Connects a harness; returns it with the database URL, after a login with that URL succeeded.
#[track_caller]
pub(crate) fn connect_and_check_login(database: &Database, world: &World) -> (Harness, String) {
    let harness = world.connected("tools");
    let url = database.url_in_process();
    assert_eq!(database.postgres.log_in(&url), Ok(()));
    assert_eq!((database.users().len(), session_tokens(&database.bao).len()), (1, 1));
    (harness, url)
}

#[track_caller]
pub(crate) fn assert_login_refused(database: &Database, url: &str) {
    let refused = database.postgres.log_in(url).expect_err("the user cannot log in any more");
    assert!(refused.contains("password authentication failed"), "{refused}");
}
