//! npm's settings: `.npmrc` of the user and of the machine, and variables such as `npm_config_registry`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_secrets::Secret;
use zeroize::Zeroizing;

use super::{RegistrySettings, SettingsError, Surroundings, host, read};
use crate::ini::lines;

const TOOL: &str = "npm";
const REGISTRY: &str = "registry";
const DEFAULT: &str = "https://npm-registry.invalid/";
/// Of a scope's own registry: `@scope:registry`.
const OF_SCOPE: &str = ":registry";
/// Of a registry, as in `//registry.example.com/:_authToken`.
const CREDENTIALS: [&str; 4] = ["_authToken", "_auth", "username", "_password"];

/// Reads what the npm of this user would use. `node` is the program, beside which npm has the machine's settings.
pub(crate) fn npm_settings(
    surroundings: &Surroundings<'_>,
    node: &Path,
) -> Result<RegistrySettings, SettingsError> {
    let mut settings: BTreeMap<String, Zeroizing<String>> = BTreeMap::new();
    for file in files(surroundings, node) {
        let Some(text) = read(TOOL, &file)? else { continue };
        for (_, key, value) in lines(&text) {
            settings.insert(key.to_owned(), expanded(unquoted(value), surroundings));
        }
    }
    for key in [REGISTRY, "cafile"] {
        let names = [format!("npm_config_{key}"), format!("NPM_CONFIG_{}", key.to_uppercase())];
        if let Some(value) = names.iter().find_map(|name| surroundings.text(name)) {
            settings.insert(key.to_owned(), Zeroizing::new(value));
        }
    }
    settings.entry(REGISTRY.to_owned()).or_insert_with(|| Zeroizing::new(DEFAULT.to_owned()));
    let is_registry = |key: &str| key == REGISTRY || (key.starts_with('@') && key.ends_with(OF_SCOPE));
    let registries: Vec<(String, String)> = settings
        .iter()
        .filter(|(key, _)| is_registry(key))
        .map(|(key, address)| (key.clone(), address.to_string()))
        .collect();
    let mut hosts = Vec::new();
    for (key, address) in &registries {
        hosts.push(host(TOOL, key, address)?);
    }
    let plain = registries.iter().map(|(key, address)| (variable_name(key), address.clone())).collect();
    let secret = |value: &Zeroizing<String>| Secret::new(Zeroizing::new(value.as_bytes().to_vec()));
    let credentials = settings
        .iter()
        .filter(|(key, _)| is_credential_of(key, &registries))
        .map(|(key, value)| (variable_name(key), secret(value)))
        .collect();
    let certificates = settings.get("cafile").map(|path| PathBuf::from(path.as_str()));
    Ok(RegistrySettings {
        hosts,
        plain,
        credentials,
        certificates: certificates.filter(|path| path.is_absolute()),
    })
}

/// npm takes every setting from the environment too.
fn variable_name(key: &str) -> OsString {
    format!("npm_config_{key}").into()
}

/// From the least to the most important.
fn files(surroundings: &Surroundings<'_>, node: &Path) -> Vec<PathBuf> {
    let prefix = node.parent().and_then(Path::parent).map(|prefix| prefix.join("etc/npmrc"));
    let named = |names: [&str; 2]| names.iter().find_map(|name| surroundings.text(name)).map(PathBuf::from);
    let of_machine = named(["npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG"]).or(prefix);
    let of_user = named(["npm_config_userconfig", "NPM_CONFIG_USERCONFIG"])
        .or_else(|| surroundings.home().map(|home| home.join(".npmrc")));
    of_machine.into_iter().chain(of_user).collect()
}

