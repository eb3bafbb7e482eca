//! Places on loopback to listen at: the one way in which tests find them.
//!
//! Whoever needs a place in a configuration has to know it before anybody listens there, so it can only be one that was
//! free a moment ago. Must stay true: two calls never give the same place, not even in two processes at the same time,
//! as far as loopback addresses can tell them apart.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A place that nobody has now. Its address is this call's own, so that tests cannot take each other's; its port was
/// free on 127.0.0.1 too, for those who can say no more than a port.
pub fn free_place() -> SocketAddr {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a port");
    let port = listener.local_addr().expect("it was just bound").port();
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    // After the last address comes the first one again, with another port.
    let last = 1 + (NEXT.fetch_add(1, Ordering::Relaxed) % ADDRESSES) as u8;
    SocketAddr::from(([127, high.max(1), low, last], port))
}

/// The last byte of one, without the two that mean a network.
const ADDRESSES: usize = 254;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn places_are_different_and_can_be_listened_at() {
        let places: Vec<SocketAddr> = (0..2 * ADDRESSES).map(|_| free_place()).collect();
        let different: BTreeSet<&SocketAddr> = places.iter().collect();
        assert_eq!(different.len(), places.len());
        let near: BTreeSet<_> = places[..ADDRESSES].iter().map(SocketAddr::ip).collect();
        assert_eq!(near.len(), ADDRESSES);
        for place in &places[..10] {
            TcpListener::bind(place).unwrap();
        }
    }
}
