//! Where this user's package managers download from, by their own settings, or by their own default.
//!
//! What must stay true: of a settings file nothing is taken but the hosts of its registries; tokens are beside them.

use std::collections::BTreeSet;
use std::path::Path;

use cofferdam_confine::DownloadSource;
use cofferdam_egress::{AllowedHost, named_hosts};

use crate::surroundings::Surroundings;

/// The settings of one family of package managers.
struct PackageManager {
    /// Variables with the address of a registry.
    variables: &'static [&'static str],
    /// Files below the home, then files of the system.
    files_of_user: &'static [&'static str],
    files_of_system: &'static [&'static str],
    /// How a line with the address of a registry begins, up to `=` or `:`.
    keys: &'static [&'static str],
}

const NPM: PackageManager = PackageManager {
    variables: &["NPM_CONFIG_REGISTRY", "npm_config_registry", "YARN_NPM_REGISTRY_SERVER"],
    files_of_user: &[".npmrc", ".config/pnpm/rc", ".bunfig.toml", ".yarnrc.yml"],
    files_of_system: &["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"],
    keys: &["registry", "npmRegistryServer"],
};
const PYPI: PackageManager = PackageManager {
    variables: &[
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
    ],
    files_of_user: &[".config/uv/uv.toml", ".config/pip/pip.conf", ".pip/pip.conf"],
    files_of_system: &["/etc/uv/uv.toml", "/etc/pip.conf", "/etc/xdg/pip/pip.conf"],
    keys: &["index-url", "extra-index-url", "url"],
};

/// The hosts from which servers are downloaded; empty if the settings name none and the default is not known.
pub(crate) fn registries(source: DownloadSource, surroundings: &Surroundings<'_>) -> BTreeSet<AllowedHost> {
    let manager = match source {
        DownloadSource::Images => return BTreeSet::new(),
        DownloadSource::Npm => NPM,
        DownloadSource::PyPi => PYPI,
    };
    let of_variables = manager.variables.iter().filter_map(|variable| (surroundings.variable)(variable));
    let home = surroundings.home.iter();
    let of_user = home.flat_map(|home| manager.files_of_user.iter().map(move |file| home.join(file)));
    let of_project = surroundings.project.iter().map(|project| project.join(".npmrc"));
    let of_system = manager.files_of_system.iter().map(|file| Path::new(file).to_owned());
    let files = of_project.filter(|_| source == DownloadSource::Npm).chain(of_user).chain(of_system);
    let mut found: BTreeSet<AllowedHost> = of_variables.flat_map(|value| named_hosts(&value)).collect();
    for text in files.filter_map(|file| (surroundings.text_of)(&file)) {
        found.extend(text.lines().filter_map(|line| registry_of(line, manager.keys)).flatten());
    }
    if found.is_empty() {
        found.extend((surroundings.default_registry)(source).iter().flat_map(|url| named_hosts(url)));
    }
    found
}

/// The hosts in a line that sets one of the keys, in the formats `key = value` and `key: value`, also for a scope of names.
fn registry_of(line: &str, keys: &[&str]) -> Option<Vec<AllowedHost>> {
    let line = line.trim().trim_start_matches(['[', '{']);
    let end = line.find(['=', ':'])?;
    // As in `@scope:registry=…`.
    let (key, value) = match line.starts_with('@') {
        true => line[end + 1..].split_once('=')?,
        false => (&line[..end], &line[end + 1..]),
    };
    let key = key.trim().trim_matches('"');
    keys.contains(&key).then(|| named_hosts(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: DownloadSource, file: &str, text: &str) -> Vec<String> {
        let text_of = |path: &Path| path.ends_with(file).then(|| text.to_owned());
        let surroundings =
            Surroundings { home: Some("/home/ada".into()), text_of: &text_of, ..Surroundings::nowhere() };
        registries(source, &surroundings).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn registries_are_read_from_the_settings_of_each_package_manager() {
        use DownloadSource::{Npm, PyPi};
        for (source, file, text) in [
            (
                Npm,
                ".npmrc",
                "registry=https://packages.example/npm/\n//packages.example/npm/:_authToken=secret\n",
            ),
            (Npm, ".npmrc", "@team:registry = https://packages.example/npm/\n"),
            (Npm, ".yarnrc.yml", "npmRegistryServer: \"https://packages.example\"\n"),
            (
                PyPi,
                ".config/pip/pip.conf",
                "[global]\nindex-url = https://u:secret@packages.example/simple\n",
            ),
            (
                PyPi,
                ".config/uv/uv.toml",
                "[[index]]\nname = \"x\"\nurl = \"https://packages.example/simple\"\n",
            ),
            (PyPi, ".config/uv/uv.toml", "index-url = \"https://packages.example/simple\"\n"),
        ] {
            assert_eq!(found(source, file, text), ["packages.example:443"], "{file}: {text}");
        }
    }

    #[test]
    fn the_default_counts_only_where_no_settings_name_a_registry() {
        let default =
            |source| (source == DownloadSource::Npm).then(|| "https://default.example/\n".to_owned());
        let hosts = |text_of: &dyn Fn(&Path) -> Option<String>, source| {
            let home = Some("/home/ada".into());
            let surroundings =
                Surroundings { home, text_of, default_registry: &default, ..Surroundings::nowhere() };
            registries(source, &surroundings).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(hosts(&|_| None, DownloadSource::Npm), ["default.example:443"]);
        assert_eq!(hosts(&|_| None, DownloadSource::PyPi), [""; 0]);
        let text_of =
            |path: &Path| path.ends_with(".npmrc").then(|| "registry=https://own.example/\n".to_owned());
        assert_eq!(hosts(&text_of, DownloadSource::Npm), ["own.example:443"]);
    }

    #[test]
    fn variables_count_and_other_lines_do_not() {
        let variable =
            |name: &str| (name == "UV_INDEX_URL").then(|| "https://mirror.example/simple".to_owned());
        let surroundings = Surroundings { variable: &variable, ..Surroundings::nowhere() };
        let hosts = registries(DownloadSource::PyPi, &surroundings);
        assert_eq!(hosts.iter().map(ToString::to_string).collect::<Vec<_>>(), ["mirror.example:443"]);
        assert_eq!(registries(DownloadSource::Npm, &surroundings).len(), 0);
        let others = "# registry=https://a.example\nproxy=http://b.example\n//c.example/:_authToken=x\n";
        assert_eq!(found(DownloadSource::Npm, ".npmrc", others), [""; 0]);
    }
}
