//! Puts the shim and the harness's files into a sandbox.
//!
//! What must stay true: a running shim is never written to: a file is uploaded under another name, its digest is compared
//! in the sandbox, and only then it gets the name that contains the digest. Scripts use nothing but a POSIX shell and the
//! usual small programs; values in them are checked first.

use std::path::Path;

use cofferdam_base::random;

use super::toolbox::Toolbox;
use crate::rest::printable;
use crate::{Architecture, HubSetup, PlatformError, Progress, ShimBinary};

/// The shim in a sandbox.
pub(super) struct InstalledShim {
    /// Its absolute path.
    pub(super) path: String,
    pub(super) digest: String,
}

/// Where the shims are, as a word of a shell script.
pub(super) const DIRECTORY: &str = "\"${HOME:-/tmp}/.cofferdam\"";
/// The name of a shim; its digest follows.
pub(super) const SHIM_PREFIX: &str = "cofferdam-shim-";

/// The name that harnesses use.
const LINK: &str = "cofferdam-shim";

const LOOKING: &str = "look into the sandbox";
const UPLOADING: &str = "upload the shim into the sandbox";
const LINKING: &str = "link the shim in the sandbox";
const HARNESS: &str = "write the harness's settings in the sandbox";
/// Uploads that were cut off are removed after these minutes.
const STALE_MINUTES: u32 = 10;
/// A path in a sandbox is at most this long.
const MAX_PATH: usize = 1024;

