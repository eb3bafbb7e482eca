//! Tests of the servers of one link with scripted processes, on paused time.
//!
//! [`LinkFixture`] drives a `ServerSet` in the way the sidecar's message pipeline does: it parks messages that a
//! process is not ready for, tracks calls in flight, matches responses to calls, and advances replacements. It panics
//! where a call gets a second outcome, a response comes from a process other than the one that has the call, or a
//! process is sent two requests under one id.

mod messages;
mod replacement;
mod schedules;
mod scopes;
mod script_log;
mod starts;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_policy::Rules;
use cofferdam_process::LaunchError;
use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::files::FileStore;
use cofferdam_secrets::renewal::{RenewalClass, Terms};
use cofferdam_secrets::{Material, Origin, Secret, SecretSpec, ShortValues, SourceLimits, Template};
use relay_proto::code::Code;
use relay_proto::envelope::{self, Id, IdValue, Kind, Outcome, Strictness};
use relay_proto::name::Name;
use relay_proto::replay::{OwnResponse, Replay};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use self::messages::{answer_after_wait, answered_by, harness_id, json_rpc_id};
use self::script_log::{assert_ids_differ, call_id, ended, methods};
use crate::grant_limits::{GrantBounds, GrantLimits};
use crate::scripted::{Entry, Script};
use crate::spec::{Reload, Replace, Retry, Scope, ServerKind, ServerLimits, ServerSpec, StdioServer};
use crate::{
    DID_NOT_RUN, Event, HandshakeStart, HostResources, Launcher, Notice, Outbound, OutboundCow, ProcessId,
    Recipients, ReplacementOutcome, Role, SendResult, ServerSet, SlotKey, StartError, Target, WhenNotReady,
};

/// The outcome of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
enum CallResult {
    /// The result or error that the server sent.
    Answered(String),
    /// It did not run.
    Refused(Code, String),
    /// It may have run.
    Unknown(String),
}

/// The id and the method.
type Call = (u32, String);

struct LinkFixture {
    script: Script,
    servers: ServerSet,
    launcher: Launcher,
    /// Messages that wait for their slot, in order; with the call, if the message is a call.
    parked: Vec<(SlotKey, Option<Call>, Outbound)>,
    in_flight: BTreeMap<u32, (ProcessId, String)>,
    results: BTreeMap<u32, CallResult>,
    /// Notifications for the harness.
    notifications: Vec<String>,
    reports: Vec<(ReplacementOutcome, String)>,
    handed_over: Vec<ProcessId>,
    last_id: u32,
}

/// The configuration of the server under test.
#[derive(Clone)]
struct Setup {
    /// The template of the variable `KEY`; empty if there is none.
    env_template: &'static str,
    scope_tools: &'static [&'static str],
    /// The template of the variable `KEY` in the scope.
    scope_env_template: &'static str,
    /// The template of a credential file.
    file: Option<&'static str>,
    replace: Replace,
    reload: Option<Reload>,
}

/// A server with one secret, and a scope for the tools `write_*` with another.
const SERVER: Setup = Setup {
    env_template: "{key.value}",
    scope_tools: &["write_*"],
    scope_env_template: "{write.value}",
    file: None,
    replace: Replace::Hitless,
    reload: None,
};

impl Setup {
    fn spec(&self) -> Arc<ServerSpec> {
        let template = |text: &str| text.parse::<Template>().expect("a template");
        let entries = |name: &str, text: &str| {
            let entry = (!text.is_empty()).then(|| (name.to_owned(), template(text)));
            entry.into_iter().collect::<BTreeMap<_, _>>()
        };
        let files = entries("key", self.file.unwrap_or_default());
        let scope = (!self.scope_tools.is_empty()).then(|| {
            Arc::new(Scope {
                tools: self.scope_tools.iter().map(|tool| tool.parse().expect("a pattern")).collect(),
                env: entries("KEY", self.scope_env_template),
                files: files.clone(),
                headers: Vec::new(),
            })
        });
        Arc::new(ServerSpec {
            name: name("tools"),
            kind: ServerKind::Stdio(StdioServer {
                command: vec!["true".into()],
                argument_templates: Vec::new(),
                env: entries("KEY", self.env_template),
                files,
                directory: None,
                confinement: None,
            }),
            rules: Rules::default(),
            call_timeout: Duration::from_secs(240),
            retry: Retry::Never,
            replace: self.replace,
            reload: self.reload,
            scopes: scope.into_iter().collect(),
        })
    }
}

