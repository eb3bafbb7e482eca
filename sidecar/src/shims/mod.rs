//! Finds the static shim for a sandbox: in the file that a command or the configuration names, in this program itself, or
//! beside it.
//!
//! What must stay true: a shim that needs libraries of the sandbox, or is for another processor, is refused before
//! anything is sent.

pub(crate) mod embedded;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use cofferdam_base::elf::{ElfHeaders, Linking};
use cofferdam_base::text::hex;
use cofferdam_platforms::{Architecture, ShimBinary};
use ring::digest::{SHA256, digest};

/// The static shim is smaller than 3 MB; a much larger file is not a shim.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// A cache of the shims that were read, so that a thousand attachments share one copy.
#[derive(Default)]
pub(crate) struct ShimFiles(Mutex<HashMap<ShimPlace, CachedShim>>);

/// Where a shim was read from.
#[derive(Eq, Hash, PartialEq)]
enum ShimPlace {
    File(PathBuf),
    /// This program itself has one for each architecture.
    ThisProgram(Architecture),
}

struct CachedShim {
    modified: Option<SystemTime>,
    shim: ShimBinary,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
enum UnusableShim {
    #[error("needs libraries that the sandbox may not have")]
    Dynamic,
    #[error("is not a program for Linux")]
    NotElf,
    #[error("is for another processor")]
    OtherProcessor,
}

impl ShimFiles {
    /// Reads the shim in the file `given`; without one, the shim in this program or beside it. The error is a sentence with the
    /// next step.
    pub(crate) fn find(
        &self,
        given: Option<&Path>,
        architecture: Architecture,
    ) -> Result<ShimBinary, String> {
        match given {
            Some(path) => self.read(path, architecture).map_err(|why| with_next_step(&why, architecture)),
            None => match self.find_embedded(architecture)? {
                Some(shim) => Ok(shim),
                None => self.find_beside_program(architecture),
            },
        }
    }

    fn find_embedded(&self, architecture: Architecture) -> Result<Option<ShimBinary>, String> {
        let place = ShimPlace::ThisProgram(architecture);
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = files.get(&place) {
            return Ok(Some(cached.shim.clone()));
        }
        let Some(bytes) = embedded::read(architecture)? else { return Ok(None) };
        let shim = with_digest(bytes.into());
        files.insert(place, CachedShim { modified: None, shim: shim.clone() });
        Ok(Some(shim))
    }

    fn find_beside_program(&self, architecture: Architecture) -> Result<ShimBinary, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find the sidecar's program: {error}"))?;
        let directory = program.parent().unwrap_or(Path::new("/"));
        let names = [format!("cofferdam-shim-{}", architecture.as_str()), "cofferdam-shim".to_owned()];
        let mut why = format!("there is no `{}` in `{}`", names.join("` or `"), directory.display());
        for path in names.iter().map(|name| directory.join(name)).filter(|path| path.exists()) {
            match self.read(&path, architecture) {
                Ok(shim) => return Ok(shim),
                Err(unusable) => why = unusable,
            }
        }
        Err(with_next_step(&why, architecture))
    }

    fn read(&self, path: &Path, architecture: Architecture) -> Result<ShimBinary, String> {
        let failed = |error: std::io::Error| format!("cannot read the shim `{}`: {error}", path.display());
        let modified = std::fs::metadata(path).map_err(failed)?.modified().ok();
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = ShimPlace::File(path.to_owned());
        let shim = match files.get(&place).filter(|read| read.modified == modified) {
            Some(read) => read.shim.clone(),
            None => {
                let resolved = std::fs::canonicalize(path).map_err(failed)?;
                let bytes = cofferdam_base::atomic_file::read_bounded(&resolved, MAX_FILE_BYTES);
                let bytes = Bytes::from(bytes.map_err(failed)?);
                let shim = with_digest(bytes);
                files.insert(place, CachedShim { modified, shim: shim.clone() });
                shim
            }
        };
        match check(&shim.bytes, architecture) {
            Ok(()) => Ok(shim),
            Err(why) => Err(format!("the shim `{}` {why}", path.display())),
        }
    }
}

