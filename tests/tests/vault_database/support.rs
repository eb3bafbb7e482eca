//! Shared by these tests: sessions with a database user, and checks whether a user can log in.

use cofferdam_tests::database::{Database, LONG};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::session_tokens;
use cofferdam_tests::world::{Builder, World};

/// A world with a server that has the URL of a long-lived user.
pub(crate) fn started(database: &Database, change: impl FnOnce(Builder) -> Builder) -> World {
    database.role("agent", LONG);
    change(with_fixture(database)).start()
}

pub(crate) fn with_fixture(database: &Database) -> Builder {
    let server = database.with_url(Server::fixture().allow(&["*"]), "db");
    database.world("agent").server("tools", server)
}

/// A session whose user is known, and can log in.
#[track_caller]
pub(crate) fn logged_in(database: &Database, world: &World) -> (Harness, String) {
    let harness = world.connected("tools");
    let url = database.url();
    assert_eq!(database.postgres.log_in(&url), Ok(()));
    assert_eq!((database.users().len(), session_tokens(&database.bao).len()), (1, 1));
    (harness, url)
}

#[track_caller]
pub(crate) fn assert_shut_out(database: &Database, url: &str) {
    let refused = database.postgres.log_in(url).expect_err("the user cannot log in any more");
    assert!(refused.contains("password authentication failed"), "{refused}");
}
