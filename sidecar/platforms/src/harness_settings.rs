//! Adds the entries of MCP servers to a harness's settings file in a sandbox.
//!
//! What must stay true: what the sandbox's own file holds is never lost. It is read first; it is replaced only if it is still
//! the file that was read, and keeps its owner and mode; a file that cannot be changed safely is left as it is, and the
//! operator is told what to add. The path is below the home of the sandbox's user and is checked, because the sandbox
//! names its home; the file's content is trusted for nothing.

use cofferdam_base::random;

use crate::PlatformError;
use crate::guest::Guest;
use crate::install::{InstalledShim, is_plain_path};

/// The settings file of a harness, and what is to be in it.
pub trait HarnessSettings: Send + Sync {
    /// The file, below the home of the sandbox's user.
    fn path(&self) -> &str;

    /// The entries alone, as the operator would add them by hand. `shim` is the path of the shim in the sandbox.
    fn entries(&self, shim: &str) -> String;

    /// Adds the entries to the text of the file; `None`: there is no file yet.
    fn merge(&self, existing: Option<&str>, shim: &str) -> MergedSettings;

    /// Called at the end. The warning says what was not written, why, and what to do; `None`: the file has all entries.
    fn finish(&self, warning: Option<String>);
}

/// The result of adding entries to a settings file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MergedSettings {
    /// The whole new text; `None` if the file is to stay as it is.
    pub text: Option<String>,
    /// Why some entry is not in the text.
    pub not_added: Option<String>,
}

const DOING: &str = "write the harness's settings in the sandbox";
/// Settings have some kilobytes; Claude Code keeps a history of projects in the same file.
const MAX_BYTES: usize = 512 * 1024;
/// How often a file is read again that changed before it could be replaced.
const ATTEMPTS: u32 = 3;

/// Prints what the file is, and its digest. Parameters: the file, the largest size.
const LOOK: &str = r#"if [ -L "$1" ]; then echo link
elif [ ! -e "$1" ]; then echo absent
elif [ ! -f "$1" ]; then echo other
elif [ ! -r "$1" ] || [ ! -w "$1" ]; then echo protected
elif [ "$(wc -c < "$1")" -gt "$2" ]; then echo large
else echo "file $(sha256sum < "$1")"; fi
"#;

/// Puts an upload in the place of the file. Parameters: the upload, the file, and the digest of the file that was read, or
/// `absent`. Prints `stored`, or `changed` if the file is another one now.
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

/// What is at the path of the file.
enum Found {
    Absent,
    /// With its digest, as `sha256sum` prints it.
    File(String),
    /// With the reason.
    Unusable(&'static str),
}

enum Stored {
    Changed,
    Done,
}

/// Adds the entries. Failures of the connection are errors; whatever else is in the way becomes a warning.
pub(crate) async fn write_settings(
    guest: &impl Guest,
    installed: &InstalledShim,
    settings: &dyn HarnessSettings,
) -> Result<(), PlatformError> {
    let path = format!("{}/{}", installed.home, settings.path());
    let not_added = match add_entries(guest, &path, &installed.link, settings).await {
        Ok(not_added) => not_added,
        Err(error) if error.may_pass() => return Err(error),
        Err(error) => Some(error.to_string()),
    };
    settings.finish(not_added.map(|why| {
        let entries = settings.entries(&installed.link);
        format!("`{path}` in the sandbox does not have all entries: {why}; add by hand what is missing:\n{entries}")
    }));
    Ok(())
}

/// Returns why some entry was not added.
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
        let (existing, expected) = match look(guest, path).await? {
            Found::Absent => (None, "absent".to_owned()),
            Found::File(digest) => match String::from_utf8(guest.download(DOING, path).await?.to_vec()) {
                Ok(text) => (Some(text), digest),
                Err(_) => return Ok(Some("it is not text".to_owned())),
            },
            Found::Unusable(why) => return Ok(Some(why.to_owned())),
        };
        let merged = settings.merge(existing.as_deref(), shim);
        let Some(text) = merged.text else { return Ok(merged.not_added) };
        match replace(guest, path, text, &expected).await? {
            Stored::Done => return Ok(merged.not_added),
            Stored::Changed => {}
        }
    }
    Ok(Some("another program in the sandbox changes it all the time".to_owned()))
}

async fn look(guest: &impl Guest, path: &str) -> Result<Found, PlatformError> {
    let output = guest.run(DOING, LOOK, &[path, &MAX_BYTES.to_string()]).await?.success(DOING)?;
    let mut words = output.split_whitespace();
    Ok(match (words.next(), words.next()) {
        (Some("absent"), _) => Found::Absent,
        (Some("file"), Some(digest)) => Found::File(digest.to_owned()),
        (Some("file"), None) => Found::Unusable("the sandbox has no `sha256sum`, so a change could be lost"),
        (Some("large"), _) => Found::Unusable("it is larger than 512 KiB"),
        (Some("link"), _) => Found::Unusable("it is a symbolic link"),
        (Some("protected"), _) => Found::Unusable("the sandbox's user may not read and write it"),
        _ => Found::Unusable("it is not a regular file"),
    })
}

async fn replace(
    guest: &impl Guest,
    path: &str,
    text: String,
    expected: &str,
) -> Result<Stored, PlatformError> {
    let upload = format!("{path}.cofferdam-{}", random::hex::<4>());
    guest.upload(DOING, &upload, text.into(), &|_| {}).await?;
    let output = guest.run(DOING, REPLACE, &[&upload, path, expected]).await?.success(DOING)?;
    match output.lines().any(|line| line == "stored") {
        true => Ok(Stored::Done),
        false => Ok(Stored::Changed),
    }
}
