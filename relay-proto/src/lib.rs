//! The protocol between shim and sidecar.
//!
//! Pure types and codec: no sockets, no clock, no runtime. `PROTOCOL.md` beside this crate describes it in prose.
//!
//! | module | what it holds |
//! |---|---|
//! | [`address`] | where a sidecar is: `unix:PATH`, `fd:N`, … |
//! | [`code`] | the stable refusal codes and the JSON-RPC errors that carry them |
//! | [`control`] | `Hello`, `Welcome`, `Refusal`, `Status`, `Goodbye` and their JSON |
//! | [`decoder`] | bytes in any split → frames |
//! | [`delivery`] | sequence numbers, acknowledgements, credit and retransmission: [`delivery::Outbox`], [`delivery::Inbox`] |
//! | [`enrolment`] | the enrolment string: a sidecar's address and key, and a ticket that enrols one sandbox |
//! | [`envelope`] | the envelope of an MCP message: id, method, parameters |
//! | [`frame`] | the frames and their encoding |
//! | [`hub`] | the file by which shims find a hub on the loopback |
//! | [`json`] | a strict JSON scanner that returns tokens with their positions |
//! | [`key`] | the public keys that identify sandboxes and sidecars |
//! | [`limits`] | every bound, with its reason |
//! | [`mcp`] | the table of MCP methods: how shim and sidecar treat each of them |
//! | [`name`] | validated names of servers, grants and secrets |
//! | [`nearest`] | the likely intention of a mistyped name |
//! | [`notice`] | notifications that originate in the shim or the sidecar |
//! | [`oversize`] | the id of a message that is too long to store |
//! | [`replay`] | the handshake and settings that a replacement server process must be sent again |

#![forbid(unsafe_code)]

mod ack;
pub mod address;
pub mod code;
pub mod control;
pub mod decoder;
pub mod delivery;
pub mod enrolment;
pub mod envelope;
pub mod frame;
pub mod hub;
pub mod json;
pub mod key;
pub mod limits;
pub mod mcp;
pub mod name;
pub mod nearest;
pub mod notice;
pub mod oversize;
pub mod replay;
