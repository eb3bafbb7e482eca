//! Paths of a configuration that no sandbox may open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_secrets::SecretSpec;
use cofferdam_servers::spec::ServerSpec;
use cofferdam_vault as vault;
use relay_proto::name::Name;

use super::{Admin, Config, Relay};

impl Config {
    /// Paths that no sandbox may open, each with its name for messages. `file` is the configuration itself.
    pub(crate) fn private_paths(&self, file: &Path) -> Vec<(String, PathBuf)> {
        let (state_dir, vault) = (Some(self.state_dir.as_path()), self.vault.as_ref());
        let private = private_paths(file, state_dir, Some(&self.admin), vault, &self.secrets);
        [private, programs(&self.servers)].concat()
    }
}

/// A path, with its name for messages.
pub(super) type NamedPath = (String, PathBuf);

/// The configuration, the state directory, the admin socket, files of the admin API's TLS and of Vault, and files and
/// programs of secrets.
pub(super) fn private_paths(
    file: &Path,
    state_dir: Option<&Path>,
    admin: Option<&Admin>,
    vault: Option<&vault::Settings>,
    secrets: &BTreeMap<Name, Arc<SecretSpec>>,
) -> Vec<NamedPath> {
    let mut paths = vec![("this configuration".to_owned(), file.to_owned())];
    paths.extend(state_dir.map(|path| ("`state-dir`".to_owned(), path.to_owned())));
    paths.extend(admin.map(|admin| ("`admin.socket`".to_owned(), admin.socket.clone())));
    if let Some(tls) = admin.and_then(|admin| admin.tls.as_ref()) {
        paths.push(("`admin.cert-file`".to_owned(), tls.cert_file.clone()));
        paths.push(("`admin.key-file`".to_owned(), tls.key_file.clone()));
        paths.extend(tls.client_ca_file.clone().map(|path| ("`admin.client-ca-file`".to_owned(), path)));
    }
    if let Some(vault) = vault {
        paths.extend(vault.ca_file.clone().map(|path| ("`vault.ca-file`".to_owned(), path)));
        let files = vault.auth.files().into_iter();
        paths.extend(files.map(|(key, path)| (format!("`vault.auth.{key}`"), path.to_owned())));
    }
    paths.extend(secrets.values().filter_map(|secret| {
        let (key, path) = secret.origin.private_path()?;
        Some((format!("`secrets.{}.{key}`", secret.name), path.to_owned()))
    }));
    paths
}

/// The programs of the servers.
pub(super) fn programs(servers: &BTreeMap<Name, Arc<ServerSpec>>) -> Vec<NamedPath> {
    let program = |server: &Arc<ServerSpec>| {
        let program = server.kind.program()?;
        Some((format!("`servers.{}.command`", server.name), program.to_owned()))
    };
    servers.values().filter_map(program).collect()
}

/// What no confined server may see: the private paths, and the sockets at which sandboxes connect.
pub(super) fn hidden_paths(private: &[NamedPath], relay: &Relay) -> Arc<[PathBuf]> {
    let sockets = relay.unix.iter().map(|unix| &unix.path).chain(&relay.vsock_dir);
    private.iter().map(|(_, path)| path).chain(sockets).cloned().collect()
}
