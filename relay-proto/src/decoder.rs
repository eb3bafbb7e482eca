//! Bytes in any split → frames.
//!
//! What must stay true: a limit is checked before memory is allocated for what it bounds, so a peer that announces four
//! gigabytes costs nothing; an idle decoder holds no more than [`MAX_IDLE_BUFFER`] bytes; the same bytes give the same
//! frames however they were split.

use std::ops::Range;

use crate::frame::{DecodeError, Frame, FrameView, Kind, More, PREFACE};
use crate::limits::{MAX_IDLE_BUFFER, VERSION};

/// Takes received bytes, returns frames. Checks the preface first, and a frame's length before it makes room for it.
#[derive(Debug, Default)]
pub struct Decoder {
    /// All initialised; only `start..end` was received.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    state: DecoderState,
    /// Whether the last part announced another one.
    more: More,
}

impl Decoder {
    /// A decoder that expects the peer's preface first.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer to read into: at least 16 KiB, enough for the rest of a frame that has begun, and 128 KiB during a message
    /// in parts. Report what was read with [`Self::filled`], or pass bytes from elsewhere to [`Self::feed`].
    pub fn spare(&mut self) -> &mut [u8] {
        let room = match self.more {
            More::Follows => ROOM_FOR_PARTS,
            More::Last => ROOM,
        };
        self.tidy();
        self.make_room(room.max(self.missing()));
        &mut self.buffer[self.end..]
    }

    /// `count` bytes were read into [`Self::spare`].
    pub fn filled(&mut self, count: usize) {
        assert!(
            count <= self.buffer.len() - self.end,
            "more bytes were reported than the buffer had room for"
        );
        if !matches!(self.state, DecoderState::Dead(_)) {
            self.end += count;
        }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if matches!(self.state, DecoderState::Dead(_)) {
            return;
        }
        self.make_room(bytes.len());
        self.buffer[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// `None` means that the next frame is incomplete. After an error, every call returns that error.
    #[expect(clippy::should_implement_trait, reason = "no iterator: `None` is not the end")]
    pub fn next(&mut self) -> Result<Option<Frame>, DecodeError> {
        Ok(self.next_view()?.map(FrameView::to_frame))
    }

    /// The same, without a copy of a part's bytes. Memory that is not needed is freed when it returns `None`.
    pub fn next_view(&mut self) -> Result<Option<FrameView<'_>>, DecodeError> {
        let whole = match &self.state {
            DecoderState::Dead(error) => return Err(error.clone()),
            DecoderState::Frames => self.whole_frame(),
            DecoderState::Preface => {
                self.preface().and_then(|found| if found { self.whole_frame() } else { Ok(None) })
            }
        };
        if let Ok(None) = whole {
            self.tidy();
        }
        // Destructured, because the returned frame borrows the buffer.
        let Self { buffer, start, end, state, more } = self;
        let decoded = match whole {
            Ok(None) => return Ok(None),
            Ok(Some((kind, body))) => {
                *start = body.end;
                Frame::decode(kind, &buffer[body])
            }
            Err(error) => Err(error),
        };
        match &decoded {
            Ok(FrameView::Message(part)) => *more = part.flags.more,
            Ok(FrameView::Control(_)) => {}
            Err(error) => {
                (*start, *end) = (0, 0);
                *state = DecoderState::Dead(error.clone());
            }
        }
        decoded.map(Some)
    }

    /// Whether the buffer holds part of a frame or of the preface.
    pub fn has_partial_frame(&self) -> bool {
        self.start != self.end
    }

    fn preface(&mut self) -> Result<bool, DecodeError> {
        let bytes = &self.buffer[self.start..self.end];
        let common = bytes.len().min(PREFACE_NAME.len());
        if bytes[..common] != PREFACE_NAME[..common] {
            return Err(not_a_relay(bytes));
        }
        let version = &bytes[common..];
        let digits = version.iter().take_while(|byte| byte.is_ascii_digit()).count();
        match version.get(digits) {
            None if digits <= MAX_VERSION_DIGITS => return Ok(false),
            Some(b'\n') if (1..=MAX_VERSION_DIGITS).contains(&digits) => {}
            _ => return Err(not_a_relay(bytes)),
        }
        let theirs = std::str::from_utf8(&version[..digits]).ok().and_then(|text| text.parse().ok());
        match theirs {
            Some(VERSION) if bytes.starts_with(PREFACE) => {
                self.start += PREFACE.len();
                self.state = DecoderState::Frames;
                Ok(true)
            }
            Some(theirs) if theirs != VERSION => Err(DecodeError::OtherVersion { ours: VERSION, theirs }),
            _ => Err(not_a_relay(bytes)),
        }
    }

    /// The complete frame at the front: its kind and the span of its body.
    fn whole_frame(&self) -> Result<Option<(Kind, Range<usize>)>, DecodeError> {
        let bytes = &self.buffer[self.start..self.end];
        let Some((kind, length)) = header(bytes)? else { return Ok(None) };
        let body = self.start + 5..self.start + 4 + length;
        Ok((body.end <= self.end).then_some((kind, body)))
    }

    /// Frees what an idle decoder does not need.
    fn tidy(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > MAX_IDLE_BUFFER && self.more == More::Last {
                self.buffer = Vec::new();
            }
        }
    }

    /// The missing bytes of a frame whose header has arrived and is within its limit.
    fn missing(&self) -> usize {
        let bytes = &self.buffer[self.start..self.end];
        match (&self.state, header(bytes)) {
            (DecoderState::Frames, Ok(Some((_, length)))) => (4 + length).saturating_sub(bytes.len()),
            _ => 0,
        }
    }

    fn make_room(&mut self, wanted: usize) {
        if self.buffer.len() - self.end >= wanted {
            return;
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() - self.end < wanted {
            self.buffer.resize(self.end + wanted, 0);
        }
    }
}

#[derive(Debug, Default)]
enum DecoderState {
    #[default]
    Preface,
    Frames,
    Dead(DecodeError),
}

const ROOM: usize = 16 * 1024;
/// Two whole parts: fewer reads, and little to move when a read ends inside a part.
const ROOM_FOR_PARTS: usize = 128 * 1024;
const PREFACE_NAME: &[u8] = b"cofferdam-relay/";
const MAX_VERSION_DIGITS: usize = 5;
/// How many of the peer's first bytes an error shows.
const SHOWN: usize = 32;

/// Kind and length, checked, once both have arrived.
fn header(bytes: &[u8]) -> Result<Option<(Kind, usize)>, DecodeError> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length == 0 {
        return Err(DecodeError::Empty);
    }
    let Some(kind) = rest.first() else { return Ok(None) };
    let kind = Kind::read(*kind)?;
    let max = 1 + kind.max_body();
    match length > max {
        true => Err(DecodeError::TooLarge { kind: kind.name(), length, max }),
        false => Ok(Some((kind, length))),
    }
}

fn not_a_relay(bytes: &[u8]) -> DecodeError {
    DecodeError::NotARelay { opening: bytes[..bytes.len().min(SHOWN)].to_vec() }
}
