//! Changes of the files that `verify` detects.

use proptest::prelude::*;

use super::*;

/// A small log over several files with a marked torn line in it, and the files' bytes.
struct Sample {
    directory: Directory,
    files: Vec<Vec<u8>>,
    head: String,
}

impl Sample {
    fn new() -> Self {
        let directory = Directory::new();
        record_decisions(&directory.open_with_file_size(1200), 0..4);
        let torn_file = directory.file(2);
        let torn = fs::read(&torn_file).unwrap();
        fs::write(&torn_file, &torn[..torn.len() - 30]).unwrap();
        let audit = directory.open_with_file_size(1200);
        record_decisions(&audit, 4..7);
        let head = audit.end().1.to_string();
        drop(audit);
        let verified = verify(&directory.audit_path(), Some(&head)).unwrap();
        assert_eq!((verified.torn, verified.records), (1, 7));
        let files =
            (1..=verified.files as u32).map(|index| fs::read(directory.file(index)).unwrap()).collect();
        Self { directory, files, head }
    }

    fn write(&self, files: &[Vec<u8>]) {
        for (index, bytes) in (1..).zip(files) {
            fs::write(self.directory.file(index), bytes).unwrap();
        }
    }

    fn verify(&self) -> Result<Verified, VerifyError> {
        self.directory.verify()
    }
}

fn place(error: &VerifyError) -> String {
    match error {
        VerifyError::Changed { place }
        | VerifyError::Cut { place }
        | VerifyError::Misplaced { place, .. }
        | VerifyError::MissingTorn { place } => place.to_string(),
        other => panic!("{other}"),
    }
}

fn lines(directory: &Directory, index: u32) -> Vec<String> {
    fs::read_to_string(directory.file(index)).unwrap().lines().map(str::to_owned).collect()
}

fn write_lines(directory: &Directory, index: u32, lines: &[String]) {
    fs::write(directory.file(index), lines.join("\n") + "\n").unwrap();
}

#[test]
fn every_changed_byte_is_found() {
    let sample = Sample::new();
    for (file, original) in sample.files.iter().enumerate() {
        let path = sample.directory.file(file as u32 + 1);
        for position in 0..original.len() {
            for mask in [0x01, 0x80] {
                let mut bytes = original.clone();
                bytes[position] ^= mask;
                fs::write(&path, &bytes).unwrap();
                // A missing last newline looks like a line that is being written: reported, but not as a fault.
                let found = sample.verify();
                let last = file + 1 == sample.files.len() && position + 1 == original.len();
                match last {
                    true => assert!(found.unwrap().unfinished.is_some()),
                    false => assert!(found.is_err(), "file {file} byte {position} mask {mask}"),
                }
                assert!(verify(&sample.directory.audit_path(), Some(&sample.head)).is_err());
            }
        }
        fs::write(&path, original).unwrap();
    }
    sample.verify().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// With a head, every removed, repeated or reversed part is detected, except an incomplete line after the head.
    #[test]
    fn every_edit_is_found(edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_usize..300, 0_u8..3), 60)) {
        let sample = Sample::new();
        for (file, at, length, edit) in edits {
            let mut files = sample.files.clone();
            let bytes = &mut files[file.index(sample.files.len())];
            let at = at.index(bytes.len());
            let end = (at + length).min(bytes.len());
            let part = bytes[at..end].to_vec();
            match edit {
                0 => drop(bytes.drain(at..end)),
                1 => drop(bytes.splice(at..at, part)),
                _ => bytes[at..end].reverse(),
            }
            if files == sample.files {
                continue;
            }
            sample.write(&files);
            if let Ok(verified) = verify(&sample.directory.audit_path(), Some(&sample.head)) {
                prop_assert!(verified.unfinished.is_some());
            }
        }
    }
}

#[test]
fn a_changed_a_missing_and_a_moved_line_are_named() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..6);
    let original = lines(&directory, 1);

    let mut changed = original.clone();
    changed[2] = changed[2].replace("allow", "deny!");
    write_lines(&directory, 1, &changed);
    let error = directory.verify().unwrap_err();
    assert_eq!(error.to_string(), "audit-00000001.jsonl:3: the line was changed");

    let mut last_changed = original.clone();
    last_changed[5] = last_changed[5].replace("allow", "deny!");
    write_lines(&directory, 1, &last_changed);
    assert_eq!(place(&directory.verify().unwrap_err()), "audit-00000001.jsonl:6");

    let mut missing = original.clone();
    missing.drain(2..4);
    write_lines(&directory, 1, &missing);
    let error = directory.verify().unwrap_err();
    assert_eq!(
        error.to_string(),
        "audit-00000001.jsonl:3: record 5 is where record 3 should be: lines are missing or reordered"
    );

    let mut moved = original.clone();
    moved.swap(3, 4);
    write_lines(&directory, 1, &moved);
    assert!(matches!(directory.verify().unwrap_err(), VerifyError::Misplaced { expected: 4, found: 5, .. }));

    write_lines(&directory, 1, &original);
    directory.verify().unwrap();
}

