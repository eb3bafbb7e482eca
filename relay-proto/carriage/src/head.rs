//! Reads the head of an HTTP message up to its empty line, at most [`MAX_HEAD`] bytes.

use std::io;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use crate::Stream;

/// In bytes; enough for the headers of any proxy or load balancer.
pub(crate) const MAX_HEAD: usize = 8 * 1024;

/// A head, and the bytes received after it.
#[derive(Debug)]
pub(crate) struct Head {
    bytes: Vec<u8>,
    pub(crate) rest: Bytes,
}

/// The status, the version and the headers of a head.
#[derive(Debug)]
pub(crate) struct ParsedHead {
    /// The status of a response; 0 for a request.
    pub(crate) status: u16,
    pub(crate) version: HttpVersion,
    headers: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HttpVersion {
    /// Has no upgrades. nginx forwards requests in this version unless it is configured otherwise.
    Http10,
    Http11,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer does not speak HTTP")]
    NotHttp,
    #[error("the HTTP head is longer than {MAX_HEAD} bytes")]
    TooLong,
}

/// Reads a head that begins with `start`; anything else is refused at the first byte that differs.
pub(crate) async fn read<S: Stream>(stream: &mut S, start: &[u8]) -> Result<Head, HeadError> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let before = bytes.len();
        let limit = (MAX_HEAD - before).min(1024) as u64;
        if limit == 0 {
            return Err(HeadError::TooLong);
        }
        if stream.take(limit).read_buf(&mut bytes).await? == 0 {
            return Err(HeadError::Closed);
        }
        let common = bytes.len().min(start.len());
        if bytes[..common] != start[..common] {
            return Err(HeadError::NotHttp);
        }
        let from = before.saturating_sub(END.len() - 1);
        if let Some(found) = bytes[from..].windows(END.len()).position(|window| window == END) {
            let rest = bytes.split_off(from + found + END.len());
            return Ok(Head { bytes, rest: rest.into() });
        }
    }
}

impl Head {
    pub(crate) fn parse_response(&self) -> Result<ParsedHead, HeadError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        match (response.parse(&self.bytes), response.code, response.version.and_then(HttpVersion::of_minor)) {
            (Ok(httparse::Status::Complete(_)), Some(status), Some(version)) => {
                Ok(ParsedHead::new(status, version, response.headers))
            }
            _ => Err(HeadError::NotHttp),
        }
    }

    pub(crate) fn parse_request(&self) -> Result<ParsedHead, HeadError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match (request.parse(&self.bytes), request.version.and_then(HttpVersion::of_minor)) {
            (Ok(httparse::Status::Complete(_)), Some(version)) => {
                Ok(ParsedHead::new(0, version, request.headers))
            }
            _ => Err(HeadError::NotHttp),
        }
    }
}

impl HttpVersion {
    fn of_minor(minor: u8) -> Option<Self> {
        match minor {
            0 => Some(Self::Http10),
            1 => Some(Self::Http11),
            _ => None,
        }
    }
}

impl ParsedHead {
    fn new(status: u16, version: HttpVersion, headers: &[httparse::Header<'_>]) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        Self {
            status,
            version,
            headers: headers.iter().map(|header| (header.name.into(), text(header.value))).collect(),
        }
    }

    /// The value of a header that occurs exactly once.
    pub(crate) fn single_value(&self, name: &str) -> Option<&str> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Whether the comma-separated list in the headers with this name contains `item`.
    pub(crate) fn list_contains(&self, name: &str, item: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(','))
            .any(|found| found.trim().eq_ignore_ascii_case(item))
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.headers
            .iter()
            .filter(move |header| header.0.eq_ignore_ascii_case(name))
            .map(|header| header.1.as_str())
    }
}

const END: &[u8] = b"\r\n\r\n";
const MAX_HEADERS: usize = 64;

/// Base64 with padding, which is how HTTP carries bytes.
pub(crate) fn base64_encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            match place <= chunk.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let vectors = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, encoded) in vectors {
            assert_eq!(base64_encode(plain.as_bytes()), encoded);
        }
        assert_eq!(base64_encode(&[0xff, 0xfe, 0xfb, 0xef, 0xbe]), "//77774=");
    }

    async fn read_from(text: &[u8]) -> Result<Head, HeadError> {
        // One byte at a time, to test every split.
        let (mut writer, mut reader) = duplex(1);
        let write = async move { writer.write_all(text).await };
        let (_, head) = tokio::join!(write, async {
            let head = read(&mut reader, b"HTTP/1.").await;
            drop(reader);
            head
        });
        head
    }

    #[tokio::test]
    async fn a_head_ends_at_its_empty_line() {
        let head =
            read_from(b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nA: x, Y\r\na: z\r\n\r\n").await.unwrap();
        assert!(head.rest.is_empty());
        let parsed = head.parse_response().unwrap();
        assert_eq!((parsed.status, parsed.version), (101, HttpVersion::Http11));
        assert_eq!(parsed.single_value("upgrade"), Some("websocket"));
        assert_eq!(parsed.single_value("a"), None, "a header that occurs twice has no single value");
        assert!(
            parsed.list_contains("A", "y")
                && parsed.list_contains("A", "Z")
                && !parsed.list_contains("A", "x, y")
        );
    }

    #[tokio::test]
    async fn bytes_after_the_head_are_kept() {
        let (mut writer, mut reader) = duplex(1024);
        writer.write_all(b"HTTP/1.1 200 OK\r\n\r\nmore").await.unwrap();
        assert_eq!(read(&mut reader, b"HTTP/1.").await.unwrap().rest, "more");
    }

    #[tokio::test]
    async fn other_input_is_refused() {
        assert!(matches!(read_from(b"SSH-2.0").await, Err(HeadError::NotHttp)));
        assert!(matches!(read_from(b"HTTP/1.1 200 OK\r\n").await, Err(HeadError::Closed)));
        let long = [b"HTTP/1.1 200 OK\r\nA: ", vec![b'x'; MAX_HEAD].as_slice(), b"\r\n\r\n"].concat();
        assert!(matches!(read_from(&long).await, Err(HeadError::TooLong)));
        let many =
            [b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: x\r\n".repeat(MAX_HEADERS + 1), b"\r\n".to_vec()].concat();
        assert!(matches!(read_from(&many).await.unwrap().parse_response(), Err(HeadError::NotHttp)));
        assert!(matches!(
            read_from(b"HTTP/1.1 x\r\n\r\n").await.unwrap().parse_response(),
            Err(HeadError::NotHttp)
        ));
    }
}
