//! What happens in a server's network, for the caller's log, audit and metrics.
//!
//! What must stay true: reports are bounded, however often the server tries; those left out are counted.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use tokio::time::Instant;

use crate::name::HostName;

/// Enough to see every refusal of an ordinary server; a hostile one must not fill the log.
const REFUSALS_PER_SECOND: u32 = 20;
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
    },
    /// The host is allowed, but no connection could be made: why.
    Failed {
        peer: Peer,
        error: String,
    },
    Refused {
        refusal: Refusal,
        /// How many refusals before this one were not reported, because they were too many or the same.
        unreported: u64,
    },
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
    refusals: Mutex<RefusalPace>,
}

struct RefusalPace {
    limiter: RateLimiter,
    last: Option<(Refusal, Instant)>,
    unreported: u64,
}

impl Reports {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        let limiter = RateLimiter::per_second(REFUSALS_PER_SECOND);
        Self { observer, refusals: Mutex::new(RefusalPace { limiter, last: None, unreported: 0 }) }
    }

    pub(crate) fn event(&self, event: Event) {
        self.observer.event(event);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        let now = Instant::now();
        let mut pace = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let is_repeated = pace
            .last
            .as_ref()
            .is_some_and(|(last, at)| *last == refusal && now.duration_since(*at) < SAME_REFUSAL);
        if is_repeated || !pace.limiter.allows(now) {
            pace.unreported += 1;
            return;
        }
        pace.last = Some((refusal.clone(), now));
        let unreported = std::mem::take(&mut pace.unreported);
        drop(pace);
        self.observer.event(Event::Refused { refusal, unreported });
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
