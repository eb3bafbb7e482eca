//! The ports of the sidecar: a running one accepts connections there, and another one will be able to listen there.
//!
//! What must stay true: a connection to a running sidecar sends nothing, and is closed at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;

use relay_proto::address::{Host, HostPort};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::finding::Findings;
use crate::config::Config;

/// A port of this host answers at once, unless its queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to each port of the sidecar that runs.
pub(super) async fn probe_served(config: &Config, findings: &mut Findings) {
    for (key, address) in ports(config) {
        let about = format!("{key} {address}");
        match timeout(CONNECT_TIMEOUT, connect(address)).await.map_err(io::Error::from).flatten() {
            Ok(()) => findings.good("port-ok", about, "the port accepts connections"),
            Err(error) => {
                let what = format!("the sidecar runs, and nothing accepts connections on this port: {error}");
                let next = format!(
                    "restart the sidecar: `{key}` takes effect at restart. If that does not help, its log says why it does not listen there"
                );
                findings.error("port-not-served", about, what, next);
            }
        }
    }
}

/// Tries to listen where the sidecar will.
pub(super) fn probe_free(config: &Config, findings: &mut Findings) {
    for (key, address) in ports(config) {
        let about = format!("{key} {address}");
        match listen(address) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let next = format!(
                    "stop the program that listens there (`ss -ltnp 'sport = :{}'` names it), or give `{key}` another port",
                    address.port
                );
                findings.error("port-taken", about, "another program listens on this port", next);
            }
            Err(error) => {
                let next = format!("give `{key}` an address of this host, and a port that this user may use");
                findings.error("port-unavailable", about, format!("cannot listen there: {error}"), next);
            }
        }
    }
}

fn ports(config: &Config) -> impl Iterator<Item = (&'static str, &HostPort)> {
    let ports = [
        ("relay.tls", config.relay.tls.as_ref().map(|tls| &tls.listen)),
        ("admin.http", config.admin.http.as_ref()),
        ("admin.tls", config.admin.tls.as_ref().map(|tls| &tls.listen)),
    ];
    ports.into_iter().filter_map(|(key, address)| Some((key, address?)))
}

async fn connect(address: &HostPort) -> io::Result<()> {
    match &address.host {
        Host::Ip(ip) => TcpStream::connect((reachable(*ip), address.port)).await,
        Host::Name(name) => TcpStream::connect((name.as_str(), address.port)).await,
    }
    .map(drop)
}

/// The loopback address for a listener on all addresses.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn listen(address: &HostPort) -> io::Result<()> {
    match &address.host {
        Host::Ip(ip) => TcpListener::bind((*ip, address.port)),
        Host::Name(name) => TcpListener::bind((name.as_str(), address.port)),
    }
    .map(drop)
}
