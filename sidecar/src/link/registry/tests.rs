//! The registry with links that do as little as a test wants.

mod clock;

use relay_proto::control::ResumeToken;
use relay_proto::name::Name;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::link::command::Processes;
use crate::session::fixture::Fixture;
use crate::session::principal::{Enrolled, EnrolledBy};

/// A registry over a directory of its own, gone afterwards.
struct Place {
    context: Arc<Context>,
    registry: Arc<Registry>,
    fixture: Fixture,
}

impl Place {
    fn new() -> Self {
        let fixture = Fixture::new("");
        Self { context: Arc::clone(&fixture.context), registry: Arc::default(), fixture }
    }

    fn register(&self) -> (Registered, mpsc::Receiver<Command>) {
        self.register_for(&anybody())
    }

    fn register_for(&self, principal: &Principal) -> (Registered, mpsc::Receiver<Command>) {
        let Reserved { mut registered, receiver } = self.registry.reserve(&self.context, principal).unwrap();
        registered.begin();
        (registered, receiver)
    }

    /// A link that takes no command, and whose channel takes no more.
    fn busy_link(&self) -> (Registered, mpsc::Receiver<Command>) {
        let (registered, receiver) = self.register();
        let commands = self.registry.lock().by_id[&registered.link].commands.clone();
        while commands.try_send(Command::Describe(oneshot::channel().0)).is_ok() {}
        (registered, receiver)
    }

    /// A link that does what it is told.
    fn willing_link(&self) -> JoinHandle<()> {
        let (registered, mut receiver) = self.register();
        let (session, link) = (Arc::clone(&registered.session.id), Arc::clone(&registered.link));
        self.context.tasks.spawn(registered.during(async move {
            while let Some(command) = receiver.recv().await {
                match command {
                    Command::Attach { .. } => {}
                    Command::Describe(reply) => drop(reply.send(described(&session, &link))),
                    Command::End { ended, reason } => {
                        let _ = ended.send(Ended {
                            calls_unanswered: 0,
                            processes: Processes::AllEnded,
                            server_ended_ms: 0,
                            vault: None,
                            not_revocable: Vec::new(),
                        });
                        return reason;
                    }
                }
            }
            EndReason::Stopped
        }))
    }

    fn audit(&self) -> String {
        self.fixture.audit()
    }

