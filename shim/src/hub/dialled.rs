//! A port that the host dials.
//!
//! A connection that proves the sidecar's key becomes the pipe and replaces the previous pipe: the sidecar dials again
//! when its end of the old pipe is dead. Must stay true: a peer that does not prove the key gets nothing, and delays the
//! sidecar only briefly.

use relay_carriage::BoxedStream;
use relay_proto::address::ListenAddress;

use super::claim::Claim;
use super::local::LocalEndpoint;
use super::serve::{PipeEnd, serve};
use super::{HubError, Stop};
use crate::inbound_listener::{HandshakeConfig, InboundListener};
use crate::print_error;
use crate::stderr_log::StderrLog;

pub(super) async fn run(
    address: &ListenAddress,
    config: HandshakeConfig,
    claim: &Claim,
    mut stop: Stop<'_>,
) -> Result<(), HubError> {
    let opened = InboundListener::open(address, config).await;
    let inbound_listener = opened.map_err(|source| HubError::Listen { address: address.clone(), source })?;
    print_error(&format!("hub: waiting at {address} for `cofferdam attach dial`"));
    let mut port = SidecarPort { inbound_listener, log: StderrLog::new() };
    let mut next = tokio::select! {
        () = stop.as_mut() => return Ok(()),
        stream = port.next() => stream,
    };
    loop {
        let local: LocalEndpoint = claim.open().await?;
        print_error(&format!("hub: attached; shims can connect to {local}"));
        let mut newer = None;
        let end = {
            let superseded = async { newer = Some(port.next().await) };
            let mut ended = std::pin::pin!(async {
                tokio::select! {
                    () = stop.as_mut() => {}
                    () = superseded => {}
                }
            });
            serve(next, &local, ended.as_mut()).await
        };
        drop(local);
        next = match (end, newer) {
            (PipeEnd::Stopped, None) => return Ok(()),
            (PipeEnd::Stopped, Some(stream)) => {
                print_error("hub: the sidecar connected again; the previous pipe is closed");
                stream
            }
            (end, _) => {
                print_error(&format!("hub: {end}; waiting for the next connection"));
                tokio::select! {
                    () = stop.as_mut() => return Ok(()),
                    stream = port.next() => stream,
                }
            }
        };
    }
}

/// The port that the sidecar dials.
struct SidecarPort {
    inbound_listener: InboundListener,
    /// Each kind of failed handshake is reported once.
    log: StderrLog,
}

impl SidecarPort {
    /// The next connection that proves the sidecar's key. Cancel-safe.
    async fn next(&mut self) -> BoxedStream {
        loop {
            match self.inbound_listener.next().await {
                Ok(stream) => return stream,
                Err(error) => self.log.warn_once(format!("hub: {error}")),
            }
        }
    }
}
