//! Which addresses may be dialled.
//!
//! The operator chooses the host name in the configuration; the name's DNS server chooses the address. So for every
//! connection the name is resolved again, the addresses are checked and only these are dialled: a name that starts to
//! resolve to an internal address between two lookups (DNS rebinding) is refused. What must stay true: an address that
//! is not known to be public counts as private.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;

use rustls::pki_types::{InvalidDnsNameError, ServerName};

/// At most this many addresses of a name are considered.
const MAX_ADDRESSES: usize = 8;

/// Metadata services that give a virtual machine its credentials, at addresses that are not link-local.
const METADATA_OF_ALIBABA: [u8; 4] = [100, 100, 100, 200];
const METADATA_OF_AZURE: [u8; 4] = [168, 63, 129, 16];

/// Which addresses a host may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddressPolicy {
    /// Every address: the operator chose the host and trusts its name server.
    Any,
    /// Public, private, loopback and link-local addresses, but no multicast, unspecified or reserved ones.
    PrivateToo,
    /// Public addresses and those of private networks, but no loopback, link-local and metadata ones: these belong to the
    /// machine itself, whatever name resolves to them.
    PrivateNetworks,
    PublicOnly,
}

/// The host part of a URL.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Host {
    Address(IpAddr),
    /// The name `localhost`, which must resolve to a loopback address, whatever the policy.
    Localhost,
    Name(String),
}

/// Finds the addresses of a name. Tests replace it with a hostile name server.
pub trait Resolve: Send + Sync {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a>;
}

pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// The operating system's resolver.
pub struct SystemResolver;

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("`{name}` cannot be resolved")]
    Lookup {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("`{name}` resolves to no address")]
    NoAddress { name: String },
    #[error("`localhost` resolves to no loopback address")]
    NotLoopback,
    #[error(
        "`{name}` has no address that may be dialled: its addresses are private, or not those of a single host; set \
         `private = true` for this server if a private address is intended"
    )]
    NotPermitted { name: String, address: IpAddr },
}

impl AddressPolicy {
    /// Whether an address may be dialled. An IPv4 address that is written as an IPv6 address counts as IPv4.
    pub fn permits(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self {
            Self::Any => true,
            // No single host has a multicast, unspecified or reserved address.
            Self::PrivateToo => match address {
                IpAddr::V4(v4) => !v4.is_multicast() && v4.octets()[0] != 0 && v4.octets()[0] < 240,
                IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
            },
            Self::PrivateNetworks => is_public(address) || is_of_private_network(address),
            Self::PublicOnly => is_public(address),
        }
    }
}

impl Host {
    /// Parses the host as written in a URL: IPv6 addresses are in brackets.
    pub fn parse(text: &str) -> Self {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        match bare.parse() {
            Ok(address) => Self::Address(address),
            Err(_) if bare.eq_ignore_ascii_case("localhost") => Self::Localhost,
            Err(_) => Self::Name(bare.to_owned()),
        }
    }

