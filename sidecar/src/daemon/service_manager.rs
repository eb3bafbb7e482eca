//! The service manager that started the sidecar, usually systemd: the relay socket that it passes, and what it is told.
//!
//! What must stay true: a passed socket is used only if it is the one that the configuration names, so that no other
//! sandboxes than those of `relay.unix` reach it. Without a service manager nothing here has an effect.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::AcceptConn;
use sd_notify::NotifyState;

use crate::config::Config;

/// The sockets that the service manager has bound and passed to this process.
#[derive(Debug, Default)]
pub(crate) struct PassedSockets(Vec<UnixListener>);

#[derive(Debug, thiserror::Error)]
pub(crate) enum PassedSocketError {
    #[error("cannot take over a socket of the service manager: {0}")]
    Unusable(io::Error),
    #[error("the service manager passes a socket that accepts connections itself; `Accept=no` is needed")]
    Connected,
    #[error("the service manager passes {0} sockets; it can pass that of `relay.unix` only")]
    TooMany(usize),
    #[error("the service manager passes the socket `{passed}`, but `relay.unix` is {}", configured(.relay.as_deref()))]
    OtherPath { passed: String, relay: Option<PathBuf> },
}

impl PassedSockets {
    /// Takes the sockets over. It changes the environment, so no other thread may exist yet.
    pub(crate) fn take() -> Result<Self, PassedSocketError> {
        let mut descriptors = ListenFd::from_env();
        let sockets = (0..descriptors.len()).map(|index| descriptors.take_unix_listener(index));
        let sockets: Result<Vec<_>, _> = sockets.collect();
        Ok(Self(sockets.map_err(PassedSocketError::Unusable)?.into_iter().flatten().collect()))
    }

    /// The relay socket, if it was passed.
    pub(super) fn relay(self, config: &Config) -> Result<Option<UnixListener>, PassedSocketError> {
        let count = self.0.len();
        let mut sockets = self.0.into_iter();
        let (Some(socket), None) = (sockets.next(), sockets.next()) else {
            return if count == 0 { Ok(None) } else { Err(PassedSocketError::TooMany(count)) };
        };
        if !getsockopt(&socket, AcceptConn).map_err(|errno| PassedSocketError::Unusable(errno.into()))? {
            return Err(PassedSocketError::Connected);
        }
        let address = socket.local_addr().map_err(PassedSocketError::Unusable)?;
        let relay = config.relay.unix.as_ref().map(|unix| unix.path.as_path());
        match address.as_pathname() {
            Some(passed) if Some(passed) == relay => Ok(Some(socket)),
            passed => Err(PassedSocketError::OtherPath {
                passed: passed.map_or_else(|| "without a path".to_owned(), |path| path.display().to_string()),
                relay: relay.map(Path::to_owned),
            }),
        }
    }
}

/// The sidecar accepts links.
pub(super) fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// The sidecar reads its configuration again; [`notify_ready`] follows.
pub(super) fn notify_reloading() {
    // The time is how newer versions of systemd match a reload with the signal that asked for it.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager was not told of the reload"),
    }
}

/// The sidecar ends its sessions and then exits.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager was not told of the sidecar's state");
    }
}

fn configured(relay: Option<&Path>) -> String {
    relay.map_or_else(|| "not configured".to_owned(), |path| format!("`{}`", path.display()))
}
