//! A platform whose answers a test writes beforehand, and the sidecar's side of its pipes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cofferdam_platforms::{Pipe, PlatformError, Progress, SandboxState, WhenSuspended};
use tokio::io::{DuplexStream, duplex};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::activity::{CallCounter, CallCounts};
use super::client::{Clients, PlatformClient};
use super::keys::KeyUse;
use super::pacing::AttemptError;
use super::run::HeldSandbox;
use crate::daemon::attach::hold::HoldEvent;
use crate::daemon::attach_table::AttachEvent;

/// What the platform is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Call {
    EndHub,
    Open(WhenSuspended),
    RefreshActivity,
    State,
}

/// Shared by the test and the clients. Without an answer the platform never responds.
#[derive(Clone, Default)]
pub(super) struct ScriptedPlatform(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    opens: VecDeque<Result<(), PlatformError>>,
    states: VecDeque<Result<SandboxState, PlatformError>>,
    calls: Vec<(Call, Instant)>,
    keys: Vec<KeyUse>,
    /// The hub's ends of the pipes.
    hubs: VecDeque<DuplexStream>,
}

pub(super) struct ScriptedClient(ScriptedPlatform);

impl ScriptedPlatform {
    pub(super) fn answers_open(&self, answer: Result<(), PlatformError>) -> &Self {
        self.0.lock().unwrap().opens.push_back(answer);
        self
    }

    pub(super) fn answers_state(&self, answer: Result<SandboxState, PlatformError>) -> &Self {
        self.0.lock().unwrap().states.push_back(answer);
        self
    }

    pub(super) fn calls(&self) -> Vec<(Call, Instant)> {
        self.0.lock().unwrap().calls.clone()
    }

    pub(super) fn keys(&self) -> Vec<KeyUse> {
        self.0.lock().unwrap().keys.clone()
    }

    /// The hub's end of the next pipe.
    pub(super) fn hub(&self) -> Option<DuplexStream> {
        self.0.lock().unwrap().hubs.pop_front()
    }
}

impl Clients for ScriptedPlatform {
    async fn client(&self, key: KeyUse) -> Result<PlatformClient, AttemptError> {
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
        let answer = {
            let mut script = self.0.0.lock().unwrap();
            script.calls.push((Call::State, Instant::now()));
            script.states.pop_front()
        };
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn open(
        &self,
        when_suspended: WhenSuspended,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Pipe, PlatformError> {
        let answer = {
            let mut script = self.0.0.lock().unwrap();
            script.calls.push((Call::Open(when_suspended), Instant::now()));
            script.opens.pop_front()
        };
        progress(Progress::Connecting);
        match answer {
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

/// The enrolment of a test's sandbox.
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