    /// Whether the URL names `localhost` or a loopback address, so that requests do not leave the machine.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Localhost => true,
            Self::Name(_) => false,
        }
    }

    /// The name that the peer's certificate must be valid for.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, InvalidDnsNameError> {
        match self {
            Self::Address(address) => Ok(ServerName::from(*address)),
            Self::Localhost => ServerName::try_from("localhost"),
            Self::Name(name) => ServerName::try_from(name.clone()),
        }
    }

    /// The addresses to dial, in the resolver's order; never empty. Each is permitted by the policy, and dialling it needs no
    /// second look-up.
    pub async fn addresses(
        &self,
        port: u16,
        policy: AddressPolicy,
        resolver: &dyn Resolve,
    ) -> Result<Vec<SocketAddr>, AddressError> {
        let (name, found) = match self {
            Self::Address(address) => (address.to_string(), Ok(vec![SocketAddr::new(*address, port)])),
            Self::Localhost => ("localhost".to_owned(), resolver.resolve("localhost", port).await),
            Self::Name(name) => (name.clone(), resolver.resolve(name, port).await),
        };
        let found = match found {
            Ok(found) => found,
            Err(source) => return Err(AddressError::Lookup { name, source }),
        };
        let found: Vec<SocketAddr> = found.into_iter().take(MAX_ADDRESSES).map(canonical).collect();
        let Some(first) = found.first().map(SocketAddr::ip) else {
            return Err(AddressError::NoAddress { name });
        };
        let permitted: Vec<SocketAddr> = found
            .into_iter()
            .filter(|address| match self {
                Self::Localhost => address.ip().is_loopback(),
                Self::Address(_) if self.is_loopback() => true,
                Self::Address(_) | Self::Name(_) => policy.permits(address.ip()),
            })
            .collect();
        match (permitted.is_empty(), self) {
            (true, Self::Localhost) => Err(AddressError::NotLoopback),
            (true, Self::Address(_) | Self::Name(_)) => {
                Err(AddressError::NotPermitted { name, address: first })
            }
            (false, _) => Ok(permitted),
        }
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(
            async move { Ok(tokio::net::lookup_host((name, port)).await?.take(MAX_ADDRESSES).collect()) },
        )
    }
}

/// Converts an IPv4 address that is written as an IPv6 address to IPv4, so that it is checked and dialled as such.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, address.port()),
        // Not rebuilt: a link-local address has an interface, which must be preserved.
        IpAddr::V6(_) => address,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

/// Every address that is not in IANA's special-purpose registry.
fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        METADATA_OF_AZURE
            | [0 | 10 | 127 | 224..=255, ..]    // this network, private, loopback, multicast and reserved
            | [100, 64..=127, ..]         // carrier-grade NAT
            | [169, 254, ..]              // link-local, and the clouds' metadata services
            | [172, 16..=31, ..]          // private
            | [192, 0, 0 | 2, _]          // protocol assignments, documentation
            | [192, 88, 99, _]            // 6to4 relays
            | [192, 168, ..]              // private
            | [198, 18 | 19, ..]          // benchmarks
            | [198, 51, 100, _]           // documentation
            | [203, 0, 113, _] // documentation
    )
}

