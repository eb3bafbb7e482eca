//! Every limit of the protocol, with its reason.

/// The version of the framing, which is the digit in the preface.
pub const VERSION: u16 = 1;
/// Raw MCP bytes in one `Message` frame: small enough that a ping never waits long behind one.
pub const MAX_MESSAGE_PART: usize = 64 * 1024;
/// A control body is a few hundred bytes; this leaves room for fields of later versions.
pub const MAX_CONTROL_BODY: usize = 16 * 1024;
/// The largest MCP message relayed by default. TypeScript clients close the connection at 10 MiB a line.
pub const MAX_MESSAGE: usize = 10 * 1024 * 1024 - 1024;
/// Bytes of a link's id; the ids that the sidecar makes are shorter.
pub const MAX_LINK_ID: usize = 64;
/// Bytes of the `message` of a Refusal or Goodbye: escaped in JSON it can be six times as long, and still fits.
pub const MAX_SENTENCE: usize = 2048;
/// Bytes of the `code` of a Refusal or Goodbye: ours have some twenty characters.
pub const MAX_CODE: usize = 256;
/// Bytes of a request's id as raw JSON. An id is stored while its request runs, and after the request was abandoned, so
/// its length is bounded; clients use counters or UUIDs.
pub const MAX_ID: usize = 256;
/// Bytes of a method sent to a server: each is recorded in the audit; the longest of MCP have some forty characters.
pub const MAX_METHOD: usize = 256;
/// Bytes of the tool name in a `tools/call`: each is recorded in the audit; MCP recommends at most 128 characters.
pub const MAX_TOOL_NAME: usize = 1024;
/// Levels of nesting. Deeper messages are refused: recursive parsers in servers would overflow their stacks.
pub const MAX_DEPTH: usize = 128;
/// Bytes that may be in flight unacknowledged in one direction of a link: a result of 1 MiB, with its frame headers, is
/// sent without waiting for an acknowledgement.
pub const DEFAULT_WINDOW: u64 = 2 * 1024 * 1024;
/// A larger window is treated as this one: a peer must not decide how much is stored in memory.
pub const MAX_WINDOW: u64 = 4 * 1024 * 1024;
/// Buffers that grew beyond this are freed when they are empty: most links are idle most of the time.
pub const MAX_IDLE_BUFFER: usize = 64 * 1024;
