//! Disks that begin to hang, also under a write of the task, on a real runtime with two workers.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::*;
use crate::writer::WriteBy;

/// Reached only if something is broken. Longer than a write would hang for in these tests.
const DEADLINE: Duration = Duration::from_secs(20);

/// A pipe that nothing reads stands in for a disk that hangs: a write to it does not return.
struct HangingDisk {
    reader: OwnedFd,
    real: Arc<File>,
    length: u64,
}

impl HangingDisk {
    /// From now on writes to this audit hang.
    fn replace_file_of(audit: &Audit) -> Self {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        fill_pipe(&writer);
        let mut log = audit.open_log.log();
        let real = std::mem::replace(&mut log.file, Arc::new(File::from(writer)));
        Self { reader, real, length: log.length }
    }

    /// Takes what is written until there are this many records. Does not block the caller's thread.
    fn take_records(&self, count: usize) -> std::thread::JoinHandle<Vec<String>> {
        let reader = self.reader.try_clone().unwrap();
        std::thread::spawn(move || read_records(reader, count))
    }

    fn restore(self, audit: &Audit) {
        let mut log = audit.open_log.log();
        (log.file, log.length) = (self.real, self.length);
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

fn open_with_task(directory: &Directory, runtime: &Runtime) -> Audit {
    let write_by = WriteBy::Task(runtime.handle().clone());
    Audit::open(Options { write_by, ..directory.options() }).unwrap()
}

/// Records until a write of the thread has given the turn to the task.
fn write_until_the_task_writes(audit: &Audit) {
    wait_until("the task writes", || {
        let before = audit.last_number();
        audit.event(&EventRecord::new(Event::LinkStart)).unwrap();
        wait_until("the event is written", || audit.last_number() > before);
        audit.writer.is_task_next()
    });
}

fn batch_of(audit: &Audit, link: &str, seq: u64) -> Batch {
    let mut batch = audit.batch();
    batch.decision(&decision(call(link, seq)));
    batch
}

#[test]
fn frequent_writes_are_made_by_the_task_and_rare_ones_by_the_thread() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let budget = unlimited_budget();
    assert!(!audit.writer.is_task_next(), "nothing was written yet");
    write_until_the_task_writes(&audit);
    wait_until("the turn is given back without a write", || !audit.writer.is_task_next());
    write_until_the_task_writes(&audit);
    let begun = audit.writer.begun_by_task();
    let submitted = runtime.block_on(audit.submit(&budget, &mut batch_of(&audit, "l-1", 1)));
    assert!(matches!(submitted, Submitted::Done(Ok(recorded)) if recorded == [Recorded::Yes]));
    assert!(audit.writer.begun_by_task() > begun, "the thread wrote");
    wait_until("the turn is given back", || !audit.writer.is_task_next());
    let submitted = runtime.block_on(audit.submit(&budget, &mut batch_of(&audit, "l-1", 2)));
    let Submitted::Pending(pending) = submitted else { panic!("the caller waited for the thread") };
    assert_eq!(runtime.block_on(pending).unwrap(), [Recorded::Yes]);
    drop(audit);
    directory.verify().unwrap();
}

#[test]
fn the_task_keeps_the_turn_while_writes_are_frequent() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let is_prompt = |seq| {
        std::thread::sleep(Duration::from_millis(1));
        let mut batch = batch_of(&audit, "l-1", seq);
        let submitted = runtime.block_on(audit.submit(&unlimited_budget(), &mut batch));
        matches!(submitted, Submitted::Done(Ok(_)))
    };
    // The thread looks after the task every 20 ms. If this test is stopped for as long, it begins again.
    wait_until("the task writes for 160 ms", || {
        write_until_the_task_writes(&audit);
        (0..160).all(is_prompt)
    });
}

/// A task that needs timers and sockets, as the heartbeats of a link do.
struct Heart {
    beats: Arc<AtomicUsize>,
    to_task: UnixStream,
    _task: JoinSet<()>,
}

