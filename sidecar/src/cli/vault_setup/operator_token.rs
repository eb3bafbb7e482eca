//! The operator's own Vault token: from the environment, from the file of Vault's command line, or typed.
//!
//! What must stay true: the token is never an argument; it is sent to the configured Vault only, and not at all if the
//! environment says that it belongs to another one.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use cofferdam_base::text::error_chain;
use cofferdam_secrets::{FileContent, SourceError, read_file};
use cofferdam_vault::{Address, Settings, Token};
use zeroize::Zeroizing;

use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::prompt;

/// The variables of Vault's and OpenBao's command lines: the token, and the address that it belongs to.
const VARIABLES: [(&str, &str); 2] = [("VAULT_TOKEN", "VAULT_ADDR"), ("BAO_TOKEN", "BAO_ADDR")];
/// Where both command lines store the token of a login, below the home directory.
const TOKEN_FILE: &str = ".vault-token";
const MAX_FILE_BYTES: usize = 64 * 1024;
const HINT: &str =
    "set VAULT_TOKEN or BAO_TOKEN to a token that may change Vault, or log in with `bao login`";

/// A token, and where it comes from.
pub(in crate::cli) struct OperatorToken {
    pub(in crate::cli) token: Token,
    pub(in crate::cli) source: String,
}

/// Looks for a token, and asks for one if there is none.
pub(in crate::cli) fn read(settings: &Settings) -> Result<OperatorToken, Failure> {
    if let Some(found) = find(settings)? {
        return Ok(found);
    }
    let typed = prompt::read_hidden("Vault token of an operator (it is not shown): ");
    match typed.map_err(|error| Failure::new(Sysexit::NoInput, format!("no token was given: {error}")))? {
        Some(typed) => token(&typed, "what was typed".to_owned()),
        None => Err(missing("there is no Vault token of an operator, and no terminal to ask for one")),
    }
}

/// The token in the environment or in the file. Asks nothing.
pub(in crate::cli) fn find(settings: &Settings) -> Result<Option<OperatorToken>, Failure> {
    for (variable, address_variable) in VARIABLES {
        let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else { continue };
        check_address(settings, variable, address_variable, std::env::var_os(address_variable))?;
        let source = format!("the environment variable {variable}");
        return token(&Zeroizing::new(value.into_vec()), source).map(Some);
    }
    if let Some(home) = std::env::var_os("HOME") {
        let file = PathBuf::from(home).join(TOKEN_FILE);
        match read_file(&file, MAX_FILE_BYTES, FileContent::Secret) {
            Ok(content) => return token(&content, format!("the file `{}`", file.display())).map(Some),
            Err(SourceError::Read(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!("cannot read the token in `{}`: {}", file.display(), error_chain(&error));
                return Err(Failure::new(Sysexit::NoInput, what).hint(HINT));
            }
        }
    }
    Ok(None)
}

pub(in crate::cli) fn missing(what: &str) -> Failure {
    Failure::new(Sysexit::NoInput, what).hint(HINT)
}

/// A token of another Vault would be sent to a server that it is not for.
fn check_address(
    settings: &Settings,
    variable: &str,
    address_variable: &str,
    address: Option<OsString>,
) -> Result<(), Failure> {
    let Some(address) = address.filter(|address| !address.is_empty()) else { return Ok(()) };
    let configured = settings.address.to_string();
    let same = |text: &str| match (text.parse::<Address>(), configured.parse::<Address>()) {
        (Ok(one), Ok(other)) => one.to_string() == other.to_string(),
        _ => false,
    };
    match address.to_str().is_some_and(same) {
        true => Ok(()),
        false => {
            let what = format!(
                "{variable} is not used: {address_variable} is another address than `address` in [vault], {configured}"
            );
            let hint = format!(
                "unset {address_variable} if the token is for the configured Vault, or set it to that address"
            );
            Err(Failure::new(Sysexit::Configuration, what).hint(hint))
        }
    }
}

fn token(content: &[u8], source: String) -> Result<OperatorToken, Failure> {
    match Token::read(content) {
        Ok(token) => Ok(OperatorToken { token, source }),
        Err(error) => {
            let what = format!("the token from {source} cannot be used: {error}");
            Err(Failure::new(Sysexit::NoInput, what).hint(HINT))
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_vault::AuthSettings;

    use super::*;

    #[test]
    fn a_token_of_another_vault_is_not_used() {
        let settings = Settings {
            address: "http://127.0.0.1:8200".parse().unwrap(),
            namespace: None,
            ca_file: None,
            auth: AuthSettings::TokenFile { path: "/run/token".into() },
            token_role: None,
        };
        let check = |address: Option<&str>| {
            check_address(&settings, "VAULT_TOKEN", "VAULT_ADDR", address.map(OsString::from)).is_ok()
        };
        assert!(check(None) && check(Some("")));
        assert!(check(Some("http://127.0.0.1:8200")) && check(Some("http://127.0.0.1:8200/")));
        assert!(!check(Some("https://127.0.0.1:8200")) && !check(Some("http://127.0.0.1:8300")));
        assert!(!check(Some("nonsense")));
    }
}
