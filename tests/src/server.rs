//! The MCP servers that a world can have, as lines of its configuration.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::harness::Harness;
use crate::process::built;
use crate::process_numbers;
use crate::tools::Tool;

/// Builds one `[servers.NAME]` table.
#[derive(Clone, Debug, Default)]
pub struct Server {
    command: Vec<String>,
    url: Option<String>,
    package: Option<String>,
    env: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    rules: BTreeMap<&'static str, Vec<String>>,
    lines: Vec<String>,
    confinement: Confinement,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
enum Confinement {
    /// `confine = "off"`.
    Off,
    Profile(Profile),
}

/// What a confined server may reach besides its program and its records.
#[derive(Clone, Debug, Default)]
struct Profile {
    read: Vec<String>,
    write: Vec<String>,
    /// Further entries of the table, such as `memory = "1GiB"`.
    entries: Vec<String>,
}

/// Whether the server records its calls.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Kind {
    Fixture,
    #[default]
    Foreign,
}

impl Server {
    /// The fixture in its normal mode.
    #[track_caller]
    pub fn fixture() -> Self {
        let program = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
        Self { kind: Kind::Fixture, ..Self::command([program.display().to_string()]) }
    }

    /// The fixture in one of its modes.
    #[track_caller]
    pub fn fixture_that(mode: &str) -> Self {
        let mut server = Self::fixture();
        server.command.push(mode.to_owned());
        server
    }

