//! Entries are added to the settings file of a harness in the sandbox, and nothing in it is lost.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cofferdam_platforms::{HarnessSettings, HubSetup, MergedSettings, Pipe, PlatformError};

use crate::support::{ECHO, Scene, read, setup};

/// Adds one line to a file.
pub(crate) struct LineSettings {
    path: String,
    /// Runs while the file is being changed, with the number of the attempt.
    meanwhile: Box<dyn Fn(usize) + Send + Sync>,
    attempts: Mutex<usize>,
    warnings: Mutex<Vec<Option<String>>>,
}

impl LineSettings {
    pub(crate) fn of(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            meanwhile: Box::new(|_| {}),
            attempts: Mutex::default(),
            warnings: Mutex::default(),
        }
    }
}

impl HarnessSettings for LineSettings {
    fn path(&self) -> &str {
        &self.path
    }

    fn entries(&self, shim: &str) -> String {
        format!("run {shim}")
    }

    fn merge(&self, existing: Option<&str>, shim: &str) -> MergedSettings {
        let mut attempts = self.attempts.lock().expect("no holder panics");
        *attempts += 1;
        (self.meanwhile)(*attempts);
        let text = Some(format!("{}run {shim}\n", existing.unwrap_or_default()));
        MergedSettings { text, not_added: None }
    }

    fn finish(&self, warning: Option<String>) {
        self.warnings.lock().expect("no holder panics").push(warning);
    }
}

const ENTRY: &str = "run /home/user/.local/bin/cofferdam-shim\n";

/// Opens a pipe with these settings, and returns the warning.
pub(crate) async fn warning_of(
    settings: LineSettings,
    open: impl AsyncFnOnce(&HubSetup) -> Result<Pipe, PlatformError>,
) -> Option<String> {
    let settings = Arc::new(settings);
    let mut with_settings = setup(ECHO);
    with_settings.harness = Some(Arc::clone(&settings) as Arc<dyn HarnessSettings>);
    let mut pipe = open(&with_settings).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read(&mut pipe, 6).await, b"hello ", "the sandbox is not attached");
    let mut warnings = std::mem::take(&mut *settings.warnings.lock().expect("no holder panics"));
    assert_eq!(warnings.len(), 1);
    warnings.remove(0)
}

impl Scene {
    fn home(&self, path: &str) -> PathBuf {
        self.double.path(self.box_id(), "/home/user").join(path)
    }

    /// Attaches with these settings, and returns the warning.
    async fn warning(&self, settings: LineSettings) -> Option<String> {
        warning_of(settings, async |setup| self.open(setup).await).await
    }

    /// The names of all files in a directory of the home.
    fn names_in(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.home(path)).expect("the directory is there").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_changed_safely_is_not_changed_and_a_warning_has_the_entries_to_add() {
    let Some(scene) = Scene::new() else { return };
    fs::write(scene.home("target"), "mine\n").unwrap();
    symlink("target", scene.home("link")).unwrap();
    fs::create_dir(scene.home("directory")).unwrap();
    fs::write(scene.home("large"), "x".repeat(600 * 1024)).unwrap();
    fs::write(scene.home("binary"), [0xff, 0xfe, 0]).unwrap();
    for (path, reason) in [
        ("link", "it is a symbolic link"),
        ("directory", "it is not a regular file"),
        ("large", "it is larger than 512 KiB"),
        ("binary", "it is not text"),
        ("../user/target", "is not an absolute path"),
        ("directory/a'b", "is not an absolute path"),
        ("target/below", "cannot"),
    ] {
        let warning =
            scene.warning(LineSettings::of(path)).await.unwrap_or_else(|| panic!("{path}: no warning"));
        assert!(warning.contains(reason), "{path}: {warning}");
        assert!(warning.ends_with(ENTRY.trim_end()), "the entries are missing in the warning: {warning}");
    }
    assert_eq!(fs::read_to_string(scene.home("target")).unwrap(), "mine\n");
    assert_eq!(fs::read(scene.home("binary")).unwrap(), [0xff, 0xfe, 0]);
    assert!(scene.names_in("directory").is_empty(), "no upload is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_change_by_the_harness_is_not_lost() {
    let Some(scene) = Scene::new() else { return };
    for (name, before) in [("own", Some("mine\n")), ("new", None)] {
        let file = scene.home(name);
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
        }
        let changed = file.clone();
        let once = move |attempt| {
            if attempt == 1 {
                fs::write(&changed, "changed meanwhile\n").unwrap();
            }
        };
        let settings = LineSettings { meanwhile: Box::new(once), ..LineSettings::of(name) };
        assert_eq!(scene.warning(settings).await, None);
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("changed meanwhile\n{ENTRY}"));

        let changed = file.clone();
        let always = move |attempt| fs::write(&changed, format!("change {attempt}\n")).unwrap();
        let settings = LineSettings { meanwhile: Box::new(always), ..LineSettings::of(name) };
        let warning = scene.warning(settings).await.expect("the file changes before every replacement");
        assert!(warning.contains("keeps changing it"), "{warning}");
        assert!(fs::read_to_string(&file).unwrap().starts_with("change "), "the change was overwritten");
    }
}
