//! From the list of hosts to the sockets inside the server's network, and back from a socket to the host it stands for.
//!
//! | entry | inside the server's network |
//! |---|---|
//! | a name | an address of the pool, and a listener at that address and port |
//! | a wildcard | a listener at every address and that port. It also serves the other IPv4 entries with this port: two listeners cannot share a port if one is at every address |
//! | an address | that very address, and a listener at it |
//! | `localhost` | a listener at 127.0.0.1 |
//!
//! What must stay true: the address and port that a client connected to decide alone which host is meant, so a listener may
//! serve several entries; a connection that no entry allows is refused, whichever listener accepted it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cofferdam_net::{AddressPolicy, Host};
use cofferdam_process::Network;

use crate::event::Refusal;
use crate::host::{AllowedHost, HostPattern};
use crate::name::HostName;
use crate::pool::AddressPool;

/// At most this many hosts, because their sockets come in one message, which holds 253 descriptors.
pub const MAX_HOSTS: usize = 128;
/// Where names are resolved inside: the address at which systemd's resolver is, too.
const RESOLVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), 53);

/// The network of one server, ready to be made and served.
#[derive(Clone, Debug)]
pub struct Plan {
    network: Network,
    pool: AddressPool,
    entries: Vec<AllowedHost>,
    /// The listed names, in the order of their addresses.
    names: Vec<HostName>,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error("`{host}` is inside the pool {pool}, whose addresses stand for names inside")]
    Clash { host: AllowedHost, pool: AddressPool },
    #[error(
        "{0} hosts are listed, but a server may have at most {MAX_HOSTS}; a wildcard stands for many names"
    )]
    TooManyHosts(usize),
}

/// What a connection from inside may be connected to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Route {
    /// As in events: the name, or the address.
    pub(crate) label: String,
    pub(crate) port: u16,
    pub(crate) host: Host,
    pub(crate) policy: AddressPolicy,
    /// The name that a TLS client must name, too; `None` for addresses.
    pub(crate) name: Option<HostName>,
}

impl Plan {
    pub fn new(hosts: &[AllowedHost], pool: AddressPool) -> Result<Self, PlanError> {
        let entries: Vec<AllowedHost> = hosts.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
        if entries.len() > MAX_HOSTS {
            return Err(PlanError::TooManyHosts(entries.len()));
        }
        let is_clash = |entry: &&AllowedHost| matches!(entry.pattern, HostPattern::Address(address) if pool.contains(address));
        if let Some(host) = entries.iter().find(is_clash) {
            return Err(PlanError::Clash { host: host.clone(), pool });
        }
        let names: BTreeSet<HostName> = entries.iter().filter_map(|entry| entry.name().cloned()).collect();
        let addresses: BTreeMap<&HostName, Ipv4Addr> =
            names.iter().enumerate().filter_map(|(index, name)| Some((name, pool.address(index)?))).collect();
        let has_names = entries
            .iter()
            .any(|entry| matches!(entry.pattern, HostPattern::Below(..) | HostPattern::Name(..)));
        let network = Network {
            pool: has_names.then(|| pool.block()),
            addresses: entries
                .iter()
                .filter_map(further_address)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            listeners: listeners(&entries, &addresses).into_iter().collect(),
            resolver: has_names.then_some(RESOLVER),
        };
        Ok(Self { network, pool, entries, names: names.into_iter().collect() })
    }

    /// Also answers look-ups if no name is listed: that no such name exists. So it is seen what the server looks for.
    #[must_use]
    pub fn with_resolver(mut self) -> Self {
        self.network.resolver = Some(RESOLVER);
        self
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The server's `/etc/hosts`: most clients find listed names there, without a look-up.
    pub fn hosts_file(&self) -> String {
        let mut text = String::from("127.0.0.1 localhost\n::1 ip6-localhost ip6-loopback\n");
        for (index, name) in self.names.iter().enumerate() {
            if let Some(address) = self.pool.address(index) {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "{address} {name}");
            }
        }
        text
    }

    /// The server's `/etc/resolv.conf`.
    pub fn resolv_conf(&self) -> String {
        match self.network.resolver {
            Some(resolver) => format!("nameserver {}\n", resolver.ip()),
            None => "# No name is listed for this server.\n".into(),
        }
    }

    pub(crate) fn pool(&self) -> AddressPool {
        self.pool
    }

