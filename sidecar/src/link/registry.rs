//! All links, by id: opens, resumes, describes and ends them. Also their sessions: the links of one enrolment share one
//! session, which begins with the first of them and ends with the last.
//!
//! What must stay true: an entry exists for exactly as long as its link's task runs, however that task ends; no link
//! can make others wait, so commands to many links are sent concurrently and with a timeout; once the registry is
//! closed, no link is opened; an entry is reserved before any resource is spent on a new link.

mod reserved;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_audit::NoSpace;
use cofferdam_servers::grant_limits;
use futures_util::future::join_all;
use relay_proto::control::Resume;
use relay_proto::name::Name;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::LinkResources;
use super::command::{Command, Description, EndReason, Ended};
use super::connection::Connection;
use super::memory::LinkMemory;
use crate::session::principal::Principal;
use crate::session::{Context, Session};
pub(crate) use reserved::Reserved;
use reserved::{RECORDS_OF_A_LINK, RECORDS_OF_AN_ENTRY, Registered, TaskState};

#[derive(Default)]
pub(crate) struct Registry {
    links: Mutex<Links>,
}

#[derive(Default)]
struct Links {
    by_id: HashMap<Arc<str>, LinkHandle>,
    sessions: HashMap<Arc<str>, OpenSession>,
    /// The current session of each enrolment.
    by_enrolment: HashMap<Arc<str>, Arc<str>>,
    admission: Admission,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Admission {
    /// The sidecar is stopping: a link that is opened now would not be ended.
    Closed,
    #[default]
    Open,
}

struct OpenSession {
    session: Arc<Session>,
    /// Links of this session, reserved ones included.
    links: usize,
    begun: Begun,
}

/// Whether the start of a session is in the audit: it is recorded with its first link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Begun {
    No,
    Yes,
}

#[derive(Clone)]
struct LinkHandle {
    session: Arc<str>,
    enrolment: Option<Arc<str>>,
    /// The user of the peer, on the shared socket.
    uid: Option<u32>,
    commands: mpsc::Sender<Command>,
    /// The permit that is reserved in the channel for [`Command::End`], until it is used.
    end: Arc<Mutex<Option<OwnedPermit<Command>>>>,
}

/// One link that was ended, as reported to the caller.
#[derive(Clone, Debug, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct EndedLink {
    pub(crate) session: String,
    pub(crate) link: String,
    #[serde(flatten)]
    pub(crate) ended: Ended,
}

/// The result of ending several links.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    pub(crate) ended: Vec<EndedLink>,
    /// Links that did not end in time.
    pub(crate) late: Vec<String>,
}

/// Why no link was opened.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum NotOpened {
    #[error(
        "the start and the end of a link could not be recorded: this sandbox has used up its share of the host's audit: {}; {}",
        .0.limit,
        .0.limit.hint()
    )]
    Audit(NoSpace),
    #[error(transparent)]
    Grant(#[from] grant_limits::LimitReached),
    #[error(
        "this sandbox, or this user of the socket, has as many links as `limits.links` allows ({0}); end some of its harnesses first"
    )]
    LinkLimit(usize),
    #[error(
        "the links of this sandbox, or all links, use as much of the sidecar's memory as `limits.enrolment-memory` or `limits.total-memory` allows; end some, or read their responses"
    )]
    Memory,
    #[error("the sidecar is stopping")]
    Stopping,
}

/// Why a connection was not handed to its link; the connection is returned.
pub(crate) enum NotResumed {
    /// The link does not take commands at the moment.
    Busy(Connection),
    /// The link belongs to another enrolment.
    Foreign(Connection),
    /// The link has ended.
    Ended(Connection),
}

/// Commands that may queue for a busy link, [`Command::End`] not counted.
const MAX_COMMANDS: usize = 8;
/// A link that does not describe itself within this time is left out.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a link may take to end, its server's processes included.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection waits for a busy link. It occupies a handshake slot meanwhile.
const RESUME_TIMEOUT: Duration = Duration::from_secs(2);

