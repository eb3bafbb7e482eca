//! Adds the entries of MCP servers to a harness's settings file in a sandbox.
//!
//! What must stay true: nothing that the file contains is lost. The file is replaced only if it has not changed since it was
//! read, with the same owner and mode; a file that cannot be changed safely is not changed, and the operator gets a warning
//! with the entries to add; no upload stays beside it. The sandbox reports the home of its user, so the path below it is
//! checked; the file's content is not trusted. If the work fails, directories that it created are removed.

use cofferdam_base::random;

use crate::guest::Guest;
use crate::install::{InstalledShim, install_shim, is_plain_path};
use crate::temporary_files::with_temporary_files;
use crate::{HubSetup, PlatformError, Progress};

/// The settings file of a harness, and the entries to add to it.
pub trait HarnessSettings: Send + Sync {
    /// The path of the file, relative to the home of the sandbox's user.
    fn path(&self) -> &str;

    /// Only the entries, as text that the operator can add by hand. `shim` is the path of the shim in the sandbox.
    fn entries(&self, shim: &str) -> String;

    /// Adds the entries to `existing`, the text of the file; `None` if there is no file yet.
    fn merge(&self, existing: Option<&str>, shim: &str) -> MergedSettings;

    /// Called at the end: with `None` if the file has all entries, or else with a warning about what to add by hand, and why.
    fn finish(&self, warning: Option<String>);
}

/// The result of adding entries to a settings file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MergedSettings {
    /// The whole new text; `None` if the file is not to be changed.
    pub text: Option<String>,
    /// Why some entry is not in the text.
    pub not_added: Option<String>,
}

const ACTION: &str = "write the harness's settings in the sandbox";
/// Settings usually have a few kilobytes; Claude Code also stores a history of projects in the file.
const MAX_BYTES: usize = 512 * 1024;
const TOO_LARGE: &str = "it is larger than 512 KiB";
/// How often the file is read and replaced at most, if it changes in between.
const ATTEMPTS: u32 = 3;

