//! The registry with stub links.

mod clock;

use relay_proto::control::ResumeToken;
use relay_proto::name::Name;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::link::command::Processes;
use crate::session::fixture::Fixture;
use crate::session::principal::{Enrolled, EnrolledBy};

/// A registry with a temporary directory.
struct TestRegistry {
    context: Arc<Context>,
    registry: Arc<Registry>,
    fixture: Fixture,
}

impl TestRegistry {
    fn new() -> Self {
        let fixture = Fixture::new("");
        Self { context: Arc::clone(&fixture.context), registry: Arc::default(), fixture }
    }

    fn register(&self) -> (Registered, mpsc::Receiver<Command>) {
        self.register_for(&anonymous())
    }

    fn register_for(&self, principal: &Principal) -> (Registered, mpsc::Receiver<Command>) {
        let Reserved { mut registered, receiver, .. } =
            self.registry.reserve(&self.context, principal).unwrap();
        registered.begin();
        (registered, receiver)
    }

    /// A link that receives no commands, and whose command channel is full.
    fn busy_link(&self) -> (Registered, mpsc::Receiver<Command>) {
        let (registered, receiver) = self.register();
        let commands = self.registry.lock().by_id[&registered.link].commands.clone();
        while commands.try_send(Command::Describe(oneshot::channel().0)).is_ok() {}
        (registered, receiver)
    }

