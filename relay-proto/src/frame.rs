//! The frames and their encoding: `u32` length of the rest, `u8` kind, body. Integers are big-endian.
//!
//! The body of a message is `u64` sequence number, `u8` flags, the origin if it may have run, and raw MCP bytes; every
//! other body is a JSON object. The error for an unknown kind, flag or version contains the number.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ack;
pub use crate::ack::Ack;
use crate::control::{Goodbye, Hello, Refusal, Status, Welcome};
use crate::limits::{MAX_CODE, MAX_CONTROL_BODY, MAX_LINK_ID, MAX_MESSAGE_PART, MAX_SENTENCE};

/// What each side sends before its first frame; the digit is the framing's version.
pub const PREFACE: &[u8] = b"cofferdam-relay/1\n";

/// The bytes of a `Message` frame besides the MCP bytes: length, kind, sequence number, flags.
pub const PART_OVERHEAD: usize = 4 + 1 + PART_HEADER;

/// One decoded frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Frame {
    Ack(Ack),
    Goodbye(Goodbye),
    Hello(Hello),
    Message(Part),
    Ping,
    Pong,
    Refusal(Refusal),
    Status(Status),
    Welcome(Welcome),
}

/// A part of one MCP message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Part {
    pub seq: u64,
    pub flags: PartFlags,
    pub bytes: Vec<u8>,
}

/// A frame in the buffer that it was read into: a part's bytes are not copied.
#[derive(Debug)]
pub enum FrameView<'a> {
    /// Any frame but `Message`. These are large and rare: boxed, so that this type stays small.
    Control(Box<Frame>),
    Message(PartView<'a>),
}

/// A [`Part`] that borrows its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PartView<'a> {
    pub seq: u64,
    pub flags: PartFlags,
    pub bytes: &'a [u8],
}

/// The properties of a part.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PartFlags {
    /// Whether more parts of the same message follow.
    pub more: More,
    /// On a message's first part: whether it was sent before, on a link that was not resumed.
    pub maybe_ran: MaybeRan,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum More {
    #[default]
    Last,
    Follows,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum MaybeRan {
    #[default]
    No,
    /// It was sent before, with this origin; the sidecar's audit shows whether it was forwarded to the server.
    Yes(Origin),
}

/// Identifies a message of an earlier link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The id of that link; at most [`MAX_LINK_ID`](crate::limits::MAX_LINK_ID) bytes.
    pub link: Box<str>,
    /// The sequence number of its first part.
    pub seq: u64,
}

/// Why received bytes violate the protocol. After such an error no more frames are decoded.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    #[error("a message that may have run does not name its original link and sequence number")]
    BadOrigin,
    #[error("cannot read a frame of kind {kind}: {reason}")]
    Body { kind: &'static str, reason: String },
    #[error("a frame has length 0, so its kind is missing")]
    Empty,
    #[error("the peer does not speak the relay protocol: its first bytes are `{}`", .opening.escape_ascii())]
    NotARelay { opening: Vec<u8> },
    #[error("the peer speaks version {theirs} of the relay protocol, this side speaks {ours}: {}", upgrade_advice(*.ours, *.theirs))]
    OtherVersion { ours: u16, theirs: u16 },
    #[error("a message frame of {0} bytes is too short to have a sequence number and flags")]
    ShortMessage(usize),
    #[error("a {kind} frame of {length} bytes is over the limit of {max}")]
    TooLarge { kind: &'static str, length: usize, max: usize },
    #[error("message flags {0:#04x} are not known to this version")]
    UnknownFlags(u8),
    #[error("frame kind {0:#04x} is not known to this version")]
    UnknownKind(u8),
}

impl Frame {
    /// Appends the frame's bytes to `out`. The text of a Refusal or Goodbye is truncated to fit [`MAX_CONTROL_BODY`]; the
    /// peer refuses a longer frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack(ack) => encode_body(Kind::Ack, out, |out| ack::write(*ack, out)),
            Self::Goodbye(Goodbye { code, message, retry }) => {
                let (code, message) =
                    (truncate(code, MAX_CODE).into(), truncate(message, MAX_SENTENCE).into());
                encode_control(Kind::Goodbye, &Goodbye { code, message, retry: *retry }, out);
            }
            Self::Hello(hello) => encode_control(Kind::Hello, hello, out),
            Self::Message(part) => encode_part(part.seq, &part.flags, &part.bytes, out),
            Self::Ping => encode_control(Kind::Ping, &EmptyBody {}, out),
            Self::Pong => encode_control(Kind::Pong, &EmptyBody {}, out),
            Self::Refusal(Refusal { code, message, retry }) => {
                let (code, message) =
                    (truncate(code, MAX_CODE).into(), truncate(message, MAX_SENTENCE).into());
                encode_control(Kind::Refusal, &Refusal { code, message, retry: *retry }, out);
            }
            Self::Status(status) => encode_control(Kind::Status, status, out),
            Self::Welcome(welcome) => encode_control(Kind::Welcome, welcome, out),
        }
    }

    /// Reads the body of a frame of this kind. Its length was checked before.
    pub(crate) fn decode(kind: Kind, body: &[u8]) -> Result<FrameView<'_>, DecodeError> {
        Ok(FrameView::Control(Box::new(match kind {
            Kind::Ack => Self::Ack(match ack::read(body) {
                Some(ack) => ack,
                None => decode_control(kind, body)?,
            }),
            Kind::Goodbye => Self::Goodbye(decode_control(kind, body)?),
            Kind::Hello => Self::Hello(decode_control(kind, body)?),
            Kind::Message => return decode_part(body).map(FrameView::Message),
            Kind::Ping => {
                let EmptyBody {} = decode_control(kind, body)?;
                Self::Ping
            }
            Kind::Pong => {
                let EmptyBody {} = decode_control(kind, body)?;
                Self::Pong
            }
            Kind::Refusal => Self::Refusal(decode_control(kind, body)?),
            Kind::Status => Self::Status(decode_control(kind, body)?),
            Kind::Welcome => Self::Welcome(decode_control(kind, body)?),
        })))
    }
}

