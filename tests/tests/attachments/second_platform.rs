//! Two platforms of the kind E2B under different names, each with its own address and API key; and two tables of one platform.

use cofferdam_tests::e2b_double::{Account, Fault, OTHER_API_KEY, Side};
use serde_json::json;

use super::conflicts::assert_one_is_attached;
use super::*;

/// E2B with a sandbox of one account, and a compatible platform `cube` with a sandbox of another account.
struct TwoPlatforms {
    e2b: E2bSetup,
    cube: E2bDouble,
    /// The id of the sandbox on the platform `cube`.
    box2: String,
}

impl TwoPlatforms {
    /// `None` if bubblewrap is missing, which is reported. `change` gets the id of the sandbox on `cube`.
    #[track_caller]
    fn with(change: impl FnOnce(Builder, &str) -> Builder) -> Option<Self> {
        let cube = E2bDouble::start()?;
        let box2 = cube.create_in(Account::Other, SandboxUser::Usual);
        let table = format!(
            "platforms.cube = {{ kind = 'e2b', api-key = '{{cube-key.value}}', api-url = '{}', sandbox-url = '{}', shim = '{}' }}",
            cube.api_url(),
            cube.sandbox_url(),
            shim_binary().display()
        );
        let e2b = E2bSetup::with(|builder, _| {
            change(builder.secret_file("cube-key", OTHER_API_KEY).line(&table), &box2)
        })?;
        Some(Self { e2b, cube, box2 })
    }

    /// A harness in the sandbox on `cube`.
    #[track_caller]
    fn shim_on_cube(&self) -> Harness {
        let socket = self.cube.path(&self.box2, "/tmp/cofferdam-1000/relay.sock");
        wait_until("the hub's socket is there", || socket.exists());
        connected(&format!("unix:{}", socket.display()), "tools")
    }

    /// Asserts that each control API got its own key only, and no `envd` got a key.
    #[track_caller]
    fn assert_keys_did_not_cross(&self) {
        for (platform, own, other) in
            [(&self.e2b.platform, API_KEY, OTHER_API_KEY), (&self.cube, OTHER_API_KEY, API_KEY)]
        {
            let heads = platform.heads();
            assert!(heads.iter().any(|head| head.side == Side::Envd), "no sandbox was reached");
            for head in heads {
                let text = format!("{} {:?}", head.line, head.headers);
                assert!(!text.contains(other), "a key crossed: {}", head.line);
                let key = head.headers.get("x-api-key").map(String::as_str);
                assert_eq!(key, (head.side == Side::Control).then_some(own), "{}", head.line);
            }
            for key in [own, other] {
                assert!(!platform.log().join("\n").contains(key), "a key is in the platform's log");
            }
        }
        [API_KEY, OTHER_API_KEY].iter().for_each(|key| self.e2b.world.assert_secret_not_leaked(key));
    }
}

#[test]
fn sandboxes_of_two_platforms_of_one_kind_are_attached_each_with_its_own_key() {
    let Some(setup) = TwoPlatforms::with(|builder, _| builder) else { return };
    let first = setup.e2b.attach(&["--name", "box1"]);
    let on_cube = ["e2b", &setup.box2, "--platform", "cube", "--grant", "dev", "--name", "box2"];
    let second = Attach::start(&setup.e2b.world, &on_cube);
    second.wait_until_attached(1);
    assert_eq!(setup.e2b.shim().call_text("echo", json!({"text": "one"})), "one");
    assert_eq!(setup.shim_on_cube().call_text("echo", json!({"text": "two"})), "two");
    let listed: Vec<_> = setup.e2b.list().iter().map(|status| status["platform"].clone()).collect();
    assert_eq!(listed, [json!("e2b"), json!("cube")]);
    // Without `--platform`, the platform that has the name of its kind is used, which does not know this sandbox.
    let mut unknown =
        Attach::start(&setup.e2b.world, &["e2b", &setup.cube.create(SandboxUser::Usual), "--grant", "dev"]);
    assert_eq!(unknown.wait().code(), Some(66), "{}", unknown.printed());
    first.stop();
    second.stop();
    setup.e2b.assert_nothing_left();
    wait_until("the hub on cube has ended", || setup.cube.processes(&setup.box2).is_empty());
    setup.assert_keys_did_not_cross();
}

