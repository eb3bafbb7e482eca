//! The states of a link's server, from nothing to gone.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use relay_proto::envelope::IdValue;
use tokio::time::Instant;

use super::start::StartError;
use super::upstream::Upstream;

pub(super) enum State {
    /// It is being given up, once everything that waits knows that it did not run.
    Ending {
        upstream: Upstream,
        why: String,
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

impl State {
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
