//! What a configuration means once it has checked. Immutable: a reload makes a new one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use relay_proto::address::{Address, HostPort};
use relay_proto::name::Name;

use super::Limits;
use crate::audit::SyncMode;
use crate::secrets::SecretSpecs;
use crate::servers::spec::ServerSpec;
use crate::vault;

/// A configuration that checked. Everything it names exists in it.
#[derive(Debug)]
pub struct Config {
    pub state_dir: PathBuf,
    pub audit_sync: SyncMode,
    pub relay: Relay,
    pub admin: Admin,
    /// Present wherever a secret comes from it.
    pub vault: Option<vault::Settings>,
    pub secrets: Arc<SecretSpecs>,
    pub servers: BTreeMap<Name, Arc<ServerSpec>>,
    pub grants: BTreeMap<Name, Arc<Grant>>,
    pub limits: Limits,
    /// SHA-256 in hex of what decides: servers' rules and grants, in a canonical order.
    pub policy_digest: String,
}

#[derive(Debug)]
pub struct Relay {
    pub unix: Option<UnixRelay>,
    /// Who may connect to Unix sockets, by peer credentials; none means the sidecar's own user, and root.
    pub uids: Option<Vec<u32>>,
    pub tls: Option<TlsRelay>,
    /// A socket that is made for one sandbox below this directory has the name that a microVM's vsock gives it.
    pub vsock_dir: Option<PathBuf>,
    pub resume_grace: Duration,
    pub heartbeat: Duration,
}

/// The shared Unix socket: each link on it is a session of its own.
#[derive(Debug)]
pub struct UnixRelay {
    /// Its directory is mounted into sandboxes: nothing else that this configuration names lies in there.
    pub path: PathBuf,
    pub grant: Name,
}

/// The port for sandboxes that dial out.
#[derive(Debug)]
pub struct TlsRelay {
    pub listen: HostPort,
    /// What an enrolment string names: `tls://` or `wss://`.
    pub advertise: Address,
}

#[derive(Debug)]
pub struct Admin {
    pub socket: PathBuf,
    /// Always of loopback.
    pub http: Option<HostPort>,
}

#[derive(Debug)]
pub struct Grant {
    pub name: Name,
    pub servers: Vec<Name>,
    /// What its sessions' tokens may do in Vault, and nothing besides. Not empty where a server of the grant uses Vault.
    pub vault_policies: Vec<String>,
    pub ttl: Duration,
}
