//! A proxy in front of a real OpenBao that records every request and can inject faults: delay it, cut the response,
//! never respond, or send a fixed response.
//!
//! Fixed responses are those that a single open-source server cannot be made to send (412, 472, 473, a lease without a
//! duration). What must stay true: a request that no rule matches is forwarded unchanged, and a rewritten response
//! comes from the real server, with only some JSON members changed. A test in
//! `vault_outages::fixed_responses` compares responses through the proxy with those of the server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::port::free_address;

/// A running proxy; it ends with the test's process.
#[derive(Debug)]
pub struct VaultFaultProxy {
    listens_at: SocketAddr,
    shared: Arc<Shared>,
}

/// What the proxy does with a request.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Forwards it and closes the connection after this many bytes of the response.
    CutAfter(usize),
    /// Forwards it and sets the `Date` of the response.
    Dated(&'static str),
    /// Forwards it after this time.
    Delay(Duration),
    Forward,
    /// Neither forwards it nor responds, until the rules are cleared.
    NeverRespond,
    /// Sends a fixed response, without the server.
    Respond(FixedResponse),
    /// Forwards it and changes members of the response.
    Rewrite(fn(&mut Value)),
}

/// A fixed response that the proxy sends itself.
#[derive(Clone, Copy, Debug)]
pub struct FixedResponse {
    pub status: u16,
    /// Header lines, each ended by `\r\n`; may be empty.
    pub headers: &'static str,
    pub body: &'static str,
}

/// A request that reached the proxy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenRequest {
    pub method: String,
    /// Below `/v1/`.
    pub path: String,
    /// Its `X-Vault-Token`.
    pub token: Option<String>,
    /// JSON, or null.
    pub body: Value,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    rules: Mutex<Vec<(String, Action)>>,
    seen: Mutex<Vec<SeenRequest>>,
    unanswered: Mutex<Vec<TcpStream>>,
}

impl VaultFaultProxy {
    /// Starts a proxy in front of a server.
    ///
    /// # Panics
    /// When loopback has no free port.
    pub fn in_front_of(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(free_address()).expect("the address was free");
        let listens_at = listener.local_addr().expect("it was just bound");
        let shared = Arc::new(Shared {
            server,
            rules: Mutex::default(),
            seen: Mutex::default(),
            unanswered: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                thread::spawn(move || serve(&shared, stream));
            }
        });
        Self { listens_at, shared }
    }

    pub fn listens_at(&self) -> SocketAddr {
        self.listens_at
    }

    /// Its URL, for configurations.
    pub fn address(&self) -> String {
        format!("http://{}", self.listens_at)
    }

    /// Sets the action for every path with this prefix, or for every request with a method and such a path, as in
    /// `POST sys/policy`; the newest rule that matches wins.
    pub fn rule(&self, prefix: &str, action: Action) {
        locked(&self.shared.rules).push((prefix.to_owned(), action));
    }

    /// Forwards everything again and closes the connections of requests without a response.
    pub fn clear_rules(&self) {
        locked(&self.shared.rules).clear();
        for stream in locked(&self.shared.unanswered).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// All requests so far, in order.
    pub fn seen(&self) -> Vec<SeenRequest> {
        locked(&self.shared.seen).clone()
    }

    /// How many requests there were for paths with this prefix.
    pub fn count(&self, prefix: &str) -> usize {
        locked(&self.shared.seen).iter().filter(|seen| seen.path.starts_with(prefix)).count()
    }
}

/// A second address of a server: forwards bytes of any protocol.
///
/// # Panics
/// When loopback has no free port.
pub fn second_address(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(free_address()).expect("the address was free");
    let listens_at = listener.local_addr().expect("it was just bound");
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(server) else { continue };
            let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
            for (mut from, mut to) in [(near, far), (far_too, near_too)] {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    listens_at
}

fn serve(shared: &Shared, mut client: TcpStream) {
    let Some((seen, request)) = request(&mut client) else { return };
    let rules = locked(&shared.rules).clone();
    let line = format!("{} {}", seen.method, seen.path);
    let matches = |prefix: &str| seen.path.starts_with(prefix) || line.starts_with(prefix);
    let rule = rules.iter().rev().find(|(prefix, _)| matches(prefix));
    locked(&shared.seen).push(seen);
    match rule.map_or(Action::Forward, |(_, action)| *action) {
        Action::Respond(FixedResponse { status, headers, body }) => {
            let length = body.len();
            let response = format!(
                "HTTP/1.1 {status} Fixed\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
            );
            let _ = client.write_all(response.as_bytes());
        }
        Action::CutAfter(bytes) => {
            let response = whole_response(shared.server, &request);
            let _ = client.write_all(&response[..response.len().min(bytes)]);
            let _ = client.shutdown(Shutdown::Both);
        }
        Action::Delay(time) => {
            thread::sleep(time);
            forward(shared.server, &request, client);
        }
        Action::Dated(date) => {
            let response = whole_response(shared.server, &as_http_1_0(&request));
            let _ = client.write_all(&dated(&response, date));
        }
        Action::Forward => forward(shared.server, &request, client),
        Action::Rewrite(change) => {
            let response = whole_response(shared.server, &as_http_1_0(&request));
            let _ = client.write_all(&rewritten(&response, change));
        }
        Action::NeverRespond => locked(&shared.unanswered).push(client),
    }
}

/// Reads one whole request. The sidecar sends one request per connection.
fn request(client: &mut TcpStream) -> Option<(SeenRequest, Vec<u8>)> {
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
    let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
    request.append(&mut body);
    Some((SeenRequest { method, path, token: header("x-vault-token"), body: json }, request))
}

fn forward(server: SocketAddr, request: &[u8], mut client: TcpStream) {
    let Ok(mut server) = TcpStream::connect(server) else { return };
    if server.write_all(request).is_ok() {
        let _ = std::io::copy(&mut server, &mut client);
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Sends the request and reads until the server closes the connection.
fn whole_response(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut response = Vec::new();
    if let Ok(mut server) = TcpStream::connect(server)
        && server.write_all(request).is_ok()
    {
        let _ = server.read_to_end(&mut response);
    }
    response
}

/// The same request in HTTP/1.0, so that the response is not chunked.
fn as_http_1_0(request: &[u8]) -> Vec<u8> {
    let end = request.iter().position(|byte| *byte == b'\r').unwrap_or_default();
    let (first, rest) = request.split_at(end);
    let first = String::from_utf8_lossy(first).replace("HTTP/1.1", "HTTP/1.0");
    [first.as_bytes(), rest].concat()
}

fn rewritten(response: &[u8], change: fn(&mut Value)) -> Vec<u8> {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return response.to_vec() };
    let Ok(mut value) = serde_json::from_str::<Value>(body) else { return response.to_vec() };
    change(&mut value);
    let body = value.to_string();
    let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
    let head: Vec<&str> = head.split("\r\n").filter(|line| !is_length(line)).collect();
    format!("{}\r\nContent-Length: {}\r\n\r\n{body}", head.join("\r\n"), body.len()).into_bytes()
}

fn dated(response: &[u8], date: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return response.to_vec() };
    let is_date = |line: &&str| line.to_ascii_lowercase().starts_with("date:");
    let head: Vec<&str> = head.split("\r\n").filter(|line| !is_date(line)).collect();
    format!("{}\r\nDate: {date}\r\n\r\n{body}", head.join("\r\n")).into_bytes()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
