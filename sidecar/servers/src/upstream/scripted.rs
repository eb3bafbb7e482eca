//! A stdio server whose processes are simulated by a test: no child process, no pipes, no wall clock.
//!
//! A [`Script`] is the program. Every process that is started from it uses the next [`Start`], answers with the
//! script's [`Respond`] function, and can be driven by the test (`write`, `exit`, `set_reading`). [`Script::log`]
//! records what happened to all of them, in order.
//!
//! What must stay true: a scripted process behaves as [`crate::upstream::stdio`] does. Bytes reach it in `flush` and
//! `next` only; a request of which it received nothing is reported as `Unsent`, before `Closed`; a message that it
//! received in part is not reported; `next` may be dropped at any await.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::BytesMut;
use cofferdam_process::Ended;
use relay_proto::envelope::{self, IdValue, Kind, Strictness};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::start_error::StartError;
use crate::upstream::stdio::StdioEvent;

/// One program, with all processes that were ever started from it. Cheap to clone.
#[derive(Clone)]
pub struct Script(Arc<Mutex<ScriptState>>);

/// How one start goes.
pub enum Start {
    FailAfter(Duration, StartError),
    Never,
    RunAfter(Duration),
}

/// How a process reacts to a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reaction {
    Exit,
    ExitAfter(Duration),
    /// A response that is too large, with its id where that was found.
    Oversize(Option<Box<[u8]>>),
    Write(String),
    WriteAfter(Duration, String),
}

/// A message that a process received, whole or in part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReceivedMessage {
    /// The number of the process, from 0 in the order of starts.
    pub process: usize,
    /// The scope that the process was started for, as text.
    pub scope: Option<String>,
    pub message: String,
    pub method: Option<String>,
    /// The id of a request, as raw JSON.
    pub id: Option<String>,
}

/// An entry of [`Script::log`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Entry {
    /// The sidecar has ended the process.
    Ended(usize),
    /// The process ended by itself.
    Exited(usize),
    /// A process received a part of this message.
    PartlyReceived(ReceivedMessage),
    Received(ReceivedMessage),
    /// SIGHUP was sent to the process.
    SighupSent(usize),
    Started(usize),
}

/// How much a process reads of its input.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    Everything,
    Nothing,
    /// Some bytes of the next message, then nothing.
    PartOfOne,
}

/// Decides how a process reacts to a message. It must not call the [`Script`], whose lock is held.
pub type Respond = Arc<dyn Fn(&ReceivedMessage) -> Vec<Reaction> + Send + Sync>;

/// The connection to one process.
pub struct ScriptedUpstream {
    script: Script,
    number: usize,
    changed: Arc<Notify>,
    has_ended: bool,
}

struct ScriptState {
    starts: VecDeque<Start>,
    end_delay: Duration,
    respond: Respond,
    processes: Vec<Process>,
    log: Vec<Entry>,
}

struct Process {
    scope: Option<String>,
    /// Messages that were sent and not yet received whole.
    queue: VecDeque<Vec<u8>>,
    /// The first message of the queue was received in part.
    has_begun: bool,
    reading: Reading,
    output: Vec<(Instant, Output)>,
    has_exited: bool,
    changed: Arc<Notify>,
}

enum Output {
    Event(StdioEvent),
    Exit,
}

/// The next event of a process, or how long to wait for one.
enum Step {
    Event(StdioEvent),
    WaitUntil(Option<Instant>),
}

impl Default for Script {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(ScriptState {
            starts: VecDeque::new(),
            end_delay: Duration::ZERO,
            respond: Arc::new(|received| {
                default_response(received).map(Reaction::Write).into_iter().collect()
            }),
            processes: Vec::new(),
            log: Vec::new(),
        })))
    }
}

impl Script {
    /// A program whose processes react like this to each message. [`Script::default`] answers every request with
    /// [`default_response`].
    pub fn responding(respond: impl Fn(&ReceivedMessage) -> Vec<Reaction> + Send + Sync + 'static) -> Self {
        let script = Self::default();
        script.state().respond = Arc::new(respond);
        script
    }

    /// Queues the behaviour of one later start. Where none is queued, the process runs at once.
    pub fn queue_start(&self, start: Start) {
        self.state().starts.push_back(start);
    }

    /// Sets how long the end of a process takes from now on.
    pub fn set_end_delay(&self, time: Duration) {
        self.state().end_delay = time;
    }

