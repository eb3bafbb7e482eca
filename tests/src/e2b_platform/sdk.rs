//! A process with the real Python SDK of E2B, which acts on sandboxes for a test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::deadline::PATIENCE;
use crate::process::{Running, into_file, read};

/// One process for all actions of a platform, because importing the SDK takes longer than most actions.
pub(super) struct SdkProcess {
    input: ChildStdin,
    results: Receiver<String>,
    stderr: PathBuf,
    _directory: tempfile::TempDir,
    _process: Running,
}

impl SdkProcess {
    #[track_caller]
    pub(super) fn start(mut script: Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let stderr = directory.path().join("stderr");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(into_file(&stderr));
        let mut process = Running::spawn(script, "the SDK of E2B");
        let input = process.child.stdin.take().expect("stdin is piped");
        let output = process.child.stdout.take().expect("stdout is piped");
        let (sender, results) = channel();
        // Ends with the process.
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { input, results, stderr, _directory: directory, _process: process }
    }

    /// Returns the result of an action; `Err` is the error of the SDK.
    pub(super) fn act(&mut self, action: &[&str]) -> Result<Value, String> {
        let request = serde_json::to_string(action).expect("strings are JSON");
        let stderr = || String::from_utf8_lossy(&read(&self.stderr)).into_owned();
        writeln!(self.input, "{request}").map_err(|error| format!("{error}\n{}", stderr()))?;
        let line =
            self.results.recv_timeout(PATIENCE * 3).map_err(|error| format!("{error}\n{}", stderr()))?;
        let result: Value = serde_json::from_str(&line).map_err(|error| format!("{error} in {line}"))?;
        match result.get("error") {
            Some(error) => Err(error.to_string()),
            None => Ok(result),
        }
    }
}
