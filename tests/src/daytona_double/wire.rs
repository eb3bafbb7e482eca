//! HTTP/1.1 as the double speaks it: one request per connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Larger than any upload of a test.
const MAX_BODY: usize = 64 * 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

/// A request whose body may not have been read yet.
pub(super) struct Request {
    pub(super) line: String,
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    /// Names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    /// The lines of the head as received, without the first.
    pub(super) head: Vec<String>,
    pub(super) body: Vec<u8>,
    pub(super) reader: BufReader<TcpStream>,
}

/// A complete response.
pub(super) struct Response {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    pub(super) fn read(stream: TcpStream) -> Option<Self> {
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let _ = stream.set_nodelay(true);
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = query.map(|(name, value)| (name.to_owned(), percent_decode(value))).collect();
        let path = path.to_owned();
        let (mut headers, mut head) = (BTreeMap::new(), Vec::new());
        loop {
            let mut field = String::new();
            reader.read_line(&mut field).ok()?;
            let Some((name, value)) = field.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            head.push(field.trim_end().to_owned());
        }
        let line = format!("{method} {target}");
        Some(Self { line, method, path, query, headers, head, body: Vec::new(), reader })
    }

    /// Reads at most `limit` bytes of the body; returns whether they arrived.
    pub(super) fn read_body(&mut self, limit: usize) -> bool {
        if self.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            return self.read_chunks(limit);
        }
        let length: usize =
            self.header("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
        if length > MAX_BODY {
            return false;
        }
        self.body = vec![0; length.min(limit)];
        self.reader.read_exact(&mut self.body).is_ok()
    }

    fn read_chunks(&mut self, limit: usize) -> bool {
        loop {
            let mut size = String::new();
            if self.reader.read_line(&mut size).is_err() {
                return false;
            }
            let Ok(size) = usize::from_str_radix(size.trim(), 16) else { return false };
            if size == 0 || self.body.len() + size > MAX_BODY {
                return size == 0;
            }
            let start = self.body.len();
            self.body.resize(start + size + 2, 0);
            if self.reader.read_exact(&mut self.body[start..]).is_err() {
                return false;
            }
            self.body.truncate(start + size);
            if self.body.len() >= limit {
                return true;
            }
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The segments of the path.
    pub(super) fn segments(&self) -> Vec<&str> {
        self.path.split('/').filter(|segment| !segment.is_empty()).collect()
    }

    pub(super) fn respond(mut self, response: &Response) {
        let Response { status, headers, body } = response;
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let head = format!(
            "HTTP/1.1 {status} Status\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let stream = self.reader.get_mut();
        // A client that disconnected needs no response.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    }

    /// Sends a response that ends before its `Content-Length`.
    pub(super) fn respond_half(mut self) {
        let half =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4096\r\n\r\n{\"id\":";
        // A client that disconnected needs no response.
        let _ = self.reader.get_mut().write_all(half.as_bytes());
    }

    /// Sends a gigabyte of JSON, until the client disconnects.
    pub(super) fn respond_with_gigabyte(mut self, announced: bool) {
        const GIGABYTE: usize = 1 << 30;
        let length = if announced { format!("content-length: {GIGABYTE}\r\n") } else { String::new() };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{length}connection: close\r\n\r\n\""
        );
        let stream = self.reader.get_mut();
        let mut sent = stream.write_all(head.as_bytes());
        let piece = [b'x'; 64 * 1024];
        for _ in 0..GIGABYTE / piece.len() {
            sent = sent.and_then(|()| stream.write_all(&piece));
            if sent.is_err() {
                return;
            }
        }
    }
}

impl Response {
    pub(super) fn json(status: u16, value: &Value) -> Self {
        let headers = vec!["content-type: application/json".to_owned()];
        Self { status, headers, body: value.to_string().into_bytes() }
    }

    /// An error with a message, in the form of Daytona's services.
    pub(super) fn error(status: u16, message: &str) -> Self {
        Self::json(status, &serde_json::json!({ "statusCode": status, "message": message }))
    }

    pub(super) fn bytes(body: Vec<u8>) -> Self {
        let headers = vec!["content-type: application/octet-stream".to_owned()];
        Self { status: 200, headers, body }
    }

    pub(super) fn multipart(boundary: &str, body: Vec<u8>) -> Self {
        Self {
            status: 200,
            headers: vec![format!("content-type: multipart/form-data; boundary={boundary}")],
            body,
        }
    }

    /// Without a body, but with a message if it is an error.
    pub(super) fn status(status: u16) -> Self {
        match status {
            400.. => Self::error(status, "as planned by the test"),
            _ => Self { status, headers: Vec::new(), body: Vec::new() },
        }
    }

    pub(super) fn retry_after(mut self, seconds: Option<u32>) -> Self {
        self.headers.extend(seconds.map(|seconds| format!("retry-after: {seconds}")));
        self
    }

    pub(super) fn location(mut self, address: &str) -> Self {
        self.headers.push(format!("location: {address}"));
        self
    }
}

/// Decodes a value of a query.
fn percent_decode(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let digits: Vec<u8> = if byte == b'%' { rest.by_ref().take(2).collect() } else { Vec::new() };
        let coded = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(match byte {
            b'+' => b' ',
            _ => coded.unwrap_or(byte),
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
