//! What an operator writes to let a server reach a host: a name or an address, and a port.
//!
//! | entry | what it allows |
//! |---|---|
//! | `api.github.com:443` | the name, at its public addresses |
//! | `*.amazonaws.com:443` | every name below it, at public addresses |
//! | `private:db.internal:5432` | the name, also at addresses of private networks |
//! | `10.0.0.5:5432`, `[2001:db8::1]:443` | that very address |
//! | `localhost:5432`, `127.0.0.1:8080` | a port of the sidecar's own machine |
//!
//! What must stay true: the operator writes an address, or `private:`, to let a server leave the public network. Loopback,
//! link-local and metadata addresses are never reached through a name, because the name's DNS server chooses them;
//! multicast, unspecified and reserved addresses are never reached.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use cofferdam_net::AddressPolicy;

use crate::name::{HostName, InvalidName};

const PRIVATE: &str = "private:";
const WILDCARD: &str = "*.";
/// A wildcard below fewer labels would be a whole top-level domain.
const MIN_WILDCARD_LABELS: usize = 2;

/// One entry of the list of hosts that a server may reach.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AllowedHost {
    pub(crate) pattern: HostPattern,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum HostPattern {
    Address(IpAddr),
    /// Every name that has further labels before these.
    Below(HostName, Reach),
    Localhost,
    Name(HostName, Reach),
}

