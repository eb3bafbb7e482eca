//! The contenders of the benchmark. Each command is what a user would type. Where an alternative has more than one
//! transport, the benchmark uses the one with the faster small calls; for both alternatives that is SSE, which is also
//! their default.

use crate::contender::{Contender, Ready};

pub(crate) const DIRECT: &str = "direct";
pub(crate) const SOCAT: &str = "two socat";
pub(crate) const MCP_PROXY: &str = "mcp-proxy twice";
pub(crate) const MCP_REMOTE: &str = "mcp-remote + supergateway";
pub(crate) const COFFERDAM: &str = "cofferdam";
pub(crate) const COFFERDAM_TLS: &str = "cofferdam over TLS";
pub(crate) const COFFERDAM_WEB_SOCKET: &str = "cofferdam over WebSocket";

/// Programs in use today for reaching a stdio server on another host.
pub(crate) const PEERS: [&str; 2] = [MCP_PROXY, MCP_REMOTE];

pub(crate) const CONTENDERS: &[Contender] = &[
    Contender {
        name: DIRECT,
        about: "the stdio server alone, nothing in between",
        directories: &[],
        files: &[],
        host: &[],
        ready: Ready::AtOnce,
        enrol: &[],
        client: &["{server}"],
        env: &[],
    },
    Contender {
        name: SOCAT,
        about: "`socat STDIO UNIX-CONNECT:…` to `socat UNIX-LISTEN:…,fork EXEC:SERVER`: copies bytes without parsing them",
        directories: &[],
        files: &[],
        host: &["{socat}", "UNIX-LISTEN:{dir}/socat.sock,fork", "EXEC:{server}"],
        ready: Ready::Unix("socat.sock"),
        enrol: &[],
        client: &["{socat}", "STDIO", "UNIX-CONNECT:{dir}/socat.sock"],
        env: &[],
    },
    Contender {
        name: MCP_PROXY,
        about: "`mcp-proxy http://…/sse` to `mcp-proxy --port … -- SERVER`",
        directories: &[],
        files: &[],
        host: &[
            "{mcp-proxy}",
            "--log-level",
            "ERROR",
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
            "--",
            "{server}",
        ],
        ready: Ready::Port,
        enrol: &[],
        client: &["{mcp-proxy}", "--log-level", "ERROR", "http://127.0.0.1:{port}/sse"],
        env: &[("NO_PROXY", "127.0.0.1")],
    },
    Contender {
        name: MCP_REMOTE,
        about: "`mcp-remote http://…/sse --transport sse-only` to `supergateway --port … --stdio SERVER`",
        directories: &["mcp-auth"],
        files: &[],
        host: &["{supergateway}", "--logLevel", "none", "--port", "{port}", "--stdio", "{server}"],
        ready: Ready::Port,
        enrol: &[],
        client: &["{mcp-remote}", "http://127.0.0.1:{port}/sse", "--transport", "sse-only", "--silent"],
        env: &[("MCP_REMOTE_CONFIG_DIR", "{dir}/mcp-auth"), ("NO_PROXY", "127.0.0.1")],
    },
    Contender {
        name: COFFERDAM,
        about: "`cofferdam-shim --relay unix:… --server …` (the static build) to `cofferdam serve`: policy, audit and scrubbing on, one secret injected",
        directories: SIDECAR_DIRECTORIES,
        files: SIDECAR_FILES,
        host: SIDECAR,
        ready: Ready::Unix("relay/relay.sock"),
        enrol: &[],
        client: &["{shim}", "--relay", "unix:{dir}/relay/relay.sock", "--server", "bench"],
        env: &[],
    },
    Contender {
        name: COFFERDAM_TLS,
        about: "the same over `tls://127.0.0.1:…`, enrolled: pinned keys both ways, every byte encrypted",
        directories: SIDECAR_DIRECTORIES,
        files: SIDECAR_FILES,
        host: SIDECAR,
        ready: Ready::Port,
        enrol: ENROL,
        client: &["{shim}", "--server", "bench"],
        env: ENROLLED,
    },
    Contender {
        name: COFFERDAM_WEB_SOCKET,
        about: "the same over `wss://127.0.0.1:…/`: the TLS link inside a WebSocket, inside a second TLS",
        directories: SIDECAR_DIRECTORIES,
        files: SIDECAR_FILES,
        host: SIDECAR,
        ready: Ready::Port,
        enrol: ENROL,
        client: &["{shim}", "--relay", "wss://127.0.0.1:{port}/", "--server", "bench"],
        env: ENROLLED,
    },
];

pub(crate) const SIDECAR: &[&str] = &["{cofferdam}", "serve", "-c", "{dir}/cofferdam.toml"];
pub(crate) const SIDECAR_DIRECTORIES: &[&str] = &["relay", "admin", "state", "sandbox"];
const SIDECAR_FILES: &[(&str, &str)] =
    &[("cofferdam.toml", include_str!("cofferdam.toml")), ("secret", SECRET)];
const ENROL: &[&str] = &["{cofferdam}", "enroll", "-c", "{dir}/cofferdam.toml", "--grant", "bench"];
const ENROLLED: &[(&str, &str)] = &[
    ("COFFERDAM_ENROLL_FILE", "{dir}/enrolment"),
    ("COFFERDAM_STATE", "{dir}/sandbox"),
    ("NO_PROXY", "127.0.0.1"),
];

/// A secret that is injected, so that every response is scrubbed; the server never sends it.
pub(crate) const SECRET: &str = "c29tZSBjcmVkZW50aWFs-benchmark-only";
