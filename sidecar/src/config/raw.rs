//! The raw types: the keys of the file. The JSON Schema and the configuration guide are generated from these types, so
//! their comments are what an editor shows.
//!
//! What must stay true: every key is optional here and unknown keys are errors. `check` reports missing keys and keys that
//! exclude each other, all of them at once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::limits::RawLimits;
use super::quantities::RawDuration;
use super::raw_confine::RawConfine;
use super::spanned::Spanned;
use crate::harness::Harness;

/// The configuration of the Cofferdam sidecar, `cofferdam.toml`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Config")]
pub(super) struct RawConfig {
    /// The directory for the audit, enrolments and keys. Default: the user's state directory, or `/var/lib/cofferdam` for root.
    pub(super) state_dir: Option<Spanned<String>>,
    /// How durable an audit record must be before its call is made. Default: `write`.
    pub(super) audit_sync: Option<RawAuditSync>,
    pub(super) relay: RawRelay,
    pub(super) admin: RawAdmin,
    /// Vault or OpenBao, for secrets that come from there.
    pub(super) vault: Option<Spanned<RawVault>>,
    /// Credentials by name: where each comes from, never its value.
    pub(super) secrets: BTreeMap<Spanned<String>, RawSecret>,
    /// MCP servers by name: a command (stdio) or a URL (streamable HTTP).
    pub(super) servers: BTreeMap<Spanned<String>, RawServer>,
    /// Grants by name: which servers a sandbox may use, and for how long.
    pub(super) grants: BTreeMap<Spanned<String>, RawGrant>,
    /// Platforms that run sandboxes, by name: E2B, Daytona, and platforms that are compatible with them.
    pub(super) platforms: BTreeMap<Spanned<String>, RawPlatform>,
    /// Sandboxes on a platform that the sidecar attaches when it starts, by the sandbox's name.
    pub(super) attach: BTreeMap<Spanned<String>, RawAttachment>,
    /// Limits of the sidecar.
    pub(super) limits: RawLimits,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "AuditSync")]
pub(super) enum RawAuditSync {
    /// The record is fsynced before the call, together with others: it survives a crash of the host.
    Call,
    /// `write(2)` has returned before the call: the record survives a crash of the sidecar.
    Write,
}

/// How sandboxes reach the sidecar.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Relay")]
pub(super) struct RawRelay {
    /// The shared Unix socket that shims connect to. Its directory is mounted into sandboxes and must contain nothing else.
    pub(super) unix: Option<Spanned<String>>,
    /// The grant of every client of the socket `unix`.
    pub(super) unix_grant: Option<Spanned<String>>,
    /// User ids that may connect to Unix sockets. Default: the sidecar's own user and root.
    pub(super) unix_uids: Option<Spanned<Vec<Spanned<i64>>>>,
    /// `HOST:PORT` to listen on for sandboxes that connect over the network; the same port accepts WebSocket upgrades.
    pub(super) tls: Option<Spanned<String>>,
    /// How sandboxes reach the port of `tls`: `HOST:PORT`, or an address such as `wss://HOST/PATH` for a load balancer that
    /// terminates TLS. Default: the value of `tls`. Required when `tls` is `0.0.0.0` or `[::]`.
    pub(super) advertise: Option<Spanned<String>>,
    /// How long a disconnected link waits for its shim to reconnect; paused sandboxes need hours. Default: `2m`.
    #[schemars(extend("default" = "2m"))]
    pub(super) resume_grace: Option<Spanned<RawDuration>>,
    /// After how long without traffic a link is pinged. Default: `20s`.
    #[schemars(extend("default" = "20s"))]
    pub(super) heartbeat: Option<Spanned<RawDuration>>,
    /// The directory for sockets of microVMs: each VM gets a subdirectory with its hybrid vsock sockets.
    pub(super) vsock_dir: Option<Spanned<String>>,
}

/// How the command line and orchestrators reach the daemon.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Admin")]
pub(super) struct RawAdmin {
    /// The admin socket, mode 0600. It must not lie in the directory of `relay.unix`.
    pub(super) socket: Option<Spanned<String>>,
    /// A loopback `HOST:PORT` for `/healthz`, `/readyz` and `/metrics`. Without it the port is not opened.
    pub(super) http: Option<Spanned<String>>,
    /// `HOST:PORT` of the admin API for orchestrators, over TLS, with client certificates or bearer tokens (`cofferdam token create`).
    /// Without it the port is not opened. Needs `cert-file` and `key-file`.
    pub(super) tls: Option<Spanned<String>>,
    /// The certificate of `tls` and its chain in PEM.
    pub(super) cert_file: Option<Spanned<String>>,
    /// The private key of that certificate in PEM.
    pub(super) key_file: Option<Spanned<String>>,
    /// A PEM file with the certificate authorities of clients of `tls`. A client with such a certificate may do what the admin
    /// socket permits. Without it, every client needs a token.
    pub(super) client_ca_file: Option<Spanned<String>>,
}

