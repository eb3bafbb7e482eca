//! The words after `servers`, `tools` and `call`.

use relay_proto::name::{InvalidName, Name};

/// What the client is to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClientCommand {
    Call {
        server: Name,
        tool: String,
        arguments: ArgumentSource,
    },
    Servers,
    /// Of one server, or of all that are granted.
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

/// Which command, before its words were read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ClientVerb {
    Call,
    Servers,
    Tools,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ClientUsageError {
    #[error(
        "read the command line: `call` needs a server and a tool: cofferdam-shim call SERVER TOOL [JSON|-]"
    )]
    CallWords,
    #[error("read the command line: `{0}` is one word too many")]
    ExtraWord(String),
    #[error("read the server's name: {0}")]
    Server(#[from] InvalidName),
    #[error("read the command line: the tool's name is empty")]
    Tool,
}

impl ClientVerb {
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word {
            "call" => Some(Self::Call),
            "servers" => Some(Self::Servers),
            "tools" => Some(Self::Tools),
            _ => None,
        }
    }

    pub(crate) fn with_words(self, words: Vec<String>) -> Result<ClientCommand, ClientUsageError> {
        let mut words = words.into_iter();
        let command = match self {
            Self::Call => {
                let (Some(server), Some(tool)) = (words.next(), words.next()) else {
                    return Err(ClientUsageError::CallWords);
                };
                if tool.is_empty() {
                    return Err(ClientUsageError::Tool);
                }
                let arguments = match words.next() {
                    None => ArgumentSource::None,
                    Some(word) if word == "-" => ArgumentSource::Stdin,
                    Some(text) => ArgumentSource::Given(text),
                };
                ClientCommand::Call { server: server.parse()?, tool, arguments }
            }
            Self::Servers => ClientCommand::Servers,
            Self::Tools => {
                ClientCommand::Tools { server: words.next().map(|name| name.parse()).transpose()? }
            }
        };
        match words.next() {
            Some(extra) => Err(ClientUsageError::ExtraWord(extra)),
            None => Ok(command),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(verb: ClientVerb, words: &[&str]) -> Result<ClientCommand, String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        verb.with_words(words).map_err(|error| error.to_string())
    }

    #[test]
    fn words_become_commands() {
        assert_eq!(read(ClientVerb::Servers, &[]), Ok(ClientCommand::Servers));
        assert_eq!(read(ClientVerb::Tools, &[]), Ok(ClientCommand::Tools { server: None }));
        assert_eq!(
            read(ClientVerb::Tools, &["github"]),
            Ok(ClientCommand::Tools { server: "github".parse().ok() })
        );
        let call = |arguments: ArgumentSource| {
            Ok(ClientCommand::Call { server: "github".parse().unwrap(), tool: "Get Me".into(), arguments })
        };
        assert_eq!(read(ClientVerb::Call, &["github", "Get Me"]), call(ArgumentSource::None));
        assert_eq!(read(ClientVerb::Call, &["github", "Get Me", "-"]), call(ArgumentSource::Stdin));
        assert_eq!(
            read(ClientVerb::Call, &["github", "Get Me", "{}"]),
            call(ArgumentSource::Given("{}".into()))
        );
    }

    #[test]
    fn wrong_words_are_refused_with_a_reason() {
        let error = |verb, words: &[&str]| read(verb, words).unwrap_err();
        assert!(error(ClientVerb::Call, &["github"]).contains("call SERVER TOOL [JSON|-]"));
        assert!(error(ClientVerb::Call, &["A B", "tool"]).starts_with("read the server's name: `A B`"));
        assert!(error(ClientVerb::Call, &["github", ""]).contains("name is empty"));
        assert!(error(ClientVerb::Call, &["a", "b", "{}", "c"]).contains("`c` is one word too many"));
        assert!(error(ClientVerb::Servers, &["a"]).contains("`a` is one word too many"));
        assert!(error(ClientVerb::Tools, &["a", "b"]).contains("`b` is one word too many"));
    }
}
