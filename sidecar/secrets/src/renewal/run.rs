//! The loop that keeps one credential valid: it reads, renews and checks the credential through [`Renewable`].

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::schedule::{Action, RenewalSchedule};
use super::terms::Terms;
use cofferdam_base::random::fraction;

/// The longest timer; a later action waits for several of them.
const MAX_TIMER: Duration = Duration::from_secs(24 * 3600);

/// One credential: how it is read, renewed and checked, and the events that concern it.
pub trait Renewable {
    /// Reads the credential again.
    fn read(&mut self) -> impl Future<Output = Result<Terms, Failure>> + Send;

    /// Renews the credential for this long; `None` lets the source choose.
    fn renew(&mut self, increment: Option<Duration>) -> impl Future<Output = Result<Terms, Failure>> + Send;

    /// Checks whether the credential still exists.
    fn check(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits for the next event. Cancel-safe.
    fn event(&mut self) -> impl Future<Output = RenewalEvent> + Send;

    /// Receives the schedule after every change, for the output of `sessions`.
    fn report(&mut self, schedule: &RenewalSchedule);
}

/// Why a read, renewal or check failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The credential has ended.
    Gone { why: String },
    /// A later attempt may succeed.
    Later { why: String, not_before: Option<Instant> },
    /// The credential is valid, but cannot be renewed.
    Refused { why: String },
    /// It was not read, because no server could take a new one.
    Unwanted,
}

impl Failure {
    pub fn why(&self) -> &str {
        match self {
            Self::Gone { why } | Self::Later { why, .. } | Self::Refused { why } => why,
            Self::Unwanted => "no server could take a new credential",
        }
    }
}

#[derive(Clone, Debug)]
pub enum RenewalEvent {
    /// The loop ends.
    NoLongerNeeded,
    /// A caller has read the credential.
    Read(Terms),
    /// A new login superseded the token that the credential depends on, which ends at `ends_at`.
    Superseded { ends_at: Option<Instant> },
}

/// Renews a credential that was just read, until [`RenewalEvent::NoLongerNeeded`].
pub async fn run_renewal(mut source: impl Renewable, terms: Terms) {
    let mut schedule = RenewalSchedule::new(terms, fraction());
    loop {
        source.report(&schedule);
        let plan = schedule.next();
        let wake =
            plan.map_or_else(|| Instant::now() + MAX_TIMER, |plan| plan.at.min(Instant::now() + MAX_TIMER));
        tokio::select! {
            biased;
            event = source.event() => {
                match event {
                    RenewalEvent::NoLongerNeeded => return,
                    RenewalEvent::Read(terms) => schedule = RenewalSchedule::new(terms, fraction()),
                    RenewalEvent::Superseded { ends_at } => {
                        schedule.superseded(ends_at, Instant::now(), fraction());
                    }
                }
                continue;
            }
            () = sleep_until(wake) => {}
        }
        let Some(plan) = plan.filter(|plan| plan.at <= Instant::now()) else { continue };
        match plan.action {
            Action::Check => match source.check().await {
                Err(Failure::Gone { why }) => schedule.refused(why, Instant::now()),
                // A check that failed changes nothing.
                Ok(()) | Err(Failure::Later { .. } | Failure::Refused { .. } | Failure::Unwanted) => {
                    schedule.checked(Instant::now(), fraction())
                }
            },
            Action::Read => match source.read().await {
                Ok(terms) => schedule = RenewalSchedule::new(terms, fraction()),
                Err(failure) => plan_retry(&mut schedule, Action::Read, failure),
            },
            Action::Renew => match source.renew(schedule.full_lifetime()).await {
                Ok(terms) => schedule.renewed(terms, Instant::now(), fraction()),
                Err(Failure::Gone { why } | Failure::Refused { why }) => {
                    schedule.refused(why, Instant::now())
                }
                Err(failure) => plan_retry(&mut schedule, Action::Renew, failure),
            },
        }
    }
}

