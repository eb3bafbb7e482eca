//! Clients, logins and files of these tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cofferdam_tests::deadline::{Deadline, PATIENCE};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::vault::app_role_with;
pub(crate) use cofferdam_tests::vault::write_file;
pub(crate) use cofferdam_tests::vault_fault_proxy::second_address;
pub(crate) use cofferdam_tests::vault_logins::secret_id;
use cofferdam_vault::login::{Login, LoginRecords, LoginToken, Method};
use cofferdam_vault::{ClientSettings, Token, Vault, VaultError};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A login that ends with the test.
pub(crate) struct TestLogin {
    pub(crate) login: Login,
    _stop: DropGuard,
}

pub(crate) fn client(server: &OpenBao) -> Vault {
    client_at(&server.address())
}

pub(crate) fn client_at(address: &str) -> Vault {
    Vault::new(&ClientSettings {
        address: address.parse().expect("an address"),
        namespace: None,
        ca_file: None,
    })
    .expect("a client")
}

pub(crate) fn client_over_tls(server: &OpenBao, ca_file: Option<&Path>) -> Vault {
    let address = server.tls_address().parse().expect("an address");
    Vault::new(&ClientSettings { address, namespace: None, ca_file: ca_file.map(Path::to_owned) })
        .expect("a client")
}

pub(crate) fn token(text: &str) -> Token {
    Token::read(text.as_bytes()).expect("a token")
}

pub(crate) fn root(server: &OpenBao) -> Token {
    token(&server.root_token)
}

/// The value of a token, taken from the scrubber's needle, the only way to read it.
pub(crate) fn value(token: &Token) -> String {
    String::from_utf8(token.needle("test").value.to_vec()).expect("tokens are text")
}

pub(crate) fn log_in(vault: Vault, method: Method) -> TestLogin {
    let stop = CancellationToken::new();
    let login =
        Login::start(vault, method, LoginRecords::default(), Arc::default(), &TaskTracker::new(), &stop);
    TestLogin { login, _stop: stop.drop_guard() }
}

impl TestLogin {
    /// Waits for the token with this number or a later one.
    pub(crate) async fn wait_for_token(&self, token_number: u64) -> Arc<LoginToken> {
        let mut changed = self.login.token_numbers();
        let reached = changed.wait_for(|current| *current >= token_number);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached
            .unwrap_or_else(|_| panic!("no token with number {token_number} or later: {:?}", self.login))
            .expect("the login is there");
        self.login.current().await.expect("it was just published")
    }
}

/// Creates an AppRole whose tokens have these lifetimes; returns the file with its role-id.
pub(crate) fn create_app_role(server: &OpenBao, ttl: &str, max_ttl: &str) -> PathBuf {
    cofferdam_tests::vault_logins::create_app_role(
        server,
        app_role_with(&["default"], ttl).token_max_ttl(max_ttl),
    )
}

pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Deadline::after(PATIENCE);
    while !condition().await {
        assert!(!deadline.is_over(), "not in time: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// An error in all its printable forms, for a search.
pub(crate) fn explained(error: &VaultError) -> String {
    format!("{error} | {error:?} | {error:#?} | {} | {}", error.explained(), error.problem)
}

/// A listener that responds to every request with the same bytes and closes.
pub(crate) struct FakeVault {
    endpoint: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl FakeVault {
    pub(crate) fn of(response: impl Into<Vec<u8>>) -> Self {
        let response = response.into();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let endpoint = listener.local_addr().expect("a bound socket has an address");
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = [0; 64 * 1024];
                // One read is enough: the response does not depend on the request.
                let _ = stream.read(&mut head);
                count.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(&response);
            }
        });
        Self { endpoint, requests }
    }

    /// Responds with this status, these header lines and this JSON body.
    pub(crate) fn status(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        Self::of(format!("HTTP/1.1 {status} Fixed\r\ncontent-length: {length}\r\n{headers}\r\n{body}"))
    }

    pub(crate) fn vault(&self) -> Vault {
        client_at(&self.address())
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.endpoint)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}