impl Heart {
    fn start(runtime: &Runtime) -> Self {
        let beats = Arc::new(AtomicUsize::new(0));
        let (to_task, from_test) = UnixStream::pair().unwrap();
        to_task.set_nonblocking(true).unwrap();
        from_test.set_nonblocking(true).unwrap();
        let mut task = JoinSet::new();
        task.spawn_on(
            {
                let beats = Arc::clone(&beats);
                async move {
                    let stream = tokio::net::UnixStream::from_std(from_test).unwrap();
                    loop {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        stream.readable().await.unwrap();
                        if stream.try_read(&mut [0]).is_ok() {
                            beats.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            },
            runtime.handle(),
        );
        Self { beats, to_task, _task: task }
    }

    fn wait_for_beats(&self, when: &str) {
        let before = self.beats.load(Ordering::Relaxed);
        wait_until(when, || {
            // Full after some time without a beat.
            let _ = (&self.to_task).write(b".");
            self.beats.load(Ordering::Relaxed) > before + 2
        });
    }
}

/// Waits until the task writes the records of a stream.
fn wait_until_the_task_has_written(audit: &Audit) {
    let begun = audit.writer.begun_by_task();
    wait_until("the task has written", || audit.writer.begun_by_task() > begun + 3);
}

/// The worker that writes is the one that would poll sockets and timers: it has just been woken by one.
#[test]
fn a_disk_that_begins_to_hang_under_the_task_holds_neither_its_caller_nor_the_runtime() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let heart = Heart::start(&runtime);
    heart.wait_for_beats("the heart beats");
    write_until_the_task_writes(&audit);
    // Under a stream of writes, each after a timer, the turn stays with the task until the disk hangs.
    let caller = runtime.spawn({
        let audit = audit.clone();
        async move {
            for seq in 1.. {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let mut batch = batch_of(&audit, "l-1", seq);
                if let Submitted::Pending(pending) = audit.submit(&unlimited_budget(), &mut batch).await {
                    return (seq, pending);
                }
            }
            unreachable!("the disk hangs at some time")
        }
    });
    wait_until_the_task_has_written(&audit);
    assert!(!caller.is_finished(), "the thread has the turn");
    let disk = HangingDisk::replace_file_of(&audit);

    wait_until("the caller of the hanging write goes on", || caller.is_finished());
    let (seq, mut pending) = runtime.block_on(caller).unwrap();
    assert!(!audit.writer.is_task_next(), "the task may be used for a disk that hangs");
    heart.wait_for_beats("sockets and timers are polled while the disk hangs");
    assert!((&mut pending).now_or_never().is_none(), "the record was written although the disk hangs");

    // Others do not wait either.
    let submitted = audit.submit(&unlimited_budget(), &mut batch_of(&audit, "l-2", 1)).now_or_never();
    let Some(Submitted::Pending(second)) = submitted else { panic!("the second caller waits or wrote") };
    audit.event(&EventRecord::new(Event::LinkEnd)).expect("events must be accepted while the disk hangs");
    audit
        .outcome(&unlimited_budget(), &outcome(call("l-2", 0)))
        .expect("outcomes must be accepted while the disk hangs");
    assert!(audit.last_number() >= seq - 1);
    heart.wait_for_beats("sockets and timers are polled while others wait");

    let written = disk.take_records(4);
    assert_eq!(runtime.block_on(pending).unwrap(), [Recorded::Yes]);
    assert_eq!(runtime.block_on(second).unwrap(), [Recorded::Yes]);
    let written = written.join().unwrap();
    for (record, kind) in written.iter().zip(["decision", "decision", "event", "outcome"]) {
        assert!(record.contains(&format!(r#""kind":"{kind}""#)), "{record}");
    }
    disk.restore(&audit);
    write_until_the_task_writes(&audit);
}

/// Here no caller is told that the write takes longer, so that telling it wakes no worker.
#[test]
fn a_disk_that_begins_to_hang_while_nobody_waits_for_a_record_does_not_hold_the_runtime() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let heart = Heart::start(&runtime);
    write_until_the_task_writes(&audit);
    let mut events = JoinSet::new();
    events.spawn_on(
        {
            let audit = audit.clone();
            async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    audit.event(&EventRecord::new(Event::LinkStart)).unwrap();
                }
            }
        },
        runtime.handle(),
    );
    wait_until_the_task_has_written(&audit);
    let disk = HangingDisk::replace_file_of(&audit);
    wait_until("the thread notices", || !audit.writer.is_task_next());
    heart.wait_for_beats("sockets and timers are polled while the disk hangs");
    runtime.block_on(events.shutdown());
    drop(disk.reader);
}

#[test]
fn a_disk_that_hangs_under_the_thread_holds_no_caller() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let disk = HangingDisk::replace_file_of(&audit);
    let submit = |seq| {
        let submitted = audit.submit(&unlimited_budget(), &mut batch_of(&audit, "l-1", seq)).now_or_never();
        match submitted {
            Some(Submitted::Pending(pending)) => pending,
            Some(Submitted::Done(_)) | None => panic!("the caller waits or wrote"),
        }
    };
    let mut pending = [submit(1), submit(2)];
    wait_until("the thread hangs", || audit.open_log.log.try_lock().is_err());
    for pending in &mut pending {
        assert!(pending.now_or_never().is_none());
    }
    let written = disk.take_records(2);
    for pending in pending {
        assert_eq!(runtime.block_on(pending).unwrap(), [Recorded::Yes]);
    }
    for (record, seq) in written.join().unwrap().iter().zip(1..) {
        assert!(record.contains(&format!(r#""seq":{seq},"#)), "{record}");
    }
    disk.restore(&audit);
}

/// The disk may still be slow: a worker that wrote to it would be held.
#[test]
fn the_task_does_not_follow_a_slow_write_of_the_thread() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let disk = HangingDisk::replace_file_of(&audit);
    let submitted = audit.submit(&unlimited_budget(), &mut batch_of(&audit, "l-1", 1)).now_or_never();
    let Some(Submitted::Pending(pending)) = submitted else { panic!("the caller waits or wrote") };
    wait_until("the thread hangs", || audit.open_log.log.try_lock().is_err());
    // Longer than a quick write may take.
    std::thread::sleep(Duration::from_millis(50));
    let written = disk.take_records(1);
    assert_eq!(runtime.block_on(pending).unwrap(), [Recorded::Yes]);
    assert!(!audit.writer.is_task_next(), "the task writes next");
    written.join().unwrap();
    disk.restore(&audit);
    write_until_the_task_writes(&audit);
}

/// Keeps a worker of the runtime busy until it is dropped.
struct BusyWorker {
    _until: mpsc::Sender<()>,
}

impl BusyWorker {
    fn start(runtime: &Runtime) -> Self {
        let (_until, dropped) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        runtime.spawn(async move {
            begun.send(()).unwrap();
            let _ = dropped.recv();
        });
        begins.recv_timeout(DEADLINE).unwrap();
        Self { _until }
    }
}

/// Otherwise both would write, and the records of a caller could change places.
#[test]
fn a_task_that_runs_only_after_its_turn_leaves_the_batches_to_the_thread() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let workers = [BusyWorker::start(&runtime), BusyWorker::start(&runtime)];
    let event = EventRecord::new(Event::LinkStart);
    let mut held = None;
    wait_until("the task is woken", || {
        held = None;
        write_until_the_task_writes(&audit);
        held = Some(audit.open_log.log());
        audit.event(&event).unwrap();
        audit.writer.is_task_next()
    });
    let begun = audit.writer.begun_by_task();
    wait_until("the thread has taken the batch", || !audit.writer.is_task_next());
    audit.event(&event).unwrap();
    drop(workers);
    for _ in 0..4 {
        runtime.block_on(runtime.spawn(async {})).unwrap();
    }
    let before = audit.last_number();
    drop(held);
    wait_until("both batches are written", || audit.last_number() >= before + 2);
    assert_eq!(audit.writer.begun_by_task(), begun, "the task wrote");
}

#[test]
fn the_task_goes_on_until_the_queue_is_empty() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    wait_until("the task writes more batches than it takes at once", || {
        let workers = [BusyWorker::start(&runtime), BusyWorker::start(&runtime)];
        write_until_the_task_writes(&audit);
        let (begun, before) = (audit.writer.begun_by_task(), audit.last_number());
        for _ in 0..20 {
            audit.event(&EventRecord::new(Event::LinkStart)).unwrap();
        }
        drop(workers);
        wait_until("the batches are written", || audit.last_number() >= before + 20);
        audit.writer.begun_by_task() == begun + 2
    });
}

/// Batches that were left to a task which never runs again are written by the thread.
#[test]
fn batches_are_written_although_the_runtime_has_ended() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    write_until_the_task_writes(&audit);
    runtime.shutdown_background();
    let before = audit.last_number();
    audit.event(&EventRecord::new(Event::SidecarStop)).unwrap();
    wait_until("the event is written", || audit.last_number() > before);
    drop(audit);
    directory.verify().unwrap();
}

