//! Which host a TLS client asks for, read from the first bytes that it sends.
//!
//! Nothing is decrypted or changed: the ClientHello is not encrypted, and the bytes are passed on as they came. rustls'
//! `Acceptor` is not used: it rejects hellos that other servers accept, and what it rejects tells nothing about the name
//! that a more tolerant server would read.
//!
//! What must stay true: any server that would take these bytes for a ClientHello reads no other name in them. So what
//! tolerant servers skip (alerts, empty records) is skipped here, a hello may be split over records and reads in any way,
//! all names in it count, and what begins as a ClientHello but cannot be read is an error, not "another protocol".
//! Not covered: a second hello after a HelloRetryRequest, and TLS that begins later in another protocol (STARTTLS).

/// Above every real hello (2 KB with post-quantum key shares); what is held back per connection.
const MAX_HELD: usize = 64 * 1024;

const RECORD_HEADER: usize = 5;
const CHANGE_CIPHER_SPEC: u8 = 0x14;
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;
const MAJOR_VERSION: u8 = 3;
const HANDSHAKE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Reads the beginning of what a client sends. It holds every byte that it was given.
#[derive(Debug, Default)]
pub(crate) struct HelloReader {
    held: Vec<u8>,
    /// How many of the held bytes are in records that were read.
    read: usize,
    /// The content of the handshake records read.
    handshake: Vec<u8>,
}

/// What a client's first bytes are.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Opening {
    /// A ClientHello with these names, usually one. Their case and a trailing dot are as sent.
    Hello {
        names: Vec<Vec<u8>>,
    },
    /// It cannot be told yet.
    Incomplete,
    NotTls,
    /// A ClientHello that cannot be read.
    Unreadable,
}

impl HelloReader {
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Opening {
        self.held.extend_from_slice(bytes);
        loop {
            let rest = self.held.get(self.read..).unwrap_or_default();
            let Some(&kind) = rest.first() else { return self.incomplete() };
            let is_tls = matches!(kind, CHANGE_CIPHER_SPEC | ALERT | HANDSHAKE);
            let has_version = rest.get(1).is_none_or(|version| *version == MAJOR_VERSION);
            if !is_tls || !has_version {
                // Between the parts of a hello no server accepts anything else.
                return if self.handshake.is_empty() { Opening::NotTls } else { Opening::Unreadable };
            }
            let &[_, _, _, high, low, ref rest @ ..] = rest else { return self.incomplete() };
            let length = usize::from(u16::from_be_bytes([high, low]));
            let Some(content) = rest.get(..length) else {
                // The first byte of a handshake tells another message from a ClientHello before all of it is here.
                let starts_otherwise = kind == HANDSHAKE
                    && self.handshake.is_empty()
                    && rest.first().is_some_and(|message| *message != CLIENT_HELLO);
                return if starts_otherwise { Opening::NotTls } else { self.incomplete() };
            };
            if kind == HANDSHAKE {
                self.handshake.extend_from_slice(content);
            }
            self.read += RECORD_HEADER + length;
            if let Some(opening) = self.opening() {
                return opening;
            }
        }
    }

    /// All bytes read so far.
    pub(crate) fn into_held(self) -> Vec<u8> {
        self.held
    }

    fn incomplete(&self) -> Opening {
        match self.held.len() <= MAX_HELD {
            true => Opening::Incomplete,
            false => Opening::Unreadable,
        }
    }

    /// What the handshake bytes are, if that can be told.
    fn opening(&self) -> Option<Opening> {
        if *self.handshake.first()? != CLIENT_HELLO {
            return Some(Opening::NotTls);
        }
        let &[_, high, middle, low, ref body @ ..] = self.handshake.as_slice() else { return None };
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        if length + HANDSHAKE_HEADER > MAX_HELD {
            return Some(Opening::Unreadable);
        }
        let body = body.get(..length)?;
        Some(names_of(body).map_or(Opening::Unreadable, |names| Opening::Hello { names }))
    }
}

/// The names in a ClientHello; `None` if it is malformed.
fn names_of(hello: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut hello = Fields(hello);
    hello.take(2 + 32)?; // version and random
    hello.vector_of_u8()?; // session id
    hello.vector_of_u16()?; // cipher suites
    hello.vector_of_u8()?; // compression methods
    let mut names = Vec::new();
    if hello.0.is_empty() {
        return Some(names);
    }
    let mut extensions = Fields(hello.vector_of_u16()?);
    if !hello.0.is_empty() {
        return None;
    }
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let mut content = Fields(extensions.vector_of_u16()?);
        if kind != SERVER_NAME {
            continue;
        }
        let mut list = Fields(content.vector_of_u16()?);
        if !content.0.is_empty() {
            return None;
        }
        while !list.0.is_empty() {
            let &[kind] = list.take(1)? else { return None };
            let name = list.vector_of_u16()?;
            if kind == HOST_NAME {
                names.push(name.to_vec());
            }
        }
    }
    Some(names)
}