/// Global unicast without its special-purpose parts; an address that embeds an IPv4 address is public if that one is.
fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            is_public_v4(Ipv4Addr::new(a, b, c, d))
        }
        [0x2001, 0..=0x1ff, ..]           // protocol assignments, Teredo among them
        | [0x2001, 0xdb8, ..]             // documentation
        | [0x2002, ..]                    // 6to4: embeds an arbitrary IPv4 address
        | [0x3fff, 0..=0xfff, ..] => false, // documentation
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// The blocks that organisations number their networks from, without the clouds' metadata services inside them.
fn is_of_private_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            METADATA_OF_ALIBABA => false,
            [10, ..] | [100, 64..=127, ..] | [172, 16..=31, ..] | [192, 168, ..] => true,
            _ => false,
        },
        IpAddr::V6(v6) => match v6.segments() {
            [0xfd00, 0xec2, ..] | [0xfd20, 0xce, ..] => false, // metadata of AWS and of Google
            [first, ..] => first & 0xfe00 == 0xfc00,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.9.9.9",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private} counts as public");
        }
        for public in [
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "168.63.129.15",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::8.8.8.8",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public} does not count as public");
        }
    }

    #[test]
    fn private_too_excludes_multicast_unspecified_and_reserved_addresses() {
        for excluded in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"] {
            assert!(!AddressPolicy::PrivateToo.permits(excluded.parse().unwrap()), "{excluded} is permitted");
        }
        for private in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1", "::1"] {
            assert!(
                AddressPolicy::PrivateToo.permits(private.parse().unwrap()),
                "{private} is not permitted"
            );
        }
    }

    #[test]
    fn private_networks_exclude_what_belongs_to_the_machine_itself() {
        let permits = |address: &str| AddressPolicy::PrivateNetworks.permits(address.parse().unwrap());
        for excluded in [
            "0.0.0.0",
            "100.100.100.200",
            "127.0.0.1",
            "168.63.129.16",
            "169.254.169.254",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!permits(excluded), "{excluded} is permitted");
        }
        for included in [
            "1.1.1.1",
            "10.0.0.1",
            "100.64.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "::ffff:10.0.0.1",
            "2606:4700::1",
            "fd12::1",
        ] {
            assert!(permits(included), "{included} is not permitted");
        }
    }

    #[test]
    fn hosts_are_parsed_as_written_in_urls() {
        assert!(Host::parse("127.0.0.1").is_loopback());
        assert!(Host::parse("[::1]").is_loopback());
        assert!(Host::parse("LocalHost").is_loopback());
        assert!(!Host::parse("10.0.0.1").is_loopback());
        // Old notations of 127.0.0.1 count as names, and are checked after they are resolved.
        assert_eq!(Host::parse("0x7f.1"), Host::Name("0x7f.1".into()));
        assert_eq!(Host::parse("2130706433"), Host::Name("2130706433".into()));
    }

    #[tokio::test]
    async fn resolved_addresses_are_checked() {
        let name = Host::parse("mcp.example.com");
        let find = |addresses: Vec<&'static str>, allowed| {
            let name = name.clone();
            async move { name.addresses(443, allowed, &FixedResolver(addresses)).await }
        };
        let private =
            find(vec!["127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254"], AddressPolicy::PublicOnly).await;
        assert!(matches!(private, Err(AddressError::NotPermitted { .. })));
        let mixed = find(vec!["10.0.0.1", "1.1.1.1"], AddressPolicy::PublicOnly).await.unwrap();
        assert_eq!(mixed, ["1.1.1.1:443".parse().unwrap()]);
        assert_eq!(find(vec!["10.0.0.1"], AddressPolicy::PrivateToo).await.unwrap().len(), 1);
        let nothing = find(vec![], AddressPolicy::PublicOnly).await;
        assert!(matches!(nothing, Err(AddressError::NoAddress { .. })));
        let not_loopback =
            Host::Localhost.addresses(80, AddressPolicy::PrivateToo, &FixedResolver(vec!["10.0.0.1"])).await;
        assert!(matches!(not_loopback, Err(AddressError::NotLoopback)));
        let not_loopback =
            Host::Localhost.addresses(80, AddressPolicy::Any, &FixedResolver(vec!["10.0.0.1"])).await;
        assert!(matches!(not_loopback, Err(AddressError::NotLoopback)));
        assert_eq!(find(vec!["10.0.0.1", "0.0.0.0"], AddressPolicy::Any).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn only_the_first_addresses_are_considered() {
        let many = FixedResolver(vec!["1.1.1.1"; MAX_ADDRESSES + 1]);
        let found = Host::parse("a.example").addresses(443, AddressPolicy::PublicOnly, &many).await.unwrap();
        assert_eq!(found.len(), MAX_ADDRESSES);
        let mut late = vec!["10.0.0.1"; MAX_ADDRESSES];
        late.push("1.1.1.1");
        let late =
            Host::parse("a.example").addresses(443, AddressPolicy::PublicOnly, &FixedResolver(late)).await;
        assert!(matches!(late, Err(AddressError::NotPermitted { .. })));
    }

    #[test]
    fn mapped_addresses_become_ipv4_and_link_local_ones_keep_their_interface() {
        assert_eq!(canonical("[::ffff:10.0.0.1]:9".parse().unwrap()), "10.0.0.1:9".parse().unwrap());
        let scoped = SocketAddr::V6(std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 3));
        assert_eq!(canonical(scoped), scoped);
    }

    /// A resolver that always returns these addresses.
    struct FixedResolver(Vec<&'static str>);

    impl Resolve for FixedResolver {
        fn resolve<'a>(&'a self, _: &'a str, port: u16) -> Resolving<'a> {
            let found = self.0.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect();
            Box::pin(async move { Ok(found) })
        }
    }
}
