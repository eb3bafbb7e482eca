//! The hub: carries the links of all shims of a sandbox through its one pipe to the host.
//!
//! The pipe is stdin and stdout, or a port that the host dials. On it the hub is the TLS client and accepts only the
//! sidecar whose key is pinned; then every local connection is a substream, whose bytes it copies unread.
//!
//! Must stay true: a peer without the pinned key gets nothing; stdout carries the pipe and nothing else; the end of the
//! pipe closes all local connections, so that their shims reconnect and resume; one hub per local address and per pipe.
//!
//! | module | what it holds |
//! |---|---|
//! | `claim`, `takeover` | the right to serve a local address, and how a newer hub takes it over |
//! | `dialled`, `piped` | a port that the host dials; stdin and stdout |
//! | `local` | the local address that the sandbox's shims connect to |
//! | [`options`] | the command line |
//! | `serve` | one pipe from its handshake to its end |
//! | `stdio`, `text_pipe` | stdin and stdout as one stream; the same as lines of base64 |

mod claim;
mod dialled;
mod local;
pub mod options;
mod piped;
mod serve;
mod stdio;
mod takeover;
mod text_pipe;

use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use relay_carriage::identity::{Identity, IdentityError};
use relay_carriage::tls::{StreamProtocol, TlsError};
use relay_proto::address::ListenAddress;
use tokio::signal::unix::{SignalKind, signal};

use crate::inbound_listener::{self, HandshakeConfig};
use crate::print_error;
use claim::Claim;
use local::LocalError;
use options::{HubOptions, PipeTarget};

/// The whole program, after the command line was read.
pub(crate) fn main(options: HubOptions) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("start the hub: {error}"));
            return ExitCode::from(EX_OSERR);
        }
    };
    match runtime.block_on(run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("hub: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Why the hub did not start, or ended.
#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error(
        "the pipe is a terminal, which changes bytes: start the hub without one (`docker exec -i` without `-t`, `ssh -T`)"
    )]
    Terminal,
    #[error(
        "another hub uses this pipe already, and two cannot share it; one hub serves all shims of a sandbox, so start it once"
    )]
    PipeInUse,
    #[error(
        "TLS handshake through the pipe: no response in {} seconds; is `cofferdam attach` at its other end?",
        HANDSHAKE_TIMEOUT.as_secs()
    )]
    NoResponse,
    #[error("TLS handshake through the pipe: {source}{}", version_hint(.source))]
    Tls {
        #[from]
        source: TlsError,
    },
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error("listen on {address}: {source}; {}", inbound_listener::advice(.address, .source))]
    Listen { address: ListenAddress, source: io::Error },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("use the pipe: {0}")]
    Io(#[from] io::Error),
}

/// The sidecar learns both versions; the hub learns only that the two sides have none in common.
fn version_hint(error: &TlsError) -> &'static str {
    match error {
        TlsError::NotARelay => {
            "; if shim and sidecar have different versions, `cofferdam attach` reports which one is older"
        }
        _ => "",
    }
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const EX_UNAVAILABLE: u8 = 69;
const EX_OSERR: u8 = 71;
const EX_TEMPFAIL: u8 = 75;
const EX_NOPERM: u8 = 77;
const EX_USAGE: u8 = 64;

impl HubError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Terminal => EX_USAGE,
            Self::PipeInUse | Self::Local(LocalError::HeldByHub { .. }) => EX_TEMPFAIL,
            Self::Tls { source: TlsError::WrongPin { .. } } => EX_NOPERM,
            Self::NoResponse | Self::Tls { .. } | Self::Local(_) | Self::Listen { .. } => EX_UNAVAILABLE,
            Self::Identity(_) | Self::Io(_) => EX_OSERR,
        }
    }
}

/// Resolves when the hub must stop.
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
    match &options.pipe {
        PipeTarget::Listen(address) => {
            let claim = tokio::select! {
                claim = Claim::acquire(&options.local) => claim?,
                () = stop.as_mut() => return Ok(()),
            };
            let config = HandshakeConfig {
                protocol: StreamProtocol::Hub,
                identity: Identity::generate()?,
                pin: options.pin,
            };
            dialled::run(address, config, &claim, stop).await
        }
        PipeTarget::Stdio(encoding) => piped::run(&options, *encoding, stop).await,
    }
}
