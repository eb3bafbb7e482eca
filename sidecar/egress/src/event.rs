//! What happens in a server's network, for the caller's log, audit and metrics.
//!
//! What must stay true: reports are bounded, however often the server tries or connects; what is not reported by itself is
//! counted, with its bytes, and the counts are reported before the network is gone.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use tokio::time::Instant;

use crate::name::HostName;

/// Enough to see every refusal of an ordinary server; a hostile one must not fill the log.
const REFUSALS_PER_SECOND: u32 = 20;
/// Enough to see each connection of an ordinary server. Each is one record in the audit, which others need too.
const CLOSED_PER_MINUTE: u32 = 60;
/// A client tries again and again while a host is down.
const FAILURES_PER_MINUTE: u32 = 60;
/// A client asks for the IPv4 and the IPv6 addresses of a name, and repeats its question: one report is enough.
const SAME_REFUSAL: Duration = Duration::from_secs(5);

/// Receives the events of one server's network. It is called by the tasks that carry the bytes, so it must not block.
pub trait Observer: Send + Sync {
    fn event(&self, event: Event);
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    Opened(Peer),
    Closed {
        peer: Peer,
        traffic: Traffic,
        duration: Duration,
        ending: Ending,
        /// Connections that ended before this one and were not reported, because they were too many.
        unreported: Connections,
    },
    /// The host is allowed, but no connection could be made: why.
    Failed {
        peer: Peer,
        error: String,
        /// How many failures before this one were not reported, because they were too many.
        unreported: u64,
    },
    Refused {
        refusal: Refusal,
        /// How many refusals before this one were not reported, because they were too many or the same.
        unreported: u64,
    },
    /// The network has ended: what no event has reported.
    Unreported {
        closed: Connections,
        failed: u64,
        refused: u64,
    },
}

/// A number of connections, and their bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Connections {
    pub count: u64,
    pub traffic: Traffic,
}

/// The host and port that a connection is about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Peer {
    /// The name that the server connected to, or the address if it used one.
    pub host: String,
    pub port: u16,
}

/// Bytes in each direction, seen from the server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
}

impl Traffic {
    pub fn total(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// Both sides had sent all they wanted.
    Finished,
    /// No byte passed for the permitted time.
    Idle,
    /// All connections of the server were closed.
    NetworkEnded,
    /// It was refused after it had been opened.
    Refused,
    /// One side broke it off.
    Reset,
}

/// What was refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The address that was connected to stands for nothing that is listed with this port.
    Address { address: IpAddr, port: u16 },
    /// A limit of this server was reached.
    Limit { limit: LimitReached },
    /// The name that was looked up is not listed. Which port the client would use is not known.
    Name { name: String },
    /// The address is one of those that stand for names, but has no name at the moment.
    NoName { address: IpAddr, port: u16 },
    /// The name is listed, but not with this port.
    Port { host: String, port: u16 },
    /// The name resolves to no address that may be reached through it.
    PrivateAddress { host: String, port: u16, address: IpAddr, through_private: ThroughPrivate },
    /// A TLS client was about to ask for another host than the one it is connected to.
    SniMismatch { asked: String, port: u16, sni: String },
    /// What begins as TLS goes on as something else, so it cannot be seen which host is asked for.
    UnreadableTls { host: String, port: u16 },
}

/// Whether a `private:` entry lets a name have an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ThroughPrivate {
    Allowed,
    /// The address belongs to the machine itself or to no single host.
    Never,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LimitReached {
    Bytes,
    Connections,
    ConnectionsPerSecond,
    /// Names below wildcards that have an address at a time.
    Names,
}

