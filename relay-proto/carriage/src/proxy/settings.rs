//! Which proxy to use, if any: a URL, or the environment variables, read as curl reads them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use relay_proto::address::{Host, HostPort, InvalidAddress};

/// An HTTP proxy: `[http://][USER[:PASSWORD]@]HOST[:PORT]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Proxy {
    pub address: HostPort,
    pub(super) credentials: Option<Credentials>,
}

/// `USER:PASSWORD`, decoded.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Credentials(pub(super) String);

/// The messages repeat at most the scheme: the rest of the text may contain a password.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProxy {
    #[error("its user or password is not percent-encoded UTF-8 without control characters")]
    Credentials,
    #[error("its host or port is not valid: use `http://HOST:PORT`")]
    Address,
    #[error("only proxies with `http://` can be used, this one has `{0}://`")]
    Scheme(String),
}

impl FromStr for Proxy {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if is_scheme(scheme) => return Err(InvalidProxy::Scheme(scheme.to_owned())),
            // The text before `://` may contain a user and a password.
            Some(_) => return Err(InvalidProxy::Address),
            None => text,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (credentials, endpoint) = match authority.rsplit_once('@') {
            Some((credentials, endpoint)) => (Some(Credentials::parse(credentials)?), endpoint),
            None => (None, authority),
        };
        let has_port = endpoint.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let endpoint = if has_port { endpoint.to_owned() } else { format!("{endpoint}:{DEFAULT_PORT}") };
        let address = endpoint.parse().map_err(|_: InvalidAddress| InvalidProxy::Address)?;
        Ok(Self { address, credentials })
    }
}

fn is_scheme(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    text.len() <= 16 && text.bytes().all(is_allowed)
}

impl Credentials {
    fn parse(text: &str) -> Result<Self, InvalidProxy> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let user = percent_decode(user).filter(|user| !user.contains(':'));
        let both = user.zip(percent_decode(password)).ok_or(InvalidProxy::Credentials)?;
        Ok(Self(format!("{}:{}", both.0, both.1)))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// When to use which proxy.
#[derive(Clone, Eq, PartialEq)]
pub enum Proxies {
    /// This proxy for every target; the environment is ignored.
    Always(Proxy),
    /// As the environment variables were when the program started.
    Environment(Vec<(&'static str, String)>),
}

impl Proxies {
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        Self::Environment(VARIABLES.into_iter().filter_map(|name| Some((name, variable(name)?))).collect())
    }

    /// The proxy for `target`. An error comes with the name of the variable that holds the URL.
    pub fn proxy_for(&self, target: &HostPort) -> Result<Option<Proxy>, (&'static str, InvalidProxy)> {
        match self {
            Self::Always(proxy) => Ok(Some(proxy.clone())),
            Self::Environment(variables) => choose_proxy(target, |name| {
                variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.clone())
            }),
        }
    }
}

impl Default for Proxies {
    fn default() -> Self {
        Self::Environment(Vec::new())
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always(_) => "Always(…)",
            Self::Environment(_) => "Environment(…)",
        })
    }
}

/// The variables that name a proxy, by precedence; below them those that name exceptions.
const PROXY_VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
const EXCEPTION_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];
const VARIABLES: [&str; 6] = [
    PROXY_VARIABLES[0],
    PROXY_VARIABLES[1],
    PROXY_VARIABLES[2],
    PROXY_VARIABLES[3],
    EXCEPTION_VARIABLES[0],
    EXCEPTION_VARIABLES[1],
];

