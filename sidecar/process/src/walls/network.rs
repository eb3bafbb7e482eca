//! Makes the server's network: the loopback interface, its addresses, and the sockets that the sidecar serves.
//!
//! The sockets are bound here and accepted from by the sidecar, whose connections start in its own network. So the server's
//! network has no route to any other, and needs no address translation.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, sendmsg, socket,
};

use super::Network;

/// The loopback interface is the first of every network namespace.
const LOOPBACK: u32 = 1;
const IFF_UP: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// The address is usable at once: no other host is asked whether it has it.
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const AF_UNSPEC: u8 = 0;

/// Makes the network and sends its sockets to the sidecar. The process must be in a network namespace of its own.
pub(super) fn build(network: &Network, sidecar: Option<&UnixStream>) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    netlink.request(RTM_NEWLINK, &bring_up())?;
    if let Some((address, prefix)) = network.pool {
        netlink.request(RTM_NEWROUTE, &local_route(address, prefix))?;
    }
    for address in &network.addresses {
        netlink.request(RTM_NEWADDR, &own_address(*address))?;
    }
    let mut sockets: Vec<OwnedFd> = Vec::with_capacity(network.sockets());
    for address in &network.listeners {
        sockets.push(TcpListener::bind(address)?.into());
    }
    if let Some(address) = network.resolver {
        sockets.push(UdpSocket::bind(address)?.into());
    }
    match (sockets.is_empty(), sidecar) {
        (true, _) => Ok(()),
        (false, Some(sidecar)) => send_sockets(sidecar, &sockets),
        (false, None) => Err(Errno::ENOTCONN.into()),
    }
}

fn send_sockets(sidecar: &UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    let descriptors: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    // In flight they belong to the message: this process may close its copies and exit.
    sendmsg::<()>(sidecar.as_raw_fd(), &[io::IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// A connection to the kernel's configuration of this network namespace.
struct Netlink {
    socket: std::fs::File,
    sequence: u32,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        Ok(Self { socket: socket.into(), sequence: 0 })
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn request(&mut self, kind: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(body);
        self.socket.write_all(&message)?;
        let mut answer = [0; 512];
        let length = self.socket.read(&mut answer)?;
        // The header, then the error's number, which is 0 in an acknowledgement and otherwise negative.
        let number = |from: usize| answer[..length].get(from..from + 4)?.try_into().ok();
        let kind = answer[..length].get(4..6).and_then(|bytes| bytes.try_into().ok());
        match (kind.map(u16::from_ne_bytes), number(16).map(i32::from_ne_bytes)) {
            (Some(NLMSG_ERROR), Some(0)) => Ok(()),
            (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
            _ => Err(Errno::EBADMSG.into()),
        }
    }
}

/// `struct ifinfomsg`: the loopback interface is up.
fn bring_up() -> Vec<u8> {
    let mut body = vec![AF_UNSPEC, 0, 0, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body
}

/// `struct rtmsg`: every address of a block is one of this host's.
fn local_route(address: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut body = vec![AF_INET, prefix, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL];
    body.extend(0_u32.to_ne_bytes());
    push_attribute(&mut body, RTA_DST, &address.octets());
    push_attribute(&mut body, RTA_OIF, &LOOPBACK.to_ne_bytes());
    body
}

/// `struct ifaddrmsg`: a single address of the loopback interface.
fn own_address(address: IpAddr) -> Vec<u8> {
    let (family, bits, octets) = match address {
        IpAddr::V4(address) => (AF_INET, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, 128, address.octets().to_vec()),
    };
    let mut body = vec![family, bits, IFA_F_NODAD, RT_SCOPE_HOST];
    body.extend(LOOPBACK.to_ne_bytes());
    push_attribute(&mut body, IFA_LOCAL, &octets);
    push_attribute(&mut body, IFA_ADDRESS, &octets);
    body
}

/// Appends `struct rtattr` and its value. All values here have a length that is a multiple of four, so none is padded.
fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}
