//! The states of a link's server, from nothing to gone.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use tokio::time::{Instant, timeout};

use super::start::StartError;
use super::upstream::Upstream;
use crate::process::Ended;

pub(super) enum State {
    /// It is being given up, once everything that waits knows that it did not run.
    Ending {
        upstream: Upstream,
        why: String,
        /// What whoever waits for it is refused with.
        code: Code,
        lived: Duration,
    },
    Idle,
    Replaying {
        upstream: Upstream,
        /// Of the repeated handshake.
        asked: IdValue,
        deadline: Instant,
    },
    Running {
        upstream: Upstream,
        /// A process that has said nothing by then is given up.
        first_word: Option<Instant>,
    },
    Starting {
        start: Starting,
    },
}

pub(super) type Starting = Pin<Box<dyn Future<Output = Result<Upstream, StartError>> + Send>>;

/// What an end may take on top of its grace.
const END_MARGIN: Duration = Duration::from_secs(2);

impl State {
    /// Ends whatever runs, descendants included, and says what became of it.
    pub(super) async fn end(self, grace: Duration, deadline: Instant) -> Ended {
        match self {
            Self::Idle => Ended::All,
            Self::Ending { upstream, .. }
            | Self::Replaying { upstream, .. }
            | Self::Running { upstream, .. } => upstream.end(grace).await,
            // The process may exist by now: finish the start, so that its end is waited for too.
            Self::Starting { start } => match timeout(grace, start).await {
                Ok(Ok(upstream)) => {
                    let left = deadline.saturating_duration_since(Instant::now() + END_MARGIN);
                    upstream.end(grace.min(left)).await
                }
                Ok(Err(_)) => Ended::All,
                // Given up, so it is being killed; nobody waits for that.
                Err(_) => Ended::NotYet,
            },
        }
    }

    pub(super) fn upstream(&self) -> Option<&Upstream> {
        match self {
            Self::Ending { upstream, .. }
            | Self::Replaying { upstream, .. }
            | Self::Running { upstream, .. } => Some(upstream),
            Self::Idle | Self::Starting { .. } => None,
        }
    }

    pub(super) fn upstream_mut(&mut self) -> Option<&mut Upstream> {
        match self {
            Self::Ending { upstream, .. }
            | Self::Replaying { upstream, .. }
            | Self::Running { upstream, .. } => Some(upstream),
            Self::Idle | Self::Starting { .. } => None,
        }
    }

    pub(super) fn into_upstream(self) -> Option<Upstream> {
        match self {
            Self::Ending { upstream, .. }
            | Self::Replaying { upstream, .. }
            | Self::Running { upstream, .. } => Some(upstream),
            Self::Idle | Self::Starting { .. } => None,
        }
    }
}
