//! Commands that download their package whenever they start, and the package that they mean.

use crate::spec::{PackageKind, PackageSpec, is_npm_name, is_npm_version, is_pypi_name, is_pypi_version};

/// What a command such as `npx -y @scope/server@1.2.3 --flag` runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RunnerCommand {
    pub kind: PackageKind,
    pub name: String,
    /// `None` where the command takes the newest version.
    pub version: Option<String>,
    /// What follows the package.
    pub arguments: Vec<String>,
}

/// What stands for the version in a suggestion where a command names none.
const VERSION: &str = "VERSION";

/// The package that `npx` or `uvx` would run. `None` for other commands, and for those with options that change what is run.
pub fn package_of(command: &[String]) -> Option<RunnerCommand> {
    let (program, rest) = command.split_first()?;
    let mut words = rest.iter().map(String::as_str).peekable();
    let kind = match program.rsplit('/').next()? {
        "npx" => PackageKind::Npm,
        "uvx" => PackageKind::PyPi,
        _ => return None,
    };
    while let Some(option) = words.next_if(|word| word.starts_with('-')) {
        match option {
            // The same package, with or without a question.
            "-y" | "--yes" | "-q" | "--quiet" if kind == PackageKind::Npm => {}
            _ => return None,
        }
    }
    let package = words.next()?;
    let (name, version) = match kind {
        PackageKind::Npm => match package.rfind('@') {
            Some(0) | None => (package, None),
            Some(at) => (&package[..at], Some(&package[at + 1..])),
        },
        PackageKind::PyPi => match package.split_once("==").or_else(|| package.split_once('@')) {
            Some((name, version)) => (name, Some(version)),
            None => (package, None),
        },
    };
    let (is_name, is_version) = match kind {
        PackageKind::Npm => (is_npm_name(name), version.map(is_npm_version)),
        PackageKind::PyPi => (is_pypi_name(name), version.map(is_pypi_version)),
    };
    let version = match (version, is_version) {
        (Some("latest"), _) | (None, _) => None,
        (Some(version), Some(true)) => Some(version.to_owned()),
        // A range or a tag: which version it means is for the user to say.
        (Some(_), _) => None,
    };
    is_name.then(|| RunnerCommand {
        kind,
        name: name.to_owned(),
        version,
        arguments: words.map(str::to_owned).collect(),
    })
}

impl RunnerCommand {
    /// The package, if the command names an exact version.
    pub fn spec(&self) -> Option<PackageSpec> {
        self.version.is_some().then(|| self.package().parse().ok()).flatten()
    }

    /// What to write as `package`. `VERSION` stands for a version that the command does not name.
    pub fn package(&self) -> String {
        let version = self.version.as_deref().unwrap_or(VERSION);
        match self.kind {
            PackageKind::Npm => format!("npm:{}@{version}", self.name),
            PackageKind::PyPi => format!("pypi:{}=={version}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<RunnerCommand> {
        package_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_package_of_a_runner_is_found_with_its_version_and_arguments() {
        let found = of("npx -y @scope/server@1.2.3 --root /data").unwrap();
        assert_eq!(found.package(), "npm:@scope/server@1.2.3");
        assert_eq!(found.spec().unwrap().to_string(), "npm:@scope/server@1.2.3");
        assert_eq!(found.arguments, ["--root", "/data"]);
        let found = of("/usr/bin/uvx mcp-server-time==2026.10.19").unwrap();
        assert_eq!(found.package(), "pypi:mcp-server-time==2026.10.19");
        assert_eq!(of("uvx mcp-server-time@1.0").unwrap().package(), "pypi:mcp-server-time==1.0");
    }

    #[test]
    fn without_an_exact_version_the_user_has_to_choose_one() {
        for line in ["npx @scope/server", "npx @scope/server@latest", "npx @scope/server@^1.0"] {
            let found = of(line).unwrap();
            assert_eq!(
                (found.package().as_str(), found.spec()),
                ("npm:@scope/server@VERSION", None),
                "{line}"
            );
        }
    }

    #[test]
    fn other_commands_have_no_package() {
        for line in [
            "node server.js",
            "npx",
            "npx -p other server",
            "uvx --from git+https://h/x x",
            "npx -y",
            "npx ./x",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
