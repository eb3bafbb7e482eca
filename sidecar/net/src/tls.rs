//! TLS of outgoing connections: certificate authorities, client certificates, the rustls configuration.
//!
//! What must stay true: certificates are always verified, against the given authorities alone; `ring` is the only
//! provider; the only protocol offered is HTTP/1.1.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;

/// Where distributions keep their bundle: Debian, Ubuntu; Fedora, RHEL (twice); openSUSE; Alpine.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How a [`Dialer`](crate::Dialer) verifies certificates.
#[derive(Clone)]
pub enum Trust {
    Given(Arc<ClientConfig>),
    /// The system's authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    System,
}

/// A client certificate and its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// What is missing in a PEM text.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PemError {
    #[error("no certificate in PEM form")]
    NoCertificate,
    #[error("no private key in PEM form")]
    NoKey,
}

impl Trust {
    pub(crate) async fn client_config(&self) -> io::Result<Arc<ClientConfig>> {
        /// There are hundreds of certificates, so they are read once, for the first connection that needs them.
        static SYSTEM: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();
        match self {
            Self::Given(config) => Ok(config.clone()),
            Self::System => SYSTEM
                .get_or_try_init(|| async {
                    let roots = tokio::task::spawn_blocking(environment_roots)
                        .await
                        .map_err(io::Error::other)
                        .and_then(|roots| roots)?;
                    client_config(roots, None).map_err(io::Error::other)
                })
                .await
                .cloned(),
        }
    }
}

impl Identity {
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, PemError> {
        let chain = read_certificates(certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| PemError::NoKey)?;
        Ok(Self { chain, key })
    }
}

/// The rustls configuration of a client. Fails if the certificate and the key of `identity` do not match.
pub fn client_config(
    roots: impl Into<Arc<RootCertStore>>,
    identity: Option<Identity>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The authorities in a PEM text, and no others.
pub fn roots_from_pem(pem: &[u8]) -> Result<RootCertStore, PemError> {
    roots_of(read_certificates(pem)?).ok_or(PemError::NoCertificate)
}

/// The authorities of the distribution's bundle. Environment variables are not read: a variable must not be able to make
/// the sidecar trust another Vault. `None` if there is no bundle.
pub fn distribution_roots() -> Option<RootCertStore> {
    let bundle = SYSTEM_BUNDLES.iter().map(Path::new).find(|bundle| bundle.is_file())?;
    roots_of(rustls_native_certs::load_certs_from_paths(Some(bundle), None).certs)
}

fn environment_roots() -> io::Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let error = found.errors.into_iter().next();
    roots_of(found.certs).ok_or_else(|| match error {
        Some(error) => io::Error::other(error),
        None => io::Error::new(io::ErrorKind::NotFound, "no certificate was found"),
    })
}

/// A store of those certificates that can be parsed; `None` if none can. One bad certificate does not disable the others.
fn roots_of(certificates: Vec<CertificateDer<'static>>) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    (added > 0).then_some(roots)
}

fn read_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(PemError::NoCertificate),
    }
}
