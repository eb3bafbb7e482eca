//! The environment of a server: those of the sidecar's variables that are on an allow-list, and the injected variables.
//!
//! What must stay true: a server gets no variable of the sidecar that is not on the list. Proxy variables are not on it
//! (their URLs may contain passwords), nor is any variable that names a socket or agent of the user.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use zeroize::Zeroizing;

/// A name and its value, which may be secret.
pub type Variable = (OsString, Zeroizing<Vec<u8>>);

/// Variables for the user, the paths of programs and temporary files, the language and the time zone.
const ALLOWED: [&str; 10] =
    ["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];
/// `LC_ALL`, `LC_CTYPE` and the like.
const ALLOWED_PREFIX: &[u8] = b"LC_";

#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum InvalidEnvironment {
    #[error("`{}` cannot be the name of an environment variable: it is empty or contains `=` or NUL", .0.display())]
    Name(OsString),
    #[error("the environment variable `{}` is given twice", .0.display())]
    Duplicate(OsString),
    #[error("the value for the environment variable `{}` contains a NUL byte", .0.display())]
    Value(OsString),
}

/// The allowed variables of the sidecar, and the injected variables, which take precedence.
pub fn allowed_environment(injected: Vec<Variable>) -> Vec<Variable> {
    overlay(std::env::vars_os(), injected)
}

pub(super) fn check_environment(environment: &[Variable]) -> Result<(), InvalidEnvironment> {
    let mut names = std::collections::BTreeSet::new();
    for (name, value) in environment {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.contains(&b'=') || bytes.contains(&0) {
            return Err(InvalidEnvironment::Name(name.clone()));
        }
        if value.contains(&0) {
            return Err(InvalidEnvironment::Value(name.clone()));
        }
        if !names.insert(name) {
            return Err(InvalidEnvironment::Duplicate(name.clone()));
        }
    }
    Ok(())
}

fn overlay(inherited: impl Iterator<Item = (OsString, OsString)>, injected: Vec<Variable>) -> Vec<Variable> {
    let replaced = |name: &OsStr| injected.iter().any(|(other, _)| other == name);
    let mut environment: Vec<Variable> = inherited
        .filter(|(name, _)| is_allowed(name) && !replaced(name))
        .map(|(name, value)| (name, Zeroizing::new(value.into_vec())))
        .collect();
    environment.extend(injected);
    environment
}

fn is_allowed(name: &OsStr) -> bool {
    ALLOWED.iter().any(|allowed| *allowed == name) || name.as_bytes().starts_with(ALLOWED_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, value: &str) -> Variable {
        (name.into(), Zeroizing::new(value.into()))
    }

    #[test]
    fn only_allowed_variables_pass_and_injected_ones_take_precedence() {
        let inherited = [
            ("PATH", "/bin"),
            ("LC_TIME", "C"),
            ("HOME", "/home/a"),
            ("GITHUB_TOKEN", "ghp_x"),
            ("HTTPS_PROXY", "http://user:pass@proxy"),
            ("SSH_AUTH_SOCK", "/run/agent"),
            ("XLC_TIME", "C"),
        ];
        let inherited = inherited.into_iter().map(|(name, value)| (name.into(), value.into()));
        let environment = overlay(inherited, vec![variable("HOME", "/elsewhere"), variable("TOKEN", "t")]);
        let expected = [("PATH", "/bin"), ("LC_TIME", "C"), ("HOME", "/elsewhere"), ("TOKEN", "t")];
        assert_eq!(environment, expected.map(|(name, value)| variable(name, value)));
    }

    #[test]
    fn invalid_and_duplicate_variables_are_refused() {
        assert_eq!(check_environment(&[variable("A=B", "x")]), Err(InvalidEnvironment::Name("A=B".into())));
        assert_eq!(check_environment(&[variable("", "x")]), Err(InvalidEnvironment::Name("".into())));
        assert_eq!(check_environment(&[variable("A", "x\0y")]), Err(InvalidEnvironment::Value("A".into())));
        assert_eq!(
            check_environment(&[variable("A", "x"), variable("A", "y")]),
            Err(InvalidEnvironment::Duplicate("A".into()))
        );
        assert_eq!(check_environment(&[variable("A", ""), variable("B", "x=y\n")]), Ok(()));
    }
}
