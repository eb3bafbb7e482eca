//! The messages that the client sends, in both eras of MCP.

use serde::Serialize;
use serde_json::value::RawValue;

use super::arguments::Arguments;

/// Which of the two eras of MCP a server belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClientEra {
    /// Revisions in which a connection begins with `initialize`.
    Legacy,
    /// Revisions in which each request names its revision.
    Stateless,
}

/// A whole JSON-RPC request.
#[derive(Serialize)]
pub(super) struct Request<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

impl<'a, P: Serialize> Request<'a, P> {
    /// The request in one line, without the line end.
    pub(super) fn encode(id: u64, method: &'a str, params: P) -> Vec<u8> {
        let request = Self { jsonrpc: "2.0", id, method, params };
        serde_json::to_vec(&request).expect("strings, numbers and raw JSON always serialise")
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InitializeParams {
    protocol_version: &'static str,
    capabilities: Empty,
    client_info: ClientInfo,
}

/// No capabilities: a command cannot serve requests of the server.
#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct ClientInfo {
    name: &'static str,
    version: &'static str,
}

const CLIENT_INFO: ClientInfo = ClientInfo { name: "cofferdam-shim", version: env!("CARGO_PKG_VERSION") };
/// The latest revision with `initialize`; a server may choose an older one.
const LEGACY_REVISION: &str = "2025-11-25";
const STATELESS_REVISION: &str = "2026-07-28";

/// The metadata of a request.
#[derive(Default, Serialize)]
pub(super) struct Meta {
    #[serde(rename = "progressToken", skip_serializing_if = "Option::is_none")]
    progress_token: Option<u64>,
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", skip_serializing_if = "Option::is_none")]
    revision: Option<&'static str>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", skip_serializing_if = "Option::is_none")]
    capabilities: Option<Empty>,
    #[serde(rename = "io.modelcontextprotocol/clientInfo", skip_serializing_if = "Option::is_none")]
    client_info: Option<ClientInfo>,
}

impl Meta {
    pub(super) fn new(era: ClientEra, progress_token: Option<u64>) -> Self {
        match era {
            ClientEra::Legacy => Self { progress_token, ..Self::default() },
            ClientEra::Stateless => Self {
                progress_token,
                revision: Some(STATELESS_REVISION),
                capabilities: Some(Empty {}),
                client_info: Some(CLIENT_INFO),
            },
        }
    }
}

/// The parameters of `server/discover` and `tools/list`.
#[derive(Serialize)]
pub(super) struct PageParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<&'a RawValue>,
    #[serde(rename = "_meta")]
    pub(super) meta: Meta,
}

#[derive(Serialize)]
pub(super) struct CallParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
    #[serde(rename = "_meta")]
    meta: Meta,
}

impl<'a> CallParams<'a> {
    pub(super) fn new(tool: &'a str, arguments: &'a Arguments, meta: Meta) -> Self {
        Self { name: tool, arguments: arguments.raw(), meta }
    }
}

impl InitializeParams {
    pub(super) fn new() -> Self {
        Self { protocol_version: LEGACY_REVISION, capabilities: Empty {}, client_info: CLIENT_INFO }
    }
}

/// The call with the longest metadata that it can have, to check its length.
pub(super) fn longest_call(tool: &str, arguments: &Arguments) -> Vec<u8> {
    let meta = Meta::new(ClientEra::Stateless, Some(u32::MAX.into()));
    Request::encode(u32::MAX.into(), relay_proto::mcp::TOOLS_CALL, CallParams::new(tool, arguments, meta))
}

pub(super) const INITIALIZED_LINE: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
