//! DNS names, checked and in one spelling.
//!
//! What must stay true: a name is in lower case and without a trailing dot, and no parser anywhere reads it as an address.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name that fits into a DNS message.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct HostName(Arc<str>);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum InvalidName {
    #[error("the name has a character that no host name has: `{}`", .0.escape_default())]
    Character(char),
    #[error("the name is not ASCII; write it in its `xn--` form (punycode)")]
    International,
    #[error(
        "the name has a part that is empty, longer than {MAX_LABEL} characters, or begins or ends with a hyphen"
    )]
    Label,
    #[error(
        "the name ends in a number, which some programs read as an address; write an IPv4 address as `10.0.0.5`"
    )]
    Number,
    #[error("the name is longer than {MAX_NAME} characters")]
    TooLong,
}

impl HostName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name has further labels before those of `domain`.
    pub(crate) fn is_below(&self, domain: &Self) -> bool {
        self.0.strip_suffix(&*domain.0).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }

    pub(crate) fn labels(&self) -> usize {
        self.0.split('.').count()
    }

    /// Whether it is `localhost` or below it: names of the machine itself, on every machine.
    pub(crate) fn is_localhost(&self) -> bool {
        self.0.rsplit('.').next() == Some("localhost")
    }
}

impl FromStr for HostName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if !text.is_ascii() {
            return Err(InvalidName::International);
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.len() > MAX_NAME {
            return Err(InvalidName::TooLong);
        }
        // Not in the standard for host names, but in use inside companies and containers: the underscore.
        if let Some(character) = name.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.'))
        {
            return Err(InvalidName::Character(character));
        }
        let is_label = |label: &str| {
            (1..=MAX_LABEL).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
        };
        if !name.split('.').all(is_label) {
            return Err(InvalidName::Label);
        }
        // The rule of the URL standard: `127.1`, `0x7f.1` and `2130706433` are addresses for many programs.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match is_number {
            true => Err(InvalidName::Number),
            false => Ok(Self(name.into())),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        for (text, name) in [
            ("API.GitHub.com", "api.github.com"),
            ("api.github.com.", "api.github.com"),
            ("db", "db"),
            ("my_db.internal", "my_db.internal"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("1password.com", "1password.com"),
            ("a.0xg", "a.0xg"),
        ] {
            assert_eq!(text.parse::<HostName>().map(|parsed| parsed.to_string()).as_deref(), Ok(name));
        }
    }

    #[test]
    fn what_is_no_name_says_why() {
        let long_label = "a".repeat(MAX_LABEL + 1);
        let long_name = ["a".repeat(MAX_LABEL).as_str(); 4].join(".");
        for (text, problem) in [
            ("", InvalidName::Label),
            (".", InvalidName::Label),
            ("a..b", InvalidName::Label),
            ("a.b..", InvalidName::Label),
            (".a", InvalidName::Label),
            ("-a.b", InvalidName::Label),
            ("a-.b", InvalidName::Label),
            (&long_label, InvalidName::Label),
            (&long_name, InvalidName::TooLong),
            ("a b", InvalidName::Character(' ')),
            ("a%2e", InvalidName::Character('%')),
            ("a*.b", InvalidName::Character('*')),
            ("a\0.b", InvalidName::Character('\0')),
            ("bücher.example", InvalidName::International),
            ("api。github.com", InvalidName::International),
            ("127.1", InvalidName::Number),
            ("0x7f.1", InvalidName::Number),
            ("0x7f000001", InvalidName::Number),
            ("0X7F000001", InvalidName::Number),
            ("a.0x", InvalidName::Number),
            ("2130706433", InvalidName::Number),
            ("a.017", InvalidName::Number),
            ("10.0.0.256", InvalidName::Number),
        ] {
            assert_eq!(text.parse::<HostName>(), Err(problem), "{text}");
        }
    }

    #[test]
    fn a_name_is_below_a_domain_by_whole_labels() {
        let below =
            |name: &str, domain: &str| name.parse::<HostName>().unwrap().is_below(&domain.parse().unwrap());
        assert!(below("s3.amazonaws.com", "amazonaws.com"));
        assert!(below("bucket.s3.amazonaws.com", "amazonaws.com"));
        assert!(!below("amazonaws.com", "amazonaws.com"));
        assert!(!below("evil-amazonaws.com", "amazonaws.com"));
        assert!(!below("amazonaws.com.evil.example", "amazonaws.com"));
    }
}
