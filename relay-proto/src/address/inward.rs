//! The two ends of a connection that the host opens: where the sandbox listens, and what the host dials.
//!
//! | the sandbox listens | the host dials |
//! |---|---|
//! | `HOST:PORT` | `HOST:PORT`, or `wss://HOST[:PORT]/PATH` where the platform makes it a WebSocket |
//! | `vsock:PORT` | `vsock:CID:PORT`, or `vsock:PATH:PORT` where the machine's monitor has a Unix socket instead of a CID |
//!
//! Must stay true: a text that begins with `vsock:` is never parsed as a host and port. A host named `vsock` is written
//! `vsock.`, which resolves to the same addresses. A PATH has a slash, so it is never a CID.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{Address, HostPort, InvalidAddress, WebSocket, parse_number, parse_unix_path};

/// Where a sandbox listens: after `listen:`, and for a hub's `--listen`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ListenAddress {
    Tcp(HostPort),
    /// A port of this virtual machine.
    Vsock {
        port: u32,
    },
}

/// How the host connects to a sandbox that listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DialTarget {
    /// A Unix socket of the machine's monitor, which connects to a port of the machine on request.
    HybridVsock {
        path: PathBuf,
        port: u32,
    },
    Tcp(HostPort),
    Vsock {
        cid: u32,
        port: u32,
    },
    WebSocket(WebSocket),
}

impl FromStr for ListenAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(VSOCK) {
            Some(rest) => match parse_vsock_port(rest) {
                Some(port) => Ok(Self::Vsock { port }),
                None => Err(InvalidAddress::VsockListen(rest.into())),
            },
            None => text.parse().map(Self::Tcp),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Vsock { port } => write!(f, "{VSOCK}{port}"),
        }
    }
}

impl FromStr for DialTarget {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("wss://") {
            return match text.parse()? {
                Address::WebSocket(address) => Ok(Self::WebSocket(address)),
                other => Err(InvalidAddress::Unknown(other.to_string())),
            };
        }
        let Some(rest) = text.strip_prefix(VSOCK) else { return text.parse().map(Self::Tcp) };
        let invalid = || InvalidAddress::VsockDial(rest.into());
        let (machine, port) = rest.rsplit_once(':').ok_or_else(invalid)?;
        let port = parse_vsock_port(port).ok_or_else(invalid)?;
        match machine.contains('/') {
            true => Ok(Self::HybridVsock { path: parse_unix_path(machine)?, port }),
            false => Ok(Self::Vsock { cid: parse_number(machine).ok_or_else(invalid)?, port }),
        }
    }
}

impl fmt::Display for DialTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HybridVsock { path, port } => write!(f, "{VSOCK}{}:{port}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Vsock { cid, port } => write!(f, "{VSOCK}{cid}:{port}"),
            Self::WebSocket(address) => write!(f, "{}", Address::WebSocket(address.clone())),
        }
    }
}

const VSOCK: &str = "vsock:";

/// Parses a vsock port. To the kernel, all bits set means any port; 0 is not used.
fn parse_vsock_port(text: &str) -> Option<u32> {
    parse_number(text).filter(|port| (1..u32::MAX).contains(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_and_dial_addresses_are_displayed_as_they_were_parsed() {
        for text in ["127.0.0.1:7443", "[::1]:1", "localhost:7443", "vsock:1", "vsock:4294967294"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
            let link = format!("listen:{text}");
            assert_eq!(link.parse::<Address>().unwrap(), Address::Listen(text.parse().unwrap()));
            assert_eq!(link.parse::<Address>().unwrap().to_string(), link);
        }
        for text in [
            "10.0.0.7:7443",
            "box.example.com:1",
            "wss://box.example.com/x",
            "vsock:4:7443",
            "vsock:/run/vm1/vsock:7443",
            "vsock:./a:b/4:7443",
        ] {
            assert_eq!(text.parse::<DialTarget>().unwrap().to_string(), text);
        }
        let path = DialTarget::HybridVsock { path: "/run/4:5".into(), port: 6 };
        assert_eq!("vsock:/run/4:5:6".parse(), Ok(path));
    }

    #[test]
    fn a_text_with_the_vsock_prefix_is_never_a_host() {
        assert_eq!("vsock:7443".parse(), Ok(ListenAddress::Vsock { port: 7443 }));
        for text in ["vsock.:7443", "vsocks:7443", "VSOCK:7443"] {
            assert!(matches!(text.parse(), Ok(ListenAddress::Tcp(_))), "{text}");
            assert!(matches!(text.parse(), Ok(DialTarget::Tcp(_))), "{text}");
        }
        assert_eq!("vsock:7443".parse::<DialTarget>(), Err(InvalidAddress::VsockDial("7443".into())));
    }

    #[test]
    fn invalid_listen_and_dial_addresses_are_refused() {
        for rest in ["", "0", "-1", "+1", "x", "1:2", "4294967295", "4294967296", " 1"] {
            let refused = InvalidAddress::VsockListen(rest.into());
            assert_eq!(format!("vsock:{rest}").parse::<ListenAddress>(), Err(refused.clone()));
            assert_eq!(format!("listen:vsock:{rest}").parse::<Address>(), Err(refused));
        }
        for rest in
            ["", "4", "4:", ":7", "4:0", "x:7", "4:5:6", "4294967296:7", "/run/vsock", "/run/vsock:", "/v:x"]
        {
            assert_eq!(
                format!("vsock:{rest}").parse::<DialTarget>(),
                Err(InvalidAddress::VsockDial(rest.into()))
            );
        }
        for text in ["", "box", "box:0", "unix:/x", "tls://box:7", "listen:127.0.0.1:7"] {
            assert_eq!(text.parse::<DialTarget>(), Err(InvalidAddress::HostPort(text.into())));
        }
        assert_eq!("wss://".parse::<DialTarget>(), Err(InvalidAddress::WebSocket(String::new())));
        let long = format!("vsock:/{}:7", "x".repeat(107));
        assert_eq!(long.parse::<DialTarget>(), Err(InvalidAddress::UnixPath(108)));
        assert_eq!("vsock:/a\0b:7".parse::<DialTarget>(), Err(InvalidAddress::UnixPath(4)));
    }
}
