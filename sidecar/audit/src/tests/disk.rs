//! Full disks, and files from which an incomplete line cannot be removed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::mount::{MsFlags, mount};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;

/// Runs `test` with a real file system of this size, which only its own thread sees. Needs root.
fn with_tmpfs(size: &'static str, test: impl FnOnce(Directory) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "needs root to mount a full tmpfs");
        println!("SKIPPED: a full disk was NOT tested: mounting one needs root");
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
fn a_full_disk_refuses_and_a_freed_one_works_again() {
    with_tmpfs("64k", |directory| {
        let audit = directory.open();
        let budget = plenty();
        decide(&audit, &budget, &decision(call("l-1", 1))).unwrap();
        let ballast = directory.path().join("ballast");
        fill(&ballast);

        // The page that the file already has takes more lines; then the disk is full in the middle of one.
        let mut seq = 1;
        let error = loop {
            seq += 1;
            match decide(&audit, &budget, &decision(call("l-1", seq))) {
                Ok(()) => assert!(seq < 100, "the disk is not full"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AuditError::Write { .. }), "{error}");
        assert!(error.to_string().contains("audit-00000001.jsonl"));
        assert!(error.hint().unwrap().contains("free some space"));
        let whole = fs::read(directory.file(1)).unwrap();
        assert!(whole.ends_with(b"}\n"), "half a line was left behind");
        decide(&audit, &budget, &decision(call("l-1", seq))).unwrap_err();
        audit.outcome(&budget, &outcome(call("l-1", 1))).unwrap_err();
        assert!(!audit.has_decision("l-1", seq).unwrap());
        assert_eq!(directory.verify().unwrap().records, seq - 1);

        fs::remove_file(ballast).unwrap();
        decide(&audit, &budget, &decision(call("l-1", seq))).unwrap();
        audit.outcome(&budget, &outcome(call("l-1", 1))).unwrap();
        let verified = directory.verify().unwrap();
        assert_eq!((verified.records, verified.torn), (seq + 1, 0));
        drop(audit);
    });
}

#[test]
fn a_full_disk_at_rotation_refuses_and_a_freed_one_works_again() {
    with_tmpfs("64k", |directory| {
        let audit = directory.open_with_files_of(4096);
        decide_many(&audit, 0..2);
        fill(&directory.path().join("ballast"));
        let mut last = Ok(());
        for seq in 2..20 {
            last = decide(&audit, &plenty(), &decision(call("l-1", seq)));
        }
        last.unwrap_err();
        fs::remove_file(directory.path().join("ballast")).unwrap();
        decide_many(&audit, 20..40);
        let verified = directory.verify().unwrap();
        assert!(verified.files > 1);
        assert_eq!(verified.head.unwrap(), audit.head());
    });
}

#[test]
fn a_full_disk_leaves_a_torn_line_unmarked_and_unchanged() {
    with_tmpfs("64k", |directory| {
        decide_many(&directory.open(), 0..2);
        let mut torn = fs::read(directory.file(1)).unwrap();
        torn.resize(4096 - 20, b'x');
        fs::write(directory.file(1), &torn).unwrap();
        fill(&directory.path().join("ballast"));
        Audit::open(directory.options()).map(drop).unwrap_err();
        assert_eq!(fs::read(directory.file(1)).unwrap(), torn);
        fs::remove_file(directory.path().join("ballast")).unwrap();
        decide_many(&directory.open(), 2..3);
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
    let bytes = 2 * OutcomeRecord::longest(FIELD_BYTES);
    let budget = Budget::new(BudgetLimits { bytes, records_per_second: u32::MAX });
    for _ in 0..5 {
        let error = decide(&audit, &budget, &decision(call("l-1", 0))).unwrap_err();
        assert!(matches!(error, AuditError::Write { .. }), "{error}");
    }
    audit.open_log.log().file = real;
    // Nothing of the failed writes was charged.
    decide(&audit, &budget, &decision(call("l-1", 0))).unwrap();
    decide_many(&audit, 1..2);
    assert_eq!(directory.verify().unwrap().records, 2);
}

#[test]
fn decisions_are_refused_while_an_incomplete_line_cannot_be_removed() {
    let directory = Directory::new();
    let audit = directory.open();
    decide_many(&audit, 0..2);
    let real = Arc::clone(&audit.open_log.log().file);

    // An append-only file: the incomplete line stays.
    let stubborn = File::from(memfd_create("stubborn", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    let length = audit.open_log.log().length;
    (&stubborn).write_all(&vec![b'x'; length as usize + 10]).unwrap();
    fcntl(&stubborn, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    {
        let mut log = audit.open_log.log();
        log.file = Arc::new(File::from(OwnedFd::from(stubborn)));
        log.tail = log::Tail::Doubtful;
    }
    for seq in 2..4 {
        let error = decide(&audit, &plenty(), &decision(call("l-1", seq))).unwrap_err();
        assert!(matches!(error, AuditError::Poisoned { .. }), "{error}");
        assert!(error.hint().is_some());
    }

    // Once it can be removed, it is, and calls are accepted.
    (&*real).write_all(b"half a li").unwrap();
    audit.open_log.log().file = real;
    decide_many(&audit, 2..4);
    assert_eq!(directory.verify().unwrap().records, 4);
}

/// A pipe that nothing reads stands in for a disk that hangs: a write to it does not return.
#[test]
fn a_disk_that_hangs_holds_up_the_first_writer_alone() {
    let directory = Directory::new();
    let audit = directory.open();
    let (reader, writer) = nix::unistd::pipe().unwrap();
    fill_pipe(&writer);
    let real = std::mem::replace(&mut audit.open_log.log().file, Arc::new(File::from(writer)));
    let length = audit.open_log.log().length;
    let stuck = std::thread::spawn({
        let audit = audit.clone();
        move || decide(&audit, &plenty(), &decision(call("l-1", 1)))
    });
    let is_held = || audit.open_log.log.try_lock().is_err();
    wait_until("the first writer hangs", is_held);
    // The disk answers at the latest after some time, so that a caller which wrongly waits fails the test.
    let (disk_answers, may_answer) = std::sync::mpsc::channel();
    let disk = std::thread::spawn(move || {
        let _ = may_answer.recv_timeout(std::time::Duration::from_secs(20));
        read_records(reader, 4)
    });

    let mut batch = audit.batch();
    batch.decision(&decision(call("l-2", 1)));
    let Submitted::Pending(mut second) = audit.submit(&plenty(), &mut batch) else {
        panic!("the log is held by another writer")
    };
    audit.event(&EventRecord::new(Event::LinkEnd)).expect("an event is written later");
    audit.outcome(&plenty(), &outcome(call("l-2", 0))).expect("an outcome is written later");
    assert!((&mut second).now_or_never().is_none() && is_held(), "nothing can be written yet");

    disk_answers.send(()).unwrap();
    let written = disk.join().unwrap();
    assert!(stuck.join().unwrap().is_ok());
    wait_until("the second writer is done", || match (&mut second).now_or_never() {
        Some(result) => result.unwrap() == [Recorded::Yes],
        None => false,
    });
    for (record, kind) in written.iter().zip(["decision", "decision", "event", "outcome"]) {
        assert!(record.contains(&format!(r#""kind":"{kind}""#)), "{record}");
    }
    wait_until("callers write by themselves again", || audit.open_log.load.is_light());
    let mut log = audit.open_log.log();
    (log.file, log.length) = (real, length);
}

#[test]
fn after_a_slow_write_or_behind_a_queued_batch_the_thread_writes() {
    let directory = Directory::new();
    let audit = directory.open();
    let load = &audit.open_log.load;
    let submit = |seq| {
        let mut batch = audit.batch();
        batch.decision(&decision(call("l-1", seq)));
        audit.submit(&plenty(), &mut batch)
    };
    let is_written = |pending: PendingRecords| {
        let mut pending = pending;
        wait_until("the record is written", || {
            (&mut pending).now_or_never().is_some_and(|result| result.is_ok())
        });
    };

    load.wrote(Instant::now() - Duration::from_secs(1));
    let Submitted::Pending(pending) = submit(0) else { panic!("the write before was slow") };
    is_written(pending);
    // The thread's own write was quick.
    assert!(matches!(submit(1), Submitted::Done(Ok(_))));

    load.queue_one();
    let Submitted::Pending(pending) = submit(2) else { panic!("a batch that came first is still queued") };
    is_written(pending);
    load.done_one();
    assert!(matches!(submit(3), Submitted::Done(Ok(_))));
    assert_eq!(directory.verify().unwrap().records, 4);
}

fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_met() {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "not within 20 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Writes until the next byte would block.
fn fill_pipe(pipe: &OwnedFd) {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(pipe, &[b'\n'; 4096]).is_ok() {}
    while nix::unistd::write(pipe, b"\n").is_ok() {}
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

/// The next records in the pipe.
fn read_records(pipe: OwnedFd, count: usize) -> Vec<String> {
    let lines = std::io::BufRead::lines(std::io::BufReader::new(File::from(pipe)));
    lines.map(|line| line.unwrap()).filter(|line| !line.is_empty()).take(count).collect()
}
