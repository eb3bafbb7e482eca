//! A platform whose responses a test scripts beforehand, and the hold of its sandbox.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cofferdam_platforms::{Pipe, PlatformError, Progress, SandboxState, WhenSuspended};
use tokio::io::{DuplexStream, duplex};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::activity::{CallCounter, CallCounts};
use super::client::{ClientFactory, PlatformClient};
use super::keys::KeyUse;
use super::pacing::AttemptError;
use super::run::HeldSandbox;
use crate::daemon::attach::hold::HoldEvent;
use crate::daemon::attach_table::AttachEvent;

/// A request to the platform.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Call {
    EndHub,
    Open(WhenSuspended),
    RefreshActivity,
    State,
}

/// Shared by the test and the clients. A request for which no response is scripted waits forever.
#[derive(Clone, Default)]
pub(super) struct ScriptedPlatform(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    open_responses: VecDeque<Result<(), PlatformError>>,
    state_responses: VecDeque<Result<SandboxState, PlatformError>>,
    calls: Vec<(Call, Instant)>,
    keys: Vec<KeyUse>,
    disturbance: Option<Disturbance>,
    /// The hub's ends of the pipes.
    hubs: VecDeque<DuplexStream>,
}

/// A time in which every request gets the same response; afterwards the sandbox runs and every pipe opens.
#[derive(Clone, Copy)]
struct Disturbance {
    until: Instant,
    error: fn() -> PlatformError,
}

pub(super) struct ScriptedClient(ScriptedPlatform);

impl ScriptedPlatform {
    pub(super) fn respond_to_open(&self, response: Result<(), PlatformError>) -> &Self {
        self.0.lock().unwrap().open_responses.push_back(response);
        self
    }

    pub(super) fn respond_to_state(&self, response: Result<SandboxState, PlatformError>) -> &Self {
        self.0.lock().unwrap().state_responses.push_back(response);
        self
    }

    /// Lets every request fail with this error until then, and succeed afterwards. While the error is
    /// [`PlatformError::Suspended`], queries of the state succeed too.
    pub(super) fn disturb_until(&self, until: Instant, error: fn() -> PlatformError) {
        self.0.lock().unwrap().disturbance = Some(Disturbance { until, error });
    }

    pub(super) fn calls(&self) -> Vec<(Call, Instant)> {
        self.0.lock().unwrap().calls.clone()
    }

    pub(super) fn keys(&self) -> Vec<KeyUse> {
        self.0.lock().unwrap().keys.clone()
    }

    /// The hub's end of the next pipe.
    pub(super) fn take_hub(&self) -> Option<DuplexStream> {
        self.0.lock().unwrap().hubs.pop_front()
    }
}

impl ClientFactory for ScriptedPlatform {
    async fn create_client(&self, key: KeyUse) -> Result<PlatformClient, AttemptError> {
        self.0.lock().unwrap().keys.push(key);
        Ok(PlatformClient::Scripted(ScriptedClient(self.clone())))
    }
}

impl ScriptedClient {
    pub(super) fn end_hub(&self) -> Result<(), PlatformError> {
        self.0.0.lock().unwrap().calls.push((Call::EndHub, Instant::now()));
        Ok(())
    }

    pub(super) fn refresh_activity(&self) -> Result<(), PlatformError> {
        self.0.0.lock().unwrap().calls.push((Call::RefreshActivity, Instant::now()));
        Ok(())
    }

    pub(super) async fn state(&self) -> Result<SandboxState, PlatformError> {
        let response = {
            let mut script = self.0.0.lock().unwrap();
            script.calls.push((Call::State, Instant::now()));
            match script.disturbance.map(Disturbance::response) {
                Some(Ok(())) => Some(Ok(SandboxState::Running)),
                Some(Err(PlatformError::Suspended { suspension, .. })) => {
                    Some(Ok(SandboxState::Suspended(suspension)))
                }
                Some(Err(error)) => Some(Err(error)),
                None => script.state_responses.pop_front(),
            }
        };
        match response {
            Some(response) => response,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn open(
        &self,
        when_suspended: WhenSuspended,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Pipe, PlatformError> {
        let response = {
            let mut script = self.0.0.lock().unwrap();
            script.calls.push((Call::Open(when_suspended), Instant::now()));
            match script.disturbance {
                Some(disturbance) => Some(disturbance.response()),
                None => script.open_responses.pop_front(),
            }
        };
        progress(Progress::Connecting);
        match response {
            Some(Ok(())) => {
                let (near, far) = duplex(64 * 1024);
                self.0.0.lock().unwrap().hubs.push_back(far);
                Ok(Box::new(near))
            }
            Some(Err(error)) => Err(error),
            None => std::future::pending().await,
        }
    }
}

impl Disturbance {
    fn response(self) -> Result<(), PlatformError> {
        if Instant::now() < self.until { Err((self.error)()) } else { Ok(()) }
    }
}

/// The hold of a test's sandbox, controlled by the test.
pub(super) struct ScriptedHold {
    pub(super) served: mpsc::UnboundedSender<UnixStream>,
    pub(super) events: mpsc::Receiver<AttachEvent>,
    pub(super) ended: CancellationToken,
    pub(super) counts: watch::Receiver<CallCounts>,
}

impl HeldSandbox for ScriptedHold {
    fn serve(&self, stream: UnixStream) {
        // The test may have ended.
        let _ = self.served.send(stream);
    }

    async fn next_event(&mut self) -> HoldEvent {
        tokio::select! {
            () = self.ended.cancelled() => HoldEvent::Ended,
            Some(event) = self.events.recv() => HoldEvent::Pipe(event),
        }
    }

    fn call_counter(&self) -> CallCounter {
        let counts = self.counts.clone();
        Box::new(move || {
            let now = *counts.borrow();
            Box::pin(async move { now })
        })
    }
}
