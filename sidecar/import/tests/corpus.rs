//! Imports every file of `corpus/`: settings as people have them, one directory each, with what is expected of them in
//! `expected.json`. Every secret contains `CANARY`, so that a leak is found by that word.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};

use cofferdam_import::{
    Application, Destination, Directory, Fields, FileState, FoundEntry, FoundServer, Held, Plan, PlanInput,
    Record, Settings, SettingsChange, ShimProgram, Store, Stored, StoredAt, Surroundings, Undone,
    WriteSecret, apply, plan, project_of, read_version,
};
use proptest::prelude::*;
use serde_json::Value;

/// One directory of the corpus, copied to a place of its own.
struct Case {
    name: String,
    expected: Value,
    directory: tempfile::TempDir,
}

struct NoVault;

impl WriteSecret for NoVault {
    fn write(&mut self, _: &str, _: &Fields) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("these imports store secrets in files".into())
    }
}

struct InFiles<'a>(&'a Store);

impl Stored for InFiles<'_> {
    fn held(&self, place: &StoredAt, fields: &Fields) -> Result<Held, Box<dyn Error + Send + Sync>> {
        match place {
            StoredAt::File(path) => Ok(self.0.held(path, fields)?),
            StoredAt::Kv(_) => Err("these imports store secrets in files".into()),
        }
    }
}

