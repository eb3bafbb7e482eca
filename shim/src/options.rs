//! Command line and environment → [`Options`]. A few flags do not need a parser crate.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use relay_proto::address::{Address, InvalidAddress};
use relay_proto::name::{InvalidName, Name};

use crate::client_command::{ClientCommand, ClientUsageError, ClientVerb};
use crate::default_socket::SocketSearch;
use crate::help;
#[cfg(feature = "hub")]
use crate::hub::{
    self,
    options::{HubOptions, HubUsageError, Parsed},
};
use crate::network::{Expose, Network, NetworkUsageError, RawNetworkOptions};
use crate::suggestion::did_you_mean;

/// Where to connect and which server to use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Options {
    /// `None`: the address in the enrolment, or else a default socket.
    pub relay: Option<Address>,
    pub default_sockets: SocketSearch,
    /// The server to use; `None` means the grant's only server.
    pub server: Option<Name>,
    pub network: Network,
    /// The directory of the sandbox's key.
    pub state: PathBuf,
    pub enrolment_sources: EnrolmentSources,
}

/// Where an enrolment string may come from, in order of precedence. Never from the command line, which other users can
/// read.
#[derive(Clone, Eq, PartialEq)]
pub struct EnrolmentSources {
    /// The value of COFFERDAM_ENROLL.
    pub variable: Option<String>,
    /// The value of COFFERDAM_ENROLL_FILE.
    pub file: Option<PathBuf>,
    /// Read too, for harnesses that forward no environment.
    pub default_file: PathBuf,
}

/// Does not print the variable, which holds a ticket.
impl fmt::Debug for EnrolmentSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = self.variable.as_ref().map(|_| "…");
        f.debug_struct("EnrolmentSources")
            .field("variable", &variable)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// The output format of `doctor`, `status` and of the client's commands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OutputFormat {
    Json,
    Text,
}

/// Where the address of the link comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RelayOrigin {
    /// Neither an option nor a variable gives one.
    Default,
    /// `--relay`.
    Option,
    /// `COFFERDAM_RELAY`.
    Variable,
}

/// What the command line requests.
#[derive(Debug, Eq, PartialEq)]
pub enum Command {
    /// `servers`, `tools` or `call`.
    Client(ClientCommand, Options, OutputFormat),
    Doctor(Options, RelayOrigin, OutputFormat),
    #[cfg(feature = "hub")]
    Hub(HubOptions),
    Relay(Options),
    /// `--help` or `--version`: this text on stdout.
    Show(String),
    /// `status`.
    Status(Options, OutputFormat),
}

