//! The audit through its public interface, with real directories and files.

mod disk;
mod events;
mod hanging;
mod pruning;
mod reading;
mod tampering;
mod writing;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::*;
use cofferdam_policy::Verdict;

/// The default of `audit-field-bytes`.
const FIELD_BYTES: usize = 256;

/// A directory of its own for one test, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique =
            format!("cofferdam-audit-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn options(&self) -> Options {
        Options {
            directory: self.0.join("audit"),
            sync: SyncMode::Write,
            file_bytes: 1 << 20,
            field_bytes: FIELD_BYTES,
            total_bytes: u64::MAX,
            write_by: WriteBy::Caller,
        }
    }

    fn audit_path(&self) -> PathBuf {
        self.0.join("audit")
    }

    fn open(&self) -> Audit {
        Audit::open(self.options()).unwrap()
    }

    fn open_with_file_size(&self, file_bytes: u64) -> Audit {
        Audit::open(Options { file_bytes, ..self.options() }).unwrap()
    }

    fn file(&self, index: u32) -> PathBuf {
        files::file_path(&self.audit_path(), index)
    }

    fn verify(&self) -> Result<Verified, VerifyError> {
        verify(&self.audit_path(), None)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A budget that refills within a day.
fn budget(bytes: u64, records_per_second: u32) -> Budget {
    Budget::new(BudgetLimits { bytes, refill_time: Duration::from_secs(86_400), records_per_second })
}

fn unlimited_budget() -> Budget {
    budget(u64::MAX, u32::MAX)
}

/// Number and hash of the last record.
fn end(verified: Verified) -> (u64, Hash) {
    verified.head.map(|head| (head.number, head.hash)).unwrap()
}

/// Uses up the budget, which must have exactly this much left.
#[track_caller]
fn assert_bytes_left(budget: &Budget, left: u64) {
    let charge = |bytes| budget.charge(budget::Charge { bytes, records: 1 }, u64::MAX, Instant::now());
    charge(left + 1).expect_err("more is left");
    charge(left).expect("less is left");
}

/// Leaked, so that records can borrow from it for the whole test run.
fn caller(session: &str, link: &str, server: &str) -> &'static Caller {
    Box::leak(Box::new(Caller::new(session, link, Some(server), FIELD_BYTES)))
}

fn call(link: &str, seq: u64) -> Call<'static> {
    let caller = caller("s-1", link, "github");
    Call { caller, sent_by: SentBy::Harness, seq, method: "tools/call", tool: Some("get_issue") }
}

fn decision(call: Call<'_>) -> DecisionRecord<'_> {
    DecisionRecord {
        call,
        arguments: None,
        verdict: Verdict::Allow,
        rule: "tools.allow get_*",
        policy: "5f2c",
        scope: None,
        secrets: &[],
        bytes: 120,
        followed_by: FollowedBy::Outcome,
    }
}

fn outcome(call: Call<'_>) -> OutcomeRecord<'_> {
    OutcomeRecord {
        call,
        result: CallResult::Result,
        code: None,
        bytes: 340,
        duration: Duration::from_micros(1500),
        redactions: 1,
        secrets: &[],
    }
}

/// Submits a batch to an audit whose callers write by themselves, or, while the log is in use, its thread.
fn submit(audit: &Audit, batch: &mut Batch) -> Submitted {
    let submitted = audit.submit(&unlimited_budget(), batch).now_or_never();
    submitted.expect("nothing waits for the write task")
}

/// Records a decision and waits until it is written: another thread may hold the log.
fn record_decision(audit: &Audit, budget: &Budget, record: &DecisionRecord<'_>) -> Result<(), AuditError> {
    let mut decision = std::pin::pin!(audit.decision(budget, record));
    loop {
        match decision.as_mut().now_or_never() {
            Some(result) => return result,
            None => std::thread::yield_now(),
        }
    }
}

fn record_decisions(audit: &Audit, seqs: std::ops::Range<u64>) {
    let budget = unlimited_budget();
    for seq in seqs {
        record_decision(audit, &budget, &decision(call("l-1", seq))).unwrap();
    }
}
