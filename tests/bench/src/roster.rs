//! Who takes part. Each command is what a user would type. Where an alternative has more than one transport, it is given
//! the one with the faster small calls; for both that is SSE, which is also their default.

use crate::contender::{Contender, Ready};

pub(crate) const DIRECT: &str = "direct";
pub(crate) const SOCAT: &str = "two socat";
pub(crate) const MCP_PROXY: &str = "mcp-proxy twice";
pub(crate) const MCP_REMOTE: &str = "mcp-remote + supergateway";
pub(crate) const COFFERDAM: &str = "cofferdam";

/// What people use today to reach a stdio server that is elsewhere.
pub(crate) const PEERS: [&str; 2] = [MCP_PROXY, MCP_REMOTE];

pub(crate) const ROSTER: &[Contender] = &[
    Contender {
        name: DIRECT,
        about: "the stdio server alone, nothing in between",
        directories: &[],
        files: &[],
        host: &[],
        ready: Ready::AtOnce,
        client: &["{server}"],
        env: &[],
    },
    Contender {
        name: SOCAT,
        about: "`socat STDIO UNIX-CONNECT:…` to `socat UNIX-LISTEN:…,fork EXEC:SERVER`: bytes, nothing looked at",
        directories: &[],
        files: &[],
        host: &["{socat}", "UNIX-LISTEN:{dir}/socat.sock,fork", "EXEC:{server}"],
        ready: Ready::Unix("socat.sock"),
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
        client: &["{mcp-remote}", "http://127.0.0.1:{port}/sse", "--transport", "sse-only", "--silent"],
        env: &[("MCP_REMOTE_CONFIG_DIR", "{dir}/mcp-auth"), ("NO_PROXY", "127.0.0.1")],
    },
    Contender {
        name: COFFERDAM,
        about: "`cofferdam-shim --relay unix:… --server …` (the static build) to `cofferdam serve`: policy, audit and scrubbing on, one secret injected",
        directories: &["relay", "admin", "state"],
        files: &[("cofferdam.toml", include_str!("cofferdam.toml")), ("secret", SECRET)],
        host: &["{cofferdam}", "serve", "-c", "{dir}/cofferdam.toml"],
        ready: Ready::Unix("relay/relay.sock"),
        client: &["{shim}", "--relay", "unix:{dir}/relay/relay.sock", "--server", "bench"],
        env: &[],
    },
];

/// Injected, so that every answer is searched for it; the server never says it.
const SECRET: &str = "c29tZSBjcmVkZW50aWFs-benchmark-only";
