//! A package with its exact version, as `package` names it.
//!
//! | written | what it names |
//! |---|---|
//! | `npm:@scope/server@1.2.3` | a package of the npm registry |
//! | `pypi:mcp-server-git==2026.1.14`, `pypi:server[cli]==1.0` | a package of the Python package index |
//!
//! What must stay true: a spec names one version, not a range or a tag; its parts have no character that a package manager, a
//! requirements file or a path reads as something else. Errors do not quote what was written, which may be a credential.

use std::fmt;
use std::str::FromStr;

/// The longest name that npm accepts; the Python package index has no longer ones.
const MAX_NAME: usize = 214;
const MAX_VERSION: usize = 128;
const NPM: &str = "npm:";
const PYPI: &str = "pypi:";
const OCI: &str = "oci:";

/// One version of one package.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PackageSpec {
    kind: PackageKind,
    name: String,
    /// Of a Python package; sorted.
    extras: Vec<String>,
    version: String,
}

/// Where a package comes from.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PackageKind {
    Npm,
    PyPi,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidPackage {
    #[error("it has extras that are not names in brackets")]
    Extras,
    #[error("it does not begin with `npm:` or `pypi:`")]
    Kind,
    #[error("its name is not that of a package")]
    Name,
    #[error("images are not supported")]
    Oci,
    #[error("it has no version")]
    Unpinned,
    #[error("its version is a range or a tag, not one exact version")]
    Version,
}

impl PackageSpec {
    pub fn kind(&self) -> PackageKind {
        self.kind
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// As the package manager wants it: `server[cli]==1.0`.
    pub(crate) fn requirement(&self) -> String {
        self.to_string().split_once(':').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
    }

    fn npm(text: &str) -> Result<Self, InvalidPackage> {
        // The `@` of a scope is no separator.
        let (name, version) = match text.rfind('@') {
            Some(0) | None => (text, None),
            Some(at) => (&text[..at], Some(&text[at + 1..])),
        };
        if !is_npm_name(name) {
            return Err(InvalidPackage::Name);
        }
        let version = version.filter(|version| !version.is_empty()).ok_or(InvalidPackage::Unpinned)?;
        match is_npm_version(version) {
            true => Ok(Self {
                kind: PackageKind::Npm,
                name: name.into(),
                extras: Vec::new(),
                version: version.into(),
            }),
            false => Err(InvalidPackage::Version),
        }
    }

    fn pypi(text: &str) -> Result<Self, InvalidPackage> {
        let (package, version) = match text.split_once("==") {
            Some((package, version)) if !version.is_empty() => (package, version),
            Some(_) => return Err(InvalidPackage::Unpinned),
            None if text.contains(['<', '>', '~', '!', '=', '@']) => return Err(InvalidPackage::Version),
            None => return Err(InvalidPackage::Unpinned),
        };
        let (name, extras) = match package.split_once('[') {
            Some((name, extras)) => (name, Some(extras.strip_suffix(']').ok_or(InvalidPackage::Extras)?)),
            None => (package, None),
        };
        if !is_pypi_name(name) {
            return Err(InvalidPackage::Name);
        }
        let mut extras: Vec<String> =
            extras.map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default();
        if !extras.iter().all(|extra| is_pypi_name(extra)) {
            return Err(InvalidPackage::Extras);
        }
        extras.sort_unstable();
        extras.dedup();
        match is_pypi_version(version) {
            true => Ok(Self { kind: PackageKind::PyPi, name: name.into(), extras, version: version.into() }),
            false => Err(InvalidPackage::Version),
        }
    }
}

impl PackageKind {
    /// What the registry is called, for people.
    pub(crate) fn registry(self) -> &'static str {
        match self {
            Self::Npm => "npm registry",
            Self::PyPi => "Python package index",
        }
    }
}

impl InvalidPackage {
    /// What to write instead.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Oci => {
                "run the image with `command`, such as `[\"podman\", \"run\", \"--rm\", \"-i\", \"IMAGE@sha256:DIGEST\"]`"
            }
            Self::Extras | Self::Kind | Self::Name | Self::Unpinned | Self::Version => {
                "write one version of one package: `npm:@scope/server@1.2.3` or `pypi:mcp-server-git==2026.1.14`"
            }
        }
    }
}

impl FromStr for PackageSpec {
    type Err = InvalidPackage;

    fn from_str(text: &str) -> Result<Self, InvalidPackage> {
        if let Some(rest) = text.strip_prefix(NPM) {
            Self::npm(rest)
        } else if let Some(rest) = text.strip_prefix(PYPI) {
            Self::pypi(rest)
        } else if text.starts_with(OCI) {
            Err(InvalidPackage::Oci)
        } else {
            Err(InvalidPackage::Kind)
        }
    }
}

impl fmt::Display for PackageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, extras, version } = self;
        match kind {
            PackageKind::Npm => write!(f, "{NPM}{name}@{version}"),
            PackageKind::PyPi if extras.is_empty() => write!(f, "{PYPI}{name}=={version}"),
            PackageKind::PyPi => write!(f, "{PYPI}{name}[{}]=={version}", extras.join(",")),
        }
    }
}

