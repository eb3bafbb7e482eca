//! Tests of the store of enrolments, with a simulated clock.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use relay_proto::control::Epoch;

use super::*;

/// A temporary directory, removed on drop.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new() -> Self {
        let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-enrolment-"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A store and its simulated time.
struct Fixture {
    directory: Directory,
    store: Enrolments,
    now: SystemTime,
}

impl Fixture {
    fn new() -> Self {
        let directory = Directory::new();
        let store = Enrolments::open(&directory.0).unwrap();
        Self { directory, store, now: cofferdam_base::clock::now() }
    }

    /// Opens the store again, as after a restart or a crash.
    fn restart(&mut self) {
        self.store = Enrolments::open(&self.directory.0).unwrap();
    }

    fn issue(&self) -> (Enrolment, Ticket) {
        self.store.create_with_ticket(terms(), Duration::from_secs(120), self.now).unwrap()
    }

    fn redeem(&self, ticket: &Ticket, key: PublicKey) -> Result<Epoch, Denied> {
        self.store.admit(&key, &KeyProof::Ticket(ticket), self.now).map(|(_, epoch)| epoch)
    }

    /// Connects with an epoch; returns the next epoch.
    fn connect(&self, key: PublicKey, epoch: &Epoch) -> Result<Epoch, Denied> {
        self.store.admit(&key, &KeyProof::Epoch(Some(epoch)), self.now).map(|(_, epoch)| epoch)
    }

    /// The first frame of the link that was offered this epoch.
    fn first_frame(&self, key: PublicKey, epoch: &Epoch) -> ConfirmOutcome {
        let id = Arc::clone(&self.store.lock().by_key[&key]);
        let confirmed = self.store.confirm(&id, &Fingerprint::of_epoch(epoch));
        self.store.save(&id).unwrap();
        confirmed
    }

