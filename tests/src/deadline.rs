//! Waits for conditions, with a deadline. No other module of this crate reads the clock.
//!
//! A missed deadline means that something is broken, not slow: deadlines are long, and no test asserts how long
//! something takes, except the times that SPECIFICATION.md promises, which have their names here.

use std::time::{Duration, Instant};

/// The default timeout: long enough for a loaded machine, short enough to end a hung test.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// After `kill`, `attach end` or an interrupt, the hub, the servers and the command of an attachment are gone.
pub const GONE_WITHIN: Duration = Duration::from_secs(10);
/// After the end of a fault, and after a resume, a sandbox of E2B is attached again.
pub const BACK_WITHIN: Duration = Duration::from_secs(10);
/// After its start, a stopped sandbox of Daytona is attached again: its hub has to be started first.
pub const BACK_AFTER_START: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "deadlines of real processes are in real time")]
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    #[expect(clippy::disallowed_methods, reason = "deadlines of real processes are in real time")]
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

/// Measures how long something takes, to print it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "what a person waits for is in real time")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Whether the condition became true within this time.
pub fn holds_within(time: Duration, condition: impl FnMut() -> bool) -> bool {
    holds_before(Deadline::after(time), condition)
}

/// Whether the condition became true before the deadline.
pub fn holds_before(deadline: Deadline, mut condition: impl FnMut() -> bool) -> bool {
    loop {
        if condition() {
            return true;
        }
        if deadline.is_over() {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Asserts that the condition becomes true within a promised time.
#[track_caller]
pub fn assert_within(time: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(time, condition), "not within the promised {time:?}: {what}");
}

/// Waits until the condition is true; `what` describes it in the failure message.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, condition), "not within {PATIENCE:?}: {what}");
}
