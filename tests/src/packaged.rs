//! The sidecar's program as it is packaged: stripped, and with the static shim inside.

use std::path::{Path, PathBuf};

use crate::process::{built, command, output_of};

/// Puts the static shim into a copy of the sidecar's program, in this directory.
#[track_caller]
pub fn packaged_program(directory: &Path) -> PathBuf {
    program_with_shims(directory, &[(std::env::consts::ARCH, &built("COFFERDAM_SHIM_BIN", "cofferdam-shim"))])
}

/// Puts these shims, each for a processor, into a copy of the sidecar's program, in this directory.
#[track_caller]
pub fn program_with_shims(directory: &Path, shims: &[(&str, &Path)]) -> PathBuf {
    let program = directory.join("cofferdam");
    let mut embed = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/embed-shims"));
    embed.arg(built("COFFERDAM_BIN", "cofferdam")).arg(&program);
    embed.args(shims.iter().map(|(architecture, shim)| format!("{architecture}={}", shim.display())));
    let output = output_of(embed, "packaging/embed-shims");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A copy of the sidecar's program, in this directory, without what only a debugger reads, so that packing a debug build is
/// quick.
#[track_caller]
pub fn stripped_program(directory: &Path) -> PathBuf {
    let program = directory.join("stripped");
    let mut strip = command("strip");
    strip.args(["--strip-all", "-o"]).arg(&program).arg(built("COFFERDAM_BIN", "cofferdam"));
    let output = output_of(strip, "strip");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
