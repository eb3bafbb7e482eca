//! The open sockets that belong to one sandbox each, by the id of its enrolment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::unix_socket::Socket;

#[derive(Default)]
pub(super) struct OwnSockets(Mutex<HashMap<Arc<str>, OwnSocket>>);

struct OwnSocket {
    /// Removes the socket's file when dropped.
    _socket: Socket,
    stop: CancellationToken,
}

impl OwnSockets {
    pub(super) fn insert(&self, enrolment: Arc<str>, socket: Socket, stop: CancellationToken) {
        self.lock().insert(enrolment, OwnSocket { _socket: socket, stop });
    }

    /// Closes the socket of this enrolment.
    pub(super) fn close(&self, enrolment: &str) {
        if let Some(own) = self.lock().remove(enrolment) {
            own.stop.cancel();
        }
    }

    pub(super) fn close_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, OwnSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
