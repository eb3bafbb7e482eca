//! Model test: a link between a scripted shim and a scripted server, in paused time, over random schedules.
//!
//! A schedule is a random sequence of events: calls, reused ids, cancellations, malformed messages, lost connections
//! that are resumed, links that end and whose requests are resent on a new one, servers that crash, do not start, or
//! never respond. Each schedule checks:
//! - every request has exactly one response, or none once it was cancelled;
//! - every call ran at most once, or twice where `retry` is set and its tool only reads; a denied one never ran;
//! - before a call reached the server, its decision was in the audit (checked by the server, see [`server`]);
//! - every call that was allowed has an outcome in the audit for each of its decisions;
//! - no message to the harness holds the secret;
//! - an id has exactly one status at a time (checked by the link after each turn, see `Pipeline::assert_one_status`).

mod calls;
mod cases;
mod large_messages;
mod outcomes;
mod replacement;
mod retries;
mod server;
mod shim;
mod slow_disk;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_servers::StartError;
use cofferdam_servers::grant_limits::LimitReached;
use cofferdam_servers::scripted::{Reading, ReceivedMessage, Script, Start};
use relay_proto::frame::{MaybeRan, Origin};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::server::{SECRET, ServerLog, TOOLS};
use self::shim::{FrameContent, Shim};
use super::command::{Command, EndReason, Ended};
use super::{FirstConnection, Link};
use crate::session::Session;
use crate::session::fixture::Fixture;
use crate::session::principal::Principal;

