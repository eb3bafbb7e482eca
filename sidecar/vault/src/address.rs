//! The address of Vault.
//!
//! What must stay true: `http://` is allowed for loopback only, judged by the URL as it is written.

use std::fmt;
use std::str::FromStr;

use ::http::Uri;
use cofferdam_net::{AddressPolicy, Endpoint, Host, Scheme};

/// Vault's default port.
const DEFAULT_PORT: u16 = 8200;

/// Scheme, host, port, and the path under which Vault is served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    pub(crate) endpoint: Endpoint,
    /// For the `Host` header.
    pub(crate) authority: String,
    /// Without a slash at its end; usually empty.
    pub(crate) prefix: String,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AddressError {
    #[error("the address of Vault must not contain a user, query or fragment")]
    UnexpectedPart,
    #[error("this is not a URL: write `https://HOST:PORT`")]
    NotAUrl,
    #[error("`http://` sends tokens in plain text and is allowed for loopback only: write `https://`")]
    PlainText,
    #[error("the scheme must be `https`, or `http` to loopback")]
    Scheme,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains('#') {
            return Err(AddressError::UnexpectedPart);
        }
        let uri: Uri = text.parse().map_err(|_| AddressError::NotAUrl)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(AddressError::NotAUrl);
        };
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(AddressError::UnexpectedPart);
        }
        let scheme = match scheme {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            _ => return Err(AddressError::Scheme),
        };
        let endpoint = Endpoint {
            scheme,
            host: Host::parse(authority.host()),
            port: authority.port_u16().unwrap_or(DEFAULT_PORT),
            policy: AddressPolicy::Any,
        };
        if endpoint.is_plain_text_to_another_host() {
            return Err(AddressError::PlainText);
        }
        let authority = format!("{}:{}", authority.host(), endpoint.port);
        Ok(Self { endpoint, authority, prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.endpoint.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

impl Address {
    /// Whether certificate authorities are needed: not for `http://` to loopback.
    pub(crate) fn needs_roots(&self) -> bool {
        self.endpoint.scheme == Scheme::Https
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_allowed_for_loopback_only() {
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
            assert_eq!(bad.parse::<Address>(), Err(AddressError::PlainText), "{bad}");
        }
    }

    #[test]
    fn an_address_is_a_scheme_a_host_a_port_and_perhaps_a_path() {
        let address: Address = "https://vault.example.com/team/vault/".parse().unwrap();
        assert_eq!(address.to_string(), "https://vault.example.com:8200/team/vault");
        assert_eq!(address.prefix, "/team/vault");
        for (bad, why) in [
            ("vault.example.com", AddressError::NotAUrl),
            ("/v1", AddressError::NotAUrl),
            ("", AddressError::NotAUrl),
            ("https://user:password@vault", AddressError::UnexpectedPart),
            ("https://vault?x=y", AddressError::UnexpectedPart),
            ("https://vault#x", AddressError::UnexpectedPart),
            ("ftp://vault", AddressError::Scheme),
        ] {
            assert_eq!(bad.parse::<Address>(), Err(why), "{bad}");
        }
    }
}
