//! Two real nodes: the sidecar sends its requests to the standby.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::shared_session::assert_logged_only;
use cofferdam_tests::vault::{leave, prepared, session_tokens};

use crate::support::{Load, refused, three_servers_at};

#[test]
fn a_standby_serves_and_without_its_leader_its_redirect_is_not_followed() {
    let Some(mut leader) = prepared(OpenBao::persistent()) else { return };
    let Some(standby) = leader.standby() else { return };
    assert_eq!((leader.health(), standby.health()), (Some(200), Some(429)));
    let world = three_servers_at(&leader, &standby.address()).start();
    // The standby has new tokens of the leader only after a short delay: no request is refused for that, and no token
    // is created twice.
    for number in 0..5 {
        let harness = world.connected("tools");
        assert_eq!(session_tokens(&leader).len(), 1, "session {number} does not have one token");
        leave(harness);
        wait_until("its token is gone", || session_tokens(&leader).is_empty());
    }
    let load = Load::start(world.connected("tools"), "echo");
    load.assert_calls_continue();
    leader.kill9();
    let mut late = world.shim("late");
    let place = leader.listens_at.ip().to_string();
    let words = ["a standby redirected the request (HTTP 307)", "not followed", "`address`"];
    wait_until("the standby redirects requests", || {
        late.initialize()["error"]["message"].as_str().is_some_and(|text| text.contains("307"))
    });
    let text = refused(&mut late, &words);
    assert_logged_only(&world, &text, &["auth/token/create", &place]);
    load.assert_calls_continue();
    leader.start_again();
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
    load.assert_calls_continue();
    leave(load.end());
}
