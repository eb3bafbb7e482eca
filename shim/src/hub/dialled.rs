//! A port that the host dials.
//!
//! Whoever proves the sidecar's key has the pipe, and has it from whoever had it before: the sidecar comes again when its
//! end of the old one is dead. Must stay true: whoever does not prove it gets nothing and holds up nobody for long.

use std::collections::VecDeque;
use std::net::SocketAddr;

use relay_carriage::BoxedStream;
use relay_carriage::entrance::{self, EntranceError};
use relay_carriage::identity::Identity;
use relay_carriage::tls::Inside;
use relay_proto::address::{Host, HostPort};
use relay_proto::key::PublicKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::local::{Claim, Local};
use super::serve::{End, serve};
use super::{HANDSHAKE, HubError, Stop};
use crate::say;
use crate::talk::Talk;

/// Those who have not proven a key yet. When one more comes, the one that has been at it longest goes.
const MAX_PROVING: usize = 8;
/// When the kernel has no descriptors left, some will be closed soon.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

pub(super) async fn run(
    place: &HostPort,
    pin: &PublicKey,
    identity: &Identity,
    claim: &Claim,
    mut stop: Stop<'_>,
) -> Result<(), HubError> {
    let Host::Ip(address) = &place.host else { return Ok(()) };
    let failed = |source| HubError::Listen { place: place.clone(), source };
    let listener = TcpListener::bind(SocketAddr::new(*address, place.port)).await.map_err(failed)?;
    say(&format!("hub: waiting at {place} for `cofferdam attach dial`"));
    let mut door = Door {
        listener,
        pin: *pin,
        identity: identity.clone(),
        proving: JoinSet::new(),
        order: VecDeque::new(),
        talk: Talk::new(),
    };
    let mut next = tokio::select! {
        () = stop.as_mut() => return Ok(()),
        stream = door.next() => stream,
    };
    loop {
        let local: Local = claim.open().await?;
        say(&format!("hub: attached; shims can come to {local}"));
        let mut come = None;
        let end = {
            let superseded = async { come = Some(door.next().await) };
            let mut ended = std::pin::pin!(async {
                tokio::select! {
                    () = stop.as_mut() => {}
                    () = superseded => {}
                }
            });
            serve(next, &local, ended.as_mut()).await
        };
        drop(local);
        next = match (end, come) {
            (End::Stopped, None) => return Ok(()),
            (End::Stopped, Some(stream)) => {
                say("hub: the sidecar came again; the pipe before is over");
                stream
            }
            (end, _) => {
                say(&format!("hub: {end}; waiting for the next one"));
                tokio::select! {
                    () = stop.as_mut() => return Ok(()),
                    stream = door.next() => stream,
                }
            }
        };
    }
}

/// The port, and those at it.
struct Door {
    listener: TcpListener,
    pin: PublicKey,
    identity: Identity,
    proving: JoinSet<Result<BoxedStream, EntranceError>>,
    order: VecDeque<AbortHandle>,
    /// Strangers may come as often as they like.
    talk: Talk,
}

impl Door {
    /// The next one who proves the sidecar's key. Can be dropped at any time.
    async fn next(&mut self) -> BoxedStream {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => self.let_prove(stream),
                    Err(_) => sleep(PAUSE).await,
                },
                Some(proven) = self.proving.join_next() => {
                    self.order.retain(|handle| !handle.is_finished());
                    match proven {
                        Ok(Ok(stream)) => return stream,
                        Ok(Err(error)) => self.talk.trouble(format!("hub: {error}")),
                        // Somebody else wanted its place.
                        Err(_) => {}
                    }
                }
            }
        }
    }

    fn let_prove(&mut self, stream: TcpStream) {
        if self.order.len() >= MAX_PROVING
            && let Some(longest) = self.order.pop_front()
        {
            longest.abort();
        }
        let _ = stream.set_nodelay(true);
        let (identity, pin) = (self.identity.clone(), self.pin);
        self.order.push_back(self.proving.spawn(async move {
            let entering = entrance::enter_for(Inside::Hub, stream, &identity, &pin);
            timeout(HANDSHAKE, entering).await.map_err(std::io::Error::from)?
        }));
    }
}