fn limits() -> ServerLimits {
    ServerLimits {
        message_bytes: 1024 * 1024,
        requests_in_flight: 1000,
        memory_wait: Duration::from_secs(1),
        http_connect_timeout: Duration::from_secs(10),
        start_timeout: Duration::from_secs(30),
        replace_drain: Duration::from_secs(300),
        stop_grace: Duration::from_secs(2),
        stderr_line_bytes: 4096,
        stderr_lines_per_second: 100,
        confined_directory_bytes: 1024 * 1024,
        confined_processes: 64,
        sources: SourceLimits { bytes: 1024, exec_timeout: Duration::from_secs(10) },
    }
}

/// The error of a start that fails.
fn launch_error() -> StartError {
    let source = io::Error::from(io::ErrorKind::NotFound);
    StartError::Launch(LaunchError::Execute { program: "true".into(), source })
}

/// The files do not exist: the tests put the secrets that they use into the session.
fn secret_specs() -> BTreeMap<Name, Arc<SecretSpec>> {
    let spec = |secret: &str| SecretSpec {
        name: name(secret),
        origin: Origin::File(format!("/nowhere/{secret}").into()),
        public: Vec::new(),
        short: ShortValues::Refuse,
    };
    ["key", "write", "other"].into_iter().map(|secret| (name(secret), Arc::new(spec(secret)))).collect()
}

fn name(name: &str) -> Name {
    name.parse().expect("a name")
}

fn material(value: &str, lifetime: Option<Duration>) -> Material {
    let value = Secret::new(Zeroizing::new(format!("secret-{value}").into_bytes()));
    let material = Material::without_lease([("value".to_owned(), value)].into());
    material.extend(&Terms {
        class: RenewalClass::OwnExpiry,
        requested_at: Instant::now(),
        lifetime,
        token_expiry: None,
    });
    material
}

impl LinkFixture {
    /// [`SERVER`] with the default script; the session holds both secrets.
    fn new() -> Self {
        Self::with(Script::default(), &SERVER)
    }

    fn with(script: Script, setup: &Setup) -> Self {
        let credentials = Arc::new(Credentials::new(Arc::default(), None, TaskTracker::new()));
        credentials.hold(&name("key"), material("key-1", None));
        credentials.hold(&name("write"), material("write-1", None));
        let bounds = GrantBounds { processes: 64, links_per_minute: 600, starts_per_minute: 120 };
        let host = HostResources {
            sandbox_limits: Arc::new(GrantLimits::new(bounds))
                .of_sandbox(cofferdam_base::LimitOwner::SharedSocketUser(None)),
            memory: cofferdam_base::memory::MemoryAccount::new(usize::MAX),
            files: FileStore::open().expect("a directory for files"),
            tasks: TaskTracker::new(),
            // The processes are simulated.
            working_directories: crate::WorkingDirectories::in_state(Path::new("/nonexistent")),
            stderr: crate::stderr_files::StderrSink {
                files: crate::stderr_files::StderrFiles::in_state(Path::new("/nonexistent"), 0),
                session: "s1".into(),
            },
            network_events: Arc::new(crate::network_events::NoEvents),
            path_observer: None,
        };
        let specs = Arc::new(secret_specs());
        let launcher = Launcher::new(setup.spec(), limits(), specs, credentials, host, "l1".into());
        Self {
            launcher: launcher.scripted(Some(script.clone())),
            script,
            servers: ServerSet::default(),
            parked: Vec::new(),
            in_flight: BTreeMap::new(),
            results: BTreeMap::new(),
            notifications: Vec::new(),
            reports: Vec::new(),
            handed_over: Vec::new(),
            last_id: 0,
        }
    }