fn choose_proxy(
    target: &HostPort,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, (&'static str, InvalidProxy)> {
    let value = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
    let exceptions = EXCEPTION_VARIABLES.into_iter().find_map(value).unwrap_or_default();
    if exceptions.split(',').any(|exception| matches_exception(exception.trim(), target)) {
        return Ok(None);
    }
    for name in PROXY_VARIABLES {
        if let Some(text) = value(name) {
            return text.trim().parse().map(Some).map_err(|error| (name, error));
        }
    }
    Ok(None)
}

/// Whether one item of `NO_PROXY` matches this target: `*`, a domain with its subdomains, an address or a network, each
/// with or without a port.
fn matches_exception(exception: &str, target: &HostPort) -> bool {
    if exception == "*" {
        return true;
    }
    let bare = exception.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(exception);
    match &target.host {
        Host::Ip(address) => {
            if let Some((network, bits)) = bare.split_once('/') {
                return match (network.parse(), bits.parse()) {
                    (Ok(network), Ok(bits)) => is_within(*address, network, bits),
                    _ => false,
                };
            }
            let exact = |text: &str| text.parse() == Ok(*address);
            exact(bare) || exception.parse().is_ok_and(|endpoint: HostPort| endpoint == *target)
        }
        Host::Name(name) => {
            let (domain, port) = match exception.rsplit_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (exception, None),
            };
            let domain = domain.trim_start_matches("*.").trim_matches('.').to_ascii_lowercase();
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            let is_in_domain =
                name.strip_suffix(&domain).is_some_and(|above| above.is_empty() || above.ends_with('.'));
            !domain.is_empty() && is_in_domain && port.is_none_or(|port| port.parse() == Ok(target.port))
        }
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let (address, network, width) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (address.to_bits().into(), network.to_bits().into(), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => (address.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    let ignored = match width - bits.min(width) {
        _ if bits > width => return false,
        128 => return true,
        ignored => ignored,
    };
    let (address, network): (u128, u128) = (address, network);
    address >> ignored == network >> ignored
}

/// The port that curl assumes for a proxy.
const DEFAULT_PORT: u16 = 1080;

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(text: &str) -> Proxy {
        text.parse().unwrap()
    }

    #[test]
    fn proxies_are_read_with_or_without_a_scheme() {
        assert_eq!(proxy("http://p.example:3128").address.to_string(), "p.example:3128");
        assert_eq!(proxy("HTTP://p.example:3128/").address.to_string(), "p.example:3128");
        assert_eq!(proxy("p.example:3128").address.to_string(), "p.example:3128");
        assert_eq!(proxy("http://p.example").address.to_string(), "p.example:1080");
        assert_eq!(proxy("http://[::1]:80").address.to_string(), "[::1]:80");
        assert_eq!(proxy("http://[::1]").address.to_string(), "[::1]:1080");
        let with = proxy("http://al%40ice:p%3Aw@h:1");
        assert_eq!(
            (with.credentials.unwrap().0.as_str(), with.address.to_string().as_str()),
            ("al@ice:p:w", "h:1")
        );
        assert_eq!(proxy("http://token@h:1").credentials.unwrap().0, "token:");
    }

    #[test]
    fn an_invalid_proxy_is_refused_without_repeating_it() {
        for (text, why) in [
            ("socks5h://u:secret@h:1", InvalidProxy::Scheme("socks5h".into())),
            ("https://u:secret@h:1", InvalidProxy::Scheme("https".into())),
            ("u:secret@h://x", InvalidProxy::Address),
            ("http://u:secret@h:0", InvalidProxy::Address),
            ("http://u:secret@", InvalidProxy::Address),
            ("http://u:secr%0d%0aet@h:1", InvalidProxy::Credentials),
            ("http://u:secret%4@h:1", InvalidProxy::Credentials),
            ("http://u%3a:secret@h:1", InvalidProxy::Credentials),
            ("http://u:secret%ff@h:1", InvalidProxy::Credentials),
        ] {
            let refused = text.parse::<Proxy>().unwrap_err();
            assert_eq!(refused, why, "{text}");
            assert!(!refused.to_string().contains("secret"));
        }
        let printed = format!("{:?}", proxy("http://user:secret@h:1"));
        assert!(!printed.contains("secret") && !printed.contains("user"), "{printed}");
    }

    fn chosen(target: &str, variables: &[(&str, &str)]) -> Option<String> {
        let environment = |name: &str| variables.iter().find(|set| set.0 == name).map(|set| set.1.to_owned());
        let proxies = Proxies::from_environment(environment);
        assert!(!format!("{proxies:?}").contains("p:1"), "{proxies:?}");
        proxies.proxy_for(&target.parse().unwrap()).unwrap().map(|proxy| proxy.address.to_string())
    }

    #[test]
    fn the_environment_is_read_as_curl_reads_it() {
        assert_eq!(chosen("h:1", &[]), None);
        assert_eq!(chosen("h:1", &[("HTTPS_PROXY", "a:1"), ("ALL_PROXY", "b:1")]), Some("a:1".into()));
        assert_eq!(chosen("h:1", &[("HTTPS_PROXY", "a:1"), ("https_proxy", "b:1")]), Some("b:1".into()));
        assert_eq!(chosen("h:1", &[("HTTPS_PROXY", ""), ("ALL_PROXY", "b:1")]), Some("b:1".into()));
        assert_eq!(chosen("h:1", &[("HTTP_PROXY", "a:1")]), None);
        let wrong = choose_proxy(&"h:1".parse().unwrap(), |name| {
            (name == "ALL_PROXY").then(|| "socks5://x:1".into())
        });
        assert_eq!(wrong, Err(("ALL_PROXY", InvalidProxy::Scheme("socks5".into()))));
    }

    #[test]
    fn exceptions_are_names_addresses_and_networks() {
        let direct = |target: &str, exceptions: &str| {
            chosen(target, &[("HTTPS_PROXY", "p:1"), ("NO_PROXY", exceptions)]).is_none()
        };
        for (target, exceptions) in [
            ("h:1", "*"),
            ("h.example.com:1", "other, example.com"),
            ("h.example.com:1", ".example.com"),
            ("h.example.com:1", "*.example.com"),
            ("EXAMPLE.com:1", "example.COM"),
            ("example.com:443", "example.com:443"),
            ("10.1.2.3:1", "10.0.0.0/8"),
            ("10.1.2.3:1", "0.0.0.0/0"),
            ("10.1.2.3:1", "10.1.2.3"),
            ("10.1.2.3:1", "10.1.2.3:1"),
            ("[fd00::1]:1", "fd00::/8"),
            ("[fd00::1]:1", "::/0"),
            ("[fd00::1]:1", "[fd00::1]"),
        ] {
            assert!(direct(target, exceptions), "{target} {exceptions}");
        }
        for (target, exceptions) in [
            ("h:1", ""),
            ("h:1", ","),
            ("notexample.com:1", "example.com"),
            ("example.com:443", "example.com:8443"),
            ("example.com:1", "."),
            ("11.1.2.3:1", "10.0.0.0/8"),
            ("10.1.2.3:1", "10.0.0.0/33"),
            ("10.1.2.3:1", "10.1.2.3:2"),
            ("10.1.2.3:1", "::/0"),
        ] {
            assert!(!direct(target, exceptions), "{target} {exceptions}");
        }
    }
}
