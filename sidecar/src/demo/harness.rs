//! The demo's harness: exchanges MCP messages with the shim over its stdio, and records everything that the shim wrote.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::DemoError;

pub(super) struct Harness {
    shim: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    last_id: u64,
    /// The shim's stdout, as far as it was read.
    output: String,
}

/// The demo's server responds at once; a shim without a sidecar reports that after 20 seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

impl Harness {
    pub(super) fn start(mut command: Command) -> Result<Self, DemoError> {
        let mut shim = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| DemoError::Io { what: "start the shim", source })?;
        let stdin = shim.stdin.take();
        let stdout = shim.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { shim, stdin, lines, reader: Some(reader), last_id: 0, output: String::new() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.shim.id()
    }

    /// Performs the handshake of a legacy revision.
    pub(super) fn initialize(&mut self) -> Result<Value, DemoError> {
        let response = self.request(
            "initialize",
            &json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "cofferdam-demo", "version": env!("CARGO_PKG_VERSION") },
            }),
        )?;
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(response)
    }

    /// Sends a request and waits for the response with the same id.
    pub(super) fn request(&mut self, method: &str, params: &Value) -> Result<Value, DemoError> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let line = self
                .lines
                .recv_timeout(RESPONSE_TIMEOUT)
                .map_err(|_| DemoError::NoResponse { method: method.into() })?;
            self.output.push_str(&line);
            self.output.push('\n');
            let response: Value = serde_json::from_str(&line).unwrap_or_default();
            if response["id"] == id {
                return Ok(response);
            }
        }
    }

    /// Stops the shim and returns everything that it wrote to its stdout.
    pub(super) fn stop(mut self) -> String {
        self.close();
        while let Ok(line) = self.lines.try_recv() {
            self.output.push_str(&line);
            self.output.push('\n');
        }
        std::mem::take(&mut self.output)
    }

    fn close(&mut self) {
        // A harness stops a stdio server by closing its stdin.
        self.stdin = None;
        let _ = self.shim.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn send(&mut self, message: &Value) -> Result<(), DemoError> {
        let stdin = self.stdin.as_mut().expect("stdin is open until the harness is dropped");
        writeln!(stdin, "{message}").map_err(|source| DemoError::Io { what: "write to the shim", source })
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.close();
    }
}
