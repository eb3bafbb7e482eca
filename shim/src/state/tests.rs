//! Tests of the state directory, as several shims of one sandbox use it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use super::*;

/// A directory for one test, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cofferdam-shim-state-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn enrolment_file(&self) -> PathBuf {
        self.0.join("enroll")
    }

    fn write_enrolment_string(&self, text: &str) {
        fs::write(self.enrolment_file(), text).unwrap();
    }

    /// The state as a new process opens it.
    fn state(&self) -> EnrolmentState {
        self.state_with(None)
    }

    fn state_with(&self, variable: Option<String>) -> EnrolmentState {
        let sources = EnrolmentSources {
            variable,
            file: Some(self.enrolment_file()),
            default_file: self.0.join("none"),
        };
        EnrolmentState::new(self.0.join("a/state"), sources)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700));
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn enrolment_string(ticket: char) -> String {
    format!("cofferdam:1:{}:{}:tls://relay.example.com:7443\n", "a".repeat(64), ticket.to_string().repeat(64))
}

fn ticket_of(proof: &Proof) -> char {
    match proof {
        Proof::Ticket { ticket } => ticket.0.chars().next().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn an_enrolment_string_becomes_a_key_and_is_removed() {
    let folder = Folder::new("string");
    folder.write_enrolment_string(&enrolment_string('1'));
    let saved = folder.state().find().await.unwrap();
    assert_eq!(saved.relay.to_string(), "tls://relay.example.com:7443");
    assert!(!folder.enrolment_file().exists(), "the file is removed after use");
    let state = folder.0.join("a/state");
    assert_eq!((mode(&state), mode(&state.join("enrolment.json"))), (0o700, 0o600));
    let again = folder.state().find().await.unwrap();
    assert_eq!(again.identity.public(), saved.identity.public(), "the same key is used again");
    let (_held, proof) = folder.state().hold(&saved.identity.public()).await.unwrap();
    assert_eq!(ticket_of(&proof), '1');
}

#[tokio::test]
async fn the_welcomes_epoch_is_presented_the_next_time() {
    let folder = Folder::new("epoch");
    folder.write_enrolment_string(&enrolment_string('1'));
    let key = folder.state().find().await.unwrap().identity.public();
    let (held, _) = folder.state().hold(&key).await.unwrap();
    held.store_epoch(Epoch("e1".into())).unwrap();
    let (held, proof) = folder.state().hold(&key).await.unwrap();
    assert_eq!(proof, Proof::Key { epoch: Some(Epoch("e1".into())) });
    drop(held);
    let (_, proof) = folder.state().hold(&key).await.unwrap();
    assert_eq!(
        proof,
        Proof::Key { epoch: Some(Epoch("e1".into())) },
        "an attempt that stored no epoch changes nothing"
    );
}

#[tokio::test]
async fn a_key_takes_precedence_over_a_leftover_ticket() {
    let folder = Folder::new("leftover");
    folder.write_enrolment_string(&enrolment_string('1'));
    let key = folder.state().find().await.unwrap().identity.public();
    folder.write_enrolment_string(&enrolment_string('2'));
    let state = folder.state_with(Some(enrolment_string('3')));
    assert_eq!(state.find().await.unwrap().identity.public(), key);
    assert!(folder.enrolment_file().exists(), "the string was not used");
}

#[tokio::test]
async fn a_refused_key_is_replaced_by_a_new_ticket_only() {
    let folder = Folder::new("refused");
    let state = folder.state_with(Some(enrolment_string('1')));
    let key = state.find().await.unwrap().identity.public();
    assert_eq!(state.refused(&key), OtherEnrolment::None, "the variable holds the ticket that was used");
    assert!(matches!(state.find().await, Err(StateError::None)));
    assert!(matches!(state.hold(&key).await, Err(StateError::Changed)));

    folder.write_enrolment_string(&enrolment_string('2'));
    let sibling = folder.state_with(Some(enrolment_string('1')));
    assert_eq!(
        sibling.find().await.unwrap().identity.public(),
        key,
        "the key was not refused to this shim yet"
    );
    assert_eq!(sibling.refused(&key), OtherEnrolment::Ready);
    let new = sibling.find().await.unwrap().identity.public();
    assert_ne!(new, key);
    assert_eq!(state.find().await.unwrap().identity.public(), new, "the first shim finds the new key too");
    let (_held, proof) = state.hold(&new).await.unwrap();
    assert_eq!(ticket_of(&proof), '2');
}

/// A mounted file cannot be removed, and a variable cannot be unset.
#[tokio::test]
async fn leftover_enrolment_strings_are_tried_once_each() {
    let folder = Folder::new("stay");
    let state = folder.state_with(Some(enrolment_string('1')));
    for (ticket, other_enrolment) in [('1', OtherEnrolment::Ready), ('2', OtherEnrolment::None)] {
        folder.write_enrolment_string(&enrolment_string('2'));
        let key = state.find().await.unwrap().identity.public();
        let (held, proof) = state.hold(&key).await.unwrap();
        assert_eq!(ticket_of(&proof), ticket);
        drop(held);
        folder.write_enrolment_string(&enrolment_string('2'));
        assert_eq!(state.refused(&key), other_enrolment, "{ticket}");
    }
    assert!(matches!(state.find().await, Err(StateError::None)));
    folder.write_enrolment_string(&enrolment_string('3'));
    state.find().await.expect("a new string is still found");
}

#[tokio::test]
async fn a_shim_without_an_enrolment_searches_at_every_attempt() {
    let folder = Folder::new("waited");
    let state = folder.state();
    assert!(matches!(state.find().await, Err(StateError::None)));
    assert!(!folder.0.join("a").exists(), "no directory is made without a string");
    folder.write_enrolment_string("cofferdam:1:half a str");
    let error = state.find().await.unwrap_err();
    assert!(matches!(&error, StateError::InvalidString { .. }), "{error}");
    assert!(folder.enrolment_file().exists(), "the file may be only half written");
    folder.write_enrolment_string(&enrolment_string('1'));
    state.find().await.unwrap();
}

#[tokio::test]
async fn one_shim_at_a_time_presents_the_key() {
    let folder = Folder::new("turns");
    folder.write_enrolment_string(&enrolment_string('1'));
    let state = folder.state();
    let key = state.find().await.unwrap().identity.public();
    let (held, _) = state.hold(&key).await.unwrap();
    let other = folder.state();
    let mut waiting = Box::pin(other.hold(&key));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
    held.store_epoch(Epoch("e1".into())).unwrap();
    let (_, proof) = waiting.await.unwrap();
    assert_eq!(
        proof,
        Proof::Key { epoch: Some(Epoch("e1".into())) },
        "the second shim sees the epoch that the first one stored"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_never_released_is_reported() {
    let folder = Folder::new("stuck");
    folder.write_enrolment_string(&enrolment_string('1'));
    let state = folder.state();
    let key = state.find().await.unwrap().identity.public();
    let (_held, _) = state.hold(&key).await.unwrap();
    let error = folder.state().hold(&key).await.unwrap_err();
    assert!(matches!(&error, StateError::Busy { .. }), "{error}");
}

#[tokio::test]
async fn concurrent_shims_make_one_key() {
    let folder = Folder::new("many");
    folder.write_enrolment_string(&enrolment_string('1'));
    let mut shims = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let state = folder.state();
        shims.spawn(async move {
            // A shim that finds the string gone finds the key.
            state.find().await.unwrap().identity.public()
        });
    }
    let keys = shims.join_all().await;
    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[tokio::test]
async fn an_unwritable_state_directory_is_reported_before_the_ticket_is_used() {
    let folder = Folder::new("unwritable");
    folder.write_enrolment_string(&enrolment_string('1'));
    fs::write(folder.0.join("a"), "a file where a directory should be").unwrap();
    let error = folder.state().find().await.unwrap_err();
    assert!(error.to_string().contains("COFFERDAM_STATE"), "{error}");
    assert!(folder.enrolment_file().exists());
    fs::remove_file(folder.0.join("a")).unwrap();
    folder.state().find().await.unwrap();
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_replaced_by_a_new_enrolment() {
    let folder = Folder::new("damaged");
    let file = folder.0.join("a/state/enrolment.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for damage in ["", "{}", "[1]", r#"{"relay":"tls://h:1","pin":"00","key":"zz","ticket":"t"}"#] {
        fs::write(&file, damage).unwrap();
        let error = folder.state().find().await.unwrap_err();
        assert!(matches!(&error, StateError::Damaged { .. }), "{damage}: {error}");
    }
    folder.write_enrolment_string(&enrolment_string('1'));
    folder.state().find().await.unwrap();
}

#[test]
fn nothing_secret_is_printed() {
    let folder = Folder::new("printed");
    let state = folder.state_with(Some(enrolment_string('1')));
    assert!(!format!("{state:?}").contains(&"1".repeat(64)));
}
