//! Lists the enrolments and attached sandboxes that a caller may see, and finds the one that a caller's name or id
//! refers to.

use std::sync::Arc;

use cofferdam_base::clock;
use http::StatusCode;

use super::caller::Caller;
use super::error::ApiError;
use super::{AttachState, AttachedSandbox, EnrolmentEntry};
use crate::daemon::attach_table::{self, PipeState};
use crate::daemon::attachments::status::AttachmentStatus;
use crate::daemon::state::Daemon;
use crate::enrolment::Enrolment;

/// What a name or id in a request may refer to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NameOf {
    Enrolment,
    SessionOrEnrolment,
}

pub(super) fn enrolments(daemon: &Daemon, caller: &Caller) -> Vec<EnrolmentEntry> {
    let now = clock::now();
    let mut entries: Vec<EnrolmentEntry> = Vec::new();
    for (enrolment, kind) in daemon.enrolments.list(now) {
        if caller.may_use(enrolment.grant.as_str()) {
            let session = daemon.registry.session_of_enrolment(&enrolment.id);
            entries.push(EnrolmentEntry {
                enrolment: enrolment.id.to_string(),
                name: enrolment.name,
                grant: enrolment.grant.to_string(),
                kind,
                expires_in_seconds: enrolment.expires.duration_since(now).unwrap_or_default().as_secs(),
                links: session.as_ref().map_or(0, |(_, links)| *links as u64),
                session: session.map(|(session, _)| session.to_string()),
            });
        }
    }
    entries.sort_by(|left, right| left.name.cmp(&right.name).then(left.enrolment.cmp(&right.enrolment)));
    entries
}

/// Attachments of sandboxes on platforms.
pub(super) fn attachments(daemon: &Daemon, caller: &Caller) -> Vec<AttachmentStatus> {
    let mut all = daemon.attachments.statuses();
    all.retain(|attachment| caller.may_use(&attachment.grant));
    all
}

pub(super) fn attachment_of_enrolment(
    daemon: &Daemon,
    caller: &Caller,
    enrolment: &str,
) -> Option<AttachmentStatus> {
    let is_of_enrolment = |attachment: &AttachmentStatus| attachment.enrolment.as_deref() == Some(enrolment);
    attachments(daemon, caller).into_iter().find(is_of_enrolment)
}

/// Finds an attachment by the id of its enrolment or by its name, which several grants may use.
pub(super) fn find_attachment(
    daemon: &Daemon,
    caller: &Caller,
    name: &str,
) -> Result<Option<AttachmentStatus>, ApiError> {
    if let Some(found) = attachment_of_enrolment(daemon, caller, name) {
        return Ok(Some(found));
    }
    let mut all = attachments(daemon, caller);
    all.retain(|attachment| attachment.name == name);
    match all.as_slice() {
        [] | [_] => Ok(all.pop()),
        several => {
            let describe = |attachment: &AttachmentStatus| {
                let enrolment = attachment.enrolment.as_deref().unwrap_or("not enrolled yet");
                format!("{enrolment} (grant `{}`)", attachment.grant)
            };
            let ids: Vec<String> = several.iter().map(describe).collect();
            let message = format!("{} attachments have the name `{name}`: {}", ids.len(), ids.join(", "));
            Err(ApiError::new(StatusCode::CONFLICT, "ambiguous", message)
                .with_hint("give one of these ids instead"))
        }
    }
}

/// Attached sandboxes that have no link and are not listed as attachments.
pub(super) fn attached(daemon: &Daemon, caller: &Caller) -> Vec<AttachedSandbox> {
    let attachments: Vec<Option<String>> =
        daemon.attachments.statuses().into_iter().map(|attachment| attachment.enrolment).collect();
    let mut all: Vec<AttachedSandbox> = {
        let table = daemon.attaches.lock();
        let visible = table.by_sandbox.iter().filter(|(sandbox, _)| caller.may_use(sandbox.grant.as_str()));
        let described = visible.map(|(sandbox, attached)| AttachedSandbox {
            enrolment: attached.enrolment.to_string(),
            name: sandbox.name.clone(),
            grant: sandbox.grant.to_string(),
            state: state_of(attached),
            reason: match &attached.pipe_state {
                PipeState::Lost(why) => Some(why.clone()),
                PipeState::NotYetOpen | PipeState::Open => None,
            },
        });
        described.collect()
    };
    all.retain(|sandbox| {
        let has_links = daemon.registry.session_of_enrolment(&sandbox.enrolment).is_some();
        !has_links && !attachments.iter().flatten().any(|enrolment| *enrolment == sandbox.enrolment)
    });
    all.sort_by(|left, right| left.name.cmp(&right.name).then(left.enrolment.cmp(&right.enrolment)));
    all
}

fn state_of(attached: &attach_table::AttachedSandbox) -> AttachState {
    match (&attached.holder, &attached.pipe_state) {
        (None, _) => AttachState::Detached,
        (Some(_), PipeState::Open) => AttachState::Attached,
        (Some(_), PipeState::Lost(_) | PipeState::NotYetOpen) => AttachState::Connecting,
    }
}

/// Finds the id of a session or enrolment by that id or, if there is none, by the sandbox's name.
pub(super) fn resolve(
    daemon: &Daemon,
    caller: &Caller,
    name: &str,
    name_of: NameOf,
) -> Result<Arc<str>, ApiError> {
    let is_visible_session = |grant: &relay_proto::name::Name| caller.may_use(grant.as_str());
    if name_of == NameOf::SessionOrEnrolment
        && daemon.registry.grant_of(name).as_ref().is_some_and(is_visible_session)
    {
        return Ok(name.into());
    }
    let visible: Vec<Enrolment> = daemon
        .enrolments
        .list(clock::now())
        .into_iter()
        .map(|(enrolment, _)| enrolment)
        .filter(|enrolment| caller.may_use(enrolment.grant.as_str()))
        .collect();
    if let Some(enrolment) = visible.iter().find(|enrolment| *enrolment.id == *name) {
        return Ok(Arc::clone(&enrolment.id));
    }
    let named: Vec<&Enrolment> =
        visible.iter().filter(|enrolment| enrolment.name.as_deref() == Some(name)).collect();
    match named.as_slice() {
        [] => {
            let what = match name_of {
                NameOf::Enrolment => "enrolment or sandbox",
                NameOf::SessionOrEnrolment => "session, enrolment or sandbox",
            };
            Err(ApiError::not_found(format!("there is no {what} `{name}`"))
                .with_hint("`cofferdam sessions` and `cofferdam enrolments` list them"))
        }
        [only] => Ok(Arc::clone(&only.id)),
        several => {
            let mut ids: Vec<String> = several
                .iter()
                .map(|enrolment| format!("{} (grant `{}`)", enrolment.id, enrolment.grant))
                .collect();
            ids.sort();
            let message = format!("{} sandboxes have the name `{name}`: {}", ids.len(), ids.join(", "));
            Err(ApiError::new(StatusCode::CONFLICT, "ambiguous", message)
                .with_hint("give one of these ids instead"))
        }
    }
}
