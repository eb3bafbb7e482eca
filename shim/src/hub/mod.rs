//! The hub: holds the one pipe of a sandbox that has only one, and carries the links of all its shims through it.
//!
//! The pipe is stdin and stdout, or a port that the host dials. In it the hub is the TLS client and goes on only with
//! the sidecar whose key is pinned; then every local connection is a substream, whose bytes it copies and does not read.
//!
//! Must stay true: whoever is not the pinned sidecar gets nothing; stdout is the pipe and nothing else; the pipe's end ends
//! all local connections, so that their shims come again and resume; one hub has the place, and one hub has the pipe.
//!
//! | module | what it holds |
//! |---|---|
//! | `dialled` | a port that the host dials |
//! | `local` | where the sandbox's shims come |
//! | [`options`] | the command line |
//! | `serve` | one pipe from its handshake to its end |
//! | `stdio` | stdin and stdout as one stream |

mod dialled;
mod local;
pub mod options;
mod serve;
mod stdio;

use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use relay_carriage::identity::{Identity, IdentityError};
use relay_carriage::tls::{self, Inside, TlsError};
use relay_proto::address::ListenPlace;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::inbound_listener::{self, Entry};
use crate::say;
use local::{Claim, LocalError};
use options::{HubOptions, PipePlace};
use stdio::Duplex;

/// The whole program after its command line.
pub(crate) fn main(options: HubOptions) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("start the hub: {error}"));
            return ExitCode::from(EX_OSERR);
        }
    };
    match runtime.block_on(run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("hub: {error}"));
            ExitCode::from(error.code())
        }
    }
}

/// Why there is no hub, or none any more.
#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error(
        "the pipe is a terminal, which changes bytes: start the hub without one (`docker exec -i` without `-t`, `ssh -T`)"
    )]
    Terminal,
    #[error(
        "another hub has this pipe already: two cannot share it; one hub serves all shims of a sandbox, so start it once"
    )]
    TwoOnOnePipe,
    #[error(
        "prove keys through the pipe: nothing came back in {} seconds; is `cofferdam attach` at its other end?",
        HANDSHAKE.as_secs()
    )]
    NoAnswer,
    #[error("prove keys through the pipe: {0}")]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error("listen on {place}: {source}; {}", inbound_listener::advice(.place, .source))]
    Listen { place: ListenPlace, source: io::Error },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("use the pipe: {0}")]
    Io(#[from] io::Error),
}

/// Both sides' proof must be through within this.
const HANDSHAKE: Duration = Duration::from_secs(10);
const EX_UNAVAILABLE: u8 = 69;
const EX_OSERR: u8 = 71;
const EX_TEMPFAIL: u8 = 75;
const EX_NOPERM: u8 = 77;
const EX_USAGE: u8 = 64;

impl HubError {
    fn code(&self) -> u8 {
        match self {
            Self::Terminal => EX_USAGE,
            Self::TwoOnOnePipe | Self::Local(LocalError::Held { .. }) => EX_TEMPFAIL,
            Self::Tls(TlsError::WrongPin { .. }) => EX_NOPERM,
            Self::NoAnswer | Self::Tls(_) | Self::Local(_) | Self::Listen { .. } => EX_UNAVAILABLE,
            Self::Identity(_) | Self::Io(_) => EX_OSERR,
        }
    }
}

/// What ends a hub from outside.
type Stop<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send)>;

async fn run(options: HubOptions) -> Result<(), HubError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stop = std::pin::pin!(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    let claim = tokio::select! {
        claim = Claim::take(&options.local) => claim?,
        () = stop.as_mut() => return Ok(()),
    };
    let identity = Identity::generate()?;
    match &options.pipe {
        PipePlace::Listen(place) => {
            let entry = Entry { inside: Inside::Hub, identity, pin: options.pin };
            dialled::run(place, entry, &claim, stop).await
        }
        PipePlace::Stdio => {
            let handshake = tls::connect_for(Inside::Hub, Duplex::open()?, &identity, &options.pin);
            let stream = tokio::select! {
                proven = timeout(HANDSHAKE, handshake) => proven.map_err(|_| HubError::NoAnswer)??,
                () = stop.as_mut() => return Ok(()),
            };
            let local = claim.open().await?;
            say(&format!("hub: attached; shims can come to {local}"));
            let end = serve::serve(Box::new(stream), &local, stop).await;
            say(&format!("hub: {end}"));
            Ok(())
        }
    }
}
