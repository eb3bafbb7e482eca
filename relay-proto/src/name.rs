//! Names that were validated when they were parsed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a server, grant or secret: 1 to 64 of `a-z`, `0-9`, `-`, `_`, beginning with a letter or digit.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Box<str>);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is not a name: use 1 to 64 of a-z, 0-9, `-` and `_`, beginning with a letter or digit")]
pub struct InvalidName(pub String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let first_is_allowed = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        match (1..=64).contains(&text.len()) && first_is_allowed && text.bytes().all(is_allowed) {
            true => Ok(Self(text.into())),
            false => Err(InvalidName(text.into())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
