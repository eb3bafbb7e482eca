//! The kinds of sandbox that `cofferdam run` can make on this machine, and the shim that goes into them.

use cofferdam_platforms::Architecture;
use tokio_util::sync::CancellationToken;

use super::finding::Findings;
use crate::run::{KindState, survey};
use crate::shims::ShimFiles;

pub(super) async fn probe(stopped: &CancellationToken, findings: &mut Findings) {
    if stopped.is_cancelled() {
        return;
    }
    let architecture = Architecture::from_machine(std::env::consts::ARCH);
    if let Some(Err(why)) = architecture.map(|this| ShimFiles::default().find(None, this)) {
        let next = "install a build that has the shim inside, or put `cofferdam-shim` beside `cofferdam`";
        findings.warning("shim-missing", "shim", why, next);
    }
    let survey = match survey(stopped).await {
        Ok(survey) => survey,
        Err(failure) => {
            let next = failure.next_step().unwrap_or("run this as a user with a home directory").to_owned();
            findings.warning("sandbox-none", "sandboxes", failure.what(), next);
            return;
        }
    };
    if let Some(obstacle) = survey.namespace_obstacle {
        findings.warning("user-namespaces-forbidden", "limits", obstacle.why, obstacle.remedy);
    }
    let mut missing = Vec::new();
    let mut working = 0;
    for (name, state) in survey.kinds {
        let about = format!("sandbox {name}");
        match state {
            KindState::Works => {
                working += 1;
                findings.good("sandbox-ok", about, "it works here");
            }
            KindState::Installed => {
                working += 1;
                findings.good("sandbox-ok", about, "its program is installed; it was not started");
            }
            KindState::Refused { why, next } => findings.warning("sandbox-refused", about, why, next),
            KindState::Missing { why, next } => missing.push((about, why, next)),
        }
    }
    // One kind is enough, and the first is the default of `run`.
    let is_default = |about: &str| about == "sandbox bubblewrap";
    for (about, why, next) in missing {
        if working == 0 || is_default(&about) {
            findings.warning("sandbox-missing", about, why, next);
        }
    }
    if working == 0 {
        let next = "install `bubblewrap`, or attach sandboxes that run elsewhere: `cofferdam attach --help`";
        findings.warning("sandbox-none", "sandboxes", "no kind of sandbox works on this machine", next);
    }
}
