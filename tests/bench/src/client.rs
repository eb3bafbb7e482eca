//! A harness for measuring: raw MCP lines over a command's stdio, the legacy handshake, nothing else.
//!
//! Each request is one write, as harnesses do it. Every answer is looked at, which costs all contenders the same; an
//! error or a response to another request ends the measurement.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::bench_error::BenchError;
use crate::clock::Deadline;
use crate::contender::CommandLine;
use crate::process::Running;

#[derive(Debug)]
pub(crate) struct Client {
    line: CommandLine,
    running: Running,
    input: Option<ChildStdin>,
    output: ChildStdout,
    buffer: Vec<u8>,
    /// What has arrived is `start..end`; up to `searched` there is no line end.
    start: usize,
    searched: usize,
    end: usize,
    last_id: u64,
}

#[derive(Deserialize)]
struct Answer<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

impl Client {
    /// Starts the command and shakes hands, as far as the answer to `tools/list`.
    pub(crate) fn start(line: &CommandLine) -> Result<Self, BenchError> {
        let mut command = line.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::spawn(command, &line.name())?;
        let input = running.child.stdin.take();
        let output = running.child.stdout.take().expect("it was asked for a pipe");
        let (line, buffer) = (line.clone(), vec![0; ROOM]);
        let mut client =
            Self { line, running, input, output, buffer, start: 0, searched: 0, end: 0, last_id: 0 };
        let id = client.ask("initialize", INITIALIZE)?;
        client.answer_to(id)?;
        client.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        let id = client.ask("tools/list", "{}")?;
        let tools = client.answer_to(id)?;
        match tools.contains("\"echo\"") {
            true => Ok(client),
            false => Err(BenchError::WrongAnswer(shortened(&tools))),
        }
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.running.child.id()
    }

    /// One small call, to its answer.
    pub(crate) fn small_call(&mut self) -> Result<(), BenchError> {
        let id = self.ask_small()?;
        self.next_line()?;
        self.expect_small().and_then(|answered| match answered == id {
            true => Ok(()),
            false => Err(BenchError::WrongAnswer(format!("to request {answered} instead of {id}"))),
        })
    }

    /// Sends a small call and does not wait.
    pub(crate) fn ask_small(&mut self) -> Result<u64, BenchError> {
        self.ask("tools/call", r#"{"name":"echo","arguments":{"text":"How deep is the water today?"}}"#)
    }

    /// Which small call is answered next.
    pub(crate) fn answered_small(&mut self) -> Result<u64, BenchError> {
        self.next_line()?;
        self.expect_small()
    }

    /// A call with a result of `bytes`, to its answer.
    pub(crate) fn large_call(&mut self, bytes: usize) -> Result<(), BenchError> {
        let params = format!(r#"{{"name":"big","arguments":{{"bytes":{bytes}}}}}"#);
        self.ask("tools/call", &params)?;
        // Its length says enough: an error is short, and copying or reading a megabyte would be measured too.
        match self.next_line()? >= bytes {
            true => self.drop_line(),
            false => return Err(BenchError::WrongAnswer(shortened(&self.take_line()))),
        }
        Ok(())
    }

    /// Ends its input, as harnesses do, and waits for it to end.
    pub(crate) fn end(&mut self) {
        self.input = None;
        if self.running.ends_within(END_WITHIN).is_none() {
            self.running.end(END_WITHIN);
        }
    }

    fn ask(&mut self, method: &str, params: &str) -> Result<u64, BenchError> {
        self.last_id += 1;
        let id = self.last_id;
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        self.write(line.as_bytes())?;
        Ok(id)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        let input = self.input.as_mut().expect("it is open until the end");
        let written = input.write_all(bytes);
        written.map_err(|source| match source.kind() {
            ErrorKind::BrokenPipe => self.ended(),
            _ => BenchError::Write { what: format!("to {}", self.line.name()), source },
        })
    }

    /// Waits until a whole line is there, and gives its length.
    fn next_line(&mut self) -> Result<usize, BenchError> {
        let deadline = Deadline::after(ANSWER_WITHIN);
        loop {
            if let Some(length) = self.buffer[self.searched..self.end].iter().position(|byte| *byte == b'\n')
            {
                self.searched += length;
                return Ok(self.searched - self.start);
            }
            self.searched = self.end;
            self.make_room()?;
            let mut ready = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
            let left = PollTimeout::try_from(deadline.left()).unwrap_or(PollTimeout::MAX);
            match poll(&mut ready, left) {
                Ok(0) => {
                    let last_log_line = self.line.last_log_line();
                    return Err(BenchError::NoAnswer {
                        id: self.last_id,
                        within: ANSWER_WITHIN,
                        last_log_line,
                    });
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(self.unreadable(error.into())),
            }
            match self.output.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(self.ended()),
                Ok(count) => self.end += count,
                Err(error) => return Err(self.unreadable(error)),
            }
        }
    }

    /// The line that [`Self::next_line`] found, taken out.
    fn take_line(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.buffer[self.start..self.searched]).into_owned();
        self.drop_line();
        line
    }

    fn drop_line(&mut self) {
        self.start = self.searched + 1;
        self.searched = self.start;
        if self.start == self.end {
            (self.start, self.searched, self.end) = (0, 0, 0);
        }
    }

    fn expect_small(&mut self) -> Result<u64, BenchError> {
        let line = &self.buffer[self.start..self.searched];
        let answer = serde_json::from_slice::<Answer>(line).ok();
        let id = answer
            .filter(|answer| {
                answer.result.is_some_and(|result| result.get().contains("How deep is the water"))
            })
            .and_then(|answer| answer.id);
        match id {
            Some(id) => {
                self.drop_line();
                Ok(id)
            }
            None => Err(BenchError::WrongAnswer(shortened(&self.take_line()))),
        }
    }

    /// The result of request `id`; notifications before it are passed over.
    fn answer_to(&mut self, id: u64) -> Result<String, BenchError> {
        loop {
            self.next_line()?;
            let line = self.take_line();
            let answer: Option<Answer> = serde_json::from_str(&line).ok();
            match answer {
                Some(Answer { id: Some(answered), result: Some(result) }) if answered == id => {
                    return Ok(result.get().to_owned());
                }
                Some(Answer { id: None, result: None }) if line.contains("\"method\"") => {}
                _ => return Err(BenchError::WrongAnswer(shortened(&line))),
            }
        }
    }

    fn make_room(&mut self) -> Result<(), BenchError> {
        if self.buffer.len() - self.end >= ROOM / 2 {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.searched -= self.start;
        self.end -= self.start;
        self.start = 0;
        match self.end > MAX_LINE {
            true => Err(BenchError::WrongAnswer("a line without an end".into())),
            false => {
                self.buffer.resize(self.end + ROOM, 0);
                Ok(())
            }
        }
    }

    fn ended(&self) -> BenchError {
        BenchError::Ended { what: self.line.name(), last_log_line: self.line.last_log_line() }
    }

    fn unreadable(&self, source: std::io::Error) -> BenchError {
        BenchError::Read { what: format!("from {}", self.line.name()), source }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

const ROOM: usize = 256 * 1024;
const MAX_LINE: usize = 16 << 20;
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const END_WITHIN: Duration = Duration::from_secs(2);
const INITIALIZE: &str =
    r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;

fn shortened(line: &str) -> String {
    line.chars().take(160).collect()
}