#[test]
fn a_missing_and_a_swapped_file_are_named() {
    let directory = Directory::new();
    record_decisions(&directory.open_with_file_size(10), 0..4);
    fs::rename(directory.file(2), directory.path().join("aside")).unwrap();
    assert_eq!(directory.verify().unwrap_err().to_string(), "audit-00000002.jsonl: the file is missing");
    fs::rename(directory.file(3), directory.file(2)).unwrap();
    fs::rename(directory.path().join("aside"), directory.file(3)).unwrap();
    assert_eq!(place(&directory.verify().unwrap_err()), "audit-00000002.jsonl:1");
}

#[test]
fn a_cut_end_is_found_with_a_head() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..6);
    let early = directory.verify().unwrap().head.unwrap().hash.to_string();
    record_decisions(&directory.open(), 6..8);
    let head = directory.verify().unwrap().head.unwrap().hash.to_string();
    let check = |head: &str| verify(&directory.audit_path(), Some(head));
    assert_eq!(check(&early).unwrap().records, 8);
    assert_eq!(check(Hash::GENESIS.as_str()).unwrap().records, 8);

    let cut = lines(&directory, 1)[..6].to_vec();
    write_lines(&directory, 1, &cut);
    directory.verify().unwrap();
    check(&early).unwrap();
    assert!(matches!(check(&head), Err(VerifyError::HeadMissing { records: 6, .. })));
    assert!(matches!(check("beef"), Err(VerifyError::HeadMalformed(_))));
    fs::remove_file(directory.file(1)).unwrap();
    assert!(matches!(check(&early), Err(VerifyError::HeadMissing { records: 0, .. })));
}

#[test]
fn a_mistyped_head_is_not_called_tampering() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..6);
    let head = directory.verify().unwrap().head.unwrap().hash.to_string();
    let check = |head: &str| verify(&directory.audit_path(), Some(head));
    check(&format!(" {}\n", head.to_uppercase())).expect("case and spaces do not matter");
    let last = if head.ends_with('0') { "1" } else { "0" };
    let mistyped = check(&format!("{}{last}", &head[..63]));
    assert!(matches!(mistyped, Err(VerifyError::HeadMistyped { place, .. }) if place.line == 6));
    assert!(matches!(check(&head[1..]), Err(VerifyError::HeadMalformed(_))));
    assert!(matches!(check(&"ab".repeat(32)), Err(VerifyError::HeadMissing { .. })));
}

#[test]
fn an_empty_or_vanished_audit_is_an_error() {
    let directory = Directory::new();
    assert!(matches!(directory.verify(), Err(VerifyError::Read { .. })));
    let audit = directory.open();
    assert!(matches!(directory.verify(), Err(VerifyError::Empty { .. })));
    record_decisions(&audit, 0..1);
    directory.verify().unwrap();
    fs::remove_file(directory.file(1)).unwrap();
    assert!(matches!(directory.verify(), Err(VerifyError::Empty { .. })));
}

#[test]
fn a_torn_line_is_kept_and_marked_wherever_it_was_torn() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..3);
    let original = fs::read(directory.file(1)).unwrap();
    let last = original[..original.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for cut in last + 1..original.len() {
        fs::write(directory.file(1), &original[..cut]).unwrap();
        let unfinished = directory.verify().unwrap();
        assert_eq!(unfinished.unfinished.unwrap().line, 3);
        assert_eq!(unfinished.records, 2);

        let audit = directory.open();
        record_decisions(&audit, 3..4);
        let verified = directory.verify().unwrap();
        let now = fs::read(directory.file(1)).unwrap();
        assert!(now.starts_with(&original[..cut]), "the torn line was truncated");
        // A line that lacks only its newline is whole.
        let whole = cut + 1 == original.len();
        assert_eq!((verified.torn, verified.records), if whole { (0, 4) } else { (1, 4) }, "cut at {cut}");
        let torn_line = verified.last_torn.as_ref().map(|place| place.line);
        assert_eq!(torn_line, if whole { None } else { Some(3) });
        assert_eq!(end(verified), audit.end());
    }
}

#[test]
fn a_torn_first_line_continues_the_chain_of_the_previous_file() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..3);
    fs::write(directory.file(2), b"{\"number\":4,\"ti").unwrap();
    record_decisions(&directory.open(), 3..4);
    let verified = directory.verify().unwrap();
    assert_eq!((verified.files, verified.records, verified.torn), (2, 5, 1));
}

