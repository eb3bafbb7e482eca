//! How we know: real processes, real servers, real harnesses.
//!
//! A test reads like the story it tells. It builds a [`world::World`] (a sidecar with its servers), takes a
//! [`harness::Harness`] (a shim and somebody who speaks MCP to it) and looks at answers, audit and processes.
//! Everything outside has a deadline, logs are shown when a test fails, and what was started is ended by its id.
//!
//! | module | what it holds |
//! |---|---|
//! | [`agents`] | one scripted turn of the real Claude Code and the real Codex |
//! | [`attach`] | `cofferdam attach`, and the hub that it reaches |
//! | [`boxes`] | real sandboxes with the shim inside |
//! | [`certificates`] | authorities of our own, and what they sign |
//! | [`chaos`] | a network that does its worst, and conversations that survive it |
//! | [`database`] | a PostgreSQL whose users OpenBao makes |
//! | [`deadline`] | waiting on conditions, the only reader of the clock |
//! | [`encodings`] | the forms in which a secret could cross, and the search for them |
//! | [`fake_model`] | model APIs on loopback that drive a real Claude Code or Codex |
//! | [`harness`] | raw MCP lines over a child's stdio |
//! | [`http`] | as much HTTP as a scripted server needs |
//! | [`http_fixture`] | an MCP server over HTTP that tells what it was sent |
//! | [`markdown`] | blocks, spans and tables of our own documents |
//! | [`openbao`] | a real OpenBao server |
//! | [`port`] | places on loopback to listen at |
//! | [`postgres`] | a real PostgreSQL |
//! | [`process`] | starting and ending processes, the only place that does |
//! | [`proxy`] | a CONNECT proxy |
//! | [`relay`] | a hand-held relay connection, for saying things a shim never would |
//! | [`sandbox`] | a sandbox as far as an enrolment goes: its state directory, its shims |
//! | [`server`] | the MCP servers that a world can have |
//! | [`site`] | one sandbox whose servers are of one session |
//! | [`tee`] | a proxy on the relay socket that keeps every byte towards the shim |
//! | [`toll`] | a gate in front of OpenBao that counts, delays, cuts and replays |
//! | [`tools`] | where installed tools are, and what happens when one is missing |
//! | [`vault`] | a sidecar at an OpenBao, and what that knows of it |
//! | [`vault_logins`] | what an OpenBao needs for each way to log in |
//! | [`wire`] | a TCP wire to the sidecar that can be cut, or lose an answer |
//! | [`world`] | a sidecar, its configuration, its audit and its log |

pub mod agents;
pub mod attach;
pub mod boxes;
pub mod certificates;
pub mod chaos;
pub mod database;
pub mod deadline;
pub mod encodings;
pub mod fake_model;
pub mod harness;
pub mod http;
pub mod http_fixture;
pub mod markdown;
pub mod openbao;
pub mod port;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod relay;
pub mod sandbox;
pub mod server;
pub mod site;
pub mod tee;
pub mod toll;
pub mod tools;
pub mod vault;
pub mod vault_logins;
pub mod wire;
pub mod world;
