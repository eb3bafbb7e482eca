//! A port that the host dials.
//!
//! Whoever proves the sidecar's key has the pipe, and has it from whoever had it before: the sidecar comes again when its
//! end of the old one is dead. Must stay true: whoever does not prove it gets nothing and holds up nobody for long.

use relay_carriage::BoxedStream;
use relay_proto::address::ListenPlace;

use super::local::{Claim, Local};
use super::serve::{End, serve};
use super::{HubError, Stop};
use crate::inbound_listener::{Entry, InboundListener};
use crate::say;
use crate::stderr_log::StderrLog;

pub(super) async fn run(
    place: &ListenPlace,
    entry: Entry,
    claim: &Claim,
    mut stop: Stop<'_>,
) -> Result<(), HubError> {
    let opened = InboundListener::open(place, entry).await;
    let inbound_listener = opened.map_err(|source| HubError::Listen { place: place.clone(), source })?;
    say(&format!("hub: waiting at {place} for `cofferdam attach dial`"));
    let mut door = Door { inbound_listener, log: StderrLog::new() };
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

struct Door {
    inbound_listener: InboundListener,
    /// Strangers may come as often as they like.
    log: StderrLog,
}

impl Door {
    /// The next one who proves the sidecar's key. Can be dropped at any time.
    async fn next(&mut self) -> BoxedStream {
        loop {
            match self.inbound_listener.next().await {
                Ok(stream) => return stream,
                Err(error) => self.log.warn_once(format!("hub: {error}")),
            }
        }
    }
}