    /// A key that has connected once, and its epoch.
    fn enrolled(&self) -> (PublicKey, Epoch) {
        let (_, ticket) = self.issue();
        let key = key();
        let epoch = self.redeem(&ticket, key).unwrap();
        assert_eq!(self.first_frame(key, &epoch), ConfirmOutcome::NowCurrent);
        (key, epoch)
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.directory.0.join("enrolments"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

fn terms() -> NewEnrolment {
    NewEnrolment {
        grant: "dev".parse().unwrap(),
        name: Some("box".into()),
        ttl: Duration::from_secs(8 * 3600),
        max_enrolments: 8,
    }
}

fn key() -> PublicKey {
    PublicKey::from_bytes(cofferdam_base::random::bytes())
}

#[test]
fn a_ticket_is_valid_for_one_key() {
    let fixture = Fixture::new();
    let (enrolled, ticket) = fixture.issue();
    let (first, second) = (key(), key());
    let epoch = fixture.redeem(&ticket, first).unwrap();
    assert!(matches!(fixture.redeem(&ticket, second), Err(Denied::TicketReused(whose)) if whose == enrolled));
    assert_eq!(fixture.first_frame(first, &epoch), ConfirmOutcome::NowCurrent);
    assert!(matches!(fixture.redeem(&ticket, second), Err(Denied::TicketReused(_))));
    assert!(
        matches!(fixture.redeem(&ticket, first), Err(Denied::TicketReused(_))),
        "the key must present its epoch"
    );
    assert_eq!(fixture.store.recognise(&first, fixture.now).unwrap(), enrolled);
    assert!(matches!(fixture.store.recognise(&second, fixture.now), Err(Denied::UnknownKey)));
}

#[test]
fn a_lost_welcome_locks_no_sandbox_out() {
    let mut fixture = Fixture::new();
    let (_, ticket) = fixture.issue();
    let key = key();
    let lost = fixture.redeem(&ticket, key).unwrap();
    fixture.restart();
    fixture.now += Duration::from_secs(600);
    let first = fixture.redeem(&ticket, key).expect("the ticket has expired, but this key used it in time");
    // This offer arrived, but its confirmation was lost.
    let second = fixture.connect(key, &first).unwrap();
    assert_eq!(
        fixture.first_frame(key, &lost),
        ConfirmOutcome::Outdated,
        "only one offer can become current"
    );
    assert_eq!(fixture.first_frame(key, &second), ConfirmOutcome::NowCurrent);
    assert_eq!(
        fixture.first_frame(key, &first),
        ConfirmOutcome::AlreadyCurrent,
        "a late first frame does not mean a clone"
    );
    let lost = fixture.connect(key, &second).unwrap();
    let third = fixture.connect(key, &second).expect("the offer was lost");
    assert_eq!(fixture.first_frame(key, &third), ConfirmOutcome::NowCurrent);
    assert_eq!(fixture.first_frame(key, &lost), ConfirmOutcome::Outdated);
}

#[test]
fn a_restart_changes_nothing() {
    let mut fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    let (_, unused) = fixture.issue();
    fixture.store.create_with_socket(terms(), "/run/box".into(), fixture.now).unwrap();
    let attached = fixture.store.create_attached(terms(), fixture.now).unwrap();
    fixture.restart();
    let next = fixture.connect(key, &epoch).unwrap();
    assert_eq!(fixture.first_frame(key, &next), ConfirmOutcome::NowCurrent);
    fixture.redeem(&unused, self::key()).unwrap();
    assert_eq!(fixture.store.sockets(fixture.now)[0].1, Path::new("/run/box"));
    assert_eq!(fixture.store.find(&attached.id, fixture.now).unwrap(), attached);
    fixture.restart();
    assert!(
        matches!(fixture.connect(key, &epoch), Err(Denied::Cloned(_))),
        "the previous epoch stays invalid"
    );
    fixture.connect(key, &next).unwrap();
}

#[test]
fn of_two_copies_of_a_key_exactly_one_stays_valid() {
    let fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    // One after the other.
    let first = fixture.connect(key, &epoch).unwrap();
    assert_eq!(fixture.first_frame(key, &first), ConfirmOutcome::NowCurrent);
    assert!(matches!(fixture.connect(key, &epoch), Err(Denied::Cloned(_))));
    // Both at once: the first wins.
    let one = fixture.connect(key, &first).unwrap();
    let other = fixture.connect(key, &first).unwrap();
    assert_eq!(fixture.first_frame(key, &other), ConfirmOutcome::NowCurrent);
    assert_eq!(fixture.first_frame(key, &one), ConfirmOutcome::Outdated);
    assert!(matches!(fixture.connect(key, &one), Err(Denied::Cloned(_))));
    fixture.connect(key, &other).unwrap();
}

#[test]
fn a_delayed_hello_locks_no_sandbox_out() {
    let mut fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    let held = fixture.connect(key, &epoch).unwrap();
    // The shim closed this connection long ago, and its Hello arrives before the first frame of the other connection.
    let lost = fixture.connect(key, &epoch).unwrap();
    fixture.restart();
    let next = fixture.connect(key, &held).expect("the shim holds this epoch");
    assert!(
        matches!(fixture.connect(key, &lost), Err(Denied::Cloned(_))),
        "only one of the two offers stays valid"
    );
    assert_eq!(fixture.first_frame(key, &next), ConfirmOutcome::NowCurrent);
}

#[test]
fn unconfirmed_offers_are_bounded() {
    let fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    let first = fixture.connect(key, &epoch).unwrap();
    let mut last = first.clone();
    for _ in 0..100 {
        last = fixture.connect(key, &epoch).unwrap();
    }
    assert!(fs::metadata(&fixture.files()[0]).unwrap().len() < 4096);
    assert_eq!(fixture.first_frame(key, &first), ConfirmOutcome::Outdated);
    assert_eq!(fixture.first_frame(key, &last), ConfirmOutcome::NowCurrent);
}

#[test]
fn epochs_that_were_never_offered_are_refused() {
    let fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    for odd in ["", "0", &epoch.0.to_uppercase(), &epoch.0[1..], &"f".repeat(64), &"f".repeat(16_000)] {
        assert!(matches!(fixture.connect(key, &Epoch(odd.into())), Err(Denied::Cloned(_))), "{odd:.70}");
    }
    let none = fixture.store.admit(&key, &KeyProof::Epoch(None), fixture.now);
    assert!(matches!(none, Err(Denied::Cloned(_))));
    assert!(matches!(fixture.connect(self::key(), &epoch), Err(Denied::UnknownKey)));
    fixture.connect(key, &epoch).expect("the refused epochs did not change the current one");
}

#[test]
fn refused_tickets_get_distinct_reasons() {
    let mut fixture = Fixture::new();
    let (_, ticket) = fixture.issue();
    for odd in ["", "ticket", &ticket.0[1..], &format!("{}0", ticket.0), &"g".repeat(64)] {
        assert!(matches!(fixture.redeem(&Ticket(odd.into()), key()), Err(Denied::MalformedTicket)), "{odd}");
    }
    assert!(matches!(fixture.redeem(&Ticket("0".repeat(64)), key()), Err(Denied::UnknownTicket)));
    let (enrolled_key, _) = fixture.enrolled();
    assert!(matches!(fixture.redeem(&ticket, enrolled_key), Err(Denied::KeyAlreadyEnrolled(_))));
    fixture.now += Duration::from_secs(120);
    assert!(matches!(fixture.redeem(&ticket, key()), Err(Denied::TicketExpired)));
    fixture.store.sweep(fixture.now);
    fixture.restart();
    assert!(
        matches!(fixture.redeem(&ticket, key()), Err(Denied::TicketExpired)),
        "the reason is still stored"
    );
    fixture.now += ENDED_RETENTION;
    fixture.store.sweep(fixture.now);
    assert!(matches!(fixture.redeem(&ticket, key()), Err(Denied::UnknownTicket)), "the record was removed");
}

#[test]
fn every_refusal_names_the_next_step() {
    let (enrolled, _) = Fixture::new().issue();
    let denied = [
        Denied::MalformedTicket,
        Denied::UnknownTicket,
        Denied::TicketExpired,
        Denied::TicketReused(enrolled.clone()),
        Denied::UnknownKey,
        Denied::KeyAlreadyEnrolled(enrolled.clone()),
        Denied::Ended(EndCause::EndedByOperator),
        Denied::Ended(EndCause::Expired),
        Denied::Ended(EndCause::Unused),
        Denied::Cloned(enrolled),
    ];
    let mut sentences: Vec<_> = denied.iter().map(|denied| denied.refusal().message).collect();
    assert!(sentences.iter().all(|sentence| sentence.contains("`cofferdam enroll`")), "{sentences:?}");
    sentences.sort();
    sentences.dedup();
    assert_eq!(sentences.len(), denied.len(), "each refusal has its own text");
}

#[test]
fn an_ended_enrolment_stays_ended() {
    let mut fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    let ended = fixture.store.recognise(&key, fixture.now).unwrap();
    assert_eq!(fixture.store.end(&ended.id, fixture.now).unwrap(), Some(ended.clone()));
    assert_eq!(fixture.store.end(&ended.id, fixture.now).unwrap(), None);
    fixture.restart();
    assert!(matches!(fixture.connect(key, &epoch), Err(Denied::Ended(EndCause::EndedByOperator))));

    let (key, epoch) = fixture.enrolled();
    let next = fixture.store.sweep(fixture.now).next.unwrap();
    assert_eq!(
        next.duration_since(fixture.now).unwrap().as_secs() + 1,
        8 * 3600,
        "the end is stored in whole milliseconds"
    );
    fixture.now += Duration::from_secs(8 * 3600);
    assert!(
        matches!(fixture.connect(key, &epoch), Err(Denied::Ended(EndCause::Expired))),
        "an expired enrolment is refused before the sweep"
    );
    assert_eq!(fixture.store.sweep(fixture.now).ended.len(), 1);
    assert_eq!(fixture.store.sweep(fixture.now).ended.len(), 0, "an end is reported once");
    fixture.now += ENDED_RETENTION;
    fixture.store.sweep(fixture.now);
    assert!(matches!(fixture.connect(key, &epoch), Err(Denied::UnknownKey)));
    assert_eq!(fixture.files().len(), 0);
}

#[test]
fn enrolments_are_bounded_and_ended_ones_make_room() {
    let fixture = Fixture::new();
    let (first, _) = fixture.issue();
    for _ in 1..8 {
        fixture.issue();
    }
    let full = fixture.store.create_with_ticket(terms(), Duration::from_secs(1), fixture.now);
    assert!(matches!(full, Err(NotCreated::TooMany(8))));
    fixture.store.end(&first.id, fixture.now).unwrap();
    fixture.issue();
    assert_eq!(fixture.files().len(), 8);
    assert!(matches!(fixture.store.find(&first.id, fixture.now), Err(Denied::UnknownKey)));
}

#[test]
fn an_expired_enrolment_is_not_removed_before_a_sweep_has_found_it() {
    let mut fixture = Fixture::new();
    let socket = NewEnrolment { ttl: Duration::from_secs(60), ..terms() };
    let first = fixture.store.create_with_socket(socket, "/run/box".into(), fixture.now).unwrap();
    for _ in 1..8 {
        fixture.issue();
    }
    fixture.now += Duration::from_secs(60);
    let full = fixture.store.create_with_ticket(terms(), Duration::from_secs(1), fixture.now);
    assert!(
        matches!(full, Err(NotCreated::TooMany(8))),
        "the expired enrolment still occupies its place, because its socket is open"
    );
    assert_eq!(
        fixture.store.sweep(fixture.now).ended,
        [first],
        "the sweep reports it, so that its socket is closed"
    );
    fixture.issue();
}

#[test]
fn names_and_directories_are_checked() {
    let fixture = Fixture::new();
    for odd in ["", "a\nb", "\u{1b}[2J", &"é".repeat(65)] {
        let terms = NewEnrolment { name: Some(odd.into()), ..terms() };
        assert!(
            matches!(fixture.store.create_attached(terms, fixture.now), Err(NotCreated::InvalidName)),
            "{odd:?}"
        );
    }
    let first = fixture.store.create_with_socket(terms(), "/run/box".into(), fixture.now).unwrap();
    let second = fixture.store.create_with_socket(terms(), "/run/box".into(), fixture.now);
    assert!(matches!(second, Err(NotCreated::DirectoryInUse(_, id)) if id == first.id));
    fixture.store.end(&first.id, fixture.now).unwrap();
    fixture.store.create_with_socket(terms(), "/run/box".into(), fixture.now).unwrap();
}

#[test]
fn neither_tickets_nor_epochs_are_on_disk_and_only_the_owner_reads() {
    let fixture = Fixture::new();
    let (_, ticket) = fixture.issue();
    let (key, first) = fixture.enrolled();
    let second = fixture.connect(key, &first).unwrap();
    for path in fixture.files() {
        let text = fs::read_to_string(&path).unwrap();
        for secret in [&ticket.0, &first.0, &second.0] {
            assert!(!text.contains(secret.as_str()), "{text}");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    let directory = fs::metadata(fixture.directory.0.join("enrolments")).unwrap();
    assert_eq!(directory.permissions().mode() & 0o7777, 0o700);
}

#[test]
fn incomplete_and_foreign_files_are_skipped_and_left_in_place() {
    let mut fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    let directory = fixture.directory.0.join("enrolments");
    let whole = fs::read(&fixture.files()[0]).unwrap();
    fs::write(directory.join("e1.json"), &whole[..whole.len() / 2]).unwrap();
    fs::write(directory.join("e2.json"), &whole).unwrap();
    fs::write(directory.join("e3.json"), vec![b' '; 70_000]).unwrap();
    fs::write(directory.join("README"), "hello").unwrap();
    fs::create_dir(directory.join("e4.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", directory.join("e5.json")).unwrap();
    nix::unistd::mkfifo(&directory.join("e6.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(directory.join(".0123.new"), "cut short").unwrap();
    fixture.restart();
    assert_eq!(fixture.store.lock().by_id.len(), 1);
    fixture.connect(key, &epoch).unwrap();
    assert_eq!(fixture.files().len(), 8, "only the file of the interrupted write is removed");
}

#[test]
fn unknown_keys_of_another_version_are_written_back() {
    let mut fixture = Fixture::new();
    let (key, epoch) = fixture.enrolled();
    let path = fixture.files().remove(0);
    add_unknown_key(&path, |record| record);
    add_unknown_key(&path, |record| &mut record["kind"]["key"]);
    fixture.restart();
    fixture.connect(key, &epoch).unwrap();
    let again = json(&path);
    assert_eq!(again["later"], unknown_value());
    assert_eq!(again["kind"]["key"]["later"], unknown_value());

    // The same holds when the identity changes, and when the enrolment ends.
    let (_, ticket) = fixture.issue();
    let socket = fixture.store.create_with_socket(terms(), "/run/box".into(), fixture.now).unwrap();
    let enrolments = fixture.directory.0.join("enrolments");
    let path_of = |id: &str| enrolments.join(format!("{id}.json"));
    let redeemed = path_of(&fixture.store.lock().by_ticket[&Fingerprint::of_ticket(&ticket).unwrap()]);
    add_unknown_key(&redeemed, |record| &mut record["kind"]["ticket"]);
    add_unknown_key(&path_of(&socket.id), |record| &mut record["kind"]["socket"]);
    fixture.restart();
    fixture.redeem(&ticket, self::key()).unwrap();
    fixture.store.end(&socket.id, fixture.now).unwrap();
    assert_eq!(json(&redeemed)["kind"]["key"]["later"], unknown_value());
    assert_eq!(json(&path_of(&socket.id))["kind"]["socket"]["later"], unknown_value());
}

fn unknown_value() -> serde_json::Value {
    serde_json::json!({"a": [1, 2]})
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Writes a key of another version into a file.
fn add_unknown_key(path: &Path, object_in: fn(&mut serde_json::Value) -> &mut serde_json::Value) {
    let mut record = json(path);
    object_in(&mut record)["later"] = unknown_value();
    fs::write(path, record.to_string()).unwrap();
}

#[test]
fn an_epoch_that_cannot_be_saved_is_not_offered() {
    let fixture = Fixture::new();
    let (_, ticket) = fixture.issue();
    let (key, epoch) = fixture.enrolled();
    let (store, aside) = (fixture.directory.0.join("enrolments"), fixture.directory.0.join("aside"));
    fs::rename(&store, &aside).unwrap();
    assert!(matches!(
        fixture.store.create_with_ticket(terms(), Duration::ZERO, fixture.now),
        Err(NotCreated::Store(_))
    ));
    let other = self::key();
    assert!(matches!(fixture.redeem(&ticket, other), Err(Denied::NotSaved(_))));
    assert!(matches!(fixture.connect(key, &epoch), Err(Denied::NotSaved(_))));
    fs::rename(&aside, &store).unwrap();
    fixture.redeem(&ticket, other).expect("the ticket is still valid");
    fixture.connect(key, &epoch).expect("the epoch is still valid");
    assert_eq!(fixture.files().len(), 2);
}

#[test]
fn alerts_are_rate_limited() {
    let fixture = Fixture::new();
    let (enrolled, _) = fixture.issue();
    assert_eq!(
        (0..100).filter(|_| fixture.store.may_alert(&enrolled.id)).count(),
        ALERTS_PER_MINUTE as usize
    );
    assert!(!fixture.store.may_alert("e0"));
}
