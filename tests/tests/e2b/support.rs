//! A double with one sandbox, a client of it, and scripts that replace the shim.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::{Dialer, Trust};
use cofferdam_platforms::e2b::E2b;
use cofferdam_platforms::{
    ApiKey, HubSetup, Pipe, PlatformError, PlatformKind, PlatformSettings, Progress, SandboxId, ShimBinary,
    WhenSuspended,
};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::e2b_double::{API_KEY, E2bDouble, SandboxUser, Side};
use cofferdam_tests::e2b_platform::E2bPlatform;
use cofferdam_tests::encodings;
use http::{HeaderValue, Uri};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// A double with one running sandbox, and a client of it.
pub(crate) struct Scene {
    pub(crate) double: E2bDouble,
    pub(crate) id: SandboxId,
    pub(crate) client: E2b,
    pub(crate) steps: Arc<Mutex<Vec<Progress>>>,
}

/// Used instead of the sidecar's public key.
pub(crate) const PIN: &str = "the-pin-of-this-sidecar";
/// Sends first bytes as a hub does, then echoes its input.
pub(crate) const ECHO: &str = "#!/bin/sh\nprintf 'hello '\nexec cat\n";

impl Scene {
    #[track_caller]
    pub(crate) fn new() -> Option<Self> {
        Self::of(SandboxUser::Usual)
    }

    #[track_caller]
    pub(crate) fn of(user: SandboxUser) -> Option<Self> {
        let double = E2bDouble::start()?;
        let id = double.create(user).parse().expect("the double's ids are valid");
        let client = client(&double.api_url(), Some(&double.sandbox_url()), API_KEY);
        Some(Self { double, id, client, steps: Arc::default() })
    }

    pub(crate) fn box_id(&self) -> &str {
        self.id.as_str()
    }

    pub(crate) async fn open(&self, setup: &HubSetup) -> Result<Pipe, PlatformError> {
        self.open_with(setup, WhenSuspended::Refuse).await
    }

    pub(crate) async fn open_with(
        &self,
        setup: &HubSetup,
        suspended: WhenSuspended,
    ) -> Result<Pipe, PlatformError> {
        open_pipe(&self.client, &self.id, suspended, setup, &self.steps).await
    }

    /// The error of an attempt that must fail.
    pub(crate) async fn refused(&self, setup: &HubSetup) -> PlatformError {
        error_of(self.open(setup).await)
    }

    /// The steps that were reported since the last call.
    pub(crate) fn steps(&self) -> Vec<Progress> {
        std::mem::take(&mut self.steps.lock().expect("no test panics while it records a step"))
    }

    /// How often the shim was uploaded.
    pub(crate) fn uploads(&self) -> usize {
        let is_upload = |line: &String| line.starts_with("POST /files?") && line.contains("cofferdam-shim-");
        self.double.heads().iter().filter(|head| is_upload(&head.line)).count()
    }

    /// Asserts that the key and the tokens are only in the headers for them, and not in the platform's log.
    #[track_caller]
    pub(crate) fn assert_secrets_only_in_headers(&self, tokens: &[String]) {
        let log = self.double.log().join("\n");
        for head in self.double.heads() {
            let mut headers = head.headers.clone();
            match head.side {
                Side::Control => drop(headers.remove("x-api-key")),
                Side::Envd => drop(headers.remove("x-access-token")),
            }
            let seen = format!("{}\n{headers:?}", head.line);
            for secret in tokens.iter().map(String::as_str).chain([API_KEY]) {
                encodings::assert_absent("the head of a request", seen.as_bytes(), secret);
            }
        }
        for secret in tokens.iter().map(String::as_str).chain([API_KEY, "top-secret"]) {
            encodings::assert_absent("the platform's log", log.as_bytes(), secret);
        }
    }
}

/// One running sandbox and a client of it, on the double or on the real platform that `COFFERDAM_E2B_URL` names.
pub(crate) struct AnywhereScene {
    pub(crate) platform: E2bPlatform,
    pub(crate) sandbox: String,
    pub(crate) client: E2b,
    pub(crate) id: SandboxId,
    steps: Mutex<Vec<Progress>>,
}

impl AnywhereScene {
    #[track_caller]
    pub(crate) fn new() -> Option<Self> {
        let platform = E2bPlatform::start()?;
        let sandbox = platform.create();
        let id = sandbox.parse().expect("the platform's ids are valid");
        let client = client(platform.api_url(), platform.sandbox_url(), platform.api_key());
        Some(Self { platform, sandbox, client, id, steps: Mutex::default() })
    }

    pub(crate) async fn open(&self, setup: &HubSetup) -> Result<Pipe, PlatformError> {
        open_pipe(&self.client, &self.id, WhenSuspended::Refuse, setup, &self.steps).await
    }

    /// The error of an attempt that must fail.
    pub(crate) async fn refused(&self, setup: &HubSetup) -> PlatformError {
        error_of(self.open(setup).await)
    }

    /// The steps that were reported since the last call.
    pub(crate) fn steps(&self) -> Vec<Progress> {
        std::mem::take(&mut self.steps.lock().expect("no test panics while it records a step"))
    }
}

/// Opens a pipe and records the steps.
async fn open_pipe(
    client: &E2b,
    id: &SandboxId,
    suspended: WhenSuspended,
    setup: &HubSetup,
    steps: &Mutex<Vec<Progress>>,
) -> Result<Pipe, PlatformError> {
    let progress = |step| steps.lock().expect("no test panics while it records a step").push(step);
    timeout(PATIENCE, client.open(id, suspended, setup, &progress)).await.expect("open ends")
}

fn error_of(opened: Result<Pipe, PlatformError>) -> PlatformError {
    match opened {
        Ok(_) => panic!("the attempt must fail"),
        Err(error) => error,
    }
}

pub(crate) fn client(api: &str, sandbox: Option<&str>, key: &str) -> E2b {
    let settings =
        PlatformSettings { kind: PlatformKind::E2b, api_url: Some(uri(api)), sandbox_url: sandbox.map(uri) };
    let key = ApiKey::new(HeaderValue::from_str(key).expect("a key is a header"));
    let client = E2b::new(settings, key, Dialer::trusting(Trust::System), &Arc::default());
    client.with_keep_alive(Duration::from_secs(1))
}

/// A set-up with this shim.
pub(crate) fn setup(shim: impl Into<Bytes>) -> HubSetup {
    let bytes = shim.into();
    let digest = sha256(&bytes);
    HubSetup {
        shim: Arc::new(move |_| Ok(ShimBinary { bytes: bytes.clone(), digest: digest.clone() })),
        pin: PIN.to_owned(),
        harness: None,
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) async fn write(pipe: &mut Pipe, bytes: &[u8]) {
    timeout(PATIENCE, pipe.write_all(bytes))
        .await
        .expect("the pipe accepts the bytes")
        .expect("the pipe works");
}

/// Reads exactly `length` bytes.
pub(crate) async fn read(pipe: &mut Pipe, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let got = timeout(PATIENCE, pipe.read_exact(&mut bytes)).await.expect("it arrives");
    got.expect("the pipe works");
    bytes
}

/// Reads to the end of a pipe that is broken.
pub(crate) async fn read_to_end(pipe: &mut Pipe) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, pipe.read_to_end(&mut bytes)).await.expect("it ends").expect("the end is not an error");
    bytes
}

fn uri(text: &str) -> Uri {
    text.parse().expect("a test's address is valid")
}
