//! Every code of a finding: why it matters, and the exit code if it is an error.
//!
//! What must stay true: codes are stable, programs and packaging/guide/troubleshooting.md refer to them; each is in the guide.

use crate::terminal::failure::Sysexit;

/// What a code stands for.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) name: &'static str,
    /// Completes "this matters because".
    pub(super) why: &'static str,
    /// For an error with this code.
    pub(super) exit: Sysexit,
}

const fn code(name: &'static str, exit: Sysexit, why: &'static str) -> Code {
    Code { name, why, exit }
}

const NO_CREDENTIAL: &str = "calls of the servers that use it are refused with `credential_unavailable`";
const NO_SERVER: &str = "calls of this server are refused with `server_unavailable`";
const NO_START: &str = "`cofferdam serve` does not start";
const NO_LINK: &str = "sandboxes cannot connect";
const NO_LOGIN: &str = "no session gets a Vault token, so no server that needs one starts";
const NO_SANDBOX: &str = "`cofferdam run` cannot make a sandbox of this kind";
const HARNESS: &str = "the harness cannot start this server, or reaches nothing";

pub(super) const CODES: &[Code] = &[
    code("config-ok", Sysexit::Configuration, ""),
    code("config-missing", Sysexit::NoInput, "without a configuration there is no server and no relay"),
    code("config-unreadable", Sysexit::NoInput, NO_START),
    code(
        "config-invalid",
        Sysexit::Configuration,
        "the sidecar does not start, or keeps its previous configuration",
    ),
    code(
        "config-writable",
        Sysexit::NoPermission,
        "a user who can change it can run programs as the sidecar's user",
    ),
    code("secret-missing", Sysexit::NoInput, NO_CREDENTIAL),
    code("secret-unreadable", Sysexit::NoInput, NO_CREDENTIAL),
    code("secret-unset", Sysexit::NoInput, NO_CREDENTIAL),
    code("secret-invalid", Sysexit::Configuration, NO_CREDENTIAL),
    code("secret-field-missing", Sysexit::Configuration, NO_CREDENTIAL),
    code(
        "secret-guessable",
        Sysexit::Configuration,
        "the value is not redacted in what other servers send to a sandbox, such as a server that reads the same file",
    ),
    code(
        "secret-exposed",
        Sysexit::NoPermission,
        "the credential is no secret from the other users of this host",
    ),
    code(
        "secret-exposed-to-group",
        Sysexit::NoPermission,
        "the credential is no secret from the users of that group",
    ),
    code("file-unreadable", Sysexit::NoInput, NO_START),
    code("admin-tls-invalid", Sysexit::Configuration, NO_START),
    code("program-missing", Sysexit::Configuration, NO_SERVER),
    code("program-not-executable", Sysexit::Configuration, NO_SERVER),
    code("directory-missing", Sysexit::Configuration, NO_SERVER),
    code("directory-not-writable", Sysexit::CannotCreate, NO_START),
    code(
        "permission-unrefined",
        Sysexit::Configuration,
        "the server may fail where it needs what its manifest asks for",
    ),
    code("vault-ok", Sysexit::Unavailable, ""),
    code("vault-unreachable", Sysexit::Unavailable, NO_LOGIN),
    code("vault-sealed", Sysexit::Unavailable, NO_LOGIN),
    code("vault-login", Sysexit::NoPermission, NO_LOGIN),
    code(
        "vault-policy",
        Sysexit::NoPermission,
        "requests of the sidecar that need this are refused by Vault",
    ),
    code("vault-setup", Sysexit::NoPermission, "sessions of the grant get no credential from Vault"),
    code("vault-not-checked", Sysexit::Unavailable, "something may be missing there and was not looked at"),
    code(
        "clock-skew",
        Sysexit::Unavailable,
        "lifetimes of tokens, leases and certificates are judged wrongly",
    ),
    code("server-ok", Sysexit::Unavailable, ""),
    code("server-not-started", Sysexit::Unavailable, NO_SERVER),
    code("server-no-credential", Sysexit::Unavailable, NO_CREDENTIAL),
    code("server-ended", Sysexit::Unavailable, NO_SERVER),
    code("server-unreachable", Sysexit::Unavailable, NO_SERVER),
    code("server-no-answer", Sysexit::Unavailable, NO_SERVER),
    code("server-not-mcp", Sysexit::Unavailable, NO_SERVER),
    code("server-refused", Sysexit::Unavailable, NO_SERVER),
    code(
        "server-stray-output",
        Sysexit::Unavailable,
        "some harnesses give up on a server that prints other lines; the sidecar discards them",
    ),
    code("server-no-tools", Sysexit::Unavailable, "an agent has no tool to call there"),
    code("server-not-tried", Sysexit::Unavailable, "whether it works is not known"),
    code("server-not-granted", Sysexit::Configuration, "no sandbox can use it"),
    code(
        "rule-matches-nothing",
        Sysexit::Configuration,
        "it protects or permits nothing; the tool may have another name",
    ),
    code("serve-running", Sysexit::Unavailable, ""),
    code(
        "serve-not-running",
        Sysexit::Unavailable,
        "sandboxes cannot connect until it runs; `cofferdam run` starts one by itself",
    ),
    code(
        "serve-denied",
        Sysexit::NoPermission,
        "commands such as `sessions` and `kill` do not reach the sidecar",
    ),
    code(
        "serve-no-answer",
        Sysexit::Unavailable,
        "commands such as `sessions` and `kill` do not reach the sidecar",
    ),
    code("relay-ok", Sysexit::Unavailable, ""),
    code("relay-socket-dead", Sysexit::Unavailable, NO_LINK),
    code("relay-unreachable", Sysexit::Unavailable, NO_LINK),
    code(
        "relay-not-isolated",
        Sysexit::Configuration,
        "a sandbox that can open the relay could open this too",
    ),
    code(
        "relay-directory-foreign",
        Sysexit::NoPermission,
        "its owner could put a socket of his own there; shims refuse such a directory",
    ),
    code(
        "relay-directory-writable",
        Sysexit::NoPermission,
        "others could put a socket of their own there; shims refuse such a directory",
    ),
    code("port-taken", Sysexit::Unavailable, NO_START),
    code("port-unavailable", Sysexit::Unavailable, NO_START),
    code("sandbox-ok", Sysexit::Unavailable, ""),
    code("sandbox-missing", Sysexit::Unavailable, NO_SANDBOX),
    code("sandbox-refused", Sysexit::NoPermission, NO_SANDBOX),
    code("sandbox-none", Sysexit::Unavailable, "`cofferdam run` cannot make any sandbox on this machine"),
    code("user-namespaces-forbidden", Sysexit::NoPermission, "sandboxes without root need them"),
    code(
        "shim-missing",
        Sysexit::Unavailable,
        "`run`, `attach` and `shim` have nothing to put into a sandbox",
    ),
    code("harness-ok", Sysexit::Configuration, ""),
    code("harness-none", Sysexit::Configuration, ""),
    code("harness-unreadable", Sysexit::Configuration, "whether its entries fit is not known"),
    code(
        "harness-shim-missing",
        Sysexit::Configuration,
        "outside of a sandbox the harness cannot start this server",
    ),
    code("harness-link-stale", Sysexit::Configuration, HARNESS),
    code("harness-server-unknown", Sysexit::Configuration, HARNESS),
    code("disk-ok", Sysexit::CannotCreate, ""),
    code(
        "disk-full",
        Sysexit::CannotCreate,
        "every call is refused, because its decision cannot be recorded",
    ),
    code(
        "disk-low",
        Sysexit::CannotCreate,
        "when it is full, every call is refused, because its decision cannot be recorded",
    ),
    code(
        "descriptors-low",
        Sysexit::OperatingSystem,
        "each link, server and attachment takes some; then connections are refused",
    ),
    code("processes-low", Sysexit::OperatingSystem, "servers cannot start when no process is left"),
    code(
        "memory-low",
        Sysexit::OperatingSystem,
        "the kernel kills the sidecar or a server when the cgroup has no memory left",
    ),
    code("probe-timeout", Sysexit::Unavailable, "what it would have found is not known"),
    code("probe-failed", Sysexit::Software, "what it would have found is not known"),
];

