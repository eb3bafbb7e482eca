//! The command line of `cofferdam-shim hub` → [`HubOptions`].

use std::ffi::OsString;
use std::path::PathBuf;

use relay_proto::address::{Host, HostPort, InvalidAddress, ListenAddress};
use relay_proto::key::{InvalidKey, PublicKey};

use crate::default_socket::SocketSearch;
use crate::suggestion::did_you_mean;

/// The two sides of a hub: towards the shims and towards the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HubOptions {
    pub pin: PublicKey,
    pub local: LocalListener,
    pub pipe: PipeTarget,
}

/// Where the sandbox's shims connect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LocalListener {
    /// A loopback port, whose number and key are written to this file.
    Loopback(PathBuf),
    /// The first of these sockets that this user may create.
    Search(SocketSearch),
    Unix(PathBuf),
}

/// How the host connects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PipeTarget {
    Listen(ListenAddress),
    Stdio(PipeEncoding),
}

/// How bytes travel on stdin and stdout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PipeEncoding {
    Binary,
    /// Lines of base64.
    Text,
}

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum HubUsageError {
    #[error("hub: --socket and --loopback exclude each other")]
    SocketAndLoopback,
    #[error(
        "invalid --listen: {0} can be reached from other machines; give --expose too if that is what you want (a peer that does not \
         have the sidecar's key gets nothing there), or listen on 127.0.0.1"
    )]
    Exposed(HostPort),
    #[error("invalid {origin}: {source}")]
    InvalidPin { origin: &'static str, source: InvalidKey },
    #[error("invalid --listen: {0}")]
    InvalidListenAddress(InvalidAddress),
    #[error(
        "invalid --listen: `{0}` is a host name; give an IP address, so that it is clear where the port is open"
    )]
    ListenHostName(String),
    #[error(
        "hub: --pin is missing: give it the key that `cofferdam key` prints on the host \
         ({{pin}} in a command of `cofferdam attach exec`), or set COFFERDAM_PIN"
    )]
    NoPin,
    #[error("invalid {origin}: it is not UTF-8")]
    NotUtf8 { origin: &'static str },
    #[error("hub: --text is for stdin and stdout, and --listen for a port; give one of them")]
    TextWithListen,
    #[error("hub: {flag} is given twice")]
    RepeatedFlag { flag: &'static str },
    #[error("hub: unknown argument `{0}`{near}", near = did_you_mean(.0, &KNOWN))]
    UnknownArgument(String),
    #[error("hub: {flag} needs a value")]
    MissingValue { flag: &'static str },
}

/// Reads the arguments after `hub`.
pub(crate) fn parse(
    mut arguments: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Parsed, HubUsageError> {
    let (mut pin, mut socket, mut loopback, mut listen) = (None, None, None, None);
    let (mut exposed, mut encoding) = (Exposed::No, PipeEncoding::Binary);
    while let Some(argument) = arguments.next() {
        let argument =
            argument.into_string().map_err(|_| HubUsageError::NotUtf8 { origin: "the command line" })?;
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (argument.as_str(), None),
        };
        let (flag, slot) = match name {
            "--help" | "-h" if value.is_none() => return Ok(Parsed::Help),
            "--expose" if value.is_none() => {
                exposed = Exposed::Yes;
                continue;
            }
            TEXT if value.is_none() => {
                encoding = PipeEncoding::Text;
                continue;
            }
            PIN => (PIN, &mut pin),
            SOCKET => (SOCKET, &mut socket),
            LOOPBACK => (LOOPBACK, &mut loopback),
            LISTEN => (LISTEN, &mut listen),
            _ => return Err(HubUsageError::UnknownArgument(argument)),
        };
        let value = value.or_else(|| arguments.next()).ok_or(HubUsageError::MissingValue { flag })?;
        if slot.replace(value).is_some() {
            return Err(HubUsageError::RepeatedFlag { flag });
        }
    }
    let local = match (socket, loopback) {
        (Some(_), Some(_)) => return Err(HubUsageError::SocketAndLoopback),
        (None, Some(file)) => LocalListener::Loopback(file.into()),
        (Some(path), None) => LocalListener::Unix(path.into()),
        (None, None) => {
            let runtime_directory = environment("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
            LocalListener::Search(SocketSearch::new(runtime_directory.map(PathBuf::from)))
        }
    };
    let pipe = match listen {
        Some(_) if encoding == PipeEncoding::Text => return Err(HubUsageError::TextWithListen),
        Some(address) => PipeTarget::Listen(parse_listen(&text(address, LISTEN)?, exposed)?),
        None => PipeTarget::Stdio(encoding),
    };
    let (origin, pin) = match (pin, environment(PIN_VARIABLE).filter(|value| !value.is_empty())) {
        (Some(pin), _) => (PIN, pin),
        (None, Some(pin)) => (PIN_VARIABLE, pin),
        (None, None) => return Err(HubUsageError::NoPin),
    };
    let pin = text(pin, origin)?.parse().map_err(|source| HubUsageError::InvalidPin { origin, source })?;
    Ok(Parsed::Run(HubOptions { pin, local, pipe }))
}

/// What may be given, for suggestions.
const KNOWN: [&str; 7] = ["--expose", "--help", LISTEN, LOOPBACK, PIN, SOCKET, TEXT];

/// What the command line requests.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Parsed {
    Help,
    Run(HubOptions),
}

pub(crate) const HELP: &str = "\
Carries the links of all shims of a sandbox through its one pipe to the host.

Usage: cofferdam-shim hub --pin KEY [--socket PATH | --loopback FILE]
                          [--text | --listen ADDRESS [--expose]]

  --pin KEY           the sidecar's public key, as `cofferdam key` prints it [environment: COFFERDAM_PIN]
  --socket PATH       the socket that the sandbox's shims connect to (their --relay is unix:PATH)
                      [default: the first that can be created of /run/cofferdam/relay/relay.sock,
                      $XDG_RUNTIME_DIR/cofferdam/relay.sock and /tmp/cofferdam-UID/relay.sock,
                      where shims without --relay search too]
  --loopback FILE     instead, where Unix sockets are forbidden: a loopback port; the port and the key that a shim
                      must send are written to FILE (their --relay is hub:FILE)
  --listen ADDRESS    the host dials this port (`cofferdam attach dial`): HOST:PORT, or vsock:PORT of a virtual machine;
                      without it, stdin and stdout are the pipe (`cofferdam attach exec`)
  --text              stdin and stdout carry lines of base64, for platforms that decode output as UTF-8
  --expose            let --listen HOST:PORT be reached from other machines
  --help, -h          print this

It exits with 0 when the host closes the pipe; 64 for wrong arguments; 69 if the socket or port cannot be opened, or the host does
not respond; 75 if another hub serves the sandbox; 77 if the host has another key than --pin says.

Example: cofferdam-shim hub --pin 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
";

/// Whether a port may be open to other machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Exposed {
    No,
    Yes,
}

const PIN: &str = "--pin";
const PIN_VARIABLE: &str = "COFFERDAM_PIN";
const SOCKET: &str = "--socket";
const LOOPBACK: &str = "--loopback";
const LISTEN: &str = "--listen";
const TEXT: &str = "--text";

fn parse_listen(text: &str, exposed: Exposed) -> Result<ListenAddress, HubUsageError> {
    let address = text.parse().map_err(HubUsageError::InvalidListenAddress)?;
    // A machine's vsock can be reached only by its host and the machine itself.
    let ListenAddress::Tcp(port) = &address else { return Ok(address) };
    match &port.host {
        Host::Name(name) => Err(HubUsageError::ListenHostName(name.clone())),
        host if exposed == Exposed::No && !host.is_loopback() => Err(HubUsageError::Exposed(port.clone())),
        _ => Ok(address),
    }
}

fn text(value: OsString, origin: &'static str) -> Result<String, HubUsageError> {
    value.into_string().map_err(|_| HubUsageError::NotUtf8 { origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn parsed(arguments: &[&str], pin: Option<&str>) -> Result<Parsed, HubUsageError> {
        parse(arguments.iter().map(OsString::from), |name| {
            assert!(
                ["COFFERDAM_PIN", "XDG_RUNTIME_DIR"].contains(&name),
                "no other variable is read: {name}"
            );
            pin.filter(|_| name == "COFFERDAM_PIN").map(OsString::from)
        })
    }

    fn options(arguments: &[&str], pin: Option<&str>) -> HubOptions {
        match parsed(arguments, pin) {
            Ok(Parsed::Run(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_have_defaults_and_are_parsed() {
        let plain = options(&[], Some(KEY));
        let local = LocalListener::Search(SocketSearch::new(None));
        assert_eq!(
            plain,
            HubOptions { pin: KEY.parse().unwrap(), local, pipe: PipeTarget::Stdio(PipeEncoding::Binary) }
        );
        assert_eq!(options(&["--text"], Some(KEY)).pipe, PipeTarget::Stdio(PipeEncoding::Text));
        let other = "1".repeat(64);
        assert_eq!(options(&["--pin", &other], Some(KEY)).pin, other.parse().unwrap());
        assert_eq!(options(&["--loopback=/k"], Some(KEY)).local, LocalListener::Loopback("/k".into()));
        let listen = PipeTarget::Listen("[::1]:70".parse().unwrap());
        assert_eq!(options(&["--listen", "[::1]:70"], Some(KEY)).pipe, listen);
        assert!(matches!(
            options(&["--expose", "--listen=0.0.0.0:7"], Some(KEY)).pipe,
            PipeTarget::Listen(_)
        ));
        let vsock = PipeTarget::Listen(ListenAddress::Vsock { port: 7443 });
        assert_eq!(options(&["--listen", "vsock:7443"], Some(KEY)).pipe, vsock, "only the host can reach it");
        assert_eq!(parsed(&["-h"], None), Ok(Parsed::Help));
    }

    #[test]
    fn wrong_options_are_refused_with_a_reason() {
        let error = |arguments: &[&str]| parsed(arguments, None).unwrap_err();
        assert_eq!(error(&[]), HubUsageError::NoPin);
        assert!(matches!(error(&["--pin=12"]), HubUsageError::InvalidPin { origin: "--pin", .. }));
        assert_eq!(error(&["--socket=a", "--loopback=b"]), HubUsageError::SocketAndLoopback);
        assert!(matches!(error(&["--listen=0.0.0.0:7"]), HubUsageError::Exposed(_)));
        assert!(matches!(error(&["--listen=box:7", "--expose"]), HubUsageError::ListenHostName(_)));
        for address in ["7", "vsock:", "vsock:0", "vsock:2:7443"] {
            assert!(
                matches!(error(&["--listen", address]), HubUsageError::InvalidListenAddress(_)),
                "{address}"
            );
        }
        assert_eq!(error(&["--text", "--listen=127.0.0.1:7"]), HubUsageError::TextWithListen);
        assert_eq!(error(&["--pin"]), HubUsageError::MissingValue { flag: "--pin" });
        assert_eq!(error(&["--pin=1", "--pin=2"]), HubUsageError::RepeatedFlag { flag: "--pin" });
        assert_eq!(
            error(&["--sokcet=/x"]).to_string(),
            "hub: unknown argument `--sokcet=/x`; did you mean `--socket`?"
        );
        assert_eq!(error(&["--relay=x"]), HubUsageError::UnknownArgument("--relay=x".into()));
    }
}