    /// The configuration is reloaded with another server.
    fn reconfigure(&mut self, setup: &Setup) {
        self.launcher.secrets.server = setup.spec();
    }

    /// A secret gets a new value, which expires after `lifetime`, if that is given.
    fn change(&mut self, secret: &str, value: &str, lifetime: Option<Duration>) {
        self.launcher.secrets.credentials.hold(&name(secret), material(value, lifetime));
    }

    /// Calls a tool; [`answer_after_wait`] delays the response by `wait`.
    fn call(&mut self, tool: &str, wait: Duration) -> u32 {
        let params = format!(r#"{{"name":"{tool}","wait":{}}}"#, wait.as_millis());
        self.request("tools/call", &params, Some(tool))
    }

    /// A request of the harness.
    fn request(&mut self, method: &str, params: &str, tool: Option<&str>) -> u32 {
        self.last_id += 1;
        let id = self.last_id;
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let bytes = message.into_bytes();
        let envelope = envelope::read(&bytes, Strictness::Envelope).expect("a message");
        let Kind::Request { id: request_id, .. } = &envelope.kind else { panic!("not a request") };
        let server = Arc::clone(self.launcher.server());
        let scope = tool.and_then(|tool| server.scope(tool));
        let slot = self.servers.slot(&server, scope);
        self.servers.replay_mut().record_request(&bytes, request_id, method, envelope.body.clone());
        for (slot, message) in self.servers.copy_setting_to_others(&bytes, request_id, method) {
            self.parked.push((slot, None, message));
        }
        let make_owned =
            || Outbound::request(bytes.clone(), json_rpc_id(id), method, None).in_scope(scope.cloned());
        let outbound = OutboundCow::Request { bytes: &bytes, make_owned: &make_owned };
        self.dispatch(slot, Some((id, method.to_owned())), outbound);
        // Every second call is written at once, the others by `ServerSet::next`.
        if id.is_multiple_of(2) {
            self.servers.flush();
        }
        id
    }

    fn dispatch(&mut self, slot: SlotKey, call: Option<Call>, message: OutboundCow<'_>) {
        let launcher = self.launcher.clone();
        let start = || launcher.clone();
        match (self.servers.send(Target::Slot(slot), message, WhenNotReady::Start(&start)), call) {
            (SendResult::Sent { on, .. }, Some((id, method))) => {
                self.in_flight.insert(id, (on, method));
            }
            (SendResult::NotReady(message), call) => self.parked.push((slot, call, message)),
            (SendResult::Refused { code, why }, Some((id, _))) => {
                self.record_outcome(id, CallResult::Refused(code, why));
            }
            (SendResult::NoProcess, Some((id, _))) => panic!("no process was started for call {id}"),
            (_, None) => {}
        }
    }

    /// Sends the messages that wait for a slot, in order.
    fn send_parked(&mut self, slot: SlotKey) {
        let parked: Vec<_> = self.parked.extract_if(.., |(other, ..)| *other == slot).collect();
        for (slot, call, message) in parked {
            self.dispatch(slot, call, OutboundCow::Owned(message));
        }
    }

    /// Begins the handshake of a started process, or uses it at once if it needs none.
    fn begin_handshake(&mut self, slot: SlotKey) {
        let mut waiting = self.parked.iter().filter(|(other, ..)| *other == slot);
        let first = waiting.find_map(|(.., message)| message.request_method()).map(ToOwned::to_owned);
        match self.servers.begin_handshake(slot, first.as_deref()) {
            HandshakeStart::Failed { process, code, why } => {
                self.on_gone(slot, process, Role::Current, code, &why)
            }
            HandshakeStart::Ready => self.send_parked(slot),
            HandshakeStart::NotNeeded | HandshakeStart::Replaying(_) => {}
        }
    }

    fn on_gone(&mut self, slot: SlotKey, process: ProcessId, was: Role, code: Code, why: &str) {
        if was == Role::Current {
            self.refuse_parked(slot, code, why);
        }
        self.fail_calls_on(process, why);
    }

    fn refuse_parked(&mut self, slot: SlotKey, code: Code, why: &str) {
        let parked: Vec<_> = self.parked.extract_if(.., |(other, ..)| *other == slot).collect();
        for (_, call, _) in parked {
            if let Some((id, _)) = call {
                self.record_outcome(id, CallResult::Refused(code, format!("{DID_NOT_RUN}{why}")));
            }
        }
    }

    /// The harness's handshake, including the response and `notifications/initialized`.
    async fn make_handshake(&mut self) {
        let id = self.request("initialize", r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#, None);
        self.wait_for_outcome(id).await;
        let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        self.notify("notifications/initialized", initialized);
    }

    fn notify(&mut self, method: &str, message: &[u8]) {
        self.servers.replay_mut().record_notification(message, method);
        let message = Outbound::notification(message.to_vec(), method);
        for slot in self.servers.notify(&message, Recipients::Current) {
            self.parked.push((slot, None, message.clone()));
        }
    }

    /// Runs until this call has an outcome.
    async fn wait_for_outcome(&mut self, id: u32) -> CallResult {
        let limit = Instant::now() + Duration::from_secs(3600);
        while !self.results.contains_key(&id) {
            assert!(self.iterate(limit).await, "call {id} has no outcome after an hour");
        }
        self.results[&id].clone()
    }

    /// Calls a tool and runs until the call has an outcome.
    async fn call_and_wait(&mut self, tool: &str) -> CallResult {
        let id = self.call(tool, Duration::ZERO);
        self.wait_for_outcome(id).await
    }

    /// Runs for this long.
    async fn run_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.iterate(until).await {}
    }

    /// Runs until the condition holds, for an hour at most.
    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let limit = Instant::now() + Duration::from_secs(3600);
        while !condition(self) {
            assert!(Instant::now() < limit, "not within an hour: {what}; {:?}", self.script.log());
            // Background tasks may fulfil the condition without an event.
            self.iterate(Instant::now() + Duration::from_millis(100)).await;
        }
    }

