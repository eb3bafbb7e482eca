//! What happens in the networks of confined servers, for the log and for the session's audit.
//!
//! What must stay true: nothing here blocks, because the tasks that carry the server's bytes call it; a refusal names the key of
//! the configuration and the entry that would allow it.

use std::sync::Arc;

use cofferdam_egress::{Ending, Event, Observer, Refusal};
use relay_proto::name::Name;

/// Records what happens, such as in the audit. Must not block.
pub trait NetworkEvents: Send + Sync {
    fn record(&self, event: &NetworkEvent<'_>);
}

/// One event in the network of a server's process.
#[derive(Clone, Copy, Debug)]
pub struct NetworkEvent<'a> {
    pub server: &'a Name,
    pub kind: NetworkEventKind,
    /// For people: which host, and what happened. The server chose the names in it.
    pub detail: &'a str,
    /// Of a refusal: the entry of `confine.hosts` that would allow it, if there is one.
    pub lacks: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NetworkEventKind {
    /// A connection ended.
    Closed,
    /// A connection could not be made although the configuration allows it.
    Failed,
    /// The configuration does not allow it.
    Refused,
}

/// Observes the network of one process.
pub(crate) struct NetworkObserver {
    pub(crate) server: Name,
    /// For the log.
    pub(crate) link: Arc<str>,
    pub(crate) events: Arc<dyn NetworkEvents>,
}

impl Observer for NetworkObserver {
    fn event(&self, event: Event) {
        let Self { server, link, events } = self;
        let mut lacks = None;
        let (kind, detail) = match event {
            Event::Opened(peer) => {
                tracing::debug!(%server, %link, host = peer.host, port = peer.port, "connection of a server");
                return;
            }
            Event::Closed { peer, traffic, duration, ending } => {
                let detail = format!(
                    "{}:{}, {} bytes sent, {} received, {} ms{}",
                    peer.host,
                    peer.port,
                    traffic.sent,
                    traffic.received,
                    duration.as_millis(),
                    unusual(ending)
                );
                tracing::debug!(%server, %link, detail, "connection of a server closed");
                (NetworkEventKind::Closed, detail)
            }
            Event::Failed { peer, error } => {
                let detail = format!("{}:{}: {error}", peer.host, peer.port);
                tracing::warn!(%server, %link, detail, "a connection of a server failed");
                (NetworkEventKind::Failed, detail)
            }
            Event::Refused { refusal, unreported } => {
                lacks = refusal.entry();
                let detail = refused(server, &refusal, lacks.as_deref());
                let left_out = unreported;
                tracing::warn!(%server, %link, left_out, detail, "a connection of a server was refused");
                (NetworkEventKind::Refused, detail)
            }
        };
        events.record(&NetworkEvent { server, kind, detail: &detail, lacks: lacks.as_deref() });
    }
}

fn refused(server: &Name, refusal: &Refusal, entry: Option<&str>) -> String {
    match entry {
        Some(entry) => format!("{refusal}: `servers.{server}.confine.hosts` lacks `{entry}`"),
        None => refusal.to_string(),
    }
}

fn unusual(ending: Ending) -> &'static str {
    match ending {
        Ending::Finished => "",
        Ending::Idle => ", closed because it was idle",
        Ending::NetworkEnded => ", closed with the server",
        Ending::Refused => ", refused",
        Ending::Reset => ", reset",
    }
}

/// For tests, whose simulated processes have no network.
#[cfg(test)]
pub(crate) struct NoEvents;

#[cfg(test)]
impl NetworkEvents for NoEvents {
    fn record(&self, _: &NetworkEvent<'_>) {}
}
