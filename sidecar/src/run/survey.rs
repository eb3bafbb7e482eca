//! Which kinds of sandbox work on this machine, without a command to run: for `cofferdam doctor`.
//!
//! What must stay true: what a trial starts has ended when the survey returns.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::executable;
use super::host::Host;
use super::kind_check::{how_to_check, how_to_install};
use super::kinds::{CommandLine, Kind, Trial};
use super::obstacle::{Obstacle, find_obstacle};
use super::trial::Trials;
use crate::terminal::failure::Failure;

pub(crate) struct Survey {
    pub(crate) kinds: Vec<(&'static str, KindState)>,
    /// Why this user cannot make user namespaces, which sandboxes without root need.
    pub(crate) namespace_obstacle: Option<Obstacle>,
}

pub(crate) enum KindState {
    /// Its program is there, and was not started: that would leave files behind, or needs an image.
    Installed,
    Missing {
        why: String,
        next: String,
    },
    /// It was tried, and failed.
    Refused {
        why: String,
        next: String,
    },
    Works,
}

const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
const KINDS: [Kind; 5] = [Kind::Bwrap, Kind::Podman, Kind::Docker, Kind::Gvisor, Kind::Srt];

/// Tries each kind, until `stopped` is cancelled.
pub(crate) async fn survey(stopped: &CancellationToken) -> Result<Survey, Failure> {
    let host = Host::of_process()?;
    let mut trials = Trials::default();
    let mut kinds = Vec::new();
    for kind in KINDS {
        match stopped.run_until_cancelled(state_of(kind, &host, &mut trials)).await {
            Some(state) => kinds.push((kind.name(), state)),
            None => break,
        }
    }
    trials.stop().await;
    Ok(Survey { kinds, namespace_obstacle: find_obstacle(Kind::Bwrap, &host) })
}

async fn state_of(kind: Kind, host: &Host, trials: &mut Trials) -> KindState {
    let Some(program) = executable::find(kind.program().as_ref(), &host.search_path, &host.directory) else {
        let why = format!("`{}` is not on the PATH, and {} needs it", kind.program(), kind.name());
        return KindState::Missing { why, next: how_to_install(kind).to_owned() };
    };
    let arguments: &[&str] = match kind {
        Kind::Bwrap => &["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "true"],
        Kind::Podman | Kind::Docker => &["info"],
        Kind::Gvisor | Kind::Srt => return KindState::Installed,
    };
    let command = CommandLine {
        program,
        arguments: arguments.iter().map(Into::into).collect(),
        environment: host.all_variables(),
    };
    match trials.run(&Trial { command, removal: None }, None, TRIAL_TIMEOUT).await {
        Ok(()) => KindState::Works,
        Err(message) => match find_obstacle(kind, host) {
            Some(Obstacle { why, remedy }) => {
                KindState::Refused { why: format!("{why}; its program says: {message}"), next: remedy }
            }
            None => KindState::Refused { why: message, next: how_to_check(kind).to_owned() },
        },
    }
}
