//! Puts the shim and the harness's files into a sandbox.
//!
//! What must stay true: a shim is stored under a name with its digest, and gets that name only when it is complete and
//! executable, so that a running shim is never written over; then a link is switched to it. What an upload leaves behind
//! when it fails is removed, at the latest by the next one.

use std::time::Duration;

use cofferdam_base::random;
use tokio::time::timeout;

use super::envd::Envd;
use crate::{Architecture, HubSetup, PlatformError, Progress, ShimBinary};

/// Where a template puts the shim: see [`super::template`].
pub(super) const TEMPLATE_DIRECTORY: &str = "/usr/local/lib/cofferdam";
pub(super) const TEMPLATE_LINK: &str = "/usr/local/bin/cofferdam-shim";
/// Below the home of the sandbox's user, for what is uploaded.
const HOME_DIRECTORY: &str = ".local/lib/cofferdam";
const HOME_LINK: &str = ".local/bin/cofferdam-shim";

const LOOK: &str = "look for the shim in the sandbox";
const UPLOAD: &str = "upload the shim into the sandbox";
const LINK: &str = "link the shim in the sandbox";
const HARNESS: &str = "write the harness's settings in the sandbox";
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Prints the processor, the home, the target of the link, and the digests of the shims that are there.
/// Arguments: the two directories, the link; those below the home without it.
const PROBE: &str = r#"uname -m
printf '%s\n' "$HOME"
readlink "$HOME/$3" || echo
for shim in "$1"/cofferdam-shim-* "$HOME/$2"/cofferdam-shim-*; do
  if [ -f "$shim" ] && [ -x "$shim" ]; then sha256sum "$shim"; fi
done 2>/dev/null
exit 0
"#;

/// Checks an upload, gives it its name and switches the link. Arguments: the upload, the name, the link, digest, size.
const INSTALL: &str = r#"set -e
if [ "$(wc -c < "$1")" -ne "$5" ]; then echo "the upload is not complete" >&2; exit 1; fi
if command -v sha256sum > /dev/null; then
  if [ "$(sha256sum < "$1")" != "$4  -" ]; then echo "the upload arrived with other bytes" >&2; exit 1; fi
fi
chmod 0755 "$1"
mv -f "$1" "$2"
rm -f "$2".part-*
mkdir -p "${3%/*}"
ln -sf "$2" "$3.new"
mv -f "$3.new" "$3"
"#;

/// Switches the link. Arguments: the name, the link.
const SWITCH: &str = r#"set -e
mkdir -p "${2%/*}"
ln -sf "$1" "$2.new"
mv -f "$2.new" "$2"
"#;

const REMOVE: &str = r#"rm -f "$1""#;

/// What the probe found.
#[derive(Debug, Eq, PartialEq)]
struct Probe {
    architecture: Architecture,
    home: String,
    /// Empty if there is no link.
    link: String,
    /// Digest and path.
    shims: Vec<(String, String)>,
}

/// An installed shim.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Installed {
    /// The file itself, whose name has the digest.
    pub(super) file: String,
    /// The stable path that harnesses are told.
    pub(super) link: String,
    home: String,
}

