//! The address by which a shim reaches its sidecar, for every kind of sandbox.
//!
//! | address | connection |
//! |---|---|
//! | `hub:FILE` | a hub on the loopback, where Unix sockets are forbidden; the file has its port and key |
//! | `unix:PATH` | a Unix socket, most often in a mounted directory |
//! | `fd:N` | a connected stream socket that the shim inherits; it cannot be connected again |
//! | `tls://HOST:PORT` | out over TCP |
//! | `wss://HOST[:PORT]/PATH` | out over a WebSocket, through proxies and load balancers |
//! | `vsock:CID:PORT` | from a virtual machine to its host |
//! | `listen:HOST:PORT`, `listen:vsock:PORT` | the host dials in, see [`DialTarget`] |

mod inward;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

pub use inward::{DialTarget, ListenAddress};

/// Where the connection of a link goes: one of the kinds above.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Address {
    Fd(i32),
    Hub(PathBuf),
    Listen(ListenAddress),
    Tls(HostPort),
    Unix(PathBuf),
    Vsock { cid: u32, port: u32 },
    WebSocket(WebSocket),
}

/// `HOST:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostPort {
    pub host: Host,
    pub port: u16,
}

/// `wss://HOST[:PORT]/PATH`; the path begins with a slash.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WebSocket {
    pub host: Host,
    pub port: u16,
    pub path: String,
}

