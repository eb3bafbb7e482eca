//! Records of what clients of the admin API did: who gave a sandbox or a token its rights, and who ended them.
//!
//! What must stay true: an action that gives rights is recorded as requested before it is carried out; no record has a token,
//! a ticket or an enrolment string. Names of sandboxes and tokens come from clients: **the caller scrubs them first**.

use super::text::{Members, name};

/// One action of a client of the admin API, before or after it is carried out.
#[derive(Clone, Copy, Debug)]
pub struct AdminRecord<'a> {
    pub action: AdminAction,
    pub state: ActionState,
    /// The client: `uid:UID` on the admin socket, `token:ID`, or `certificate:` and the SHA-256 of the certificate.
    pub by: &'a str,
    /// The name of the client's token.
    pub by_name: Option<&'a str>,
    pub target: AdminTarget<'a>,
    /// Why the action failed.
    pub detail: Option<&'a str>,
}

/// What an action is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdminTarget<'a> {
    pub session: Option<&'a str>,
    pub enrolment: Option<&'a str>,
    /// The name of the sandbox.
    pub sandbox: Option<&'a str>,
    /// For a token: its grants, separated by commas.
    pub grant: Option<&'a str>,
    /// The id of a token, never its text.
    pub token: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AdminAction {
    Attach,
    AttachPlatform,
    CreateToken,
    EndAttachment,
    EndEnrolment,
    Enroll,
    Kill,
    RevokeToken,
}

/// How far an action has got.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ActionState {
    /// It is carried out next. If neither `done` nor `failed` follows, the sidecar ended meanwhile, or the client
    /// disconnected before the action was done.
    Requested,
    Done,
    Failed,
}

impl AdminRecord<'_> {
    pub(super) fn write(&self, members: &mut Members<'_>) {
        let AdminTarget { session, enrolment, sandbox, grant, token } = self.target;
        members
            .plain(name!("action"), self.action.as_str().as_bytes())
            .plain(name!("state"), self.state.as_str().as_bytes())
            .text(name!("by"), self.by)
            .optional_text(name!("by_name"), self.by_name)
            .optional_text(name!("session"), session)
            .optional_text(name!("enrolment"), enrolment)
            .optional_text(name!("sandbox"), sandbox)
            .optional_text(name!("grant"), grant)
            .optional_text(name!("token"), token)
            .optional_text(name!("detail"), self.detail);
    }
}

impl AdminAction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::AttachPlatform => "attach_platform",
            Self::CreateToken => "create_token",
            Self::EndAttachment => "end_attachment",
            Self::EndEnrolment => "end_enrolment",
            Self::Enroll => "enroll",
            Self::Kill => "kill",
            Self::RevokeToken => "revoke_token",
        }
    }
}

impl ActionState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}
