//! The proxy: accepts a connection, opens one to the sidecar, and carries out the plan for them.
//!
//! Two threads per connection with blocking reads. What must stay true: bytes are never changed or reordered within a
//! connection, only delayed, or lost from some byte on, as in a real network.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::endpoint::{Endpoint, Stream};
use super::plan::Plan;
use super::pump::{self, Way};
use crate::deadline::{Deadline, PATIENCE};

/// Listens at one address and connects to another.
#[derive(Debug)]
pub struct Proxy {
    front: Endpoint,
    shared: Arc<Shared>,
}

/// Counts what was done to connections.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub connections: usize,
    /// Connections whose both ends were closed by their plans.
    pub cut: usize,
    /// Connections of which only one direction was closed by their plans, and its further bytes were discarded.
    pub truncated: usize,
    /// Connections whose last bytes towards the sidecar were withheld until the shim had reconnected, or for
    /// some seconds.
    pub late: usize,
    /// Bytes of old connections that reached the sidecar after the shim had reconnected.
    pub late_bytes: usize,
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            cut: self.cut + other.cut,
            truncated: self.truncated + other.truncated,
            late: self.late + other.late,
            late_bytes: self.late_bytes + other.late_bytes,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct ProxyState {
    pub(super) tally: Tally,
    /// The newest connection whose Hello has passed completely.
    pub(super) newest_hello: usize,
    /// The connections that were ended by their plans, with the number of bytes forwarded in the direction that ended.
    pub(super) ended: BTreeMap<usize, usize>,
    /// The number of bytes of a connection's handshake in a direction: preface, and Hello or Welcome.
    pub(super) openings: BTreeMap<(usize, Way), usize>,
    /// How many bytes of a connection were forwarded in a direction.
    pub(super) forwarded: BTreeMap<(usize, Way), usize>,
    open: Vec<Arc<Connection>>,
}

/// Both ends of one connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: usize,
    pub(super) plan: Plan,
    pub(super) shim: Stream,
    pub(super) sidecar: Stream,
}

impl Proxy {
    /// Accepts connections at `front` from now on; `plans` gives the plan of the n-th, the first is 1.
    ///
    /// # Panics
    /// When it cannot listen there.
    pub fn start(
        front: &Endpoint,
        sidecar: Endpoint,
        mut plans: impl FnMut(usize) -> Plan + Send + 'static,
    ) -> Self {
        let (listener, front) = front.listen().expect("a fresh address can be listened on");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        // Ends with the test's process; it owns its sockets only.
        std::thread::spawn(move || {
            while let Ok(shim) = listener.accept() {
                let number = accepting.update(|state| {
                    state.tally.connections += 1;
                    state.tally.connections
                });
                let plan = plans(number);
                // If the sidecar does not accept the connection, the shim's is closed at once.
                if let Ok(sidecar) = sidecar.connect() {
                    accepting.start_pumps(Connection { number, plan, shim, sidecar });
                }
            }
        });
        Self { front, shared }
    }

    /// The address for the shim.
    pub fn front(&self) -> &Endpoint {
        &self.front
    }

    pub fn tally(&self) -> Tally {
        self.shared.lock().tally
    }

    /// Waits until the plan of this connection has ended it; returns the bytes that had passed in that direction.
    #[track_caller]
    pub fn wait_for_the_end_of(&self, connection: usize) -> usize {
        self.wait_for(&format!("connection {connection} ends"), |state| state.ended.get(&connection).copied())
    }

    /// Waits until the plan of this connection has ended it, but no longer than this; returns the bytes that had passed
    /// in that direction.
    pub fn wait_for_the_end_within(&self, time: Duration, connection: usize) -> Option<usize> {
        self.find_within(time, |state| state.ended.get(&connection).copied())
    }

    /// The number of bytes of this connection that were forwarded towards the sidecar and towards the shim.
    pub fn bytes_forwarded(&self, connection: usize) -> (usize, usize) {
        let state = self.shared.lock();
        let bytes = |way| state.forwarded.get(&(connection, way)).copied().unwrap_or_default();
        (bytes(Way::TowardsSidecar), bytes(Way::TowardsShim))
    }

    /// Whether the plan of this connection has ended it.
    pub fn has_ended(&self, connection: usize) -> bool {
        self.shared.lock().ended.contains_key(&connection)
    }

    /// The length of this connection's handshake towards the sidecar and towards the shim, once it has passed.
    #[track_caller]
    pub fn wait_for_handshake_lengths(&self, connection: usize) -> (usize, usize) {
        self.wait_for(&format!("the handshake of connection {connection} passes"), |state| {
            let opening = |way| state.openings.get(&(connection, way)).copied();
            opening(Way::TowardsSidecar).zip(opening(Way::TowardsShim))
        })
    }

    #[track_caller]
    fn wait_for<T>(&self, what: &str, look: impl FnMut(&ProxyState) -> Option<T>) -> T {
        let found = self.find_within(PATIENCE, look);
        found.unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
    }

    fn find_within<T>(&self, time: Duration, mut look: impl FnMut(&ProxyState) -> Option<T>) -> Option<T> {
        let deadline = Deadline::after(time);
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = look(&state) {
                return Some(found);
            }
            if deadline.is_over() {
                return None;
            }
            state = match self.shared.changed.wait_timeout(state, deadline.left()) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Cuts all current connections.
    pub fn cut(&self) {
        for connection in std::mem::take(&mut self.shared.lock().open) {
            connection.cut();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = self.shared.lock();
            eprintln!("=== proxy: {:?}, open: {:?}", state.tally, state.open);
        }
    }
}

impl Shared {
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut ProxyState) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits, with a timeout, until a later connection than this one has sent its Hello.
    pub(super) fn wait_for_a_later_hello(&self, number: usize) {
        const TIMEOUT: Duration = Duration::from_secs(3);
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, TIMEOUT, |state| state.newest_hello <= number);
        drop(waited);
    }

    fn start_pumps(self: &Arc<Self>, connection: Connection) {
        let connection = Arc::new(connection);
        self.lock().open.push(Arc::clone(&connection));
        for way in [Way::TowardsSidecar, Way::TowardsShim] {
            let (shared, connection) = (Arc::clone(self), Arc::clone(&connection));
            std::thread::spawn(move || {
                // The descriptor could not be duplicated: the connection ends.
                if pump::run(way, &connection, &shared).is_err() {
                    connection.cut();
                }
                shared.lock().open.retain(|open| open.number != connection.number);
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    pub(super) fn cut(&self) {
        self.shim.close(Shutdown::Both);
        self.sidecar.close(Shutdown::Both);
    }
}
