//! The store of enrolments, with a simulated clock.

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
struct Scene {
    directory: Directory,
    store: Enrolments,
    now: SystemTime,
}

impl Scene {
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
        self.store.issue(terms(), Duration::from_secs(120), self.now).unwrap()
    }

    fn redeem(&self, ticket: &Ticket, key: PublicKey) -> Result<Epoch, Denied> {
        self.store.admit(&key, &KeyProof::Ticket(ticket), self.now).map(|(_, epoch)| epoch)
    }

    /// Connects with an epoch; returns the next one.
    fn connect(&self, key: PublicKey, epoch: &Epoch) -> Result<Epoch, Denied> {
        self.store.admit(&key, &KeyProof::Epoch(Some(epoch)), self.now).map(|(_, epoch)| epoch)
    }

    /// The first frame of the link that was offered this epoch.
    fn first_frame(&self, key: PublicKey, epoch: &Epoch) -> Confirmed {
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
        assert_eq!(self.first_frame(key, &epoch), Confirmed::NowCurrent);
        (key, epoch)
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.directory.0.join("enrolments"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

fn terms() -> Terms {
    Terms {
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
    let scene = Scene::new();
    let (enrolled, ticket) = scene.issue();
    let (first, second) = (key(), key());
    let epoch = scene.redeem(&ticket, first).unwrap();
    assert!(matches!(scene.redeem(&ticket, second), Err(Denied::Reused(whose)) if whose == enrolled));
    assert_eq!(scene.first_frame(first, &epoch), Confirmed::NowCurrent);
    assert!(matches!(scene.redeem(&ticket, second), Err(Denied::Reused(_))));
    assert!(matches!(scene.redeem(&ticket, first), Err(Denied::Reused(_))), "it must present its epoch");
    assert_eq!(scene.store.recognise(&first, scene.now).unwrap(), enrolled);
    assert!(matches!(scene.store.recognise(&second, scene.now), Err(Denied::UnknownKey)));
}

#[test]
fn a_lost_welcome_locks_no_sandbox_out() {
    let mut scene = Scene::new();
    let (_, ticket) = scene.issue();
    let key = key();
    let lost = scene.redeem(&ticket, key).unwrap();
    scene.restart();
    scene.now += Duration::from_secs(600);
    let first = scene.redeem(&ticket, key).expect("the ticket has expired, but this key used it in time");
    // This offer arrived, but its confirmation was lost.
    let second = scene.connect(key, &first).unwrap();
    assert_eq!(scene.first_frame(key, &lost), Confirmed::Outdated, "only one offer counts");
    assert_eq!(scene.first_frame(key, &second), Confirmed::NowCurrent);
    assert_eq!(
        scene.first_frame(key, &first),
        Confirmed::AlreadyCurrent,
        "a late first frame does not mean a clone"
    );
    let lost = scene.connect(key, &second).unwrap();
    let third = scene.connect(key, &second).expect("the offer was lost");
    assert_eq!(scene.first_frame(key, &third), Confirmed::NowCurrent);
    assert_eq!(scene.first_frame(key, &lost), Confirmed::Outdated);
}

#[test]
fn a_restart_changes_nothing() {
    let mut scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    let (_, unused) = scene.issue();
    scene.store.socket(terms(), "/run/box".into(), scene.now).unwrap();
    let attached = scene.store.attach(terms(), scene.now).unwrap();
    scene.restart();
    let next = scene.connect(key, &epoch).unwrap();
    assert_eq!(scene.first_frame(key, &next), Confirmed::NowCurrent);
    scene.redeem(&unused, self::key()).unwrap();
    assert_eq!(scene.store.sockets(scene.now)[0].1, Path::new("/run/box"));
    assert_eq!(scene.store.find(&attached.id, scene.now).unwrap(), attached);
    scene.restart();
    assert!(matches!(scene.connect(key, &epoch), Err(Denied::Cloned(_))), "the previous epoch stays invalid");
    scene.connect(key, &next).unwrap();
}

#[test]
fn of_two_copies_of_a_key_exactly_one_stays_valid() {
    let scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    // One after the other.
    let first = scene.connect(key, &epoch).unwrap();
    assert_eq!(scene.first_frame(key, &first), Confirmed::NowCurrent);
    assert!(matches!(scene.connect(key, &epoch), Err(Denied::Cloned(_))));
    // Both at once: the first wins.
    let one = scene.connect(key, &first).unwrap();
    let other = scene.connect(key, &first).unwrap();
    assert_eq!(scene.first_frame(key, &other), Confirmed::NowCurrent);
    assert_eq!(scene.first_frame(key, &one), Confirmed::Outdated);
    assert!(matches!(scene.connect(key, &one), Err(Denied::Cloned(_))));
    scene.connect(key, &other).unwrap();
}

#[test]
fn a_delayed_hello_locks_no_sandbox_out() {
    let mut scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    let held = scene.connect(key, &epoch).unwrap();
    // The shim gave up on this connection long ago, and its Hello arrives before the other's first frame.
    let lost = scene.connect(key, &epoch).unwrap();
    scene.restart();
    let next = scene.connect(key, &held).expect("the shim holds it");
    assert!(
        matches!(scene.connect(key, &lost), Err(Denied::Cloned(_))),
        "only one of the two offers stays valid"
    );
    assert_eq!(scene.first_frame(key, &next), Confirmed::NowCurrent);
}

#[test]
fn unconfirmed_offers_are_bounded() {
    let scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    let first = scene.connect(key, &epoch).unwrap();
    let mut last = first.clone();
    for _ in 0..100 {
        last = scene.connect(key, &epoch).unwrap();
    }
    assert!(fs::metadata(&scene.files()[0]).unwrap().len() < 4096);
    assert_eq!(scene.first_frame(key, &first), Confirmed::Outdated);
    assert_eq!(scene.first_frame(key, &last), Confirmed::NowCurrent);
}

#[test]
fn epochs_that_were_never_offered_are_refused() {
    let scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    for odd in ["", "0", &epoch.0.to_uppercase(), &epoch.0[1..], &"f".repeat(64), &"f".repeat(16_000)] {
        assert!(matches!(scene.connect(key, &Epoch(odd.into())), Err(Denied::Cloned(_))), "{odd:.70}");
    }
    let none = scene.store.admit(&key, &KeyProof::Epoch(None), scene.now);
    assert!(matches!(none, Err(Denied::Cloned(_))));
    assert!(matches!(scene.connect(self::key(), &epoch), Err(Denied::UnknownKey)));
    scene.connect(key, &epoch).expect("the refused epochs did not change the current one");
}

#[test]
fn refused_tickets_get_distinct_reasons() {
    let mut scene = Scene::new();
    let (_, ticket) = scene.issue();
    for odd in ["", "ticket", &ticket.0[1..], &format!("{}0", ticket.0), &"g".repeat(64)] {
        assert!(matches!(scene.redeem(&Ticket(odd.into()), key()), Err(Denied::Malformed)), "{odd}");
    }
    assert!(matches!(scene.redeem(&Ticket("0".repeat(64)), key()), Err(Denied::Foreign)));
    let (enrolled_key, _) = scene.enrolled();
    assert!(matches!(scene.redeem(&ticket, enrolled_key), Err(Denied::KeyTaken(_))));
    scene.now += Duration::from_secs(120);
    assert!(matches!(scene.redeem(&ticket, key()), Err(Denied::TicketExpired)));
    scene.store.sweep(scene.now);
    scene.restart();
    assert!(matches!(scene.redeem(&ticket, key()), Err(Denied::TicketExpired)), "it is remembered");
    scene.now += KEEP_ENDED;
    scene.store.sweep(scene.now);
    assert!(matches!(scene.redeem(&ticket, key()), Err(Denied::Foreign)), "but not for ever");
}

#[test]
fn every_refusal_names_the_next_step() {
    let (enrolled, _) = Scene::new().issue();
    let denied = [
        Denied::Malformed,
        Denied::Foreign,
        Denied::TicketExpired,
        Denied::Reused(enrolled.clone()),
        Denied::UnknownKey,
        Denied::KeyTaken(enrolled.clone()),
        Denied::Over(EndCause::Ended),
        Denied::Over(EndCause::Expired),
        Denied::Over(EndCause::Unused),
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
    let mut scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    let ended = scene.store.recognise(&key, scene.now).unwrap();
    assert_eq!(scene.store.end(&ended.id, scene.now).unwrap(), Some(ended.clone()));
    assert_eq!(scene.store.end(&ended.id, scene.now).unwrap(), None);
    scene.restart();
    assert!(matches!(scene.connect(key, &epoch), Err(Denied::Over(EndCause::Ended))));

    let (key, epoch) = scene.enrolled();
    let next = scene.store.sweep(scene.now).next.unwrap();
    assert_eq!(next.duration_since(scene.now).unwrap().as_secs() + 1, 8 * 3600, "milliseconds are cut off");
    scene.now += Duration::from_secs(8 * 3600);
    assert!(
        matches!(scene.connect(key, &epoch), Err(Denied::Over(EndCause::Expired))),
        "also before the sweep"
    );
    assert_eq!(scene.store.sweep(scene.now).ended.len(), 1);
    assert_eq!(scene.store.sweep(scene.now).ended.len(), 0, "an end is reported once");
    scene.now += KEEP_ENDED;
    scene.store.sweep(scene.now);
    assert!(matches!(scene.connect(key, &epoch), Err(Denied::UnknownKey)));
    assert_eq!(scene.files().len(), 0);
}

#[test]
fn enrolments_are_bounded_and_ended_ones_make_room() {
    let scene = Scene::new();
    let (first, _) = scene.issue();
    for _ in 1..8 {
        scene.issue();
    }
    let full = scene.store.issue(terms(), Duration::from_secs(1), scene.now);
    assert!(matches!(full, Err(NotCreated::Full(8))));
    scene.store.end(&first.id, scene.now).unwrap();
    scene.issue();
    assert_eq!(scene.files().len(), 8);
    assert!(matches!(scene.store.find(&first.id, scene.now), Err(Denied::UnknownKey)));
}

#[test]
fn an_expired_enrolment_is_kept_until_a_sweep_has_found_it() {
    let mut scene = Scene::new();
    let socket = Terms { ttl: Duration::from_secs(60), ..terms() };
    let first = scene.store.socket(socket, "/run/box".into(), scene.now).unwrap();
    for _ in 1..8 {
        scene.issue();
    }
    scene.now += Duration::from_secs(60);
    let full = scene.store.issue(terms(), Duration::from_secs(1), scene.now);
    assert!(matches!(full, Err(NotCreated::Full(8))), "its socket is still listened on");
    assert_eq!(scene.store.sweep(scene.now).ended, [first], "and this closes it");
    scene.issue();
}

#[test]
fn names_and_directories_are_checked() {
    let scene = Scene::new();
    for odd in ["", "a\nb", "\u{1b}[2J", &"é".repeat(65)] {
        let terms = Terms { name: Some(odd.into()), ..terms() };
        assert!(matches!(scene.store.attach(terms, scene.now), Err(NotCreated::Name)), "{odd:?}");
    }
    let first = scene.store.socket(terms(), "/run/box".into(), scene.now).unwrap();
    let second = scene.store.socket(terms(), "/run/box".into(), scene.now);
    assert!(matches!(second, Err(NotCreated::Taken(_, id)) if id == first.id));
    scene.store.end(&first.id, scene.now).unwrap();
    scene.store.socket(terms(), "/run/box".into(), scene.now).unwrap();
}

#[test]
fn neither_tickets_nor_epochs_are_on_disk_and_only_the_owner_reads() {
    let scene = Scene::new();
    let (_, ticket) = scene.issue();
    let (key, first) = scene.enrolled();
    let second = scene.connect(key, &first).unwrap();
    for path in scene.files() {
        let text = fs::read_to_string(&path).unwrap();
        for secret in [&ticket.0, &first.0, &second.0] {
            assert!(!text.contains(secret.as_str()), "{text}");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    let directory = fs::metadata(scene.directory.0.join("enrolments")).unwrap();
    assert_eq!(directory.permissions().mode() & 0o7777, 0o700);
}

#[test]
fn incomplete_and_foreign_files_are_skipped_and_left_in_place() {
    let mut scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    let directory = scene.directory.0.join("enrolments");
    let whole = fs::read(&scene.files()[0]).unwrap();
    fs::write(directory.join("e1.json"), &whole[..whole.len() / 2]).unwrap();
    fs::write(directory.join("e2.json"), &whole).unwrap();
    fs::write(directory.join("e3.json"), vec![b' '; 70_000]).unwrap();
    fs::write(directory.join("README"), "hello").unwrap();
    fs::create_dir(directory.join("e4.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", directory.join("e5.json")).unwrap();
    nix::unistd::mkfifo(&directory.join("e6.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(directory.join(".0123.new"), "cut short").unwrap();
    scene.restart();
    assert_eq!(scene.store.lock().by_id.len(), 1);
    scene.connect(key, &epoch).unwrap();
    assert_eq!(scene.files().len(), 8, "only the write that was cut short is gone");
}

#[test]
fn unknown_keys_of_another_version_are_kept() {
    let mut scene = Scene::new();
    let (key, epoch) = scene.enrolled();
    let path = scene.files().remove(0);
    add_unknown_key(&path, |record| record);
    add_unknown_key(&path, |record| &mut record["kind"]["key"]);
    scene.restart();
    scene.connect(key, &epoch).unwrap();
    let again = json(&path);
    assert_eq!(again["later"], unknown_value());
    assert_eq!(again["kind"]["key"]["later"], unknown_value());

    // Also when its kind changes, and when it ends.
    let (_, ticket) = scene.issue();
    let socket = scene.store.socket(terms(), "/run/box".into(), scene.now).unwrap();
    let enrolments = scene.directory.0.join("enrolments");
    let path_of = |id: &str| enrolments.join(format!("{id}.json"));
    let redeemed = path_of(&scene.store.lock().by_ticket[&Fingerprint::of_ticket(&ticket).unwrap()]);
    add_unknown_key(&redeemed, |record| &mut record["kind"]["ticket"]);
    add_unknown_key(&path_of(&socket.id), |record| &mut record["kind"]["socket"]);
    scene.restart();
    scene.redeem(&ticket, self::key()).unwrap();
    scene.store.end(&socket.id, scene.now).unwrap();
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
fn add_unknown_key(path: &Path, place: fn(&mut serde_json::Value) -> &mut serde_json::Value) {
    let mut record = json(path);
    place(&mut record)["later"] = unknown_value();
    fs::write(path, record.to_string()).unwrap();
}

#[test]
fn an_epoch_that_cannot_be_saved_is_not_offered() {
    let scene = Scene::new();
    let (_, ticket) = scene.issue();
    let (key, epoch) = scene.enrolled();
    let (store, aside) = (scene.directory.0.join("enrolments"), scene.directory.0.join("aside"));
    fs::rename(&store, &aside).unwrap();
    assert!(matches!(scene.store.issue(terms(), Duration::ZERO, scene.now), Err(NotCreated::Store(_))));
    let other = self::key();
    assert!(matches!(scene.redeem(&ticket, other), Err(Denied::NotWritten(_))));
    assert!(matches!(scene.connect(key, &epoch), Err(Denied::NotWritten(_))));
    fs::rename(&aside, &store).unwrap();
    scene.redeem(&ticket, other).expect("it may try again");
    scene.connect(key, &epoch).expect("and so may this one");
    assert_eq!(scene.files().len(), 2);
}

#[test]
fn alerts_are_rate_limited() {
    let scene = Scene::new();
    let (enrolled, _) = scene.issue();
    assert_eq!((0..100).filter(|_| scene.store.may_alert(&enrolled.id)).count(), ALERTS_PER_MINUTE as usize);
    assert!(!scene.store.may_alert("e0"));
}