impl FrameView<'_> {
    /// Copies a part's bytes, so that the frame borrows nothing.
    pub fn to_frame(self) -> Frame {
        match self {
            Self::Control(frame) => *frame,
            Self::Message(PartView { seq, flags, bytes }) => {
                Frame::Message(Part { seq, flags, bytes: bytes.to_vec() })
            }
        }
    }
}

/// Appends one `Message` frame to `out` without an intermediate copy of `bytes`, which are at most
/// [`MAX_MESSAGE_PART`] long.
pub fn encode_part(seq: u64, flags: &PartFlags, bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() <= MAX_MESSAGE_PART, "the peer refuses longer parts");
    let frame_length = part_length(flags, bytes);
    out.reserve(frame_length);
    let length = (frame_length - 4) as u32;
    out.extend_from_slice(&length.to_be_bytes());
    out.push(Kind::Message as u8);
    out.extend_from_slice(&seq.to_be_bytes());
    out.push(flags.to_byte());
    if let MaybeRan::Yes(origin) = &flags.maybe_ran {
        debug_assert!(origin.link.len() <= MAX_LINK_ID, "the peer refuses longer ids");
        out.extend_from_slice(&origin.seq.to_be_bytes());
        out.push(origin.link.len() as u8);
        out.extend_from_slice(origin.link.as_bytes());
    }
    out.extend_from_slice(bytes);
}

/// The length of a whole `Message` frame in bytes, which is what credit counts.
pub fn part_length(flags: &PartFlags, bytes: &[u8]) -> usize {
    let origin = match &flags.maybe_ran {
        MaybeRan::No => 0,
        MaybeRan::Yes(origin) => ORIGIN_HEADER + origin.link.len(),
    };
    PART_OVERHEAD + origin + bytes.len()
}

/// The kinds of frames by number; those below 0x10 are the handshake's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 0x01,
    Welcome = 0x02,
    Refusal = 0x03,
    Status = 0x04,
    Message = 0x10,
    Ack = 0x11,
    Ping = 0x12,
    Pong = 0x13,
    Goodbye = 0x14,
}

impl Kind {
    pub(crate) fn read(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte {
            0x01 => Self::Hello,
            0x02 => Self::Welcome,
            0x03 => Self::Refusal,
            0x04 => Self::Status,
            0x10 => Self::Message,
            0x11 => Self::Ack,
            0x12 => Self::Ping,
            0x13 => Self::Pong,
            0x14 => Self::Goodbye,
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        })
    }

    pub(crate) fn max_body(self) -> usize {
        match self {
            Self::Message => PART_HEADER + ORIGIN_HEADER + MAX_LINK_ID + MAX_MESSAGE_PART,
            _ => MAX_CONTROL_BODY,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::Welcome => "Welcome",
            Self::Refusal => "Refusal",
            Self::Status => "Status",
            Self::Message => "Message",
            Self::Ack => "Ack",
            Self::Ping => "Ping",
            Self::Pong => "Pong",
            Self::Goodbye => "Goodbye",
        }
    }
}