/// Makes sure that the shim is in the sandbox.
pub(super) async fn shim(
    envd: &Envd,
    setup: &HubSetup,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Installed, PlatformError> {
    let output = envd.run(LOOK, PROBE, &[TEMPLATE_DIRECTORY, HOME_DIRECTORY, HOME_LINK]).await?;
    let probe = Probe::read(&output.success(LOOK)?)?;
    let shim = (setup.shim)(probe.architecture)
        .map_err(|why| PlatformError::Sandbox { doing: "choose the shim for the sandbox", why })?;
    let name = format!("cofferdam-shim-{}", shim.digest);
    let is_there =
        |path: &str| probe.shims.iter().any(|(digest, found)| *digest == shim.digest && found == path);

    let template = format!("{TEMPLATE_DIRECTORY}/{name}");
    if is_there(&template) {
        return Ok(Installed { file: template, link: TEMPLATE_LINK.to_owned(), home: probe.home });
    }
    let file = format!("{}/{HOME_DIRECTORY}/{name}", probe.home);
    let link = format!("{}/{HOME_LINK}", probe.home);
    if !is_there(&file) {
        upload(envd, &shim, &file, &link, progress).await?;
    } else if probe.link != file {
        envd.run(LINK, SWITCH, &[&file, &link]).await?.success(LINK)?;
    }
    Ok(Installed { file, link, home: probe.home })
}

/// Writes the harness's files; a relative path is below the home.
pub(super) async fn harness_files(
    envd: &Envd,
    setup: &HubSetup,
    installed: &Installed,
) -> Result<(), PlatformError> {
    for (path, content) in setup.harness_files_for(&installed.link) {
        let Some(path) = path.to_str().filter(|path| !path.contains('\0')) else {
            let why = format!("`{}` is not a path that can be sent", path.display());
            return Err(PlatformError::Sandbox { doing: HARNESS, why });
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", installed.home) };
        envd.upload(HARNESS, &path, content, &|_| {}).await?;
    }
    Ok(())
}

async fn upload(
    envd: &Envd,
    shim: &ShimBinary,
    file: &str,
    link: &str,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<(), PlatformError> {
    let part = format!("{file}.part-{}", random::hex::<4>());
    let total = shim.bytes.len() as u64;
    progress(Progress::Uploading { sent: 0, total });
    let stored = async {
        envd.upload(UPLOAD, &part, shim.bytes.clone(), &|sent| progress(Progress::Uploading { sent, total }))
            .await?;
        let output =
            envd.run(UPLOAD, INSTALL, &[&part, file, link, &shim.digest, &total.to_string()]).await?;
        output.success(UPLOAD)
    };
    let stored = stored.await;
    if stored.is_err() {
        // Only tidiness: the next upload removes what is left.
        let _ = timeout(CLEAN_UP_TIMEOUT, envd.run(UPLOAD, REMOVE, &[&part])).await;
    }
    stored.map(|_| ())
}

impl Probe {
    fn read(output: &str) -> Result<Self, PlatformError> {
        let sandbox = |why: String| PlatformError::Sandbox { doing: LOOK, why };
        let mut lines = output.lines();
        let mut line = || lines.next().unwrap_or_default();
        let (machine, home, link) = (line(), line(), line().to_owned());
        let architecture = Architecture::from_machine(machine).ok_or_else(|| {
            sandbox(format!(
                "its processor is `{}`; there are shims for x86_64 and aarch64",
                crate::rest::printable(machine)
            ))
        })?;
        if !home.starts_with('/') {
            return Err(sandbox("its user has no home directory to put the shim into".to_owned()));
        }
        let shims = lines
            .filter_map(|line| line.split_once("  "))
            .map(|(digest, path)| (digest.to_owned(), path.to_owned()));
        let shims = shims.collect();
        Ok(Self { architecture, home: home.trim_end_matches('/').to_owned(), link, shims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_tells_processor_home_link_and_shims() {
        let output = "x86_64\n/home/user\n/home/user/a\nabc  /home/user/a\ndef  /b c\n";
        let shims = [("abc", "/home/user/a"), ("def", "/b c")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let expected = Probe {
            architecture: Architecture::X86_64,
            home: "/home/user".to_owned(),
            link: "/home/user/a".to_owned(),
            shims: shims.to_vec(),
        };
        assert_eq!(Probe::read(output).unwrap(), expected);
        assert_eq!(Probe::read("aarch64\n/\n\n").unwrap().home, "");
    }

    #[test]
    fn a_sandbox_that_cannot_run_the_shim_says_why() {
        for (output, reason) in
            [("riscv64\n/root\n\n", "riscv64"), ("x86_64\n\n\n", "home"), ("", "processor")]
        {
            let error = Probe::read(output).unwrap_err();
            assert!(matches!(error, PlatformError::Sandbox { .. }));
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
