//! The loop that keeps one credential. Where credentials come from is behind [`Renewable`].

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::schedule::{Act, RenewalSchedule};
use super::terms::Terms;
use cofferdam_base::random::fraction;

/// A timer is set no further ahead than this; then it is looked at again.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// One credential: how it is read and renewed, and what happens to it meanwhile.
pub trait Renewable {
    /// Reads it again.
    fn read(&mut self) -> impl Future<Output = Result<Terms, Failure>> + Send;

    /// Asks for this much more time; `None` leaves it to the source.
    fn renew(&mut self, increment: Option<Duration>) -> impl Future<Output = Result<Terms, Failure>> + Send;

    /// Checks whether it still exists.
    fn look(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The next event. Cancel-safe.
    fn event(&mut self) -> impl Future<Output = Event> + Send;

    /// Reports the schedule, for `sessions`.
    fn note(&mut self, schedule: &RenewalSchedule);
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The credential has ended.
    Gone { why: String },
    /// It may work later.
    Later { why: String, not_before: Option<Instant> },
    /// The credential is valid, and cannot be renewed.
    Refused { why: String },
}

impl Failure {
    pub fn why(&self) -> &str {
        match self {
            Self::Gone { why } | Self::Later { why, .. } | Self::Refused { why } => why,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    /// The credential is not needed any more.
    Over,
    /// A caller has read it.
    Read(Terms),
    /// What it depends on was superseded, and ends then.
    Superseded { by: Option<Instant> },
}

/// Keeps a credential that was read just now, until [`Event::Over`].
pub async fn run_renewal(mut source: impl Renewable, terms: Terms) {
    let mut schedule = RenewalSchedule::new(terms, fraction());
    loop {
        source.note(&schedule);
        let plan = schedule.next();
        let wake = plan.map_or_else(|| Instant::now() + FAR, |plan| plan.at.min(Instant::now() + FAR));
        tokio::select! {
            biased;
            event = source.event() => {
                match event {
                    Event::Over => return,
                    Event::Read(terms) => schedule = RenewalSchedule::new(terms, fraction()),
                    Event::Superseded { by } => schedule.superseded(by, Instant::now(), fraction()),
                }
                continue;
            }
            () = sleep_until(wake) => {}
        }
        let Some(plan) = plan.filter(|plan| plan.at <= Instant::now()) else { continue };
        match plan.act {
            Act::Look => match source.look().await {
                Err(Failure::Gone { why }) => schedule.refused(why, Instant::now()),
                // A look-up that failed changes nothing.
                Ok(()) | Err(Failure::Later { .. } | Failure::Refused { .. }) => {
                    schedule.looked(Instant::now(), fraction())
                }
            },
            Act::Read => match source.read().await {
                Ok(terms) => schedule = RenewalSchedule::new(terms, fraction()),
                Err(failure) => fail(&mut schedule, Act::Read, failure),
            },
            Act::Renew => match source.renew(schedule.full_life()).await {
                Ok(terms) => schedule.renewed(terms, Instant::now(), fraction()),
                Err(Failure::Gone { why } | Failure::Refused { why }) => {
                    schedule.refused(why, Instant::now())
                }
                Err(failure) => fail(&mut schedule, Act::Renew, failure),
            },
        }
    }
}

fn fail(schedule: &mut RenewalSchedule, act: Act, failure: Failure) {
    let (why, not_before) = match failure {
        Failure::Gone { why } | Failure::Refused { why } => (why, None),
        Failure::Later { why, not_before } => (why, not_before),
    };
    schedule.failed(act, why, not_before, Instant::now(), fraction());
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::timeout;

    use super::super::terms::Class;
    use super::*;

    const LIFE: Duration = Duration::from_secs(60);

    /// A source that says `answer` to each renewal and each look, and writes down what was asked for and when.
    struct Scripted {
        terms: Terms,
        answer: Failure,
        began: Instant,
        asked: Arc<Mutex<Vec<(Act, u64)>>>,
    }

    impl Scripted {
        fn write_down(&self, act: Act) {
            self.asked.lock().unwrap().push((act, self.began.elapsed().as_secs()));
        }
    }

    fn lent(class: Class, life: Duration) -> Terms {
        Terms { class, asked_at: Instant::now(), life: Some(life), bound: None }
    }

    impl Renewable for Scripted {
        async fn read(&mut self) -> Result<Terms, Failure> {
            self.write_down(Act::Read);
            Ok(Terms { asked_at: Instant::now(), ..self.terms })
        }

        async fn renew(&mut self, increment: Option<Duration>) -> Result<Terms, Failure> {
            assert_eq!(increment, Some(LIFE));
            self.write_down(Act::Renew);
            Err(self.answer.clone())
        }

        async fn look(&mut self) -> Result<(), Failure> {
            self.write_down(Act::Look);
            Err(self.answer.clone())
        }

        async fn event(&mut self) -> Event {
            std::future::pending().await
        }

        fn note(&mut self, _schedule: &RenewalSchedule) {}
    }

    async fn asked(answer: Failure) -> Vec<(Act, u64)> {
        asked_about(lent(Class::Renewable, LIFE), answer).await
    }

    /// Within one life of it.
    async fn asked_about(terms: Terms, answer: Failure) -> Vec<(Act, u64)> {
        let life = terms.life.unwrap();
        let asked = Arc::new(Mutex::default());
        let source = Scripted { terms, answer, began: Instant::now(), asked: Arc::clone(&asked) };
        let _ = timeout(life, run_renewal(source, terms)).await;
        Arc::try_unwrap(asked).unwrap().into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_is_read_anew_at_once() {
        let asked = asked(Failure::Gone { why: "lease not found".into() }).await;
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert_eq!((asked[0].0, asked[1].0), (Act::Renew, Act::Read));
        assert_eq!(asked[0].1, asked[1].1, "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_look_does_not_find_is_read_anew_at_once_and_what_it_cannot_see_goes_on() {
        let fixed = || lent(Class::Fixed, 2 * LIFE);
        let gone = asked_about(fixed(), Failure::Gone { why: "lease not found".into() }).await;
        assert!(gone.len() >= 2, "{gone:?}");
        assert!(gone[0].0 == Act::Look && (20..=40).contains(&gone[0].1), "{gone:?}");
        assert_eq!(gone[1], (Act::Read, gone[0].1));
        // An hour has room for many looks, whatever fraction makes of them.
        let hour = lent(Class::Fixed, 60 * LIFE);
        let unseen = asked_about(hour, Failure::Later { why: "sealed".into(), not_before: None }).await;
        let read = unseen.iter().position(|(act, _)| *act == Act::Read).expect("it is read before its end");
        assert!(read >= 4 && unseen[..read].iter().all(|(act, _)| *act == Act::Look), "{unseen:?}");
        assert!(unseen[read].1 >= 1800, "no sooner for that: {unseen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_work_later_is_tried_again_and_read_anew_before_its_end() {
        let asked = asked(Failure::Later { why: "sealed".into(), not_before: None }).await;
        let (read, renewals) = asked.split_last().unwrap();
        assert!((2..12).contains(&renewals.len()), "{asked:?}");
        assert!(renewals.iter().all(|(act, _)| *act == Act::Renew), "{asked:?}");
        assert_eq!(read.0, Act::Read, "{asked:?}");
        assert!((45..60).contains(&read.1), "{asked:?}");
    }
}