    pub fn log(&self) -> Vec<Entry> {
        self.state().log.clone()
    }

    /// The messages that one process received whole, in order.
    pub fn received_by(&self, process: usize) -> Vec<ReceivedMessage> {
        let received = |entry| match entry {
            Entry::Received(received) if received.process == process => Some(received),
            _ => None,
        };
        self.log().into_iter().filter_map(received).collect()
    }

    /// How many processes were started so far.
    pub fn started(&self) -> usize {
        self.state().processes.len()
    }

    /// The processes that were started and not yet ended.
    pub fn alive(&self) -> Vec<usize> {
        let log = self.log();
        (0..self.started()).filter(|number| !log.contains(&Entry::Ended(*number))).collect()
    }

    /// The process writes one line now.
    pub fn write(&self, process: usize, line: &str) {
        self.state().react(process, Reaction::Write(line.into()));
    }

    pub fn react(&self, process: usize, reaction: Reaction) {
        self.state().react(process, reaction);
    }

    /// The process exits by itself, now.
    pub fn exit(&self, process: usize) {
        self.react(process, Reaction::Exit);
    }

    /// Sets how much the process reads of its input from now on.
    pub fn set_reading(&self, process: usize, reading: Reading) {
        let mut state = self.state();
        state.processes[process].reading = reading;
        state.processes[process].changed.notify_one();
    }

    /// Starts a process, as a launch would.
    pub(crate) async fn start(&self, scope: Option<String>) -> Result<ScriptedUpstream, StartError> {
        let start = self.state().starts.pop_front();
        match start.unwrap_or(Start::RunAfter(Duration::ZERO)) {
            Start::FailAfter(delay, error) => {
                sleep(delay).await;
                Err(error)
            }
            Start::Never => pending().await,
            Start::RunAfter(delay) => {
                if !delay.is_zero() {
                    sleep(delay).await;
                }
                Ok(self.run(scope))
            }
        }
    }

    fn run(&self, scope: Option<String>) -> ScriptedUpstream {
        let mut state = self.state();
        let number = state.processes.len();
        let changed = Arc::new(Notify::new());
        state.processes.push(Process {
            scope,
            queue: VecDeque::new(),
            has_begun: false,
            reading: Reading::Everything,
            output: Vec::new(),
            has_exited: false,
            changed: Arc::clone(&changed),
        });
        state.log.push(Entry::Started(number));
        ScriptedUpstream { script: self.clone(), number, changed, has_ended: false }
    }

    fn state(&self) -> MutexGuard<'_, ScriptState> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl ScriptedUpstream {
    /// Unlikely to be the pid of a real process.
    pub(crate) fn pid(&self) -> u32 {
        1_000_000 + u32::try_from(self.number).expect("a test starts few processes")
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.script.state().processes[self.number].queue.push_back(message.to_vec());
    }

    pub(crate) fn flush(&mut self) {
        self.script.state().receive_queue(self.number);
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.script.state().processes[self.number].queue.iter().map(Vec::len).sum()
    }

    pub(crate) fn buffered(&mut self) -> Option<StdioEvent> {
        let mut state = self.script.state();
        let is_line = |output: &Output| {
            matches!(output, Output::Event(StdioEvent::Line(_) | StdioEvent::Oversize { .. }))
        };
        match state.due(self.number, is_line)? {
            Output::Event(event) => Some(event),
            Output::Exit => None,
        }
    }

