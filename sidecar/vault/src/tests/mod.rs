//! Sessions, their tokens and their revocation, with paused time and a fake Vault in this process.

mod fake;
mod revocation;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_secrets::{
    Lease, Origin, Requester, SecretProblem, SecretSpec, ShortValues, Source, SourceLimits, SourceRequest,
    VaultOrigin,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::api::Vault;
use crate::error::Kind;
use crate::session::SessionVault;
use crate::session_token::TokenOwner;
use crate::settings::{AuthSettings, Settings};
use crate::token::Token;
pub(crate) use fake::FakeVault;

/// A sidecar's access to a fake Vault, with a state directory of its own.
struct Sidecar {
    vault: Arc<FakeVault>,
    access: Arc<Access>,
    tasks: TaskTracker,
    directory: PathBuf,
}

impl Sidecar {
    fn start() -> Self {
        let directory =
            std::env::temp_dir().join(format!("cofferdam-vault-{}", cofferdam_base::random::hex::<8>()));
        std::fs::create_dir(&directory).unwrap();
        Self::start_with(Arc::default(), directory)
    }

    fn start_with(vault: Arc<FakeVault>, directory: PathBuf) -> Self {
        let token_file = directory.join("token");
        cofferdam_base::atomic_file::write_file(
            &directory,
            &token_file,
            fake::LOGIN_TOKEN.as_bytes(),
            cofferdam_base::atomic_file::Replace::Always,
        )
        .unwrap();
        let settings = Settings {
            address: http::Uri::from_static("http://127.0.0.1:8200"),
            namespace: None,
            ca_file: None,
            auth: AuthSettings::TokenFile { path: token_file },
            token_role: None,
        };
        let tasks = TaskTracker::new();
        let client = Vault::fake(Arc::clone(&vault));
        let access = Access::with_client(client, &settings, &directory, &Arc::default(), &tasks).unwrap();
        Self { vault, access, tasks, directory }
    }

    /// A session with one link, whose tokens may live this long.
    fn session(&self, lifetime: Duration) -> SessionVault {
        let owner = TokenOwner {
            session: "s1".into(),
            sandbox: "box".into(),
            grant: "team".into(),
            policies: vec!["readonly".into()],
            until: Instant::now() + lifetime,
        };
        let session = SessionVault::new(Arc::clone(&self.access), owner);
        session.enter();
        session
    }

    /// How many accessors are on disk.
    fn accessor_files(&self) -> usize {
        std::fs::read_dir(self.directory.join("vault")).unwrap().count()
    }

    /// Ends the sidecar; unfinished revocations stay unfinished.
    async fn stop(self) -> (Arc<FakeVault>, PathBuf) {
        self.access.end().await;
        self.tasks.close();
        timeout(Duration::from_secs(10), self.tasks.wait())
            .await
            .expect("every task ends soon after the stop");
        (Arc::clone(&self.vault), self.directory.clone())
    }

    fn clean_up(self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

async fn read(session: &SessionVault) -> Result<Lease, SecretProblem> {
    let spec = SecretSpec {
        name: "db".parse().unwrap(),
        origin: Origin::Vault(VaultOrigin::Generated {
            path: "database/creds/readonly".parse().unwrap(),
            write: None,
        }),
        public: Vec::new(),
        short: ShortValues::Refuse,
    };
    let limits = SourceLimits { bytes: 4096, exec_timeout: Duration::from_secs(1) };
    session
        .read(SourceRequest {
            spec: &spec,
            limits,
            requester: Requester::Caller,
            add_to_scrubbers: &|_, _| {},
        })
        .await
}

async fn read_many(session: &SessionVault, count: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for _ in 0..count {
        leases.push(read(session).await.unwrap());
    }
    leases
}

/// Waits up to an hour of the paused clock.
async fn until(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < Duration::from_secs(3600),
            "the condition does not become true within an hour"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

async fn sleep_seconds(time: u64) {
    sleep(Duration::from_secs(time)).await;
}

#[tokio::test(start_paused = true)]
async fn a_path_that_cannot_be_sent_is_not_reported_as_a_response_of_vault() {
    let fake = Arc::<FakeVault>::default();
    let vault = Vault::fake(Arc::clone(&fake));
    let token = Token::read(fake::LOGIN_TOKEN.as_bytes()).unwrap();
    let error = vault.read(&token, "database/../sys/seal").await.unwrap_err();
    let text = error.explained();
    assert!(text.contains("not a valid path in Vault; no request was sent"), "{text}");
    assert!(!text.contains("HTTP") && error.kind() == Kind::Invalid, "{text}");
    assert_eq!(fake.requests("database/../sys/seal").received, 0);
}
