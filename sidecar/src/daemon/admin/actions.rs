//! Records the actions of callers in the audit: who gave a sandbox or a token its rights, and who ended them.
//!
//! What must stay true: an action that gives rights is recorded before it is carried out, and refused if it cannot be
//! recorded; an action that ends rights is carried out whether or not it can be recorded; what was done is recorded even if
//! the caller disconnects meanwhile; no record contains a token or an enrolment string.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{ActionState, AdminAction, AdminRecord, AdminTarget};
use cofferdam_base::clock;
use cofferdam_base::text::error_chain;
use cofferdam_scrub::Naming;
use http::StatusCode;
use tokio::time::timeout;

use super::caller::Caller;
use super::error::ApiError;
use super::respond::FAILED;
use crate::daemon::attachments::status::AttachmentStatus;
use crate::daemon::state::Daemon;

/// One action of a caller.
pub(super) struct Action {
    daemon: Arc<Daemon>,
    kind: AdminAction,
    by: String,
    by_name: Option<String>,
    target: Target,
}

/// The session, enrolment, sandbox or token that an action affects, as an owned [`AdminTarget`].
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    pub(super) session: Option<String>,
    pub(super) enrolment: Option<String>,
    pub(super) sandbox: Option<String>,
    pub(super) grant: Option<String>,
    pub(super) token: Option<String>,
}

/// An action whose record takes longer to write is refused, like a call.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

impl Action {
    pub(super) fn new(daemon: &Arc<Daemon>, caller: &Caller, kind: AdminAction, target: Target) -> Self {
        Self {
            daemon: Arc::clone(daemon),
            kind,
            by: caller.audit_id(),
            by_name: caller.token_name().map(str::to_owned),
            target,
        }
    }

    /// Records an action that gives rights, then carries it out in its own task; refuses it if it cannot be recorded. After
    /// success, `add_to_target` adds to the target what only the result tells, such as an id, for the record of the result.
    pub(super) async fn carry_out<T: Send + 'static>(
        mut self,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
        add_to_target: impl FnOnce(&T, &mut Target) + Send + 'static,
    ) -> Result<T, ApiError> {
        let daemon = Arc::clone(&self.daemon);
        run_in_own_task(&daemon, async move {
            self.record_request().await?;
            let result = work.await;
            if let Ok(done) = &result {
                add_to_target(done, &mut self.target);
            }
            self.record_result(&result);
            result
        })
        .await
    }

    /// Records the result of an action, which does not wait for that; a failure to record is logged.
    pub(super) fn record_result<T>(&self, result: &Result<T, ApiError>) {
        let (state, failure) = match result {
            Ok(_) => (ActionState::Done, None),
            Err(error) => (ActionState::Failed, Some(error.message())),
        };
        let recorded = self.with_record(state, failure, |record| self.daemon.context.audit.admin(record));
        let (action, by) = (self.kind.as_str(), self.by.clone());
        self.daemon.context.tasks.spawn(async move {
            if let Err(error) = recorded.await {
                let (error, state) = (error_chain(&error), state.as_str());
                tracing::error!(error, action, by, state, "the result of an action was not recorded");
            }
        });
    }

    async fn record_request(&self) -> Result<(), ApiError> {
        let audit = &self.daemon.context.audit;
        let pending = self.with_record(ActionState::Requested, None, |record| audit.admin(record));
        let refused = |why: String, hint: Option<String>| {
            let message = format!("nothing was done, because the audit could not record the action: {why}");
            let refused = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "audit_unavailable", message);
            refused.with_hint(hint.unwrap_or_else(|| "check the disk of `state-dir`".to_owned()))
        };
        match timeout(RECORD_TIMEOUT, pending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(refused(error_chain(&error), error.hint())),
            Err(_) => Err(refused(format!("its disk took longer than {} s", RECORD_TIMEOUT.as_secs()), None)),
        }
    }

    /// Builds the record and writes it. Texts from clients may contain anything, so known secrets are removed from them.
    fn with_record<T>(
        &self,
        state: ActionState,
        detail: Option<&str>,
        write: impl FnOnce(&AdminRecord<'_>) -> T,
    ) -> T {
        let scrubbers = self.daemon.context.values().scrubber(Naming::All);
        let scrub = |text: Option<&str>| {
            text.map(|text| String::from_utf8_lossy(&scrubbers.text(text.as_bytes()).bytes).into_owned())
        };
        let (sandbox, by_name) = (scrub(self.target.sandbox.as_deref()), scrub(self.by_name.as_deref()));
        let detail = scrub(detail);
        write(&AdminRecord {
            action: self.kind,
            state,
            by: &self.by,
            by_name: by_name.as_deref(),
            target: AdminTarget {
                session: self.target.session.as_deref(),
                enrolment: self.target.enrolment.as_deref(),
                sandbox: sandbox.as_deref(),
                grant: self.target.grant.as_deref(),
                token: self.target.token.as_deref(),
            },
            detail: detail.as_deref(),
        })
    }
}

/// Runs an action in its own task, with the record of its result: a caller that disconnects cancels its request, but not
/// the task.
pub(super) async fn run_in_own_task<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    action: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    daemon.context.tasks.spawn(action).await.map_err(|_| ApiError::internal(FAILED))?
}

impl Target {
    pub(super) fn sandbox(grant: &str, name: Option<&str>) -> Self {
        Self { grant: Some(grant.to_owned()), sandbox: name.map(str::to_owned), ..Self::default() }
    }

    /// The target of an action on the session or enrolment with this id.
    pub(super) fn of_id(daemon: &Daemon, id: &str) -> Self {
        let (session, enrolment) = match daemon.registry.enrolment_of(id) {
            Some(enrolment) => (Some(id.to_owned()), enrolment),
            None => {
                let session = daemon.registry.session_of_enrolment(id);
                (session.map(|(session, _)| session.to_string()), Some(id.into()))
            }
        };
        let live_enrolment = enrolment.as_ref().and_then(|id| daemon.enrolments.find(id, clock::now()).ok());
        let grant = match &live_enrolment {
            Some(enrolment) => Some(enrolment.grant.clone()),
            None => session.as_ref().and_then(|session| daemon.registry.grant_of(session)),
        };
        Self {
            session,
            enrolment: enrolment.map(|id| id.to_string()),
            sandbox: live_enrolment.and_then(|enrolment| enrolment.name),
            grant: grant.map(|grant| grant.to_string()),
            token: None,
        }
    }

    pub(super) fn of_attachment(daemon: &Daemon, status: &AttachmentStatus) -> Self {
        let of_enrolment = status.enrolment.as_ref().map(|id| Self::of_id(daemon, id)).unwrap_or_default();
        Self { sandbox: Some(status.name.clone()), grant: Some(status.grant.clone()), ..of_enrolment }
    }
}
