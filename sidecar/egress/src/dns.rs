//! The few DNS messages that a server's network needs: a question is read, an answer to it is written.
//!
//! A library (hickory-proto) was not used: it reads and writes all of DNS, of which this is the smallest part, and every
//! byte here comes from a program that is not trusted. So only the header and one question are read: no name is
//! decompressed, nothing after the question is looked at.
//!
//! What must stay true: an answer is at most [`MAX_GROWTH`] longer than its question; the question is echoed byte for
//! byte, because clients choose the case of its letters at random to recognise the answer.

use std::net::Ipv4Addr;

/// The largest query that is read: 255 bytes of name, the header, and options of EDNS.
pub(crate) const MAX_QUERY: usize = 1232;
/// How much an answer may be longer than its question: one address.
#[cfg(test)]
const MAX_GROWTH: usize = 16;

const HEADER: usize = 12;
const MAX_NAME: usize = 255;
const MAX_LABEL: u8 = 63;

const IS_RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;

const TYPE_A: u16 = 1;
const TYPE_ANY: u16 = 255;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;

/// One question for records of a name.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Query<'a> {
    id: [u8; 2],
    recursion_desired: u8,
    /// As it came: the name, type and class.
    question: &'a [u8],
    labels: Vec<&'a [u8]>,
    kind: u16,
    class: u16,
}

/// What is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Address {
        address: Ipv4Addr,
        ttl: u32,
    },
    /// The name exists, but has no record of this type.
    NoRecord,
    NoSuchName,
    /// The question may be repeated later.
    TryLater,
}

/// A packet that is no question that can be answered.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Rejected {
    /// It gets no answer: an answer to an answer could go on forever.
    Silently,
    /// It gets this answer.
    With([u8; HEADER]),
}

#[derive(Clone, Copy)]
enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
}

impl<'a> Query<'a> {
    pub(crate) fn parse(packet: &'a [u8]) -> Result<Self, Rejected> {
        let Some((&[id_high, id_low, flags, _, questions_high, questions_low, ..], rest)) =
            packet.split_first_chunk::<HEADER>()
        else {
            return Err(Rejected::Silently);
        };
        if flags & IS_RESPONSE != 0 {
            return Err(Rejected::Silently);
        }
        let (id, recursion_desired) = ([id_high, id_low], flags & RECURSION_DESIRED);
        let reject = |code| Err(Rejected::With(header(id, recursion_desired, code, 0, 0)));
        if flags & OPCODE != 0 {
            return reject(Code::NotImplemented);
        }
        if [questions_high, questions_low] != [0, 1] {
            return reject(Code::FormatError);
        }
        let Some((labels, after)) = labels(rest) else { return reject(Code::FormatError) };
        let Some(&[t1, t2, c1, c2]) = after.first_chunk() else { return reject(Code::FormatError) };
        let question = &rest[..rest.len() - after.len() + 4];
        let (kind, class) = (u16::from_be_bytes([t1, t2]), u16::from_be_bytes([c1, c2]));
        Ok(Self { id, recursion_desired, question, labels, kind, class })
    }

    /// The name with dots between its labels, and whatever is not printable escaped.
    pub(crate) fn name(&self) -> String {
        let labels = self.labels.iter().map(|label| label.escape_ascii().to_string().replace('.', "\\."));
        labels.collect::<Vec<_>>().join(".")
    }

    /// Whether an IPv4 address is an answer to it.
    pub(crate) fn wants_address(&self) -> bool {
        self.is_of_internet() && matches!(self.kind, TYPE_A | TYPE_ANY)
    }

    pub(crate) fn is_of_internet(&self) -> bool {
        matches!(self.class, CLASS_IN | CLASS_ANY)
    }

    pub(crate) fn response(&self, answer: Answer) -> Vec<u8> {
        let (code, answers) = match answer {
            Answer::Address { .. } => (Code::NoError, 1),
            Answer::NoRecord => (Code::NoError, 0),
            Answer::NoSuchName => (Code::NoSuchName, 0),
            Answer::TryLater => (Code::ServerFailure, 0),
        };
        let mut packet = header(self.id, self.recursion_desired, code, 1, answers).to_vec();
        packet.extend_from_slice(self.question);
        if let Answer::Address { address, ttl } = answer {
            // The name of the question, which begins after the header.
            packet.extend_from_slice(&[0xc0, HEADER as u8]);
            packet.extend_from_slice(&TYPE_A.to_be_bytes());
            packet.extend_from_slice(&CLASS_IN.to_be_bytes());
            packet.extend_from_slice(&ttl.to_be_bytes());
            packet.extend_from_slice(&[0, 4]);
            packet.extend_from_slice(&address.octets());
        }
        packet
    }
}

/// The labels of an uncompressed name, and what follows it.
fn labels(mut rest: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (mut labels, all) = (Vec::new(), rest.len());
    loop {
        let (&length, after) = rest.split_first()?;
        if length > MAX_LABEL || all - after.len() > MAX_NAME {
            return None;
        }
        if length == 0 {
            return Some((labels, after));
        }
        let (label, after) = after.split_at_checked(length.into())?;
        labels.push(label);
        rest = after;
    }
}