fn plan_retry(schedule: &mut RenewalSchedule, action: Action, failure: Failure) {
    let (why, not_before) = match failure {
        Failure::Gone { why } | Failure::Refused { why } => (why, None),
        Failure::Later { why, not_before } => (why, not_before),
        Failure::Unwanted => return schedule.suspend_reading(Instant::now()),
    };
    schedule.failed(action, why, not_before, Instant::now(), fraction());
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::timeout;

    use super::super::terms::RenewalClass;
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(60);

    /// A source that fails each renewal and each check with `failure`, and records its requests with their times.
    struct Scripted {
        terms: Terms,
        failure: Failure,
        began: Instant,
        requests: Arc<Mutex<Vec<(Action, u64)>>>,
    }

    impl Scripted {
        fn record(&self, action: Action) {
            self.requests.lock().unwrap().push((action, self.began.elapsed().as_secs()));
        }
    }

    fn terms(class: RenewalClass, lifetime: Duration) -> Terms {
        Terms { class, requested_at: Instant::now(), lifetime: Some(lifetime), token_expiry: None }
    }

    impl Renewable for Scripted {
        async fn read(&mut self) -> Result<Terms, Failure> {
            self.record(Action::Read);
            Ok(Terms { requested_at: Instant::now(), ..self.terms })
        }

        async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
            assert_eq!(increment, Some(LIFETIME));
            self.record(Action::Renew);
            Err(self.failure.clone())
        }

        async fn check(&mut self) -> Result<(), Failure> {
            self.record(Action::Check);
            Err(self.failure.clone())
        }

        async fn event(&mut self) -> RenewalEvent {
            std::future::pending().await
        }

        fn report(&mut self, _schedule: &RenewalSchedule) {}
    }

    async fn requests_for_a_lease(failure: Failure) -> Vec<(Action, u64)> {
        requests_within_one_lifetime(terms(RenewalClass::Renewable, LIFETIME), failure).await
    }

    /// The requests within one lifetime of the credential.
    async fn requests_within_one_lifetime(terms: Terms, failure: Failure) -> Vec<(Action, u64)> {
        let lifetime = terms.lifetime.unwrap();
        let requests = Arc::new(Mutex::default());
        let source = Scripted { terms, failure, began: Instant::now(), requests: Arc::clone(&requests) };
        let _ = timeout(lifetime, run_renewal(source, terms)).await;
        Arc::try_unwrap(requests).unwrap().into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_that_is_gone_is_read_again_at_once() {
        let requests = requests_for_a_lease(Failure::Gone { why: "lease not found".into() }).await;
        assert_eq!(requests.len(), 2, "{requests:?}");
        assert_eq!((requests[0].0, requests[1].0), (Action::Renew, Action::Read));
        assert_eq!(requests[0].1, requests[1].1, "{requests:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_finds_nothing_causes_a_read_at_once_and_one_that_fails_does_not() {
        let fixed = || terms(RenewalClass::Fixed, 2 * LIFETIME);
        let gone =
            requests_within_one_lifetime(fixed(), Failure::Gone { why: "lease not found".into() }).await;
        assert!(gone.len() >= 2, "{gone:?}");
        assert!(gone[0].0 == Action::Check && (20..=40).contains(&gone[0].1), "{gone:?}");
        assert_eq!(gone[1], (Action::Read, gone[0].1));
        // An hour has room for many checks, whatever their jitter.
        let hour = terms(RenewalClass::Fixed, 60 * LIFETIME);
        let unchecked =
            requests_within_one_lifetime(hour, Failure::Later { why: "sealed".into(), not_before: None })
                .await;
        let read = unchecked
            .iter()
            .position(|(action, _)| *action == Action::Read)
            .expect("it is read before its end");
        assert!(
            read >= 4 && unchecked[..read].iter().all(|(action, _)| *action == Action::Check),
            "{unchecked:?}"
        );
        assert!(unchecked[read].1 >= 1800, "failed checks do not cause an earlier read: {unchecked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_renewal_is_retried_and_the_credential_read_again_before_its_end() {
        let requests = requests_for_a_lease(Failure::Later { why: "sealed".into(), not_before: None }).await;
        let (read, renewals) = requests.split_last().unwrap();
        assert!((2..12).contains(&renewals.len()), "{requests:?}");
        assert!(renewals.iter().all(|(action, _)| *action == Action::Renew), "{requests:?}");
        assert_eq!(read.0, Action::Read, "{requests:?}");
        assert!((45..60).contains(&read.1), "{requests:?}");
    }
}
