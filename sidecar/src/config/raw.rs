//! The configuration as it is written. The JSON Schema is made from these types, so their comments are what an
//! editor shows.
//!
//! Must stay true: every key is optional here and unknown keys are errors. What is required, and what fits with
//! what, is for the checks to say, all of it at once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::at::At;
use super::limits::RawLimits;
use super::units::Time;

/// The configuration of the Cofferdam sidecar, `cofferdam.toml`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Config")]
pub(super) struct RawConfig {
    /// Audit, enrolments and keys live here. Default: the user's state directory, or `/var/lib/cofferdam` for root.
    pub(super) state_dir: Option<At<String>>,
    /// When a decision counts as written. Default: `write`.
    pub(super) audit_sync: Option<RawAuditSync>,
    pub(super) relay: RawRelay,
    pub(super) admin: RawAdmin,
    /// Vault or OpenBao, where secrets come from it.
    pub(super) vault: Option<At<RawVault>>,
    /// Credentials by name: where they come from, never what they are.
    pub(super) secrets: BTreeMap<At<String>, RawSecret>,
    /// MCP servers by name: a command (stdio) or a URL (streamable HTTP).
    pub(super) servers: BTreeMap<At<String>, RawServer>,
    /// Grants by name: which servers a sandbox may use, and for how long.
    pub(super) grants: BTreeMap<At<String>, RawGrant>,
    /// Every bound of the sidecar.
    pub(super) limits: RawLimits,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "AuditSync")]
pub(super) enum RawAuditSync {
    /// fsynced before the call, grouped with its neighbours: survives the host.
    Call,
    /// `write(2)` returned: survives the sidecar.
    Write,
}

/// How sandboxes reach the sidecar.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Relay")]
pub(super) struct RawRelay {
    /// The Unix socket that shims connect to. Mount its directory, which holds nothing else, into the sandbox.
    pub(super) unix: Option<At<String>>,
    /// The grant of every process that can open that socket.
    pub(super) unix_grant: Option<At<String>>,
    /// Who may connect, by user id. Default: the sidecar's own user, and root.
    pub(super) unix_uids: Option<At<Vec<At<i64>>>>,
    /// `HOST:PORT` to listen on for sandboxes that dial out; WebSocket upgrades are taken on the same port.
    pub(super) tls: Option<At<String>>,
    /// How sandboxes reach that port: `HOST:PORT`, or a whole link, as `wss://HOST/PATH` behind a load balancer that ends
    /// TLS. Default: `tls`, where that is an address that others can reach.
    pub(super) advertise: Option<At<String>>,
    /// How long a lost link is kept for its shim to come back; paused sandboxes want hours. Default: `2m`.
    #[schemars(extend("default" = "2m"))]
    pub(super) resume_grace: Option<At<Time>>,
    /// How often a silent link is asked for a sign of life. Default: `20s`.
    #[schemars(extend("default" = "20s"))]
    pub(super) heartbeat: Option<At<Time>>,
    /// Directories of microVMs are made in this one; each has the VM's hybrid vsock sockets.
    pub(super) vsock_dir: Option<At<String>>,
}

/// How the command line reaches the daemon.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Admin")]
pub(super) struct RawAdmin {
    /// The daemon's own socket, mode 0600. Never inside the relay's directory.
    pub(super) socket: Option<At<String>>,
    /// `HOST:PORT` of loopback, for `/healthz`, `/readyz` and `/metrics`; there is no default, and without it the port is not opened.
    pub(super) http: Option<At<String>>,
}

/// Where Vault is, and how the sidecar logs in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Vault")]
pub(super) struct RawVault {
    /// `https://HOST:PORT`; `http://` to loopback only.
    pub(super) address: Option<At<String>>,
    pub(super) namespace: Option<At<String>>,
    /// Certificates in PEM to trust. Where it is set, nothing else is trusted.
    pub(super) ca_file: Option<At<String>>,
    pub(super) auth: Option<At<RawVaultAuth>>,
    /// Mint the tokens of sessions through this token role. Default: as children of the sidecar's own.
    pub(super) token_role: Option<At<String>>,
}