impl Refusal {
    /// The entry in the list of hosts that would allow it, if there is one. If the port is not known, it is that of HTTPS.
    pub fn entry(&self) -> Option<String> {
        match self {
            Self::Address { address: IpAddr::V4(v4), port } => Some(format!("{v4}:{port}")),
            Self::Address { address: IpAddr::V6(v6), port } => Some(format!("[{v6}]:{port}")),
            Self::Name { name } => name.parse().ok().map(|name: HostName| format!("{name}:443")),
            Self::Port { host, port } => Some(format!("{host}:{port}")),
            Self::PrivateAddress { host, port, through_private: ThroughPrivate::Allowed, .. } => {
                Some(format!("private:{host}:{port}"))
            }
            Self::SniMismatch { sni, port, .. } => {
                sni.parse().ok().map(|sni: HostName| format!("{sni}:{port}"))
            }
            Self::Limit { .. }
            | Self::NoName { .. }
            | Self::PrivateAddress { .. }
            | Self::UnreadableTls { .. } => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, port } => write!(f, "port {port} of {address} is not listed"),
            Self::Limit { limit } => f.write_str(match limit {
                LimitReached::Bytes => "the server has used up its bytes",
                LimitReached::Connections => "the server has too many connections at once",
                LimitReached::ConnectionsPerSecond => "the server opens too many connections per second",
                LimitReached::Names => "the server looks up too many names per minute",
            }),
            Self::Name { name } => write!(f, "`{name}` is not listed"),
            Self::NoName { address, port } => {
                write!(f, "{address}, which was connected to at port {port}, stands for no name (any more)")
            }
            Self::Port { host, port } => write!(f, "`{host}` is not listed with port {port}"),
            Self::PrivateAddress { host, address, through_private: ThroughPrivate::Allowed, .. } => {
                write!(f, "`{host}` resolves to {address}, which is not public")
            }
            Self::PrivateAddress { host, address, through_private: ThroughPrivate::Never, .. } => {
                write!(f, "`{host}` resolves to {address}, which is never reached through a name")
            }
            Self::SniMismatch { asked, sni, .. } => {
                write!(f, "the TLS client asks for `{sni}` on a connection to `{asked}`")
            }
            Self::UnreadableTls { host, port } => {
                write!(f, "the TLS client's first message to `{host}` at port {port} cannot be read")
            }
        }
    }
}

/// Reports to an [`Observer`] within bounds.
pub(crate) struct Reports {
    observer: Arc<dyn Observer>,
    paces: Mutex<Paces>,
}

struct Paces {
    closed: Pace<Connections>,
    failures: Pace<u64>,
    refusals: Pace<u64>,
    last_refusal: Option<(Refusal, Instant)>,
}

/// How often something is reported, and what was not.
struct Pace<Count> {
    limiter: RateLimiter,
    unreported: Count,
}

impl Reports {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        let paces = Paces {
            closed: Pace::new(RateLimiter::per_minute(CLOSED_PER_MINUTE)),
            failures: Pace::new(RateLimiter::per_minute(FAILURES_PER_MINUTE)),
            refusals: Pace::new(RateLimiter::per_second(REFUSALS_PER_SECOND)),
            last_refusal: None,
        };
        Self { observer, paces: Mutex::new(paces) }
    }

    pub(crate) fn opened(&self, peer: Peer) {
        self.observer.event(Event::Opened(peer));
    }

    pub(crate) fn closed(&self, peer: Peer, traffic: Traffic, duration: Duration, ending: Ending) {
        let mut paces = self.paces();
        if !paces.closed.limiter.allows(Instant::now()) {
            return paces.closed.unreported.add(traffic);
        }
        let unreported = std::mem::take(&mut paces.closed.unreported);
        drop(paces);
        self.observer.event(Event::Closed { peer, traffic, duration, ending, unreported });
    }

    pub(crate) fn failed(&self, peer: Peer, error: String) {
        let mut paces = self.paces();
        if !paces.failures.limiter.allows(Instant::now()) {
            paces.failures.unreported += 1;
            return;
        }
        let unreported = std::mem::take(&mut paces.failures.unreported);
        drop(paces);
        self.observer.event(Event::Failed { peer, error, unreported });
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        let now = Instant::now();
        let mut paces = self.paces();
        let is_repeated = paces
            .last_refusal
            .as_ref()
            .is_some_and(|(last, at)| *last == refusal && now.duration_since(*at) < SAME_REFUSAL);
        if is_repeated || !paces.refusals.limiter.allows(now) {
            paces.refusals.unreported += 1;
            return;
        }
        paces.last_refusal = Some((refusal.clone(), now));
        let unreported = std::mem::take(&mut paces.refusals.unreported);
        drop(paces);
        self.observer.event(Event::Refused { refusal, unreported });
    }

    fn paces(&self) -> MutexGuard<'_, Paces> {
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing can follow that would tell the counts.
impl Drop for Reports {
    fn drop(&mut self) {
        let paces = self.paces.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (closed, failed) = (paces.closed.unreported, paces.failures.unreported);
        let refused = paces.refusals.unreported;
        if (closed.count, failed, refused) != (0, 0, 0) {
            self.observer.event(Event::Unreported { closed, failed, refused });
        }
    }
}

impl<Count: Default> Pace<Count> {
    fn new(limiter: RateLimiter) -> Self {
        Self { limiter, unreported: Count::default() }
    }
}

impl Connections {
    fn add(&mut self, traffic: Traffic) {
        self.count += 1;
        self.traffic.sent = self.traffic.sent.saturating_add(traffic.sent);
        self.traffic.received = self.traffic.received.saturating_add(traffic.received);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<Event>>);

