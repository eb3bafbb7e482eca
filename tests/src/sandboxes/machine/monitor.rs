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

    /// What a command returns; `arguments` is JSON.
    #[track_caller]
    pub(super) fn execute(&mut self, command: &str, arguments: &str) -> Value {
        let request = format!("{{\"execute\":\"{command}\",\"arguments\":{arguments}}}\n");
        self.stream.get_mut().write_all(request.as_bytes()).expect("the emulator listens");
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("the emulator answers");
            let mut answer: Value = serde_json::from_str(&line).expect("the emulator speaks JSON");
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            // The greeting and events come in between.
            if let Some(result) = answer.get_mut("return") {
                return result.take();
            }
        }
    }
}