/// How the sidecar logs in: `method`, and the keys that it needs. Files are read anew at each login.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "VaultAuth")]
pub(super) struct RawVaultAuth {
    pub(super) method: Option<At<RawVaultMethod>>,
    /// Where the method is mounted, without `auth/`. Default: the method's name. Not for `token-file`.
    pub(super) mount: Option<At<String>>,
    /// The file with the token: `token-file`.
    pub(super) path: Option<At<String>>,
    /// `approle`
    pub(super) role_id_file: Option<At<String>>,
    /// `approle`
    pub(super) secret_id_file: Option<At<String>>,
    /// Whether that file holds a wrapping token, which is unwrapped once: `approle`. Default: false.
    pub(super) secret_id_wrapped: Option<At<bool>>,
    /// `cert`, `jwt` and `kubernetes`; with `approle` the AppRole's name, where the secret-id is wrapped: a wrap that was
    /// not made by `auth/MOUNT/role/ROLE/secret-id` is not opened.
    pub(super) role: Option<At<String>>,
    /// `jwt` and `kubernetes`
    pub(super) jwt_file: Option<At<String>>,
    /// `cert`: the certificate in PEM, with its chain.
    pub(super) cert_file: Option<At<String>>,
    /// `cert`: its key in PEM.
    pub(super) key_file: Option<At<String>>,
    /// `userpass`
    pub(super) username: Option<At<String>>,
    /// `userpass`
    pub(super) password_file: Option<At<String>>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "VaultMethod")]
pub(super) enum RawVaultMethod {
    Approle,
    Cert,
    Jwt,
    Kubernetes,
    TokenFile,
    Userpass,
}

