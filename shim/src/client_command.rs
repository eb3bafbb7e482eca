//! Parses the command-line arguments of `servers`, `tools` and `call`.

use relay_proto::name::{InvalidName, Name};

/// A command of the client, with its arguments.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClientCommand {
    Call {
        server: Name,
        tool: String,
        arguments: ArgumentSource,
    },
    Servers,
    /// Lists the tools of one server, or of all granted servers.
    Tools {
        server: Option<Name>,
    },
}

/// Where the arguments of a call come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ArgumentSource {
    Given(String),
    None,
    Stdin,
}

/// Which command it is, before its arguments are parsed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ClientVerb {
    Call,
    Servers,
    Tools,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ClientUsageError {
    #[error("`call` needs a server and a tool: cofferdam-shim call SERVER TOOL [JSON|-]")]
    MissingArguments,
    #[error("unexpected argument `{0}`")]
    UnexpectedArgument(String),
    #[error("invalid server name: {0}")]
    InvalidServerName(#[from] InvalidName),
    #[error("the tool's name is empty")]
    EmptyToolName,
}

impl ClientVerb {
    pub(crate) fn from_argument(argument: &str) -> Option<Self> {
        match argument {
            "call" => Some(Self::Call),
            "servers" => Some(Self::Servers),
            "tools" => Some(Self::Tools),
            _ => None,
        }
    }

    pub(crate) fn parse_arguments(self, arguments: Vec<String>) -> Result<ClientCommand, ClientUsageError> {
        let mut arguments = arguments.into_iter();
        let command = match self {
            Self::Call => {
                let (Some(server), Some(tool)) = (arguments.next(), arguments.next()) else {
                    return Err(ClientUsageError::MissingArguments);
                };
                if tool.is_empty() {
                    return Err(ClientUsageError::EmptyToolName);
                }
                let source = match arguments.next() {
                    None => ArgumentSource::None,
                    Some(text) if text == "-" => ArgumentSource::Stdin,
                    Some(text) => ArgumentSource::Given(text),
                };
                ClientCommand::Call { server: server.parse()?, tool, arguments: source }
            }
            Self::Servers => ClientCommand::Servers,
            Self::Tools => {
                ClientCommand::Tools { server: arguments.next().map(|name| name.parse()).transpose()? }
            }
        };
        match arguments.next() {
            Some(extra) => Err(ClientUsageError::UnexpectedArgument(extra)),
            None => Ok(command),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(verb: ClientVerb, arguments: &[&str]) -> Result<ClientCommand, String> {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        verb.parse_arguments(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_become_commands() {
        assert_eq!(parse(ClientVerb::Servers, &[]), Ok(ClientCommand::Servers));
        assert_eq!(parse(ClientVerb::Tools, &[]), Ok(ClientCommand::Tools { server: None }));
        assert_eq!(
            parse(ClientVerb::Tools, &["github"]),
            Ok(ClientCommand::Tools { server: "github".parse().ok() })
        );
        let call = |arguments: ArgumentSource| {
            Ok(ClientCommand::Call { server: "github".parse().unwrap(), tool: "Get Me".into(), arguments })
        };
        assert_eq!(parse(ClientVerb::Call, &["github", "Get Me"]), call(ArgumentSource::None));
        assert_eq!(parse(ClientVerb::Call, &["github", "Get Me", "-"]), call(ArgumentSource::Stdin));
        assert_eq!(
            parse(ClientVerb::Call, &["github", "Get Me", "{}"]),
            call(ArgumentSource::Given("{}".into()))
        );
    }

    #[test]
    fn wrong_arguments_are_refused_with_a_reason() {
        let error = |verb, arguments: &[&str]| parse(verb, arguments).unwrap_err();
        assert!(error(ClientVerb::Call, &["github"]).contains("call SERVER TOOL [JSON|-]"));
        assert!(error(ClientVerb::Call, &["A B", "tool"]).starts_with("invalid server name: `A B`"));
        assert!(error(ClientVerb::Call, &["github", ""]).contains("name is empty"));
        assert!(error(ClientVerb::Call, &["a", "b", "{}", "c"]).contains("unexpected argument `c`"));
        assert!(error(ClientVerb::Servers, &["a"]).contains("unexpected argument `a`"));
        assert!(error(ClientVerb::Tools, &["a", "b"]).contains("unexpected argument `b`"));
    }
}