/// Names in lower case, as npm has accepted them since 2014; `.` and `_` do not begin one.
pub(crate) fn is_npm_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_')
        };
        part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && part.bytes().all(is_allowed)
    };
    name.len() <= MAX_NAME
        && match name.strip_prefix('@') {
            Some(scoped) => {
                scoped.split_once('/').is_some_and(|(scope, name)| is_part(scope) && is_part(name))
            }
            None => is_part(name),
        }
}

/// `1.2.3`, with a pre-release and build metadata if it has them.
pub(crate) fn is_npm_version(version: &str) -> bool {
    let (version, build) = split_off(version, '+');
    let (numbers, release) = split_off(version, '-');
    let is_number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let is_identifier = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let numbers: Vec<&str> = numbers.split('.').collect();
    version.len() <= MAX_VERSION
        && numbers.len() == 3
        && numbers.into_iter().all(is_number)
        && [release, build].into_iter().flatten().all(|part| part.split('.').all(is_identifier))
}

/// Letters and digits, with `.`, `-` and `_` between them.
pub(crate) fn is_pypi_name(name: &str) -> bool {
    let is_end = |character: char| character.is_ascii_alphanumeric();
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        && name.starts_with(is_end)
        && name.ends_with(is_end)
}

/// The characters of versions of PEP 440; not `*`, which is for ranges.
pub(crate) fn is_pypi_version(version: &str) -> bool {
    (1..=MAX_VERSION).contains(&version.len())
        && version.starts_with(|first: char| first.is_ascii_alphanumeric())
        && version.contains(|character: char| character.is_ascii_digit())
        && version
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'+' | b'!'))
}

fn split_off(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pinned_packages_are_read_and_written() {
        for text in [
            "npm:@modelcontextprotocol/server-everything@2026.8.31",
            "npm:left-pad@1.3.0",
            "npm:server@1.0.0-beta.1+build.5",
            "pypi:mcp-server-time==2026.10.19",
            "pypi:Server.Name==1!2.0rc1+local",
            "pypi:server[cli,http]==1.0",
        ] {
            let spec: PackageSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        let spec: PackageSpec = "pypi:server[http,cli]==1.0".parse().unwrap();
        assert_eq!(spec.requirement(), "server[cli,http]==1.0");
        assert_eq!((spec.name(), spec.version(), spec.kind()), ("server", "1.0", PackageKind::PyPi));
    }

    #[test]
    fn what_does_not_name_one_version_is_refused() {
        use InvalidPackage as P;
        for (text, problem) in [
            ("left-pad@1.3.0", P::Kind),
            ("NPM:left-pad@1.3.0", P::Kind),
            ("", P::Kind),
            ("oci:registry.example.com/server@sha256:00", P::Oci),
            ("npm:left-pad", P::Unpinned),
            ("npm:@scope/server", P::Unpinned),
            ("npm:left-pad@", P::Unpinned),
            ("npm:left-pad@latest", P::Version),
            ("npm:left-pad@^1.3.0", P::Version),
            ("npm:left-pad@1.3", P::Version),
            ("npm:left-pad@1.3.x", P::Version),
            ("npm:left-pad@01.3.0", P::Version),
            ("npm:left-pad@1.3.0-", P::Version),
            ("npm:left-pad@npm:other@1.0.0", P::Name),
            ("npm:left-pad@git+ssh://host/x", P::Version),
            ("npm:../left-pad@1.0.0", P::Name),
            ("npm:@scope@1.0.0", P::Name),
            ("npm:@/x@1.0.0", P::Name),
            ("npm:Left-Pad@1.0.0", P::Name),
            ("npm:--global@1.0.0", P::Name),
            ("pypi:server", P::Unpinned),
            ("pypi:server==", P::Unpinned),
            ("pypi:server>=1.0", P::Version),
            ("pypi:server~=1.0", P::Version),
            ("pypi:server==1.*", P::Version),
            ("pypi:server===1.0", P::Version),
            ("pypi:server==1.0 --index-url=x", P::Version),
            ("pypi:server==1.0\n", P::Version),
            ("pypi:server @ https://host/x.whl", P::Version),
            ("pypi:-r==1.0", P::Name),
            ("pypi:server[cli==1.0", P::Extras),
            ("pypi:server[]==1.0", P::Extras),
            ("pypi:server[a b]==1.0", P::Extras),
        ] {
            assert_eq!(text.parse::<PackageSpec>(), Err(problem), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_written_so_that_it_is_read_again(text in "(npm|pypi|oci)?:?\\PC{0,40}((@|==)\\PC{0,12})?") {
            if let Ok(spec) = text.parse::<PackageSpec>() {
                prop_assert_eq!(spec.to_string().parse(), Ok(spec.clone()));
                prop_assert!(!spec.requirement().contains(char::is_whitespace));
                prop_assert!(!spec.requirement().starts_with('-'));
            }
        }

        #[test]
        fn a_version_has_no_character_of_a_range(version in "[0-9.x*^~<>=| v+a-z-]{1,12}") {
            if is_npm_version(&version) {
                prop_assert!(!version.contains(['x', '*', '^', '~', '<', '>', '=', '|', ' ']) || version.contains(['-', '+']));
            }
        }
    }
}
