//! Opening, writing, rotating, budgets.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn records_have_exactly_these_members() {
    let directory = Directory::new();
    let audit = directory.open();
    let budget = unlimited_budget();
    let mac = audit.arguments_mac(br#"{"id":1}"#);
    let secrets = [SecretUse { name: "github", lease: None, vault_request: Some("r-1") }];
    let record = DecisionRecord { arguments: Some(&mac), secrets: &secrets, ..decision(call("l-1", 7)) };
    record_decision(&audit, &budget, &record).unwrap();
    audit.outcome(&budget, &outcome(call("l-1", 7))).unwrap();
    let others = [SecretUse { lease: Some("5ee1"), vault_request: Some("r-2"), ..secrets[0] }];
    audit.outcome(&budget, &OutcomeRecord { secrets: &others, ..outcome(call("l-1", 7)) }).unwrap();
    audit.event(&EventRecord { session: Some("s-1"), ..EventRecord::new(Event::SessionEnd) }).unwrap();

    let lines = tail(&directory.audit_path(), 10).unwrap();
    let masked: Vec<String> = lines.iter().map(|line| mask(line)).collect();
    assert_eq!(
        masked,
        [
            format!(
                r#"{{"number":1,"time":"T","kind":"decision","session":"s-1","link":"l-1","seq":7,"server":"github","method":"tools/call","tool":"get_issue","args":"{mac}","verdict":"allow","rule":"tools.allow get_*","policy":"5f2c","secrets":[{{"name":"github","vault_request":"r-1"}}],"bytes":120,"chain":"C"}}"#
            ),
            r#"{"number":2,"time":"T","kind":"outcome","session":"s-1","link":"l-1","seq":7,"server":"github","method":"tools/call","tool":"get_issue","result":"result","bytes":340,"duration_us":1500,"redactions":1,"chain":"C"}"#.to_owned(),
            r#"{"number":3,"time":"T","kind":"outcome","session":"s-1","link":"l-1","seq":7,"server":"github","method":"tools/call","tool":"get_issue","result":"result","bytes":340,"duration_us":1500,"redactions":1,"secrets":[{"name":"github","lease":"5ee1","vault_request":"r-2"}],"chain":"C"}"#.to_owned(),
            r#"{"number":4,"time":"T","kind":"event","event":"session_end","session":"s-1","chain":"C"}"#.to_owned(),
        ]
    );
    for line in &lines {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    let (number, hash) = audit.end();
    let head = Head { file: "audit-00000001.jsonl".to_owned(), line: 4, number, hash };
    assert_eq!(directory.verify().unwrap().head, Some(head));
}

/// Hides the time and the chain.
fn mask(line: &str) -> String {
    let (before, rest) = line.split_once(r#""time":""#).unwrap();
    let (middle, _) = rest[24..].split_once(r#""chain":""#).unwrap();
    format!(r#"{before}"time":"T{middle}"chain":"C"}}"#)
}

#[test]
fn only_the_owner_may_read() {
    let directory = Directory::new();
    fs::create_dir(directory.audit_path()).unwrap();
    fs::set_permissions(directory.audit_path(), fs::Permissions::from_mode(0o755)).unwrap();
    let audit = directory.open();
    record_decisions(&audit, 0..1);
    assert_eq!(mode(&directory.audit_path()), 0o700);
    for name in ["key", "lock", "audit-00000001.jsonl"] {
        assert_eq!(mode(&directory.audit_path().join(name)), 0o600, "{name}");
    }
}

#[test]
fn two_sidecars_cannot_share_a_directory() {
    let directory = Directory::new();
    let first = directory.open();
    let error = Audit::open(directory.options()).err().unwrap();
    let own = std::process::id();
    assert!(matches!(error, AuditError::Busy { pid: Some(pid), .. } if pid == own), "{error}");
    assert!(error.hint().unwrap().contains(&format!("`kill {own}`")), "{error}");
    // An older version wrote nothing to its lock.
    fs::write(directory.audit_path().join("lock"), "").unwrap();
    let error = Audit::open(directory.options()).err().unwrap();
    assert!(matches!(error, AuditError::Busy { pid: None, .. }), "{error}");
    drop(first);
    directory.open();
}

#[test]
fn the_mac_depends_on_the_stored_key() {
    let directory = Directory::new();
    let mac = directory.open().arguments_mac(b"{}");
    let audit = directory.open();
    assert_eq!(audit.arguments_mac(b"{}"), mac);
    assert_ne!(audit.arguments_mac(b"{ }"), mac);
    assert_ne!(Directory::new().open().arguments_mac(b"{}"), mac);
    drop(audit);
    fs::write(directory.audit_path().join("key"), b"short").unwrap();
    assert!(matches!(Audit::open(directory.options()), Err(AuditError::Key { length: 5, .. })));
}

#[test]
fn the_chain_goes_on_through_restarts_and_files() {
    let directory = Directory::new();
    for start in 0..5 {
        record_decisions(&directory.open_with_file_size(1000), start * 10..start * 10 + 10);
    }
    let verified = directory.verify().unwrap();
    assert_eq!((verified.records, verified.torn, verified.unfinished), (50, 0, None));
    assert!(verified.files > 10, "{}", verified.files);
    for index in 1..=verified.files {
        assert!(fs::metadata(directory.file(index as u32)).unwrap().len() <= 1000);
    }
}

#[test]
fn a_file_may_be_filled_exactly() {
    let measured = Directory::new();
    record_decisions(&measured.open(), 0..2);
    let length = fs::metadata(measured.file(1)).unwrap().len();
    for (file_bytes, files) in [(length, 1), (length - 1, 2)] {
        let directory = Directory::new();
        record_decisions(&directory.open_with_file_size(file_bytes), 0..2);
        assert_eq!(directory.verify().unwrap().files, files, "{file_bytes} bytes");
    }
}

#[test]
fn a_submitted_batch_is_empty_afterwards() {
    let directory = Directory::new();
    let audit = directory.open();
    let mut batch = audit.batch();
    for seq in 0..3 {
        batch.decision(&decision(call("l-1", seq)));
        assert!(matches!(submit(&audit, &mut batch), Submitted::Done(Ok(recorded)) if recorded.len() == 1));
    }
    assert_eq!(directory.verify().unwrap().records, 3);
}

#[test]
fn a_key_that_cannot_be_read_is_not_replaced() {
    let directory = Directory::new();
    drop(directory.open());
    let (key, elsewhere) = (directory.audit_path().join("key"), directory.path().join("elsewhere"));
    fs::rename(&key, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &key).unwrap();
    assert!(matches!(Audit::open(directory.options()), Err(AuditError::Read { .. })));
    assert!(fs::symlink_metadata(&key).unwrap().is_symlink());
}

#[test]
fn an_empty_last_file_is_used_at_the_next_rotation() {
    let directory = Directory::new();
    record_decisions(&directory.open(), 0..1);
    fs::write(directory.file(2), b"").unwrap();
    record_decisions(&directory.open_with_file_size(10), 1..3);
    assert_eq!(directory.verify().unwrap().records, 3);
    assert!(fs::metadata(directory.file(2)).unwrap().len() > 0);
}

#[test]
fn a_removed_file_is_not_written_to_any_more() {
    let directory = Directory::new();
    let audit = directory.open();
    record_decisions(&audit, 0..3);
    fs::remove_file(directory.file(1)).unwrap();
    record_decisions(&audit, 3..4);
    assert!(audit.has_decision("l-1", 3).unwrap());
    assert!(
        matches!(directory.verify(), Err(VerifyError::MissingFile { file }) if file == "audit-00000001.jsonl")
    );
}

#[test]
fn many_threads_make_one_chain() {
    let directory = Directory::new();
    let audit = directory.open_with_file_size(20_000);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let audit = &audit;
            scope.spawn(move || {
                let (budget, link) = (unlimited_budget(), format!("l-{thread}"));
                for seq in 0..100 {
                    record_decision(audit, &budget, &decision(call(&link, seq))).unwrap();
                    audit.outcome(&budget, &outcome(call(&link, seq))).unwrap();
                }
            });
        }
    });
    let verified = directory.verify().unwrap();
    assert_eq!(verified.records, 1600);
    assert!(verified.files > 5);
    assert_eq!(end(verified), audit.end());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn synced_decisions_make_one_chain_too() {
    let directory = Directory::new();
    let options = Options { sync: SyncMode::Call, file_bytes: 4000, ..directory.options() };
    let audit = Audit::open(options).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for seq in 0..64 {
        let audit = audit.clone();
        tasks.spawn(async move { audit.decision(&unlimited_budget(), &decision(call("l-1", seq))).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(directory.verify().unwrap().records, 64);
}

#[tokio::test]
async fn a_sync_includes_the_directory_after_a_start_and_both_files_after_a_rotation() {
    use std::os::unix::fs::MetadataExt as _;

    let directory = Directory::new();
    let synced = Arc::new(Mutex::new(Vec::new()));
    let options = Options { sync: SyncMode::Call, file_bytes: 10, ..directory.options() };
    let audit = Audit::open_with_sync(options, {
        let synced = Arc::clone(&synced);
        move |file| {
            synced.lock().unwrap().push(file.metadata()?.ino());
            Ok(())
        }
    })
    .unwrap();
    let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
    let budget = unlimited_budget();
    audit.decision(&budget, &decision(call("l-1", 1))).await.unwrap();
    let first = [inode(directory.file(1)), inode(directory.audit_path())];
    assert_eq!(std::mem::take(&mut *synced.lock().unwrap()), first);
    audit.decision(&budget, &decision(call("l-1", 2))).await.unwrap();
    let [old, parent] = first;
    assert_eq!(std::mem::take(&mut *synced.lock().unwrap()), [old, parent, inode(directory.file(2))]);
}

#[tokio::test]
async fn a_decision_that_does_not_reach_the_disk_is_refused() {
    let directory = Directory::new();
    let audit = Audit::open(Options { sync: SyncMode::Call, ..directory.options() }).unwrap();
    // A pipe accepts every write and cannot be synced.
    let (_reader, writer) = std::io::pipe().unwrap();
    let pipe = Arc::new(File::from(std::os::fd::OwnedFd::from(writer)));
    let real = std::mem::replace(&mut audit.open_log.log().file, pipe);
    let refused = audit.decision(&unlimited_budget(), &decision(call("l-1", 1))).await.unwrap_err();
    assert!(matches!(refused, AuditError::Sync { .. }), "{refused}");
    let refused = audit.admin(&admin_request()).await.unwrap_err();
    assert!(matches!(refused, AuditError::Sync { .. }), "{refused}");
    // The same if the thread `audit-write` writes.
    let held = audit.open_log.log();
    let mut batch = audit.batch();
    batch.decision(&decision(call("l-1", 1)));
    let pending = submit(&audit, &mut batch);
    drop(held);
    let Submitted::Pending(pending) = pending else { panic!("written although the log is in use") };
    let refused = pending.await.unwrap_err();
    assert!(matches!(refused, AuditError::Sync { .. }), "{refused}");
    audit
        .outcome(&unlimited_budget(), &outcome(call("l-1", 1)))
        .expect("outcomes must be accepted without a sync");
    audit.open_log.log().file = real;
    audit.decision(&unlimited_budget(), &decision(call("l-1", 2))).await.unwrap();
}

#[test]
fn long_names_are_cut_and_hostile_ones_stay_one_line() {
    let directory = Directory::new();
    let audit = directory.open();
    let long = "\u{1b}\n\"\u{2028}é".repeat(10_000);
    let caller = caller(&long, &long, &long);
    let hostile = Call { caller, method: &long, tool: Some(&long), ..call("", 1) };
    let budget = unlimited_budget();
    record_decision(&audit, &budget, &DecisionRecord { rule: &long, policy: &long, ..decision(hostile) })
        .unwrap();
    let whole = "w".repeat(64);
    let mut secrets = [SecretUse { name: &whole, lease: Some(&whole), vault_request: Some(&whole) }; 20];
    secrets[3] = SecretUse { name: "odd", lease: Some(&long), vault_request: Some("a\u{1}b") };
    let longer = "w".repeat(65);
    secrets[4] = SecretUse { name: "long", lease: Some(&longer), vault_request: Some(&longer) };
    let record = OutcomeRecord {
        code: Some(&long),
        bytes: u64::MAX,
        duration: Duration::MAX,
        redactions: u64::MAX,
        secrets: &secrets,
        ..outcome(Call { seq: u64::MAX, ..hostile })
    };
    audit.outcome(&budget, &record).unwrap();
    let lines = tail(&directory.audit_path(), 10).unwrap();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].len() as u64 <= OutcomeRecord::max_length(256), "{}", lines[1].len());
    let value: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
    assert!(value["tool"].as_str().unwrap().ends_with("… (80000 bytes)"), "{}", value["tool"]);
    assert_eq!(value["secrets"].as_array().unwrap().len(), 16);
    assert_eq!(value["secrets"][3], serde_json::json!({"name": "odd"}));
    assert_eq!(value["secrets"][4], serde_json::json!({"name": "long"}));
    assert_eq!(directory.verify().unwrap().records, 2);
}

#[test]
fn a_used_up_budget_refuses_its_session_only_and_is_reported_once() {
    let directory = Directory::new();
    let audit = directory.open();
    // Enough for two calls, but not for one more line.
    let room = 2 * OutcomeRecord::max_length(256) + 800;
    let small = budget(room, 1000);
    record_decision(&audit, &small, &decision(call("l-1", 1))).unwrap();
    record_decision(&audit, &small, &decision(call("l-1", 2))).unwrap();
    for seq in 3..10 {
        let refused = record_decision(&audit, &small, &decision(call("l-1", seq)));
        assert!(matches!(refused, Err(AuditError::Budget(BudgetLimit::Bytes))));
    }
    let last = DecisionRecord { followed_by: FollowedBy::Nothing, ..decision(call("l-1", 10)) };
    record_decision(&audit, &small, &last).unwrap_err();
    // The outcomes of decided calls can be written, and return the unused bytes.
    audit.outcome(&small, &outcome(call("l-1", 1))).unwrap();
    record_decision(&audit, &small, &last).unwrap();
    audit.outcome(&small, &outcome(call("l-1", 2))).unwrap();
    record_decision(&audit, &unlimited_budget(), &decision(call("l-2", 1))).unwrap();

    let lines = tail(&directory.audit_path(), 100).unwrap();
    let events: Vec<_> = lines.iter().filter(|line| line.contains("budget_exhausted")).collect();
    assert_eq!(events.len(), 1, "{lines:#?}");
    assert!(events[0].contains(r#""session":"s-1""#));
    assert_eq!(lines.len(), 7);
}

#[tokio::test(start_paused = true)]
async fn each_record_of_a_batch_is_charged_its_own_length() {
    let directory = Directory::new();
    let audit = directory.open();
    let budget = budget(1_000_000, u32::MAX);
    let mut batch = audit.batch();
    for seq in 0..3 {
        batch.event(&EventRecord::new(Event::LinkStart), EventSpace::IfLeft);
        batch.decision(&DecisionRecord { followed_by: FollowedBy::Nothing, ..decision(call("l-1", seq)) });
    }
    assert!(matches!(audit.submit(&budget, &mut batch).await, Submitted::Done(Ok(_))));
    assert_bytes_left(&budget, 1_000_000 - fs::metadata(directory.file(1)).unwrap().len());
}

#[test]
fn a_decision_reserves_the_length_of_the_longest_outcome() {
    // Six texts, sixteen secrets with three ids of at most 64 bytes each, and what is around them.
    assert_eq!(OutcomeRecord::max_length(256), 6 * (256 + 40) + 16 * (3 * 64 + 64) + 512);
}

#[test]
fn a_session_writes_no_more_than_its_budget() {
    let directory = Directory::new();
    let audit = directory.open();
    let limit = 50_000;
    let budget = budget(limit, 10_000);
    for seq in 0.. {
        if record_decision(&audit, &budget, &decision(call("l-1", seq))).is_err() {
            break;
        }
        audit.outcome(&budget, &outcome(call("l-1", seq))).unwrap();
    }
    let lines = tail(&directory.audit_path(), 1000).unwrap();
    let written: usize =
        lines.iter().filter(|line| !line.contains("budget_exhausted")).map(|line| line.len() + 1).sum();
    let unused = limit - written as u64;
    assert!(unused < OutcomeRecord::max_length(256) + 500, "{unused} bytes were lost");
}

#[test]
fn one_sandbox_cannot_fill_the_directory() {
    let directory = Directory::new();
    let audit = Audit::open(Options { total_bytes: 100_000, ..directory.options() }).unwrap();
    let flood = |budget: &Budget| {
        for seq in 0.. {
            if let Err(error) = record_decision(&audit, budget, &decision(call("l-1", seq))) {
                return error;
            }
            audit.outcome(budget, &outcome(call("l-1", seq))).unwrap();
        }
        unreachable!("a budget must end the flood")
    };
    let error = flood(&budget(1_000_000, u32::MAX));
    assert!(matches!(error, AuditError::Budget(BudgetLimit::Total)), "{error}");
    let written = fs::metadata(directory.file(1)).unwrap().len();
    assert!((35_000..=50_000).contains(&written), "{written} of 100,000 bytes");
    record_decision(&audit, &unlimited_budget(), &decision(call("l-2", 1))).expect("the others go on");
}

#[tokio::test(start_paused = true)]
async fn what_was_written_counts_before_the_directory_is_measured_again() {
    let directory = Directory::new();
    let audit = Audit::open(Options { total_bytes: 100_000, ..directory.options() }).unwrap();
    for _ in 0..500 {
        audit
            .event(&EventRecord { detail: Some(&"x".repeat(200)), ..EventRecord::new(Event::Alert) })
            .unwrap();
        if audit.decision(&unlimited_budget(), &decision(call("l-1", 1))).await.is_err() {
            break;
        }
    }
    let written = fs::metadata(directory.file(1)).unwrap().len();
    assert!((90_000..=100_000).contains(&written), "{written} of 100,000 bytes");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_calls_too_fast_is_refused_until_time_has_passed() {
    let directory = Directory::new();
    let audit = directory.open();
    let budget = budget(u64::MAX, 2);
    for seq in 0..10 {
        audit.decision(&budget, &decision(call("l-1", seq))).await.unwrap();
    }
    let refused = audit.decision(&budget, &decision(call("l-1", 10))).await;
    assert!(matches!(refused, Err(AuditError::Budget(BudgetLimit::Rate))));
    for seq in 0..10 {
        audit.outcome(&budget, &outcome(call("l-1", seq))).unwrap();
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    audit.decision(&budget, &decision(call("l-1", 11))).await.unwrap();
    audit.decision(&budget, &decision(call("l-1", 12))).await.unwrap_err();
}

fn admin_request() -> AdminRecord<'static> {
    AdminRecord {
        action: AdminAction::Enroll,
        state: ActionState::Requested,
        by: "token:t1",
        by_name: Some("ci"),
        target: AdminTarget { sandbox: Some("box 1"), grant: Some("dev"), ..AdminTarget::default() },
        detail: None,
    }
}

#[test]
fn actions_of_the_admin_api_have_exactly_these_members() {
    let directory = Directory::new();
    let audit = directory.open();
    let requested = admin_request();
    let target = requested.target;
    audit.admin(&requested).now_or_never().expect("no other writer holds the log").unwrap();
    let target = AdminTarget { enrolment: Some("e1"), ..target };
    let done = AdminRecord { state: ActionState::Done, target, ..requested };
    audit.admin(&done).now_or_never().expect("no other writer holds the log").unwrap();
    let target = AdminTarget { token: Some("t1"), ..AdminTarget::default() };
    let action = AdminAction::RevokeToken;
    let failed = AdminRecord {
        action,
        state: ActionState::Failed,
        by: "uid:0",
        by_name: None,
        target,
        detail: Some("why"),
    };
    audit.admin(&failed).now_or_never().expect("no other writer holds the log").unwrap();
    let lines = tail(&directory.audit_path(), 10).unwrap();
    assert_eq!(
        lines.iter().map(|line| mask(line)).collect::<Vec<_>>(),
        [
            r#"{"number":1,"time":"T","kind":"admin","action":"enroll","state":"requested","by":"token:t1","by_name":"ci","sandbox":"box 1","grant":"dev","chain":"C"}"#,
            r#"{"number":2,"time":"T","kind":"admin","action":"enroll","state":"done","by":"token:t1","by_name":"ci","enrolment":"e1","sandbox":"box 1","grant":"dev","chain":"C"}"#,
            r#"{"number":3,"time":"T","kind":"admin","action":"revoke_token","state":"failed","by":"uid:0","token":"t1","detail":"why","chain":"C"}"#,
        ]
    );
    assert_eq!(directory.verify().unwrap().records, 3);
}
