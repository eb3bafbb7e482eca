//! QEMU's monitor: sends a command and returns the response.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::deadline::{PATIENCE, wait_until};

#[derive(Debug)]
pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    #[track_caller]
    pub(super) fn connect(path: &Path) -> Self {
        let mut connected = None;
        wait_until("the emulator listens", || {
            connected = UnixStream::connect(path).ok();
            connected.is_some()
        });
        let stream = connected.expect("it was waited for");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let mut monitor = Self { stream: BufReader::new(stream) };
        monitor.execute("qmp_capabilities", "{}");
        monitor
    }

    /// Executes a command and returns its result; `arguments` is JSON.
    #[track_caller]
    pub(super) fn execute(&mut self, command: &str, arguments: &str) -> Value {
        let request = format!("{{\"execute\":\"{command}\",\"arguments\":{arguments}}}\n");
        self.stream.get_mut().write_all(request.as_bytes()).expect("the emulator listens");
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("the emulator responds");
            let mut response: Value = serde_json::from_str(&line).expect("the emulator sends JSON");
            assert!(response.get("error").is_none(), "{command}: {response}");
            // The greeting and events are skipped.
            if let Some(result) = response.get_mut("return") {
                return result.take();
            }
        }
    }
}
