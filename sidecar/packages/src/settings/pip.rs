//! pip's settings: `pip.conf` of the machine and of the user, and variables such as `PIP_INDEX_URL`.

use std::path::PathBuf;

use cofferdam_secrets::Secret;
use zeroize::Zeroizing;

use super::{RegistrySettings, SettingsError, Surroundings, host, read};
use crate::ini::lines;

const TOOL: &str = "pip";
const DEFAULT: &str = "https://python-index.invalid/simple";
/// The public index keeps its files at another host.
const FILES_OF_DEFAULT: &str = "https://files.python-index.invalid/";
const INDEX: &str = "index-url";
const VARIABLE: &str = "PIP_INDEX_URL";

/// Reads what the pip of this user would use. A second index (`extra-index-url`) is not used: the same name at two indexes may be
/// two packages.
pub(crate) fn pip_settings(surroundings: &Surroundings<'_>) -> Result<RegistrySettings, SettingsError> {
    let mut index = Zeroizing::new(DEFAULT.to_owned());
    let mut certificates = None;
    for file in files(surroundings) {
        let Some(text) = read(TOOL, &file)? else { continue };
        // `[install]` is more important than `[global]`, wherever it is in the file.
        for section in ["global", "install"] {
            for (_, key, value) in lines(&text).filter(|(name, _, _)| *name == section) {
                match key.replace('_', "-").as_str() {
                    INDEX => index = Zeroizing::new(value.to_owned()),
                    "cert" => certificates = Some(PathBuf::from(value)),
                    _ => {}
                }
            }
        }
    }
    if let Some(value) = surroundings.text(VARIABLE) {
        index = Zeroizing::new(value);
    }
    if let Some(value) = surroundings.text("PIP_CERT") {
        certificates = Some(value.into());
    }
    let mut hosts = vec![host(TOOL, INDEX, &index)?];
    if index.trim_end_matches('/') == DEFAULT {
        hosts.push(host(TOOL, INDEX, FILES_OF_DEFAULT)?);
    }
    let authority =
        index.split_once("://").map_or("", |(_, rest)| rest).split('/').next().unwrap_or_default();
    let (plain, credentials) = match authority.contains('@') {
        true => (Vec::new(), vec![(VARIABLE.into(), Secret::new(Zeroizing::new(index.as_bytes().to_vec())))]),
        false => (vec![(VARIABLE.into(), index.to_string())], Vec::new()),
    };
    Ok(RegistrySettings {
        hosts,
        plain,
        credentials,
        certificates: certificates.filter(|path| path.is_absolute()),
    })
}

/// From the least to the most important.
fn files(surroundings: &Surroundings<'_>) -> Vec<PathBuf> {
    let named = surroundings.text("PIP_CONFIG_FILE").map(PathBuf::from);
    // pip's own way to say that it has no settings.
    if named.as_deref().is_some_and(|path| path == std::path::Path::new("/dev/null")) {
        return Vec::new();
    }
    let of_machine = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf"].map(PathBuf::from);
    let home = surroundings.home();
    let configuration = surroundings.text("XDG_CONFIG_HOME").map(PathBuf::from);
    let configuration = configuration.or_else(|| home.as_ref().map(|home| home.join(".config")));
    let of_user = home.map(|home| home.join(".pip/pip.conf"));
    let of_user = of_user.into_iter().chain(configuration.map(|directory| directory.join("pip/pip.conf")));
    of_machine.into_iter().chain(of_user).chain(named).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// With a settings file that stands after all others, so that those of this machine do not matter.
    fn settings(conf: &str, variables: &[(&str, &str)]) -> Result<RegistrySettings, SettingsError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pip.conf");
        std::fs::write(&file, conf).unwrap();
        let variable = |name: &str| match name {
            "PIP_CONFIG_FILE" => Some(file.clone().into()),
            _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)),
        };
        pip_settings(&Surroundings { variable: &variable })
    }

    fn hosts(settings: &RegistrySettings) -> Vec<String> {
        settings.hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_public_index_has_its_files_at_another_host() {
        let settings = settings("[global]\nindex-url = https://python-index.invalid/simple/\n", &[]).unwrap();
        assert_eq!(hosts(&settings), ["python-index.invalid:443", "files.python-index.invalid:443"]);
        assert!(settings.credentials.is_empty());
    }

    #[test]
    fn an_index_of_the_settings_is_the_only_host_and_its_password_a_secret() {
        let conf = "# comment\n[install]\nindex_url = https://ci:pip-secret@py.example.com/simple\n[global]\n\
                    index-url = https://elsewhere.example/\nextra-index-url = https://python-index.invalid/simple\ncert = /etc/corp.pem\n";
        let settings = settings(conf, &[]).unwrap();
        assert_eq!(hosts(&settings), ["py.example.com:443"]);
        assert_eq!(settings.credentials.len(), 1);
        assert_eq!(settings.certificates.as_deref(), Some(std::path::Path::new("/etc/corp.pem")));
        assert!(!format!("{settings:?}").contains("pip-secret"));
        assert_eq!(settings.variables()[0].1.as_slice(), b"https://ci:pip-secret@py.example.com/simple");
    }

    #[test]
    fn a_variable_comes_before_files() {
        let settings = settings(
            "[global]\nindex-url = https://a.example/\n",
            &[("PIP_INDEX_URL", "http://127.0.0.1:3141/x")],
        );
        assert_eq!(hosts(&settings.unwrap()), ["127.0.0.1:3141"]);
    }

    #[test]
    fn an_address_that_is_none_is_not_shown() {
        let error =
            settings("[global]\nindex-url = secret-in-the-wrong-place\n", &[]).unwrap_err().to_string();
        assert!(error.contains("`index-url`") && !error.contains("wrong-place"), "{error}");
    }
}