/// Whether a key is a credential of one of these registries. npm gives it for an address and all that are below it.
fn is_credential_of(key: &str, registries: &[(String, String)]) -> bool {
    let Some((place, name)) = key.rsplit_once(':') else { return false };
    let is_above = |address: &str| {
        let address = address.split_once(':').map_or(address, |(_, rest)| rest);
        let (address, place) = (address.trim_end_matches('/'), place.trim_end_matches('/'));
        address == place || address.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
    };
    place.starts_with("//")
        && CREDENTIALS.contains(&name)
        && registries.iter().any(|(_, address)| is_above(address))
}

/// npm replaces `${NAME}` by the variable, and leaves it where there is none.
fn expanded(value: &str, surroundings: &Surroundings<'_>) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(value.len()));
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        let replacement = surroundings.text(name).map(Zeroizing::new);
        // Made anew, because a string that grows leaves a copy that is not wiped.
        let joined = match &replacement {
            Some(replacement) => [text.as_str(), before, replacement].concat(),
            None => [text.as_str(), before, "${", name, "}"].concat(),
        };
        text = Zeroizing::new(joined);
        rest = behind;
    }
    Zeroizing::new([text.as_str(), rest].concat())
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(npmrc: &str, variables: &[(&str, &str)]) -> Result<RegistrySettings, SettingsError> {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".npmrc"), npmrc).unwrap();
        let variable = |name: &str| match name {
            "HOME" => Some(home.path().into()),
            _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)),
        };
        npm_settings(&Surroundings { variable: &variable }, Path::new("/nonexistent/bin/node"))
    }

    fn hosts(settings: &RegistrySettings) -> Vec<String> {
        settings.hosts.iter().map(ToString::to_string).collect()
    }

    fn variables(settings: &RegistrySettings) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let variables = settings.variables().into_iter();
        let mut variables: Vec<_> =
            variables.map(|(name, value)| (name.into_string().unwrap(), text(&value))).collect();
        variables.sort();
        variables
    }

    #[test]
    fn without_settings_it_is_the_public_registry() {
        let settings = settings("", &[]).unwrap();
        assert_eq!(hosts(&settings), ["npm-registry.invalid:443"]);
        assert!(settings.credentials.is_empty());
    }

    #[test]
    fn registries_and_their_own_credentials_are_taken_and_others_are_not() {
        let npmrc = "; comment\nregistry = https://npm.example.com/api/\n@corp:registry=http://10.0.0.5:4873\n\
                     //npm.example.com/:_authToken=${TOKEN}\n//other.example.com/:_authToken=of-another-registry\n\
                     //npm.example.com/api/:email=someone\n//npm.example.com.evil.example/:_authToken=x\n\
                     cafile=\"/etc/corp.pem\"\n_authToken=old-and-for-all\n";
        let settings = settings(npmrc, &[("TOKEN", "npm-secret-token")]).unwrap();
        assert_eq!(hosts(&settings), ["10.0.0.5:4873", "npm.example.com:443"]);
        let expected = [
            ("npm_config_//npm.example.com/:_authToken", "npm-secret-token"),
            ("npm_config_@corp:registry", "http://10.0.0.5:4873"),
            ("npm_config_registry", "https://npm.example.com/api/"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables(&settings), expected);
        assert_eq!(settings.certificates.as_deref(), Some(Path::new("/etc/corp.pem")));
        assert!(settings.occur_in(b"a line with npm-secret-token in it"));
        assert!(!format!("{settings:?}").contains("npm-secret-token"));
    }

    #[test]
    fn variables_come_before_files() {
        let settings =
            settings("registry=https://a.example/", &[("NPM_CONFIG_REGISTRY", "http://localhost:4873/")]);
        assert_eq!(hosts(&settings.unwrap()), ["localhost:4873"]);
    }

    #[test]
    fn an_address_that_is_none_is_named_by_its_key_alone() {
        for address in ["file:///srv/npm", "secret-in-the-wrong-place", "https://"] {
            let error = settings(&format!("registry={address}"), &[]).unwrap_err().to_string();
            assert!(error.contains("`registry`") && !error.contains(address), "{error}");
        }
    }
}
