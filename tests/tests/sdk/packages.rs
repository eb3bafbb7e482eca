//! Tests of the packages as they are released: their contents, and that they can be used without the sources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::process::command;
use cofferdam_tests::tools::Tool;

use super::setup::{packaging, run};

/// The directory of both packages, built from the current sources. `None` if a tool is missing.
///
/// Tests may run in several processes: the first builds the packages, and the others wait for the lock and use the result.
pub(crate) fn built_packages() -> Option<PathBuf> {
    let (python, modules) = (Tool::Python.path()?, Tool::NodeModules.path()?);
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(base).expect("the target directory is writable");
    let lock = File::create(base.join("sdk.lock")).expect("the target directory is writable");
    lock.lock().expect("a file can be locked");
    let tools = [python.as_path(), &modules].map(|tool| tool.canonicalize().expect("the tool is installed"));
    let directory = base.join(format!("sdk-{}", digest_of_sources(&tools)));
    if !directory.exists() {
        let earlier =
            fs::read_dir(base).expect("the target directory is readable").flatten().map(|entry| entry.path());
        for earlier in earlier.filter(|path| path.is_dir() && path.to_string_lossy().contains("/sdk-")) {
            fs::remove_dir_all(earlier).expect("packages of earlier sources can be removed");
        }
        let unfinished = tempfile::tempdir_in(base).expect("a temporary directory can be made");
        let mut script = command(packaging().join("sdk"));
        script.arg(unfinished.path()).env("PYTHON", python).env("MODULES", modules);
        run(script, "packaging/sdk");
        fs::rename(unfinished.keep(), &directory).expect("a directory can be renamed");
    }
    Some(directory)
}

/// A digest of all files that go into the packages, and of the paths of the tools that build them.
fn digest_of_sources(tools: &[PathBuf]) -> String {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    let mut pending =
        ["sdk", "python", "typescript", "../LICENSE"].map(|name| packaging().join(name)).to_vec();
    while let Some(path) = pending.pop() {
        digest.update(path.as_os_str().as_encoded_bytes());
        if path.is_dir() {
            let mut inside: Vec<PathBuf> =
                fs::read_dir(&path).expect("it is readable").flatten().map(|entry| entry.path()).collect();
            inside.sort();
            pending.extend(inside);
        } else {
            digest.update(&fs::read(&path).expect("it is readable"));
        }
    }
    tools.iter().for_each(|tool| digest.update(tool.as_os_str().as_encoded_bytes()));
    digest.finish().as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
pub(crate) fn only_file(directory: &Path, end: &str) -> PathBuf {
    let files = std::fs::read_dir(directory).expect("the directory is there").flatten();
    let found: Vec<PathBuf> =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(end)).collect();
    let [only] = found.as_slice() else { panic!("expected one file that ends in {end}, found {found:?}") };
    only.clone()
}

#[test]
fn the_wheel_has_the_typed_package_and_nothing_else() {
    let (Some(python), Some(packages)) = (Tool::Python.path(), built_packages()) else { return };
    let wheel = only_file(&packages, ".whl");
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
        assert!(names.contains(&expected), "{expected} is missing in {names:?}");
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
    let Some(packages) = built_packages() else { return };
    let tarball = only_file(&packages, ".tgz");
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