/// Prints what kind of file it is, and its digest; if there is no file, how many of its directories do not exist. Parameters: the
/// file, the maximum size.
const INSPECT: &str = r#"if [ -L "$1" ]; then echo link
elif [ ! -e "$1" ]; then
  missing=0 directory=${1%/*}
  while [ -n "$directory" ] && [ ! -e "$directory" ]; do missing=$((missing + 1)) directory=${directory%/*}; done
  echo "absent $missing"
elif [ ! -f "$1" ]; then echo other
elif [ ! -r "$1" ] || [ ! -w "$1" ]; then echo protected
elif [ "$(wc -c < "$1")" -gt "$2" ]; then echo large
else echo "file $(sha256sum < "$1")"; fi
"#;

/// Replaces the file by an upload. Parameters: the upload, the file, and the digest of the file that was read, or `absent`.
/// Prints `stored`, or `changed` if the file has changed since.
const REPLACE: &str = r#"store() {
  if [ "$3" = absent ]; then
    chmod 0600 "$1" || return 1
    # A link is made only if there is no such file.
    if ln "$1" "$2" 2>/dev/null; then echo stored; elif [ -e "$2" ]; then echo changed; else return 1; fi
  elif [ "$(sha256sum < "$2")" != "$3  -" ]; then echo changed
  else
    cp -p "$2" "$1.new" && cat "$1" > "$1.new" && mv -f "$1.new" "$2" && echo stored
  fi
}
store "$1" "$2" "$3"
code=$?
rm -f "$1" "$1.new"
exit $code
"#;

/// What was found at the path of the file.
enum FoundFile {
    Absent {
        /// How many of the innermost directories of its path do not exist.
        missing_directories: usize,
    },
    /// With its digest, as `sha256sum` prints it.
    File(String),
    /// With the reason.
    Unusable(&'static str),
}

enum ReplaceResult {
    Changed,
    Replaced,
}

/// Installs the shim, and then the harness's settings if there are any, since these contain the path of the shim.
pub(crate) async fn install_with_settings(
    guest: &impl Guest,
    setup: &HubSetup,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<InstalledShim, PlatformError> {
    let installed = install_shim(guest, setup, progress).await?;
    if let Some(settings) = &setup.harness {
        write_settings(guest, &installed, &**settings).await?;
    }
    Ok(installed)
}

/// Adds the entries. Temporary failures are errors; other failures become a warning.
async fn write_settings(
    guest: &impl Guest,
    installed: &InstalledShim,
    settings: &dyn HarnessSettings,
) -> Result<(), PlatformError> {
    let path = format!("{}/{}", installed.home, settings.path());
    let not_added = match add_entries(guest, &path, &installed.link, settings).await {
        Ok(not_added) => not_added,
        Err(error) if error.may_succeed_later() => return Err(error),
        Err(error) => Some(error.to_string()),
    };
    settings.finish(not_added.map(|why| {
        let entries = settings.entries(&installed.link);
        format!("`{path}` in the sandbox does not have all entries: {why}; add by hand what is missing:\n{entries}")
    }));
    Ok(())
}

/// Adds the entries; returns why some of them were not added.
async fn add_entries(
    guest: &impl Guest,
    path: &str,
    shim: &str,
    settings: &dyn HarnessSettings,
) -> Result<Option<String>, PlatformError> {
    if !is_plain_path(path) {
        return Ok(Some("its path is not an absolute path of ordinary characters".to_owned()));
    }
    for _ in 0..ATTEMPTS {
        let mut new_directories = Vec::new();
        let (existing, expected) = match inspect_file(guest, path).await? {
            FoundFile::Absent { missing_directories } => {
                new_directories = innermost_directories(path, missing_directories);
                (None, "absent".to_owned())
            }
            FoundFile::File(digest) => {
                let bytes = guest.download(ACTION, path).await?;
                // The size that the script reported is the sandbox's word.
                if bytes.len() > MAX_BYTES {
                    return Ok(Some(TOO_LARGE.to_owned()));
                }
                match String::from_utf8(bytes.to_vec()) {
                    Ok(text) => (Some(text), digest),
                    Err(_) => return Ok(Some("it is not text".to_owned())),
                }
            }
            FoundFile::Unusable(why) => return Ok(Some(why.to_owned())),
        };
        let merged = settings.merge(existing.as_deref(), shim);
        let Some(text) = merged.text else { return Ok(merged.not_added) };
        match replace_file(guest, path, text, &expected, &new_directories).await? {
            ReplaceResult::Replaced => return Ok(merged.not_added),
            ReplaceResult::Changed => {}
        }
    }
    Ok(Some("another program in the sandbox keeps changing it".to_owned()))
}

async fn inspect_file(guest: &impl Guest, path: &str) -> Result<FoundFile, PlatformError> {
    let output = guest.run(ACTION, INSPECT, &[path, &MAX_BYTES.to_string()]).await?.success(ACTION)?;
    let mut words = output.split_whitespace();
    Ok(match (words.next(), words.next()) {
        (Some("absent"), missing) => FoundFile::Absent {
            missing_directories: missing.and_then(|count| count.parse().ok()).unwrap_or_default(),
        },
        (Some("file"), Some(digest)) => FoundFile::File(digest.to_owned()),
        (Some("file"), None) => {
            FoundFile::Unusable("the sandbox has no `sha256sum`, so a change could be lost")
        }
        (Some("large"), _) => FoundFile::Unusable(TOO_LARGE),
        (Some("link"), _) => FoundFile::Unusable("it is a symbolic link"),
        (Some("protected"), _) => FoundFile::Unusable("the sandbox's user may not read and write it"),
        _ => FoundFile::Unusable("it is not a regular file"),
    })
}

async fn replace_file(
    guest: &impl Guest,
    path: &str,
    text: String,
    expected: &str,
    new_directories: &[String],
) -> Result<ReplaceResult, PlatformError> {
    let upload = format!("{path}.cofferdam-{}", random::hex::<4>());
    let replace = async {
        guest.upload(ACTION, &upload, text.into(), &|_| {}).await?;
        guest.run(ACTION, REPLACE, &[&upload, path, expected]).await?.success(ACTION)
    };
    let copy = format!("{upload}.new");
    let created = [&upload, &copy].into_iter().chain(new_directories).map(String::as_str);
    let output = with_temporary_files(guest, &created.collect::<Vec<_>>(), replace).await?;
    match output.lines().any(|line| line == "stored") {
        true => Ok(ReplaceResult::Replaced),
        false => Ok(ReplaceResult::Changed),
    }
}

/// The innermost directories of a file's path, each with a slash at its end. The count is the sandbox's word.
fn innermost_directories(path: &str, count: usize) -> Vec<String> {
    let directories =
        path.rmatch_indices('/').map(|(end, _)| &path[..=end]).filter(|directory| *directory != "/");
    directories.take(count).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_a_path_are_counted_from_the_innermost() {
        let path = "/home/user/.config/opencode/opencode.json";
        assert_eq!(innermost_directories(path, 0), Vec::<String>::new());
        assert_eq!(innermost_directories(path, 2), ["/home/user/.config/opencode/", "/home/user/.config/"]);
        assert_eq!(innermost_directories(path, usize::MAX).last().unwrap(), "/home/");
    }
}
