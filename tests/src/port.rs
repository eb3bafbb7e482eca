//! Free loopback addresses to listen on. All tests get them here.
//!
//! A configuration needs an address before there is a listener. Until then the port must not be used by another test,
//! by another process, or by a socket for which the kernel chooses the port. What must stay true: two calls never
//! return the same port, not even in two processes at the same time; no returned port is in the kernel's ephemeral
//! range, unless that range begins so low that fewer than 1,024 ports are left below it.
//!
//! The IP address differs too, with each call and each process. When a process has ended, its ports are free again; a
//! client that still connects to one of its addresses does not reach the listener of another process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// An address that no other call returns until the process ends. Its port is free on all of loopback, for programs that
/// accept only a port.
///
/// # Panics
/// When no port is left.
pub fn free_address() -> SocketAddr {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let [second_byte, third_byte] = (std::process::id() as u16).to_be_bytes();
    let last_byte = 1 + (reserved.len() % ADDRESSES) as u8;
    let reservation = ports().find_map(reserve).expect("loopback has a port");
    let port = reservation.local_addr().expect("it was just bound").port();
    reserved.push(reservation);
    // The second byte is not zero, so that no address is the usual 127.0.0.1.
    SocketAddr::from(([127, second_byte.max(1), third_byte, last_byte], port))
}

/// Reservations of ports. They end with the process, however it ends.
static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
/// Values for the last byte of an address, without the network and the broadcast address.
const ADDRESSES: usize = 254;
/// Lower ports may be used by other programs of the machine.
const LOWEST_PORT: u16 = 10_000;
/// So many ports are used even if some of them are in the kernel's ephemeral range.
const MIN_PORTS: u16 = 1024;
/// Distance of two ports: some servers use the next port too.
const PORT_STEP: usize = 2;
/// Processes begin at different ports, so that they seldom try the same one.
const STRIDE: usize = 626;

/// All usable ports, in an order that depends on the process.
fn ports() -> impl Iterator<Item = u16> {
    let range = LOWEST_PORT..ephemeral_ports().start.max(LOWEST_PORT + MIN_PORTS);
    let count = range.len() / PORT_STEP;
    let first = std::process::id() as usize * STRIDE;
    (0..count).map(move |index| range.start + ((first + index) % count * PORT_STEP) as u16)
}

/// Reserves a TCP port, unless another process has. The reservation is the UDP port of the same number:
/// tests do not need that one, and the TCP port stays free for the listener.
fn reserve(port: u16) -> Option<UdpSocket> {
    let reservation = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok().map(|_| reservation)
}

/// The ports that the kernel chooses from.
fn ephemeral_ports() -> Range<u16> {
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
        let returned: Vec<SocketAddr> = (0..ADDRESSES / 2).map(|_| free_address()).collect();
        let addresses: BTreeSet<_> = returned.iter().map(SocketAddr::ip).collect();
        let ports: BTreeSet<_> = returned.iter().map(SocketAddr::port).collect();
        assert_eq!((addresses.len(), ports.len()), (returned.len(), returned.len()));
        for address in &returned[..10] {
            TcpListener::bind(address).unwrap();
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).unwrap();
        }
    }

    #[test]
    fn a_port_is_reserved_once() {
        let returned = free_address();
        assert!(
            !ephemeral_ports().contains(&returned.port()),
            "the kernel may choose {returned} for another socket"
        );
        assert!(reserve(returned.port()).is_none(), "{returned} can be reserved twice");
    }
}
