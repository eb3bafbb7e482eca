//! A sidecar that the test drives, and a shim process with its pipes. Every wait has a timeout.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use relay_proto::control::{Goodbye, Hello, Refusal, ResumeToken, Resumed, Retry, Welcome};
use relay_proto::decoder::Decoder;
use relay_proto::delivery::{Inbox, Outbox, Received};
use relay_proto::frame::{Ack, Frame, MaybeRan, PREFACE};
use relay_proto::limits::{DEFAULT_WINDOW, MAX_MESSAGE};

/// Long enough for a loaded machine; only a failing test ever waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A temporary directory for one test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cofferdam-shim-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The shim's `--relay`.
    pub(crate) fn relay_address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("relay.sock")
    }

    pub(crate) fn listen(&self) -> Sidecar {
        let _ = std::fs::remove_file(self.socket());
        Sidecar(UnixListener::bind(self.socket()).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Sidecar(UnixListener);

impl Sidecar {
    /// The next connection, with its Hello read.
    pub(crate) fn accept(&self) -> (Peer, Hello) {
        let (sender, receiver) = mpsc::channel();
        let listener = self.0.try_clone().unwrap();
        std::thread::spawn(move || sender.send(listener.accept()));
        let (stream, _) = receiver.recv_timeout(PATIENCE).expect("the shim connects").unwrap();
        Peer::new(stream)
    }

    /// The next connection, welcomed on a fresh link.
    pub(crate) fn welcome(&self) -> Peer {
        let (mut peer, _) = self.accept();
        peer.welcome(Resumed::Fresh);
        peer
    }
}

/// The sidecar's end of one link; it outlives its connection.
pub(crate) struct Peer {
    stream: UnixStream,
    decoder: Decoder,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
}

impl Peer {
    pub(crate) fn new(stream: UnixStream) -> (Self, Hello) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let inbox = Inbox::new(MAX_MESSAGE, DEFAULT_WINDOW);
        let mut peer = Self { stream, decoder: Decoder::new(), inbox, outbox: Outbox::new(DEFAULT_WINDOW) };
        match peer.next_frame() {
            Some(Frame::Hello(hello)) => (peer, hello),
            other => panic!("expected a Hello, not {other:?}"),
        }
    }

    /// Continues the link on another connection.
    pub(crate) fn move_to(&mut self, other: Peer) {
        (self.stream, self.decoder) = (other.stream, other.decoder);
    }

    /// Closes the connection, and uses a dead one in its place.
    pub(crate) fn cut(&mut self, dead: UnixStream) {
        self.stream = dead;
    }

    pub(crate) fn welcome(&mut self, resumed: Resumed) {
        self.inbox.resume();
        let frame = Frame::Welcome(Welcome {
            version: 1,
            session: "s-1".into(),
            link: "l-1".into(),
            server: "echo".parse().unwrap(),
            resumed,
            token: ResumeToken("0".repeat(64)),
            epoch: None,
            received: self.inbox.received(),
            window: DEFAULT_WINDOW,
            max_message: MAX_MESSAGE as u64,
            heartbeat_ms: 20_000,
        });
        self.write(&[frame], Preface::Needed);
    }

    pub(crate) fn refuse(&mut self, code: &str, message: &str, retry: Retry) {
        let frame = Frame::Refusal(Refusal { code: code.into(), message: message.into(), retry });
        self.write(&[frame], Preface::Needed);
    }

    pub(crate) fn goodbye(&mut self, code: &str, message: &str, retry: Retry) {
        let frame = Frame::Goodbye(Goodbye { code: code.into(), message: message.into(), retry });
        self.write(&[frame], Preface::Sent);
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.outbox.push(message, MaybeRan::No);
        self.send_ready();
    }

    /// The next message; acknowledgements are handled meanwhile. `None` if the shim disconnected or sent a `Goodbye`.
    pub(crate) fn next_message(&mut self) -> Option<Received> {
        loop {
            match self.next_frame()? {
                Frame::Message(part) => {
                    let message = self.inbox.accept(part).unwrap();
                    if self.inbox.ack_due() {
                        let ack = self.inbox.take_ack().map(Frame::Ack);
                        self.write(ack.as_slice(), Preface::Sent);
                    }
                    if message.is_some() {
                        return message;
                    }
                }
                Frame::Ack(ack) => self.handle_ack(ack),
                Frame::Ping | Frame::Pong => {}
                Frame::Goodbye(_) => return None,
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// The text of the next message.
    pub(crate) fn next_text(&mut self) -> String {
        String::from_utf8(self.next_message().expect("a message arrives").bytes).unwrap()
    }

    /// Reads until the shim's `Goodbye`.
    pub(crate) fn wait_for_goodbye(&mut self) -> Goodbye {
        loop {
            match self.next_frame() {
                Some(Frame::Goodbye(goodbye)) => return goodbye,
                Some(_) => {}
                None => panic!("the shim disconnected without a Goodbye"),
            }
        }
    }

    /// Reads until the shim has acknowledged everything.
    pub(crate) fn wait_until_acknowledged(&mut self) {
        while !self.outbox.is_empty() {
            match self.next_frame() {
                Some(Frame::Ack(ack)) => self.handle_ack(ack),
                Some(_) => {}
                None => panic!("the shim disconnected"),
            }
        }
    }

    fn handle_ack(&mut self, ack: Ack) {
        self.outbox.acknowledge(ack).unwrap();
        self.send_ready();
    }

    fn send_ready(&mut self) {
        let mut bytes = Vec::new();
        self.outbox.take_ready(&mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next frame; `None` if the shim disconnected.
    fn next_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return Some(frame);
            }
            match self.stream.read(self.decoder.spare()).expect("the shim sends something in time") {
                0 => return None,
                count => self.decoder.filled(count),
            }
        }
    }

    fn write(&mut self, frames: &[Frame], preface: Preface) {
        let mut bytes = match preface {
            Preface::Needed => PREFACE.to_vec(),
            Preface::Sent => Vec::new(),
        };
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        self.stream.write_all(&bytes).unwrap();
    }
}

/// Whether the preface must be written before the frames.
enum Preface {
    Needed,
    Sent,
}

/// Lines that a process prints, read in the background.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn of(source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(source).lines() {
                if line.map(|line| sender.send(line)).is_err() {
                    break;
                }
            }
        });
        Self(receiver)
    }

    #[track_caller]
    pub(crate) fn next(&self) -> String {
        self.0.recv_timeout(PATIENCE).expect("the program prints a line in time")
    }

    /// Asserts that the other side closes without another line.
    #[track_caller]
    pub(crate) fn expect_end(&self) {
        assert_eq!(self.0.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }
}

/// The real binary. It is killed when the test ends, however it ends.
pub(crate) struct Shim {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
}

impl Shim {
    pub(crate) fn start(arguments: &[&str]) -> (Self, ChildStdout) {
        let mut child =
            command().args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        (Self { child, stdin }, stdout)
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut waited = Duration::ZERO;
        while waited < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
            waited += Duration::from_millis(5);
        }
        panic!("the shim does not exit");
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a test of a program starts the program")]
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam-shim"));
    command.env_remove("COFFERDAM_RELAY");
    command
}

pub(crate) fn request(id: u32, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#)
}

pub(crate) fn result(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}