impl PartFlags {
    fn to_byte(&self) -> u8 {
        let more = match self.more {
            More::Follows => FLAG_MORE,
            More::Last => 0,
        };
        let maybe_ran = match self.maybe_ran {
            MaybeRan::Yes(_) => FLAG_MAYBE_RAN,
            MaybeRan::No => 0,
        };
        more | maybe_ran
    }
}

/// The body of a Ping or Pong; fields of later versions are ignored.
#[derive(Deserialize, Serialize)]
struct EmptyBody {}

const PART_HEADER: usize = 8 + 1;
/// The bytes of an origin before its link's id: the sequence number, and the length of the id.
const ORIGIN_HEADER: usize = 8 + 1;
const FLAG_MORE: u8 = 1;
const FLAG_MAYBE_RAN: u8 = 1 << 1;

fn encode_control(kind: Kind, body: &impl Serialize, out: &mut Vec<u8>) {
    encode_body(kind, out, |out| {
        serde_json::to_writer(out, body)
            .expect("strings and numbers always serialise, and a Vec takes all bytes");
    });
}

fn encode_body(kind: Kind, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8]);
    write(out);
    let length = (out.len() - start - 4) as u32;
    debug_assert!(length as usize <= 1 + MAX_CONTROL_BODY, "the peer refuses a longer {} frame", kind.name());
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn decode_control<T: DeserializeOwned>(kind: Kind, body: &[u8]) -> Result<T, DecodeError> {
    // serde's structs also accept JSON arrays; this protocol does not.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(DecodeError::Body { kind: kind.name(), reason: "the body is not a JSON object".into() });
    }
    serde_json::from_slice(body)
        .map_err(|error| DecodeError::Body { kind: kind.name(), reason: truncated_message(&error) })
}

/// serde's message, truncated: it quotes unexpected input, which can be everything that the peer sent.
fn truncated_message(error: &serde_json::Error) -> String {
    const MAX_BYTES: usize = 200;
    let text = error.to_string();
    let shown = truncate(&text, MAX_BYTES);
    if shown.len() < text.len() { format!("{shown}…") } else { text }
}

/// The first characters of the text, at most `max` bytes.
fn truncate(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

fn decode_part(body: &[u8]) -> Result<PartView<'_>, DecodeError> {
    let Some((header, rest)) = body.split_first_chunk::<PART_HEADER>() else {
        return Err(DecodeError::ShortMessage(body.len()));
    };
    let [seq @ .., flags] = header;
    if flags & !(FLAG_MORE | FLAG_MAYBE_RAN) != 0 {
        return Err(DecodeError::UnknownFlags(*flags));
    }
    let more = if flags & FLAG_MORE != 0 { More::Follows } else { More::Last };
    let (maybe_ran, bytes) = match flags & FLAG_MAYBE_RAN != 0 {
        true => {
            let (origin, bytes) = decode_origin(rest).ok_or(DecodeError::BadOrigin)?;
            (MaybeRan::Yes(origin), bytes)
        }
        false => (MaybeRan::No, rest),
    };
    if bytes.len() > MAX_MESSAGE_PART {
        return Err(DecodeError::TooLarge { kind: "Message", length: bytes.len(), max: MAX_MESSAGE_PART });
    }
    Ok(PartView { seq: u64::from_be_bytes(*seq), flags: PartFlags { more, maybe_ran }, bytes })
}

fn decode_origin(body: &[u8]) -> Option<(Origin, &[u8])> {
    let (header, rest) = body.split_first_chunk::<ORIGIN_HEADER>()?;
    let [seq @ .., length] = header;
    let (link, bytes) = rest.split_at_checked(usize::from(*length))?;
    let link = std::str::from_utf8(link).ok().filter(|link| (1..=MAX_LINK_ID).contains(&link.len()))?;
    Some((Origin { link: link.into(), seq: u64::from_be_bytes(*seq) }, bytes))
}

fn upgrade_advice(ours: u16, theirs: u16) -> &'static str {
    match theirs > ours {
        true => "upgrade this side",
        false => "upgrade the other side",
    }
}