/// The link under test, with its shim and server.
struct ModelLink {
    /// The sidecar, which may have links of other sandboxes too.
    fixture: Rc<Fixture>,
    session: Arc<Session>,
    script: Script,
    log: ServerLog,
    retry: Retry,
    link: JoinHandle<EndReason>,
    commands: mpsc::Sender<Command>,
    links: usize,
    shim: Shim,
    /// All requests of the harness, by id.
    requests: BTreeMap<u64, Request>,
    calls: u64,
    /// Messages that were sent without a readable id; each must get a response without an id.
    malformed: u64,
    responses_without_id: u64,
    /// A link ended, and malformed messages or their responses may have been lost with it.
    may_lack_responses_without_id: bool,
    /// Whether the harness responds to requests of the server.
    answers_server: bool,
    /// The ids of responses and the methods of notifications, as they arrived.
    arrived: Vec<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Retry {
    Never,
    WhereSafe,
}

/// All requests that were made under one id.
struct Request {
    /// The number of each call, with its tool.
    calls: Vec<(u64, &'static str)>,
    message: String,
    seq: u64,
    maybe_ran: MaybeRan,
    responses: usize,
    /// The last response to the id.
    last_response: String,
    cancelled: Cancelled,
    /// The id was used twice before its link ended: the shim cannot determine which of the two requests was refused.
    is_ambiguous: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cancelled {
    No,
    /// The link may have sent the response before it read the cancellation.
    Maybe,
    Yes,
}

/// The shim sends a Ping at this interval.
const HEARTBEAT: Duration = Duration::from_secs(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

impl ModelLink {
    fn new(retry: Retry) -> Self {
        Self::with_refusing_list(retry, "ask")
    }

    /// A link whose rules have the tools with the prefix `deny_` in this list.
    fn with_refusing_list(retry: Retry, list: &str) -> Self {
        Self::in_fixture(Fixture::with_server("", &server_configuration(retry, list)), retry)
    }

    fn in_fixture(fixture: Fixture, retry: Retry) -> Self {
        std::fs::write(fixture.path("token"), SECRET).unwrap();
        let log = ServerLog::default();
        let script = server::script(log.clone(), fixture.path("state/audit"));
        assert!(fixture.context.script.set(script.clone()).is_ok());
        Self::of_user(Rc::new(fixture), script, log, retry, None)
    }

    /// A link of another user's sandbox in the same sidecar. The numbers of its calls are others.
    fn of_another_user(&self, user: u32) -> Self {
        let (fixture, script, log) = (Rc::clone(&self.fixture), self.script.clone(), self.log.clone());
        Self::of_user(fixture, script, log, self.retry, Some(user))
    }

    fn of_user(
        fixture: Rc<Fixture>,
        script: Script,
        log: ServerLog,
        retry: Retry,
        user: Option<u32>,
    ) -> Self {
        let principal = Principal::anonymous("dev".parse().unwrap(), user);
        let session = Arc::new(Session::new(&fixture.context, &principal));
        let (link, commands, shim) = open(&fixture, &session, 1);
        Self {
            fixture,
            session,
            script,
            log,
            retry,
            link,
            commands,
            links: 1,
            shim,
            requests: BTreeMap::new(),
            calls: 1000 * u64::from(user.unwrap_or_default()),
            malformed: 0,
            responses_without_id: 0,
            may_lack_responses_without_id: false,
            answers_server: true,
            arrived: Vec::new(),
        }
    }

    /// One random event.
    async fn step(&mut self, action: u8, argument: u8) {
        let short = Duration::from_millis(u64::from(argument));
        match action % 20 {
            0..=6 => self.call(argument, MaybeRan::No),
            7 => self.reuse_id(argument),
            8 => self.cancel(argument).await,
            9 => self.send_malformed(),
            10 => self.notify(),
            11 => self.shim.disconnect(),
            12 => self.connect().await,
            13 => self.end_link().await,
            14 => self.script.queue_start(start(argument)),
            15 => self.crash(),
            16 => return self.pass(Duration::from_secs(u64::from(argument) / 8)).await,
            _ => return self.pass(short).await,
        }
        if argument.is_multiple_of(2) {
            self.pass(Duration::ZERO).await;
        }
    }

    /// Makes a call under a new id.
    fn call(&mut self, argument: u8, maybe_ran: MaybeRan) {
        let id = self.requests.len() as u64 + 1;
        let (call, message) = self.message(id, argument);
        self.send(id, call, message, maybe_ran);
    }

    fn send(&mut self, id: u64, call: (u64, &'static str), message: String, maybe_ran: MaybeRan) {
        let seq = self.shim.push(message.as_bytes(), maybe_ran.clone());
        let request = Request {
            calls: vec![call],
            message,
            seq,
            maybe_ran,
            responses: 0,
            last_response: String::new(),
            cancelled: Cancelled::No,
            is_ambiguous: false,
        };
        self.requests.insert(id, request);
    }

    /// Sends a request under a new id and returns the id. `CALL` in `params` stands for the number of the call.
    fn request(&mut self, method: &str, params: &str) -> u64 {
        let id = self.requests.len() as u64 + 1;
        self.calls += 1;
        let call = self.calls;
        let params = params.replace("CALL", &call.to_string());
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.send(id, (call, "other"), message, MaybeRan::No);
        id
    }

    /// Makes another call under an id that is or was in use.
    fn reuse_id(&mut self, argument: u8) {
        let id = u64::from(argument) % (self.requests.len() as u64 + 1);
        let (call, message) = self.message(id, argument);
        if let Some(request) = self.requests.get_mut(&id).filter(|request| request.cancelled == Cancelled::No)
        {
            request.calls.push(call);
            request.message = message.clone();
            request.seq = self.shim.push(message.as_bytes(), MaybeRan::No);
        }
    }

    fn message(&mut self, id: u64, argument: u8) -> ((u64, &'static str), String) {
        self.calls += 1;
        let (call, tool) = (self.calls, TOOLS[usize::from(argument) % TOOLS.len()]);
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"call":{call}}}}}}}"#
        );
        ((call, tool), message)
    }

    async fn cancel(&mut self, argument: u8) {
        // Lets responses arrive that were sent already.
        self.pass(Duration::ZERO).await;
        let id = u64::from(argument) % (self.requests.len() as u64 + 1);
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.responses > 0 || request.calls.len() > 1 {
            return;
        }
        request.cancelled = match self.shim.has_sent_everything() {
            true => Cancelled::Yes,
            false => Cancelled::Maybe,
        };
        let cancelled = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        );
        self.shim.push(cancelled.as_bytes(), MaybeRan::No);
        self.pass(Duration::ZERO).await;
    }

    fn send_malformed(&mut self) {
        self.malformed += 1;
        self.shim.push(br#"{"jsonrpc":"2.0","method":7}"#, MaybeRan::No);
    }

    /// Both sides send a notification; the server's repeats the secret.
    fn notify(&mut self) {
        if let Some(process) = self.script.alive().last() {
            let notification = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{SECRET}"}}}}"#
            );
            self.script.write(*process, &notification);
        }
        self.shim.push(br#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#, MaybeRan::No);
    }

    /// Resumes the link, or opens a new one if it has ended.
    async fn connect(&mut self) {
        if self.shim.is_established() {
            return;
        }
        match self.shim.resume() {
            Some(resume) if !self.link.is_finished() => {
                let connection = Box::new(self.shim.connect());
                // If the link ends meanwhile, the next attempt notices.
                let _ = self.commands.send(Command::Attach { connection, resume }).await;
            }
            Some(_) => self.reopen(),
            // The connection was lost before the first Welcome: there is nothing to resume.
            None if !self.shim.is_connected() => self.reopen(),
            None => {}
        }
    }

    async fn end_link(&mut self) {
        let (ended, has_ended) = oneshot::channel();
        // The link may have ended by itself.
        let _ = self.commands.send(Command::End { reason: EndReason::Killed, ended }).await;
        let _ = has_ended.await;
        self.pass(Duration::from_millis(1)).await;
        self.reopen();
    }

    /// Ends the link, which must be running, and returns how its end went.
    async fn end(&mut self) -> Ended {
        let (ended, has_ended) = oneshot::channel();
        let end = Command::End { reason: EndReason::Killed, ended };
        assert!(self.commands.send(end).await.is_ok());
        has_ended.await.expect("the link ends")
    }

    /// Opens a new link, on which all requests without a response are sent again.
    fn reopen(&mut self) {
        self.links += 1;
        let (before, handed_out) = (self.shim.link.clone(), self.shim.handed_out());
        (self.link, self.commands, self.shim) = open(&self.fixture, &self.session, self.links);
        self.may_lack_responses_without_id = true;
        for request in self.requests.values_mut() {
            request.is_ambiguous |= request.calls.len() > 1;
            if request.responses > 0 || request.cancelled != Cancelled::No || request.is_ambiguous {
                continue;
            }
            if request.seq <= handed_out {
                match request.maybe_ran {
                    MaybeRan::No => {
                        let origin = Origin { link: before.clone(), seq: request.seq };
                        request.maybe_ran = MaybeRan::Yes(origin);
                    }
                    // A shim does not send a request a third time: it answers `outcome_unknown` itself.
                    MaybeRan::Yes(_) => {
                        request.responses += 1;
                        continue;
                    }
                }
            }
            request.seq = self.shim.push(request.message.as_bytes(), request.maybe_ran.clone());
        }
    }

    fn crash(&mut self) {
        if let Some(process) = self.script.alive().last() {
            self.script.exit(*process);
        }
    }

    /// Lets time pass while both sides exchange frames.
    async fn pass(&mut self, time: Duration) {
        // Long enough to handle everything that is due now, even if `time` is zero.
        let until = Instant::now() + time.max(Duration::from_micros(100));
        let mut heartbeat = Instant::now() + HEARTBEAT;
        loop {
            self.shim.send().await;
            match timeout_at(until.min(heartbeat), self.shim.next()).await {
                Ok(Some(frame)) => match self.shim.handle(frame).await {
                    FrameContent::Message(message) => self.on_message(&message),
                    FrameContent::Goodbye => self.shim.disconnect(),
                    FrameContent::Nothing => {}
                },
                Ok(None) => self.shim.disconnect(),
                Err(_) if heartbeat < until => {
                    heartbeat += HEARTBEAT;
                    self.shim.ping().await;
                }
                Err(_) => return sleep_until(until).await,
            }
        }
    }

    fn on_message(&mut self, bytes: &[u8]) {
        let text = std::str::from_utf8(bytes).expect("JSON is text");
        assert!(!text.contains(SECRET), "a message to the harness contains the secret: {text}");
        let message: serde_json::Value =
            serde_json::from_str(text).expect("messages to the harness are JSON");
        self.arrived.push(message["method"].as_str().map_or_else(|| message["id"].to_string(), Into::into));
        match (&message["id"], &message["method"]) {
            (id, serde_json::Value::String(_)) if !id.is_null() => {
                if self.answers_server {
                    let response = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#);
                    self.shim.push(response.as_bytes(), MaybeRan::No);
                }
            }
            (_, serde_json::Value::String(_)) => {}
            (serde_json::Value::Null, _) => self.responses_without_id += 1,
            (id, _) => {
                let id = id.as_u64().expect("an id that the harness chose");
                let request = self.requests.get_mut(&id).expect("a response to a request");
                request.responses += 1;
                request.last_response = text.into();
                assert_ne!(request.cancelled, Cancelled::Yes, "a cancelled request is answered: {text}");
                assert!(request.responses <= request.calls.len(), "{id} is answered again: {text}");
            }
        }
    }

    /// Lets the link work without further random events, and checks that every request is answered.
    async fn settle(&mut self) {
        for _ in 0..20 {
            self.connect().await;
            self.pass(CALL_TIMEOUT).await;
        }
        assert!(self.shim.is_established());
        let mut refused_without_id = 0;
        for (id, request) in &self.requests {
            for (call, tool) in &request.calls {
                self.check_runs(*call, tool);
            }
            if request.cancelled == Cancelled::No && !request.is_ambiguous {
                assert!(request.responses > 0, "{id} has no response: {}", request.message);
                refused_without_id += (request.calls.len() - request.responses) as u64;
            }
        }
        if !self.may_lack_responses_without_id {
            assert_eq!(
                self.responses_without_id,
                self.malformed + refused_without_id,
                "the number of responses without an id"
            );
        }
        assert_eq!(self.log.violations(), Vec::<String>::new());
        assert_eq!(outcomes::missing(&self.fixture.audit()), Vec::<String>::new());
    }

    fn check_runs(&self, call: u64, tool: &str) {
        let max_runs = match tool {
            _ if tool.starts_with("deny_") => 0,
            _ if tool.starts_with("safe_") && self.retry == Retry::WhereSafe => 2,
            _ => 1,
        };
        let runs = self.log.runs(call);
        assert!(runs <= max_runs, "call {call} of `{tool}` ran {runs} times");
    }
}

