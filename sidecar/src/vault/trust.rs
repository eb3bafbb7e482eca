//! Which certificate authorities are believed, and who we are by certificate.
//!
//! What must stay true: with a `ca-file` nothing else is trusted; without one the system's bundle is, at the places where
//! distributions keep it. `SSL_CERT_FILE` and its like are not looked at: whoever can set a variable of the sidecar
//! cannot make it trust another Vault.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use zeroize::Zeroizing;

use crate::secret::{Readers, SourceError, read_file};

/// A bundle of every authority of the world has some 250 KB.
const MAX_PEM: usize = 4 * 1024 * 1024;

/// Debian and its children; Fedora, RHEL; openSUSE; Alpine.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A client certificate and its key.
pub(super) struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("`{}` holds no certificate in PEM form", .0.display())]
    NoCertificate(PathBuf),
    #[error("`{}` holds no private key in PEM form", .0.display())]
    NoKey(PathBuf),
    #[error("this system has no bundle of certificate authorities: give a `ca-file`")]
    NoRoots,
    #[error("the certificate and the key do not belong together")]
    Pair(#[source] rustls::Error),
    #[error("read `{}`", file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: SourceError,
    },
}

/// Reads the authorities: those of the file, or the system's.
pub(super) fn roots(ca_file: Option<&Path>) -> Result<Arc<RootCertStore>, TrustError> {
    let mut roots = RootCertStore::empty();
    let certificates = match ca_file {
        Some(file) => certificates(file)?,
        None => {
            let bundle = SYSTEM_BUNDLES.iter().map(Path::new).find(|bundle| bundle.is_file());
            rustls_native_certs::load_certs_from_paths(Some(bundle.ok_or(TrustError::NoRoots)?), None).certs
        }
    };
    // One odd certificate in a system's store does not spoil the others.
    let (added, _) = roots.add_parsable_certificates(certificates);
    match (added, ca_file) {
        (0, Some(file)) => Err(TrustError::NoCertificate(file.to_owned())),
        (0, None) => Err(TrustError::NoRoots),
        _ => Ok(Arc::new(roots)),
    }
}

pub(super) fn configuration(
    roots: Arc<RootCertStore>,
    identity: Option<Identity>,
) -> Result<Arc<ClientConfig>, TrustError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the default versions")
        .with_root_certificates(roots);
    let mut configuration = match identity {
        Some(Identity { chain, key }) => {
            builder.with_client_auth_cert(chain, key).map_err(TrustError::Pair)?
        }
        None => builder.with_no_client_auth(),
    };
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(configuration))
}

impl Identity {
    pub(super) fn read(certificate_file: &Path, key_file: &Path) -> Result<Self, TrustError> {
        let chain = certificates(certificate_file)?;
        let pem = pem(key_file, Readers::Few)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| TrustError::NoKey(key_file.to_owned()))?;
        Ok(Self { chain, key })
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let pem = pem(file, Readers::Anybody)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TrustError::NoCertificate(file.to_owned())),
    }
}

fn pem(file: &Path, readers: Readers) -> Result<Zeroizing<Vec<u8>>, TrustError> {
    read_file(file, MAX_PEM, readers).map_err(|source| TrustError::Read { file: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBnzCCAUWgAwIBAgIUfLOB/74U2pG47aCIWq/tAEXVMOIwCgYIKoZIzj0EAwIw
JDEiMCAGA1UEAwwZYW4gYXV0aG9yaXR5IG9mIHRoZSB0ZXN0czAgFw0yNjExMTYx
MDMyMDdaGA8yMTI2MTAyMzEwMzIwN1owJDEiMCAGA1UEAwwZYW4gYXV0aG9yaXR5
IG9mIHRoZSB0ZXN0czBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNvbSrT7Bwkb
/qUJw4od2mV1y9ZJ23Se6qdZTzu+7f3wFsMNUtuY/5x1cfHp1vB4k03dRsGAyo/I
XfStzUutPASjUzBRMB0GA1UdDgQWBBTYapYmx8c9qZq8cWUg1+l9g+tUUTAfBgNV
HSMEGDAWgBTYapYmx8c9qZq8cWUg1+l9g+tUUTAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCIBjvr8uyygm9WsvpMQqyWVFxTmhwC9BxNskLKoAAVQ4m
AiEAhrwjaUTQv8Sq7qFtR8+JHqxyAjWVeoNzeVQmSVuOIOo=
-----END CERTIFICATE-----
";

    #[test]
    fn a_given_authority_is_the_only_one() {
        let directory = std::env::temp_dir().join(format!("cofferdam-trust-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (good, empty) = (directory.join("ca.pem"), directory.join("empty.pem"));
        std::fs::write(&good, AUTHORITY).unwrap();
        std::fs::write(&empty, "").unwrap();
        let trusted = roots(Some(&good)).unwrap().len();
        let refused = [roots(Some(&empty)), roots(Some(&directory)), roots(Some(&directory.join("none")))];
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(trusted, 1);
        assert!(refused.iter().all(Result::is_err));
    }
}
