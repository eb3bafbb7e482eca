//! Copies one direction of one connection, from its first byte to the end that its plan sets.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use super::endpoint::Stream;
use super::frames::frames;
use super::plan::{DirectionPlan, End, How, Position, Rest};
use super::proxy::{Connection, Shared};
use super::random::Random;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Way {
    TowardsShim,
    TowardsSidecar,
}

/// Small pieces and delays apply to this much of a stream: handshake, headers, and one or two messages.
const DISTURBED_BYTES: usize = 4096;
/// The most bytes of an old connection that are withheld; a shim has no more than this in transit.
const MAX_WITHHELD: usize = 8 * 1024 * 1024;
/// How many of a stream's first bytes are stored to find frames in: more than any `Hello` has.
const HEAD_BYTES: usize = 16 * 1024;

/// Runs until the direction ends.
pub(super) fn run(way: Way, connection: &Connection, shared: &Shared) -> io::Result<()> {
    let (from, to, direction) = match way {
        Way::TowardsShim => (&connection.sidecar, &connection.shim, &connection.plan.towards_shim),
        Way::TowardsSidecar => (&connection.shim, &connection.sidecar, &connection.plan.towards_sidecar),
    };
    let (mut from, mut to, mut rest) = (from.try_clone()?, to.try_clone()?, direction.rest.clone());
    let mut stream = Progress::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let (allowed, ends) = stream.allowed(direction);
        // Counted first: once the peer has the bytes, a test may ask for their number.
        shared.update(|state| state.forwarded.insert((connection.number, way), stream.sent + allowed));
        if forward(&stream.waiting[..allowed], stream.sent, direction, &mut rest, &mut to).is_err() {
            // The shim stopped reading; the sidecar must be able to go on writing.
            if connection.plan.is_late() {
                discard(&mut from);
            }
            break;
        }
        stream.forwarded(allowed);
        if let Some(opening) = stream.completed_handshake() {
            shared.update(|state| state.openings.insert((connection.number, way), opening));
        }
        if way == Way::TowardsSidecar && stream.has_passed_hello() {
            shared.update(|state| state.newest_hello = state.newest_hello.max(connection.number));
        }
        if let Some(how) = ends {
            shared.update(|state| state.ended.insert(connection.number, stream.sent));
            end(how, &mut from, &mut to, &stream.waiting, connection, shared);
            return Ok(());
        }
        match from.read(&mut buffer) {
            Ok(count) if count > 0 => stream.received(&buffer[..count]),
            _ => break,
        }
    }
    to.close(Shutdown::Write);
    from.close(Shutdown::Read);
    Ok(())
}

/// The progress of a stream.
#[derive(Debug, Default)]
struct Progress {
    /// The first bytes of the stream, in which frames are looked for.
    head: Vec<u8>,
    /// Bytes that were received and not forwarded yet.
    waiting: Vec<u8>,
    sent: usize,
    handshake_done: bool,
}

impl Progress {
    fn received(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.waiting.extend_from_slice(bytes);
    }

    fn forwarded(&mut self, count: usize) {
        self.waiting.drain(..count);
        self.sent += count;
    }

    /// How many of the waiting bytes may be forwarded now, and what happens after them.
    fn allowed(&self, direction: &DirectionPlan) -> (usize, Option<How>) {
        let received_bytes = self.sent + self.waiting.len();
        let Some(End { at, how }) = direction.end else { return (self.waiting.len(), None) };
        let (limit, known) = match at {
            Position::Byte(limit) => (limit, true),
            Position::Message { number, byte } => {
                let (found, next) = frames(&self.head);
                match found.iter().filter(|frame| frame.is_message()).nth(number) {
                    Some(frame) => (frame.start + byte, true),
                    // Bytes of a frame whose header is incomplete are not forwarded yet.
                    None if received_bytes <= HEAD_BYTES => (next, false),
                    None => (usize::MAX, false),
                }
            }
        };
        let allowed = limit.min(received_bytes).saturating_sub(self.sent);
        (allowed, (known && received_bytes >= limit).then_some(how))
    }

    /// The length of the handshake, returned once: when its last byte has passed.
    fn completed_handshake(&mut self) -> Option<usize> {
        if self.handshake_done {
            return None;
        }
        let opening = frames(&self.head).0.first()?.end;
        self.handshake_done = self.sent >= opening;
        self.handshake_done.then_some(opening)
    }

    fn has_passed_hello(&self) -> bool {
        self.handshake_done || self.sent >= OPAQUE_HELLO
    }
}

/// If the stream is encrypted and cannot be parsed, a Hello counts as passed after this many bytes.
const OPAQUE_HELLO: usize = 2000;

fn forward(
    bytes: &[u8],
    sent: usize,
    direction: &DirectionPlan,
    rest: &mut Rest,
    to: &mut Stream,
) -> io::Result<()> {
    let disturbed_bytes = DISTURBED_BYTES.saturating_sub(sent).min(bytes.len());
    let (disturbed, others) = bytes.split_at(disturbed_bytes);
    for piece in disturbed.chunks(direction.piece) {
        if !direction.delay.is_zero() && direction.piece > 64 {
            std::thread::sleep(direction.delay);
        }
        to.write_all(piece)?;
    }
    match rest {
        Rest::AsTheyCome => to.write_all(others),
        Rest::Torn(random) => send_split(others, random, to),
    }
}

/// Splits mostly into large pieces, for speed; some are single bytes.
fn send_split(mut bytes: &[u8], random: &mut Random, to: &mut Stream) -> io::Result<()> {
    while !bytes.is_empty() {
        let longest = [1, 20, 1_000, 20_000][random.within(0..=3) as usize];
        let (piece, rest) = bytes.split_at((random.within(1..=longest) as usize).min(bytes.len()));
        if random.percent(2) {
            std::thread::sleep(Duration::from_millis(random.within(1..=20)));
        }
        to.write_all(piece)?;
        bytes = rest;
    }
    Ok(())
}

fn end(how: How, from: &mut Stream, to: &mut Stream, rest: &[u8], connection: &Connection, shared: &Shared) {
    match how {
        How::Cut => {
            connection.cut();
            shared.update(|state| state.tally.cut += 1);
        }
        How::Truncate => {
            to.close(Shutdown::Write);
            shared.update(|state| state.tally.truncated += 1);
            // A full buffer would block the writer.
            discard(from);
        }
        How::Late { pause } => {
            connection.shim.close(Shutdown::Write);
            let mut withheld = rest.to_vec();
            let _ = from.take(MAX_WITHHELD as u64).read_to_end(&mut withheld);
            shared.wait_for_a_later_hello(connection.number);
            std::thread::sleep(pause);
            let delivered = to.write_all(&withheld).is_ok();
            to.close(Shutdown::Both);
            shared.update(|state| {
                state.tally.late += 1;
                state.tally.late_bytes += if delivered { withheld.len() } else { 0 };
            });
        }
    }
}

fn discard(from: &mut Stream) {
    let _ = io::copy(from, &mut io::sink());
}
