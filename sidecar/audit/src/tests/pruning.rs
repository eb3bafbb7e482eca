//! Removing old files, and verifying what is left.

use cofferdam_base::clock;

use super::*;

/// An audit of ten files with one record each.
fn ten_files() -> (Directory, Audit) {
    let directory = Directory::new();
    let audit = directory.open_with_file_size(10);
    audit
        .event(&EventRecord { link: Some("l-1"), ..EventRecord::new(Event::LinkStart) })
        .expect("the disk has room");
    record_decisions(&audit, 1..10);
    assert_eq!(directory.verify().unwrap().files, 10);
    (directory, audit)
}

fn prune_to(directory: &Directory, files: u64) -> Pruned {
    let bytes =
        (11 - files..=10).map(|index| fs::metadata(directory.file(index as u32)).unwrap().len()).sum();
    prune(&directory.audit_path(), Keep::Bytes(bytes), clock::now()).unwrap()
}

#[test]
fn after_pruning_the_rest_verifies_and_the_chain_goes_on() {
    let (directory, audit) = ten_files();
    let pruned = prune_to(&directory, 4);
    assert_eq!((pruned.files, pruned.last_record), (6, 6));
    assert!(!directory.file(6).exists() && directory.file(7).exists());
    record_decisions(&audit, 10..12);
    drop(audit);
    record_decisions(&directory.open_with_file_size(10), 12..13);
    let verified = directory.verify().unwrap();
    assert_eq!((verified.pruned, verified.records, verified.files), (6, 7, 7));

    let keep_nothing = Keep::Bytes(0);
    let pruned = prune(&directory.audit_path(), keep_nothing, clock::now()).unwrap();
    assert_eq!((pruned.files, pruned.last_record), (5, 11), "the two newest files always stay");
    assert_eq!(directory.verify().unwrap().records, 2);
    assert_eq!(prune(&directory.audit_path(), keep_nothing, clock::now()).unwrap().files, 0);
    record_decisions(&directory.open(), 13..14);
    assert_eq!(directory.verify().unwrap().records, 3);
}

#[test]
fn files_are_pruned_by_age() {
    let (directory, _audit) = ten_files();
    let now = clock::now();
    let day = Duration::from_secs(86_400);
    for index in 1..=3 {
        File::open(directory.file(index)).unwrap().set_modified(now - 40 * day).unwrap();
    }
    File::open(directory.file(4)).unwrap().set_modified(now - 30 * day).unwrap();
    let bytes: u64 = (1..=3).map(|index| fs::metadata(directory.file(index)).unwrap().len()).sum();
    let pruned = prune(&directory.audit_path(), Keep::YoungerThan(30 * day), now).unwrap();
    assert_eq!(pruned, Pruned { files: 3, bytes, last_record: 3 }, "a file of exactly this age stays");
    directory.verify().unwrap();
}

