//! The static shims inside this program's own file, one for each architecture in an ELF section of its own.
//!
//! `packaging/embed-shims` puts them there when the program is packaged, so that one installed program is enough. A program
//! that was built from source has none.

use std::fs::File;

use cofferdam_platforms::Architecture;

/// The running program, even if its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The name of the section with the shim for this architecture.
fn section_name(architecture: Architecture) -> String {
    format!(".cofferdam.shim.{}", architecture.as_str())
}

/// The shim for this architecture, if this program contains it. The error is a sentence.
pub(crate) fn read(architecture: Architecture) -> Result<Option<Vec<u8>>, String> {
    let failed = |error| format!("cannot read the shim inside this program: {error}");
    let program = File::open(THIS_PROGRAM).map_err(failed)?;
    cofferdam_base::elf::read_section(&program, &section_name(architecture), super::MAX_FILE_BYTES)
        .map_err(failed)
}
