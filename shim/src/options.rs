//! Command line and environment → [`Options`]. Three flags do not need a parser crate.

use std::ffi::OsString;

#[cfg(feature = "hub")]
use crate::hub::options::{HubOptions, HubUsageError, Parsed};
use relay_proto::address::{Address, InvalidAddress};
use relay_proto::name::{InvalidName, Name};

/// Where to go and what to ask for there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Options {
    pub relay: Address,
    /// Which server; none means the grant's only one.
    pub server: Option<Name>,
}

/// What the command line asks for.
#[derive(Debug, Eq, PartialEq)]
pub enum Command {
    #[cfg(feature = "hub")]
    Hub(HubOptions),
    Relay(Options),
    /// `--help` or `--version`: this text on stdout.
    Show(String),
}

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum UsageError {
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] HubUsageError),
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
    arguments: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, UsageError> {
    let mut arguments = arguments.peekable();
    #[cfg(feature = "hub")]
    if arguments.next_if(|first| first == "hub").is_some() {
        return Ok(match crate::hub::options::parse(arguments, environment)? {
            Parsed::Help => Command::Show(crate::hub::options::HELP.into()),
            Parsed::Run(options) => Command::Hub(options),
        });
    }
    let (mut relay, mut server) = (None, None);
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
    Ok(Command::Relay(Options { relay, server }))
}

/// Name and version, as `--version` and the relay's Hello say them.
pub(crate) const SOFTWARE: &str = concat!("cofferdam-shim ", env!("CARGO_PKG_VERSION"));

const DEFAULT_RELAY: &str = "unix:/run/cofferdam/relay/relay.sock";
const RELAY_FLAG: &str = "--relay";
const RELAY_VARIABLE: &str = "COFFERDAM_RELAY";
const SERVER_FLAG: &str = "--server";
const HELP: &str = "\
Speaks MCP on stdin and stdout for a harness in a sandbox, and carries it to the sidecar outside.

Usage: cofferdam-shim [--relay LINK] [--server NAME]
       cofferdam-shim hub --help      (where the sandbox has one pipe only)

  --relay LINK    where the sidecar is: unix:PATH, or fd:N for an inherited socket
                  [environment: COFFERDAM_RELAY] [default: unix:/run/cofferdam/relay/relay.sock]
  --server NAME   which MCP server to reach; without it, the only one that is granted
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

    fn parsed(arguments: &[&str], relay: Option<&str>) -> Result<Command, UsageError> {
        parse(arguments.iter().map(OsString::from), |name| {
            assert_eq!(name, "COFFERDAM_RELAY", "nothing else of the environment is looked at");
            relay.map(OsString::from)
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
        assert_eq!(both, Options { relay: Address::Unix("/a=b".into()), server: "github".parse().ok() });
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
        assert_eq!(said(&["bub"]), "read the command line: `bub` is not known");
        assert_eq!(said(&["--server"]), "read the command line: --server needs a value");
        assert_eq!(said(&["--relay=fd:3", "--relay=fd:4"]), "read the command line: --relay is there twice");
        assert!(said(&[]).starts_with("read COFFERDAM_RELAY: `h` is not HOST:PORT"));
        assert!(said(&["--relay=fd:3", "--server=A B"]).starts_with("read --server: `A B` is not a name"));
        let bytes = [OsString::from("--relay"), OsString::from_vec(b"unix:/\xff".to_vec())];
        let error = parse(bytes.into_iter(), |_| None).unwrap_err();
        assert_eq!(error, UsageError::NotUtf8 { place: "--relay" });
    }
}