/// Where Vault is, and how the sidecar logs in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Vault")]
pub(super) struct RawVault {
    /// `https://HOST:PORT`; `http://` to loopback only.
    pub(super) address: Option<Spanned<String>>,
    /// The Vault namespace of all requests.
    pub(super) namespace: Option<Spanned<String>>,
    /// A PEM file with the only certificate authorities to trust. Default: the authorities that the host trusts.
    pub(super) ca_file: Option<Spanned<String>>,
    /// How the sidecar logs in.
    pub(super) auth: Option<Spanned<RawVaultAuth>>,
    /// The token role that creates the tokens of sessions. Default: they are created as children of the sidecar's own token.
    pub(super) token_role: Option<Spanned<String>>,
}

/// How the sidecar logs in: `method`, and the keys of that method. Files are read again at each login.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "VaultAuth")]
pub(super) struct RawVaultAuth {
    /// The login method.
    pub(super) method: Option<Spanned<RawVaultMethod>>,
    /// Where the method is mounted, without `auth/`. Default: the method's name. Not for `token-file`.
    pub(super) mount: Option<Spanned<String>>,
    /// `token-file`: the file with the token.
    pub(super) path: Option<Spanned<String>>,
    /// `approle`: the file with the role-id.
    pub(super) role_id_file: Option<Spanned<String>>,
    /// `approle`: the file with the secret-id.
    pub(super) secret_id_file: Option<Spanned<String>>,
    /// `approle`: whether `secret-id-file` holds a wrapping token, which is unwrapped once. Each start of the sidecar needs a
    /// new one. Default: false.
    pub(super) secret_id_wrapped: Option<Spanned<bool>>,
    /// `cert`, `jwt` and `kubernetes`: the role to log in with. `approle` with a wrapped secret-id: the AppRole's name; a
    /// wrapping token that was not created by `auth/MOUNT/role/ROLE/secret-id` is not unwrapped.
    pub(super) role: Option<Spanned<String>>,
    /// `jwt` and `kubernetes`: the file with the JWT.
    pub(super) jwt_file: Option<Spanned<String>>,
    /// `cert`: the client certificate and its chain in PEM.
    pub(super) cert_file: Option<Spanned<String>>,
    /// `cert`: the certificate's private key in PEM.
    pub(super) key_file: Option<Spanned<String>>,
    /// `userpass`: the user's name.
    pub(super) username: Option<Spanned<String>>,
    /// `userpass`: the file with the password.
    pub(super) password_file: Option<Spanned<String>>,
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

/// A source of one credential, which may have several fields: exactly one of `file`, `env`, `exec`, `kv` and `vault`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Secret")]
pub(super) struct RawSecret {
    /// A file to read. A JSON object gives the fields; any other content is the field `value`, without one trailing newline.
    pub(super) file: Option<Spanned<String>>,
    /// An environment variable of the sidecar, read like a file.
    pub(super) env: Option<Spanned<String>>,
    /// A program and its arguments (no shell) whose output is read like a file.
    pub(super) exec: Option<Spanned<Vec<String>>>,
    /// What the program of `exec` prints. `plain`: the same as `file` may hold. `expiring`: a credential with its expiry, as `{"fields": {…}, "expires": "RFC 3339"}` or in the format of AWS's `credential_process` (fields `access_key_id`, `secret_access_key`, `session_token`); the program is run again before the credential expires. Default: `plain`.
    pub(super) format: Option<Spanned<RawFormat>>,
    /// A Vault path that creates a credential when it is read, such as `database/creds/readonly`. Each session gets its own lease.
    pub(super) vault: Option<Spanned<String>>,
    /// A path in a KV engine of Vault, such as `secret/github`. The engine's version (1 or 2) is detected.
    pub(super) kv: Option<Spanned<String>>,
    /// Parameters for a `vault` path that must be written to instead of read, such as `pki/issue/agent`.
    pub(super) write: Option<Spanned<BTreeMap<String, Spanned<serde_json::Value>>>>,
    /// How often a `kv` secret is checked for a newer version. Default: `5m`.
    #[schemars(extend("default" = "5m"))]
    pub(super) refresh: Option<Spanned<RawDuration>>,
    /// Fields that are not secret: they are not scrubbed and may be short.
    pub(super) public: Option<Vec<Spanned<String>>>,
    /// Whether values under 8 bytes may be used. Scrubbing them would also remove unrelated text. Default: `refuse`.
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
    pub(super) command: Option<Spanned<Vec<String>>>,
    /// Whether `command` may contain secrets, as templates like those of `env`. Other processes of the host can read the
    /// arguments of a process. Default: `deny`.
    pub(super) argv_secrets: Option<Spanned<RawArgvSecrets>>,
    /// Environment variables: `{secret.field}`, `{secret.field:url}` percent-encoded, `{file:NAME}`; `{{` and `}}` are braces.
    pub(super) env: Option<Spanned<BTreeMap<Spanned<String>, Spanned<String>>>>,
    /// Files by name, with templates as in `env`. They have mode 0600 and are held in memory; `{file:NAME}` is a file's path.
    pub(super) files: Option<Spanned<BTreeMap<Spanned<String>, Spanned<String>>>>,
    /// What the process may reach on this host: a table, which confines it, or `off`. Default: `off`.
    pub(super) confine: Option<Spanned<RawConfine>>,
    /// A file with the server's AgentManifest, which bounds what `confine`, `cwd` and `env` may give it. It gives nothing by itself.
    pub(super) manifest: Option<Spanned<String>>,
    /// The directory in which the process starts; a relative path starts at the configuration's directory. Default: a directory
    /// of the server's own in `state-dir`, empty at first.
    pub(super) cwd: Option<Spanned<String>>,
    /// The server's URL. With `http://`, headers are allowed for loopback addresses only.
    pub(super) url: Option<Spanned<String>>,
    /// Headers of every request, with templates as in `env`.
    pub(super) headers: Option<Spanned<BTreeMap<Spanned<String>, Spanned<String>>>>,
    /// Whether the host may resolve to private or link-local addresses. Default: false.
    pub(super) private: Option<Spanned<bool>>,
    /// Which tools are offered. Default: all.
    pub(super) tools: RawTools,
    /// MCP methods to allow although they are unknown to this version, as patterns like those of `tools`.
    pub(super) methods: Vec<Spanned<String>>,
    /// Which requests of the server to the harness are refused. Default: none.
    pub(super) methods_to_harness: RawMethodsToHarness,
    /// How long a call may take. Default: `4m`, because Codex gives up after five minutes.
    #[schemars(extend("default" = "4m"))]
    pub(super) call_timeout: Option<Spanned<RawDuration>>,
    /// Whether requests that may have run are sent once more: calls of tools that declare themselves idempotent or read-only,
    /// and methods that can be repeated without harm. Default: false; such requests are answered with `outcome_unknown`.
    pub(super) retry: Option<Spanned<bool>>,
    /// How a running process gets a new credential. Default: `hitless`.
    pub(super) replace: Option<Spanned<RawReplace>>,
    /// When the server reads its `files` again. With this key, files are rewritten in place and the process keeps running.
    /// If the secret is also in `env`, the process is replaced nevertheless.
    pub(super) reload: Option<Spanned<RawReload>>,
    /// Tools that run with other credentials. If several scopes match a tool, the first one applies. With scopes, methods
    /// that are unknown to this version are allowed only if `methods` names them.
    pub(super) scopes: Option<Spanned<Vec<Spanned<RawScope>>>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "ArgvSecrets")]
