//! The fixture's output: whole lines to stdout, records to files that tests read.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};

use cofferdam_tests::process_numbers;
use serde_json::Value;

/// Stdout, shared by the threads of slow tools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    lock: Arc<Mutex<()>>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn message(&self, message: &Value) {
        self.line(&message.to_string());
    }

    pub(crate) fn line(&self, text: &str) {
        let mut line = text.as_bytes().to_vec();
        line.push(b'\n');
        self.bytes(&line);
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) {
        let _guard = self.lock.lock();
        let mut stdout = std::io::stdout().lock();
        // If the reader has exited, stdin ends too.
        let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
    }
}

/// Appends one record to the file that the variable names; one `write` per record, so that none is torn.
pub(crate) fn record(variable: &str, line: &str) {
    if let Some(path) = std::env::var_os(variable)
        && let Ok(mut file) = std::fs::File::options().append(true).create(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
}

/// The number of this process on the host: inside the namespaces of a confined server it has another.
pub(crate) fn process_id() -> u32 {
    static ID: OnceLock<u32> = OnceLock::new();
    *ID.get_or_init(|| match std::env::var_os(process_numbers::VARIABLE) {
        Some(socket) => {
            let mut number = [0; 4];
            let asked = UnixStream::connect(socket).and_then(|mut socket| socket.read_exact(&mut number));
            asked.expect("the test tells the process its number");
            u32::from_ne_bytes(number)
        }
        None => std::process::id(),
    })
}

/// How many processes of this server there have been, this one included.
pub(crate) fn process_number() -> u64 {
    let text = std::env::var_os("PID_FILE").and_then(|path| std::fs::read_to_string(path).ok());
    let own = format!("{} ", process_id());
    let index = text.as_deref().and_then(|text| text.lines().position(|line| line.starts_with(&own)));
    index.map_or(1, |index| index as u64 + 1)
}
