//! The client with which a test opens a pipe, and the sidecar's end of the pipe.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::{Dialer, Trust};
use cofferdam_platforms::daytona::{Daytona, Via};
use cofferdam_platforms::{
    ApiKey, Architecture, HubSetup, KeepAwake, Pipe, PlatformError, PlatformKind, PlatformSettings, Progress,
    SandboxId, ShimBinary, WhenSuspended,
};
use cofferdam_tests::daytona_double::{API_KEY, DaytonaDouble};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::built;
use http::{HeaderValue, Uri};
use relay_carriage::identity::Identity;
use relay_carriage::tls::{self, StreamProtocol};
use relay_carriage::trunk::{Side, Trunk, send_heartbeats};
use ring::digest::{SHA256, digest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The sidecar's heartbeat interval on a pipe: longer than any test, so that heartbeats do not keep a connection busy.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3600);

/// A client of the double, and the key of its sidecar.
pub(crate) struct Operator {
    pub(crate) daytona: Daytona,
    pub(crate) id: SandboxId,
    pub(crate) setup: HubSetup,
    pub(crate) progress: Mutex<Vec<Progress>>,
    identity: Identity,
    relay: PathBuf,
}

/// The sidecar's end of a pipe, which echoes the bytes of each connection of the sandbox's shims.
pub(crate) struct Echo {
    tasks: JoinSet<()>,
    relay: PathBuf,
}

impl Operator {
    pub(crate) fn of(double: &DaytonaDouble) -> Self {
        Self::with_key(double, API_KEY)
    }

    pub(crate) fn with_key(double: &DaytonaDouble, key: &str) -> Self {
        let identity = Identity::generate().expect("a key can be made");
        let settings = PlatformSettings {
            kind: PlatformKind::Daytona,
            api_url: Some(uri(&double.api_url())),
            sandbox_url: Some(uri(&double.proxy_url())),
        };
        let key = ApiKey::new(HeaderValue::from_str(key).expect("a key is printable"));
        let setup = HubSetup {
            shim: Arc::new(|_: Architecture| Ok(static_shim())),
            pin: identity.public().to_string(),
            harness: None,
        };
        let daytona = Daytona::new(settings, key, Dialer::trusting(Trust::System), &Arc::default())
            .with_known_hosts(double.root().join("known_hosts"));
        Self {
            daytona,
            id: double.sandbox_id().parse().expect("the double's id is one"),
            setup,
            progress: Mutex::default(),
            identity,
            relay: double.root().join("run/cofferdam/relay/relay.sock"),
        }
    }

    /// Sets the ping interval.
    pub(crate) fn pinging(self, interval: Duration) -> Self {
        Self { daytona: self.daytona.with_ping_interval(interval), ..self }
    }

    pub(crate) async fn open(&self) -> Result<Pipe, PlatformError> {
        self.open_as(WhenSuspended::Refuse, KeepAwake::No, Via::Preview).await
    }

    pub(crate) async fn open_as(
        &self,
        suspended: WhenSuspended,
        awake: KeepAwake,
        via: Via,
    ) -> Result<Pipe, PlatformError> {
        let progress = |step| self.progress.lock().expect("no holder panics").push(step);
        let opening = self.daytona.open(&self.id, suspended, awake, via, &self.setup, &progress);
        timeout(PATIENCE, opening).await.expect("an attempt ends")
    }

    /// The error of an attempt that must fail.
    pub(crate) async fn failure(&self) -> PlatformError {
        match self.open().await {
            Ok(_) => panic!("a pipe was opened"),
            Err(error) => error,
        }
    }

    /// Serves the sidecar's end of the pipe.
    pub(crate) async fn echo(&self, pipe: Pipe) -> Echo {
        let accepting = timeout(PATIENCE, tls::accept_pipe(pipe, &self.identity));
        let (stream, _, inside) = accepting.await.expect("the hub responds").expect("the hub pins this key");
        assert_eq!(inside, StreamProtocol::Hub);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut trunk = Trunk::new(stream, Side::Sidecar);
            let Ok(beats) = trunk.open().await else { return };
            let mut heartbeats =
                std::pin::pin!(send_heartbeats(beats, trunk.last_received(), HEARTBEAT_INTERVAL));
            let mut links = JoinSet::new();
            loop {
                tokio::select! {
                    link = trunk.next() => match link {
                        Ok(link) => drop(links.spawn(async move {
                            let (mut reading, mut writing) = tokio::io::split(link);
                            let _ = tokio::io::copy(&mut reading, &mut writing).await;
                        })),
                        Err(_) => return,
                    },
                    _ = heartbeats.as_mut() => return,
                }
            }
        });
        Echo { tasks, relay: self.relay.clone() }
    }

    /// Opens a pipe and asserts that it carries a link.
    pub(crate) async fn attach(&self) -> Echo {
        let pipe = self.open().await.unwrap_or_else(|error| panic!("{error}"));
        let mut echo = self.echo(pipe).await;
        echo.assert_carries_a_link().await;
        echo
    }
}

impl Echo {
    /// Connects as a shim does, and asserts that what was sent comes back.
    pub(crate) async fn assert_carries_a_link(&mut self) {
        let sent: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        // Retried, as a shim does: the hub opens the socket when its pipe is up, and closes connections of the previous pipe.
        let exchange = async {
            loop {
                match echoed(&self.relay, &sent).await {
                    Ok(received) => break assert!(sent == received, "the bytes came back changed"),
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(PATIENCE, exchange).await.expect("the pipe carries a link");
    }

    /// Waits for the end of the pipe.
    pub(crate) async fn wait_for_end(mut self) {
        timeout(PATIENCE, self.tasks.join_next()).await.expect("the pipe ends");
    }

    pub(crate) fn is_open(&mut self) -> bool {
        self.tasks.try_join_next().is_none()
    }
}

/// Sends the bytes as a shim does, and returns as many received bytes.
async fn echoed(relay: &Path, sent: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut shim = UnixStream::connect(relay).await?;
    let mut received = vec![0; sent.len()];
    let (mut reading, mut writing) = shim.split();
    let (written, read) = tokio::join!(writing.write_all(sent), reading.read_exact(&mut received));
    written.and(read)?;
    Ok(received)
}

pub(crate) fn static_shim() -> ShimBinary {
    static SHIM: OnceLock<ShimBinary> = OnceLock::new();
    let read = || std::fs::read(built("COFFERDAM_SHIM_BIN", "cofferdam-shim")).expect("the shim is built");
    SHIM.get_or_init(|| shim_of(read())).clone()
}

pub(crate) fn shim_of(bytes: Vec<u8>) -> ShimBinary {
    let digest = cofferdam_base::text::hex(digest(&SHA256, &bytes).as_ref());
    ShimBinary { bytes: Bytes::from(bytes), digest }
}

fn uri(text: &str) -> Uri {
    text.parse().expect("the double's address is a URL")
}