#[test]
fn the_configuration_attaches_a_sandbox_of_the_second_platform() {
    let Some(setup) = TwoPlatforms::with(|builder, box2| builder.line(&attach_line("box2", "cube", box2)))
    else {
        return;
    };
    setup.e2b.wait_until_state("attached");
    assert_eq!(setup.shim_on_cube().call_text("echo", json!({"text": "configured"})), "configured");
    setup.e2b.attach(&["--name", "box1"]).stop();
    setup.assert_keys_did_not_cross();
}

/// A table `[platforms.second]` with this key, which leads to the same platform as `[platforms.e2b]`. Its address is spelled
/// differently.
fn second_table(platform: &E2bDouble, api_key: &str) -> String {
    format!(
        "platforms.second = {{ kind = 'e2b', api-key = '{{{api_key}.value}}', api-url = '{}/', sandbox-url = '{}', shim = '{}' }}",
        platform.api_url(),
        platform.sandbox_url(),
        shim_binary().display()
    )
}

#[test]
fn a_sandbox_is_attached_once_through_two_tables_of_one_platform() {
    // The second table has the key of the same account, or of another one.
    for key in ["e2b-key", "other-key"] {
        let Some(platform) = E2bDouble::start() else { return };
        let table = second_table(&platform, key);
        let setup = E2bSetup::on(platform, SandboxUser::Usual, |builder, _| {
            builder.secret_file("other-key", OTHER_API_KEY).line(&table)
        });
        let first = setup.attach(&["--name", "box1"]);
        let mut second = setup.start_attach(&["--platform", "second", "--name", "box2"]);
        assert_eq!(second.wait().code(), Some(69), "{key}: {}", second.printed());
        assert!(second.printed().contains("is attached as `box1` already"), "{key}: {}", second.printed());
        assert_eq!(first.times_attached(), 1, "the first attachment lost its pipe");
        assert_eq!(setup.shim().call_text("echo", json!({"text": "still"})), "still");
        first.stop();
        setup.assert_nothing_left();
    }
}

/// Two commands request the same sandbox at the same time, each through its own table.
#[test]
fn of_two_commands_at_once_one_attaches_the_sandbox_through_its_table() {
    let Some(platform) = E2bDouble::start() else { return };
    let table = second_table(&platform, "e2b-key");
    let setup = E2bSetup::on(platform, SandboxUser::Usual, |builder, _| builder.line(&table));
    let both = [("box1", "e2b"), ("box2", "second")]
        .map(|(name, table)| setup.start_attach(&["--name", name, "--platform", table]));
    let attached = assert_one_is_attached(both);
    assert_eq!(setup.shim().call_text("echo", json!({"text": "once"})), "once");
    attached.stop();
    setup.assert_nothing_left();
}

#[test]
fn an_attachment_through_another_table_is_possible_after_the_first_has_ended() {
    let Some(platform) = E2bDouble::start() else { return };
    let table = second_table(&platform, "e2b-key");
    let setup = E2bSetup::on(platform, SandboxUser::Usual, |builder, _| builder.line(&table));
    setup.attach(&["--name", "box1"]).stop();
    setup.attach(&["--name", "box1", "--platform", "second"]).stop();
    setup.assert_nothing_left();
}

/// A reload can give two tables the same address while each has an attachment of a sandbox with the same id.
#[test]
fn a_reload_that_makes_two_tables_one_platform_ends_the_second_attachment() {
    let Some(platform) = E2bDouble::start() else { return };
    // A platform that never responds, so that the second command keeps its attachment.
    let Some(silent) = E2bDouble::start() else { return };
    silent.plan(Side::Control, "/", Fault::Silence, usize::MAX);
    let table = second_table(&silent, "e2b-key");
    let mut setup = E2bSetup::on(platform, SandboxUser::Usual, |builder, _| builder.line(&table));
    let first = setup.attach(&["--name", "box1"]);
    let mut second = setup.start_attach(&["--platform", "second", "--name", "box2"]);
    wait_until("both are listed", || setup.list().len() == 2);
    let changed = builder(&setup.platform).line(&second_table(&setup.platform, "e2b-key"));
    setup.world.rewrite(|_| changed);
    setup.world.cofferdam_text(&["reload"]);
    assert_eq!(second.wait().code(), Some(69), "{}", second.printed());
    assert!(second.printed().contains("the new configuration"), "{}", second.printed());
    assert_eq!(first.times_attached(), 1, "the first attachment lost its pipe");
    assert_eq!(setup.shim().call_text("echo", json!({"text": "still"})), "still");
}
