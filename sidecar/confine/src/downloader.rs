//! Programs that download a server and then run it, such as `npx`.
//!
//! What must stay true: a confined server is not started by one of them unless its profile says where the download comes from
//! and where it goes. Without that the downloader waits for a network that it does not have, often for minutes.

use std::fmt;
use std::path::Path;

use crate::profile::{Home, Profile};

/// A downloader, as it is written in `command`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Downloader {
    program: &'static str,
    subcommand: Option<&'static str>,
    pub source: DownloadSource,
}

/// Where a downloader gets servers from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DownloadSource {
    /// An engine of containers, which needs its socket and has walls of its own.
    Images,
    Npm,
    PyPi,
}

const DOWNLOADERS: [Downloader; 13] = [
    Downloader::new("bunx", None, DownloadSource::Npm),
    Downloader::new("bun", Some("x"), DownloadSource::Npm),
    Downloader::new("docker", Some("run"), DownloadSource::Images),
    Downloader::new("npm", Some("exec"), DownloadSource::Npm),
    Downloader::new("npx", None, DownloadSource::Npm),
    Downloader::new("pipx", Some("run"), DownloadSource::PyPi),
    Downloader::new("pnpm", Some("dlx"), DownloadSource::Npm),
    Downloader::new("pnpx", None, DownloadSource::Npm),
    Downloader::new("podman", Some("run"), DownloadSource::Images),
    Downloader::new("uv", Some("run"), DownloadSource::PyPi),
    Downloader::new("uv", Some("tool"), DownloadSource::PyPi),
    Downloader::new("uvx", None, DownloadSource::PyPi),
    Downloader::new("yarn", Some("dlx"), DownloadSource::Npm),
];

impl Downloader {
    const fn new(program: &'static str, subcommand: Option<&'static str>, source: DownloadSource) -> Self {
        Self { program, subcommand, source }
    }

    /// The downloader that a command starts.
    pub fn of(program: &str, arguments: &[String]) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        // Options may come before the subcommand.
        let subcommand = arguments.iter().find(|argument| !argument.starts_with('-'));
        let is_named = |known: &&Self| {
            let has_subcommand =
                known.subcommand.is_none_or(|word| subcommand.is_some_and(|written| written == word));
            known.program == name && has_subcommand
        };
        DOWNLOADERS.iter().find(is_named).copied()
    }

    /// Whether a profile with this many hosts says where the download comes from and where it goes.
    pub fn works_with(&self, profile: &Profile, hosts: usize) -> bool {
        let has_place = !profile.write.is_empty() || profile.home == Home::Keep;
        match self.source {
            DownloadSource::Images => !profile.write.is_empty(),
            DownloadSource::Npm | DownloadSource::PyPi => hosts > 0 && has_place,
        }
    }

    /// What to write so that it works. `server` is the server's name.
    pub fn next_step(&self, server: &str) -> String {
        match self.source {
            DownloadSource::Images => {
                format!(
                    "write `confine = \"off\"` in `[servers.{server}]`: the container has walls of its own"
                )
            }
            DownloadSource::Npm | DownloadSource::PyPi => format!(
                "add {}, and `home = \"keep\"` to `[servers.{server}.confine]`; or install the server and name its program in \
                 `command`, which starts faster and needs neither",
                self.hosts_line()
            ),
        }
    }

    /// The line with the registry, whose host only the user's settings tell.
    pub fn hosts_line(&self) -> String {
        let registry = match self.source {
            DownloadSource::Images => "the registry of the image",
            DownloadSource::Npm => "the host that `npm config get registry` prints",
            DownloadSource::PyPi => {
                "the host of the package index, and a second entry with the host of its files if that is another"
            }
        };
        format!("`hosts = [\"REGISTRY:443\"]`, where REGISTRY is {registry}")
    }
}

impl fmt::Display for Downloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        self.subcommand.map_or(Ok(()), |subcommand| write!(f, " {subcommand}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(command: &[&str]) -> Option<String> {
        let arguments: Vec<String> = command[1..].iter().map(|word| (*word).to_owned()).collect();
        Downloader::of(command[0], &arguments).map(|downloader| downloader.to_string())
    }

    #[test]
    fn downloaders_are_known_by_their_program_and_subcommand() {
        for (command, name) in [
            (&["npx", "-y", "some-server"][..], "npx"),
            (&["/usr/bin/npx", "some-server"], "npx"),
            (&["pnpm", "dlx", "some-server"], "pnpm dlx"),
            (&["uv", "--quiet", "run", "server.py"], "uv run"),
            (&["docker", "run", "-i", "--rm", "image"], "docker run"),
        ] {
            assert_eq!(found(command).as_deref(), Some(name), "{command:?}");
        }
        for command in
            [&["node", "npx"][..], &["uv", "pip", "install"], &["docker", "exec", "run"], &["./npx-server"]]
        {
            assert_eq!(found(command), None, "{command:?}");
        }
    }

    #[test]
    fn a_download_needs_hosts_and_a_place() {
        let npx = Downloader::of("npx", &[]).expect("it is known");
        let works = |hosts, home| npx.works_with(&Profile { home, ..Profile::default() }, hosts);
        assert!(!works(0, Home::Keep) && !works(1, Home::Private));
        assert!(works(1, Home::Keep));
    }
}
