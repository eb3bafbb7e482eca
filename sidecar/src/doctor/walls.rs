//! The walls that this host gives to confined servers.
//!
//! What is not looked at: whether the sidecar has a control group to divide, which depends on how the sidecar is started and not on
//! the host. `cofferdam sessions` and the sidecar's log say it.

use cofferdam_confine::FurtherWall;
use cofferdam_process as process;
use cofferdam_servers::spec::{Confinement, ServerKind};

use super::finding::Findings;
use crate::config::Config;

pub(super) fn probe(config: Option<&Config>, findings: &mut Findings) {
    let confined: Vec<(&str, &Confinement)> = config
        .into_iter()
        .flat_map(|config| config.servers.values())
        .filter_map(|server| match &server.kind {
            ServerKind::Stdio(stdio) => Some((server.name.as_str(), stdio.confinement.as_ref()?)),
            ServerKind::Http(_) => None,
        })
        .collect();
    if confined.is_empty() {
        return;
    }
    if let Err(error) = process::try_user_namespace() {
        let what = format!(
            "the walls `files`, `processes` and `network` cannot be built without namespaces: {error}"
        );
        let next = process::namespaces_way_out(&error);
        return findings.error("wall-missing", "confinement", what, next);
    }
    let (landlock, groups) = (process::has_landlock(), process::offers_control_groups());
    for (server, confinement) in &confined {
        let profile = &confinement.profile;
        let about = format!("server {server}");
        if !landlock && profile.require.contains(&FurtherWall::Landlock) {
            let next = "start the kernel with Landlock (`lsm=` on its command line), or leave `landlock` out";
            findings.error(
                "wall-missing",
                &about,
                "it requires `landlock`, which the kernel does not have",
                next,
            );
        }
        if !groups && (profile.cpu.is_some() || profile.require.contains(&FurtherWall::Limits)) {
            let what = "`cpu`, or `limits` in `require`, needs control groups (cgroup v2), which this host does not have";
            let next = "boot with `systemd.unified_cgroup_hierarchy=1`, or leave these keys out";
            findings.error("wall-missing", about, what, next);
        }
    }
    if !findings.has_error("wall-missing") {
        let what = match landlock {
            true => "namespaces and Landlock can be used",
            false => {
                "namespaces can be used; the kernel has no Landlock, which would be a second wall around files"
            }
        };
        findings.good("walls-ok", "confinement", what);
    }
}