    /// One iteration of the link's event loop. Returns false if there was no event before `until`.
    async fn iterate(&mut self, until: Instant) -> bool {
        let Ok((slot, from, event)) = timeout_at(until, self.servers.next()).await else { return false };
        self.on_event(slot, from, event);
        while let Some((from, event)) = self.servers.buffered(slot) {
            self.on_event(slot, from, event);
        }
        self.advance_replacements();
        true
    }

    fn advance_replacements(&mut self) {
        if !self.servers.has_replacement_work() {
            return;
        }
        let Self { servers, in_flight, launcher, .. } = self;
        let is_busy = |process| in_flight.values().any(|(on, _)| *on == process);
        for (slot, notice) in servers.advance_replacements(&is_busy, &|| Some(launcher.clone())) {
            match notice {
                Notice::CutOff { process, why } => self.fail_calls_on(process, &why),
                Notice::HandedOver(process) => {
                    self.handed_over.push(process);
                    self.send_parked(slot);
                }
                Notice::Ended(process) => {
                    assert!(!self.is_busy(process), "ended while a call waits for it");
                }
                Notice::Report(outcome, detail) => self.reports.push((outcome, detail)),
            }
        }
    }

    fn on_event(&mut self, slot: SlotKey, from: ProcessId, event: Event) {
        match event {
            Event::Message(message) => self.on_message(slot, from, &message),
            Event::ReplacementDue | Event::SentWith { .. } => {}
            Event::Failed { id, code, why } => {
                if let Some(id) = harness_id(&id) {
                    self.take_call(from, id);
                    self.record_outcome(id, CallResult::Refused(code, why));
                }
            }
            Event::Gone { was, code, why } => self.on_gone(slot, from, was, code, &why),
            Event::NotStarted { code, why, .. } => self.refuse_parked(slot, code, &why),
            Event::Oversize { id } => {
                let id = id.as_deref().and_then(envelope::id_value).as_ref().and_then(harness_id);
                if let Some(id) = id {
                    self.take_call(from, id);
                    self.record_outcome(id, CallResult::Answered("too large".into()));
                }
            }
            Event::Ready => self.send_parked(slot),
            Event::Started | Event::SessionLost => self.begin_handshake(slot),
            Event::Returned(_) => panic!("only HTTP servers return requests"),
        }
    }

