//! Tells the platform that a sandbox is in use, for platforms that suspend a sandbox which looks unused.
//!
//! Daytona sees the pipe, but the pipe does not count as use unless the operator wants the sandbox to be kept awake. So
//! calls through an idle-looking pipe are reported.
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
    /// Calls of the links that exist now.
    pub(super) made: u64,
    /// Calls without a response so far.
    pub(super) in_flight: usize,
}

/// Counts the calls of one sandbox.
pub(super) type CallCounter = Box<dyn Fn() -> BoxFuture<'static, CallCounts> + Send + Sync>;

/// What is reported to the platform while a sandbox is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ActivityReports {
    /// Nothing: the platform does not ask for it, or counts the pipe itself.
    Never,
    WhileCallsAreMade,
    Always,
}

/// Between looks at the calls.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two reports. Daytona's shortest automatic stop is after a minute without use.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

impl ActivityReports {
    pub(super) fn of(spec: &AttachmentSpec, client: &PlatformClient) -> Self {
        match (client.stops_unused_sandboxes(), spec.keep_awake, spec.via) {
            (false, _, _) | (true, KeepAwake::Yes, Route::Preview) => Self::Never,
            // The SSH gateway's connection is not known to count, and a sandbox's own connections do not.
            (true, KeepAwake::Yes, Route::Ssh | Route::DialOut) => Self::Always,
            (true, KeepAwake::No, _) => Self::WhileCallsAreMade,
        }
    }
}

/// Reports activity for as long as it is polled; never returns.
pub(super) async fn report_activity(
    reports: ActivityReports,
    client: &PlatformClient,
    sandbox: &SandboxId,
    count_calls: CallCounter,
) -> Infallible {
    if reports == ActivityReports::Never {
        return std::future::pending().await;
    }
    let mut seen = count_calls().await;
    let mut reported_at: Option<Instant> = None;
    let mut is_unreported = false;
    loop {
        sleep(LOOK_INTERVAL).await;
        let counts = count_calls().await;
        is_unreported |=
            reports == ActivityReports::Always || counts.in_flight > 0 || counts.made != seen.made;
        seen = counts;
        if is_unreported && reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            reported_at = Some(Instant::now());
            match timeout(REPORT_TIMEOUT, client.refresh_activity(sandbox)).await {
                Ok(Ok(())) => is_unreported = false,
                // The next look repeats it.
                Ok(Err(error)) => tracing::info!(%sandbox, %error, "the use of a sandbox was not reported"),
                Err(_) => tracing::info!(%sandbox, "the use of a sandbox was not reported in time"),
            }
        }
    }
}
