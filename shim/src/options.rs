//! Command line and environment → [`Options`]. Three flags do not need a parser crate.

use std::ffi::OsString;

use relay_proto::address::{Address, InvalidAddress};
use relay_proto::name::{InvalidName, Name};

use crate::network::{Expose, Network, NetworkUsageError, Written};

/// Where to go and what to ask for there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Options {
    pub relay: Address,
    /// Which server; none means the grant's only one.
    pub server: Option<Name>,
    pub network: Network,
}

/// What the command line asks for.
#[derive(Debug, Eq, PartialEq)]
pub enum Command {
    Relay(Options),
    /// `--help` or `--version`: this text on stdout.
    Show(String),
}

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum UsageError {
    #[error(transparent)]
    Network(#[from] NetworkUsageError),
    #[error("read {place}: it is not UTF-8")]
    NotUtf8 { place: &'static str },
    #[error("read {place}: {source}")]
    Relay { place: &'static str, source: InvalidAddress },
    #[error("read --server: {source}")]
    Server { source: InvalidName },
    #[error("read the command line: {flag} is there twice")]
    Twice { flag: &'static str },
    #[error("read the command line: `{0}` is not known")]
    Unknown(String),
    #[error("read the command line: {flag} needs a value")]
    Value { flag: &'static str },
}

/// Reads the arguments after the program's name. The command line goes before the environment.
pub fn parse(
    mut arguments: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, UsageError> {
    let (mut relay, mut server, mut proxy, mut pin) = (None, None, None, None);
    let mut expose = Expose::No;
    while let Some(argument) = arguments.next() {
        let argument =
            argument.into_string().map_err(|_| UsageError::NotUtf8 { place: "the command line" })?;
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (argument.as_str(), None),
        };
        let (flag, slot) = match name {
            "--help" | "-h" if value.is_none() => return Ok(Command::Show(HELP.into())),
            "--version" | "-V" if value.is_none() => return Ok(Command::Show(format!("{SOFTWARE}\n"))),
            "--expose" if value.is_none() => {
                expose = Expose::Yes;
                continue;
            }
            "--pin" => (PIN_FLAG, &mut pin),
            "--proxy" => (PROXY_FLAG, &mut proxy),
            "--relay" => (RELAY_FLAG, &mut relay),
            "--server" => (SERVER_FLAG, &mut server),
            _ => return Err(UsageError::Unknown(argument)),
        };
        let value = value.or_else(|| arguments.next()).ok_or(UsageError::Value { flag })?;
        if slot.replace(value).is_some() {
            return Err(UsageError::Twice { flag });
        }
    }
    let (place, relay) = match relay {
        Some(value) => (RELAY_FLAG, value),
        None => match environment(RELAY_VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) => (RELAY_VARIABLE, value),
            None => ("the default link", DEFAULT_RELAY.into()),
        },
    };
    let relay = text(relay, place)?.parse().map_err(|source| UsageError::Relay { place, source })?;
    let server = match server {
        Some(value) => {
            Some(text(value, SERVER_FLAG)?.parse().map_err(|source| UsageError::Server { source })?)
        }
        None => None,
    };
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let proxy = proxy.map(|value| text(value, PROXY_FLAG)).transpose()?;
    let pin = match (pin, variable(PIN_VARIABLE)) {
        (Some(value), _) => Some((PIN_FLAG, text(value, PIN_FLAG)?)),
        (None, Some(value)) => Some((PIN_VARIABLE, text(value, PIN_VARIABLE)?)),
        (None, None) => None,
    };
    // A proxy's variable that is not text is as good as none: whoever needs it is told that nothing is reached.
    let network = Network::read(Written { relay: &relay, proxy, pin, expose }, |name| {
        variable(name).and_then(|value| value.into_string().ok())
    })?;
    Ok(Command::Relay(Options { relay, server, network }))
}

/// Name and version, as `--version` and the relay's Hello say them.
pub(crate) const SOFTWARE: &str = concat!("cofferdam-shim ", env!("CARGO_PKG_VERSION"));

const DEFAULT_RELAY: &str = "unix:/run/cofferdam/relay/relay.sock";
const PIN_FLAG: &str = "--pin";
const PIN_VARIABLE: &str = "COFFERDAM_PIN";
const PROXY_FLAG: &str = "--proxy";
const RELAY_FLAG: &str = "--relay";
const RELAY_VARIABLE: &str = "COFFERDAM_RELAY";
const SERVER_FLAG: &str = "--server";
const HELP: &str = "\
Speaks MCP on stdin and stdout for a harness in a sandbox, and carries it to the sidecar outside.

Usage: cofferdam-shim [--relay LINK] [--server NAME] [--proxy URL] [--pin KEY] [--expose]

  --relay LINK    where the sidecar is: unix:PATH, fd:N (an inherited socket), tls://HOST:PORT,
                  wss://HOST[:PORT]/PATH, vsock:CID:PORT, or listen:HOST:PORT where it dials in
                  [environment: COFFERDAM_RELAY] [default: unix:/run/cofferdam/relay/relay.sock]
  --server NAME   which MCP server to reach; without it, the only one that is granted
  --proxy URL     go out through this HTTP proxy, http://[USER:PASSWORD@]HOST:PORT, whatever NO_PROXY says
                  [environment: HTTPS_PROXY or ALL_PROXY, unless NO_PROXY excepts the sidecar]
  --pin KEY       the key of the sidecar that may dial in, for listen: [environment: COFFERDAM_PIN]
  --expose        let listen: open a port that others than this machine can reach
  --version, -V   print the version
  --help, -h      print this
";

fn text(value: OsString, place: &'static str) -> Result<String, UsageError> {
    value.into_string().map_err(|_| UsageError::NotUtf8 { place })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    const LOOKED_AT: [&str; 8] = [
        "COFFERDAM_PIN",
        "COFFERDAM_RELAY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ];

    fn parsed(arguments: &[&str], relay: Option<&str>) -> Result<Command, UsageError> {
        parse(arguments.iter().map(OsString::from), |name| {
            assert!(LOOKED_AT.contains(&name), "nothing else of the environment is looked at");
            relay.filter(|_| name == "COFFERDAM_RELAY").map(OsString::from)
        })
    }

    fn options(arguments: &[&str], relay: Option<&str>) -> Options {
        match parsed(arguments, relay) {
            Ok(Command::Relay(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_goes_before_the_environment_and_that_before_the_default() {
        assert_eq!(options(&[], None).relay, Address::Unix("/run/cofferdam/relay/relay.sock".into()));
        assert_eq!(options(&[], Some("")).relay, Address::Unix("/run/cofferdam/relay/relay.sock".into()));
        assert_eq!(options(&[], Some("unix:/e")).relay, Address::Unix("/e".into()));
        assert_eq!(options(&["--relay", "fd:5"], Some("unix:/e")).relay, Address::Fd(5));
        let both = options(&["--server=github", "--relay=unix:/a=b"], None);
        assert_eq!(
            both,
            Options {
                relay: Address::Unix("/a=b".into()),
                server: "github".parse().ok(),
                network: Network::default()
            }
        );
    }

    #[test]
    fn help_and_version_are_data() {
        assert!(
            matches!(parsed(&["--help"], None), Ok(Command::Show(text)) if text.contains("--server NAME"))
        );
        assert!(
            matches!(parsed(&["-V"], None), Ok(Command::Show(text)) if text.starts_with("cofferdam-shim 0"))
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |arguments: &[&str]| parsed(arguments, Some("tls://h")).unwrap_err().to_string();
        assert_eq!(said(&["--bogus"]), "read the command line: `--bogus` is not known");
        assert_eq!(said(&["hub"]), "read the command line: `hub` is not known");
        assert_eq!(said(&["--server"]), "read the command line: --server needs a value");
        assert_eq!(said(&["--relay=fd:3", "--relay=fd:4"]), "read the command line: --relay is there twice");
        assert!(said(&[]).starts_with("read COFFERDAM_RELAY: `h` is not HOST:PORT"));
        assert!(said(&["--relay=fd:3", "--server=A B"]).starts_with("read --server: `A B` is not a name"));
        let bytes = [OsString::from("--relay"), OsString::from_vec(b"unix:/\xff".to_vec())];
        let error = parse(bytes.into_iter(), |_| None).unwrap_err();
        assert_eq!(error, UsageError::NotUtf8 { place: "--relay" });
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_port_wants_a_key_and_a_reason_to_be_seen() {
        let key = "ab".repeat(32);
        let said = |arguments: &[&str]| parsed(arguments, None).unwrap_err().to_string();
        assert!(said(&["--relay=listen:127.0.0.1:7443"]).contains("--pin KEY"));
        assert!(said(&["--relay=listen:0.0.0.0:7443", "--pin", &key]).contains("--expose"));
        assert!(said(&["--relay=listen:[::1]:7443", "--pin=abc"]).starts_with("read --pin: a key has 64"));
        let pin = |arguments: &[&str]| options(arguments, None).network.pin.map(|pin| pin.to_string());
        assert_eq!(pin(&["--relay=listen:127.0.0.1:7443", "--pin", &key]), Some(key.clone()));
        assert_eq!(pin(&["--relay=listen:0.0.0.0:7443", "--expose", "--pin", &key]), Some(key));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_proxy_on_the_command_line_is_used_whatever_the_environment_says() {
        use relay_carriage::proxy::Proxies;
        let options = |arguments: &[&str]| {
            let variables = |name: &str| match name {
                "HTTPS_PROXY" => Some("http://environment:1".into()),
                "NO_PROXY" => Some("*".into()),
                _ => None,
            };
            match parse(arguments.iter().map(OsString::from), variables) {
                Ok(Command::Relay(options)) => options,
                other => panic!("{other:?}"),
            }
        };
        let target = "relay.example.com:7443".parse().unwrap();
        let towards =
            |proxies: Proxies| proxies.towards(&target).unwrap().map(|proxy| proxy.address.to_string());
        assert_eq!(towards(options(&[]).network.proxies), None);
        assert_eq!(towards(options(&["--proxy=http://given:2"]).network.proxies), Some("given:2".into()));
        let error = parsed(&["--proxy", "socks5://u:hunter2@h:1"], None).unwrap_err().to_string();
        assert_eq!(error, "read --proxy: only proxies with `http://` can be used, this one has `socks5://`");
    }
}