/// A name, or an IP address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Host {
    Ip(IpAddr),
    Name(String),
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAddress {
    #[error("`{0}` is not a file descriptor: use a number from 3 on; 0 to 2 are stdin, stdout and stderr")]
    Descriptor(String),
    #[error(
        "`{0}` is not HOST:PORT: use a name, an IPv4 address or an IPv6 address in brackets, and a port from 1 to 65535"
    )]
    HostPort(String),
    #[error("`hub:` needs the file that a hub was given with --loopback")]
    Hub,
    #[error("`{0}` is not the address of a relay: use {KINDS}")]
    Unknown(String),
    #[error("a Unix socket needs a path of 1 to {MAX_UNIX_PATH} bytes, this one has {0}")]
    UnixPath(usize),
    #[error("`{0}` is not CID:PORT: use two numbers; the host has CID 2")]
    Vsock(String),
    #[error(
        "`{0}` is neither CID:PORT nor PATH:PORT: after `vsock:` give a virtual machine's CID, or the path of its monitor's \
         socket (with a slash), and a port from 1 to 4294967294; a host that is named `vsock` is written `vsock.`"
    )]
    VsockDial(String),
    #[error(
        "`{0}` is not a vsock port: use a number from 1 to 4294967294; a host that is named `vsock` is written `vsock.`"
    )]
    VsockListen(String),
    #[error("`{0}` is not HOST[:PORT]/PATH of printable ASCII characters")]
    WebSocket(String),
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return parse_unix_path(path).map(Self::Unix);
        }
        if let Some(file) = text.strip_prefix("hub:") {
            return match file.is_empty() || file.contains('\0') {
                true => Err(InvalidAddress::Hub),
                false => Ok(Self::Hub(file.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("fd:") {
            return match parse_number(rest) {
                Some(descriptor @ 3..) => Ok(Self::Fd(descriptor)),
                _ => Err(InvalidAddress::Descriptor(rest.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("tls://") {
            return rest.parse().map(Self::Tls);
        }
        if let Some(rest) = text.strip_prefix("listen:") {
            return rest.parse().map(Self::Listen);
        }
        if let Some(rest) = text.strip_prefix("wss://") {
            return parse_web_socket(rest)
                .map(Self::WebSocket)
                .ok_or_else(|| InvalidAddress::WebSocket(rest.into()));
        }
        if let Some(rest) = text.strip_prefix("vsock:") {
            let parts =
                rest.split_once(':').and_then(|(cid, port)| Some((parse_number(cid)?, parse_number(port)?)));
            return match parts {
                Some((cid, port)) => Ok(Self::Vsock { cid, port }),
                None => Err(InvalidAddress::Vsock(rest.into())),
            };
        }
        Err(InvalidAddress::Unknown(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fd(descriptor) => write!(f, "fd:{descriptor}"),
            Self::Hub(file) => write!(f, "hub:{}", file.display()),
            Self::Listen(endpoint) => write!(f, "listen:{endpoint}"),
            Self::Tls(endpoint) => write!(f, "tls://{endpoint}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Self::WebSocket(WebSocket { host, port: HTTPS, path }) => write!(f, "wss://{host}{path}"),
            Self::WebSocket(WebSocket { host, port, path }) => write!(f, "wss://{host}:{port}{path}"),
        }
    }
}

impl FromStr for HostPort {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            Some(Self { host: Host::parse(host)?, port: parse_number(port).filter(|port| *port != 0)? })
        });
        parts.ok_or_else(|| InvalidAddress::HostPort(text.into()))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Host {
    /// Whether this is an address of the loopback, which only this machine can reach.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.is_loopback(),
            Self::Name(name) => name == "localhost",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return address.parse::<Ipv6Addr>().ok().map(|address| Self::Ip(address.into()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Ip(address.into()));
        }
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let valid = (1..=MAX_HOST).contains(&text.len()) && text.bytes().all(is_allowed);
        // A text whose last label is a number is a mistyped IPv4 address, not a name.
        let last_label = text.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        let numeric = last_label.bytes().all(|byte| byte.is_ascii_digit());
        (valid && !numeric).then(|| Self::Name(text.into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

const HTTPS: u16 = 443;
const KINDS: &str = "`unix:PATH`, `hub:FILE`, `fd:N`, `tls://HOST:PORT`, `wss://HOST[:PORT]/PATH`, `vsock:CID:PORT`, `listen:HOST:PORT` or `listen:vsock:PORT`";
/// The longest name in the DNS, in bytes.
const MAX_HOST: usize = 253;
/// In bytes; far more than the path of a relay's address needs.
const MAX_WEB_SOCKET_PATH: usize = 2048;
/// The kernel's `sun_path` has 108 bytes, the last of them a NUL.
const MAX_UNIX_PATH: usize = 107;

/// Parses digits only: `str::parse` alone would accept a sign.
pub(crate) fn parse_number<T: FromStr>(text: &str) -> Option<T> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn parse_unix_path(text: &str) -> Result<PathBuf, InvalidAddress> {
    match (1..=MAX_UNIX_PATH).contains(&text.len()) && !text.contains('\0') {
        true => Ok(text.into()),
        false => Err(InvalidAddress::UnixPath(text.len())),
    }
}

fn parse_web_socket(text: &str) -> Option<WebSocket> {
    let split = text.find('/').unwrap_or(text.len());
    let (authority, path) = text.split_at(split);
    let printable = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if path.len() > MAX_WEB_SOCKET_PATH || !printable {
        return None;
    }
    let path = if path.is_empty() { "/".into() } else { path.into() };
    if let Ok(HostPort { host, port }) = authority.parse() {
        return Some(WebSocket { host, port, path });
    }
    Some(WebSocket { host: Host::parse(authority)?, port: HTTPS, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_displayed_as_it_was_parsed() {
        for text in [
            "unix:/run/cofferdam/relay/relay.sock",
            "unix:relative.sock",
            "hub:/run/cofferdam/hub",
            "fd:3",
            "fd:17",
            "tls://relay.example.com:7443",
            "tls://127.0.0.1:1",
            "tls://[::1]:65535",
            "wss://relay.example.com/",
            "wss://relay.example.com:8443/a/b?c=d",
            "wss://[::1]:8443/x",
            "vsock:2:7443",
            "listen:127.0.0.1:7443",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("wss://h".parse::<Address>().unwrap().to_string(), "wss://h/");
        assert_eq!("wss://h:443/x".parse::<Address>().unwrap().to_string(), "wss://h/x");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in ["", "unix", "/run/relay.sock", "http://x", "ws://x/", "UNIX:/x"] {
            assert_eq!(text.parse::<Address>(), Err(InvalidAddress::Unknown(text.into())));
        }
        for number in ["", "2", "0", "-1", "+3", "3x", "99999999999"] {
            assert_eq!(
                format!("fd:{number}").parse::<Address>(),
                Err(InvalidAddress::Descriptor(number.into()))
            );
        }
        for endpoint in [
            "", "h", "h:", ":1", "h:0", "h:65536", "h:+1", "::1:7", "[::1]", "[h]:1", "a b:1", "1.2.3:4",
            "h/x:1",
        ] {
            let refused = Err(InvalidAddress::HostPort(endpoint.into()));
            assert_eq!(format!("tls://{endpoint}").parse::<Address>(), refused);
            assert_eq!(format!("listen:{endpoint}").parse::<Address>(), refused);
        }
        for rest in ["", "/x", "h:0/x", "h:x/", "h/a b", "h/a\r\nb", "h/#x", "u@h/x"] {
            assert_eq!(
                format!("wss://{rest}").parse::<Address>(),
                Err(InvalidAddress::WebSocket(rest.into()))
            );
        }
        for rest in ["", "2", "2:", ":1", "2:-1", "2:1:3", "4294967296:1"] {
            assert_eq!(format!("vsock:{rest}").parse::<Address>(), Err(InvalidAddress::Vsock(rest.into())));
        }
        assert_eq!("hub:".parse::<Address>(), Err(InvalidAddress::Hub));
        assert_eq!("unix:".parse::<Address>(), Err(InvalidAddress::UnixPath(0)));
        let long = format!("unix:{}", "x".repeat(108));
        assert_eq!(long.parse::<Address>(), Err(InvalidAddress::UnixPath(108)));
        assert_eq!("unix:a\0b".parse::<Address>(), Err(InvalidAddress::UnixPath(3)));
    }
}
