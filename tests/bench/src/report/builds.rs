//! Which builds of the sidecar and of the shim were measured: the promised numbers are about the builds that ship.

use std::fmt;
use std::path::Path;

use crate::footprint;
use crate::program_paths::ProgramPaths;

/// The profiles with which the programs ship.
const SHIPPED_SIDECAR: &str = "dist";
const SHIPPED_SHIM: &str = "shim";

/// The measured programs of Cofferdam.
#[derive(Debug)]
pub(crate) struct MeasuredBuilds {
    pub(crate) sidecar: BuildProfile,
    pub(crate) shim: BuildProfile,
    /// Bytes of the shim's file.
    pub(crate) shim_size: Option<u64>,
    /// Bytes of the shim's file, built without its default features.
    pub(crate) small_shim_size: Option<u64>,
}

/// The profile of cargo with which a program was built; unknown if the program is not where cargo put it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct BuildProfile(pub(crate) Option<String>);

impl MeasuredBuilds {
    pub(crate) fn of(paths: &ProgramPaths) -> Self {
        let (sidecar, shim) = (paths.sidecar().ok(), paths.shim().ok());
        let profile = |program: Option<&Path>| BuildProfile(program.and_then(profile_of));
        Self {
            sidecar: profile(sidecar.as_deref()),
            shim: profile(shim.as_deref()),
            shim_size: shim.and_then(|shim| footprint::file_size(&shim).ok()),
            small_shim_size: paths.small_shim().and_then(|shim| footprint::file_size(&shim).ok()),
        }
    }

    /// Why the promised numbers do not apply to this run, if they do not.
    pub(crate) fn objection(&self) -> Option<String> {
        let ships = self.sidecar.is(SHIPPED_SIDECAR) && self.shim.is(SHIPPED_SHIM);
        (!ships).then(|| {
            format!(
                "**The promises are about the profiles `{SHIPPED_SIDECAR}` and `{SHIPPED_SHIM}`. This run measured {self}, so it \
                 neither keeps nor breaks them.**"
            )
        })
    }
}

impl BuildProfile {
    fn is(&self, name: &str) -> bool {
        self.0.as_deref() == Some(name)
    }
}

impl fmt::Display for MeasuredBuilds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sidecar with {} and the shim with {}", self.sidecar, self.shim)
    }
}

impl fmt::Display for BuildProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(name) => write!(f, "the profile `{name}`"),
            None => f.write_str("an unknown profile"),
        }
    }
}

/// cargo puts programs into a directory named after the profile, beside their dependencies in `deps`.
fn profile_of(program: &Path) -> Option<String> {
    let directory = program.parent().filter(|directory| directory.join("deps").is_dir())?;
    match directory.file_name()?.to_str()? {
        "debug" => Some("dev".to_owned()),
        name => Some(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_of_the_programs_that_ship_is_without_an_objection() {
        let objection = |sidecar: &str, shim: &str| {
            let profile = |name: &str| BuildProfile(Some(name.to_owned()));
            let (sidecar, shim) = (profile(sidecar), profile(shim));
            MeasuredBuilds { sidecar, shim, shim_size: None, small_shim_size: None }.objection()
        };
        assert_eq!(objection("dist", "shim"), None);
        for (sidecar, shim) in [("release", "shim"), ("dev", "shim"), ("dist", "release")] {
            let objection = objection(sidecar, shim).expect("the promises are about other profiles");
            assert!(objection.contains("neither keeps nor breaks"), "{objection}");
            assert!(objection.contains(&format!("sidecar with the profile `{sidecar}`")), "{objection}");
        }
    }

    #[test]
    fn a_profile_is_read_from_the_directory_of_cargo_and_nowhere_else() {
        let target = tempfile::tempdir().unwrap();
        for (directory, profile) in [("dist", "dist"), ("debug", "dev"), ("x86_64-linux/shim", "shim")] {
            std::fs::create_dir_all(target.path().join(directory).join("deps")).unwrap();
            let program = target.path().join(directory).join("program");
            assert_eq!(profile_of(&program).as_deref(), Some(profile));
        }
        assert_eq!(profile_of(Path::new("/usr/bin/cofferdam")), None);
        assert_eq!(profile_of(&target.path().join("dist-copy/cofferdam")), None);
    }
}
