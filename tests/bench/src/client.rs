//! A harness for measuring: it does the legacy handshake and sends raw MCP lines over a command's stdio.
//!
//! Each request is one write, as in harnesses. Every response is checked, which costs all contenders the same: a small one for
//! its content, a large one only for its length. An unexpected response ends the measurement.

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
    command_line: CommandLine,
    running: Running,
    input: Option<ChildStdin>,
    output: ChildStdout,
    buffer: Vec<u8>,
    /// `start..end` was received and not consumed yet; no line ends between `start` and `searched`.
    start: usize,
    searched: usize,
    end: usize,
    last_id: u64,
}

#[derive(Deserialize)]
struct Response<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

impl Client {
    /// Starts the command and does the handshake, up to the response to `tools/list`.
    pub(crate) fn start(command_line: &CommandLine) -> Result<Self, BenchError> {
        let mut command = command_line.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::spawn(command, &command_line.name())?;
        let input = running.child.stdin.take();
        let output = running.child.stdout.take().expect("stdout is piped");
        let (command_line, buffer) = (command_line.clone(), vec![0; READ_BUFFER_BYTES]);
        let mut client =
            Self { command_line, running, input, output, buffer, start: 0, searched: 0, end: 0, last_id: 0 };
        let id = client.send_request("initialize", INITIALIZE)?;
        client.response_to(id)?;
        client.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        let id = client.send_request("tools/list", "{}")?;
        let tools = client.response_to(id)?;
        match tools.contains("\"echo\"") {
            true => Ok(client),
            false => Err(BenchError::UnexpectedResponse(shortened(&tools))),
        }
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.running.child.id()
    }

    /// Makes one small call and waits for its response.
    pub(crate) fn small_call(&mut self) -> Result<(), BenchError> {
        let id = self.send_small_call()?;
        self.next_line()?;
        self.take_small_response().and_then(|response_id| match response_id == id {
            true => Ok(()),
            false => Err(BenchError::UnexpectedResponse(format!("to request {response_id} instead of {id}"))),
        })
    }

    /// Sends a small call and does not wait.
    pub(crate) fn send_small_call(&mut self) -> Result<u64, BenchError> {
        self.send_request(
            "tools/call",
            r#"{"name":"echo","arguments":{"text":"How deep is the water today?"}}"#,
        )
    }

    /// Waits for the next response to a small call and returns its id.
    pub(crate) fn next_small_response(&mut self) -> Result<u64, BenchError> {
        self.next_line()?;
        self.take_small_response()
    }

    /// Makes a call with a result of `bytes` and waits for its response.
    pub(crate) fn large_call(&mut self, bytes: usize) -> Result<(), BenchError> {
        let params = format!(r#"{{"name":"big","arguments":{{"bytes":{bytes}}}}}"#);
        self.send_request("tools/call", &params)?;
        // Only the length is checked: an error is short, and parsing a megabyte would add to the measured time.
        match self.next_line()? >= bytes {
            true => self.drop_line(),
            false => return Err(BenchError::UnexpectedResponse(shortened(&self.take_line()))),
        }
        Ok(())
    }

    /// Closes the process's stdin, as harnesses do, and waits for the process to exit.
    pub(crate) fn end(&mut self) {
        self.input = None;
        if self.running.ends_within(EXIT_TIMEOUT).is_none() {
            self.running.end(EXIT_TIMEOUT);
        }
    }

    fn send_request(&mut self, method: &str, params: &str) -> Result<u64, BenchError> {
        self.last_id += 1;
        let id = self.last_id;
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        self.write(line.as_bytes())?;
        Ok(id)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        let input = self.input.as_mut().expect("stdin is open until `end`");
        let written = input.write_all(bytes);
        written.map_err(|source| match source.kind() {
            ErrorKind::BrokenPipe => self.exit_error(),
            _ => BenchError::Write { what: format!("to {}", self.command_line.name()), source },
        })
    }

    /// Waits for a whole line and returns its length.
    fn next_line(&mut self) -> Result<usize, BenchError> {
        let deadline = Deadline::after(RESPONSE_TIMEOUT);
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
                    let last_log_line = self.command_line.last_log_line();
                    return Err(BenchError::NoResponse {
                        id: self.last_id,
                        within: RESPONSE_TIMEOUT,
                        last_log_line,
                    });
                }
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(self.read_error(error.into())),
            }
            match self.output.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(self.exit_error()),
                Ok(count) => self.end += count,
                Err(error) => return Err(self.read_error(error)),
            }
        }
    }

    /// Removes the line that [`Self::next_line`] found from the buffer and returns it.
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

    fn take_small_response(&mut self) -> Result<u64, BenchError> {
        let line = &self.buffer[self.start..self.searched];
        let response = serde_json::from_slice::<Response>(line).ok();
        let id = response
            .filter(|response| {
                response.result.is_some_and(|result| result.get().contains("How deep is the water"))
            })
            .and_then(|response| response.id);
        match id {
            Some(id) => {
                self.drop_line();
                Ok(id)
            }
            None => Err(BenchError::UnexpectedResponse(shortened(&self.take_line()))),
        }
    }

    /// The result of request `id`; notifications before it are skipped.
    fn response_to(&mut self, id: u64) -> Result<String, BenchError> {
        loop {
            self.next_line()?;
            let line = self.take_line();
            let response: Option<Response> = serde_json::from_str(&line).ok();
            match response {
                Some(Response { id: Some(response_id), result: Some(result) }) if response_id == id => {
                    return Ok(result.get().to_owned());
                }
                Some(Response { id: None, result: None }) if line.contains("\"method\"") => {}
                _ => return Err(BenchError::UnexpectedResponse(shortened(&line))),
            }
        }
    }

    fn make_room(&mut self) -> Result<(), BenchError> {
        if self.buffer.len() - self.end >= READ_BUFFER_BYTES / 2 {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.searched -= self.start;
        self.end -= self.start;
        self.start = 0;
        match self.end > MAX_LINE {
            true => Err(BenchError::UnexpectedResponse("a line longer than 16 MiB".into())),
            false => {
                self.buffer.resize(self.end + READ_BUFFER_BYTES, 0);
                Ok(())
            }
        }
    }

    fn exit_error(&self) -> BenchError {
        BenchError::Ended { what: self.command_line.name(), last_log_line: self.command_line.last_log_line() }
    }

    fn read_error(&self, source: std::io::Error) -> BenchError {
        BenchError::Read { what: format!("from {}", self.command_line.name()), source }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

const READ_BUFFER_BYTES: usize = 256 * 1024;
const MAX_LINE: usize = 16 << 20;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
const INITIALIZE: &str =
    r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;

fn shortened(line: &str) -> String {
    line.chars().take(160).collect()
}
