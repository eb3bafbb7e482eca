//! Installs the shim in a sandbox.
//!
//! What must stay true: the file name of a shim contains its digest, and the file gets that name only when it is complete and
//! executable, so that a running shim is never overwritten; then a symbolic link is switched to it. The remains of a failed
//! upload are removed, at the latest by a later installation. Scripts use only a POSIX shell and common utilities; without
//! `sha256sum`, only the length of an upload is compared.

use cofferdam_base::random;

use crate::guest::Guest;
use crate::redactor::Redactor;
use crate::temporary_files::with_temporary_files;
use crate::{Architecture, HubSetup, PlatformError, Progress, ShimBinary};

/// Where a template puts the shim: see [`crate::e2b`].
pub(crate) const TEMPLATE_DIRECTORY: &str = "/usr/local/lib/cofferdam";
pub(crate) const TEMPLATE_LINK: &str = "/usr/local/bin/cofferdam-shim";
/// The beginning of a shim's file name; its digest follows.
pub(crate) const SHIM_PREFIX: &str = "cofferdam-shim-";
/// The directory of uploaded shims, relative to the home of the sandbox's user.
pub(crate) const HOME_DIRECTORY: &str = ".local/lib/cofferdam";
const HOME_LINK: &str = ".local/bin/cofferdam-shim";

const LOOK: &str = "look for the shim in the sandbox";
const UPLOAD: &str = "upload the shim into the sandbox";
const LINK: &str = "link the shim in the sandbox";
/// The longest accepted path in a sandbox, in bytes.
const MAX_PATH: usize = 1024;

/// Prints what [`Probe::parse`] reads. Parameters: the template's directory; the directory and the link below the home.
/// Removes incomplete uploads that are older than ten minutes.
const PROBE: &str = r#"home=${HOME:-/tmp}
mkdir -p "$home/$2" 2>/dev/null && [ -w "$home/$2" ] || echo "unwritable"
find "$home/$2" -name "*.part-*" -mmin +10 -exec rm -f {} ";" 2>/dev/null
echo "machine $(uname -m)"
echo "home $home"
echo "link $(readlink "$home/$3")"
for shim in "$1"/cofferdam-shim-* "$home/$2"/cofferdam-shim-*; do
  if [ -f "$shim" ] && [ -x "$shim" ]; then echo "shim $(sha256sum "$shim")"; fi
done 2>/dev/null
exit 0
"#;

/// Checks an upload and renames it to its final name. Parameters: the upload, the final name, the digest, the size.
const STORE: &str = r#"set -e
if [ "$(wc -c < "$1")" -ne "$4" ]; then echo "the upload is not complete; free space on the disk of the sandbox, then run the command again" >&2; exit 1; fi
if command -v sha256sum > /dev/null; then
  if [ "$(sha256sum < "$1")" != "$3  -" ]; then echo "the upload arrived with other bytes; run the command again" >&2; exit 1; fi
fi
chmod 0755 "$1"
mv -f "$1" "$2"
rm -f "$2".part-*
"#;

/// Switches the link. Parameters: the shim's file, the link. If the user may write to `/usr/local/bin`, a link there too puts
/// the shim on the PATH.
const SWITCH: &str = r#"set -e
mkdir -p "${2%/*}"
ln -sf "$1" "$2.new"
mv -f "$2.new" "$2"
common=/usr/local/bin/cofferdam-shim
if [ -L "$common" ] || [ ! -e "$common" ]; then ln -sfn "$2" "$common" 2>/dev/null || true; fi
"#;

/// What the script [`PROBE`] found in the sandbox.
#[derive(Debug, Eq, PartialEq)]
struct Probe {
    architecture: Architecture,
    /// Absolute, without a slash at its end.
    home: String,
    storage: Storage,
    /// The target of the link; empty if there is no link.
    link: String,
    /// The digest and the path of each shim.
    shims: Vec<(String, String)>,
}

/// Whether a shim can be stored below the home.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Storage {
    ReadOnly,
    Writable,
}

/// A shim in a sandbox.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct InstalledShim {
    /// The path of the file itself, whose name contains the digest.
    pub(crate) file: String,
    pub(crate) digest: String,
    /// The path for the settings of harnesses, which does not change with the shim's version.
    pub(crate) link: String,
    /// The home of the sandbox's user, without a slash at its end.
    pub(crate) home: String,
}