/// The code with this name.
///
/// # Panics
/// If the table does not have it. The tests below look for every name in the sources, and `tests::doctor` makes each happen.
pub(super) fn of(name: &str) -> &'static Code {
    let found = CODES.iter().find(|code| code.name == name);
    found.unwrap_or_else(|| panic!("`{name}` is not in the table of codes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name` in quotes, as a literal of the sources that look for findings.
    const SOURCES: &[&str] = &[
        include_str!("configuration.rs"),
        include_str!("harnesses.rs"),
        include_str!("mod.rs"),
        include_str!("relay.rs"),
        include_str!("resources.rs"),
        include_str!("sandboxes.rs"),
        include_str!("servers.rs"),
        include_str!("vault.rs"),
        include_str!("../check/files.rs"),
        include_str!("../check/findings.rs"),
        include_str!("../check/manifests.rs"),
        include_str!("../check/secrets.rs"),
    ];

    #[test]
    fn every_code_is_once_in_the_table_used_and_in_the_guide() {
        let guide = include_str!("../../../packaging/guide/troubleshooting.md");
        for (index, code) in CODES.iter().enumerate() {
            let name = code.name;
            assert!(!CODES[..index].iter().any(|other| other.name == name), "{name} is there twice");
            let literal = format!("\"{name}\"");
            assert!(SOURCES.iter().any(|source| source.contains(&literal)), "{name} is not used");
            assert!(guide.contains(&format!("| `{name}` |")), "{name} is not in the guide");
        }
    }

    #[test]
    fn every_finding_has_a_code_of_the_table() {
        for source in SOURCES {
            for call in
                ["error(", "warning(", "good(", "findings.add(", " => ", "const CONFIG_INVALID: &str = "]
            {
                for place in source.split(call).skip(1) {
                    let Some(name) = place.trim_start().strip_prefix('"') else { continue };
                    let name = name.split('"').next().unwrap();
                    // Texts of other matches have spaces or capitals.
                    let is_code = name.contains('-')
                        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
                    if is_code || call != " => " {
                        assert_eq!(of(name).name, name);
                    }
                }
            }
        }
    }
}
