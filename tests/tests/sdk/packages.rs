//! The packages as they ship: what is in them, and that they can be used without the sources.

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::process::command;
use cofferdam_tests::tools::Tool;

use super::scene::{packaging, run};

/// Builds both packages into this directory. `None` where a tool is missing.
pub(crate) fn build(directory: &Path) -> Option<()> {
    let mut script = command(packaging().join("sdk"));
    script.arg(directory).env("PYTHON", Tool::Python.path()?).env("MODULES", Tool::NodeModules.path()?);
    run(script, "packaging/sdk");
    Some(())
}

#[track_caller]
pub(crate) fn only_file(directory: &Path, end: &str) -> PathBuf {
    let files = std::fs::read_dir(directory).expect("the directory is there").flatten();
    let found: Vec<PathBuf> =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(end)).collect();
    let [only] = found.as_slice() else { panic!("one file with the end {end}: {found:?}") };
    only.clone()
}

#[test]
fn the_wheel_has_the_typed_package_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (Some(python), Some(())) = (Tool::Python.path(), build(directory.path())) else { return };
    let wheel = only_file(directory.path(), ".whl");
    assert!(wheel.ends_with("cofferdam_sdk-0.1.0-py3-none-any.whl"), "{wheel:?}");
    let mut list = command(&python);
    list.args(["-m", "zipfile", "-l"]).arg(&wheel);
    let listed = run(list, "zipfile");
    let names: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    for expected in [
        "cofferdam_sdk/py.typed",
        "cofferdam_sdk/__init__.py",
        "cofferdam_sdk-0.1.0.dist-info/licenses/LICENSE",
    ] {
        assert!(names.contains(&expected), "{expected} in {names:?}");
    }
    let sources =
        std::fs::read_dir(packaging().join("python/src/cofferdam_sdk")).expect("the package is there");
    let mut expected: Vec<String> = sources
        .flatten()
        .map(|file| format!("cofferdam_sdk/{}", file.file_name().to_string_lossy()))
        .filter(|name| !name.contains("__pycache__"))
        .collect();
    expected.sort();
    let mut packed: Vec<&str> = names.iter().copied().filter(|name| !name.contains(".dist-info/")).collect();
    packed.sort_unstable();
    assert_eq!(packed, expected);

    // Imported from the wheel, without dependencies.
    let mut import: Command = command(&python);
    import.args(["-I", "-S", "-c"]).arg(format!(
        "import sys; sys.path.insert(0, {:?}); import cofferdam_sdk; print(cofferdam_sdk.Client(socket='/s'))",
        wheel.to_string_lossy()
    ));
    assert_eq!(run(import, "import").trim(), "Client('/s')");
}

#[test]
fn the_tarball_has_the_compiled_package_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(()) = build(directory.path()) else { return };
    let tarball = only_file(directory.path(), ".tgz");
    assert!(tarball.ends_with("cofferdam-sdk-0.1.0.tgz"), "{tarball:?}");
    let mut list = command("tar");
    list.arg("-tzf").arg(&tarball);
    let listed = run(list, "tar");
    let sources = std::fs::read_dir(packaging().join("typescript/src")).expect("the package is there");
    let mut expected: Vec<String> =
        ["LICENSE", "README.md", "package.json"].iter().map(|name| format!("package/{name}")).collect();
    for source in sources.flatten() {
        let name = source.file_name().to_string_lossy().replace(".ts", "");
        expected.extend([format!("package/dist/{name}.js"), format!("package/dist/{name}.d.ts")]);
    }
    expected.sort();
    let mut packed: Vec<&str> = listed.lines().collect();
    packed.sort_unstable();
    assert_eq!(packed, expected);
}
