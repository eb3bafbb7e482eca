//! What happens in the networks of confined servers, for the log and for the session's audit.
//!
//! What must stay true: nothing here blocks, because the tasks that carry the server's bytes call it; a refusal names the key of
//! the configuration and the entry that would allow it; what has no event of its own is in the text of the next one of its kind,
//! or of the last one of the network.

use std::sync::Arc;

use cofferdam_base::PacedLines;
use cofferdam_egress::{Connections, Ending, Event, Observer, Refusal};
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
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NetworkEventKind {
    /// A connection ended.
    Closed,
    /// A connection could not be made although the configuration allows it.
    Failed,
    /// The configuration does not allow it.
    Refused,
    /// The network has ended: how many connections had no event of their own.
    Unreported,
}

// A server causes these lines as often as it tries; each process has a pace of its own before they come here.
static FAILED_LINES: PacedLines = PacedLines::new("a connection of a server failed");
static REFUSED_LINES: PacedLines = PacedLines::new("a connection of a server was refused");

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
        let (kind, detail) = match event {
            Event::Opened(peer) => {
                tracing::debug!(%server, %link, host = peer.host, port = peer.port, "connection of a server");
                return;
            }
            Event::Closed { peer, traffic, duration, ending, unreported } => {
                let detail = format!(
                    "{}:{}, {} bytes sent, {} received, {} ms{}{}",
                    peer.host,
                    peer.port,
                    traffic.sent,
                    traffic.received,
                    duration.as_millis(),
                    unusual(ending),
                    match unreported.count {
                        0 => String::new(),
                        _ => format!("; before it {} without a record", text(unreported)),
                    }
                );
                tracing::debug!(%server, %link, detail, "connection of a server closed");
                (NetworkEventKind::Closed, detail)
            }
            Event::Failed { peer, error, unreported } => {
                let detail = format!("{}:{}: {error}{}", peer.host, peer.port, without_record(unreported));
                if let Some(lines) = FAILED_LINES.admit() {
                    let left_out = lines + unreported;
                    tracing::warn!(%server, %link, left_out, detail, "a connection of a server failed");
                }
                (NetworkEventKind::Failed, detail)
            }
            Event::Refused { refusal, unreported } => {
                let detail = format!("{}{}", refused(server, &refusal), without_record(unreported));
                if let Some(lines) = REFUSED_LINES.admit() {
                    let left_out = lines + unreported;
                    tracing::warn!(%server, %link, left_out, detail, "a connection of a server was refused");
                }
                (NetworkEventKind::Refused, detail)
            }
            Event::Unreported { closed, failed, refused } => {
                let detail =
                    format!("without a record: {}; {failed} failed, {refused} refused", text(closed));
                tracing::info!(%server, %link, detail, "connections of a server that were not reported one by one");
                (NetworkEventKind::Unreported, detail)
            }
        };
        events.record(&NetworkEvent { server, kind, detail: &detail });
    }
}

fn refused(server: &Name, refusal: &Refusal) -> String {
    match refusal.entry() {
        Some(entry) => format!("{refusal}: `servers.{server}.confine.hosts` lacks `{entry}`"),
        None => refusal.to_string(),
    }
}

fn text(connections: Connections) -> String {
    let Connections { count, traffic } = connections;
    let (noun, sent, received) =
        (if count == 1 { "connection" } else { "connections" }, traffic.sent, traffic.received);
    format!("{count} {noun}, {sent} bytes sent, {received} received")
}

/// How many events of the kind had no record before this one.
fn without_record(count: u64) -> String {
    match count {
        0 => String::new(),
        _ => format!("; {count} more before it without a record"),
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
