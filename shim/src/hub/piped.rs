//! A hub whose pipe is stdin and stdout: claims the address, does the handshake, and serves until the pipe ends.
//!
//! If another hub to the same sidecar holds the address, that hub ends as soon as this hub's handshake is done: of two
//! pipes to one sandbox, the newer one is used.

use relay_carriage::BoxedStream;
use relay_carriage::identity::Identity;
use relay_carriage::tls::{self, StreamProtocol};
use tokio::time::timeout;

use super::claim::Claim;
use super::local::LocalError;
use super::options::{HubOptions, PipeEncoding};
use super::serve::serve;
use super::stdio::Duplex;
use super::takeover::{ControlSocket, Takeover};
use super::text_pipe::TextPipe;
use super::{HANDSHAKE_TIMEOUT, HubError, Stop};
use crate::print_error;

pub(super) async fn run(
    options: &HubOptions,
    encoding: PipeEncoding,
    mut stop: Stop<'_>,
) -> Result<(), HubError> {
    let (claim, stream) = tokio::select! {
        connected = connect(options, encoding) => connected?,
        () = stop.as_mut() => return Ok(()),
    };
    let control = ControlSocket::open(claim.path(), options.pin);
    let local = claim.open().await?;
    print_error(&format!("hub: attached; shims can connect to {local}"));
    let mut ended = std::pin::pin!(async {
        tokio::select! {
            () = stop.as_mut() => {}
            () = wait_for_takeover(control.as_ref()) => print_error("hub: a newer hub to the same sidecar takes over"),
        }
    });
    let end = serve(stream, &local, ended.as_mut()).await;
    print_error(&format!("hub: {end}"));
    Ok(())
}

/// Claims the address and does the handshake through the pipe.
async fn connect(options: &HubOptions, encoding: PipeEncoding) -> Result<(Claim, BoxedStream), HubError> {
    let held = match Claim::try_acquire(&options.local) {
        Ok(claim) => return Ok((claim, handshake(options, encoding).await?)),
        Err(LocalError::HeldByHub { path, .. }) => path,
        Err(error) => return Err(error.into()),
    };
    match Takeover::offer(&held, &options.pin).await {
        Some(takeover) => {
            let stream = handshake(options, encoding).await?;
            takeover.take_over().await;
            Ok((Claim::acquire(&options.local).await?, stream))
        }
        None => {
            let claim = Claim::acquire(&options.local).await?;
            Ok((claim, handshake(options, encoding).await?))
        }
    }
}

async fn handshake(options: &HubOptions, encoding: PipeEncoding) -> Result<BoxedStream, HubError> {
    let (identity, pipe) = (Identity::generate()?, Duplex::open()?);
    let pipe: BoxedStream = match encoding {
        PipeEncoding::Binary => Box::new(pipe),
        PipeEncoding::Text => Box::new(TextPipe::new(pipe)),
    };
    let handshake = tls::connect_for(StreamProtocol::Hub, pipe, &identity, &options.pin);
    let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(|_| HubError::NoResponse)??;
    Ok(Box::new(stream))
}

async fn wait_for_takeover(control: Option<&ControlSocket>) {
    match control {
        Some(control) => control.wait_for_takeover().await,
        None => std::future::pending().await,
    }
}