#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum UsageError {
    #[error(transparent)]
    Client(#[from] ClientUsageError),
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] HubUsageError),
    #[error(transparent)]
    Network(#[from] NetworkUsageError),
    #[error("invalid {origin}: it is not UTF-8")]
    NotUtf8 { origin: &'static str },
    #[error("invalid {origin}: {source}")]
    InvalidRelay { origin: &'static str, source: InvalidAddress },
    #[error("invalid --server: {source}")]
    InvalidServer { source: InvalidName },
    #[error("{flag} is given twice")]
    RepeatedFlag { flag: &'static str },
    #[error("unknown option or command `{0}`{near}", near = did_you_mean(.0, &KNOWN))]
    UnknownArgument(String),
    #[error("{flag} needs a value")]
    MissingValue { flag: &'static str },
}

/// Reads the arguments after the program's name. The command line takes precedence over the environment.
pub fn parse(
    arguments: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, UsageError> {
    let mut arguments = arguments.peekable();
    #[cfg(feature = "hub")]
    if arguments.next_if(|first| first == "hub").is_some() {
        return Ok(match hub::options::parse(arguments, environment)? {
            Parsed::Help => Command::Show(hub::options::HELP.into()),
            Parsed::Run(options) => Command::Hub(options),
        });
    }
    let (mut relay, mut server, mut state, mut proxy, mut pin) = (None, None, None, None, None);
    let mut expose = Expose::No;
    let (mut subcommand, mut format) = (Subcommand::Relay, None);
    let (mut first, mut operands) = (true, Vec::new());
    while let Some(argument) = arguments.next() {
        let argument =
            argument.into_string().map_err(|_| UsageError::NotUtf8 { origin: "the command line" })?;
        let is_operand = argument == "-" || !argument.starts_with('-');
        if is_operand && matches!(subcommand, Subcommand::Client(_)) {
            operands.push(argument);
            continue;
        }
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (argument.as_str(), None),
        };
        let (flag, slot) = match name {
            "--help" | "-h" if value.is_none() => return Ok(Command::Show(subcommand.help().into())),
            "--version" | "-V" if value.is_none() => return Ok(Command::Show(version())),
            "status" | "doctor" if first => {
                subcommand = if name == "status" { Subcommand::Status } else { Subcommand::Doctor };
                first = false;
                continue;
            }
            verb if first && ClientVerb::from_argument(verb).is_some() && value.is_none() => {
                first = false;
                subcommand = ClientVerb::from_argument(verb).map_or(subcommand, Subcommand::Client);
                continue;
            }
            "--json" if value.is_none() && subcommand != Subcommand::Relay => {
                match format.replace(OutputFormat::Json) {
                    None => continue,
                    Some(_) => return Err(UsageError::RepeatedFlag { flag: "--json" }),
                }
            }
            "--expose" if value.is_none() => {
                (expose, first) = (Expose::Yes, false);
                continue;
            }
            "--pin" => (PIN_FLAG, &mut pin),
            "--proxy" => (PROXY_FLAG, &mut proxy),
            "--relay" => (RELAY_FLAG, &mut relay),
            "--server" if !matches!(subcommand, Subcommand::Client(_)) => (SERVER_FLAG, &mut server),
            "--state" => (STATE_FLAG, &mut state),
            _ => return Err(UsageError::UnknownArgument(argument)),
        };
        let value = value.or_else(|| arguments.next()).ok_or(UsageError::MissingValue { flag })?;
        if slot.replace(value).is_some() {
            return Err(UsageError::RepeatedFlag { flag });
        }
        first = false;
    }
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let (origin, relay) = match relay {
        Some(value) => (RELAY_FLAG, Some(value)),
        None => (RELAY_VARIABLE, variable(RELAY_VARIABLE)),
    };
    let relay_origin = match &relay {
        None => RelayOrigin::Default,
        Some(_) if origin == RELAY_FLAG => RelayOrigin::Option,
        Some(_) => RelayOrigin::Variable,
    };
    let relay = match relay {
        Some(value) => {
            Some(text(value, origin)?.parse().map_err(|source| UsageError::InvalidRelay { origin, source })?)
        }
        None => None,
    };
    let server = match server {
        Some(value) => {
            Some(text(value, SERVER_FLAG)?.parse().map_err(|source| UsageError::InvalidServer { source })?)
        }
        None => None,
    };
    let state =
        state.or_else(|| variable(STATE_VARIABLE)).map_or_else(|| default_state(variable), PathBuf::from);
    let enrolment_sources = EnrolmentSources {
        variable: variable("COFFERDAM_ENROLL").map(|value| value.to_string_lossy().into_owned()),
        file: variable("COFFERDAM_ENROLL_FILE").map(PathBuf::from),
        default_file: DEFAULT_ENROLMENT.into(),
    };
    let pin = match (pin, variable(PIN_VARIABLE)) {
        (Some(value), _) => Some((PIN_FLAG, text(value, PIN_FLAG)?)),
        (None, Some(value)) => Some((PIN_VARIABLE, text(value, PIN_VARIABLE)?)),
        (None, None) => None,
    };
    let proxy = proxy.map(|value| text(value, PROXY_FLAG)).transpose()?;
    // A proxy variable that is not UTF-8 is ignored: if the proxy was needed, connecting fails with a reason.
    let network = Network::read(RawNetworkOptions { relay: relay.as_ref(), proxy, pin, expose }, |name| {
        variable(name).and_then(|value| value.into_string().ok())
    })?;
    let default_sockets = SocketSearch::new(variable("XDG_RUNTIME_DIR").map(PathBuf::from));
    let options = Options { relay, default_sockets, server, network, state, enrolment_sources };
    let format_or_text = format.unwrap_or(OutputFormat::Text);
    Ok(match subcommand {
        Subcommand::Client(verb) => Command::Client(verb.parse_arguments(operands)?, options, format_or_text),
        Subcommand::Doctor => Command::Doctor(options, relay_origin, format_or_text),
        Subcommand::Relay => Command::Relay(options),
        Subcommand::Status => Command::Status(options, format_or_text),
    })
}

/// What `--version` prints: name and version, the commit of which the shim was built if that is known, and the version of the
/// relay protocol. The recipes that build programs set the commit, to nothing outside a clone.
fn version() -> String {
    let commit = option_env!("COFFERDAM_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!("commit {commit}, ")).unwrap_or_default();
    format!("{SOFTWARE} ({commit}relay protocol {})\n", relay_proto::limits::VERSION)
}

/// Name and version, as Hello sends them.
pub(crate) const SOFTWARE: &str = concat!("cofferdam-shim ", env!("CARGO_PKG_VERSION"));

/// What may be given, for suggestions.
const KNOWN: [&str; 15] = [
    "call",
    "doctor",
    "hub",
    "servers",
    "status",
    "tools",
    "--expose",
    "--help",
    "--json",
    PIN_FLAG,
    PROXY_FLAG,
    RELAY_FLAG,
    SERVER_FLAG,
    STATE_FLAG,
    "--version",
];

const DEFAULT_ENROLMENT: &str = "/run/cofferdam/enroll";
const PIN_FLAG: &str = "--pin";
const PIN_VARIABLE: &str = "COFFERDAM_PIN";
const PROXY_FLAG: &str = "--proxy";
const RELAY_FLAG: &str = "--relay";
const RELAY_VARIABLE: &str = "COFFERDAM_RELAY";
const SERVER_FLAG: &str = "--server";
const STATE_FLAG: &str = "--state";
const STATE_VARIABLE: &str = "COFFERDAM_STATE";

/// Without a subcommand, the shim relays.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Subcommand {
    Client(ClientVerb),
    Doctor,
    Relay,
    Status,
}

impl Subcommand {
    fn help(self) -> &'static str {
        match self {
            Self::Client(ClientVerb::Call) => help::CALL,
            Self::Client(ClientVerb::Servers) => help::SERVERS,
            Self::Client(ClientVerb::Tools) => help::TOOLS,
            Self::Doctor => help::DOCTOR,
            Self::Relay => help::RELAY,
            Self::Status => help::STATUS,
        }
    }
}

/// The state directory if none is given: in XDG_STATE_HOME, else in HOME, else in /run.
fn default_state(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map_or_else(|| Path::new("/run/cofferdam-shim").into(), |state| state.join("cofferdam-shim"))
}

fn text(value: OsString, origin: &'static str) -> Result<String, UsageError> {
    value.into_string().map_err(|_| UsageError::NotUtf8 { origin })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parsed(arguments: &[&str], relay: Option<&str>) -> Result<Command, UsageError> {
        parse(arguments.iter().map(OsString::from), |name| {
            assert!(READ_VARIABLES.contains(&name), "no other variable is read: {name}");
            relay.filter(|_| name == "COFFERDAM_RELAY").map(OsString::from)
        })
    }

    const READ_VARIABLES: [&str; 14] = [
        "COFFERDAM_PIN",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
        "COFFERDAM_ENROLL",
        "COFFERDAM_ENROLL_FILE",
        "COFFERDAM_RELAY",
        "COFFERDAM_STATE",
        "HOME",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    ];

    fn options(arguments: &[&str], relay: Option<&str>) -> Options {
        match parsed(arguments, relay) {
            Ok(Command::Relay(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_overrides_the_environment() {
        assert_eq!(options(&[], None).relay, None);
        assert_eq!(options(&[], Some("")).relay, None);
        assert_eq!(options(&[], Some("unix:/e")).relay, Some(Address::Unix("/e".into())));
        assert_eq!(options(&["--relay", "fd:5"], Some("unix:/e")).relay, Some(Address::Fd(5)));
        let both = options(&["--server=github", "--relay=unix:/a=b"], None);
        assert_eq!((both.relay, both.server), (Some(Address::Unix("/a=b".into())), "github".parse().ok()));
    }

    #[test]
    fn the_state_directory_has_a_default_in_every_environment() {
        let state = |arguments: &[&str], environment: &[(&str, &str)]| {
            let parsed = parse(arguments.iter().map(OsString::from), |name| {
                environment.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into())
            });
            match parsed {
                Ok(Command::Relay(options)) => options.state,
                other => panic!("{other:?}"),
            }
        };
        let all = [("COFFERDAM_STATE", "/c"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(state(&["--state", "/d"], &all), Path::new("/d"));
        assert_eq!(state(&[], &all), Path::new("/c"));
        assert_eq!(state(&[], &all[1..]), Path::new("/x/cofferdam-shim"));
        assert_eq!(state(&[], &all[2..]), Path::new("/h/.local/state/cofferdam-shim"));
        assert_eq!(state(&[], &[("HOME", "relative")]), Path::new("/run/cofferdam-shim"));
    }

    #[test]
    fn status_is_a_subcommand() {
        assert!(matches!(parsed(&["status"], None), Ok(Command::Status(_, OutputFormat::Text))));
        let json = parsed(&["status", "--relay=fd:3", "--json"], None);
        assert!(matches!(
            json,
            Ok(Command::Status(Options { relay: Some(Address::Fd(3)), .. }, OutputFormat::Json))
        ));
        assert_eq!(parsed(&["--json"], None), Err(UsageError::UnknownArgument("--json".into())));
        assert_eq!(
            parsed(&["--relay=fd:3", "status"], None),
            Err(UsageError::UnknownArgument("status".into()))
        );
    }

    #[test]
    fn a_ticket_is_not_printed() {
        let parsed = parse([].into_iter(), |name| (name == "COFFERDAM_ENROLL").then(|| "secret".into()));
        assert!(!format!("{parsed:?}").contains("secret"));
    }

    #[test]
    fn help_and_version_go_to_stdout() {
        assert!(
            matches!(parsed(&["--help"], None), Ok(Command::Show(text)) if text.contains("--server NAME"))
        );
        assert!(
            matches!(parsed(&["-V"], None), Ok(Command::Show(text)) if text.starts_with("cofferdam-shim 0"))
        );
    }

    #[test]
    fn wrong_options_are_refused_with_a_reason() {
        let error = |arguments: &[&str]| parsed(arguments, Some("tls://h")).unwrap_err().to_string();
        assert_eq!(error(&["--bogus"]), "unknown option or command `--bogus`");
        assert_eq!(error(&["bub"]), "unknown option or command `bub`; did you mean `hub`?");
        assert_eq!(error(&["serverz"]), "unknown option or command `serverz`; did you mean `servers`?");
        assert_eq!(
            error(&["--sevrer=github"]),
            "unknown option or command `--sevrer=github`; did you mean `--server`?"
        );
        assert_eq!(error(&["--server"]), "--server needs a value");
        assert_eq!(error(&["--relay=fd:3", "--relay=fd:4"]), "--relay is given twice");
        assert!(error(&[]).starts_with("invalid COFFERDAM_RELAY: `h` is not HOST:PORT"));
        assert!(
            error(&["--relay=fd:3", "--server=A B"]).starts_with("invalid --server: `A B` is not a name")
        );
        let bytes = [OsString::from("--relay"), OsString::from_vec(b"unix:/\xff".to_vec())];
        let error = parse(bytes.into_iter(), |_| None).unwrap_err();
        assert_eq!(error, UsageError::NotUtf8 { origin: "--relay" });
    }

    #[cfg(feature = "tls")]
    #[test]
    fn listening_needs_a_pin_and_a_public_address_also_needs_expose() {
        let key = "ab".repeat(32);
        let error = |arguments: &[&str]| parsed(arguments, None).unwrap_err().to_string();
        assert!(error(&["--relay=listen:127.0.0.1:7443"]).contains("--pin KEY"));
        assert!(error(&["--relay=listen:0.0.0.0:7443", "--pin", &key]).contains("--expose"));
        assert!(
            error(&["--relay=listen:[::1]:7443", "--pin=abc"]).starts_with("invalid --pin: a key has 64")
        );
        let pin = |arguments: &[&str]| options(arguments, None).network.pin.map(|pin| pin.to_string());
        assert_eq!(pin(&["--relay=listen:127.0.0.1:7443", "--pin", &key]), Some(key.clone()));
        assert_eq!(pin(&["--relay=listen:0.0.0.0:7443", "--expose", "--pin", &key]), Some(key.clone()));
        assert!(error(&["--relay=listen:vsock:7443"]).contains("--pin KEY"));
        assert_eq!(pin(&["--relay=listen:vsock:7443", "--pin", &key]), Some(key));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_proxy_on_the_command_line_overrides_the_environment() {
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
            |proxies: Proxies| proxies.proxy_for(&target).unwrap().map(|proxy| proxy.address.to_string());
        assert_eq!(towards(options(&[]).network.proxies), None);
        assert_eq!(towards(options(&["--proxy=http://given:2"]).network.proxies), Some("given:2".into()));
        let error = parsed(&["--proxy", "socks5://u:hunter2@h:1"], None).unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid --proxy: only proxies with `http://` can be used, this one has `socks5://`"
        );
    }
}
