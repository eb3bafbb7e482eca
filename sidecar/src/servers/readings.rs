//! Secrets of an HTTP server's scopes on their way, and the requests that wait for them.
//!
//! A scope's secrets are first read when one of its tools is called, and what they are wanted for waits here, bounded;
//! other requests do not. What must stay true: a request that waits here goes on or fails, unless it is withdrawn;
//! one that failed is not sent.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::task::Poll;

use relay_proto::envelope::IdValue;

use super::event::{Event, Unavailable};
use super::queue::Queue;
use super::scoped::Lane;
use super::start::{StartError, Starter};
use crate::secret::SecretError;
use crate::upstream::outbound::Outbound;

#[derive(Default)]
pub(super) struct Readings {
    under_way: Vec<Reading>,
    /// What has failed and was not told yet.
    failures: VecDeque<(Lane, Event)>,
}

struct Reading {
    /// Who sends what waits.
    lane: Lane,
    starter: Starter,
    read: Pin<Box<dyn Future<Output = Result<(), SecretError>> + Send>>,
    waiting: Queue,
}

impl Readings {
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.failures.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way.iter().any(|reading| reading.waiting.is_full())
    }

    /// Reads the secrets of this scope anew, for the requests to come.
    pub(super) fn start(&mut self, lane: Lane, starter: &Starter) {
        self.reading(lane, starter);
    }

    /// Sends a request on once its scope's secrets are there.
    pub(super) fn wait(
        &mut self,
        lane: Lane,
        message: Outbound,
        starter: &Starter,
    ) -> Result<(), Unavailable> {
        let waiting = &mut self.reading(lane, starter).waiting;
        if waiting.is_crowded() {
            return Err(Unavailable::because("its credential is being read and too much waits for it"));
        }
        waiting.push(message);
        Ok(())
    }

    /// Takes one request out; says whether it was here.
    pub(super) fn withdraw(&mut self, id: &IdValue) -> bool {
        self.under_way.iter_mut().any(|reading| reading.waiting.withdraw(id))
    }

    /// What a server gives. Where it is gone, whatever waits here to be sent by it did not run, and that is told first.
    pub(super) fn before(&mut self, lane: Lane, event: Event) -> (Lane, Event) {
        let (Event::Gone { why } | Event::NotStarted { why, .. }) = &event else { return (lane, event) };
        for mut reading in self.under_way.extract_if(.., |reading| reading.lane == lane) {
            let messages = std::iter::from_fn(|| reading.waiting.pop());
            let ids = messages.filter_map(|message| message.request_id().cloned());
            self.failures.extend(ids.map(|id| (lane, Event::did_not_run(id, why))));
        }
        self.failures.push_back((lane, event));
        self.failures.pop_front().expect("one was just put there")
    }

    pub(super) fn fail(&mut self, lane: Lane, event: Event) {
        self.failures.push_back((lane, event));
    }

    pub(super) fn failure(&mut self) -> Option<(Lane, Event)> {
        self.failures.pop_front()
    }

    /// What can be sent now, by whom and with what; nothing where the secrets could not be had, which is told by
    /// [`Self::failure`]. Nothing is lost if this is dropped.
    pub(super) async fn next(&mut self) -> (Lane, Starter, Vec<Outbound>) {
        if self.under_way.is_empty() {
            return pending().await;
        }
        let (place, result) = std::future::poll_fn(|cx| {
            for (place, reading) in self.under_way.iter_mut().enumerate() {
                if let Poll::Ready(result) = reading.read.as_mut().poll(cx) {
                    return Poll::Ready((place, result));
                }
            }
            Poll::Pending
        })
        .await;
        let Reading { lane, starter, mut waiting, .. } = self.under_way.swap_remove(place);
        let mut messages: Vec<Outbound> = std::iter::from_fn(|| waiting.pop()).collect();
        if let Err(error) = result {
            let error = StartError::from(error);
            let (code, why) = (error.code(), error.told());
            tracing::warn!(server = %starter.server.name, why, "a secret of a scope was not read");
            let ids = messages.drain(..).filter_map(|message| message.request_id().cloned());
            let failed = ids.map(|id| Event::Failed { id, code, why: format!("it did not run: {why}") });
            self.failures.extend(failed.map(|event| (lane, event)));
        }
        (lane, starter, messages)
    }

    fn reading(&mut self, lane: Lane, starter: &Starter) -> &mut Reading {
        let is_it = |reading: &Reading| reading.lane == lane && reading.starter.scope == starter.scope;
        let place = match self.under_way.iter().position(is_it) {
            Some(place) => place,
            None => {
                let reader = starter.clone();
                let read = Box::pin(async move { reader.secrets().await.map(drop) });
                self.under_way.push(Reading {
                    lane,
                    starter: starter.clone(),
                    read,
                    waiting: Queue::default(),
                });
                self.under_way.len() - 1
            }
        };
        &mut self.under_way[place]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::config::check_text;
    use crate::inject::credentials::Credentials;
    use crate::inject::files::FileStore;
    use crate::servers::gate::Gate;

    /// Of a scope whose secret takes for ever.
    fn starter() -> Starter {
        let text = "state-dir = '/nowhere/state'\nadmin.socket = '/nowhere/admin.sock'\n\
             secrets.slow.exec = ['sleep', '1000']\ngrants.dev.servers = ['remote']\n\
             [servers.remote]\nurl = 'https://remote.example'\n\
             [[servers.remote.scopes]]\ntools = ['*']\nheaders.X = '{slow.value}'\n\
             [relay]\nunix = '/nowhere/relay/relay.sock'\nunix-grant = 'dev'\n";
        let config = check_text(text, Path::new("/nowhere/cofferdam.toml")).unwrap();
        let server = Arc::clone(&config.servers[&"remote".parse().unwrap()]);
        Starter {
            gate: Arc::new(Gate::new(&config.limits)),
            config: Arc::new(config),
            scope: Some(Arc::clone(&server.scopes[0])),
            server,
            credentials: Arc::new(Credentials::new(Arc::default(), None)),
            files: FileStore::open().unwrap(),
            tasks: TaskTracker::new(),
            link: "l1".into(),
        }
    }

    fn request(id: u32) -> (IdValue, Outbound) {
        let id = IdValue::Integer(id.to_string().into());
        (id.clone(), Outbound::request(b"{}".as_slice(), id, "tools/call", None))
    }

    #[test]
    fn what_waits_for_a_secret_fails_with_its_server_and_before_it() {
        let mut readings = Readings::default();
        let (first, message) = request(1);
        readings.wait(Lane::BASE, message, &starter()).unwrap();
        let (withdrawn, message) = request(2);
        readings.wait(Lane::BASE, message, &starter()).unwrap();
        assert!(readings.withdraw(&withdrawn) && !readings.withdraw(&withdrawn));
        let (_, message) = request(3);
        readings.wait(Lane::OTHER, message, &starter()).unwrap();
        let gone = || Event::Gone { why: "it left".into() };
        let (lane, told) = readings.before(Lane::BASE, gone());
        assert!(matches!(&told, Event::Failed { id, .. } if *id == first), "{told:?}");
        assert_eq!(lane, Lane::BASE);
        assert!(matches!(readings.failure(), Some((Lane::BASE, Event::Gone { .. }))));
        assert_eq!(readings.under_way.len(), 1, "nothing is left that would be sent");
        assert!(matches!(readings.before(Lane::BASE, gone()), (_, Event::Gone { .. })));
    }
}