fn header(id: [u8; 2], recursion_desired: u8, code: Code, questions: u8, answers: u8) -> [u8; HEADER] {
    let flags = [IS_RESPONSE | recursion_desired, RECURSION_AVAILABLE | code as u8];
    [id[0], id[1], flags[0], flags[1], 0, questions, 0, answers, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn query(name: &str, kind: u16, options: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!options.is_empty())];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            packet.push(u8::try_from(label.len()).unwrap());
            packet.extend_from_slice(label.as_bytes());
        }
        packet.push(0);
        packet.extend_from_slice(&kind.to_be_bytes());
        packet.extend_from_slice(&[0, 1]);
        packet.extend_from_slice(options);
        packet
    }

    fn rejection(packet: &[u8]) -> u8 {
        match Query::parse(packet) {
            Err(Rejected::With(header)) => {
                assert_eq!(header[..3], [packet[0], packet[1], 0x80 | packet[2] & 1]);
                assert_eq!(header[4..], [0; 8]);
                header[3] & 0xf
            }
            other => panic!("not rejected with an answer: {other:?}"),
        }
    }

    #[test]
    fn an_answer_echoes_the_question_and_adds_the_address() {
        let packet = query("aPi.GitHub.com", TYPE_A, &[]);
        let query = Query::parse(&packet).unwrap();
        assert_eq!(query.name(), "aPi.GitHub.com");
        assert!(query.wants_address());
        let address = Ipv4Addr::new(29, 18, 0, 1);
        let response = query.response(Answer::Address { address, ttl: 5 });
        let expected = [
            &[0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0],
            &packet[HEADER..],
            &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 29, 18, 0, 1],
        ];
        assert_eq!(response, expected.concat());
    }

    #[test]
    fn answers_without_an_address_differ_in_their_code() {
        let packet = query("a.example", 28, &[]);
        let query = Query::parse(&packet).unwrap();
        assert!(!query.wants_address());
        for (answer, code) in [(Answer::NoRecord, 0), (Answer::TryLater, 2), (Answer::NoSuchName, 3)] {
            let response = query.response(answer);
            assert_eq!(response[..HEADER], [0xab, 0xcd, 0x81, 0x80 | code, 0, 1, 0, 0, 0, 0, 0, 0]);
            assert_eq!(response[HEADER..], packet[HEADER..]);
        }
    }

    #[test]
    fn options_of_edns_are_not_answered() {
        let options = [0, 0, 41, 4, 0xd0, 0, 0, 0x80, 0, 0, 0];
        let packet = query("a.example", TYPE_A, &options);
        let response = Query::parse(&packet).unwrap().response(Answer::NoSuchName);
        assert_eq!(response.len(), packet.len() - options.len());
    }

    #[test]
    fn what_is_no_question_is_rejected() {
        let good = query("a.example", TYPE_A, &[]);
        let changed = |index: usize, value: u8| {
            let mut packet = good.clone();
            packet[index] = value;
            packet
        };
        assert_eq!(Query::parse(&changed(2, 0x81)), Err(Rejected::Silently));
        assert_eq!(Query::parse(&good[..HEADER - 1]), Err(Rejected::Silently));
        assert_eq!(rejection(&changed(2, 0x11)), 4, "another operation");
        for (what, packet) in [
            ("no question", changed(5, 0)),
            ("two questions", changed(5, 2)),
            ("256 questions", changed(4, 1)),
            ("a compressed name", changed(HEADER, 0xc0)),
            ("a long label", changed(HEADER, 64)),
            ("a label beyond the packet", changed(HEADER, 63)),
            ("half a type", good[..good.len() - 3].to_vec()),
            ("a long name", query(&["a".repeat(63).as_str(); 4].join("."), TYPE_A, &[])),
        ] {
            assert_eq!(rejection(&packet), 1, "{what}");
        }
    }

    #[test]
    fn a_name_of_strange_bytes_is_escaped() {
        let packet = query("a\0b\u{e9}", TYPE_A, &[]);
        assert_eq!(Query::parse(&packet).unwrap().name(), "a\\x00b\\xc3\\xa9");
        let mut dot_in_label = query("axb.example", TYPE_A, &[]);
        dot_in_label[HEADER + 2] = b'.';
        assert_eq!(Query::parse(&dot_in_label).unwrap().name(), "a\\.b.example");
    }

    proptest! {
        #[test]
        fn any_packet_is_answered_shortly_or_not_at_all(
            mut packet in proptest::collection::vec(any::<u8>(), 0..MAX_QUERY),
            plausible: bool,
        ) {
            if plausible && packet.len() >= HEADER {
                packet[2..6].copy_from_slice(&[1, 0, 0, 1]);
            }
            match Query::parse(&packet) {
                Ok(query) => {
                    let _ = query.name();
                    let longest = Answer::Address { address: Ipv4Addr::LOCALHOST, ttl: 5 };
                    prop_assert!(query.response(longest).len() <= packet.len() + MAX_GROWTH);
                }
                Err(Rejected::With(answer)) => prop_assert!(answer.len() <= packet.len()),
                Err(Rejected::Silently) => {}
            }
        }

        #[test]
        fn a_changed_query_never_panics(index in 0_usize..27, value: u8, length in 0_usize..27) {
            let mut packet = query("a.example", TYPE_A, &[]);
            packet[index] = value;
            packet.truncate(length);
            let _ = Query::parse(&packet).map(|query| query.name());
        }
    }
}