/// Uploads the shim if it is not in the sandbox yet.
pub(crate) async fn install_shim(
    guest: &impl Guest,
    setup: &HubSetup,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<InstalledShim, PlatformError> {
    let output = guest.run(LOOK, PROBE, &[TEMPLATE_DIRECTORY, HOME_DIRECTORY, HOME_LINK]).await?;
    let probe = Probe::parse(&output.success(LOOK)?, guest.redactor())?;
    let shim = (setup.shim)(probe.architecture)
        .map_err(|why| PlatformError::Sandbox { action: "choose the shim for the sandbox", why })?;
    check_digest(&shim)?;
    let name = format!("{SHIM_PREFIX}{}", shim.digest);
    let is_installed =
        |path: &str| probe.shims.iter().any(|(digest, found)| *digest == shim.digest && found == path);
    let (home, digest) = (probe.home.clone(), shim.digest.clone());

    let template = format!("{TEMPLATE_DIRECTORY}/{name}");
    if is_installed(&template) {
        return Ok(InstalledShim { file: template, digest, link: TEMPLATE_LINK.to_owned(), home });
    }
    let file = format!("{home}/{HOME_DIRECTORY}/{name}");
    let link = format!("{home}/{HOME_LINK}");
    if !is_installed(&file) {
        if probe.storage == Storage::ReadOnly {
            let why = format!(
                "its user cannot write to `{home}/{HOME_DIRECTORY}`; make that directory writable, or put the shim into the \
                 sandbox's image as `{template}`"
            );
            return Err(PlatformError::Sandbox { action: UPLOAD, why });
        }
        upload_shim(guest, &shim, &file, progress).await?;
    }
    if probe.link != file {
        guest.run(LINK, SWITCH, &[&file, &link]).await?.success(LINK)?;
    }
    Ok(InstalledShim { file, digest, link, home })
}

async fn upload_shim(
    guest: &impl Guest,
    shim: &ShimBinary,
    file: &str,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<(), PlatformError> {
    let part = format!("{file}.part-{}", random::hex::<4>());
    let total = shim.bytes.len() as u64;
    progress(Progress::Uploading { sent: 0, total });
    let store = async {
        let show = |sent| progress(Progress::Uploading { sent, total });
        guest.upload(UPLOAD, &part, shim.bytes.clone(), &show).await?;
        let output = guest.run(UPLOAD, STORE, &[&part, file, &shim.digest, &total.to_string()]).await?;
        output.success(UPLOAD).map(drop)
    };
    with_temporary_files(guest, &[&part], store).await
}

/// Checks the form of the digest, which becomes a part of scripts and file names.
fn check_digest(shim: &ShimBinary) -> Result<(), PlatformError> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match shim.digest.len() == 64 && shim.digest.bytes().all(is_hex) {
        true => Ok(()),
        false => Err(PlatformError::Protocol { action: UPLOAD, why: "its digest is not SHA-256".into() }),
    }
}

/// Whether a path can be used in requests and scripts: absolute, without `..`, line breaks, quotes and other characters that
/// are special in a quoted string.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let is_allowed = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && !b"'\"`\\$".contains(&byte);
    path.starts_with('/')
        && path.len() <= MAX_PATH
        && path.bytes().all(is_allowed)
        && !path.ends_with(' ')
        && !path.split('/').any(|segment| segment == "..")
}

impl Probe {
    fn parse(output: &str, redactor: &Redactor) -> Result<Self, PlatformError> {
        let sandbox = |why: String| PlatformError::Sandbox { action: LOOK, why };
        let values = |name: &'static str| {
            output.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(' '))
        };
        let value = |name| values(name).next().unwrap_or_default();
        let machine = value("machine");
        let architecture = Architecture::from_machine(machine).ok_or_else(|| {
            let machine = redactor.printable(machine);
            sandbox(format!("its processor is `{machine}`; shims exist for x86_64 and aarch64 only"))
        })?;
        let home = value("home");
        if !is_plain_path(home) {
            let home = redactor.printable(home);
            return Err(sandbox(format!(
                "the home directory of its user, `{home}`, is not an absolute path of ordinary characters"
            )));
        }
        let shims = values("shim").filter_map(|line| line.split_once("  "));
        let shims = shims.map(|(digest, path)| (digest.to_owned(), path.to_owned())).collect();
        let storage = match output.lines().any(|line| line == "unwritable") {
            true => Storage::ReadOnly,
            false => Storage::Writable,
        };
        let home = home.trim_end_matches('/').to_owned();
        Ok(Self { architecture, home, storage, link: value("link").to_owned(), shims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Result<Probe, PlatformError> {
        Probe::parse(output, &Redactor::default())
    }

    #[test]
    fn the_probe_is_parsed() {
        let output =
            "machine x86_64\nhome /home/user\nlink /home/user/a\nshim abc  /home/user/a\nshim def  /b c\n";
        let shims = [("abc", "/home/user/a"), ("def", "/b c")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let expected = Probe {
            architecture: Architecture::X86_64,
            home: "/home/user".to_owned(),
            storage: Storage::Writable,
            link: "/home/user/a".to_owned(),
            shims: shims.to_vec(),
        };
        assert_eq!(read(output).unwrap(), expected);
        let root = read("unwritable\nmachine aarch64\nhome /\nlink \n").unwrap();
        assert_eq!((root.home.as_str(), root.storage), ("", Storage::ReadOnly));
    }

    #[test]
    fn an_unsupported_processor_or_home_is_an_error_that_names_it() {
        for (output, reason) in [
            ("machine riscv64\nhome /root\n", "riscv64"),
            ("machine x86_64\nhome \n", "home"),
            ("machine x86_64\nhome /home/../etc\n", "home"),
            ("", "processor"),
        ] {
            let error = read(output).unwrap_err();
            assert!(matches!(error, PlatformError::Sandbox { .. }));
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn paths_with_special_characters_are_refused() {
        for good in ["/home/daytona/.local", "/home/a b/.local", "/.local", "/a..b"] {
            assert!(is_plain_path(good), "{good}");
        }
        let long = format!("/{}", "x".repeat(1100));
        for bad in ["", "home", "/a\r\nb", "/a'b", "/a\"b", "/$(x)", "/a`b", "/ä", "/a/../b", &long] {
            assert!(!is_plain_path(bad), "{bad}");
        }
    }
}
