//! A minimal HTTP/1.1 server whose responses a test or a test's script supplies: one request and one response per connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// More than any message of a test.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// One request; its body is JSON, or null.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Value,
}

/// A response, or what is done instead.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The content of a file.
    Bytes(Vec<u8>),
    /// The connection is closed without a response.
    Cut,
    /// Server-sent events: name, which may be empty, and data.
    Events(Vec<(String, Value)>),
    /// No response; sends on the channel when the client has disconnected.
    Held(mpsc::Sender<()>),
    Json(Value),
    /// JSON, with the id of the MCP session that this response opens.
    Opens(String, Value),
    /// HTML.
    Page(String),
    /// To another URL, with the method kept.
    Redirect(String),
    /// No body.
    Status(u16),
}

/// Listens on a free loopback port and answers each request in its own thread, until the process exits.
///
/// # Panics
/// When loopback has no free port.
pub fn listen(response: impl Fn(Request) -> Reply + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let response = response.clone();
            std::thread::spawn(move || {
                if let Some((request, mut client)) = read(stream) {
                    write(&mut client, &response(request));
                }
            });
        }
    });
    address
}

/// Sends these bytes as a whole request and reads until the server closes; returns the status and the whole response,
/// or `None` without a response.
pub fn send_raw(address: SocketAddr, request: &[u8]) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    // A server may respond before it has read the whole request.
    let _ = stream.write_all(request);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response).into_owned();
    let status = response.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, response))
}

fn read(stream: TcpStream) -> Option<(Request, TcpStream)> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let (method, rest) = first.split_once(' ')?;
    let path = rest.split([' ', '?']).next()?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => _ = headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
            None => break,
        }
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    if length > MAX_BODY {
        return None;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some((Request { method: method.to_owned(), path, headers, body }, writer))
}

fn write(client: &mut TcpStream, reply: &Reply) {
    let (status, header, body) = match reply {
        Reply::Bytes(content) => (200, "content-type: application/octet-stream".to_owned(), content.clone()),
        Reply::Cut => return,
        Reply::Held(disconnected) => {
            if let Ok(0) = client.read(&mut [0]) {
                // The test may have dropped the receiver.
                let _ = disconnected.send(());
            }
            return;
        }
        Reply::Events(events) => {
            let event = |(name, data): &(String, Value)| match name.is_empty() {
                true => format!("data: {data}\n\n"),
                false => format!("event: {name}\ndata: {data}\n\n"),
            };
            (
                200,
                "content-type: text/event-stream".to_owned(),
                events.iter().map(event).collect::<String>().into(),
            )
        }
        Reply::Json(value) => (200, "content-type: application/json".to_owned(), value.to_string().into()),
        Reply::Opens(session, value) => {
            let header = format!("content-type: application/json\r\nmcp-session-id: {session}");
            (200, header, value.to_string().into())
        }
        Reply::Page(html) => (200, "content-type: text/html".to_owned(), html.clone().into_bytes()),
        Reply::Redirect(url) => (307, format!("location: {url}"), Vec::new()),
        Reply::Status(status) => (*status, "x-nothing: more".to_owned(), Vec::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Status\r\n{header}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    // A client that disconnected needs no response.
    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body));
}