impl Case {
    fn all() -> Vec<Self> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        let mut directories: Vec<PathBuf> = corpus
            .read_dir()
            .expect("the corpus is complete and its copies are writable")
            .map(|entry| entry.expect("the corpus is complete and its copies are writable").path())
            .collect();
        directories.sort();
        directories.iter().map(|directory| Self::copy(directory)).collect()
    }

    fn copy(from: &Path) -> Self {
        let expected: Value = serde_json::from_slice(
            &std::fs::read(from.join("expected.json"))
                .expect("the corpus is complete and its copies are writable"),
        )
        .expect("the corpus is complete and its copies are writable");
        let directory = tempfile::tempdir().expect("the corpus is complete and its copies are writable");
        let relative =
            expected["settings"].as_str().expect("the corpus is complete and its copies are writable");
        let copy = directory.path().join("project").join(relative);
        std::fs::create_dir_all(copy.parent().expect("the corpus is complete and its copies are writable"))
            .expect("the corpus is complete and its copies are writable");
        std::fs::copy(from.join(relative), copy).expect("the corpus is complete and its copies are writable");
        Self {
            name: from
                .file_name()
                .expect("the corpus is complete and its copies are writable")
                .to_str()
                .expect("the corpus is complete and its copies are writable")
                .to_owned(),
            expected,
            directory,
        }
    }

    fn settings_path(&self) -> PathBuf {
        self.directory.path().join("project").join(
            self.expected["settings"].as_str().expect("the corpus is complete and its copies are writable"),
        )
    }

    fn configuration(&self) -> PathBuf {
        self.directory.path().join("configuration/cofferdam.toml")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.settings_path()).expect("the corpus is complete and its copies are writable")
    }

    fn read(&self) -> Settings {
        let home = Path::new("/home/ada");
        let surroundings = Surroundings {
            home: Some(home.to_owned()),
            project: project_of(&self.settings_path(), Some(home)),
            variable: &|_| None,
            exists: &|path| path.exists(),
            directory: &|_| Directory::None,
            text_of: &|_| None,
            default_registry: &|_| None,
            is_configured: &|_| false,
        };
        Settings::read(&self.settings_path(), &self.bytes(), &surroundings)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn plan(&self, settings: &Settings, store: &Store) -> Plan {
        let servers: Vec<(&Path, &FoundServer)> =
            settings.servers().map(|server| (settings.path.as_path(), server)).collect();
        let before = std::fs::read_to_string(self.configuration()).ok();
        let input = PlanInput {
            configuration: before.as_deref(),
            destination: &Destination::Files,
            grant: None,
            stored: &InFiles(store),
        };
        plan(&input, &servers).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Imports with a rewriting, and returns whether the settings file was rewritten.
    fn import(&self) -> bool {
        let store = Store::beside(&self.configuration());
        let settings = self.read();
        let planned = self.plan(&settings, &store);
        let FileState::Present { version, bytes } =
            read_version(&settings.path).expect("the corpus is complete and its copies are writable")
        else {
            unreachable!()
        };
        let names: Vec<&str> = planned.servers.iter().map(|server| server.name.as_str()).collect();
        let shim = ShimProgram { program: "cofferdam-shim", relay: None };
        let mut changes = Vec::new();
        if settings.can_be_rewritten() && !names.is_empty() {
            let (rewritten, entries) =
                settings.rewritten(&names, shim).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            let path = settings.path.clone();
            changes.push(SettingsChange {
                path,
                before: version.clone(),
                original: bytes,
                rewritten,
                entries,
            });
        }
        let before = match read_version(&self.configuration())
            .expect("the corpus is complete and its copies are writable")
        {
            FileState::Absent => None,
            FileState::Present { version, .. } => Some(version),
        };
        let application = Application {
            store: &store,
            plan: &planned,
            configuration: &self.configuration(),
            configuration_version: before.as_ref(),
            read: &[(&settings.path, version)],
            changes: &changes,
        };
        apply(&application, &mut NoVault, &mut |_| {})
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        !changes.is_empty()
    }

    fn names(&self, key: &str) -> BTreeSet<String> {
        let listed = self.expected[key].as_array().into_iter().flatten();
        listed
            .map(|name| name.as_str().expect("the corpus is complete and its copies are writable").to_owned())
            .collect()
    }
}

fn contains_canary(bytes: &[u8]) -> bool {
    bytes.windows(6).any(|window| window == b"CANARY")
}

#[test]
fn servers_and_secrets_of_every_file_are_found() {
    let cases = Case::all();
    assert!(cases.len() >= 40, "{}", cases.len());
    for case in cases {
        let (mut imported, mut skipped, mut shim) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for entry in case.read().entries {
            match entry {
                FoundEntry::Server(server) => {
                    let fields =
                        server.secrets.iter().map(|secret| Value::from(secret.field.clone())).collect();
                    imported.insert(server.name, Value::Array(fields));
                }
                FoundEntry::Shim(found) => drop(shim.insert(found.name)),
                FoundEntry::Skipped { name, .. } => drop(skipped.insert(name)),
            }
        }
        let expected: BTreeMap<String, Value> =
            case.expected["imported"].as_object().unwrap().clone().into_iter().collect();
        assert_eq!(imported, expected, "{}", case.name);
        assert_eq!((skipped, shim), (case.names("skipped"), case.names("shim")), "{}", case.name);
    }
}

#[test]
fn after_an_import_no_secret_is_left_in_settings_and_configuration_and_undo_gives_the_same_bytes() {
    for case in Case::all() {
        let original = case.bytes();
        let is_rewritten = case.import();
        let expects_rewriting = case.expected["rewritten"]
            .as_bool()
            .unwrap_or(!case.expected["imported"].as_object().unwrap().is_empty());
        assert_eq!(is_rewritten, expects_rewriting, "{}", case.name);
        let configuration = std::fs::read(case.configuration()).unwrap();
        assert!(
            !contains_canary(&configuration),
            "{}: {}",
            case.name,
            String::from_utf8_lossy(&configuration)
        );
        let rewritten = case.bytes();
        if !is_rewritten {
            assert_eq!(rewritten, original, "{}", case.name);
            continue;
        }
        let text = String::from_utf8_lossy(&rewritten);
        assert!(!contains_canary(&rewritten) || case.expected["kept"] == true, "{}: {text}", case.name);
        for entry in &case.read().entries {
            assert!(!matches!(entry, FoundEntry::Server(_)), "{}: {text}", case.name);
        }
        let store = Store::beside(&case.configuration());
        let mut record = Record::read(&store).unwrap();
        assert_eq!(record.undo(&store, &case.settings_path()).unwrap(), Undone::Bytes, "{}", case.name);
        assert_eq!(case.bytes(), original, "{}", case.name);
    }
}

#[test]
fn a_second_import_adds_nothing() {
    for case in Case::all() {
        case.import();
        let configuration = std::fs::read(case.configuration()).unwrap();
        let store = Store::beside(&case.configuration());
        if let Ok(mut record) = Record::read(&store)
            && !record.rewritings().is_empty()
        {
            record.undo(&store, &case.settings_path()).unwrap();
        }
        let settings = case.read();
        let planned = case.plan(&settings, &store);
        assert!(planned.secrets.is_empty(), "{}", case.name);
        assert_eq!(planned.configuration.as_bytes(), configuration, "{}", case.name);
    }
}

#[test]
fn what_another_program_changed_since_stays_when_the_entries_are_restored() {
    for case in Case::all() {
        if !case.import() {
            continue;
        }
        let rewritten = case.bytes();
        std::fs::write(case.settings_path(), with_comment_at_end(&rewritten)).unwrap();
        let store = Store::beside(&case.configuration());
        let mut record = Record::read(&store).unwrap();
        let undone = record
            .undo(&store, &case.settings_path())
            .unwrap_or_else(|error| panic!("{}: {error:?}", case.name));
        assert_eq!(undone, Undone::Entries { left: Vec::new() }, "{}", case.name);
        let restored = case.bytes();
        assert!(restored.ends_with(COMMENT.as_bytes()), "{}", case.name);
        assert_eq!(
            case.read().servers().count(),
            case.expected["imported"].as_object().unwrap().len(),
            "{}",
            case.name
        );
    }
}

/// Changes of a file: what is removed, and what is put there.
fn mutations() -> impl Strategy<Value = Vec<(usize, usize, Vec<u8>)>> {
    let part = prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 1..4),
        prop::sample::select(vec![
            "{", "}", "\"", ",", ":", "\n", "\r\n", "//", "/*", "#", "[", "]", "=", "\\", "é", "\u{feff}"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    proptest::collection::vec((any::<usize>(), 0..4_usize, part), 1..6)
}

proptest! {
    /// A damaged file is refused, or is rewritten and restored to the same bytes; reading never panics.
    #[test]
    fn damaged_files_of_the_corpus_lose_no_byte(
        number in any::<prop::sample::Index>(),
        mutations in mutations(),
    ) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        let mut cases: Vec<PathBuf> =
            corpus.read_dir().expect("there is a corpus").flatten().map(|entry| entry.path()).collect();
        cases.sort();
        let case = Case::copy(&cases[number.index(cases.len())]);
        let mut bytes = case.bytes();
        for (position, removed, part) in mutations {
            let start = position % (bytes.len() + 1);
            let end = (start + removed).min(bytes.len());
            bytes.splice(start..end, part);
        }
        std::fs::write(case.settings_path(), &bytes).expect("the copy is writable");
        let surroundings = Surroundings::nowhere();
        let Ok(settings) = Settings::read(&case.settings_path(), &bytes, &surroundings) else { return Ok(()) };
        let names = vec!["x"; settings.servers().count()];
        if names.is_empty() || !settings.can_be_rewritten() {
            return Ok(());
        }
        let shim = ShimProgram { program: "cofferdam-shim", relay: None };
        // What cannot be rewritten by itself is left as it is.
        if settings.rewritten(&names, shim).is_err() {
            return Ok(());
        }
        prop_assert!(case.import());
        let store = Store::beside(&case.configuration());
        let mut record = Record::read(&store).expect("it was written");
        let undone = record.undo(&store, &case.settings_path()).expect("it can be restored");
        prop_assert_eq!(undone, Undone::Bytes);
        prop_assert_eq!(case.bytes(), bytes);
    }
}

/// The text of the comment that another program adds.
const COMMENT: &str = "added";

fn with_comment_at_end(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let line_end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let sign = if text.contains("[mcp_servers") || text.contains("mcp_servers.") { "# " } else { "// " };
    [bytes, line_end.as_bytes(), sign.as_bytes(), COMMENT.as_bytes()].concat()
}