    pub fn command(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { command: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A shell script, which can end with `exec "$FIXTURE"`. That fixture makes no records.
    #[track_caller]
    pub fn script(text: &str) -> Self {
        let fixture = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
        Self::command(["sh", "-c", text]).env("FIXTURE", &path_text(&fixture)).reading(&fixture)
    }

    pub fn http(url: &str) -> Self {
        Self { url: Some(url.to_owned()), ..Self::default() }
    }

    /// A package that `cofferdam install` installs, such as `npm:left-pad@1.3.0`.
    pub fn package(spec: &str) -> Self {
        Self { package: Some(spec.to_owned()), ..Self::default() }
    }

    /// `@modelcontextprotocol/server-everything`; `None` where it is not installed.
    #[track_caller]
    pub fn everything() -> Option<Self> {
        Some(Self::command([
            path_text(&Tool::Node.path()?),
            path_text(&Tool::EverythingServer.path()?),
            "stdio".to_owned(),
        ]))
    }

    /// `@modelcontextprotocol/server-filesystem`, which may read the directory; `None` where it is not installed.
    #[track_caller]
    pub fn filesystem(directory: &Path) -> Option<Self> {
        let server = Self::command([
            path_text(&Tool::Node.path()?),
            path_text(&Tool::FilesystemServer.path()?),
            path_text(directory),
        ]);
        Some(server.reading(directory))
    }

    /// `mcp-server-time`; `None` where it is not installed.
    #[track_caller]
    pub fn time() -> Option<Self> {
        Some(Self::command([
            path_text(&Tool::TimeServer.path()?),
            "--local-timezone".to_owned(),
            "UTC".to_owned(),
        ]))
    }

    /// `@zeddotdev/postgres-context-server`, which takes its URL from `DATABASE_URL`; `None` where it is not installed.
    #[track_caller]
    pub fn postgres() -> Option<Self> {
        Some(Self::command([path_text(&Tool::Node.path()?), path_text(&Tool::PostgresContext.path()?)]))
    }

    pub fn env(mut self, name: &str, template: &str) -> Self {
        self.env.insert(name.to_owned(), template.to_owned());
        self
    }

    pub fn file(mut self, name: &str, template: &str) -> Self {
        self.files.insert(name.to_owned(), template.to_owned());
        self
    }

    pub fn header(mut self, name: &str, template: &str) -> Self {
        self.headers.insert(name.to_owned(), template.to_owned());
        self
    }

    pub fn allow(self, globs: &[&str]) -> Self {
        self.rule("allow", globs)
    }

    pub fn ask(self, globs: &[&str]) -> Self {
        self.rule("ask", globs)
    }

    pub fn deny(self, globs: &[&str]) -> Self {
        self.rule("deny", globs)
    }

    /// The server is not confined. A test that needs this says why.
    pub fn unconfined(mut self) -> Self {
        self.confinement = Confinement::Off;
        self
    }

    /// The confined server may read this path.
    #[track_caller]
    pub fn reading(mut self, path: &Path) -> Self {
        self.profile().read.push(path_text(path));
        self
    }

    /// The confined server may write this path.
    #[track_caller]
    pub fn writing(mut self, path: &Path) -> Self {
        self.profile().write.push(path_text(path));
        self
    }

    /// Another entry of its profile, such as `memory = "1GiB"`.
    #[track_caller]
    pub fn confine(mut self, entry: &str) -> Self {
        self.profile().entries.push(entry.to_owned());
        self
    }

    /// Adds a line of TOML, such as `call-timeout = "2s"`.
    pub fn line(mut self, toml: &str) -> Self {
        self.lines.push(toml.to_owned());
        self
    }

    /// Its table of the configuration. A fixture writes its records to files in `records` that have its name.
    pub(crate) fn toml(&self, name: &str, records: &Path) -> String {
        let mut env = self.env.clone();
        if self.kind == Kind::Fixture {
            env.insert("COUNT_FILE".to_owned(), path_text(&records.join(format!("{name}.count"))));
            env.insert("PID_FILE".to_owned(), path_text(&records.join(format!("{name}.pids"))));
            env.insert("RECEIVED_FILE".to_owned(), path_text(&records.join(format!("{name}.received"))));
            env.insert(
                process_numbers::VARIABLE.to_owned(),
                path_text(&records.join(process_numbers::SOCKET)),
            );
        }
        let mut toml = format!("[servers.{name}]\n");
        match (&self.url, &self.package) {
            (Some(url), _) => _ = writeln!(toml, "url = {url:?}"),
            (None, Some(package)) => _ = writeln!(toml, "package = {package:?}"),
            (None, None) => _ = writeln!(toml, "command = {:?}", self.command),
        }
        for (key, table) in [("env", &env), ("files", &self.files), ("headers", &self.headers)] {
            if !table.is_empty() {
                let entries: Vec<String> =
                    table.iter().map(|(name, value)| format!("{name:?} = {value:?}")).collect();
                let _ = writeln!(toml, "{key} = {{ {} }}", entries.join(", "));
            }
        }
        if !self.rules.is_empty() {
            let rules: Vec<String> =
                self.rules.iter().map(|(verdict, globs)| format!("{verdict} = {globs:?}")).collect();
            let _ = writeln!(toml, "tools = {{ {} }}", rules.join(", "));
        }
        match &self.confinement {
            Confinement::Off => toml.push_str("confine = \"off\"\n"),
            Confinement::Profile(profile) => {
                let records = (self.kind == Kind::Fixture).then(|| path_text(records));
                let table = profile.entries(records);
                if !table.is_empty() {
                    let _ = writeln!(toml, "confine = {{ {} }}", table.join(", "));
                }
            }
        }
        for line in &self.lines {
            let _ = writeln!(toml, "{line}");
        }
        toml
    }

    #[track_caller]
    fn profile(&mut self) -> &mut Profile {
        match &mut self.confinement {
            Confinement::Profile(profile) => profile,
            Confinement::Off => panic!("an unconfined server has no profile"),
        }
    }

    fn rule(mut self, verdict: &'static str, globs: &[&str]) -> Self {
        self.rules.entry(verdict).or_default().extend(globs.iter().map(|glob| (*glob).to_owned()));
        self
    }
}

impl Default for Confinement {
    fn default() -> Self {
        Self::Profile(Profile::default())
    }
}

impl Profile {
    /// The entries of the table `confine`.
    fn entries(&self, records: Option<String>) -> Vec<String> {
        let write: Vec<&String> = self.write.iter().chain(&records).collect();
        let mut entries = Vec::new();
        if !self.read.is_empty() {
            entries.push(format!("read = {:?}", self.read));
        }
        if !write.is_empty() {
            entries.push(format!("write = {write:?}"));
        }
        entries.extend(self.entries.iter().cloned());
        entries
    }
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// The variable `SECRET` in the output of a tool that returns its process's environment.
#[track_caller]
pub fn secret_of(harness: &mut Harness, tool: &str) -> String {
    let text = harness.call_text(tool, json!({}));
    let secret = text.split_whitespace().find_map(|entry| entry.strip_prefix("SECRET="));
    secret.unwrap_or_else(|| panic!("no SECRET in {text}")).to_owned()
}

/// The environment that a process was started with.
#[track_caller]
pub fn environment(process: u32) -> String {
    let environment = fs::read(format!("/proc/{process}/environ")).expect("the process is there");
    String::from_utf8_lossy(&environment).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_written_as_toml() {
        let server = Server::command(["a", "b c"])
            .env("K", "{local.value}")
            .allow(&["get_*"])
            .deny(&["x"])
            .line("retry = true");
        assert_eq!(
            server.toml("one", Path::new("/r")),
            "[servers.one]\ncommand = [\"a\", \"b c\"]\nenv = { \"K\" = \"{local.value}\" }\ntools = { allow = [\"get_*\"], deny = [\"x\"] }\nretry = true\n"
        );
    }
}
