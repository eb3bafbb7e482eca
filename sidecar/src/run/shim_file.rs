//! The shim that is mounted into the sandbox: its file on the host, and whether it is linked statically.
//!
//! A packaged program contains the static shim, which is written into the run's directory when the run begins.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cofferdam_base::elf::{ElfHeaders, Linking};
use cofferdam_platforms::Architecture;

use crate::shims::embedded;
use crate::terminal::failure::{Failure, Sysexit};

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ShimFile {
    pub(super) path: PathBuf,
    pub(super) linking: Linking,
    /// What is to be written to `path` before the run: the shim in this program.
    pub(super) content: Option<Bytes>,
}

const NAME: &str = "cofferdam-shim";
/// How much of the program is read for its ELF headers.
const MAX_HEADER_BYTES: u64 = 64 * 1024;

pub(super) const HOW_TO_BUILD: &str = "build the static shim with `just shim`, or with `cargo build --locked --manifest-path shim/Cargo.toml \
     --profile shim --target $(uname -m)-unknown-linux-musl`, and name its file with --shim";

impl ShimFile {
    /// Opens the file `given`, or else takes the shim in this program, or else opens the one in the directory of this program.
    pub(super) fn find(given: Option<&Path>, run_directory: &Path) -> Result<Self, Failure> {
        let unreadable = |path: &Path, error: io::Error| {
            Failure::new(Sysexit::NoInput, format!("cannot open the shim `{}`: {error}", path.display())).hint(
                format!("`cargo build --release --workspace` puts it into the directory of this program; or {HOW_TO_BUILD}"),
            )
        };
        let embedded = match (given, Architecture::from_machine(std::env::consts::ARCH)) {
            (None, Some(architecture)) => {
                embedded::read(architecture).map_err(|why| Failure::new(Sysexit::NoInput, why))?
            }
            _ => None,
        };
        let path = match (given, embedded) {
            (Some(path), _) => path.to_owned(),
            (None, Some(content)) => {
                let path = run_directory.join(NAME);
                return Ok(Self { path, linking: Linking::Static, content: Some(content.into()) });
            }
            (None, None) => {
                let this_program = std::env::current_exe()
                    .map_err(|error| unreadable(Path::new("/proc/self/exe"), error))?;
                this_program.with_file_name(NAME)
            }
        };
        let path = path.canonicalize().map_err(|error| unreadable(&path, error))?;
        let mut header = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_HEADER_BYTES).read_to_end(&mut header))
            .map_err(|error| unreadable(&path, error))?;
        let Some(ElfHeaders { linking, .. }) = ElfHeaders::read(&header) else {
            let why = format!("the shim `{}` is not a Linux program", path.display());
            return Err(Failure::new(Sysexit::NoInput, why).hint(HOW_TO_BUILD));
        };
        Ok(Self { path, linking, content: None })
    }
}
