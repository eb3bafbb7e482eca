//! Full disks, the queue of the thread, and files from which an incomplete line cannot be removed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::mount::{MsFlags, mount};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;

/// Fails the running test, or reports that it is skipped where tests may be skipped: as `cofferdam_tests::tools::cannot_run`
/// does, which depends on this crate.
#[track_caller]
fn cannot_run(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let is_set = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    assert!(is_set("COFFERDAM_SKIP", "1") && !is_set("CI", "true"), "{test} cannot run: {why}");
    let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: {why}");
    if let Some(list) = std::env::var_os("COFFERDAM_SKIPPED")
        && let Ok(mut list) = File::options().append(true).create(true).open(list)
    {
        let _ = writeln!(list, "  {test}: {why}");
    }
}

/// Runs `test` with a real file system of this size, which only its own thread sees. Needs root.
fn with_tmpfs(size: &'static str, test: impl FnOnce(Directory) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        cannot_run("only root can mount a file system that is full");
        return;
    }
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let directory = Directory::new();
        let options = format!("size={size},mode=700");
        mount(Some("none"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .unwrap();
        let path = directory.path().to_owned();
        test(directory);
        nix::mount::umount(&path).unwrap();
        let _ = fs::remove_dir(&path);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn decisions_are_refused_while_the_disk_is_full_and_accepted_afterwards() {
    with_tmpfs("64k", |directory| {
        let audit = directory.open();
        let budget = unlimited_budget();
        record_decision(&audit, &budget, &decision(call("l-1", 1))).unwrap();
        let filler = directory.path().join("filler");
        fill(&filler);

        // The last page of the file has room for more lines; then the disk is full in the middle of a line.
        let mut seq = 1;
        let error = loop {
            seq += 1;
            match record_decision(&audit, &budget, &decision(call("l-1", seq))) {
                Ok(()) => assert!(seq < 100, "the disk is not full"),
                Err(error) => break error,
            }
        };
        // The event about the used-up budget could not be written either.
        assert!(matches!(error, AuditError::Write { .. }), "{error}");
        assert!(error.to_string().contains("audit-00000001.jsonl"));
        assert!(error.hint().unwrap().contains("free some space"));
        let whole = fs::read(directory.file(1)).unwrap();
        assert!(whole.ends_with(b"}\n"), "half a line was left behind");
        record_decision(&audit, &budget, &decision(call("l-1", seq))).unwrap_err();
        audit.outcome(&budget, &outcome(call("l-1", 1))).unwrap_err();
        assert!(!audit.has_decision("l-1", seq).unwrap());
        assert_eq!(directory.verify().unwrap().records, seq - 1);

        fs::remove_file(filler).unwrap();
        record_decision(&audit, &budget, &decision(call("l-1", seq))).unwrap();
        audit.outcome(&budget, &outcome(call("l-1", 1))).unwrap();
        let verified = directory.verify().unwrap();
        assert_eq!((verified.records, verified.torn), (seq + 1, 0));
        drop(audit);
    });
}

#[test]
fn decisions_are_refused_while_no_new_file_fits_and_accepted_afterwards() {
    with_tmpfs("64k", |directory| {
        let audit = directory.open_with_file_size(4096);
        record_decisions(&audit, 0..2);
        fill(&directory.path().join("filler"));
        let mut last = Ok(());
        for seq in 2..20 {
            last = record_decision(&audit, &unlimited_budget(), &decision(call("l-1", seq)));
        }
        last.unwrap_err();
        fs::remove_file(directory.path().join("filler")).unwrap();
        record_decisions(&audit, 20..40);
        let verified = directory.verify().unwrap();
        assert!(verified.files > 1);
        assert_eq!(end(verified), audit.end());
    });
}

#[test]
fn a_full_disk_leaves_a_torn_line_unmarked_and_unchanged() {
    with_tmpfs("64k", |directory| {
        record_decisions(&directory.open(), 0..2);
        let mut torn = fs::read(directory.file(1)).unwrap();
        torn.resize(4096 - 20, b'x');
        fs::write(directory.file(1), &torn).unwrap();
        fill(&directory.path().join("filler"));
        Audit::open(directory.options()).map(drop).unwrap_err();
        assert_eq!(fs::read(directory.file(1)).unwrap(), torn);
        fs::remove_file(directory.path().join("filler")).unwrap();
        record_decisions(&directory.open(), 2..3);
        assert_eq!(directory.verify().unwrap().torn, 1);
    });
}

fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 1024]).is_ok() {}
}