#[test]
fn removed_files_without_a_mark_or_with_a_forged_one_are_found() {
    let (directory, _audit) = ten_files();
    fs::remove_file(directory.file(1)).unwrap();
    assert!(matches!(directory.verify(), Err(VerifyError::MissingFile { .. })));

    let (directory, _audit) = ten_files();
    prune_to(&directory, 5);
    let mark = directory.audit_path().join(cut::FILE_NAME);
    let original = fs::read_to_string(&mark).unwrap();
    fs::remove_file(directory.file(6)).unwrap();
    assert!(matches!(directory.verify(), Err(VerifyError::MissingFile { .. })), "only part of it was pruned");
    fs::write(&mark, original.replace(r#""first_file":6"#, r#""first_file":7"#)).unwrap();
    assert!(matches!(directory.verify(), Err(VerifyError::Mark(cut::CutError::Forged { .. }))));
    fs::remove_file(&mark).unwrap();
    assert!(matches!(directory.verify(), Err(VerifyError::MissingFile { .. })));
}

#[test]
fn a_changed_audit_is_not_pruned() {
    let (directory, _audit) = ten_files();
    let changed = fs::read_to_string(directory.file(3)).unwrap().replace("allow", "deny!");
    fs::write(directory.file(3), changed).unwrap();
    let refused = prune(&directory.audit_path(), Keep::Bytes(0), clock::now());
    assert!(matches!(refused, Err(PruneError::NotVerified(VerifyError::Changed { .. }))));
    assert!(directory.file(1).exists());
}

#[test]
fn files_that_an_interrupted_run_left_are_removed_by_the_next() {
    let (directory, _audit) = ten_files();
    let first = fs::read(directory.file(1)).unwrap();
    prune_to(&directory, 4);
    fs::write(directory.file(1), first).unwrap();
    directory.verify().unwrap();
    let pruned = prune(&directory.audit_path(), Keep::Bytes(0), clock::now()).unwrap();
    assert_eq!(pruned.files, 3, "the file that was left, and two more");
    assert!(!directory.file(1).exists());
    directory.verify().unwrap();
}

#[test]
fn removing_a_file_that_was_left_over_does_not_move_the_mark_back() {
    let (directory, _audit) = ten_files();
    let first = fs::read(directory.file(1)).unwrap();
    prune_to(&directory, 4);
    fs::write(directory.file(1), first).unwrap();
    let pruned = prune_to(&directory, 4);
    assert_eq!((pruned.files, pruned.last_record), (1, 6));
    assert_eq!(directory.verify().unwrap().pruned, 6);
}

#[test]
fn a_mark_that_cannot_be_read_is_not_ignored() {
    let (directory, _audit) = ten_files();
    fs::create_dir(directory.audit_path().join(cut::FILE_NAME)).unwrap();
    assert!(matches!(directory.verify(), Err(VerifyError::Mark(cut::CutError::Read { .. }))));
}

#[test]
fn the_last_record_before_the_cut_and_the_head_of_an_empty_audit_are_accepted_as_heads() {
    let (directory, _audit) = ten_files();
    let line = fs::read_to_string(directory.file(6)).unwrap();
    let removed: serde_json::Value = serde_json::from_str(&line).unwrap();
    prune_to(&directory, 4);
    verify(&directory.audit_path(), removed["chain"].as_str()).unwrap();
    verify(&directory.audit_path(), Some(Hash::GENESIS.as_str())).unwrap();
}

#[test]
fn a_head_from_before_the_cut_is_not_called_tampering() {
    let (directory, audit) = ten_files();
    let line = fs::read_to_string(directory.file(2)).unwrap();
    let old_head: serde_json::Value = serde_json::from_str(&line).unwrap();
    let old_head = old_head["chain"].as_str().unwrap();
    verify(&directory.audit_path(), Some(old_head)).unwrap();
    prune_to(&directory, 4);
    let missing = verify(&directory.audit_path(), Some(old_head));
    assert!(matches!(missing, Err(VerifyError::HeadMaybePruned { pruned: 6, .. })));
    verify(&directory.audit_path(), Some(audit.end().1.as_str())).unwrap();
}

#[test]
fn decisions_that_may_have_been_pruned_count_as_made() {
    let (directory, audit) = ten_files();
    assert_eq!(audit.decided("l-1", &[3, 40]).unwrap(), [(3, RecordedAttempts::One)].into());
    prune_to(&directory, 4);
    assert_eq!(
        audit.decided("l-1", &[3, 9, 40]).unwrap(),
        [(3, RecordedAttempts::Repeated), (9, RecordedAttempts::One), (40, RecordedAttempts::Repeated)]
            .into()
    );
    // A link that began after the cut has all its records.
    audit.event(&EventRecord { link: Some("l-2"), ..EventRecord::new(Event::LinkStart) }).unwrap();
    assert_eq!(audit.decided("l-2", &[1]).unwrap(), [].into());
    assert_eq!(audit.decided("l-3", &[1]).unwrap(), [(1, RecordedAttempts::Repeated)].into());
}