impl Registry {
    /// Reserves an entry for a link of this principal, in its enrolment's session or in a new session.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        context: &Arc<Context>,
        principal: &Principal,
    ) -> Result<Reserved, NotOpened> {
        let config = context.config.load();
        let limit = config.limits.links;
        let link: Arc<str> = cofferdam_base::random::id("l").into();
        let (session, receiver, memory, mut records) = {
            let mut links = self.lock();
            if links.admission == Admission::Closed {
                return Err(NotOpened::Stopping);
            }
            if links.count_for(principal) >= limit {
                return Err(NotOpened::LinkLimit(limit));
            }
            let memory = LinkMemory::open(&context.sandbox_memory(principal), &config.limits);
            let memory = memory.ok_or(NotOpened::Memory)?;
            let records = RECORDS_OF_AN_ENTRY + RECORDS_OF_A_LINK;
            let records = context.reserve_events(principal, records).map_err(NotOpened::Audit)?;
            // Last, because it counts the link.
            context.sandbox_limits(principal).admit_link()?;
            let session = links.session(context, principal);
            let (handle, receiver) = LinkHandle::new(&session, principal);
            links.by_id.insert(Arc::clone(&link), handle);
            (session, receiver, memory, records)
        };
        let resources = LinkResources { memory, end_record: records.split(RECORDS_OF_A_LINK) };
        let (registry, state) = (Arc::clone(self), TaskState::NotStarted);
        let registered = Registered { registry, session, link, state, records };
        Ok(Reserved { registered, receiver, resources })
    }

    /// Passes a connection to the link that its Hello asks to resume.
    pub(crate) async fn resume(
        &self,
        principal: &Principal,
        connection: Connection,
        resume: Resume,
    ) -> Result<(), NotResumed> {
        let handle = self.lock().by_id.get(resume.link.as_str()).cloned();
        let Some(handle) = handle else { return Err(NotResumed::Ended(connection)) };
        if handle.enrolment.as_ref() != principal.enrolment_id() {
            return Err(NotResumed::Foreign(connection));
        }
        match timeout(RESUME_TIMEOUT, handle.commands.reserve()).await {
            Ok(Ok(permit)) => {
                permit.send(Command::Attach { connection: Box::new(connection), resume });
                Ok(())
            }
            Ok(Err(_)) => Err(NotResumed::Ended(connection)),
            Err(_) => Err(NotResumed::Busy(connection)),
        }
    }

    pub(crate) async fn describe(&self) -> Vec<Description> {
        let links = self.lock().matching(|_| true);
        describe_all(links).await
    }

    /// Describes the links of this enrolment.
    pub(crate) async fn describe_enrolment(&self, enrolment: &str) -> Vec<Description> {
        let links = self.lock().matching(|handle| handle.enrolment.as_deref() == Some(enrolment));
        describe_all(links).await
    }

    /// Ends the links of this session, concurrently.
    pub(crate) async fn end(&self, session: &str, reason: EndReason) -> Ending {
        let links = self.lock().matching(|handle| *handle.session == *session);
        end_all(links, reason).await
    }

    /// Ends the links of this enrolment, concurrently.
    pub(crate) async fn end_enrolment(&self, enrolment: &str, reason: EndReason) -> Ending {
        let links = self.lock().matching(|handle| handle.enrolment.as_deref() == Some(enrolment));
        end_all(links, reason).await
    }

    /// The grant of a session, if the session exists.
    pub(crate) fn grant_of(&self, session: &str) -> Option<Name> {
        self.lock().sessions.get(session).map(|open| open.session.grant.clone())
    }

    /// The enrolment of a session, if the session exists; sessions on the shared socket have none.
    pub(crate) fn enrolment_of(&self, session: &str) -> Option<Option<Arc<str>>> {
        let links = self.lock();
        let open = links.sessions.get(session)?;
        Some(open.session.enrolment.as_ref().map(|enrolled| Arc::clone(&enrolled.id)))
    }

    /// The current session of an enrolment, and its number of links.
    pub(crate) fn session_of_enrolment(&self, enrolment: &str) -> Option<(Arc<str>, usize)> {
        let links = self.lock();
        let session = links.by_enrolment.get(enrolment)?;
        Some((Arc::clone(session), links.sessions.get(session)?.links))
    }

    /// The number of sessions and of links.
    pub(crate) fn count(&self) -> (usize, usize) {
        let links = self.lock();
        (links.sessions.len(), links.by_id.len())
    }

    /// Stops opening links, and ends all links.
    pub(crate) async fn close(&self, reason: EndReason) -> Ending {
        let links = {
            let mut links = self.lock();
            links.admission = Admission::Closed;
            links.matching(|_| true)
        };
        end_all(links, reason).await
    }

    /// A poisoned lock can be used: every change under it is consistent at each step. It is needed after a panic, to
    /// remove the entry of the link's task.
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Links {
    /// The session for one more link of this principal.
    fn session(&mut self, context: &Arc<Context>, principal: &Principal) -> Arc<Session> {
        let running =
            principal.enrolment_id().and_then(|enrolment| self.by_enrolment.get(enrolment)).cloned();
        if let Some(open) = running.and_then(|session| self.sessions.get_mut(&session)) {
            open.links += 1;
            return Arc::clone(&open.session);
        }
        let session = Arc::new(Session::new(context, principal));
        if let Some(enrolment) = principal.enrolment_id() {
            self.by_enrolment.insert(Arc::clone(enrolment), Arc::clone(&session.id));
        }
        let open = OpenSession { session: Arc::clone(&session), links: 1, begun: Begun::No };
        self.sessions.insert(Arc::clone(&session.id), open);
        session
    }

    /// A link of this session begins; returns whether the session had begun before.
    fn begin(&mut self, session: &Session) -> Begun {
        let open = self.sessions.get_mut(&session.id);
        open.map_or(Begun::Yes, |open| std::mem::replace(&mut open.begun, Begun::Yes))
    }

    /// The number of links of this principal's enrolment, or of its user on the shared socket.
    fn count_for(&self, principal: &Principal) -> usize {
        match principal.enrolment_id() {
            Some(id) => {
                let session = self.by_enrolment.get(id).and_then(|session| self.sessions.get(session));
                session.map_or(0, |session| session.links)
            }
            None => {
                let is_of_user =
                    |handle: &&LinkHandle| handle.enrolment.is_none() && handle.uid == principal.uid;
                self.by_id.values().filter(is_of_user).count()
            }
        }
    }

    /// Removes a link. Returns its session if this was its last link.
    fn remove(&mut self, link: &str, session: &Session) -> Option<OpenSession> {
        self.by_id.remove(link);
        let open = self.sessions.get_mut(&session.id)?;
        open.links -= 1;
        if open.links > 0 {
            return None;
        }
        if let Some(enrolled) = &session.enrolment {
            self.by_enrolment.remove(&enrolled.id);
        }
        self.sessions.remove(&session.id)
    }

    fn matching(&self, matches: impl Fn(&LinkHandle) -> bool) -> Vec<(Arc<str>, LinkHandle)> {
        let matching = self.by_id.iter().filter(|(_, handle)| matches(handle));
        matching.map(|(id, handle)| (Arc::clone(id), handle.clone())).collect()
    }
}

