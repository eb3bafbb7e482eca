//! Which certificate authorities are trusted, and the sidecar's own client certificate, read from files.
//!
//! What must stay true: with a `ca-file` nothing else is trusted; without one the distribution's bundle is.
//! `SSL_CERT_FILE` and the like are not read: an environment variable must not be able to make the sidecar trust
//! another Vault.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_net::{Identity, PemError, distribution_roots, roots_from_pem};
use cofferdam_secrets::{FileContent, SourceError, read_file};
use rustls::RootCertStore;
use zeroize::Zeroizing;

/// The largest public bundles have some 250 KB.
const MAX_PEM_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("`{}` has no certificate in PEM format", .0.display())]
    NoCertificate(PathBuf),
    #[error("`{}` has no private key in PEM format", .0.display())]
    NoKey(PathBuf),
    #[error("this system has no bundle of certificate authorities: set `ca-file`")]
    NoRoots,
    #[error("the certificate and the key do not belong together")]
    Pair(#[source] rustls::Error),
    #[error("cannot read `{}`", file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: SourceError,
    },
}

/// Reads the certificate authorities of the file, or those of the distribution.
pub(crate) fn roots(ca_file: Option<&Path>) -> Result<Arc<RootCertStore>, TrustError> {
    let roots = match ca_file {
        Some(file) => roots_from_pem(&pem(file, FileContent::Public)?)
            .map_err(|_| TrustError::NoCertificate(file.to_owned()))?,
        None => distribution_roots().ok_or(TrustError::NoRoots)?,
    };
    Ok(Arc::new(roots))
}

/// Reads the file of the client certificate's key. Logs a warning if every user of the host can read it.
pub(crate) fn read_private_key(file: &Path) -> Result<Zeroizing<Vec<u8>>, TrustError> {
    pem(file, FileContent::Secret)
}

/// Reads the client certificate, to which the content of this key file belongs.
pub(crate) fn read_identity(
    certificate_file: &Path,
    (key_file, key): (&Path, &[u8]),
) -> Result<Identity, TrustError> {
    let certificates = pem(certificate_file, FileContent::Public)?;
    Identity::from_pem(&certificates, key).map_err(|error| match error {
        PemError::NoCertificate => TrustError::NoCertificate(certificate_file.to_owned()),
        PemError::NoKey => TrustError::NoKey(key_file.to_owned()),
    })
}

fn pem(file: &Path, content: FileContent) -> Result<Zeroizing<Vec<u8>>, TrustError> {
    read_file(file, MAX_PEM_BYTES, content)
        .map_err(|source| TrustError::Read { file: file.to_owned(), source })
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
    fn only_the_configured_authority_is_trusted() {
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
