//! What shim and sidecar say to each other.
//!
//! Pure types and codec: no sockets, no clock, no runtime. `PROTOCOL.md` beside this crate says the same in prose.
//!
//! | module | what it holds |
//! |---|---|
//! | [`address`] | where a sidecar is: `unix:PATH`, `fd:N`, … |
//! | [`code`] | the stable refusal codes and the JSON-RPC errors that carry them |
//! | [`control`] | `Hello`, `Welcome`, `Refusal`, `Status`, `Goodbye` and their JSON |
//! | [`decoder`] | bytes in any split → frames |
//! | [`delivery`] | sequence numbers, acknowledgements, credit and replay: [`delivery::Outbox`], [`delivery::Inbox`] |
//! | [`enrolment`] | the string with a sidecar's address and key and a ticket that admits one sandbox |
//! | [`envelope`] | the outside of an MCP message: id, method, parameters |
//! | [`frame`] | the frames and their bytes |
//! | [`hub`] | the file by which shims find a hub on the loopback |
//! | [`json`] | a strict scanner that finds things in JSON without changing a byte |
//! | [`key`] | the public keys by which sandboxes and sidecars are known |
//! | [`limits`] | every bound, with its reason |
//! | [`mcp`] | the table of MCP methods: what each of them means to shim and sidecar |
//! | [`name`] | validated names and ids |
//! | [`notice`] | notifications that we say to a harness ourselves |
//! | [`oversize`] | the id of a message that is too long to keep |
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
pub mod notice;
pub mod oversize;
pub mod replay;
