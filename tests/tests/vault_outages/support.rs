//! Calls during an outage, and the steps that every outage test shares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cofferdam_tests::deadline::{Deadline, holds_within, wait_until};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::shared_session::assert_logged_only;
use cofferdam_tests::vault::{CANARY, leases, prepared, token_file_auth, world_with_vault_at};
use cofferdam_tests::vault_fault_proxy::VaultFaultProxy;
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A sidecar that uses Vault at this address, with a server of each kind that gets its credential at once, and
/// `late`, which needs one later.
pub(crate) fn three_servers_at(bao: &OpenBao, address: &str) -> Builder {
    three_servers(world_with_vault_at(address, &token_file_auth(bao)))
}

/// Starts such a world behind a proxy that can inject faults.
pub(crate) fn behind_proxy(bao: &OpenBao) -> (VaultFaultProxy, World) {
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let world = three_servers_at(bao, &proxy.address()).start();
    (proxy, world)
}

pub(crate) fn three_servers(builder: Builder) -> Builder {
    let web = HttpFixture::start(Behaviour::Json).url();
    builder
        .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("tools", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
        .server("web", Server::http(&web).header("authorization", "Bearer {github.token}").allow(&["*"]))
        .server("late", Server::fixture().file("key.pem", "{cert.private_key}").allow(&["*"]))
}

/// What the sandbox is told while a credential is not available, and what only the log has.
#[derive(Clone, Copy)]
pub(crate) struct Refusal<'a> {
    pub(crate) shown: &'a [&'a str],
    pub(crate) logged: &'a [&'a str],
}

/// A thread that makes one call after the other, each of which has to succeed.
pub(crate) struct Load {
    calls: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Harness>,
}

impl Load {
    pub(crate) fn start(mut harness: Harness, tool: &'static str) -> Self {
        let (calls, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&calls), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let answer = harness.call(tool, json!({"text": "still here"}));
                assert!(answer.get("result").is_some(), "a call under load failed: {answer}");
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(10));
            }
            harness
        });
        Self { calls, stop, thread }
    }

    /// Asserts that calls made after this point get responses.
    #[track_caller]
    pub(crate) fn assert_calls_continue(&self) {
        let before = self.calls.load(Ordering::SeqCst);
        wait_until("calls continue", || {
            self.thread.is_finished() || self.calls.load(Ordering::SeqCst) > before + 3
        });
        assert!(!self.thread.is_finished(), "the thread that makes calls has ended");
    }

    #[track_caller]
    pub(crate) fn end(self) -> Harness {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("every call under load worked")
    }
}

/// Causes an outage while `tools` and `web` are called. Asserts that both stay available, also in a process that is
/// started meanwhile with the last value; that `late` is refused as `refusal` says and with the time of the next
/// attempt; that the proxy, if there is one, counts no more requests than the backoff allows; and that after the
/// outage `late` starts and a changed secret is read.
#[track_caller]
pub(crate) fn survives(
    world: &World,
    bao: &mut OpenBao,
    proxy: Option<&VaultFaultProxy>,
    begin: impl FnOnce(&mut OpenBao),
    refusal: Refusal<'_>,
    end: impl FnOnce(&mut OpenBao),
) {
    let loads =
        [Load::start(world.connected("tools"), "echo"), Load::start(world.connected("web"), "headers")];
    loads.iter().for_each(Load::assert_calls_continue);
    let mut crashing = world.connected("tools");
    begin(bao);
    let before = proxy.map_or(0, |proxy| proxy.count(""));
    let a_day_later = Deadline::after(DAY);
    let mut late = world.shim("late");
    for _ in 0..60 {
        let text = refused(&mut late, refusal.shown);
        assert_logged_only(world, &text, refusal.logged);
    }
    // By then the secret is older than `refresh`, and could not be read again.
    holds_within(Duration::from_millis(1500), || false);
    crashing.send_call("crash", json!({}));
    wait_until("a new process runs with the last value", || {
        crashing.call("echo", json!({"text": "x"})).get("result").is_some()
    });
    loads.iter().for_each(Load::assert_calls_continue);
    if let Some(proxy) = proxy {
        let seconds = (DAY - a_day_later.left()).as_secs() as usize;
        let asked = proxy.count("") - before;
        assert!(asked <= 12 + 4 * seconds, "{asked} requests in {seconds} s: {:?}", proxy.seen());
    }
    end(bao);
    wait_until("the server `late` starts", || late.initialize().get("result").is_some());
    assert!(late.call("echo", json!({"text": "x"})).get("result").is_some());
    bao.write_secret("github", json!({"token": format!("{CANARY}-changed")}));
    wait_until("each session gets a changed secret", || {
        let replaced = world.audit().into_iter().filter(|record| record["event"] == "replacement");
        replaced.map(|record| record["link"].to_string()).collect::<BTreeSet<_>>().len() == 2
    });
    loads.iter().for_each(Load::assert_calls_continue);
    for mut harness in loads.map(Load::end).into_iter().chain([crashing, late]) {
        harness.close_stdin();
        harness.wait_for_exit();
    }
    wait_until("no lease is left", || leases(bao) == 0);
}

/// Like [`survives`], with a proxy in front of Vault; either can be made to fail.
#[track_caller]
pub(crate) fn survives_behind_proxy(
    bao: Option<OpenBao>,
    begin: impl FnOnce(&OpenBao, &VaultFaultProxy),
    refusal: Refusal<'_>,
    end: impl FnOnce(&OpenBao, &VaultFaultProxy),
) {
    let Some(mut bao) = prepared(bao) else { return };
    let (proxy, world) = behind_proxy(&bao);
    survives(&world, &mut bao, Some(&proxy), |bao| begin(bao, &proxy), refusal, |bao| end(bao, &proxy));
}

/// Asserts one refusal: in time, with its code, the server, these words and the time of the next attempt.
#[track_caller]
pub(crate) fn refused(harness: &mut Harness, words: &[&str]) -> String {
    let id = harness.send_initialize();
    // Ten seconds, and as much again for a loaded machine.
    let answer: Value = harness.answer_within(&id, Duration::from_secs(20)).expect("a refusal in time");
    let text = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    for word in ["credential_unavailable", "`late`", "tried again in "].iter().chain(words) {
        assert!(text.contains(word), "{word}: {text}");
    }
    text
}

/// The seconds until the next attempt, from a refusal's message.
#[track_caller]
pub(crate) fn next_try(refusal: &str) -> u64 {
    let (_, rest) = refusal.split_once("tried again in ").expect("the refusal names the next attempt");
    rest.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("it is a number of seconds")
}