#[test]
fn a_torn_line_before_an_empty_file_is_marked_in_its_own_file() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..3);
    let mut torn = fs::read(directory.file(1)).unwrap();
    torn.truncate(torn.len() - 5);
    fs::write(directory.file(1), torn).unwrap();
    fs::write(directory.file(2), b"").unwrap();
    record_decisions(&directory.open_with_file_size(10), 3..5);
    let verified = directory.verify().unwrap();
    assert_eq!((verified.files, verified.records, verified.torn), (3, 5, 1));
}

#[test]
fn a_mark_covers_its_own_torn_line_and_nothing_else() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..2);
    let mut torn = fs::read(directory.file(1)).unwrap();
    torn.extend_from_slice(b"{\"number\":3");
    fs::write(directory.file(1), torn).unwrap();
    record_decisions(&directory.open(), 2..3);
    let original = lines(&directory, 1);
    assert_eq!(original.len(), 5);

    let mut without = original.clone();
    without.remove(2);
    write_lines(&directory, 1, &without);
    assert!(matches!(directory.verify().unwrap_err(), VerifyError::MissingTorn { .. }));

    let mut other = original.clone();
    other[2].push('x');
    write_lines(&directory, 1, &other);
    assert_eq!(place(&directory.verify().unwrap_err()), "audit-00000001.jsonl:3");

    let mut more = original.clone();
    more.insert(2, "x".to_owned());
    write_lines(&directory, 1, &more);
    assert_eq!(place(&directory.verify().unwrap_err()), "audit-00000001.jsonl:3");
}

#[test]
fn nothing_is_appended_after_a_damaged_last_line() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..2);
    let mut bytes = fs::read(directory.file(1)).unwrap();
    bytes.extend_from_slice(b"scribble\n");
    fs::write(directory.file(1), &bytes).unwrap();
    assert!(matches!(Audit::open(directory.options()), Err(AuditError::Damaged { .. })));
    assert_eq!(fs::read(directory.file(1)).unwrap(), bytes);
}

#[test]
fn a_changed_last_line_without_a_newline_is_marked_as_torn_and_not_completed() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..2);
    let mut changed = lines(&directory, 1);
    changed[1] = changed[1].replace("allow", "deny!");
    fs::write(directory.file(1), changed.join("\n")).unwrap();
    record_decisions(&directory.open(), 2..3);
    let verified = directory.verify().unwrap();
    assert_eq!((verified.records, verified.torn), (3, 1));
}

#[test]
fn the_chain_is_not_continued_if_the_file_before_a_torn_first_line_is_torn_or_missing() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..3);
    let mut torn = fs::read(directory.file(1)).unwrap();
    torn.extend_from_slice(b"{\"number\":4");
    fs::write(directory.file(1), &torn).unwrap();
    fs::write(directory.file(2), b"{\"number\":4,\"ti").unwrap();
    let refused = Audit::open(directory.options()).map(drop).unwrap_err();
    assert!(
        refused.to_string().ends_with("its last line is torn, and there is a file after it"),
        "{refused}"
    );

    fs::rename(directory.file(2), directory.file(3)).unwrap();
    let refused = Audit::open(directory.options()).map(drop).unwrap_err();
    assert!(refused.to_string().ends_with("the file is missing, and the next one needs it"), "{refused}");
}

#[test]
fn the_end_of_a_file_larger_than_any_line_is_found() {
    let directory = Directory::new();
    let audit = directory.open();
    let mut batch = audit.batch();
    for seq in 0..2000 {
        batch.decision(&decision(call("l-1", seq)));
    }
    assert!(matches!(submit(&audit, &mut batch), Submitted::Done(Ok(_))));
    drop(audit);
    assert!(fs::metadata(directory.file(1)).unwrap().len() > files::LINE_LIMIT as u64);
    record_decisions(&directory.open(), 2000..2001);
    assert_eq!(directory.verify().unwrap().records, 2001);
}

#[test]
fn a_last_line_that_is_longer_than_any_record_is_not_read() {
    for (length, reason) in [
        (files::LINE_LIMIT, "its last line has no chain"),
        (files::LINE_LIMIT + 1, "its last line is longer than any record"),
    ] {
        let directory = Directory::new();
        record_decisions(&directory.open(), 0..1);
        let mut bytes = fs::read(directory.file(1)).unwrap();
        bytes.resize(bytes.len() + length, b'x');
        bytes.push(b'\n');
        fs::write(directory.file(1), &bytes).unwrap();
        let refused = Audit::open(directory.options()).map(drop).unwrap_err();
        assert!(refused.to_string().ends_with(reason), "{length} bytes: {refused}");
    }
}