fn open(
    fixture: &Fixture,
    session: &Arc<Session>,
    number: usize,
) -> (JoinHandle<EndReason>, mpsc::Sender<Command>, Shim) {
    let id = format!("l-{number}");
    let (shim, connection) = Shim::new(&id);
    let (commands, receiver) = mpsc::channel(4);
    let first = FirstConnection { connection, offer: None };
    let resources = fixture.link_resources();
    let link =
        Link::new(Arc::clone(session), id.into(), "tools".parse().unwrap(), first, receiver, resources);
    (fixture.context.tasks.spawn(link.run()), commands, shim)
}

/// The configuration of the server, whose tools with the prefix `deny_` are in this list of its rules. With `deny`, the
/// sidecar lists the tools before the first call, which most fixed schedules do not expect.
fn server_configuration(retry: Retry, list: &str) -> String {
    format!(
        "servers.tools.retry = {}\nservers.tools.call-timeout = \"{}s\"\nservers.tools.env.TOKEN = \"{{token.value}}\"\n\
         servers.tools.tools.{list} = [\"deny_*\"]\nsecrets.token.file = \"@/token\"",
        retry == Retry::WhereSafe,
        CALL_TIMEOUT.as_secs(),
    )
}

/// The outcome of a later start of the server.
fn start(argument: u8) -> Start {
    let delay = Duration::from_millis(u64::from(argument) * 10);
    match argument % 4 {
        0 => Start::FailAfter(delay, StartError::LimitReached(LimitReached::Processes)),
        1 => Start::Never,
        _ => Start::RunAfter(delay),
    }
}

/// The number of random schedules.
const SCHEDULES: u64 = 60;

#[tokio::test(start_paused = true)]
async fn every_schedule_answers_each_request_once_and_runs_it_at_most_once() {
    for seed in 0..SCHEDULES {
        run_schedule(seed).await;
    }
}

async fn run_schedule(seed: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let retry = if seed.is_multiple_of(2) { Retry::Never } else { Retry::WhereSafe };
    let list = if seed % 4 < 2 { "ask" } else { "deny" };
    let mut model = ModelLink::with_refusing_list(retry, list);
    let steps = usize::from(next()) / 2 + 10;
    eprintln!("seed {seed}: {steps} steps");
    for _ in 0..steps {
        model.step(next(), next()).await;
    }
    model.settle().await;
}
