//! Tests of a session's secrets with a scripted source, on a paused clock.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{advance, sleep};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::*;
use crate::error::{SecretProblem, SourceFailure};
use crate::renewal::{RenewalClass, Terms};
use crate::source::{Lease, SourceRequest, Unleased};
use crate::spec::{Origin, ShortValues, VaultOrigin};
use crate::value::Secret;
use cofferdam_scrub::Needle;

/// How long each credential is valid.
const LIFETIME: Duration = Duration::from_secs(600);

/// Returns the next of its values at each read; fails when there are none left.
struct Scripted {
    values: Mutex<VecDeque<&'static str>>,
    reads: Mutex<Vec<Duration>>,
    began: Instant,
    changes: watch::Sender<u64>,
}

impl Scripted {
    fn failure(&self) -> SourceFailure {
        SourceFailure {
            message: "no value is left".into(),
            // A source may quote a value that this session holds.
            detail: "no value is left after only-value".into(),
            next_step: "wait".into(),
            next_attempt: Instant::now() + Duration::from_secs(5),
            not_before: None,
        }
    }
}

impl Source for Scripted {
    fn read<'a>(&'a self, _request: SourceRequest<'a>) -> BoxFuture<'a, Result<Lease, SecretProblem>> {
        async move {
            let requested_at = Instant::now();
            self.reads.lock().unwrap().push(requested_at - self.began);
            sleep(Duration::from_secs(1)).await;
            let value = self.values.lock().unwrap().pop_front().ok_or_else(|| self.failure())?;
            let value = Secret::new(Zeroizing::new(value.into()));
            Ok(Lease {
                fields: BTreeMap::from([("token".to_owned(), value)]).into(),
                terms: Terms {
                    class: RenewalClass::OwnExpiry,
                    requested_at,
                    lifetime: Some(LIFETIME),
                    token_expiry: None,
                },
                hold: Arc::new(Unleased::new(self.changes.subscribe())),
                read_id: None,
                valid_after_revocation_until: None,
            })
        }
        .boxed()
    }

    fn too_slow(&self, _spec: &SecretSpec) -> SourceFailure {
        self.failure()
    }

    fn renewal_stop(&self) -> CancellationToken {
        CancellationToken::new()
    }
}

