//! Places on loopback to listen at: the one way in which tests find them.
//!
//! A configuration needs an address before there is a listener. Until then the port must not be given out again: not to
//! another test, not to another process, and not to a socket for which the kernel chooses the port. What must stay true:
//! two calls never give the same port, not even in two processes at the same time; no port is one of those that the
//! kernel chooses from.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// A place that is this call's own until the process ends: its address, and its port on all of loopback, for those who
/// can say no more than a port.
///
/// # Panics
/// When there is none left.
pub fn free_place() -> SocketAddr {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let last = 1 + (held.len() % ADDRESSES) as u8;
    let sign = ports().find_map(reserve).expect("loopback has a port");
    let port = sign.local_addr().expect("it was just bound").port();
    held.push(sign);
    SocketAddr::from(([127, high.max(1), low, last], port))
}

/// Signs that ports are taken. They go with the process, however it ends.
static HELD: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
/// The last byte of an address, without the two that mean a network.
const ADDRESSES: usize = 254;
/// Below this other programs of the machine are at home.
const LOWEST: u16 = 10_000;
/// Some servers take the next port too.
const APART: usize = 2;
/// Processes begin at different places, so that they seldom meet.
const STRIDE: usize = 626;

/// All that there are, in this process's own order.
fn ports() -> impl Iterator<Item = u16> {
    let range = LOWEST..given_away().start.max(LOWEST + 1024);
    let count = range.len() / APART;
    let first = std::process::id() as usize * STRIDE;
    (0..count).map(move |place| range.start + ((first + place) % count * APART) as u16)
}

/// Takes a port, unless it is taken. The sign that it is taken is the port of the same number of another protocol:
/// that one is not needed, and the listener finds its own free.
fn reserve(port: u16) -> Option<UdpSocket> {
    let sign = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok().map(|_| sign)
}

/// The ports from which the kernel chooses.
fn given_away() -> Range<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = text.split_whitespace().filter_map(|end| end.parse().ok());
    ends.next().unwrap_or(32_768)..ends.next().unwrap_or(60_999)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_differ_and_can_be_listened_on() {
        let places: Vec<SocketAddr> = (0..ADDRESSES / 2).map(|_| free_place()).collect();
        let addresses: BTreeSet<_> = places.iter().map(SocketAddr::ip).collect();
        let ports: BTreeSet<_> = places.iter().map(SocketAddr::port).collect();
        assert_eq!((addresses.len(), ports.len()), (places.len(), places.len()));
        for place in &places[..10] {
            TcpListener::bind(place).unwrap();
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, place.port())).unwrap();
        }
    }

    #[test]
    fn a_port_is_given_out_once() {
        let place = free_place();
        assert!(!given_away().contains(&place.port()), "the kernel may choose {place} for another socket");
        assert!(reserve(place.port()).is_none(), "{place} can be reserved twice");
    }
}