    impl Observer for Recorder {
        fn event(&self, event: Event) {
            self.0.lock().unwrap().push(event);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_counted_instead_of_reported() {
        let recorder = Arc::new(Recorder::default());
        let reports = Reports::new(recorder.clone());
        let refusal = |number: u32| Refusal::Name { name: format!("n{number}.example") };
        for number in 0..REFUSALS_PER_SECOND + 7 {
            reports.refused(refusal(number));
        }
        assert_eq!(recorder.0.lock().unwrap().len(), REFUSALS_PER_SECOND as usize);
        tokio::time::advance(Duration::from_secs(1)).await;
        reports.refused(refusal(99));
        let last = recorder.0.lock().unwrap().last().cloned();
        assert_eq!(last, Some(Event::Refused { refusal: refusal(99), unreported: 7 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_refusal_is_reported_once_for_a_while() {
        let recorder = Arc::new(Recorder::default());
        let reports = Reports::new(recorder.clone());
        let refusal = Refusal::Name { name: "a.example".into() };
        for _ in 0..3 {
            reports.refused(refusal.clone());
        }
        tokio::time::advance(SAME_REFUSAL).await;
        reports.refused(refusal.clone());
        let expected = [0, 2].map(|unreported| Event::Refused { refusal: refusal.clone(), unreported });
        assert_eq!(*recorder.0.lock().unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_and_failures_beyond_the_pace_are_counted_with_their_bytes() {
        let recorder = Arc::new(Recorder::default());
        let reports = Reports::new(recorder.clone());
        let peer = || Peer { host: "a.example".into(), port: 443 };
        let close = |sent, received| {
            reports.closed(peer(), Traffic { sent, received }, Duration::ZERO, Ending::Finished);
        };
        (0..1000).for_each(|number| close(number, 2));
        (0..100).for_each(|_| reports.failed(peer(), "refused".into()));
        tokio::time::advance(Duration::from_secs(60)).await;
        close(7, 7);
        (0..100).for_each(|_| reports.failed(peer(), "refused".into()));
        reports.refused(Refusal::Name { name: "b.example".into() });
        reports.refused(Refusal::Name { name: "b.example".into() });
        drop(reports);
        let events = recorder.0.lock().unwrap();
        let (mut reported, mut unreported) = (Connections::default(), Connections::default());
        let (mut failures, mut left_out) = (0, 0);
        for event in &*events {
            match event {
                Event::Closed { traffic, unreported: before, .. } => {
                    reported.add(*traffic);
                    unreported.count += before.count;
                    unreported.traffic.sent += before.traffic.sent;
                    unreported.traffic.received += before.traffic.received;
                }
                Event::Failed { unreported, .. } => {
                    failures += 1;
                    left_out += unreported;
                }
                _ => {}
            }
        }
        assert_eq!((reported.count, unreported.count), (61, 940));
        assert_eq!(reported.traffic.sent + unreported.traffic.sent, (0..1000).sum::<u64>() + 7);
        assert_eq!(reported.traffic.received + unreported.traffic.received, 2007);
        assert_eq!((failures, left_out), (120, 40));
        let last = Event::Unreported { closed: Connections::default(), failed: 40, refused: 1 };
        assert_eq!(events.last(), Some(&last), "the end tells what is left");
    }

    #[test]
    fn a_refusal_names_the_entry_that_would_allow_it() {
        let private = |address: [u8; 4], through_private| Refusal::PrivateAddress {
            host: "db.internal".into(),
            port: 5432,
            address: address.into(),
            through_private,
        };
        for (refusal, entry) in [
            (Refusal::Name { name: "uploads.github.com".into() }, Some("uploads.github.com:443")),
            (Refusal::Port { host: "a.example".into(), port: 80 }, Some("a.example:80")),
            (Refusal::Address { address: [10, 0, 0, 5].into(), port: 80 }, Some("10.0.0.5:80")),
            (Refusal::Address { address: "fd00::1".parse().unwrap(), port: 80 }, Some("[fd00::1]:80")),
            (private([10, 0, 0, 5], ThroughPrivate::Allowed), Some("private:db.internal:5432")),
            (private([127, 0, 0, 1], ThroughPrivate::Never), None),
            (
                Refusal::SniMismatch { asked: "a.example".into(), port: 443, sni: "b.example".into() },
                Some("b.example:443"),
            ),
            (Refusal::Name { name: "\\x00.example".into() }, None),
            (Refusal::Limit { limit: LimitReached::Connections }, None),
        ] {
            assert_eq!(refusal.entry().as_deref(), entry);
        }
    }
}