fn session(values: &[&'static str]) -> (Arc<Scripted>, Arc<Credentials>, SecretSpec) {
    let source = Arc::new(Scripted {
        values: Mutex::new(values.iter().copied().collect()),
        reads: Mutex::default(),
        began: Instant::now(),
        changes: watch::Sender::default(),
    });
    let log = Arc::<SharedValues>::default();
    let vault = Some(Arc::clone(&source) as Arc<dyn Source>);
    let spec = SecretSpec {
        name: "test".parse().unwrap(),
        origin: Origin::Vault(VaultOrigin::Generated { path: "a/b".parse().unwrap(), write: None }),
        public: Vec::new(),
        short: ShortValues::Refuse,
    };
    (source, Arc::new(Credentials::new(log, vault, TaskTracker::new())), spec)
}

const LIMITS: SourceLimits = SourceLimits { bytes: 1024, exec_timeout: Duration::from_secs(10) };

fn is_scrubbed(credentials: &Credentials, text: &str) -> bool {
    let needles = credentials.store.known.lock().unwrap().needles();
    needles.iter().any(|needle| **needle.value == *text.as_bytes())
}

#[tokio::test(start_paused = true)]
async fn a_credential_is_read_again_before_its_end_and_both_values_are_scrubbed() {
    let (source, credentials, spec) = session(&["first-value", "second-value"]);
    let changes = credentials.changes();
    let first = credentials.obtain(&spec, LIMITS).await.unwrap();
    assert_eq!((first.version, source.reads.lock().unwrap().len()), (1, 1));
    assert!(is_scrubbed(&credentials, "first-value") && !is_scrubbed(&credentials, "second-value"));
    sleep(LIFETIME - Duration::from_secs(5)).await;
    assert!(changes.has_changed().unwrap(), "servers are notified of the second value");
    let second = credentials.obtain(&spec, LIMITS).await.unwrap();
    assert_eq!(second.version, 2);
    assert!(first.is_live(), "the first value is still valid when the second is read");
    let reads = source.reads.lock().unwrap().clone();
    // At 85 % of its lifetime, or up to a tenth of that earlier.
    assert_eq!(reads.len(), 2, "callers cause no further read: {reads:?}");
    assert!((450..=510).contains(&reads[1].as_secs()), "{reads:?}");
    assert!(is_scrubbed(&credentials, "first-value") && is_scrubbed(&credentials, "second-value"));
}

#[tokio::test(start_paused = true)]
async fn reading_equal_values_again_extends_their_validity_without_a_change() {
    let (_, credentials, spec) = session(&["same-value", "same-value"]);
    let changes = credentials.changes();
    let first = credentials.obtain(&spec, LIMITS).await.unwrap();
    let end = first.expires().unwrap();
    sleep(LIFETIME - Duration::from_secs(5)).await;
    assert!(!changes.has_changed().unwrap());
    assert!(first.expires().unwrap() > end);
    assert!(Arc::ptr_eq(&first, &credentials.obtain(&spec, LIMITS).await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_is_retried_and_held_values_are_used_until_their_end() {
    let (source, credentials, spec) = session(&["only-value"]);
    let held = credentials.obtain(&spec, LIMITS).await.unwrap();
    sleep(LIFETIME - Duration::from_secs(5)).await;
    assert!(Arc::ptr_eq(&held, &credentials.obtain(&spec, LIMITS).await.unwrap()));
    let reads = source.reads.lock().unwrap().len();
    assert!(reads >= 3, "the read is retried: {reads}");
    let statuses = credentials.statuses();
    assert_eq!(statuses[0].last_error.as_deref(), Some("no value is left after [redacted:test.token]; wait"));
    assert!(statuses[0].unrevocable && statuses[0].lease.is_none());
    advance(Duration::from_secs(10)).await;
    let error = credentials.obtain(&spec, LIMITS).await.unwrap_err();
    assert!(error.source_has_backoff(), "{error}");
    // Callers do not cause more reads than one in five seconds.
    let before = source.reads.lock().unwrap().len();
    for _ in 0..20 {
        assert!(credentials.obtain(&spec, LIMITS).await.is_err());
    }
    assert!(source.reads.lock().unwrap().len() <= before + 1);
    source.values.lock().unwrap().push_back("late-value");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(credentials.obtain(&spec, LIMITS).await.unwrap().version, 2);
}

#[tokio::test(start_paused = true)]
async fn no_credential_is_made_while_every_user_keeps_its_first_one() {
    let (source, credentials, spec) = session(&["first-value", "second-value", "third-value"]);
    let keeping = credentials.register_uses(vec![(spec.name.clone(), SecretUse::KeepsFirstValue)]);
    let first = credentials.obtain(&spec, LIMITS).await.unwrap();
    sleep(2 * LIFETIME).await;
    assert_eq!(source.reads.lock().unwrap().len(), 1, "a credential was made that no server could take");
    let status = credentials.statuses().remove(0);
    assert_eq!((status.reading, status.next), (Reading::Suspended, None), "{status:?}");
    assert!(!first.is_live() && status.outliving.is_none(), "it has expired: {status:?}");
    // A server that takes new values makes a new one wanted, within seconds.
    let taking = credentials.register_uses(vec![(spec.name.clone(), SecretUse::TakesNewValues)]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(source.reads.lock().unwrap().len(), 2);
    assert_eq!(credentials.statuses()[0].reading, Reading::Scheduled);
    drop(taking);
    sleep(2 * LIFETIME).await;
    assert_eq!(source.reads.lock().unwrap().len(), 2, "the server that took new values has gone");
    // The next start of a process reads the secret, although the registered server keeps its first value.
    credentials.obtain(&spec, LIMITS).await.unwrap();
    assert_eq!(source.reads.lock().unwrap().len(), 3);
    drop(keeping);
}

#[tokio::test(start_paused = true)]
async fn earlier_values_that_are_still_valid_outlive_the_session_too() {
    let (_, credentials, spec) = session(&["first-value", "second-value"]);
    credentials.obtain(&spec, LIMITS).await.unwrap();
    let outliving = || credentials.statuses()[0].outliving;
    assert_eq!(outliving().map(|values| values.count), Some(1));
    sleep(LIFETIME - Duration::from_secs(5)).await;
    let both = outliving().expect("both are valid");
    assert_eq!(both.count, 2, "the first value is valid for five more seconds");
    let newest = credentials.newest()[&spec.name].expires();
    assert_eq!(both.until.time(), newest, "the newest value is valid longest");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(outliving().map(|values| values.count), Some(1), "the first value has expired");
}

#[test]
fn an_error_is_scrubbed_before_it_is_cut() {
    let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let needle = Needle { label: "github.token".into(), value: token.as_bytes().to_vec().into() };
    let scrubber = Scrubber::new(vec![needle]);
    for before in 940..1010 {
        let shown = shown_error(&scrubber, &format!("{} {token} and more", "x".repeat(before)));
        assert!(!shown.contains("ghp_") && shown.len() < 1010, "{before}: {shown}");
    }
}