    fn links(&self) -> usize {
        self.registry.lock().by_id.len()
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn anybody() -> Principal {
    Principal::anonymous(name("dev"))
}

/// A sandbox with a key.
fn sandbox(id: &str) -> Principal {
    let enrolled = Enrolled {
        id: id.into(),
        name: "box".into(),
        expires: Instant::now(),
        kind: EnrolledBy::Key,
        next_step: "enrol again",
    };
    Principal { enrolment: Some(enrolled), ..anybody() }
}

fn connection() -> Connection {
    Connection::new(Box::new(tokio::io::duplex(64).0))
}

fn described(session: &str, link: &str) -> Description {
    Description {
        session: session.into(),
        link: link.into(),
        grant: "dev".into(),
        server: "tools".into(),
        connected: true,
        pid: None,
        replacement: None,
        scopes: Vec::new(),
        in_flight: 0,
        calls: 0,
        refused: 0,
        redactions: 0,
        began: String::new(),
        expires_in_seconds: 1,
        secrets: Vec::new(),
        credentials: Vec::new(),
    }
}

#[tokio::test]
async fn a_link_whose_task_fails_leaves_no_entry_and_has_its_end_recorded() {
    let place = Place::new();
    let (registered, _receiver) = place.register();
    let task = place.context.tasks.spawn(registered.during(async { panic!("on purpose") }));
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(place.links(), 0);
    let audit = place.audit();
    for event in ["\"event\":\"alert\"", "\"event\":\"session_end\"", "link task failed"] {
        assert!(audit.contains(event), "{event} in {audit}");
    }
}

#[tokio::test]
async fn a_link_that_ends_by_itself_raises_no_alert() {
    let place = Place::new();
    let (registered, _receiver) = place.register();
    place.context.tasks.spawn(registered.during(async { EndReason::Goodbye })).await.unwrap();
    assert_eq!(place.links(), 0);
    assert!(!place.audit().contains("link task failed"));
}

#[tokio::test]
async fn the_links_of_an_enrolment_share_a_session_that_ends_with_the_last() {
    let place = Place::new();
    let register = |id| place.register_for(&sandbox(id)).0;
    let (first, second, other) = (register("e1"), register("e1"), register("e2"));
    assert_eq!(first.session.id, second.session.id);
    assert_ne!(first.session.id, other.session.id);
    let session = Arc::clone(&first.session.id);
    let ends = |audit: &str| audit.lines().filter(|line| line.contains("session_end")).count();
    drop(first);
    assert_eq!(ends(&place.audit()), 0, "one link is left");
    drop(second);
    assert_eq!(ends(&place.audit()), 1);
    assert_ne!(register("e1").session.id, session, "the next link opens a new session");
    let stranger = Resume { link: other.link.to_string(), token: ResumeToken("0".repeat(64)), received: 0 };
    let resumed = place.registry.resume(&sandbox("e1"), connection(), stranger).await;
    assert!(matches!(resumed, Err(NotResumed::Foreign(_))));
}

#[tokio::test]
async fn a_place_that_nobody_took_counts_while_it_is_kept_and_leaves_nothing_behind() {
    let place = Place::new();
    let limit = place.context.config.load().limits.links;
    let reserve = || place.registry.reserve(&place.context, &sandbox("e1"));
    let mut reserved: Vec<_> = (0..limit).map(|_| reserve().unwrap()).collect();
    assert!(matches!(reserve(), Err(NotOpened::Socket(_))), "before anything was paid for them");
    reserved.pop().unwrap().open(name("tools"), connection(), None);
    drop(reserved);
    assert_eq!(place.links(), 1);
    assert!(place.registry.standing("e1").is_some(), "the session stays with its one link");
    place.registry.close(EndReason::Stopped).await;
    let audit = place.audit();
    for event in ["session_start", "session_end", "link_start", "link_end"] {
        let count = audit.lines().filter(|line| line.contains(&format!("\"event\":\"{event}\""))).count();
        assert_eq!(count, 1, "{event} in {audit}");
    }
    assert!(!audit.contains("\"event\":\"alert\""), "{audit}");
}

#[tokio::test]
async fn an_enrolment_that_has_all_its_links_is_in_nobodys_way() {
    let place = Place::new();
    let limit = place.context.config.load().limits.links;
    let register = |principal: &Principal| place.registry.reserve(&place.context, principal);
    let _links: Vec<_> = (0..limit).map(|_| register(&sandbox("e1")).unwrap()).collect();
    assert!(matches!(register(&sandbox("e1")), Err(NotOpened::Socket(_))));
    let _other = register(&sandbox("e2")).unwrap();
    let _anybody = register(&anybody()).unwrap();
    assert_eq!(place.registry.standing("e1").map(|(_, links)| links), Some(limit));
    let session = place.registry.standing("e2").unwrap().0;
    assert_eq!(place.registry.enrolment_of(&session).flatten().as_deref(), Some("e2"));
}

#[tokio::test(start_paused = true)]
async fn busy_links_are_left_out_together_and_hide_nobody() {
    let place = Place::new();
    let _busy: Vec<_> = (0..5).map(|_| place.busy_link()).collect();
    let _willing = place.willing_link();
    let began = Instant::now();
    assert_eq!(place.registry.describe().await.len(), 1);
    assert_eq!(began.elapsed(), DESCRIBE_TIME, "all are waited for at once");
}

#[tokio::test(start_paused = true)]
async fn the_end_reaches_a_link_that_takes_nothing_else_and_delays_no_other() {
    let place = Place::new();
    let (_registered, mut receiver) = place.busy_link();
    let willing = place.willing_link();
    let began = Instant::now();
    let ending = place.registry.close(EndReason::Stopped).await;
    assert_eq!(began.elapsed(), END_TIME);
    assert_eq!((ending.ended.len(), ending.late.len()), (1, 1));
    assert!(willing.is_finished(), "it ended while the other was waited for");
    let mut waiting = std::iter::from_fn(|| receiver.try_recv().ok());
    assert!(waiting.any(|command| matches!(command, Command::End { reason: EndReason::Stopped, .. })));
}

#[tokio::test(start_paused = true)]
async fn whoever_ends_a_link_second_waits_for_its_end_too() {
    let place = Place::new();
    let (registered, receiver) = place.register();
    let session = Arc::clone(&registered.session.id);
    let registry = Arc::clone(&place.registry);
    let first = place.context.tasks.spawn(async move { registry.end(&session, EndReason::Killed).await });
    tokio::task::yield_now().await;
    let registry = Arc::clone(&place.registry);
    let second = place.context.tasks.spawn(async move { registry.close(EndReason::Stopped).await });
    tokio::time::sleep(END_TIME / 2).await;
    assert!(!second.is_finished());
    drop(receiver);
    drop(registered);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.late.len(), second.late.len(), second.ended.len()), (0, 0, 0));
}

#[tokio::test]
async fn nothing_is_opened_once_the_registry_is_closed() {
    let place = Place::new();
    place.registry.close(EndReason::Stopped).await;
    let reserved = place.registry.reserve(&place.context, &anybody());
    assert!(matches!(reserved, Err(NotOpened::Stopping)));
    assert_eq!(place.links(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_comes_back_from_a_link_that_takes_nothing() {
    let place = Place::new();
    let (registered, _receiver) = place.busy_link();
    let resume =
        Resume { link: registered.link.to_string(), token: ResumeToken("0".repeat(64)), received: 0 };
    assert!(matches!(
        place.registry.resume(&anybody(), connection(), resume).await,
        Err(NotResumed::Busy(_))
    ));
}