impl LinkHandle {
    fn new(session: &Session, principal: &Principal) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(MAX_COMMANDS + 1);
        let end = commands.clone().try_reserve_owned().ok();
        let handle = Self {
            session: Arc::clone(&session.id),
            enrolment: session.enrolment.as_ref().map(|enrolled| Arc::clone(&enrolled.id)),
            uid: principal.uid,
            commands,
            end: Arc::new(Mutex::new(end)),
        };
        (handle, receiver)
    }

    async fn describe(&self) -> Option<Description> {
        let (reply, description) = oneshot::channel();
        self.commands.send(Command::Describe(reply)).await.ok()?;
        description.await.ok()
    }

    /// Waits for the end of the link. None where another command to end it came first.
    async fn end(&self, reason: EndReason) -> Option<Ended> {
        let permit = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        match permit {
            Some(permit) => {
                let (ended, report) = oneshot::channel();
                permit.send(Command::End { reason, ended });
                report.await.ok()
            }
            None => {
                self.commands.closed().await;
                None
            }
        }
    }
}

async fn describe_all(links: Vec<(Arc<str>, LinkHandle)>) -> Vec<Description> {
    let requests = links.iter().map(|(_, handle)| timeout(DESCRIBE_TIMEOUT, handle.describe()));
    let responses = join_all(requests).await;
    let mut descriptions: Vec<Description> =
        responses.into_iter().filter_map(|response| response.ok().flatten()).collect();
    descriptions.sort_by(|left, right| left.began.cmp(&right.began).then(left.link.cmp(&right.link)));
    descriptions
}

async fn end_all(links: Vec<(Arc<str>, LinkHandle)>, reason: EndReason) -> Ending {
    let ends = links.iter().map(|(_, handle)| timeout(END_TIMEOUT, handle.end(reason)));
    let reports = join_all(ends).await;
    let mut ending = Ending::default();
    for ((link, handle), report) in links.iter().zip(reports) {
        let link = link.to_string();
        match report {
            Ok(Some(ended)) => {
                ending.ended.push(EndedLink { session: handle.session.to_string(), link, ended });
            }
            Ok(None) => {}
            Err(_) => {
                tracing::error!(link, session = %handle.session, "the link did not end in time");
                ending.late.push(link);
            }
        }
    }
    ending
}

#[cfg(test)]
mod tests;
