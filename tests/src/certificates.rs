//! Certificate authorities for tests, and the certificates that they sign, as PEM files.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::encodings::base64;

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    #[expect(clippy::new_without_default, reason = "each call makes another authority")]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        let key = KeyPair::generate().expect("a key can be generated");
        let certificate = params.self_signed(&key).expect("a key signs its own certificate");
        Self { pem: pem("CERTIFICATE", certificate.der()), issuer: Issuer::new(params, key) }
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate of a server with this name or address.
    pub fn server(&self, name: &str) -> Certified {
        self.sign(name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate of a client with this name.
    pub fn client(&self, name: &str) -> Certified {
        self.sign(name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Writes the authority's own certificate to a file.
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        write(directory, &format!("{name}.pem"), &self.pem)
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Certified {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("the name is valid");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key can be generated");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority signs");
        Certified {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", &key.serialize_der()),
        }
    }
}

impl Certified {
    /// Writes the certificate and the key to files.
    pub fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = write(directory, &format!("{name}.crt"), &self.certificate);
        (certificate, write(directory, &format!("{name}.key"), &self.key))
    }
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("a file can be written");
    path
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}
