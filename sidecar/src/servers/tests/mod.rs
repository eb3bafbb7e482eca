//! The servers of one link with scripted processes, on paused time.
//!
//! [`World`] does what a link does with its servers, and no more: it keeps what is in flight, gives each answer to the
//! call that waits for it, attends to replacements and ends processes that were given up. It panics where a call gets
//! a second outcome, or an answer comes from a process other than the one that has the call.

mod replacement;
mod schedules;
mod scopes;
mod starts;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::envelope::{self, Id, IdValue, Kind, Outcome, Strictness};
use relay_proto::memory::{Heard, Memory};
use relay_proto::name::Name;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use super::gate::Gate;
use super::instance::{Event, Note, Passed};
use super::renewal::Told;
use super::scoped::{Process, Servers};
use super::scripted::{Entry, Script, Taken};
use super::start::Starter;
use crate::config::{Config, check_text};
use crate::inject::credentials::Credentials;
use crate::inject::files::FileStore;
use crate::secrets::renewal::{Class, Terms};
use crate::secrets::{Material, Secret};
use crate::upstream::outbound::Outbound;

/// What became of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Result {
    /// By the process with this number, or with an error of the server's.
    Answered(String),
    /// It did not run.
    Refused(Code, String),
    /// It may have run.
    Unknown(String),
}

struct World {
    script: Script,
    servers: Servers,
    starter: Starter,
    in_flight: BTreeMap<u32, (Process, String)>,
    results: BTreeMap<u32, Result>,
    /// What was said to the harness of its own accord.
    notifications: Vec<String>,
    told: Vec<(Told, String)>,
    handed_over: Vec<Process>,
    last_id: u32,
}

/// A server with one secret, and a scope for the tools `write_*` with another.
const SERVER: &str = "env = { KEY = '{key.value}' }\n\
    [[servers.tools.scopes]]\ntools = ['write_*']\nenv = { KEY = '{write.value}' }\n";

fn configuration(server: &str) -> Arc<Config> {
    let text = format!(
        "state-dir = '/nowhere/state'\nadmin.socket = '/nowhere/admin.sock'\n\
         secrets.key.file = '/nowhere/key'\nsecrets.write.file = '/nowhere/write'\n\
         grants.dev.servers = ['tools']\n\
         [relay]\nunix = '/nowhere/relay/relay.sock'\nunix-grant = 'dev'\n\
         [servers.tools]\ncommand = ['true']\n{server}"
    );
    Arc::new(
        check_text(&text, Path::new("/nowhere/cofferdam.toml"))
            .unwrap_or_else(|problems| panic!("{problems}")),
    )
}

fn name(name: &str) -> Name {
    name.parse().expect("a name")
}

fn material(value: &str, lifetime: Option<Duration>) -> Material {
    let value = Secret::new(Zeroizing::new(format!("secret-{value}").into_bytes()));
    let material = Material::of([("value".to_owned(), value)].into());
    material.extend(&Terms { class: Class::OwnEnd, asked_at: Instant::now(), life: lifetime, bound: None });
    material
}

impl World {
    /// The usual server with the usual script, both secrets held.
    fn new() -> Self {
        Self::with(Script::default(), SERVER)
    }

    fn with(script: Script, server: &str) -> Self {
        let config = configuration(server);
        let credentials = Arc::new(Credentials::new(Arc::default(), None, TaskTracker::new()));
        credentials.hold(&name("key"), material("key-1", None));
        credentials.hold(&name("write"), material("write-1", None));
        let starter = Starter {
            gate: Arc::new(Gate::new((&config.limits).into())),
            server: Arc::clone(&config.servers[&name("tools")]),
            secrets: Arc::clone(&config.secrets),
            limits: (&config.limits).into(),
            scope: None,
            credentials,
            files: FileStore::open().expect("a place for files"),
            tasks: TaskTracker::new(),
            link: "l1".into(),
            script: Some(script.clone()),
        };
        Self {
            script,
            servers: Servers::default(),
            starter,
            in_flight: BTreeMap::new(),
            results: BTreeMap::new(),
            notifications: Vec::new(),
            told: Vec::new(),
            handed_over: Vec::new(),
            last_id: 0,
        }
    }

    /// The configuration is reloaded with another server.
    fn reconfigure(&mut self, server: &str) {
        let config = configuration(server);
        self.starter.server = Arc::clone(&config.servers[&name("tools")]);
        self.starter.secrets = Arc::clone(&config.secrets);
    }

    /// A secret gets other values, which end after some time or never.
    fn change(&mut self, secret: &str, value: &str, lifetime: Option<Duration>) {
        self.starter.credentials.hold(&name(secret), material(value, lifetime));
    }