    pub(crate) async fn next(&mut self) -> StdioEvent {
        loop {
            let step = self.script.state().step(self.number);
            match step {
                Step::Event(event) => return event,
                Step::WaitUntil(None) => self.changed.notified().await,
                Step::WaitUntil(Some(at)) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    pub(crate) fn send_sighup(&self) {
        self.script.state().log.push(Entry::SighupSent(self.number));
    }

    pub(crate) async fn end(mut self, _grace: Duration) -> Ended {
        let time = self.script.state().end_delay;
        if !time.is_zero() {
            sleep(time).await;
        }
        self.mark_ended();
        Ended::All
    }

    fn mark_ended(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            self.script.state().log.push(Entry::Ended(self.number));
        }
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        // A process whose handle is dropped is killed.
        self.mark_ended();
    }
}

impl ScriptState {
    fn react(&mut self, process: usize, reaction: Reaction) {
        let line = |text: String| Output::Event(StdioEvent::Line(BytesMut::from(text.as_bytes())));
        let now = Instant::now();
        let (at, output) = match reaction {
            Reaction::Exit => (now, Output::Exit),
            Reaction::ExitAfter(delay) => (now + delay, Output::Exit),
            Reaction::Oversize(id) => (now, Output::Event(StdioEvent::Oversize { id })),
            Reaction::Write(text) => (now, line(text)),
            Reaction::WriteAfter(delay, text) => (now + delay, line(text)),
        };
        self.processes[process].output.push((at, output));
        self.processes[process].changed.notify_one();
    }

    /// The process receives queued messages, as its [`Reading`] allows.
    fn receive_queue(&mut self, number: usize) {
        loop {
            let process = &mut self.processes[number];
            if process.has_exited || process.queue.is_empty() {
                return;
            }
            match process.reading {
                Reading::Everything => {
                    process.has_begun = false;
                    let message = process.queue.pop_front().expect("it is not empty");
                    let received = received(number, process.scope.clone(), &message);
                    self.log.push(Entry::Received(received.clone()));
                    for reaction in Arc::clone(&self.respond)(&received) {
                        self.react(number, reaction);
                    }
                }
                Reading::Nothing => return,
                Reading::PartOfOne => {
                    process.reading = Reading::Nothing;
                    process.has_begun = true;
                    let begun = received(number, process.scope.clone(), &process.queue[0]);
                    self.log.push(Entry::PartlyReceived(begun));
                }
            }
        }
    }

    fn step(&mut self, number: usize) -> Step {
        self.receive_queue(number);
        loop {
            match self.due(number, |_| true) {
                Some(Output::Event(event)) => return Step::Event(event),
                Some(Output::Exit) => {
                    self.processes[number].has_exited = true;
                    self.log.push(Entry::Exited(number));
                }
                None => break,
            }
        }
        let process = &mut self.processes[number];
        if !process.has_exited {
            return Step::WaitUntil(process.output.iter().map(|(at, _)| *at).min());
        }
        if std::mem::take(&mut process.has_begun) {
            process.queue.pop_front();
        }
        while let Some(message) = process.queue.pop_front() {
            if let Some(id) = request_id(&message) {
                return Step::Event(StdioEvent::Unsent { id });
            }
        }
        Step::Event(StdioEvent::Closed)
    }

    /// The earliest output, if it is due and `wanted` accepts it. There is none after an exit.
    fn due(&mut self, number: usize, wanted: impl Fn(&Output) -> bool) -> Option<Output> {
        let process = &mut self.processes[number];
        if process.has_exited {
            return None;
        }
        let earliest = process.output.iter().enumerate().min_by_key(|(_, (at, _))| *at);
        let (index, _) = earliest.filter(|(_, (at, output))| *at <= Instant::now() && wanted(output))?;
        Some(process.output.remove(index).1)
    }
}

/// The default response to a request: a handshake, a list with the tool `echo`, or the number of the process in `by`.
pub fn default_response(received: &ReceivedMessage) -> Option<String> {
    let id = received.id.as_deref()?;
    let result = match received.method.as_deref()? {
        "initialize" => {
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"scripted","version":"1"}}"#
                .to_owned()
        }
        "tools/list" => r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#.to_owned(),
        _ => format!(r#"{{"by":{}}}"#, received.process),
    };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

fn received(process: usize, scope: Option<String>, message: &[u8]) -> ReceivedMessage {
    let text = String::from_utf8_lossy(message).into_owned();
    let (method, id) = match envelope::read(message, Strictness::Envelope).map(|envelope| envelope.kind) {
        Ok(Kind::Request { id, method }) => {
            (Some(method.into_owned()), Some(String::from_utf8_lossy(id.raw).into_owned()))
        }
        Ok(Kind::Notification { method }) => (Some(method.into_owned()), None),
        Ok(Kind::Response { .. }) | Err(_) => (None, None),
    };
    ReceivedMessage { process, scope, message: text, method, id }
}

fn request_id(message: &[u8]) -> Option<IdValue> {
    match envelope::read(message, Strictness::Envelope).ok()?.kind {
        Kind::Request { id, .. } => Some(id.value()),
        Kind::Notification { .. } | Kind::Response { .. } => None,
    }
}
