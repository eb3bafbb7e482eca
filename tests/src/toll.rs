//! A toll gate on the way to a real OpenBao: whoever asks for something is counted, and passed on, held up, cut off or,
//! where a test says so, answered from a recording.
//!
//! A recording stands for answers that one open-source server cannot be made to give (412, 472, 473, a lease without a
//! duration). Must stay true: everything that no rule names passes byte by byte, and what is rewritten is a live answer
//! of the real server with single members changed. `vault_outages::replayed` compares both sides.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::port::free_place;

/// A running gate; it ends with the test's process.
#[derive(Debug)]
pub struct Toll {
    place: SocketAddr,
    shared: Arc<Shared>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Answered from a recording; the server hears nothing of it.
    Answer(Recording),
    /// The server does it, and its answer is cut after so many bytes.
    CutAfter(usize),
    /// Late by this.
    Delay(Duration),
    /// The server's clock, as its answer tells it, says this.
    Dated(&'static str),
    Pass,
    /// The server does it, and some of its answer is changed.
    Rewrite(fn(&mut Value)),
    /// Nobody hears of it, and nobody answers, until the gate is opened.
    Swallow,
}

/// An answer that no server gave.
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    pub status: u16,
    /// Whole lines.
    pub headers: &'static str,
    pub body: &'static str,
}

/// Who came by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Seen {
    pub method: String,
    /// Below `/v1/`.
    pub path: String,
    /// What it showed.
    pub token: Option<String>,
    /// JSON, or null.
    pub body: Value,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    rules: Mutex<Vec<(String, Act)>>,
    seen: Mutex<Vec<Seen>>,
    swallowed: Mutex<Vec<TcpStream>>,
}

impl Toll {
    /// A gate in front of a server.
    ///
    /// # Panics
    /// When loopback has no place left.
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(free_place()).expect("the place was free");
        let place = listener.local_addr().expect("it was just bound");
        let shared = Arc::new(Shared {
            server,
            rules: Mutex::default(),
            seen: Mutex::default(),
            swallowed: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                thread::spawn(move || serve(&shared, stream));
            }
        });
        Self { place, shared }
    }

    pub fn place(&self) -> SocketAddr {
        self.place
    }

    /// As configurations have it.
    pub fn address(&self) -> String {
        format!("http://{}", self.place)
    }

    /// From now on for every path that begins so; the newest rule that fits counts.
    pub fn rule(&self, path: &str, act: Act) {
        locked(&self.shared.rules).push((path.to_owned(), act));
    }

    /// Everything passes again; what was swallowed is cut.
    pub fn open(&self) {
        locked(&self.shared.rules).clear();
        for stream in locked(&self.shared.swallowed).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Everybody who came by, in order.
    pub fn seen(&self) -> Vec<Seen> {
        locked(&self.shared.seen).clone()
    }

    /// How many came by for paths that begin so.
    pub fn count(&self, path: &str) -> usize {
        locked(&self.shared.seen).iter().filter(|seen| seen.path.starts_with(path)).count()
    }
}

/// Another address of the same server, whatever is spoken there.
///
/// # Panics
/// When loopback has no place left.
pub fn detour(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(free_place()).expect("the place was free");
    let place = listener.local_addr().expect("it was just bound");
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(server) else { continue };
            let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
            for (mut from, mut to) in [(near, far), (far_too, near_too)] {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    place
}

fn serve(shared: &Shared, mut client: TcpStream) {
    let Some((seen, request)) = request(&mut client) else { return };
    let rules = locked(&shared.rules).clone();
    let rule = rules.iter().rev().find(|(path, _)| seen.path.starts_with(path.as_str()));
    locked(&shared.seen).push(seen);
    match rule.map_or(Act::Pass, |(_, act)| *act) {
        Act::Answer(Recording { status, headers, body }) => {
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status} Recorded\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
            );
            let _ = client.write_all(answer.as_bytes());
        }
        Act::CutAfter(bytes) => {
            let answer = whole_answer(shared.server, &request);
            let _ = client.write_all(&answer[..answer.len().min(bytes)]);
            let _ = client.shutdown(Shutdown::Both);
        }
        Act::Delay(time) => {
            thread::sleep(time);
            pass(shared.server, &request, client);
        }
        Act::Dated(date) => {
            let answer = whole_answer(shared.server, &in_one_piece(&request));
            let _ = client.write_all(&dated(&answer, date));
        }
        Act::Pass => pass(shared.server, &request, client),
        Act::Rewrite(change) => {
            let answer = whole_answer(shared.server, &in_one_piece(&request));
            let _ = client.write_all(&rewritten(&answer, change));
        }
        Act::Swallow => locked(&shared.swallowed).push(client),
    }
}

/// One request, whole: who asks says that it is the connection's last.
fn request(client: &mut TcpStream) -> Option<(Seen, Vec<u8>)> {
    client.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() > 64 * 1024 {
            return None;
        }
        client.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let head = String::from_utf8(request.clone()).ok()?;
    let mut words = head.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.strip_prefix("/v1/")?.to_owned());
    let header = |wanted: &str| {
        let value =
            |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        head.lines()
            .filter_map(value)
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value)
    };
    let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    let mut body = vec![0; length.min(1024 * 1024)];
    client.read_exact(&mut body).ok()?;
    let said = serde_json::from_slice(&body).unwrap_or(Value::Null);
    request.append(&mut body);
    Some((Seen { method, path, token: header("x-vault-token"), body: said }, request))
}

fn pass(server: SocketAddr, request: &[u8], mut client: TcpStream) {
    let Ok(mut server) = TcpStream::connect(server) else { return };
    if server.write_all(request).is_ok() {
        let _ = std::io::copy(&mut server, &mut client);
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// The server's answer to its last byte.
fn whole_answer(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Ok(mut server) = TcpStream::connect(server)
        && server.write_all(request).is_ok()
    {
        let _ = server.read_to_end(&mut answer);
    }
    answer
}

/// The same request in HTTP/1.0, whose answers have no chunks.
fn in_one_piece(request: &[u8]) -> Vec<u8> {
    let end = request.iter().position(|byte| *byte == b'\r').unwrap_or_default();
    let (first, rest) = request.split_at(end);
    let first = String::from_utf8_lossy(first).replace("HTTP/1.1", "HTTP/1.0");
    [first.as_bytes(), rest].concat()
}

fn rewritten(answer: &[u8], change: fn(&mut Value)) -> Vec<u8> {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return answer.to_vec() };
    let Ok(mut value) = serde_json::from_str::<Value>(body) else { return answer.to_vec() };
    change(&mut value);
    let body = value.to_string();
    let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
    let head: Vec<&str> = head.split("\r\n").filter(|line| !is_length(line)).collect();
    format!("{}\r\nContent-Length: {}\r\n\r\n{body}", head.join("\r\n"), body.len()).into_bytes()
}

fn dated(answer: &[u8], date: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return answer.to_vec() };
    let is_date = |line: &&str| line.to_ascii_lowercase().starts_with("date:");
    let head: Vec<&str> = head.split("\r\n").filter(|line| !is_date(line)).collect();
    format!("{}\r\nDate: {date}\r\n\r\n{body}", head.join("\r\n")).into_bytes()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
