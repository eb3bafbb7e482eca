//! The checked configuration. It is immutable: a reload builds a new one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{self as audit, SyncMode};
use cofferdam_confine::ShownPath;
use cofferdam_platforms::{KeepAwake, PlatformSettings, SandboxId, WhenSuspended};
use cofferdam_secrets::{SecretSpecs, Template};
use cofferdam_servers::spec::ServerSpec;
use cofferdam_vault as vault;
use relay_proto::address::{Address, HostPort};
use relay_proto::name::Name;

use super::Limits;
use crate::harness::Harness;

/// A valid configuration: every server, secret and grant that it refers to is defined in it.
#[derive(Debug)]
pub struct Config {
    pub state_dir: PathBuf,
    pub audit_sync: SyncMode,
    pub relay: Relay,
    pub admin: Admin,
    /// Always present when a secret comes from Vault.
    pub vault: Option<vault::Settings>,
    pub secrets: Arc<SecretSpecs>,
    pub servers: BTreeMap<Name, Arc<ServerSpec>>,
    pub grants: BTreeMap<Name, Arc<Grant>>,
    pub platforms: BTreeMap<Name, Arc<Platform>>,
    /// Sandboxes on platforms that the sidecar attaches by itself, by the sandbox's name.
    pub attachments: BTreeMap<Name, Attachment>,
    pub limits: Limits,
    /// SHA-256 in hex of the servers' rules and of the grants, in a canonical order.
    pub policy_digest: String,
}

impl Config {
    /// How the audit below the state directory is opened.
    pub(crate) fn audit_options(&self, write_by: audit::WriteBy) -> audit::Options {
        audit::Options {
            directory: self.state_dir.join("audit"),
            sync: self.audit_sync,
            file_bytes: self.limits.audit_file_bytes,
            field_bytes: self.limits.audit_field_bytes,
            total_bytes: self.limits.audit_total_bytes,
            write_by,
        }
    }
}

#[derive(Debug)]
pub struct Relay {
    pub unix: Option<UnixRelay>,
    /// User ids that may connect to Unix sockets, compared with the peer's credentials. `None`: the sidecar's own user and root.
    pub uids: Option<Vec<u32>>,
    pub tls: Option<TlsRelay>,
    /// The sidecar creates the sockets of microVMs below this directory, one for each sandbox, with the file name at which the
    /// monitor of the VM (such as Firecracker) looks for the host's end of a vsock port.
    pub vsock_dir: Option<PathBuf>,
    pub resume_grace: Duration,
    pub heartbeat: Duration,
}

/// The shared Unix socket. Each link on it has its own session.
#[derive(Debug)]
pub struct UnixRelay {
    /// The socket's directory is mounted into sandboxes, so no other path of this configuration lies in it.
    pub path: PathBuf,
    pub grant: Name,
}

/// The port for sandboxes that dial out.
#[derive(Debug)]
pub struct TlsRelay {
    pub listen: HostPort,
    /// The address in enrolment strings: `tls://` or `wss://`.
    pub advertise: Address,
}

#[derive(Debug)]
pub struct Admin {
    pub socket: PathBuf,
    /// Always a loopback address.
    pub http: Option<HostPort>,
    pub tls: Option<AdminTls>,
}

/// The port of the admin API for other hosts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AdminTls {
    pub listen: HostPort,
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// Clients with a certificate of these authorities need no token.
    pub client_ca_file: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Grant {
    pub name: Name,
    pub servers: Vec<Name>,
    /// The only policies of the Vault tokens of the grant's sessions. Not empty when a server of the grant uses Vault.
    pub vault_policies: Vec<String>,
    /// What `{workspace}` stands for in the profiles of its servers.
    pub workspace: Option<ShownPath>,
    pub ttl: Duration,
}

/// A platform that runs sandboxes.
#[derive(Debug)]
pub struct Platform {
    pub name: Name,
    pub settings: PlatformSettings,
    /// Its secret is on this host, or a static one in Vault.
    pub api_key: Template,
    /// The policies of the Vault token that reads the API key; empty if the key is not in Vault.
    pub vault_policies: Vec<String>,
    /// The grants that its sandboxes may be attached with. `None`: every grant, but then only operators may
    /// attach them (on the admin socket or with a client certificate), not clients with a token of the admin API.
    pub grants: Option<Vec<Name>>,
    /// The static shim to upload; `None`: the shim beside the sidecar's program.
    pub shim: Option<PathBuf>,
}

/// The tables `[platforms.NAME]`.
pub(crate) type Platforms = BTreeMap<Name, Arc<Platform>>;

/// Whether two tables lead to the same platform, so that an id names the same sandbox in both. A table that does not exist now
/// is the same as itself only.
pub(crate) fn is_same_platform(platforms: &Platforms, one: &Name, other: &Name) -> bool {
    let settings = |name: &Name| platforms.get(name).map(|platform| &platform.settings);
    one == other || settings(one).zip(settings(other)).is_some_and(|(one, other)| one.is_same_platform(other))
}

/// A sandbox that the sidecar attaches by itself. Its name is the key of its table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attachment {
    pub platform: Name,
    pub sandbox: SandboxId,
    pub grant: Name,
    /// Applies when the sidecar starts to attach the sandbox, not when the sandbox is suspended later.
    pub when_suspended: WhenSuspended,
    pub keep_awake: KeepAwake,
    /// The harness to whose settings the servers of the grant are added.
    pub harness: Option<Harness>,
}

impl Platform {
    /// Whether its sandboxes may be attached with this grant.
    pub(crate) fn permits(&self, grant: &Name) -> bool {
        self.grants.as_ref().is_none_or(|grants| grants.contains(grant))
    }

    /// Whether a token of the admin API may attach its sandboxes with this grant.
    pub(crate) fn permits_for_api_tokens(&self, grant: &Name) -> bool {
        self.grants.as_ref().is_some_and(|grants| grants.contains(grant))
    }
}
