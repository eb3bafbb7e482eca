//! The shim that is mounted into the sandbox: its file on the host, and whether it is linked statically.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cofferdam_base::elf::{ElfHeaders, Linking};

use crate::terminal::failure::{Failure, Sysexit};

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ShimFile {
    pub(super) path: PathBuf,
    pub(super) linking: Linking,
}

const NAME: &str = "cofferdam-shim";
/// How much of the program is read for its ELF headers.
const MAX_HEADER_BYTES: u64 = 64 * 1024;

pub(super) const HOW_TO_BUILD: &str = "build the static shim with `just shim`, or with `cargo build --locked --manifest-path shim/Cargo.toml \
     --profile shim --target $(uname -m)-unknown-linux-musl`, and name its file with --shim";

impl ShimFile {
    /// Opens the file `given`, or else the shim in the directory of this program.
    pub(super) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let unreadable = |path: &Path, error: io::Error| {
            Failure::new(Sysexit::NoInput, format!("cannot open the shim `{}`: {error}", path.display())).hint(
                format!("`cargo build --release --workspace` puts it into the directory of this program; or {HOW_TO_BUILD}"),
            )
        };
        let path = match given {
            Some(path) => path.to_owned(),
            None => {
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
        Ok(Self { path, linking })
    }
}
