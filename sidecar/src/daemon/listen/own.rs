//! Sockets for one sandbox each, open for as long as its enrolment lasts.
//!
//! What must stay true: the sockets are opened again after a restart; a socket that cannot be opened is logged and does
//! not affect the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_base::clock;
use relay_proto::address::Address;

use super::{SocketKind, accept};
use crate::config::Relay;
use crate::daemon::state::Daemon;
use crate::daemon::unix_socket::{Mode, Socket, SocketError};

/// The vsock port on which a guest reaches its sidecar.
const VSOCK_PORT: u32 = 7443;
/// The vsock address (CID) of the host, for every guest.
const VSOCK_HOST: u32 = 2;

impl Daemon {
    /// Opens the sockets of all enrolments, at the start.
    pub(in crate::daemon) fn open_own_sockets(self: &Arc<Self>) {
        for (enrolment, directory) in self.enrolments.sockets(clock::now()) {
            if let Err(error) = self.open_own_socket(&enrolment.id, &directory) {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, enrolment = %enrolment.id, "a sandbox's own socket could not be opened");
            }
        }
    }

    /// Listens for this enrolment in its directory.
    pub(in crate::daemon) fn open_own_socket(
        self: &Arc<Self>,
        enrolment: &Arc<str>,
        directory: &Path,
    ) -> Result<(), SocketError> {
        let path = own_socket_path(&self.config_at_start.relay, directory);
        let socket = Socket::bind(&path, Mode::of(&self.context.config.load().relay))?;
        let stop = self.stop.child_token();
        let kind = SocketKind::Own(Arc::clone(enrolment));
        self.context.tasks.spawn(accept(Arc::clone(self), socket.listener(), kind, stop.clone()));
        self.own_sockets.insert(Arc::clone(enrolment), socket, stop);
        Ok(())
    }

    /// The address that the sandbox's shim connects to, if the directory has the same path in the sandbox.
    pub(in crate::daemon) fn own_address(&self, directory: &Path) -> Address {
        let relay = &self.config_at_start.relay;
        match is_vsock_directory(relay, directory) {
            true => Address::Vsock { cid: VSOCK_HOST, port: VSOCK_PORT },
            false => Address::Unix(own_socket_path(relay, directory)),
        }
    }
}

/// The path of the socket in this directory. A microVM's monitor connects port N of its guest to the path of the VM's vsock
/// (`DIR/vsock`) with `_N` appended. The sidecar takes the configuration from its start, so that the name of a socket does not
/// change while it runs.
pub(crate) fn own_socket_path(relay: &Relay, directory: &Path) -> PathBuf {
    match is_vsock_directory(relay, directory) {
        true => directory.join(format!("vsock_{VSOCK_PORT}")),
        false => directory.join("relay.sock"),
    }
}

fn is_vsock_directory(relay: &Relay, directory: &Path) -> bool {
    let Some(vsock_dir) = &relay.vsock_dir else { return false };
    let vsock_dir = vsock_dir.canonicalize().unwrap_or_else(|_| vsock_dir.clone());
    directory.starts_with(vsock_dir)
}