    fn on_message(&mut self, slot: SlotKey, from: ProcessId, message: &[u8]) {
        let envelope = envelope::read(message, Strictness::Envelope).expect("a message");
        let (id, outcome) = match envelope.kind {
            Kind::Response { id: Some(id), outcome } => (id, outcome),
            Kind::Notification { method } => return self.notifications.push(method.into_owned()),
            Kind::Request { .. } | Kind::Response { id: None, .. } => return,
        };
        let value: IdValue = Id::value(&id);
        // The response to a request that the sidecar itself sent, such as a replayed handshake.
        if self.servers.replay().is_own(&value) {
            let response = self.servers.own_response(slot, &value, outcome, message, envelope.body);
            if response == OwnResponse::ToolsChanged {
                self.notifications.push("notifications/tools/list_changed".into());
            }
            return;
        }
        let id = harness_id(&value).expect("an id of the harness");
        let method = self.take_call(from, id);
        if Replay::is_recorded(&method) {
            self.servers.record_response(from, &value, outcome, message, envelope.body.clone());
            if method == "initialize" && outcome == Outcome::Result {
                // Their processes received the previous handshake.
                self.servers.retire_scopes();
            }
        }
        let result = envelope.body.map(|body| String::from_utf8_lossy(&message[body]).into_owned());
        self.record_outcome(id, CallResult::Answered(result.unwrap_or_default()));
    }

    fn take_call(&mut self, from: ProcessId, id: u32) -> String {
        let (on, method) = self
            .in_flight
            .remove(&id)
            .unwrap_or_else(|| panic!("call {id} has two outcomes: {:?}", self.results));
        assert_eq!(on, from, "call {id} is answered by a process that does not have it");
        method
    }

    fn fail_calls_on(&mut self, process: ProcessId, why: &str) {
        for id in self.take_calls_on(process) {
            self.record_outcome(id, CallResult::Unknown(why.into()));
        }
    }

    fn take_calls_on(&mut self, process: ProcessId) -> Vec<u32> {
        self.in_flight.extract_if(.., |_, (on, _)| *on == process).map(|(id, _)| id).collect()
    }

    fn is_busy(&self, process: ProcessId) -> bool {
        self.in_flight.values().any(|(on, _)| *on == process)
    }

    fn record_outcome(&mut self, id: u32, result: CallResult) {
        self.servers.replay_mut().remove_pending(&json_rpc_id(id));
        assert_eq!(self.results.insert(id, result), None, "call {id} has two outcomes");
    }

    /// The ids of the tool calls that a process received, in order.
    fn calls_received_by(&self, process: usize) -> Vec<u32> {
        self.script.received_by(process).iter().filter_map(call_id).collect()
    }

    /// Ends all processes, and waits for the background tasks.
    async fn finish(self) -> (Script, BTreeMap<u32, CallResult>) {
        let Self { servers, script, launcher, results, .. } = self;
        servers.end(Duration::from_secs(2)).await;
        let tasks = launcher.tasks();
        tasks.close();
        tasks.wait().await;
        assert_eq!(script.alive(), [0; 0], "a process outlives its link: {:?}", script.log());
        assert_ids_differ(&script);
        (script, results)
    }
}
