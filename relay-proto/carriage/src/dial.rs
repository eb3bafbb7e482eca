//! Opens a stream to the pinned sidecar at a relay's address, step by step.
//!
//! One timeout covers all steps together; its error names the step that was running.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use relay_proto::address::{Host, HostPort, WebSocket};
use relay_proto::key::PublicKey;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::identity::Identity;
use crate::proxy::{self, Proxy, ProxyError};
use crate::tls::{self, TlsError};
use crate::websocket::{self, UpgradeError};
use crate::{BoxedStream, outer};

/// How a peer is dialled: with which identity, expecting which pin, through which proxy, and within which time.
#[derive(Clone, Copy, Debug)]
pub struct Dial<'a> {
    pub identity: &'a Identity,
    pub pin: &'a PublicKey,
    pub proxy: Option<&'a Proxy>,
    pub limit: Duration,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    #[error("cannot open the TLS connection around the WebSocket: {0}")]
    Outer(#[source] TlsError),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error(
        "the reverse proxy cannot reach the sidecar (HTTP status {status}); is `cofferdam serve` running on the host, and \
         does the proxy forward to the address in `relay.tls`?"
    )]
    BehindProxy { status: u16 },
    #[error("cannot resolve `{host}`: {source}; is the name correct, and does this sandbox have a resolver?")]
    Resolve { host: Host, source: io::Error },
    #[error(
        "cannot open a TCP connection to {endpoint}: {source}; does a program listen there, and may this sandbox connect to it?"
    )]
    Tcp { endpoint: HostPort, source: io::Error },
    #[error("{step} took longer than {} seconds; {}", .limit.as_secs_f32(), .step.advice())]
    TimedOut { step: Step, limit: Duration },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
}

/// The step that timed out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    Outer,
    Proxy(HostPort),
    Resolve(Host),
    Tcp(HostPort),
    Tls,
    Upgrade,
}

impl Dial<'_> {
    /// Connects to `tls://HOST:PORT`.
    pub async fn tls(&self, endpoint: &HostPort) -> Result<BoxedStream, DialError> {
        let deadline = self.deadline();
        let stream = self.connect_stream(endpoint, deadline).await?;
        self.complete_tls(stream, deadline).await
    }

    /// Connects to `wss://HOST[:PORT]/PATH`.
    pub async fn web_socket(&self, endpoint: &WebSocket) -> Result<BoxedStream, DialError> {
        let deadline = self.deadline();
        let stream = self
            .connect_stream(&HostPort { host: endpoint.host.clone(), port: endpoint.port }, deadline)
            .await?;
        let stream = deadline
            .run_step(Step::Outer, outer::connect(stream, &endpoint.host))
            .await?
            .map_err(DialError::Outer)?;
        let upgraded = deadline.run_step(Step::Upgrade, websocket::connect(stream, endpoint, &[])).await?;
        let stream = upgraded.map_err(|error| match error {
            UpgradeError::Status(status @ 502..=504) => DialError::BehindProxy { status },
            error => error.into(),
        })?;
        self.complete_tls(stream, deadline).await
    }

    /// Opens a stream to this address, through the proxy if there is one.
    async fn connect_stream(
        &self,
        endpoint: &HostPort,
        deadline: Deadline,
    ) -> Result<BoxedStream, DialError> {
        match self.proxy {
            None => Ok(Box::new(connect_tcp_within(endpoint, deadline).await?)),
            Some(proxy) => {
                let stream = connect_tcp_within(&proxy.address, deadline).await?;
                let step = Step::Proxy(proxy.address.clone());
                Ok(Box::new(deadline.run_step(step, proxy::connect(stream, proxy, endpoint)).await??))
            }
        }
    }

    async fn complete_tls(
        &self,
        stream: impl crate::Stream + 'static,
        deadline: Deadline,
    ) -> Result<BoxedStream, DialError> {
        let stream = deadline.run_step(Step::Tls, tls::connect(stream, self.identity, self.pin)).await??;
        Ok(Box::new(stream))
    }

    fn deadline(&self) -> Deadline {
        Deadline { until: Instant::now() + self.limit, timeout: self.limit }
    }
}

/// Opens a TCP connection to the first address of `endpoint` that accepts it.
pub async fn connect_tcp(endpoint: &HostPort, limit: Duration) -> Result<TcpStream, DialError> {
    connect_tcp_within(endpoint, Deadline { until: Instant::now() + limit, timeout: limit }).await
}

impl Step {
    fn advice(&self) -> &'static str {
        match self {
            Self::Outer | Self::Tls => "is this the port that `relay.advertise` names?",
            Self::Proxy(_) => "can the proxy reach that address? use another proxy with `--proxy`",
            Self::Resolve(_) => "use an IP address instead of the name, or give this sandbox a resolver",
            Self::Tcp(_) => "a firewall may drop the packets silently: allow this connection",
            Self::Upgrade => "does the load balancer in front of the sidecar forward WebSocket upgrades?",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outer => f.write_str("opening the TLS connection around the WebSocket"),
            Self::Proxy(proxy) => write!(f, "connecting through the proxy {proxy}"),
            Self::Resolve(host) => write!(f, "resolving `{host}`"),
            Self::Tcp(endpoint) => write!(f, "opening a TCP connection to {endpoint}"),
            Self::Tls => f.write_str("completing the TLS handshake"),
            Self::Upgrade => f.write_str("opening the WebSocket"),
        }
    }
}

/// The time by which all steps must be done, and the timeout from which it results, for the error.
#[derive(Clone, Copy)]
struct Deadline {
    until: Instant,
    timeout: Duration,
}

impl Deadline {
    async fn run_step<T>(self, step: Step, work: impl Future<Output = T>) -> Result<T, DialError> {
        timeout_at(self.until, work).await.map_err(|_| DialError::TimedOut { step, limit: self.timeout })
    }
}

/// Further addresses of a name are not tried: a sidecar's name does not have this many.
const MAX_ADDRESSES: usize = 8;

async fn connect_tcp_within(endpoint: &HostPort, deadline: Deadline) -> Result<TcpStream, DialError> {
    let addresses: Vec<SocketAddr> = match &endpoint.host {
        Host::Ip(address) => vec![(*address, endpoint.port).into()],
        Host::Name(name) => {
            let found = deadline
                .run_step(Step::Resolve(endpoint.host.clone()), lookup_host((name.as_str(), endpoint.port)))
                .await?;
            let found = found.map_err(|source| DialError::Resolve { host: endpoint.host.clone(), source })?;
            found.take(MAX_ADDRESSES).collect()
        }
    };
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (index, address) in addresses.iter().enumerate() {
        // Each address gets its share of the remaining time.
        let left = deadline.until.saturating_duration_since(Instant::now());
        let attempt_deadline =
            Deadline { until: Instant::now() + left / (addresses.len() - index) as u32, ..deadline };
        match attempt_deadline.run_step(Step::Tcp(endpoint.clone()), TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Messages are written whole, so delaying small packets would only add latency.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(source)) => failure = source,
            Err(timed_out) if index + 1 == addresses.len() => return Err(timed_out),
            Err(_) => {}
        }
    }
    Err(DialError::Tcp { endpoint: endpoint.clone(), source: failure })
}