pub(super) enum RawArgvSecrets {
    /// What follows the program in `command` are templates.
    Allow,
    /// Braces in `command` have no meaning.
    #[default]
    Deny,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Replace")]
pub(super) enum RawReplace {
    /// A new process is started with the new credential and takes over between two calls. Running calls finish on the old
    /// process, within `limits.replace-drain`.
    Hitless,
    /// A new process is started and takes over when no call, task or request to the harness is open, or when the old
    /// credential expires. Both processes run for a short time.
    Idle,
    /// A process keeps its credential as long as it runs, even after the credential has expired. The next process gets a
    /// new one.
    Never,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Reload")]
pub(super) enum RawReload {
    /// The server notices changed files by itself.
    File,
    /// The server reads its files again on SIGHUP.
    Sighup,
}

/// Some tools of a server, and the entries that replace or extend the server's own `env`, `files` or `headers` for them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Scope")]
pub(super) struct RawScope {
    /// Patterns of tool names, as in the server's `tools`.
    pub(super) tools: Option<Vec<Spanned<String>>>,
    /// Environment variables, for servers with `command`. These tools run in a separate process, which the first call of one
    /// of them starts. It counts towards `limits.processes`.
    pub(super) env: Option<Spanned<BTreeMap<Spanned<String>, Spanned<String>>>>,
    /// Files, for servers with `command`.
    pub(super) files: Option<Spanned<BTreeMap<Spanned<String>, Spanned<String>>>>,
    /// Headers, for servers with `url`. Calls of these tools are sent with them, in the same MCP session.
    pub(super) headers: Option<Spanned<BTreeMap<Spanned<String>, Spanned<String>>>>,
}

/// Patterns of tool names: `*` matches any characters, `?` exactly one; there is no other syntax. `deny` takes precedence over `ask`, `ask` over `allow`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Tools")]
pub(super) struct RawTools {
    /// Allowed tools, case-sensitive. If this list is present, tools that no list names are denied.
    pub(super) allow: Option<Vec<Spanned<String>>>,
    /// Tools that need a person's approval. This version cannot ask for it, so their calls are refused.
    pub(super) ask: Vec<Spanned<String>>,
    /// Tools that are hidden and refused. Like `ask`, this list also matches names that differ by case, width or invisible
    /// characters only. A call of a tool that the server does not list is answered like a call of a hidden one.
    pub(super) deny: Vec<Spanned<String>>,
}

/// Requests of a server to the harness, such as `sampling/createMessage`: messages of their own, or inside a result that
/// asks for input (`inputRequests`, since MCP 2026-07-28). Every one is recorded in the audit. A result with a refused
/// request is refused.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "MethodsToHarness")]
pub(super) struct RawMethodsToHarness {
    /// Refused methods, as patterns like those of `tools.deny`. All others are relayed.
    pub(super) deny: Vec<Spanned<String>>,
}

/// What a sandbox may use, and for how long.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Grant")]
pub(super) struct RawGrant {
    /// Names of the servers.
    pub(super) servers: Option<Vec<Spanned<String>>>,
    /// Policies of its sessions' Vault tokens. Required when one of its servers uses Vault: sessions never inherit the
    /// sidecar's own policies.
    pub(super) vault_policies: Option<Spanned<Vec<Spanned<String>>>>,
    /// How long the grant lasts from enrolment. Default: `8h`.
    #[schemars(extend("default" = "8h"))]
    pub(super) ttl: Option<Spanned<RawDuration>>,
}

/// A platform that runs sandboxes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Platform")]
pub(super) struct RawPlatform {
    /// The protocol of the platform. Default: the table's name, if that is `e2b` or `daytona`.
    pub(super) kind: Option<Spanned<RawPlatformKind>>,
    /// The API key, as a template such as `{e2b.value}`. Its secret comes from `file`, `env`, `exec` or `kv`.
    pub(super) api_key: Option<Spanned<String>>,
    /// The policies of the Vault token that reads the API key. Required where the key's secret is in Vault.
    pub(super) vault_policies: Option<Spanned<Vec<Spanned<String>>>>,
    /// The grants that sandboxes of this platform may be attached with. A token of the admin API attaches with grants that are
    /// named here only. Default: every grant, and no tokens.
    pub(super) grants: Option<Vec<Spanned<String>>>,
    /// The address of the control API. Default: the platform's public address. `https://`; `http://` to loopback only.
    pub(super) api_url: Option<Spanned<String>>,
    /// Replaces the address of the services inside sandboxes. Default: the address that the platform returns. `https://`; `http://` to loopback only.
    pub(super) sandbox_url: Option<Spanned<String>>,
    /// The static shim to upload. Default: `cofferdam-shim-ARCHITECTURE` or `cofferdam-shim` beside the sidecar's program.
    pub(super) shim: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "PlatformKind")]
pub(super) enum RawPlatformKind {
    Daytona,
    E2b,
}

/// A sandbox that the sidecar attaches when it starts, and again after every interruption.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Attachment")]
pub(super) struct RawAttachment {
    /// The name of a table `[platforms.NAME]`.
    pub(super) platform: Option<Spanned<String>>,
    /// The sandbox's id on its platform.
    pub(super) sandbox: Option<Spanned<String>>,
    /// The name of the grant, which says what the sandbox may use.
    pub(super) grant: Option<Spanned<String>>,
    /// Whether a sandbox that is paused or stopped when the sidecar starts to attach it is resumed. If it is suspended later,
    /// it stays so until it is resumed at the platform. Default: false.
    pub(super) resume: Option<Spanned<bool>>,
    /// Daytona: whether the attachment counts as activity, so that the platform does not stop the sandbox. Default: false.
    pub(super) keep_awake: Option<Spanned<bool>>,
    /// The harness in the sandbox to whose settings file the servers of the grant are added when the attachment starts. What
    /// the file holds already stays.
    pub(super) harness: Option<Spanned<Harness>>,
}