#[test]
fn closing_the_audit_waits_for_a_write_of_the_task() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    write_until_the_task_writes(&audit);
    let disk = HangingDisk::replace_file_of(&audit);
    audit.event(&EventRecord::new(Event::SidecarStop)).unwrap();
    let open_log = Arc::clone(&audit.open_log);
    wait_until("the write hangs", || open_log.log.try_lock().is_err());
    let before = audit.last_number();
    let closing = std::thread::spawn(move || drop(audit));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!closing.is_finished(), "the audit was closed before its last record was written");
    let written = disk.take_records(1);
    closing.join().unwrap();
    assert_eq!(open_log.last_number.load(Ordering::Relaxed), before + 1);
    assert!(written.join().unwrap()[0].contains("sidecar_stop"));
    // The directory is unlocked.
    directory.open();
}

/// Many callers on both workers, while the turn changes between the task and the thread.
#[test]
fn records_of_one_caller_keep_their_order_whoever_writes() {
    let (directory, runtime) = (Directory::new(), runtime());
    let audit = open_with_task(&directory, &runtime);
    let mut tasks = JoinSet::new();
    for link in ["l-1", "l-2", "l-3", "l-4"] {
        let audit = audit.clone();
        tasks.spawn_on(
            async move {
                let budget = unlimited_budget();
                for seq in 0..200 {
                    audit.decision(&budget, &decision(call(link, seq))).await.unwrap();
                    audit.outcome(&budget, &outcome(call(link, seq))).unwrap();
                    if seq % 50 == 0 {
                        // Longer than the task keeps its turn.
                        tokio::time::sleep(Duration::from_millis(60)).await;
                    }
                }
            },
            runtime.handle(),
        );
    }
    runtime.block_on(async { while tasks.join_next().await.transpose().unwrap().is_some() {} });
    drop(audit);
    assert_eq!(directory.verify().unwrap().records, 4 * 400);
    let lines = tail(&directory.audit_path(), 2000).unwrap();
    for link in ["l-1", "l-2", "l-3", "l-4"] {
        let of_link = lines.iter().filter(|line| line.contains(&format!(r#""link":"{link}""#)));
        for (position, line) in of_link.enumerate() {
            let kind = ["decision", "outcome"][position % 2];
            let expected = [format!(r#""kind":"{kind}""#), format!(r#""seq":{},"#, position / 2)];
            assert!(expected.iter().all(|part| line.contains(part)), "{position}: {line}");
        }
    }
}

fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_met() {
        assert!(began.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
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