fn with_digest(bytes: Bytes) -> ShimBinary {
    ShimBinary { digest: hex(digest(&SHA256, &bytes).as_ref()), bytes }
}

fn with_next_step(why: &str, architecture: Architecture) -> String {
    let target = format!("{}-unknown-linux-musl", architecture.as_str());
    format!(
        "{why}; build the static shim with `cargo build --manifest-path shim/Cargo.toml --profile shim --target {target}` \
         and give it with `--shim FILE` or `shim` of the platform's table, or put it beside this program as `cofferdam-shim-{}`; \
         a packaged `cofferdam` contains it",
        architecture.as_str()
    )
}

/// Checks that a sandbox with this processor can run the program without libraries.
fn check(program: &[u8], architecture: Architecture) -> Result<(), UnusableShim> {
    let machine = match architecture {
        Architecture::Aarch64 => 183,
        Architecture::X86_64 => 62,
    };
    match ElfHeaders::read(program) {
        None => Err(UnusableShim::NotElf),
        Some(headers) if headers.machine != machine => Err(UnusableShim::OtherProcessor),
        Some(ElfHeaders { linking: Linking::Dynamic, .. }) => Err(UnusableShim::Dynamic),
        Some(ElfHeaders { linking: Linking::Static, .. }) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with program headers of these types.
    fn elf(machine: u16, types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&(types.len() as u16).to_le_bytes());
        for kind in types {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn only_static_programs_for_the_sandboxs_processor_are_accepted() {
        let (x86, arm) = (Architecture::X86_64, Architecture::Aarch64);
        assert_eq!(check(&elf(62, &[1, 6]), x86), Ok(()));
        assert_eq!(check(&elf(183, &[1]), arm), Ok(()));
        assert_eq!(check(&elf(62, &[1]), arm), Err(UnusableShim::OtherProcessor));
        assert_eq!(check(&elf(62, &[1, 3]), x86), Err(UnusableShim::Dynamic));
        for broken in [&b"#!/bin/sh\n"[..], b"", &elf(62, &[1, 1])[..100], &elf(62, &[])[..20]] {
            assert_eq!(check(broken, x86), Err(UnusableShim::NotElf));
        }
        let mut headers_out_of_range = elf(62, &[1]);
        headers_out_of_range[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(check(&headers_out_of_range, x86), Err(UnusableShim::NotElf));
    }

    #[test]
    fn an_unusable_shim_is_refused_with_the_command_that_builds_a_usable_one() {
        let files = ShimFiles::default();
        let architecture = Architecture::X86_64;
        let dynamic = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-shim-file-"));
        std::fs::write(&dynamic, elf(62, &[1, 3])).unwrap();
        let why = files.find(Some(&dynamic), architecture).err().unwrap();
        std::fs::remove_file(&dynamic).unwrap();
        assert!(
            why.contains("needs libraries that the sandbox may not have; build the static shim with"),
            "{why}"
        );
        let why = files.find(Some(Path::new("/no/such/file")), architecture).err().unwrap();
        assert!(why.starts_with("cannot read the shim `/no/such/file`: No such file"), "{why}");
        let why = files.find(None, architecture).err().unwrap();
        assert!(why.contains("cofferdam-shim") && why.contains("--shim FILE"), "{why}");
    }

    #[test]
    fn a_shim_is_read_once_until_its_file_changes() {
        let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-shim-file-"));
        std::fs::write(&path, elf(62, &[1])).unwrap();
        let files = ShimFiles::default();
        let read = || files.read(&path, Architecture::X86_64).unwrap();
        let first = read();
        assert_eq!(first.bytes.as_ptr(), read().bytes.as_ptr());
        assert_eq!(first.digest, hex(digest(&SHA256, &elf(62, &[1])).as_ref()));
        std::fs::write(&path, elf(62, &[1, 6])).unwrap();
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_ne!(read().digest, first.digest);
        std::fs::remove_file(path).unwrap();
    }
}
