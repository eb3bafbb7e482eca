//! Reading: tail, follow, show, and the lookup of decisions.

use super::*;

fn numbers(lines: &[String]) -> Vec<u64> {
    lines
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["number"].as_u64().unwrap())
        .collect()
}

#[test]
fn tail_reads_as_many_files_as_needed() {
    let directory = Directory::new();
    let audit = directory.open_with_file_size(900);
    assert_eq!(tail(&directory.audit_path(), 5).unwrap(), Vec::<String>::new());
    record_decisions(&audit, 0..10);
    for count in 0..=10 {
        assert_eq!(
            numbers(&tail(&directory.audit_path(), count).unwrap()),
            (11 - count..=10).collect::<Vec<_>>()
        );
    }
    assert_eq!(tail(&directory.audit_path(), 1000).unwrap().len(), 10);
}

#[test]
fn a_follower_sees_every_record_once_through_rotations() {
    let directory = Directory::new();
    let audit = directory.open_with_file_size(900);
    let mut early = Follower::from_last(&directory.audit_path(), 3).unwrap();
    record_decisions(&audit, 0..4);
    let mut late = Follower::from_last(&directory.audit_path(), 0).unwrap();
    assert_eq!(late.poll().unwrap(), Vec::<String>::new());
    for round in 1..5 {
        record_decisions(&audit, round * 4..round * 4 + 4);
        let mut seen = Vec::new();
        loop {
            let lines = late.poll().unwrap();
            if lines.is_empty() {
                break;
            }
            seen.extend(numbers(&lines));
        }
        assert_eq!(seen, (round * 4 + 1..=round * 4 + 4).collect::<Vec<_>>());
    }
    let mut all = Vec::new();
    while let lines = early.poll().unwrap()
        && !lines.is_empty()
    {
        all.extend(numbers(&lines));
    }
    assert_eq!(all, (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_follower_waits_for_the_rest_of_a_line() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..1);
    let mut follower = Follower::from_last(&directory.audit_path(), 1).unwrap();
    assert_eq!(follower.poll().unwrap().len(), 1);
    let original = fs::read(directory.file(1)).unwrap();
    fs::write(directory.file(1), [&original[..], b"{\"half"].concat()).unwrap();
    assert_eq!(follower.poll().unwrap(), Vec::<String>::new());
    fs::write(directory.file(1), [&original[..], b"{\"half\":1}\n"].concat()).unwrap();
    assert_eq!(follower.poll().unwrap(), ["{\"half\":1}"]);
}

#[test]
fn records_are_found_by_session_link_and_call() {
    let directory = Directory::new();
    let audit = directory.open_with_file_size(900);
    let budget = unlimited_budget();
    for (session, link, seq) in [("s-1", "l-1", 1), ("s-1", "l-2", 1), ("s-2", "l-3", 1), ("s-1", "l-1", 2)] {
        let call = Call { caller: caller(session, link, "github"), ..call(link, seq) };
        record_decision(&audit, &budget, &decision(call)).unwrap();
        audit.outcome(&budget, &outcome(call)).unwrap();
    }
    audit.event(&EventRecord { session: Some("s-2"), ..EventRecord::new(Event::SessionEnd) }).unwrap();
    let shown = |id: &str| {
        let mut lines = Vec::new();
        show(&directory.audit_path(), &id.parse().unwrap(), |line| {
            lines.push(line.to_owned());
            Ok(())
        })
        .unwrap();
        numbers(&lines)
    };
    assert_eq!(shown("s-1"), [1, 2, 3, 4, 7, 8]);
    assert_eq!(shown("l-2"), [3, 4]);
    assert_eq!(shown("s-1/l-1"), [1, 2, 7, 8]);
    assert_eq!(shown("s-1/l-1/2"), [7, 8]);
    assert_eq!(shown("s-2"), [5, 6, 9]);
    assert_eq!(shown("s-2/l-1/2"), [0_u64; 0]);
    for wrong in ["", "/", "s//1", "s/l/x", "s/l/1/2"] {
        wrong.parse::<Selector>().unwrap_err();
    }
}

#[test]
fn decisions_are_found_after_a_restart() {
    let directory = Directory::new();
    record_decisions(&directory.open_with_file_size(900), 0..12);
    let audit = directory.open();
    audit.outcome(&unlimited_budget(), &outcome(call("l-9", 5))).unwrap();
    assert!(audit.has_decision("l-1", 0).unwrap());
    assert!(audit.has_decision("l-1", 11).unwrap());
    assert!(!audit.has_decision("l-1", 12).unwrap());
    assert!(!audit.has_decision("l-", 1).unwrap());
    assert!(!audit.has_decision("l-9", 5).unwrap(), "an outcome counts as a decision");
    assert_eq!(
        audit.decided("l-1", &[40, 1, 11, 1, 110]).unwrap(),
        [(1, RecordedAttempts::One), (11, RecordedAttempts::One)].into()
    );
}

#[test]
fn text_in_a_name_cannot_forge_a_decision() {
    let directory = Directory::new();
    let audit = directory.open();
    let forged = r#"","link":"l-7","seq":3,""#;
    let caller = caller("s-1", "l-1", forged);
    let call = Call { caller, method: forged, tool: Some(forged), ..call("l-1", 1) };
    record_decision(&audit, &unlimited_budget(), &decision(call)).unwrap();
    assert!(!audit.has_decision("l-7", 3).unwrap());
}

#[test]
fn messages_that_may_have_been_decided_count_as_decided() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..3);
    let original = fs::read_to_string(directory.file(1)).unwrap();
    let torn = original.rfind("\"seq\":2").unwrap() + "\"seq\":2".len();
    fs::write(directory.file(1), &original[..torn]).unwrap();
    let audit = directory.open();
    assert_eq!(
        audit.decided("l-1", &[1, 2, 3, 25]).unwrap(),
        [(1, RecordedAttempts::One), (2, RecordedAttempts::Repeated), (25, RecordedAttempts::Repeated)]
            .into(),
        "a torn number may be any number with this prefix"
    );

    let link_member = br#","link":"l-1""#;
    assert_eq!(
        lookup::decided(&directory.audit_path(), link_member, &[3, 77], 10).unwrap(),
        [(3, RecordedAttempts::Repeated), (77, RecordedAttempts::Repeated)].into(),
        "a stopped search must report the remaining messages as repeated"
    );
    assert_eq!(lookup::decided(&directory.audit_path(), link_member, &[3, 77], 1 << 20).unwrap(), [].into());
}

