//! Decodes frames from received bytes, however these are split.
//!
//! What must stay true: a limit is checked before memory is allocated for what it bounds, so a peer that announces four
//! gigabytes costs nothing; an idle decoder holds no more than [`MAX_IDLE_BUFFER`] bytes; the same bytes give the same
//! frames however they were split.

use std::ops::Range;

use crate::frame::{DecodeError, Frame, FrameView, Kind, More, PREFACE};
use crate::limits::{MAX_IDLE_BUFFER, VERSION};

/// Takes received bytes and returns frames. Checks the preface first.
#[derive(Debug, Default)]
pub struct Decoder {
    /// All bytes are initialised; those in `start..end` were received and not decoded yet.
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
        let spare = match self.more {
            More::Follows => SPARE_BYTES_DURING_PARTS,
            More::Last => MIN_SPARE_BYTES,
        };
        self.free_idle_memory();
        self.make_room(spare.max(self.missing_bytes()));
        &mut self.buffer[self.end..]
    }

    /// `count` bytes were read into [`Self::spare`].
    pub fn filled(&mut self, count: usize) {
        assert!(
            count <= self.buffer.len() - self.end,
            "more bytes were reported than the buffer had room for"
        );
        if !matches!(self.state, DecoderState::Failed(_)) {
            self.end += count;
        }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if matches!(self.state, DecoderState::Failed(_)) {
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

    /// Like [`Self::next`], but does not copy a part's bytes. Frees unneeded memory before it returns `None`.
    pub fn next_view(&mut self) -> Result<Option<FrameView<'_>>, DecodeError> {
        let whole = match &self.state {
            DecoderState::Failed(error) => return Err(error.clone()),
            DecoderState::Frames => self.next_complete_frame(),
            DecoderState::Preface => self
                .read_preface()
                .and_then(|found| if found { self.next_complete_frame() } else { Ok(None) }),
        };
        if let Ok(None) = whole {
            self.free_idle_memory();
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
                *state = DecoderState::Failed(error.clone());
            }
        }
        decoded.map(Some)
    }

    /// Whether the buffer holds part of a frame or of the preface.
    pub fn has_partial_frame(&self) -> bool {
        self.start != self.end
    }

    /// Consumes the preface; `false` if it has not arrived completely.
    fn read_preface(&mut self) -> Result<bool, DecodeError> {
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

    /// The kind of the next frame and the span of its body, if it has arrived completely.
    fn next_complete_frame(&self) -> Result<Option<(Kind, Range<usize>)>, DecodeError> {
        let bytes = &self.buffer[self.start..self.end];
        let Some((kind, length)) = read_header(bytes)? else { return Ok(None) };
        let body = self.start + 5..self.start + 4 + length;
        Ok((body.end <= self.end).then_some((kind, body)))
    }

    /// Frees what an idle decoder does not need.
    fn free_idle_memory(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > MAX_IDLE_BUFFER && self.more == More::Last {
                self.buffer = Vec::new();
            }
        }
    }

    /// The missing bytes of a frame whose header has arrived and is within its limit.
    fn missing_bytes(&self) -> usize {
        let bytes = &self.buffer[self.start..self.end];
        match (&self.state, read_header(bytes)) {
            (DecoderState::Frames, Ok(Some((_, length)))) => (4 + length).saturating_sub(bytes.len()),
            _ => 0,
        }
    }

    fn make_room(&mut self, needed: usize) {
        if self.buffer.len() - self.end >= needed {
            return;
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() - self.end < needed {
            self.buffer.resize(self.end + needed, 0);
        }
    }
}

#[derive(Debug, Default)]
enum DecoderState {
    #[default]
    Preface,
    Frames,
    Failed(DecodeError),
}

const MIN_SPARE_BYTES: usize = 16 * 1024;
/// Two whole parts: fewer reads, and little to move when a read ends inside a part.
const SPARE_BYTES_DURING_PARTS: usize = 128 * 1024;
const PREFACE_NAME: &[u8] = b"cofferdam-relay/";
const MAX_VERSION_DIGITS: usize = 5;
/// How many of the peer's first bytes an error shows.
const MAX_SHOWN_BYTES: usize = 32;

/// Reads and checks the kind and the length of a frame; `None` until both have arrived.
fn read_header(bytes: &[u8]) -> Result<Option<(Kind, usize)>, DecodeError> {
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
    DecodeError::NotARelay { opening: bytes[..bytes.len().min(MAX_SHOWN_BYTES)].to_vec() }
}
