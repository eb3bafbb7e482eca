//! The shim that is put into the sandbox: its file on the host, and whether it needs the libraries of the host.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::terminal::failure::{Failure, Sysexit};

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ShimFile {
    pub(super) path: PathBuf,
    pub(super) linking: Linking,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Linking {
    /// Needs a loader and libraries, those of the host.
    Dynamic,
    Static,
}

const NAME: &str = "cofferdam-shim";
/// The headers of a program are at its beginning.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// The type of the program header that names the loader.
const PT_INTERP: u32 = 3;

pub(super) const HOW_TO_BUILD: &str = "build the static shim with `just shim`, or with `cargo build --locked --manifest-path shim/Cargo.toml \
     --profile shim --target $(uname -m)-unknown-linux-musl`, and name its file with --shim";

impl ShimFile {
    /// The given file, or the one beside this program.
    pub(super) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let missing = |path: &Path, error: io::Error| {
            Failure::new(Sysexit::NoInput, format!("open the shim `{}`: {error}", path.display())).hint(
                format!("`cargo build --release --workspace` puts it beside this program; or {HOW_TO_BUILD}"),
            )
        };
        let path = match given {
            Some(path) => path.to_owned(),
            None => {
                let own =
                    std::env::current_exe().map_err(|error| missing(Path::new("/proc/self/exe"), error))?;
                own.with_file_name(NAME)
            }
        };
        let path = path.canonicalize().map_err(|error| missing(&path, error))?;
        let mut header = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_HEADER_BYTES).read_to_end(&mut header))
            .map_err(|error| missing(&path, error))?;
        let Some(linking) = linking(&header) else {
            let why = format!("the shim `{}` is not a Linux program", path.display());
            return Err(Failure::new(Sysexit::NoInput, why).hint(HOW_TO_BUILD));
        };
        Ok(Self { path, linking })
    }
}

/// Reads the program headers of an ELF file (64 bits, little endian: every machine that the shim is built for).
fn linking(file: &[u8]) -> Option<Linking> {
    let number = |offset: usize, length: usize| -> Option<usize> {
        let bytes = file.get(offset..offset.checked_add(length)?)?;
        bytes
            .iter()
            .rev()
            .try_fold(0_usize, |value, byte| value.checked_mul(256)?.checked_add(usize::from(*byte)))
    };
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = table.checked_add(index.checked_mul(size)?)?;
        if number(header, 4)? == PT_INTERP as usize {
            return Some(Linking::Dynamic);
        }
    }
    Some(Linking::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header with these types of program headers.
    fn program(types: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        (file[32], file[54], file[56]) = (64, 56, types.len() as u8);
        for kind in types {
            file.push(*kind);
            file.extend([0; 55]);
        }
        file
    }

    #[test]
    fn a_program_with_a_loader_is_dynamic() {
        assert_eq!(linking(&program(&[6, 3, 1])), Some(Linking::Dynamic));
        assert_eq!(linking(&program(&[1, 2])), Some(Linking::Static));
        assert_eq!(linking(&std::fs::read("/proc/self/exe").unwrap()), Some(Linking::Dynamic));
    }

    #[test]
    fn other_and_cut_files_are_no_programs() {
        assert_eq!(linking(b"#!/bin/sh\n"), None);
        assert_eq!(linking(&program(&[1, 2])[..100]), None);
        let mut wild = program(&[1]);
        wild[32..40].fill(0xff);
        assert_eq!(linking(&wild), None);
    }
}