#[test]
fn repeated_messages_are_found_across_files() {
    for bytes in [900, 1 << 20] {
        let directory = Directory::new();
        let audit = directory.open_with_file_size(bytes);
        record_decisions(&audit, 0..4);
        let repeated = DecisionRecord { rule: "retry: annotations.readOnlyHint", ..decision(call("l-1", 2)) };
        record_decision(&audit, &unlimited_budget(), &repeated).unwrap();
        let forged = Call { tool: Some(r#"","rule":"retry: "#), ..call("l-1", 4) };
        record_decision(&audit, &unlimited_budget(), &decision(forged)).unwrap();
        assert_eq!(
            audit.decided("l-1", &[1, 2, 4]).unwrap(),
            [(1, RecordedAttempts::One), (2, RecordedAttempts::Repeated), (4, RecordedAttempts::One)].into()
        );
    }
}

#[test]
fn a_follower_waits_for_the_first_file() {
    let directory = Directory::new();
    fs::create_dir(directory.audit_path()).unwrap();
    let mut follower = Follower::from_last(&directory.audit_path(), 5).unwrap();
    assert_eq!(follower.poll().unwrap(), Vec::<String>::new());
    record_decisions(&directory.open(), 0..2);
    assert_eq!(numbers(&follower.poll().unwrap()), [1, 2]);
}

#[test]
fn a_line_longer_than_any_record_does_not_block_a_follower() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..1);
    let mut follower = Follower::from_last(&directory.audit_path(), 0).unwrap();
    let mut bytes = fs::read(directory.file(1)).unwrap();
    bytes.resize(bytes.len() + files::LINE_LIMIT + 10, b'x');
    bytes.extend_from_slice(b"\nnext\n");
    fs::write(directory.file(1), &bytes).unwrap();
    assert_eq!(follower.poll().unwrap(), ["x".repeat(files::LINE_LIMIT)]);
    assert_eq!(follower.poll().unwrap(), ["xxxxxxxxxx", "next"]);
}
