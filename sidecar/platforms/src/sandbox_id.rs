//! The id of a sandbox on its platform.

use std::fmt;
use std::str::FromStr;

use crate::PlatformError;
use crate::redactor::Redactor;

/// Letters, digits, `-` and `_`: safe as one segment of a URL's path and as a part of a host name.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SandboxId(String);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is not the id of a sandbox: letters, digits, `-` and `_`, at most {MAX_LENGTH} characters")]
pub struct InvalidSandboxId(String);

const MAX_LENGTH: usize = 128;

impl FromStr for SandboxId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match (1..=MAX_LENGTH).contains(&text.len()) && text.bytes().all(is_allowed) {
            true => Ok(Self(text.to_owned())),
            // Shortened and escaped, because the text may be long or binary.
            false => Err(InvalidSandboxId(text.chars().take(40).flat_map(char::escape_debug).collect())),
        }
    }
}

impl SandboxId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares this id with the one that the platform reports for the sandbox: some platforms also find a sandbox by its name
    /// or by a longer form of its id.
    pub(crate) fn check_reported(
        &self,
        action: &'static str,
        reported: Option<&str>,
        redactor: &Redactor,
    ) -> Result<(), PlatformError> {
        match reported.filter(|reported| *reported != self.0) {
            None => Ok(()),
            Some(other) => {
                let id = redactor.printable(other);
                Err(PlatformError::OtherId { action, given: self.0.clone(), id })
            }
        }
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_change_the_path_or_the_host_of_a_url() {
        for good in ["i4x9k2", "a-b_C9", "0f1b2c3d-aaaa-bbbb-cccc-000000000000"] {
            assert_eq!(good.parse::<SandboxId>().unwrap().as_str(), good);
        }
        for bad in
            ["", "..", "a/b", "a.b", "a b", "a%2fb", "ä", "a\n", "a?b", "a#b", "a@b", "a:b", &"x".repeat(129)]
        {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad}");
        }
    }
}
