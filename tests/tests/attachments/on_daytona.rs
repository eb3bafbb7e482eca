//! The same with Daytona: `cofferdam attach daytona`, by the preview link and by SSH.

use cofferdam_tests::attach::{Attach, connected, shim_binary};
use cofferdam_tests::daytona_double::{API_KEY, DaytonaDouble, Speed};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::json;

pub(super) fn world(platform: &DaytonaDouble) -> World {
    builder(platform).start()
}

/// A sidecar that knows the platform.
pub(super) fn builder(platform: &DaytonaDouble) -> Builder {
    let table = format!(
        "platforms.daytona = {{ api-key = '{{daytona-key.value}}', api-url = '{}', sandbox-url = '{}', shim = '{}' }}",
        platform.api_url(),
        platform.proxy_url(),
        shim_binary().display()
    );
    World::new().server("tools", Server::fixture()).secret_file("daytona-key", API_KEY).line(&table)
}

#[test]
fn a_daytona_sandbox_is_attached_by_either_way_and_survives_a_stop() {
    for via in ["preview", "ssh"] {
        let Some(platform) = DaytonaDouble::start(Speed(1)) else { return };
        let world = world(&platform);
        let attach =
            Attach::start(&world, &["daytona", platform.sandbox_id(), "--grant", "dev", "--via", via]);
        attach.wait_until_attached(1);
        let socket = platform.root().join("run/cofferdam/relay/relay.sock");
        wait_until("the hub's socket is there", || socket.exists());
        let mut shim = connected(&format!("unix:{}", socket.display()), "tools");
        assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one", "{via}");
        platform.stop();
        attach.wait_until_output_has("the sandbox is suspended");
        let waiting = shim.send_call("echo", json!({"text": "two"}));
        platform.start_again();
        attach.wait_until_attached(2);
        assert_eq!(cofferdam_tests::harness::text_of(&shim.answer_to(&waiting)), "two", "{via}");
        assert_eq!(world.times_executed("tools", "echo"), 2, "{via}");
        attach.stop();
        world.assert_secret_not_leaked(API_KEY);
    }
}
