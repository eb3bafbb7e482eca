//! What a server needs inside its walls, as far as its command and variables say.
//!
//! What must stay true: nothing is opened that they do not name. What is not known is said, not guessed: the server is then
//! refused what it misses, with the line that would allow it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_confine::{DownloadSource, Downloader, Home};
use cofferdam_egress::named_hosts;
use toml_edit::{Array, InlineTable, Value};

use crate::registry::registries;
use crate::surroundings::{Directory, Surroundings};

/// What is written as `confine` of a server.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Needs {
    hosts: BTreeSet<String>,
    write: BTreeSet<PathBuf>,
    home: Home,
    walls: Walls,
    /// What has to be done by hand.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Walls {
    /// Those of the container that the command starts.
    Own,
    #[default]
    Ours,
}

/// The files that databases are kept in; such a server makes others beside them.
const DATABASES: [&str; 4] = ["db", "duckdb", "sqlite", "sqlite3"];

impl Needs {
    /// Of a server with this command and the texts of these variables. A control character in a text stands for a part that is
    /// filled in later. `directory` is where the server starts.
    pub fn of<'t>(
        command: &[String],
        variables: impl Iterator<Item = &'t str>,
        directory: Option<&Path>,
        surroundings: &Surroundings<'_>,
    ) -> Self {
        let mut needs = Self::default();
        let Some((program, arguments)) = command.split_first() else { return needs };
        if let Some(downloader) = Downloader::of(program, arguments) {
            needs.download(downloader, surroundings);
        }
        if needs.walls == Walls::Own {
            return needs;
        }
        let of_arguments = arguments.iter().flat_map(|argument| named_hosts(argument));
        needs.hosts.extend(of_arguments.chain(variables.flat_map(named_hosts)).map(|host| host.to_string()));
        for argument in arguments {
            needs.add_path(argument, directory, surroundings);
        }
        needs
    }

    /// The value of `confine`; `None` if the defaults are enough.
    pub fn value(&self) -> Option<Value> {
        if self.walls == Walls::Own {
            return Some("off".into());
        }
        let mut table = InlineTable::new();
        if !self.hosts.is_empty() {
            table.insert("hosts", Array::from_iter(self.hosts.iter().map(String::as_str)).into());
        }
        if !self.write.is_empty() {
            let paths = self.write.iter().filter_map(|path| path.to_str());
            table.insert("write", Array::from_iter(paths).into());
        }
        if self.home == Home::Keep {
            table.insert("home", "keep".into());
        }
        (!table.is_empty()).then_some(Value::InlineTable(table))
    }

    fn download(&mut self, downloader: Downloader, surroundings: &Surroundings<'_>) {
        if downloader.source == DownloadSource::Images {
            self.walls = Walls::Own;
            let note = format!(
                "`{downloader}` needs the engine of containers, so it is not confined; the container has walls"
            );
            self.notes.push(note);
            return;
        }
        self.home = Home::Keep;
        let registries = registries(downloader.source, surroundings);
        self.notes.push(match registries.is_empty() {
            true => format!(
                "`{downloader}` downloads it at its start, and no registry is known: before it can start, add {} to its `confine`",
                downloader.hosts_line()
            ),
            false => format!("`{downloader}` downloads it at its start; an installed server starts faster and needs no registry"),
        });
        self.hosts.extend(registries.iter().map(ToString::to_string));
    }

    fn add_path(&mut self, argument: &str, directory: Option<&Path>, surroundings: &Surroundings<'_>) {
        // Also the value of an option, as in `--directory=/srv/project`.
        let value = match argument.split_once('=') {
            Some((option, value)) if option.starts_with('-') => value,
            _ => argument,
        };
        let path = match (Path::new(value), directory) {
            (path, _) if path.is_absolute() => path.to_owned(),
            // Only what says that it is a path: other words may be names of directories by chance.
            (path, Some(directory)) if value == "." || value.starts_with("./") => {
                // Without `.` and a slash at its end, as it is written into the configuration.
                directory.join(path).components().collect()
            }
            _ => return,
        };
        let is_database = path
            .extension()
            .and_then(|ending| ending.to_str())
            .is_some_and(|ending| DATABASES.contains(&ending));
        let path = match (is_database && (surroundings.exists)(&path), path.parent()) {
            (true, Some(parent)) => parent.to_owned(),
            _ => path,
        };
        match (surroundings.directory)(&path) {
            Directory::None => {}
            Directory::Ordinary => _ = self.write.insert(path),
            Directory::TooWide => self.notes.push(format!(
                "it cannot see `{}`, which contains files of the sidecar or of the system: name the directories in it that the server \
                 needs, there and in `confine.write`",
                path.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(command: &[&str], variables: &[&str]) -> Needs {
        let directory = |path: &Path| match path.to_str() {
            Some("/srv/project" | "/srv/data") => Directory::Ordinary,
            Some("/home/ada") => Directory::TooWide,
            _ => Directory::None,
        };
        let text_of =
            |path: &Path| path.ends_with(".npmrc").then(|| "registry=https://packages.example/\n".to_owned());
        let surroundings = Surroundings {
            home: Some("/home/ada".into()),
            exists: &|path| path == Path::new("/srv/data/x.db"),
            directory: &directory,
            text_of: &text_of,
            ..Surroundings::nowhere()
        };
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        Needs::of(&command, variables.iter().copied(), Some(Path::new("/srv/project")), &surroundings)
    }

    #[track_caller]
    fn assert_written(command: &[&str], variables: &[&str], confine: &str) {
        let value = needs(command, variables).value().map(|value| value.to_string()).unwrap_or_default();
        assert_eq!(value.trim(), confine);
    }

    #[test]
    fn a_server_that_names_nothing_needs_nothing() {
        assert_written(&["server", "--stdio", "data", "/srv/none"], &["a value"], "");
    }

    #[test]
    fn directories_and_hosts_that_are_named_are_opened() {
        assert_written(
            &["server", "/srv/project", "--data=/srv/data"],
            &["https://api.example/v1", "postgresql://\u{1a}:\u{1a}@db.example/x"],
            r#"{ hosts = ["api.example:443", "db.example:5432"], write = ["/srv/data", "/srv/project"] }"#,
        );
        assert_written(&["server", "."], &[], r#"{ write = ["/srv/project"] }"#);
        assert_written(&["server", "/srv/data/x.db"], &[], r#"{ write = ["/srv/data"] }"#);
    }

    #[test]
    fn a_downloaded_server_gets_its_registry_and_a_place() {
        let confine = r#"{ hosts = ["packages.example:443"], home = "keep" }"#;
        assert_written(&["npx", "-y", "some-server"], &[], confine);
        assert_written(&["uvx", "some-server"], &[], r#"{ home = "keep" }"#);
        let notes = needs(&["uvx", "some-server"], &[]).notes;
        assert!(
            notes[0].contains("no registry is known") && notes[0].contains("`hosts = [\"REGISTRY:443\"]`"),
            "{notes:?}"
        );
    }

    #[test]
    fn a_container_has_its_own_walls_and_a_home_is_not_opened() {
        assert_written(&["docker", "run", "-i", "image", "https://a.example"], &[], "\"off\"");
        assert_written(&["server", "/home/ada"], &[], "");
        assert!(needs(&["server", "/home/ada"], &[]).notes[0].contains("it cannot see `/home/ada`"));
    }
}
