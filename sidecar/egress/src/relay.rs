//! Passes the bytes of one connection in both directions.
//!
//! What must stay true: what the client sends is held back until it is known which host a TLS client asks for; what the
//! host sends never waits, because in many protocols it speaks first. The end of one direction is passed on and leaves the
//! other open. A connection that passes no bytes holds no buffer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::Instant;

use crate::event::{Refusal, Traffic};
use crate::hello::{HelloReader, Opening};
use crate::plan::Route;
use crate::shared::Shared;

/// Enough for messages.
const BUFFER: usize = 64 * 1024;
/// For a direction that fills the other one: it takes a third less CPU time per byte.
const LARGE_BUFFER: usize = 512 * 1024;
/// Enough for most hellos at once.
const HELLO_BUFFER: usize = 4 * 1024;

/// The longest valid name; only the beginning of a longer one is reported.
const MAX_SHOWN: usize = 253;

/// Why a connection is broken off.
#[derive(Debug)]
pub(crate) enum Cut {
    Idle,
    Refused(Refusal),
    /// The side that bytes came from broke it off.
    Reset,
    /// The side that bytes went to takes no more.
    Unwritable,
}

/// What passed over one connection.
pub(crate) struct Meter<'a> {
    shared: &'a Shared,
    opened: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// When bytes passed last, in milliseconds after `opened`.
    last_passed: AtomicU64,
}

#[derive(Clone, Copy)]
enum Direction {
    FromServer,
    ToServer,
}

/// Passes bytes until both sides have ended.
pub(crate) async fn relay(
    client: &mut TcpStream,
    host: &mut TcpStream,
    route: &Route,
    meter: &Meter<'_>,
) -> Result<(), Cut> {
    let (mut from_client, to_client) = client.split();
    let (from_host, mut to_host) = host.split();
    let outward = async {
        pass_hello(&mut from_client, &mut to_host, route, meter).await?;
        pass(&from_client, to_host, Direction::FromServer, meter).await
    };
    let inward = pass(&from_host, to_client, Direction::ToServer, meter);
    let idle = meter.idle();
    tokio::pin!(outward, inward, idle);
    let mut outward_ended = false;
    loop {
        tokio::select! {
            ended = &mut outward, if !outward_ended => match ended {
                // A host that reads no more may have sent a response, which is passed on to its end.
                Ok(()) | Err(Cut::Unwritable) => outward_ended = true,
                Err(cut @ (Cut::Idle | Cut::Refused(_) | Cut::Reset)) => return Err(cut),
            },
            ended = &mut inward => {
                ended?;
                break;
            }
            () = &mut idle => return Err(Cut::Idle),
        }
    }
    if outward_ended {
        return Ok(());
    }
    tokio::select! {
        ended = outward => match ended {
            // All that the host sent has been passed on.
            Err(Cut::Unwritable) => Ok(()),
            Ok(()) | Err(Cut::Idle | Cut::Refused(_) | Cut::Reset) => ended,
        },
        () = idle => Err(Cut::Idle),
    }
}

impl<'a> Meter<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        let [sent, received, last_passed] = [const { AtomicU64::new(0) }; 3];
        Self { shared, opened: Instant::now(), sent, received, last_passed }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic { sent: self.sent.load(Ordering::Relaxed), received: self.received.load(Ordering::Relaxed) }
    }

    pub(crate) fn duration(&self) -> Duration {
        self.opened.elapsed()
    }

    fn count(&self, bytes: usize, direction: Direction) -> Result<(), Cut> {
        let bytes = bytes as u64;
        let traffic = match direction {
            Direction::FromServer => Traffic { sent: bytes, received: 0 },
            Direction::ToServer => Traffic { sent: 0, received: bytes },
        };
        self.shared.count(traffic).map_err(|limit| Cut::Refused(Refusal::Limit { limit }))?;
        self.sent.fetch_add(traffic.sent, Ordering::Relaxed);
        self.received.fetch_add(traffic.received, Ordering::Relaxed);
        self.last_passed.store(self.opened.elapsed().as_millis() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Ends when no byte has passed for the permitted time.
    async fn idle(&self) {
        loop {
            let last = Duration::from_millis(self.last_passed.load(Ordering::Relaxed));
            let end = self.opened + last + self.shared.limits.idle;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// Passes on the first bytes of the client, when it is known that they ask for no other host.
async fn pass_hello(
    client: &mut ReadHalf<'_>,
    host: &mut WriteHalf<'_>,
    route: &Route,
    meter: &Meter<'_>,
) -> Result<(), Cut> {
    let Some(name) = &route.name else { return Ok(()) };
    let (mut hello, mut buffer) = (HelloReader::default(), Vec::new());
    loop {
        buffer.clear();
        buffer.reserve(HELLO_BUFFER);
        // At the end: in what is held no server reads a name, because it is no whole hello.
        if client.read_buf(&mut buffer).await.map_err(|_| Cut::Reset)? == 0 {
            break;
        }
        match hello.read(&buffer) {
            Opening::Incomplete => {}
            Opening::NotTls => break,
            Opening::Hello { names } => {
                let other = names.iter().find(|sni| !is_name(sni, name.as_str()));
                let Some(sni) = other else { break };
                let shown = sni.get(..MAX_SHOWN).unwrap_or(sni);
                let sni = shown.escape_ascii().to_string().to_ascii_lowercase();
                let (asked, port) = (route.label.clone(), route.port);
                return Err(Cut::Refused(Refusal::SniMismatch { asked, port, sni }));
            }
            Opening::Unreadable => {
                let host = route.label.clone();
                return Err(Cut::Refused(Refusal::UnreadableTls { host, port: route.port }));
            }
        }
    }
    let held = hello.into_held();
    meter.count(held.len(), Direction::FromServer)?;
    host.write_all(&held).await.map_err(|_| Cut::Unwritable)
}

/// Passes all bytes of one direction, then its end.
async fn pass(
    from: &ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    meter: &Meter<'_>,
) -> Result<(), Cut> {
    loop {
        from.readable().await.map_err(|_| Cut::Reset)?;
        let (mut buffer, mut large) = (Vec::with_capacity(BUFFER), None);
        loop {
            buffer.clear();
            match from.try_read_buf(&mut buffer) {
                Ok(0) => {
                    // It fails if the connection has been broken off meanwhile: then there is nothing to end.
                    let _ = to.shutdown().await;
                    return Ok(());
                }
                Ok(length) => {
                    meter.count(length, direction)?;
                    to.write_all(&buffer).await.map_err(|_| Cut::Unwritable)?;
                    if large.is_none() && buffer.len() == buffer.capacity() {
                        large = meter.shared.large_buffer();
                        if large.is_some() {
                            buffer = Vec::with_capacity(LARGE_BUFFER);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Cut::Reset),
            }
        }
    }
}

fn is_name(sni: &[u8], name: &str) -> bool {
    sni.strip_suffix(b".").unwrap_or(sni).eq_ignore_ascii_case(name.as_bytes())
}
