//! Tells the platform that a sandbox is in use, for platforms that suspend a sandbox which looks unused.
//!
//! An open pipe must not count as use on Daytona unless the operator wants the sandbox to be kept awake (`keep-awake`),
//! so the calls through the pipe are reported instead.
//!
//! What must stay true: an attachment without calls reports nothing, so that the platform's automatic stop works.

use std::convert::Infallible;
use std::time::Duration;

use cofferdam_platforms::{KeepAwake, SandboxId};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};

use super::client::PlatformClient;
use super::request::{AttachmentSpec, Route};

/// The calls of a sandbox.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct CallCounts {
    /// All calls so far on the links that exist now.
    pub(super) made: u64,
    /// Calls that still wait for a response.
    pub(super) in_flight: usize,
}

/// Counts the calls of one sandbox.
pub(super) type CallCounter = Box<dyn Fn() -> BoxFuture<'static, CallCounts> + Send + Sync>;

/// When activity of an attached sandbox is reported to its platform.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ActivityReports {
    /// The platform does not need reports, or counts the pipe itself as use.
    Never,
    WhileCallsAreMade,
    Always,
}

/// How often the calls are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two reports. Daytona's shortest automatic stop is after a minute without use.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

impl ActivityReports {
    pub(super) fn of(spec: &AttachmentSpec, client: &PlatformClient) -> Self {
        match (client.stops_unused_sandboxes(), spec.keep_awake, spec.via) {
            (false, _, _) | (true, KeepAwake::Yes, Route::Preview) => Self::Never,
            // A connection of the SSH gateway may not count as use, and the connections that a sandbox opens do not.
            (true, KeepAwake::Yes, Route::Ssh | Route::DialOut) => Self::Always,
            (true, KeepAwake::No, _) => Self::WhileCallsAreMade,
        }
    }
}

/// Counts calls and reports activity for as long as the future is polled; never returns.
pub(super) async fn report_activity(
    reports: ActivityReports,
    client: &PlatformClient,
    sandbox: &SandboxId,
    count_calls: CallCounter,
) -> Infallible {
    if reports == ActivityReports::Never {
        return std::future::pending().await;
    }
    let mut last_counts = count_calls().await;
    let mut reported_at: Option<Instant> = None;
    let mut needs_report = false;
    loop {
        sleep(COUNT_INTERVAL).await;
        let counts = count_calls().await;
        needs_report |=
            reports == ActivityReports::Always || counts.in_flight > 0 || counts.made != last_counts.made;
        last_counts = counts;
        if needs_report && reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            reported_at = Some(Instant::now());
            match timeout(REPORT_TIMEOUT, client.refresh_activity(sandbox)).await {
                Ok(Ok(())) => needs_report = false,
                // The report is repeated after `REPORT_INTERVAL`.
                Ok(Err(error)) => tracing::info!(%sandbox, %error, "the use of a sandbox was not reported"),
                Err(_) => tracing::info!(%sandbox, "the use of a sandbox was not reported in time"),
            }
        }
    }
}
