//! Where Vault is.
//!
//! What must stay true: plain text goes to loopback only, by the operator's own hand; `localhost` that resolves to
//! anything but loopback is not dialled.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ::http::Uri;
use ::http::uri::Scheme;

/// More than this from a name server is not looked at.
const MAX_ADDRESSES: usize = 8;
/// Where Vault listens unless told otherwise.
const DEFAULT_PORT: u16 = 8200;

/// Scheme, host, port, and the path below which Vault is, taken apart once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    pub(super) carriage: Carriage,
    pub(super) host: Host,
    /// As the `Host` header has it.
    pub(super) authority: String,
    /// Without a slash at its end; empty for nearly everybody.
    pub(super) prefix: String,
    port: u16,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Carriage {
    Plain,
    Tls,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Host {
    Address(IpAddr),
    Localhost,
    Name(String),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AddressError {
    #[error("an address of Vault has no user, query or fragment in it")]
    Extra,
    #[error("this is no URL: write `https://HOST:PORT`")]
    NoUrl,
    #[error("`http://` sends tokens in plain text and is for loopback only: write `https://`")]
    Plain,
    #[error("the scheme has to be `https`, or `http` to loopback")]
    Scheme,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains('#') {
            return Err(AddressError::Extra);
        }
        let uri: Uri = text.parse().map_err(|_| AddressError::NoUrl)?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(AddressError::NoUrl);
        };
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(AddressError::Extra);
        }
        let carriage = match scheme {
            scheme if *scheme == Scheme::HTTPS => Carriage::Tls,
            scheme if *scheme == Scheme::HTTP => Carriage::Plain,
            _ => return Err(AddressError::Scheme),
        };
        let host = Host::read(authority.host());
        if carriage == Carriage::Plain && !host.is_loopback() {
            return Err(AddressError::Plain);
        }
        let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
        let authority = format!("{}:{port}", authority.host());
        Ok(Self { carriage, host, authority, prefix: uri.path().trim_end_matches('/').to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.carriage {
            Carriage::Plain => "http",
            Carriage::Tls => "https",
        };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

impl Address {
    /// Plain text to loopback needs no authority.
    pub(super) fn needs_roots(&self) -> bool {
        self.carriage == Carriage::Tls
    }

    /// What to dial, in the resolver's order; never empty.
    pub(super) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = match &self.host {
            Host::Address(address) => vec![SocketAddr::new(*address, self.port)],
            Host::Localhost => {
                let found = tokio::net::lookup_host(("localhost", self.port)).await?;
                found.filter(|address| address.ip().is_loopback()).take(MAX_ADDRESSES).collect()
            }
            Host::Name(name) => {
                tokio::net::lookup_host((name.as_str(), self.port)).await?.take(MAX_ADDRESSES).collect()
            }
        };
        match found.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            false => Ok(found),
        }
    }
}

impl Host {
    fn read(spelled: &str) -> Self {
        let bare = spelled.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(spelled);
        match bare.parse() {
            Ok(address) => Self::Address(address),
            Err(_) if bare.eq_ignore_ascii_case("localhost") => Self::Localhost,
            Err(_) => Self::Name(bare.to_owned()),
        }
    }

    fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Localhost => true,
            Self::Name(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_for_loopback() {
        for good in ["http://127.0.0.1:8200", "http://127.9.8.7", "http://[::1]:8200", "http://LOCALHOST:1/"]
        {
            assert!(good.parse::<Address>().is_ok(), "{good}");
        }
        for bad in [
            "http://vault.internal:8200",
            "http://10.0.0.1",
            "http://localhost.evil.example",
            "http://0.0.0.0",
        ] {
            assert_eq!(bad.parse::<Address>(), Err(AddressError::Plain), "{bad}");
        }
    }

    #[test]
    fn an_address_is_a_scheme_a_host_a_port_and_perhaps_a_path() {
        let address: Address = "https://vault.example.com/team/vault/".parse().unwrap();
        assert_eq!(address.to_string(), "https://vault.example.com:8200/team/vault");
        assert_eq!(address.prefix, "/team/vault");
        for (bad, why) in [
            ("vault.example.com", AddressError::NoUrl),
            ("/v1", AddressError::NoUrl),
            ("", AddressError::NoUrl),
            ("https://user:password@vault", AddressError::Extra),
            ("https://vault?x=y", AddressError::Extra),
            ("https://vault#x", AddressError::Extra),
            ("ftp://vault", AddressError::Scheme),
        ] {
            assert_eq!(bad.parse::<Address>(), Err(why), "{bad}");
        }
    }
}