    pub(crate) fn names(&self) -> &[HostName] {
        &self.names
    }

    /// Whether an entry is about this name, at any port.
    pub(crate) fn lists(&self, name: &HostName) -> bool {
        self.entries.iter().any(|entry| entry.reach_of(name, entry.port).is_some())
    }

    /// What a connection to `name` and `port` may be connected to.
    pub(crate) fn route_to_name(&self, name: HostName, port: u16) -> Result<Route, Refusal> {
        let reach = self.entries.iter().filter_map(|entry| entry.reach_of(&name, port)).max();
        match reach {
            Some(reach) => Ok(Route {
                label: name.to_string(),
                port,
                host: Host::Name(name.to_string()),
                policy: reach.policy(),
                name: Some(name),
            }),
            None => Err(Refusal::Port { host: name.to_string(), port }),
        }
    }

    /// What a connection to an address that stands for no name may be connected to.
    pub(crate) fn route_to_address(&self, local: SocketAddr) -> Result<Route, Refusal> {
        let (address, port) = (local.ip().to_canonical(), local.port());
        let is_listed = |pattern: HostPattern| {
            self.entries.iter().any(|entry| entry.port == port && entry.pattern == pattern)
        };
        let host = if is_listed(HostPattern::Address(address)) {
            Host::Address(address)
        } else if address == IpAddr::V4(Ipv4Addr::LOCALHOST) && is_listed(HostPattern::Localhost) {
            Host::Localhost
        } else {
            return Err(match self.pool.contains(address) {
                true => Refusal::NoName { address, port },
                false => Refusal::Address { address, port },
            });
        };
        let label = match &host {
            Host::Localhost => "localhost".into(),
            Host::Address(_) | Host::Name(_) => address.to_string(),
        };
        Ok(Route { label, port, host, policy: AddressPolicy::PrivateToo, name: None })
    }
}

/// An address that must be given to the loopback interface: it has 127.0.0.0/8 and `::1` already.
fn further_address(entry: &AllowedHost) -> Option<IpAddr> {
    match entry.pattern {
        HostPattern::Address(address) => (!address.is_loopback()).then_some(address),
        HostPattern::Below(..) | HostPattern::Localhost | HostPattern::Name(..) => None,
    }
}