/// Uploads what is not there yet.
pub(super) async fn install(
    toolbox: &Toolbox,
    setup: &HubSetup,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<InstalledShim, PlatformError> {
    let found = look(toolbox).await?;
    let shim = (setup.shim)(found.architecture)
        .map_err(|why| PlatformError::Sandbox { doing: "find the shim for the sandbox", why })?;
    check_digest(&shim)?;
    let name = format!("{SHIM_PREFIX}{}", shim.digest);
    if !found.digests.contains(&shim.digest) {
        upload(toolbox, &found.directory, &shim, progress).await?;
    }
    if found.link != name {
        switch_link(toolbox, &name).await?;
    }
    let path = format!("{}/{name}", found.directory);
    for (file, content) in setup.harness_files_for(&format!("{}/{LINK}", found.directory)) {
        let file = inside_home(&found.directory, file)?;
        toolbox.upload(HARNESS, &file, &content, &|_| {}).await?;
    }
    Ok(InstalledShim { path, digest: shim.digest })
}

struct Found {
    architecture: Architecture,
    /// Absolute, and checked.
    directory: String,
    /// Of the shims that are there.
    digests: Vec<String>,
    /// The name of the shim to which the link leads; empty if there is none.
    link: String,
}

async fn look(toolbox: &Toolbox) -> Result<Found, PlatformError> {
    let script = format!(
        "d={DIRECTORY}\n\
         mkdir -p \"$d\" || exit 73\n\
         find \"$d\" -name '.upload-*' -mmin +{STALE_MINUTES} -exec rm -f '{{}}' ';' 2>/dev/null\n\
         echo \"machine $(uname -m)\"\n\
         echo \"directory $d\"\n\
         echo \"link $(readlink \"$d/{LINK}\")\"\n\
         for f in \"$d\"/{SHIM_PREFIX}*; do [ -x \"$f\" ] && echo \"shim $(sha256sum < \"$f\" 2>/dev/null)\"; done\n\
         exit 0\n"
    );
    let executed = toolbox.execute(LOOKING, &script).await?;
    let cannot = |why: String| PlatformError::Sandbox { doing: LOOKING, why };
    if executed.exit_code != 0 {
        let said = printable(&executed.result);
        return Err(cannot(format!(
            "its home directory cannot be written (exit code {}): {said}",
            executed.exit_code
        )));
    }
    let values = |name: &'static str| {
        executed.result.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    let machine = values("machine").next().unwrap_or_default();
    let architecture = Architecture::from_machine(machine)
        .ok_or_else(|| cannot(format!("there is no shim for the processor `{}`", printable(machine))))?;
    let directory = values("directory").next().unwrap_or_default();
    if !is_plain_path(directory) {
        return Err(cannot(format!("its home directory has an unusual name: `{}`", printable(directory))));
    }
    let digests = values("shim").filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    let link = values("link").next().unwrap_or_default().to_owned();
    Ok(Found { architecture, directory: directory.to_owned(), digests, link })
}

async fn upload(
    toolbox: &Toolbox,
    directory: &str,
    shim: &ShimBinary,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<(), PlatformError> {
    progress(Progress::Uploading { sent: 0, total: shim.bytes.len() as u64 });
    let name = random::id(".upload-");
    toolbox.upload(UPLOADING, &format!("{directory}/{name}"), &shim.bytes, progress).await?;
    let (digest, length) = (&shim.digest, shim.bytes.len());
    // Where there is no `sha256sum`, the length is compared.
    let script = format!(
        "d={DIRECTORY}\n\
         f=\"$d/{name}\"\n\
         if command -v sha256sum >/dev/null; then s=$(sha256sum < \"$f\"); w={digest}; else s=$(wc -c < \"$f\"); w={length}; fi\n\
         set -- $s\n\
         [ \"$1\" = \"$w\" ] || {{ rm -f \"$f\"; echo 'it arrived damaged'; exit 65; }}\n\
         chmod 755 \"$f\" && mv -f \"$f\" \"$d/{SHIM_PREFIX}{digest}\" || exit 73\n"
    );
    let executed = toolbox.execute(UPLOADING, &script).await?;
    match executed.exit_code {
        0 => Ok(()),
        65 => {
            let why = "the file arrived damaged".to_owned();
            Err(PlatformError::Unavailable { doing: UPLOADING, why, retry_after: None })
        }
        _ => Err(PlatformError::Sandbox { doing: UPLOADING, why: printable(&executed.result) }),
    }
}

/// Makes the link that harnesses use lead to this shim. One in the directory of programs is a convenience, for root only.
async fn switch_link(toolbox: &Toolbox, name: &str) -> Result<(), PlatformError> {
    let script = format!(
        "d={DIRECTORY}\n\
         ln -sfn {name} \"$d/{LINK}\" || exit 73\n\
         ln -sfn \"$d/{LINK}\" /usr/local/bin/{LINK} 2>/dev/null\n\
         exit 0\n"
    );
    let executed = toolbox.execute(LINKING, &script).await?;
    match executed.exit_code {
        0 => Ok(()),
        _ => Err(PlatformError::Sandbox { doing: LINKING, why: printable(&executed.result) }),
    }
}

/// The digest becomes a part of scripts and of file names.
fn check_digest(shim: &ShimBinary) -> Result<(), PlatformError> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match shim.digest.len() == 64 && shim.digest.bytes().all(is_hex) {
        true => Ok(()),
        false => Err(PlatformError::Protocol { doing: UPLOADING, why: "its digest is not SHA-256".into() }),
    }
}

/// The path of a harness's file; a relative one is below the home directory, in which `directory` is.
fn inside_home(directory: &str, file: &Path) -> Result<String, PlatformError> {
    let home = Path::new(directory).parent().unwrap_or(Path::new("/"));
    match home.join(file).to_str() {
        Some(path) if is_plain_path(path) => Ok(path.to_owned()),
        _ => {
            let why = format!("`{}` cannot be a path there", printable(&file.to_string_lossy()));
            Err(PlatformError::Protocol { doing: HARNESS, why })
        }
    }
}

/// Absolute, without line breaks and quotes, which would end it in a request or a script.
fn is_plain_path(path: &str) -> bool {
    let is_allowed = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && !b"'\"`\\$".contains(&byte);
    path.starts_with('/') && path.len() <= MAX_PATH && path.bytes().all(is_allowed) && !path.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cannot_leave_their_place_in_a_request_or_a_script() {
        for good in ["/home/daytona/.cofferdam", "/home/a b/.cofferdam", "/.cofferdam"] {
            assert!(is_plain_path(good), "{good}");
        }
        for bad in
            ["", "home", "/a\r\nb", "/a'b", "/a\"b", "/$(x)", "/a`b", "/ä", &format!("/{}", "x".repeat(1100))]
        {
            assert!(!is_plain_path(bad), "{bad}");
        }
    }

    #[test]
    fn relative_files_of_a_harness_are_below_the_home() {
        let path = |file: &str| inside_home("/home/daytona/.cofferdam", Path::new(file)).unwrap();
        assert_eq!(path(".claude.json"), "/home/daytona/.claude.json");
        assert_eq!(path("/etc/x.json"), "/etc/x.json");
        assert!(inside_home("/home/daytona/.cofferdam", Path::new("a\nb")).is_err());
    }
}
