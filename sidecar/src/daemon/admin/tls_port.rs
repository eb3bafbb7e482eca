//! The port of `admin.tls`: the admin API for orchestrators on other hosts.
//!
//! What must stay true: no request is served without TLS; a connection holds one of few slots until its
//! response is sent or has become a stream; when all slots are in use, the oldest connection whose request is not
//! authenticated yet loses its slot to the next; this port has its own slots, so that a flood here does not block the
//! command line.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::text::error_chain;
use cofferdam_scrub::OwnCredentials;
use relay_proto::address::HostPort;
use ring::digest::{SHA256, digest};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::caller::{ClientCertificate, Peer};
use super::{AdminState, connection};
use crate::config::AdminTls;
use crate::daemon::handshake_slots::{HandshakeSlot, HandshakeSlots};
use crate::daemon::state::Daemon;

/// The port of `admin.tls`, bound.
pub(crate) struct AdminTlsPort {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminTlsError {
    #[error(
        "cannot listen on {address} for `admin.tls`: is the port in use, or does the address not belong to this host?"
    )]
    Bind {
        address: HostPort,
        #[source]
        source: io::Error,
    },
    #[error("cannot read `{path}`, the file of `{setting}`")]
    File {
        setting: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{path}`, the file of `{setting}`, contains no {what} in PEM format")]
    Pem { setting: &'static str, path: PathBuf, what: &'static str },
    #[error(
        "cannot use the certificate of `admin.cert-file`: does the key of `admin.key-file` belong to it?"
    )]
    Certificate(#[from] rustls::Error),
    #[error("cannot use the authorities of `admin.client-ca-file`")]
    Authorities(#[from] VerifierBuilderError),
}

/// How many connections may await a request or have one in progress. A connection that has become a stream of events or a
/// pipe holds no slot.
const SLOTS: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

impl AdminTlsPort {
    pub(crate) async fn bind(settings: &AdminTls, own: &OwnCredentials) -> Result<Self, AdminTlsError> {
        let config = server_config(settings, own)?;
        let bound = TcpListener::bind(settings.listen.to_string()).await;
        let listener =
            bound.map_err(|source| AdminTlsError::Bind { address: settings.listen.clone(), source })?;
        Ok(Self { listener, config })
    }

    /// Serves requests until the sidecar stops.
    pub(crate) async fn run(self, daemon: Arc<Daemon>) {
        let slots = HandshakeSlots::new(SLOTS, daemon.stop.clone());
        daemon.admin.certificate.store(Some(self.config));
        loop {
            match daemon.stop.run_until_cancelled(self.listener.accept()).await {
                None => return,
                Some(Ok((stream, address))) => {
                    let Some(slot) = daemon.stop.run_until_cancelled(slots.take()).await else { return };
                    let Some(config) = daemon.admin.certificate.load_full() else { return };
                    let (daemon, acceptor) = (Arc::clone(&daemon), TlsAcceptor::from(config));
                    daemon.context.tasks.clone().spawn(serve(daemon, acceptor, stream, address.ip(), slot));
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "cannot accept a connection on the port of `admin.tls`");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl AdminState {
    /// Reads the files of `admin.tls` again, if the port is open. If they cannot be used, the error is logged, and the
    /// previous certificate stays in use.
    pub(in crate::daemon) fn reload_certificate(&self, settings: &AdminTls, own: &OwnCredentials) {
        if self.certificate.load().is_none() {
            return;
        }
        match server_config(settings, own) {
            Ok(config) => self.certificate.store(Some(config)),
            Err(error) => {
                let error = error_chain(&error);
                tracing::error!(
                    error,
                    "the certificate of `admin.tls` was not read again: the previous certificate stays in use"
                );
            }
        }
    }
}

async fn serve(
    daemon: Arc<Daemon>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: IpAddr,
    slot: HandshakeSlot,
) {
    // Events and the bytes of pipes must not wait for further bytes.
    let _ = stream.set_nodelay(true);
    // Boxed, because the future of the handshake is large and would otherwise enlarge the task of the whole connection.
    let accepted = Box::pin(timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)));
    // A client that does not finish the TLS handshake in time is disconnected.
    let Ok(Ok(Ok(stream))) = slot.run_unless_lost(accepted).await else { return };
    let certificate = match stream.get_ref().1.peer_certificates() {
        Some([certificate, ..]) => {
            let sha256 = digest(&SHA256, certificate).as_ref().try_into();
            ClientCertificate::Verified { sha256: sha256.expect("SHA-256 has this length") }
        }
        _ => ClientCertificate::Absent,
    };
    connection::serve(daemon, stream, Peer::Tls { address, certificate }, slot).await;
}

/// Checks that the files of `admin.tls` can be read and belong together.
pub(crate) fn check_files(settings: &AdminTls) -> Result<(), AdminTlsError> {
    server_config(settings, &OwnCredentials::default()).map(drop)
}

/// The key is held in `own`.
fn server_config(settings: &AdminTls, own: &OwnCredentials) -> Result<Arc<ServerConfig>, AdminTlsError> {
    let chain = certificates("admin.cert-file", &settings.cert_file)?;
    let key = private_key("admin.key-file", &settings.key_file, own)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions");
    let builder = match &settings.client_ca_file {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(certificates("admin.client-ca-file", path)?);
            if added == 0 {
                return Err(pem_error("admin.client-ca-file", path, "certificate"));
            }
            // A client without a certificate needs a token.
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots.into(), provider).allow_unauthenticated();
            builder.with_client_cert_verifier(verifier.build()?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // No resumption: each connection proves its certificate again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, AdminTlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(setting, path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(pem_error(setting, path, "certificate")),
    }
}

fn private_key(
    setting: &'static str,
    path: &Path,
    own: &OwnCredentials,
) -> Result<PrivateKeyDer<'static>, AdminTlsError> {
    let bytes = zeroize::Zeroizing::new(read(setting, path)?);
    own.hold_private_keys("admin.key", &bytes);
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| pem_error(setting, path, "private key"))
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, AdminTlsError> {
    std::fs::read(path).map_err(|source| AdminTlsError::File { setting, path: path.into(), source })
}

fn pem_error(setting: &'static str, path: &Path, what: &'static str) -> AdminTlsError {
    AdminTlsError::Pem { setting, path: path.into(), what }
}