    /// A link that handles every command at once.
    fn responsive_link(&self) -> JoinHandle<()> {
        let (registered, mut receiver) = self.register();
        let (session, link) = (Arc::clone(&registered.session.id), Arc::clone(&registered.link));
        self.context.tasks.spawn(registered.run_link(async move {
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

fn anonymous() -> Principal {
    Principal::anonymous(name("dev"), None)
}

/// A sandbox that was enrolled with a key.
fn sandbox(id: &str) -> Principal {
    let enrolled = Enrolled {
        id: id.into(),
        name: "box".into(),
        expires: Instant::now(),
        kind: EnrolledBy::Key,
        next_step: "enrol again",
    };
    Principal { enrolment: Some(enrolled), ..anonymous() }
}

fn connection() -> Connection {
    Connection::new(Box::new(tokio::io::duplex(64).0))
}

fn described(session: &str, link: &str) -> Description {
    Description {
        session: session.into(),
        link: link.into(),
        enrolment: None,
        name: None,
        grant: "dev".into(),
        server: "tools".into(),
        connected: true,
        pid: None,
        confine: None,
        replacement: None,
        scopes: Vec::new(),
        walls: Vec::new(),
        in_flight: 0,
        memory_bytes: 0,
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
    let fixture = TestRegistry::new();
    let (registered, _receiver) = fixture.register();
    let task = fixture.context.tasks.spawn(registered.run_link(async { panic!("on purpose") }));
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(fixture.links(), 0);
    let audit = fixture.audit();
    for event in ["\"event\":\"alert\"", "\"event\":\"session_end\"", "link task failed"] {
        assert!(audit.contains(event), "no {event} in {audit}");
    }
}

#[tokio::test]
async fn a_link_that_ends_by_itself_raises_no_alert() {
    let fixture = TestRegistry::new();
    let (registered, _receiver) = fixture.register();
    fixture.context.tasks.spawn(registered.run_link(async { EndReason::Goodbye })).await.unwrap();
    assert_eq!(fixture.links(), 0);
    assert!(!fixture.audit().contains("link task failed"));
}

#[tokio::test]
async fn the_links_of_an_enrolment_share_a_session_that_ends_with_the_last() {
    let fixture = TestRegistry::new();
    let register = |id| fixture.register_for(&sandbox(id)).0;
    let (first, second, other) = (register("e1"), register("e1"), register("e2"));
    assert_eq!(first.session.id, second.session.id);
    assert_ne!(first.session.id, other.session.id);
    let session = Arc::clone(&first.session.id);
    let ends = |audit: &str| audit.lines().filter(|line| line.contains("session_end")).count();
    drop(first);
    assert_eq!(ends(&fixture.audit()), 0, "one link is left");
    drop(second);
    assert_eq!(ends(&fixture.audit()), 1);
    assert_ne!(register("e1").session.id, session, "the next link opens a new session");
    let foreign = Resume { link: other.link.to_string(), token: ResumeToken("0".repeat(64)), received: 0 };
    let resumed = fixture.registry.resume(&sandbox("e1"), connection(), foreign).await;
    assert!(matches!(resumed, Err(NotResumed::Foreign(_))));
}

#[tokio::test]
async fn a_user_of_the_shared_socket_with_all_its_links_does_not_limit_other_users() {
    let fixture = TestRegistry::new();
    let limit = fixture.context.config.load().limits.links;
    let user = |uid| Principal::anonymous(name("dev"), Some(uid));
    let register = |uid| fixture.registry.reserve(&fixture.context, &user(uid));
    let _links: Vec<_> = (0..limit).map(|_| register(1000).unwrap()).collect();
    assert!(matches!(register(1000), Err(NotOpened::LinkLimit(_))));
    assert!(register(1001).is_ok());
}

#[tokio::test]
async fn a_sandbox_that_uses_all_its_memory_opens_no_link_until_it_releases_some() {
    let fixture = TestRegistry::new();
    let reserve = |enrolment| fixture.registry.reserve(&fixture.context, &sandbox(enrolment));
    let mut used = fixture.context.sandbox_memory(&sandbox("e1")).empty_charge();
    used.set(fixture.context.config.load().limits.memory_ceilings().sandbox);
    assert!(matches!(reserve("e1"), Err(NotOpened::Memory)));
    assert!(reserve("e2").is_ok(), "other sandboxes open links");
    drop(used);
    assert!(reserve("e1").is_ok());
    assert_eq!(fixture.context.memory_used(), 0, "links that were not opened are charged no longer");
}

#[tokio::test]
async fn an_unused_reservation_counts_until_it_is_dropped_and_leaves_no_record() {
    let fixture = TestRegistry::new();
    let limit = fixture.context.config.load().limits.links;
    let reserve = || fixture.registry.reserve(&fixture.context, &sandbox("e1"));
    let mut reserved: Vec<_> = (0..limit).map(|_| reserve().unwrap()).collect();
    assert!(
        matches!(reserve(), Err(NotOpened::LinkLimit(_))),
        "reservations count before any link is opened"
    );
    reserved.pop().unwrap().open(name("tools"), connection(), None);
    drop(reserved);
    assert_eq!(fixture.links(), 1);
    assert!(fixture.registry.session_of_enrolment("e1").is_some(), "the session stays with its one link");
    fixture.registry.close(EndReason::Stopped).await;
    let audit = fixture.audit();
    for event in ["session_start", "session_end", "link_start", "link_end"] {
        let count = audit.lines().filter(|line| line.contains(&format!("\"event\":\"{event}\""))).count();
        assert_eq!(count, 1, "{event} in {audit}");
    }
    assert!(!audit.contains("\"event\":\"alert\""), "{audit}");
}

#[tokio::test]
async fn an_enrolment_with_all_its_links_does_not_limit_others() {
    let fixture = TestRegistry::new();
    let limit = fixture.context.config.load().limits.links;
    let register = |principal: &Principal| fixture.registry.reserve(&fixture.context, principal);
    let _links: Vec<_> = (0..limit).map(|_| register(&sandbox("e1")).unwrap()).collect();
    assert!(matches!(register(&sandbox("e1")), Err(NotOpened::LinkLimit(_))));
    let _other = register(&sandbox("e2")).unwrap();
    let _anonymous = register(&anonymous()).unwrap();
    assert_eq!(fixture.registry.session_of_enrolment("e1").map(|(_, links)| links), Some(limit));
    let session = fixture.registry.session_of_enrolment("e2").unwrap().0;
    assert_eq!(fixture.registry.enrolment_of(&session).flatten().as_deref(), Some("e2"));
}

#[tokio::test(start_paused = true)]
async fn busy_links_are_left_out_of_descriptions_and_others_are_listed() {
    let fixture = TestRegistry::new();
    let _busy: Vec<_> = (0..5).map(|_| fixture.busy_link()).collect();
    let _responsive = fixture.responsive_link();
    let began = Instant::now();
    assert_eq!(fixture.registry.describe().await.len(), 1);
    assert_eq!(began.elapsed(), DESCRIBE_TIMEOUT, "the links are asked concurrently");
}

#[tokio::test(start_paused = true)]
async fn the_end_command_reaches_a_busy_link_and_other_links_end_meanwhile() {
    let fixture = TestRegistry::new();
    let (_registered, mut receiver) = fixture.busy_link();
    let responsive = fixture.responsive_link();
    let began = Instant::now();
    let ending = fixture.registry.close(EndReason::Stopped).await;
    assert_eq!(began.elapsed(), END_TIMEOUT);
    assert_eq!((ending.ended.len(), ending.late.len()), (1, 1));
    assert!(responsive.is_finished(), "it ended without waiting for the busy link");
    let mut queued = std::iter::from_fn(|| receiver.try_recv().ok());
    assert!(queued.any(|command| matches!(command, Command::End { reason: EndReason::Stopped, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_second_command_to_end_a_link_also_waits_for_its_end() {
    let fixture = TestRegistry::new();
    let (registered, receiver) = fixture.register();
    let session = Arc::clone(&registered.session.id);
    let registry = Arc::clone(&fixture.registry);
    let first = fixture.context.tasks.spawn(async move { registry.end(&session, EndReason::Killed).await });
    tokio::task::yield_now().await;
    let registry = Arc::clone(&fixture.registry);
    let second = fixture.context.tasks.spawn(async move { registry.close(EndReason::Stopped).await });
    tokio::time::sleep(END_TIMEOUT / 2).await;
    assert!(!second.is_finished());
    drop(receiver);
    drop(registered);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.late.len(), second.late.len(), second.ended.len()), (0, 0, 0));
}

#[tokio::test]
async fn no_link_is_opened_once_the_registry_is_closed() {
    let fixture = TestRegistry::new();
    fixture.registry.close(EndReason::Stopped).await;
    let reserved = fixture.registry.reserve(&fixture.context, &anonymous());
    assert!(matches!(reserved, Err(NotOpened::Stopping)));
    assert_eq!(fixture.links(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_returned_if_its_link_takes_no_commands() {
    let fixture = TestRegistry::new();
    let (registered, _receiver) = fixture.busy_link();
    let resume =
        Resume { link: registered.link.to_string(), token: ResumeToken("0".repeat(64)), received: 0 };
    assert!(matches!(
        fixture.registry.resume(&anonymous(), connection(), resume).await,
        Err(NotResumed::Busy(_))
    ));
}