#[test]
fn after_a_write_error_later_writes_succeed() {
    let directory = Directory::new();
    let audit = directory.open();
    let real = {
        let full = fs::OpenOptions::new().append(true).open("/dev/full").unwrap();
        std::mem::replace(&mut audit.open_log.log().file, Arc::new(full))
    };
    // `/dev/full` has a directory entry, so it does not count as a removed file.
    let bytes = 2 * OutcomeRecord::max_length(FIELD_BYTES);
    let budget = budget(bytes, u32::MAX);
    for _ in 0..5 {
        let error = record_decision(&audit, &budget, &decision(call("l-1", 0))).unwrap_err();
        assert!(matches!(error, AuditError::Write { .. }), "{error}");
    }
    audit.open_log.log().file = real;
    // Nothing of the failed writes was charged.
    record_decision(&audit, &budget, &decision(call("l-1", 0))).unwrap();
    record_decisions(&audit, 1..2);
    assert_eq!(directory.verify().unwrap().records, 2);
}

// With the clock paused, because a budget is refilled while time passes.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_written_is_not_charged() {
    let directory = Directory::new();
    let audit = directory.open();
    let budget = budget(1_000_000, u32::MAX);
    record_decision(&audit, &budget, &decision(call("l-1", 0))).unwrap();
    let decision_bytes = fs::metadata(directory.file(1)).unwrap().len();
    let full = Arc::new(fs::OpenOptions::new().append(true).open("/dev/full").unwrap());
    let real = std::mem::replace(&mut audit.open_log.log().file, full);
    audit.sandbox_event(&budget, &EventRecord::new(Event::LinkStart)).unwrap_err();
    audit.outcome(&budget, &outcome(call("l-1", 0))).unwrap_err();
    audit.open_log.log().file = real;
    assert_bytes_left(&budget, 1_000_000 - decision_bytes);
}

#[test]
fn a_file_that_cannot_be_created_is_reported_with_its_own_reason() {
    with_tmpfs("64k,nr_inodes=16", |directory| {
        let audit = directory.open_with_file_size(10);
        record_decisions(&audit, 0..1);
        let mut fillers = (0..16).map(|number| directory.path().join(format!("filler-{number}")));
        let is_full = |path| File::create(path).is_err();
        assert!(fillers.any(is_full), "the file system has room for all files");
        let error = record_decision(&audit, &unlimited_budget(), &decision(call("l-1", 1))).unwrap_err();
        assert!(matches!(error, AuditError::Prepare { .. }), "{error}");
        assert!(error.hint().unwrap().contains("free some space"), "{:?}", error.hint());
    });
}

#[test]
fn decisions_are_refused_while_an_incomplete_line_cannot_be_removed() {
    let directory = Directory::new();
    let audit = directory.open();
    record_decisions(&audit, 0..2);
    let real = Arc::clone(&audit.open_log.log().file);

    // A file that cannot be truncated: the incomplete line stays.
    let untruncatable = File::from(memfd_create("untruncatable", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    let length = audit.open_log.log().length;
    (&untruncatable).write_all(&vec![b'x'; length as usize + 10]).unwrap();
    fcntl(&untruncatable, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    {
        let mut log = audit.open_log.log();
        log.file = Arc::new(File::from(OwnedFd::from(untruncatable)));
        log.tail = log::Tail::MaybePartial;
    }
    for seq in 2..4 {
        let error = record_decision(&audit, &unlimited_budget(), &decision(call("l-1", seq))).unwrap_err();
        assert!(matches!(error, AuditError::Poisoned { .. }), "{error}");
        assert!(error.hint().is_some());
    }

    // From the real file the incomplete line can be removed, so decisions are accepted again.
    (&*real).write_all(b"half a li").unwrap();
    audit.open_log.log().file = real;
    record_decisions(&audit, 2..4);
    assert_eq!(directory.verify().unwrap().records, 4);
}

#[test]
fn records_are_refused_while_the_queue_of_the_thread_is_full() {
    let directory = Directory::new();
    let audit = directory.open();
    let held = audit.open_log.log();
    let event = EventRecord::new(Event::LinkEnd);
    let mut accepted = 0;
    let refused = loop {
        match audit.event(&event) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 20_000, "the queue has no end");
    };
    assert!(matches!(refused, AuditError::Overloaded), "{refused}");
    // The thread has taken the first one out of the queue, or is about to.
    assert!((16_384..=16_385).contains(&accepted), "{accepted} events were queued");
    drop(held);
    drop(audit);
    assert_eq!(directory.verify().unwrap().records, accepted);
}

#[test]
fn closing_the_audit_waits_until_queued_records_are_written() {
    let directory = Directory::new();
    let audit = directory.open();
    let open_log = Arc::clone(&audit.open_log);
    let held = open_log.log();
    audit.event(&EventRecord::new(Event::SidecarStop)).unwrap();
    let closing = std::thread::spawn(move || drop(audit));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!closing.is_finished(), "the audit was closed before its last record was written");
    drop(held);
    closing.join().unwrap();
    assert_eq!(directory.verify().unwrap().records, 1);
}