/// What is left to read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn vector_of_u8(&mut self) -> Option<&'a [u8]> {
        let &[length] = self.take(1)? else { return None };
        self.take(length.into())
    }

    fn vector_of_u16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// The first record that rustls sends to `host`: a name, or an address, which is not sent.
    fn record(host: &str) -> Vec<u8> {
        let config =
            ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let mut client =
            ClientConnection::new(Arc::new(config), host.to_owned().try_into().unwrap()).unwrap();
        let mut record = Vec::new();
        client.write_tls(&mut record).unwrap();
        record
    }

    fn named(name: &str) -> Opening {
        Opening::Hello { names: vec![name.into()] }
    }

    fn read(bytes: &[u8]) -> Opening {
        HelloReader::default().read(bytes)
    }

    /// The handshake of `record` in records of at most `size` bytes.
    fn in_records(record: &[u8], size: usize) -> Vec<u8> {
        let parts = record[RECORD_HEADER..].chunks(size);
        parts
            .flat_map(|part| [&[HANDSHAKE, 3, 1, 0, u8::try_from(part.len()).unwrap()], part].concat())
            .collect()
    }

    /// A hello with these extensions, in one record.
    fn hello(extensions: &[u8]) -> Vec<u8> {
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
        let body = [&[3; 34][..], &[0, 0, 2, 0x13, 1, 1, 0], &length(extensions), extensions].concat();
        let message = [&[CLIENT_HELLO, 0], &length(&body)[..], &body].concat();
        [&[HANDSHAKE, 3, 1], &length(&message)[..], &message].concat()
    }

    fn server_name(name: &str) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        [&[0, 0, 0, length + 5, 0, length + 3, HOST_NAME, 0, length], name.as_bytes()].concat()
    }

    #[test]
    fn the_name_is_read_from_a_hello_cut_at_every_byte() {
        let record = record("uploads.github.com");
        for cut in 0..record.len() {
            let mut reader = HelloReader::default();
            assert_eq!(reader.read(&record[..cut]), Opening::Incomplete, "{cut}");
            assert_eq!(reader.read(&record[cut..]), named("uploads.github.com"), "{cut}");
            assert_eq!(reader.into_held(), record);
        }
    }

    #[test]
    fn the_name_is_read_from_a_hello_in_small_records_and_single_bytes() {
        let record = record("uploads.github.com");
        for size in [1, 2, 3, 7, 100] {
            let records = in_records(&record, size);
            let mut reader = HelloReader::default();
            let mut openings = records.iter().map(|byte| reader.read(&[*byte]));
            let decided = openings.find(|opening| *opening != Opening::Incomplete);
            assert_eq!(decided, Some(named("uploads.github.com")), "{size}");
            assert_eq!(openings.count(), 0, "decided at the last byte");
        }
    }

    #[test]
    fn a_hello_to_an_address_or_without_extensions_has_no_name() {
        assert_eq!(read(&record("10.0.0.5")), Opening::Hello { names: vec![] });
        let mut old = hello(&[]);
        old.truncate(old.len() - 2);
        old[4] -= 2;
        old[8] -= 2;
        assert_eq!(read(&old), Opening::Hello { names: vec![] });
    }

    #[test]
    fn what_tolerant_servers_skip_does_not_hide_a_name() {
        let record = record("uploads.github.com");
        let (warning, cipher_spec, empty) =
            ([ALERT, 3, 1, 0, 2, 1, 0], [0x14, 3, 3, 0, 1, 1], [HANDSHAKE, 3, 1, 0, 0]);
        for before in [&warning[..], &cipher_spec, &empty] {
            assert_eq!(read(&[before, &record].concat()), named("uploads.github.com"));
            let halves = in_records(&record, 200);
            let (first, second) = halves.split_at(RECORD_HEADER + 200);
            assert_eq!(read(&[first, before, second].concat()), named("uploads.github.com"));
        }
    }

    #[test]
    fn every_name_of_a_hello_counts() {
        let two = [server_name("a.example"), server_name("b.example")].concat();
        assert_eq!(
            read(&hello(&two)),
            Opening::Hello { names: vec!["a.example".into(), "b.example".into()] }
        );
    }

    #[test]
    fn other_protocols_are_recognised_at_once() {
        let openings: [&[u8]; 7] = [
            b"GET /",
            b"S",
            b"\0",
            b"\x80\x2e\x01",
            b"\x16\0",
            b"\x16\x03\x01\0\x04\0",
            b"\x16\x03\0\0\x09\x02",
        ];
        for opening in openings {
            assert_eq!(read(opening), Opening::NotTls, "{}", opening.escape_ascii());
        }
    }

    #[test]
    fn what_begins_as_a_hello_and_cannot_be_read_is_no_other_protocol() {
        let name = server_name("a.example");
        let mut short = name.clone();
        short[8] += 1;
        for extensions in [&short[..], &[name, vec![0]].concat()] {
            assert_eq!(read(&hello(extensions)), Opening::Unreadable);
        }
        let first_half = &in_records(&record("a.example"), 100)[..RECORD_HEADER + 100];
        assert_eq!(read(&[first_half, b"GET"].concat()), Opening::Unreadable);
        assert_eq!(read(&[HANDSHAKE, 3, 1, 0, 4, CLIENT_HELLO, 0xff, 0xff, 0xff]), Opening::Unreadable);
        let mut endless = HelloReader::default();
        let alerts = [ALERT, 3, 1, 0, 2, 1, 0].repeat(1000);
        let mut openings = std::iter::repeat_with(|| endless.read(&alerts)).take(20);
        assert!(openings.any(|opening| opening == Opening::Unreadable));
        assert!(endless.into_held().len() < MAX_HELD + 2 * alerts.len());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_however_they_are_cut(
            bytes in prop_oneof![any::<Vec<u8>>(), any::<Vec<u8>>().prop_map(|rest| [&hello(&[])[..20], &rest].concat())],
            size in 1_usize..40,
        ) {
            let mut reader = HelloReader::default();
            let in_pieces = bytes.chunks(size).map(|piece| reader.read(piece)).find(|opening| *opening != Opening::Incomplete);
            prop_assert_eq!(in_pieces.unwrap_or(Opening::Incomplete), read(&bytes));
        }

        #[test]
        fn a_changed_byte_never_panics(index in 0_usize..200, value: u8) {
            let mut record = record("a.example");
            if let Some(byte) = record.get_mut(index) {
                *byte = value;
            }
            let _ = read(&record);
        }
    }
}