fn listeners(entries: &[AllowedHost], addresses: &BTreeMap<&HostName, Ipv4Addr>) -> BTreeSet<SocketAddr> {
    let everywhere: BTreeSet<u16> = entries
        .iter()
        .filter(|entry| matches!(entry.pattern, HostPattern::Below(..)))
        .map(|entry| entry.port)
        .collect();
    let address = |entry: &AllowedHost| match &entry.pattern {
        HostPattern::Address(address @ IpAddr::V6(_)) => Some(*address),
        _ if everywhere.contains(&entry.port) => Some(Ipv4Addr::UNSPECIFIED.into()),
        HostPattern::Address(address) => Some(*address),
        HostPattern::Localhost => Some(Ipv4Addr::LOCALHOST.into()),
        HostPattern::Name(name, _) => addresses.get(name).copied().map(IpAddr::V4),
        HostPattern::Below(..) => None,
    };
    entries.iter().filter_map(|entry| Some(SocketAddr::new(address(entry)?, entry.port))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(hosts: &[&str]) -> Result<Plan, PlanError> {
        let hosts: Vec<AllowedHost> = hosts.iter().map(|host| host.parse().unwrap()).collect();
        Plan::new(&hosts, AddressPool::default())
    }

    fn listeners_of(hosts: &[&str]) -> Vec<String> {
        plan(hosts).unwrap().network.listeners.iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn names_have_an_address_each_and_a_listener_for_each_port() {
        let plan = plan(&["b.example:443", "a.example:443", "b.example:80", "b.example:443"]).unwrap();
        let listeners: Vec<String> = plan.network.listeners.iter().map(SocketAddr::to_string).collect();
        assert_eq!(listeners, ["29.18.0.1:443", "29.18.0.2:80", "29.18.0.2:443"]);
        assert_eq!(plan.network.pool, Some(([29, 18, 0, 0].into(), 16)));
        assert_eq!(plan.network.resolver, Some(RESOLVER));
        assert!(plan.network.addresses.is_empty());
        assert_eq!(
            plan.hosts_file(),
            "127.0.0.1 localhost\n::1 ip6-localhost ip6-loopback\n29.18.0.1 a.example\n29.18.0.2 b.example\n"
        );
        assert_eq!(plan.resolv_conf(), "nameserver 127.0.0.53\n");
    }

    #[test]
    fn a_wildcard_listens_at_every_address_for_all_entries_with_its_port() {
        assert_eq!(
            listeners_of(&[
                "*.b.example:443",
                "a.example:443",
                "10.0.0.5:443",
                "localhost:443",
                "[2001:db8::1]:443",
                "a.example:80"
            ]),
            ["0.0.0.0:443", "29.18.0.1:80", "[2001:db8::1]:443"]
        );
    }

    #[test]
    fn addresses_are_made_local_unless_they_are() {
        let hosts = [
            "10.0.0.5:5432",
            "10.0.0.5:443",
            "[2001:db8::1]:443",
            "[::1]:80",
            "127.0.0.9:80",
            "localhost:80",
        ];
        let plan = plan(&hosts).unwrap();
        let addresses: Vec<IpAddr> = ["10.0.0.5", "2001:db8::1"].map(|text| text.parse().unwrap()).into();
        assert_eq!(plan.network.addresses, addresses);
        assert_eq!(plan.network.listeners.len(), hosts.len());
        assert_eq!((plan.network.pool, plan.network.resolver), (None, None));
        assert_eq!(plan.with_resolver().network.sockets(), hosts.len() + 1);
    }

    #[test]
    fn no_hosts_need_no_sockets() {
        let network = plan(&[]).unwrap().network;
        assert_eq!(network, Network::default());
    }

    #[test]
    fn an_address_in_the_pool_and_too_many_hosts_are_refused() {
        let clash = plan(&["29.18.4.4:443"]).unwrap_err();
        assert!(clash.to_string().starts_with("`29.18.4.4:443` is inside the pool 29.18.0.0/16"), "{clash}");
        let many: Vec<String> = (1..=MAX_HOSTS + 1).map(|port| format!("a.example:{port}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(plan(&many[1..]).is_ok());
        assert_eq!(plan(&many).unwrap_err(), PlanError::TooManyHosts(MAX_HOSTS + 1));
    }

    #[test]
    fn the_widest_entry_for_a_name_and_port_decides() {
        let plan = plan(&["*.a.example:443", "private:db.a.example:443", "db.a.example:80"]).unwrap();
        let policy =
            |name: &str, port| plan.route_to_name(name.parse().unwrap(), port).map(|route| route.policy);
        assert_eq!(policy("db.a.example", 443), Ok(AddressPolicy::PrivateNetworks));
        assert_eq!(policy("db.a.example", 80), Ok(AddressPolicy::PublicOnly));
        assert_eq!(policy("other.a.example", 443), Ok(AddressPolicy::PublicOnly));
        let refused = policy("other.a.example", 80);
        assert_eq!(refused, Err(Refusal::Port { host: "other.a.example".into(), port: 80 }));
        assert!(plan.lists(&"other.a.example".parse().unwrap()));
        assert!(!plan.lists(&"a.example".parse().unwrap()));
    }

    #[test]
    fn an_address_is_reached_only_at_a_port_that_is_listed_for_it() {
        let plan =
            plan(&["*.a.example:443", "10.0.0.5:5432", "localhost:80", "127.0.0.1:81", "[::1]:82"]).unwrap();
        let host = |local: &str| plan.route_to_address(local.parse().unwrap()).map(|route| route.host);
        assert_eq!(host("10.0.0.5:5432"), Ok(Host::Address([10, 0, 0, 5].into())));
        assert_eq!(host("[::ffff:10.0.0.5]:5432"), Ok(Host::Address([10, 0, 0, 5].into())));
        assert_eq!(host("127.0.0.1:80"), Ok(Host::Localhost));
        assert_eq!(host("127.0.0.1:81"), Ok(Host::Address([127, 0, 0, 1].into())));
        assert_eq!(host("[::1]:82"), Ok(Host::Address("::1".parse().unwrap())));
        for refused in ["10.0.0.5:443", "127.0.0.1:443", "127.0.0.2:80", "[::1]:80"] {
            assert!(matches!(host(refused), Err(Refusal::Address { .. })), "{refused}");
        }
        assert!(matches!(host("29.18.0.9:443"), Err(Refusal::NoName { .. })));
    }
}