/// Which addresses a name may have; the wider one is the greater.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Reach {
    Public,
    /// Also those of private networks.
    Private,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{entry}` does not say which host and port a server may reach: {problem}")]
pub struct InvalidHost {
    entry: String,
    problem: HostProblem,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum HostProblem {
    #[error("an IPv6 address is written in brackets, as in `[2001:db8::1]:443`")]
    Brackets,
    #[error("`{0}` embeds an IPv4 address; write that one, as in `10.0.0.5:443`")]
    EmbeddedIpv4(Ipv6Addr),
    #[error("`{0}` is link-local, and which interface leads to it cannot be written")]
    LinkLocalIpv6(Ipv6Addr),
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("names below `localhost` are not looked up; write `localhost` or a loopback address")]
    NameOfLocalhost,
    #[error("the port is missing; add it, as in `api.github.com:443`")]
    NoPort,
    #[error("`{0}` is not the address of a single host")]
    NotOneHost(IpAddr),
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
    #[error("`private:` is for names; an address is listed as it is")]
    PrivateAddress,
    #[error("it is a URL; leave out the scheme and the path, as in `api.github.com:443`")]
    Url,
    #[error(
        "`*` stands for the whole first label, with at least two labels after it, as in `*.amazonaws.com:443`"
    )]
    Wildcard,
}

/// Which addresses an entry leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReachedAddresses {
    /// The address that is written.
    Itself,
    /// The sidecar's own machine.
    ThisMachine,
    /// The name's public addresses.
    Public,
    /// The name's addresses, also those of private networks.
    PublicAndPrivate,
}

impl AllowedHost {
    pub fn addresses(&self) -> ReachedAddresses {
        match &self.pattern {
            HostPattern::Address(_) => ReachedAddresses::Itself,
            HostPattern::Localhost => ReachedAddresses::ThisMachine,
            HostPattern::Below(_, Reach::Public) | HostPattern::Name(_, Reach::Public) => {
                ReachedAddresses::Public
            }
            HostPattern::Below(_, Reach::Private) | HostPattern::Name(_, Reach::Private) => {
                ReachedAddresses::PublicAndPrivate
            }
        }
    }

    /// The name, if the entry is about a single one that is looked up.
    pub(crate) fn name(&self) -> Option<&HostName> {
        match &self.pattern {
            HostPattern::Name(name, _) => Some(name),
            HostPattern::Address(_) | HostPattern::Below(..) | HostPattern::Localhost => None,
        }
    }

    /// Which addresses this entry lets a connection to `name` have; `None` if it is about other names or another port.
    pub(crate) fn reach_of(&self, name: &HostName, port: u16) -> Option<Reach> {
        match &self.pattern {
            _ if self.port != port => None,
            HostPattern::Below(domain, reach) if name.is_below(domain) => Some(*reach),
            HostPattern::Name(listed, reach) if name == listed => Some(*reach),
            HostPattern::Address(_)
            | HostPattern::Below(..)
            | HostPattern::Localhost
            | HostPattern::Name(..) => None,
        }
    }
}

impl FromStr for AllowedHost {
    type Err = InvalidHost;

    fn from_str(entry: &str) -> Result<Self, InvalidHost> {
        parse(entry).map_err(|problem| InvalidHost { entry: entry.into(), problem })
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.pattern {
            HostPattern::Address(IpAddr::V4(address)) => write!(f, "{address}:{port}"),
            HostPattern::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{port}"),
            HostPattern::Below(domain, reach) => write!(f, "{}{WILDCARD}{domain}:{port}", reach.prefix()),
            HostPattern::Localhost => write!(f, "localhost:{port}"),
            HostPattern::Name(name, reach) => write!(f, "{}{name}:{port}", reach.prefix()),
        }
    }
}

impl Reach {
    pub(crate) fn policy(self) -> AddressPolicy {
        match self {
            Self::Public => AddressPolicy::PublicOnly,
            Self::Private => AddressPolicy::PrivateNetworks,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Public => "",
            Self::Private => PRIVATE,
        }
    }
}

fn parse(entry: &str) -> Result<AllowedHost, HostProblem> {
    if entry.contains('/') {
        return Err(HostProblem::Url);
    }
    let (reach, rest) = match entry.strip_prefix(PRIVATE) {
        Some(rest) => (Reach::Private, rest),
        None => (Reach::Public, entry),
    };
    let (host, port) = match rest.rsplit_once(':') {
        Some(parts) if !rest.ends_with(']') => parts,
        _ => return Err(HostProblem::NoPort),
    };
    let address = match host.strip_prefix('[') {
        Some(host) => {
            let address = host.strip_suffix(']').and_then(|host| host.parse::<Ipv6Addr>().ok());
            Some(IpAddr::V6(address.ok_or(HostProblem::Brackets)?))
        }
        None if host.contains(':') => return Err(HostProblem::Brackets),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    let pattern = match (address, reach) {
        (Some(address), Reach::Public) => HostPattern::Address(checked_address(address)?),
        (Some(_), Reach::Private) => return Err(HostProblem::PrivateAddress),
        (None, _) => name_pattern(host, reach)?,
    };
    Ok(AllowedHost { pattern, port: checked_port(port)? })
}

fn checked_address(address: IpAddr) -> Result<IpAddr, HostProblem> {
    match address {
        // `::1` is no IPv4 address, although the deprecated notation would make it one.
        IpAddr::V6(v6) if v6.to_ipv4().is_some() && !v6.is_loopback() && !v6.is_unspecified() => {
            Err(HostProblem::EmbeddedIpv4(v6))
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Err(HostProblem::LinkLocalIpv6(v6)),
        _ if !AddressPolicy::PrivateToo.permits(address) => Err(HostProblem::NotOneHost(address)),
        _ => Ok(address),
    }
}

fn name_pattern(text: &str, reach: Reach) -> Result<HostPattern, HostProblem> {
    let (name, is_wildcard) = match text.strip_prefix(WILDCARD) {
        Some(domain) => (domain, true),
        None => (text, false),
    };
    if name.contains('*') {
        return Err(HostProblem::Wildcard);
    }
    let name: HostName = name.parse()?;
    match (name.is_localhost(), is_wildcard) {
        (true, false) if name.as_str() == "localhost" => match reach {
            Reach::Public => Ok(HostPattern::Localhost),
            Reach::Private => Err(HostProblem::PrivateAddress),
        },
        (true, _) => Err(HostProblem::NameOfLocalhost),
        (false, true) if name.labels() < MIN_WILDCARD_LABELS => Err(HostProblem::Wildcard),
        (false, true) => Ok(HostPattern::Below(name, reach)),
        (false, false) => Ok(HostPattern::Name(name, reach)),
    }
}

/// Only the plain spelling: no sign, no leading zero.
fn checked_port(text: &str) -> Result<u16, HostProblem> {
    match text.parse() {
        Ok(port) if text.starts_with(|first: char| ('1'..='9').contains(&first)) => Ok(port),
        _ if text.is_empty() => Err(HostProblem::NoPort),
        _ => Err(HostProblem::Port(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_are_read_and_written_in_one_spelling() {
        for (text, written) in [
            ("api.github.com:443", "api.github.com:443"),
            ("API.github.COM.:443", "api.github.com:443"),
            ("*.amazonaws.com:443", "*.amazonaws.com:443"),
            ("private:db.internal:5432", "private:db.internal:5432"),
            ("private:db:5432", "private:db:5432"),
            ("private:*.corp.example:443", "private:*.corp.example:443"),
            ("10.0.0.5:5432", "10.0.0.5:5432"),
            ("169.254.169.254:80", "169.254.169.254:80"),
            ("[2001:DB8:0::1]:443", "[2001:db8::1]:443"),
            ("[fd00:ec2::254]:80", "[fd00:ec2::254]:80"),
            ("[::1]:8080", "[::1]:8080"),
            ("LocalHost:5432", "localhost:5432"),
            ("localhost.:5432", "localhost:5432"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("a.example:1", "a.example:1"),
            ("a.example:65535", "a.example:65535"),
        ] {
            let host: AllowedHost = text.parse().unwrap();
            assert_eq!(host.to_string(), written);
            assert_eq!(written.parse(), Ok(host));
        }
    }

    #[test]
    fn entries_that_cannot_be_meant_are_refused_with_the_reason() {
        use HostProblem as P;
        let port = |text: &str| P::Port(text.into());
        for (text, problem) in [
            ("api.github.com", P::NoPort),
            ("api.github.com:", P::NoPort),
            ("", P::NoPort),
            ("private:db.internal", P::NoPort),
            ("[2001:db8::1]", P::NoPort),
            ("a.example:0", port("0")),
            ("a.example:65536", port("65536")),
            ("a.example:+443", port("+443")),
            ("a.example:0443", port("0443")),
            ("a.example:443 ", port("443 ")),
            ("a.example:https", port("https")),
            ("https://a.example", P::Url),
            ("https://a.example:443/path", P::Url),
            ("10.0.0.0/8:443", P::Url),
            ("2001:db8::1:443", P::Brackets),
            ("::1", P::Brackets),
            ("[a.example]:443", P::Brackets),
            ("[10.0.0.5]:443", P::Brackets),
            ("[fe80::1%2]:443", P::Brackets),
            ("[fe80::1]:443", P::LinkLocalIpv6("fe80::1".parse().unwrap())),
            ("[::ffff:10.0.0.5]:443", P::EmbeddedIpv4("::ffff:10.0.0.5".parse().unwrap())),
            ("[::10.0.0.5]:443", P::EmbeddedIpv4("::10.0.0.5".parse().unwrap())),
            ("0.0.0.0:443", P::NotOneHost("0.0.0.0".parse().unwrap())),
            ("224.0.0.1:443", P::NotOneHost("224.0.0.1".parse().unwrap())),
            ("255.255.255.255:443", P::NotOneHost("255.255.255.255".parse().unwrap())),
            ("[::]:443", P::NotOneHost("::".parse().unwrap())),
            ("[ff02::1]:443", P::NotOneHost("ff02::1".parse().unwrap())),
            ("0x7f.1:443", InvalidName::Number.into()),
            ("127.1:443", InvalidName::Number.into()),
            ("2130706433:443", InvalidName::Number.into()),
            ("010.0.0.5:443", InvalidName::Number.into()),
            (":443", InvalidName::Label.into()),
            (" a.example:443", InvalidName::Character(' ').into()),
            ("bücher.example:443", InvalidName::International.into()),
            ("user@a.example:443", InvalidName::Character('@').into()),
            ("*:443", P::Wildcard),
            ("*.com:443", P::Wildcard),
            ("*a.example.com:443", P::Wildcard),
            ("a.*.example.com:443", P::Wildcard),
            ("*.*.example.com:443", P::Wildcard),
            ("private:10.0.0.5:443", P::PrivateAddress),
            ("private:localhost:443", P::PrivateAddress),
            ("a.localhost:443", P::NameOfLocalhost),
            ("*.a.localhost:443", P::NameOfLocalhost),
        ] {
            let refused = text.parse::<AllowedHost>().map_err(|error| error.problem);
            assert_eq!(refused, Err(problem), "{text}");
        }
        let error = "api.github.com".parse::<AllowedHost>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`api.github.com` does not say which host and port a server may reach: the port is missing; add it, as in \
             `api.github.com:443`"
        );
    }

    #[test]
    fn an_entry_is_about_its_names_and_its_port() {
        let reach = |entry: &str, name: &str, port| {
            entry.parse::<AllowedHost>().unwrap().reach_of(&name.parse().unwrap(), port)
        };
        assert_eq!(reach("a.example:443", "a.example", 443), Some(Reach::Public));
        assert_eq!(reach("a.example:443", "a.example", 80), None);
        assert_eq!(reach("a.example:443", "b.a.example", 443), None);
        assert_eq!(reach("private:*.a.example:443", "c.b.a.example", 443), Some(Reach::Private));
        assert_eq!(reach("*.a.example:443", "a.example", 443), None);
        assert_eq!(reach("10.0.0.5:443", "a.example", 443), None);
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_written_as_it_is_read(text in "(private:)?(\\*\\.)?\\PC{0,30}(:[0-9]{1,6})?") {
            if let Ok(host) = text.parse::<AllowedHost>() {
                prop_assert_eq!(host.to_string().parse(), Ok(host));
            }
        }

        #[test]
        fn no_spelling_of_an_address_is_a_name(address: [u8; 4], hexadecimal: bool, parts in 1_usize..5) {
            let number = u32::from_be_bytes(address);
            let part = |index: usize| {
                let value = if index + 1 == parts { number & (u32::MAX >> (8 * index)) } else { u32::from(address[index]) };
                if hexadecimal { format!("{value:#x}") } else { value.to_string() }
            };
            let text = (0..parts).map(part).collect::<Vec<_>>().join(".");
            let host = format!("{text}:443").parse::<AllowedHost>();
            let is_name = matches!(host, Ok(AllowedHost { pattern: HostPattern::Name(..), .. }));
            prop_assert!(!is_name, "{}", text);
        }
    }
}
