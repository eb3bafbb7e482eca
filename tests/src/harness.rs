//! An MCP client that sends raw lines to a child's stdio: the harness's side of a shim, or of a bare server.
//!
//! It sends exactly what the test specifies, and parses what it receives only to find responses. Every read has a
//! deadline, and everything received is stored, so that a failure can show it.

mod read_switch;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::deadline::{Deadline, PATIENCE};
use crate::process::{Running, into_file};
use read_switch::{ReadSwitch, Reading};

/// A child with MCP on its stdio.
#[derive(Debug)]
pub struct Harness {
    process: Running,
    input: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    received: Vec<u8>,
    unclaimed: Vec<Value>,
    next_id: u64,
    era: Era,
    read_switch: Arc<ReadSwitch>,
    stderr: PathBuf,
    _directory: tempfile::TempDir,
}

/// The era of MCP that this harness uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Era {
    /// `initialize` and sessions, up to 2025-11-25.
    Legacy,
    /// Stateless, 2026-07-28: every request says its version.
    Stateless,
}

impl Harness {
    /// Starts a command and reads its stdout from now on.
    #[track_caller]
    pub fn start(mut command: Command, name: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let stderr = directory.path().join("stderr");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(into_file(&stderr));
        let mut process = Running::spawn(command, name);
        let input = process.child.stdin.take();
        let output = process.child.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        let read_switch = Arc::new(ReadSwitch::default());
        let reader_switch = Arc::clone(&read_switch);
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                reader_switch.wait_until_reading();
                let mut line = Vec::new();
                match output.read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) if sender.send(line).is_err() => return,
                    Ok(_) => {}
                }
            }
        });
        Self {
            process,
            input,
            lines,
            received: Vec::new(),
            unclaimed: Vec::new(),
            next_id: 1,
            era: Era::Legacy,
            read_switch,
            stderr,
            _directory: directory,
        }
    }

    /// Makes the legacy handshake; returns the response to `initialize`.
    #[track_caller]
    pub fn initialize(&mut self) -> Value {
        let id = self.send_initialize();
        let answer = self.answer_to(&id);
        self.notify("notifications/initialized", json!({}));
        answer
    }

    /// Makes the legacy handshake, which must succeed, and returns the harness.
    #[track_caller]
    pub fn initialized(mut self) -> Self {
        let answer = self.initialize();
        assert!(answer.get("result").is_some(), "{answer}");
        self
    }

    /// Sends `initialize` and does not wait; returns its id.
    #[track_caller]
    pub fn send_initialize(&mut self) -> Value {
        let capabilities = json!({"roots": {"listChanged": true}, "elicitation": {}});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client_info()});
        self.send_request("initialize", params)
    }

    /// Switches to the stateless era: every later request carries its metadata. Returns the response to
    /// `server/discover`.
    #[track_caller]
    pub fn discover(&mut self) -> Value {
        self.era = Era::Stateless;
        self.request("server/discover", json!({}))
    }

    /// Calls a tool and returns the whole response.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.send_call(tool, arguments);
        self.answer_to(&id)
    }

    /// Calls a tool and does not wait; returns the request's id.
    #[track_caller]
    pub fn send_call(&mut self, tool: &str, arguments: Value) -> Value {
        self.send_request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The text of a successful call's first content.
    #[track_caller]
    pub fn call_text(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments);
        text_of(&answer)
    }

    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params);
        self.answer_to(&id)
    }

    /// Sends a request and does not wait; returns its id.
    #[track_caller]
    pub fn send_request(&mut self, method: &str, mut params: Value) -> Value {
        if self.era == Era::Stateless {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": client_info(),
            });
            params["_meta"] = meta;
        }
        let id = json!(self.next_id);
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    #[track_caller]
    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    #[track_caller]
    pub fn send(&mut self, message: &Value) {
        self.send_raw(format!("{message}\n").as_bytes());
    }

    /// Sends exactly these bytes; no newline is added.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("stdin is still open");
        input.write_all(bytes).and_then(|()| input.flush()).expect("the child reads its stdin");
    }

    /// Sends lines from `next` until the child's stdin has accepted at least `total` bytes, or has accepted nothing for the
    /// duration `stall_timeout`. Returns the number of bytes accepted; nothing can be sent afterwards.
    pub fn flood_stdin(
        &mut self,
        stall_timeout: Duration,
        total: usize,
        mut next: impl FnMut() -> String + Send,
    ) -> usize {
        let mut input = self.input.take().expect("stdin is still open");
        let (sender, accepted) = channel();
        // All lines are created first, so that the child's speed counts and not the test's.
        let mut lines = Vec::new();
        let mut created_bytes = 0;
        while created_bytes < total {
            lines.push(next());
            created_bytes += lines.last().map_or(0, String::len);
        }
        // The thread ends with the child, which ends with this harness.
        std::thread::spawn(move || {
            for line in lines {
                for piece in line.as_bytes().chunks(16 * 1024) {
                    if input.write_all(piece).is_err() || sender.send(piece.len()).is_err() {
                        return;
                    }
                }
            }
        });
        std::iter::from_fn(|| accepted.recv_timeout(stall_timeout).ok()).sum()
    }

    /// Stops reading the child's stdout, after the line that is being read.
    pub fn stop_reading(&mut self) {
        self.read_switch.set(Reading::Stopped);
    }

    pub fn read_again(&mut self) {
        self.read_switch.set(Reading::Running);
    }

    /// The next line with its newline.
    #[track_caller]
    pub fn next_line(&mut self) -> Vec<u8> {
        self.next_line_within(PATIENCE)
    }

    #[track_caller]
    fn next_line_within(&mut self, time: Duration) -> Vec<u8> {
        match self.line_within(time) {
            Some(line) => line,
            None => panic!("no line within {time:?}{}", self.transcript()),
        }
    }

    /// The next line; `None` if none came in time or the child's stdout ended.
    pub fn line_within(&mut self, time: Duration) -> Option<Vec<u8>> {
        let line = match self.lines.recv_timeout(time) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        };
        self.received.extend_from_slice(&line);
        Some(line)
    }

    #[track_caller]
    pub fn next_message(&mut self) -> Value {
        self.next_message_within(PATIENCE)
    }

    /// The next message within this time.
    #[track_caller]
    pub fn next_message_within(&mut self, time: Duration) -> Value {
        let line = self.next_line_within(time);
        parse(&line)
    }

    /// The response to a request; messages before it are stored for later.
    #[track_caller]
    pub fn answer_to(&mut self, id: &Value) -> Value {
        match self.answer_within(id, PATIENCE) {
            Some(answer) => answer,
            None => panic!("no response to request {id} within {PATIENCE:?}{}", self.transcript()),
        }
    }

    /// The response to a request, if it comes in time.
    #[track_caller]
    pub fn answer_within(&mut self, id: &Value, time: Duration) -> Option<Value> {
        let is_answer = |message: &Value| message.get("id") == Some(id) && message.get("method").is_none();
        if let Some(index) = self.unclaimed.iter().position(is_answer) {
            return Some(self.unclaimed.remove(index));
        }
        let deadline = Deadline::after(time);
        while !deadline.is_over() {
            let message = parse(&self.line_within(deadline.left())?);
            if is_answer(&message) {
                return Some(message);
            }
            self.unclaimed.push(message);
        }
        None
    }

    /// The next request or notification with this method; messages before it are stored for later.
    #[track_caller]
    pub fn message_with_method(&mut self, method: &str) -> Value {
        let has_method = |message: &Value| message.get("method").and_then(Value::as_str) == Some(method);
        if let Some(index) = self.unclaimed.iter().position(has_method) {
            return self.unclaimed.remove(index);
        }
        loop {
            let message = self.next_message();
            if has_method(&message) {
                return message;
            }
            self.unclaimed.push(message);
        }
    }

    /// Every byte received so far.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&crate::process::read(&self.stderr)).into_owned()
    }

    pub fn stderr_path(&self) -> &Path {
        &self.stderr
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Closes the child's stdin, as harnesses do to end an MCP server.
    pub fn close_stdin(&mut self) {
        self.input = None;
    }

    #[track_caller]
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.process.wait(PATIENCE)
    }

    /// The last output, for failures.
    fn transcript(&self) -> String {
        let tail = |text: &str| {
            text.chars().rev().take(2000).collect::<Vec<_>>().into_iter().rev().collect::<String>()
        };
        let received = tail(&String::from_utf8_lossy(&self.received));
        format!("\n--- received\n{received}\n--- stderr\n{}", tail(&self.stderr()))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.read_again();
        if std::thread::panicking() {
            eprintln!("=== harness of process {}{}", self.id(), self.transcript());
        }
    }
}

/// The text of a successful result's first content.
#[track_caller]
pub fn text_of(answer: &Value) -> String {
    match answer["result"]["content"][0]["text"].as_str() {
        Some(text) => text.to_owned(),
        None => panic!("not a text result: {}", cut(answer)),
    }
}

/// The stable code in a refusal's data; the refusal's message must begin with that code.
#[track_caller]
pub fn refusal_of(answer: &Value) -> &str {
    let error = &answer["error"];
    let Some(code) = error["data"]["code"].as_str() else { panic!("not a refusal: {}", cut(answer)) };
    let message = error["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with(&format!("{code}: ")),
        "the message, which is all that a model gets, does not start with the code: {answer}"
    );
    code
}

fn client_info() -> Value {
    json!({"name": "test-harness", "version": "1"})
}

/// The beginning of a message, for failures.
fn cut(message: &Value) -> String {
    message.to_string().chars().take(1000).collect()
}

#[track_caller]
fn parse(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap_or_else(|error| {
        panic!("{error} in {:?}", String::from_utf8_lossy(&line[..line.len().min(1000)]))
    })
}