/// A named source of credential fields: exactly one of `file`, `env`, `exec`, `kv` and `vault`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Secret")]
pub(super) struct RawSecret {
    /// A file to read. A JSON object gives its fields; anything else is the field `value`, one trailing newline trimmed.
    pub(super) file: Option<At<String>>,
    /// An environment variable of the sidecar, read like a file.
    pub(super) env: Option<At<String>>,
    /// A program and its arguments (no shell) whose output is read like a file.
    pub(super) exec: Option<At<Vec<String>>>,
    /// What the program of `exec` prints. `plain`: as a file holds it. `expiring`: a credential that ends, as `{"fields": {…}, "expires": "RFC 3339"}` or in the form of AWS's `credential_process` (fields `access_key_id`, `secret_access_key`, `session_token`); the program is run again before that. Default: `plain`.
    pub(super) format: Option<At<RawFormat>>,
    /// A path of Vault that makes a credential when it is read, as `database/creds/readonly`: a lease per session.
    pub(super) vault: Option<At<String>>,
    /// A path in a KV engine of Vault, as `secret/github`; which version the engine has is found out.
    pub(super) kv: Option<At<String>>,
    /// What is written to the path of `vault`, for those that must be written to, as `pki/issue/agent`.
    pub(super) write: Option<At<BTreeMap<String, At<serde_json::Value>>>>,
    /// How often a newer version of a `kv` secret is looked for. Default: `5m`.
    #[schemars(extend("default" = "5m"))]
    pub(super) refresh: Option<At<Time>>,
    /// Fields that are not secret: neither scrubbed nor too short.
    pub(super) public: Option<Vec<At<String>>>,
    /// Whether values under 8 bytes may be used; they are hard to scrub without hitting innocent text. Default: `refuse`.
    pub(super) short: Option<RawShort>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Format")]
pub(super) enum RawFormat {
    Expiring,
    Plain,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Short")]
pub(super) enum RawShort {
    Allow,
    Refuse,
}

/// One MCP server: either `command` (stdio) or `url` (streamable HTTP).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Server")]
pub(super) struct RawServer {
    /// The program and its arguments; never a shell.
    pub(super) command: Option<At<Vec<String>>>,
    /// Environment variables: `{secret.field}`, `{secret.field:url}` percent-encoded, `{file:NAME}`; `{{` and `}}` are braces.
    pub(super) env: Option<At<BTreeMap<At<String>, At<String>>>>,
    /// Files by name, with templates as in `env`: mode 0600, in memory; `{file:NAME}` is the path.
    pub(super) files: Option<At<BTreeMap<At<String>, At<String>>>>,
    /// Where the server is. `http://` carries headers to loopback only.
    pub(super) url: Option<At<String>>,
    /// Headers of every request, with templates as in `env`.
    pub(super) headers: Option<At<BTreeMap<At<String>, At<String>>>>,
    /// Whether the host may resolve to private or link-local addresses. Default: false.
    pub(super) private: Option<At<bool>>,
    /// Which tools are offered. Default: all.
    pub(super) tools: RawTools,
    /// Methods that this version does not know, allowed by name; patterns as in `tools`.
    pub(super) methods: Vec<At<String>>,
    /// How long a call may take. Default: `4m`, for Codex gives up at five.
    #[schemars(extend("default" = "4m"))]
    pub(super) call_timeout: Option<At<Time>>,
    /// Send once more what may have run: calls of tools that say they are idempotent or read-only, and methods that only
    /// read. Default: false, which answers `outcome_unknown`.
    pub(super) retry: Option<At<bool>>,
    /// How a new credential of Vault's reaches a running process. Default: `hitless`.
    pub(super) replace: Option<At<RawReplace>>,
    /// That the server re-reads its `files`, and when: then they are written anew in place, and the process stays. A
    /// secret that stands in `env` too cannot be changed that way; for that one the process is replaced.
    pub(super) reload: Option<At<RawReload>>,
    /// Tools that run with other credentials. Where several scopes name a tool, the first of them is the tool's. With
    /// scopes, methods that this version does not know pass only where `methods` names them.
    pub(super) scopes: Option<At<Vec<At<RawScope>>>>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Replace")]
pub(super) enum RawReplace {
    /// By another process, which takes over between two calls. Calls that run finish on the old one, for at most
    /// `limits.replace-drain`.
    Hitless,
    /// By another process, which takes over when no call runs, no task is open and nothing is asked of the harness, or
    /// when the old credential is over. The two run side by side for a moment.
    Idle,
    /// Not at all: a process keeps the credential that it was started with for as long as it runs, also when that has
    /// ended. The next one gets a new one.
    Never,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Reload")]
pub(super) enum RawReload {
    /// It notices by itself that a file has changed.
    File,
    /// On SIGHUP.
    Sighup,
}

/// Some tools, and what they run with: these entries, and the server's own where a scope does not name them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Scope")]
pub(super) struct RawScope {
    /// Patterns on tools' names, as in the server's `tools`.
    pub(super) tools: Option<Vec<At<String>>>,
    /// As the server's, for servers with `command`: these tools have a process of their own, started by the first call of
    /// one of them. It counts in `limits.processes`.
    pub(super) env: Option<At<BTreeMap<At<String>, At<String>>>>,
    /// As the server's, for servers with `command`.
    pub(super) files: Option<At<BTreeMap<At<String>, At<String>>>>,
    /// As the server's, for servers with `url`: calls of these tools are sent with them, in the same MCP session.
    pub(super) headers: Option<At<BTreeMap<At<String>, At<String>>>>,
}

/// Rules on tools' names; `*` is any run of characters, `?` is one. `deny` goes before `ask` before `allow`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Tools")]
pub(super) struct RawTools {
    /// Where present, what no list names is denied.
    pub(super) allow: Option<Vec<At<String>>>,
    /// Refused until a person approves.
    pub(super) ask: Vec<At<String>>,
    /// Hidden and refused.
    pub(super) deny: Vec<At<String>>,
}

/// What a sandbox may use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Grant")]
pub(super) struct RawGrant {
    /// Servers by name.
    pub(super) servers: Option<Vec<At<String>>>,
    /// What the tokens of its sessions may do in Vault. Required where a server uses Vault: never all that the sidecar may.
    pub(super) vault_policies: Option<At<Vec<At<String>>>>,
    /// How long the grant lasts from enrolment. Default: `8h`.
    #[schemars(extend("default" = "8h"))]
    pub(super) ttl: Option<At<Time>>,
}