    /// Calls a tool; the server is told to wait so long with its answer.
    fn call(&mut self, tool: &str, wait: Duration) -> u32 {
        let params = format!(r#"{{"name":"{tool}","wait":{}}}"#, wait.as_millis());
        self.request("tools/call", &params, Some(tool))
    }

    /// A request of the harness's.
    fn request(&mut self, method: &str, params: &str, tool: Option<&str>) -> u32 {
        self.last_id += 1;
        let id = self.last_id;
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let bytes = message.into_bytes();
        let envelope = envelope::read(&bytes, Strictness::Envelope).expect("a message");
        let Kind::Request { id: spelled, .. } = &envelope.kind else { panic!("a request") };
        let server = Arc::clone(&self.starter.server);
        let scope = tool.and_then(|tool| server.scope(tool));
        let lane = self.servers.lane(&server, scope);
        self.servers.memory_mut().request(&bytes, spelled, method, envelope.body.clone());
        self.servers.set_beside(&bytes, spelled, method);
        let is_call = method == "tools/call";
        // Every second call takes the short way, where it is open.
        if is_call && id.is_multiple_of(2) && self.servers.pass(lane, &bytes) == Passed::Yes {
            self.servers.write_now();
            self.in_flight.insert(id, (self.servers.process(lane), method.to_owned()));
            return id;
        }
        let outbound = Outbound::request(bytes.clone(), number(id), method, None).in_scope(scope.cloned());
        let starter = self.starter.clone();
        match self.servers.send(lane, outbound, || starter) {
            Ok(()) => {
                self.in_flight.insert(id, (self.servers.process(lane), method.to_owned()));
            }
            Err(unavailable) => self.settle(id, Result::Refused(unavailable.code, unavailable.why)),
        }
        id
    }

    /// The harness's handshake, with its answer.
    async fn shake_hands(&mut self) {
        let id = self.request("initialize", r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#, None);
        self.settled(id).await;
        let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        self.notify("notifications/initialized", initialized);
    }

    fn notify(&mut self, method: &str, message: &[u8]) {
        self.servers.memory_mut().notification(message, method);
        self.servers.tell_all(Outbound::notification(message.to_vec(), method));
    }

    /// Lives until this call has an outcome.
    async fn settled(&mut self, id: u32) -> Result {
        let limit = Instant::now() + Duration::from_secs(3600);
        while !self.results.contains_key(&id) {
            assert!(self.turn(limit).await, "call {id} has no outcome after an hour");
        }
        self.results[&id].clone()
    }

    /// Calls and lives until there is an outcome.
    async fn call_and_wait(&mut self, tool: &str) -> Result {
        let id = self.call(tool, Duration::ZERO);
        self.settled(id).await
    }

    /// Lives for some time.
    async fn live(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while self.turn(until).await {}
    }

    /// Lives until this is so, for an hour at most.
    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let limit = Instant::now() + Duration::from_secs(3600);
        while !is_so(self) {
            assert!(Instant::now() < limit, "not within an hour: {what}; {:?}", self.script.log());
            // Some of it happens in the background, without an event.
            self.turn(Instant::now() + Duration::from_millis(100)).await;
        }
    }

    /// One turn of a link; false where nothing happened until then.
    async fn turn(&mut self, until: Instant) -> bool {
        let Ok((from, event)) = timeout_at(until, self.servers.next()).await else { return false };
        self.event(from, event);
        while let Some((from, event)) = self.servers.buffered(from.lane) {
            self.event(from, event);
        }
        self.attend();
        true
    }

    fn attend(&mut self) {
        let Self { servers, in_flight, starter, .. } = self;
        if servers.are_changing() {
            let is_busy = |process| in_flight.values().any(|(on, _)| *on == process);
            for (lane, note) in servers.attend(is_busy, || Some(starter.clone())) {
                let process = |incarnation| Process { lane, incarnation };
                match note {
                    Note::Cut { from, why } => self.lost(process(from), &why),
                    Note::HandedOver { from } => self.handed_over.push(process(from)),
                    Note::Over(gone) => {
                        assert!(!self.is_busy(process(gone)), "ended while a call waits for it")
                    }
                    Note::Told(told, detail) => self.told.push((told, detail)),
                }
            }
        }
        let done = |lane: &_| !self.in_flight.values().any(|(on, _)| on.lane == *lane);
        let done = self.servers.given_up().find(done);
        if let Some(lane) = done {
            self.servers.dismiss(lane);
        }
    }

    fn event(&mut self, from: Process, event: Event) {
        match event {
            Event::Message(message) => self.message(from, &message),
            Event::Due | Event::Forgotten | Event::SentWith { .. } => {}
            Event::Failed { id, code, why } => {
                if let Some(id) = harness_id(&id) {
                    self.take(from, id);
                    self.settle(id, Result::Refused(code, why));
                }
            }
            Event::Gone { why } => self.lost(from, &why),
            Event::NotStarted { code, why } => {
                for id in self.all_on(from) {
                    self.settle(id, Result::Refused(code, why.clone()));
                }
            }
            Event::Oversize { id } => {
                let id = id.as_deref().and_then(envelope::id_value).as_ref().and_then(harness_id);
                if let Some(id) = id {
                    self.take(from, id);
                    self.settle(id, Result::Answered("too large".into()));
                }
            }
        }
    }

    fn message(&mut self, from: Process, message: &[u8]) {
        let envelope = envelope::read(message, Strictness::Envelope).expect("a message");
        let (id, outcome) = match envelope.kind {
            Kind::Response { id: Some(id), outcome } => (id, outcome),
            Kind::Notification { method } => return self.notifications.push(method.into_owned()),
            Kind::Request { .. } | Kind::Response { id: None, .. } => return,
        };
        let value: IdValue = Id::value(&id);
        if self.servers.memory().is_own(&value) {
            let heard = self.servers.own_answer(from.lane, &value, outcome, message, envelope.body);
            if heard == Heard::ToolsChanged {
                self.notifications.push("notifications/tools/list_changed".into());
            }
            return;
        }
        let id = harness_id(&value).expect("an id of the harness's");
        let method = self.take(from, id);
        if Memory::concerns(&method) {
            self.servers.answered(from, &value, outcome, message, envelope.body.clone());
            if method == "initialize" && outcome == Outcome::Result {
                self.servers.give_up_scopes();
            }
        }
        let result = envelope.body.map(|body| String::from_utf8_lossy(&message[body]).into_owned());
        self.settle(id, Result::Answered(result.unwrap_or_default()));
    }

    fn take(&mut self, from: Process, id: u32) -> String {
        let (on, method) = self
            .in_flight
            .remove(&id)
            .unwrap_or_else(|| panic!("call {id} has two outcomes: {:?}", self.results));
        assert_eq!(on, from, "call {id} is answered by a process that does not have it");
        method
    }

    fn lost(&mut self, process: Process, why: &str) {
        for id in self.all_on(process) {
            self.settle(id, Result::Unknown(why.into()));
        }
    }

    fn all_on(&mut self, process: Process) -> Vec<u32> {
        self.in_flight.extract_if(.., |_, (on, _)| *on == process).map(|(id, _)| id).collect()
    }

    fn is_busy(&self, process: Process) -> bool {
        self.in_flight.values().any(|(on, _)| *on == process)
    }

    fn settle(&mut self, id: u32, result: Result) {
        self.servers.memory_mut().forget(&number(id));
        assert_eq!(self.results.insert(id, result), None, "call {id} has two outcomes");
    }

    /// The tool calls that a process took, by their ids, in order.
    fn calls_taken_by(&self, process: usize) -> Vec<u32> {
        self.script.taken_by(process).iter().filter_map(call_id).collect()
    }

    /// Ends everything, and all that was to end in the background.
    async fn finish(self) -> (Script, BTreeMap<u32, Result>) {
        let Self { servers, script, starter, results, .. } = self;
        servers.end(Duration::from_secs(2)).await;
        starter.tasks.close();
        starter.tasks.wait().await;
        assert_eq!(script.alive(), [0; 0], "a process outlives its link: {:?}", script.log());
        (script, results)
    }
}

/// Answers as usual, and to a call as late as it asks for.
fn patient(taken: &Taken) -> Vec<super::scripted::Reaction> {
    use super::scripted::{Reaction, answer};
    let wait = taken.message.split_once(r#""wait":"#).map_or("", |(_, rest)| rest);
    let wait = wait.split(|char: char| !char.is_ascii_digit()).next().and_then(|text| text.parse().ok());
    let say = |answer| match wait {
        Some(milliseconds @ 1..) => Reaction::SayAfter(Duration::from_millis(milliseconds), answer),
        _ => Reaction::Say(answer),
    };
    answer(taken).map(say).into_iter().collect()
}

fn number(id: u32) -> IdValue {
    IdValue::Integer(id.to_string().into())
}

fn harness_id(id: &IdValue) -> Option<u32> {
    match id {
        IdValue::Integer(text) => text.parse().ok(),
        IdValue::Text(_) => None,
    }
}

fn call_id(taken: &Taken) -> Option<u32> {
    let is_call = taken.method.as_deref() == Some("tools/call");
    taken.id.as_deref().filter(|_| is_call)?.parse().ok()
}

fn by(process: usize) -> Result {
    Result::Answered(format!(r#"{{"by":{process}}}"#))
}

fn methods(taken: &[Taken]) -> Vec<&str> {
    taken.iter().filter_map(|taken| taken.method.as_deref()).collect()
}

fn ended(script: &Script, process: usize) -> bool {
    script.log().contains(&Entry::Ended(process))
}
