//! Where a sidecar is, in one grammar for every kind of sandbox.
//!
//! Kinds that this version does not speak yet are still recognised, so that nobody takes one for a typing error.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// `unix:PATH`, `fd:N`; the other kinds of the grammar are known and refused by name until they are built.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Address {
    /// A connected stream socket that the shim inherits. It cannot be connected again.
    Fd(i32),
    Unix(PathBuf),
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAddress {
    #[error("`{0}` is not a descriptor: use a number from 3 up, the others are the harness's")]
    Descriptor(String),
    #[error("`{0}` links are not in this version: use `unix:PATH` or `fd:N`")]
    NotInThisVersion(&'static str),
    #[error("`{0}` is not a link: use `unix:PATH` or `fd:N`")]
    Unknown(String),
    #[error("`unix:` needs a path of 1 to {MAX_UNIX_PATH} bytes, this one has {0}")]
    UnixPath(usize),
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match (1..=MAX_UNIX_PATH).contains(&path.len()) && !path.contains('\0') {
                true => Ok(Self::Unix(path.into())),
                false => Err(InvalidAddress::UnixPath(path.len())),
            };
        }
        if let Some(number) = text.strip_prefix("fd:") {
            let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            return match number.parse() {
                Ok(descriptor @ 3..) if digits => Ok(Self::Fd(descriptor)),
                _ => Err(InvalidAddress::Descriptor(number.into())),
            };
        }
        Err(match LATER.into_iter().find(|kind| text.starts_with(kind)) {
            Some(kind) => InvalidAddress::NotInThisVersion(kind),
            None => InvalidAddress::Unknown(text.into()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fd(descriptor) => write!(f, "fd:{descriptor}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The kernel's `sun_path` has 108 bytes, the last of them a NUL.
const MAX_UNIX_PATH: usize = 107;
const LATER: [&str; 4] = ["tls://", "wss://", "vsock:", "listen:"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spoken_is_read_and_written_the_same() {
        for text in ["unix:/run/cofferdam/relay/relay.sock", "unix:relative.sock", "fd:3", "fd:17"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_comes_later_is_refused_by_name() {
        for (text, kind) in [
            ("tls://host:1", "tls://"),
            ("wss://host/path", "wss://"),
            ("vsock:2:5", "vsock:"),
            ("listen:127.0.0.1:1", "listen:"),
        ] {
            assert_eq!(text.parse::<Address>(), Err(InvalidAddress::NotInThisVersion(kind)));
        }
    }

    #[test]
    fn the_rest_is_refused() {
        for text in ["", "unix", "/run/relay.sock", "http://x", "UNIX:/x"] {
            assert_eq!(text.parse::<Address>(), Err(InvalidAddress::Unknown(text.into())));
        }
        for number in ["", "2", "0", "-1", "+3", "3x", "99999999999"] {
            assert_eq!(
                format!("fd:{number}").parse::<Address>(),
                Err(InvalidAddress::Descriptor(number.into()))
            );
        }
        assert_eq!("unix:".parse::<Address>(), Err(InvalidAddress::UnixPath(0)));
        assert_eq!(
            format!("unix:{}", "x".repeat(108)).parse::<Address>(),
            Err(InvalidAddress::UnixPath(108))
        );
        assert_eq!("unix:a\0b".parse::<Address>(), Err(InvalidAddress::UnixPath(3)));
    }
}
