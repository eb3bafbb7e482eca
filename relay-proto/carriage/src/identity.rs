//! A key pair, and the public key that identifies its holder.
//!
//! Must stay true: the private key is wiped when it is dropped, and nothing prints it.

use std::fmt;
use std::sync::Arc;

use relay_proto::key::PublicKey;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

/// An Ed25519 key pair.
#[derive(Clone)]
pub struct Identity {
    pkcs8: Zeroizing<Vec<u8>>,
    public: PublicKey,
    pub(crate) certified: Arc<CertifiedKey>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot make a key: the kernel gave no random bytes; is there a /dev/urandom or getrandom here?")]
    NoRandomness,
    #[error("cannot read a key: it is not an Ed25519 key in PKCS#8; remove its file, and a new key is made")]
    NotAKey,
}

impl Identity {
    pub fn generate() -> Result<Self, IdentityError> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| IdentityError::NoRandomness)?;
        Self::from_pkcs8(document.as_ref())
    }

    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, IdentityError> {
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8).map_err(|_| IdentityError::NotAKey)?;
        let bytes = pair.public_key().as_ref().try_into().map_err(|_| IdentityError::NotAKey)?;
        let public = PublicKey::from_bytes(bytes);
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).map_err(|_| IdentityError::NotAKey)?;
        let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(encode_spki(&public))], signer));
        Ok(Self { pkcs8: Zeroizing::new(pkcs8.to_vec()), public, certified })
    }

    /// Includes the private key: to be stored in a file that only its owner can read.
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        self.pkcs8.clone()
    }

    /// The key that identifies this side, which peers may pin.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

/// The key as a SubjectPublicKeyInfo, which is what TLS carries.
fn encode_spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], key.as_bytes()].concat()
}

/// The reverse of [`encode_spki`]. Accepts no other encoding.
pub(crate) fn decode_spki(encoded: &[u8]) -> Option<PublicKey> {
    let bytes = encoded.strip_prefix(&SPKI_PREFIX)?;
    bytes.try_into().ok().map(PublicKey::from_bytes)
}

/// The DER of a SubjectPublicKeyInfo up to the key: the algorithm Ed25519 (1.3.101.112), and a bit string of 256 bits.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_after_encoding_and_decoding() {
        let first = Identity::generate().unwrap();
        let again = Identity::from_pkcs8(&first.to_pkcs8()).unwrap();
        assert_eq!(first.public(), again.public());
        assert_ne!(first.public(), Identity::generate().unwrap().public());
    }

    #[test]
    fn invalid_keys_are_refused() {
        let key = Identity::generate().unwrap().to_pkcs8();
        for wrong in [&b""[..], b"key", &key[..key.len() - 1], &key[1..]] {
            assert_eq!(Identity::from_pkcs8(wrong).err(), Some(IdentityError::NotAKey));
        }
    }

    #[test]
    fn debug_prints_the_public_key_only() {
        let identity = Identity::generate().unwrap();
        assert_eq!(format!("{identity:?}"), format!("Identity({})", identity.public()));
    }

    #[test]
    fn a_public_key_has_one_encoding() {
        let key = Identity::generate().unwrap().public();
        let bytes = encode_spki(&key);
        assert_eq!(decode_spki(&bytes), Some(key));
        assert_eq!(decode_spki(&bytes[..43]), None);
        assert_eq!(decode_spki(&[&bytes[..], &[0]].concat()), None);
        for place in 0..SPKI_PREFIX.len() {
            let mut other = bytes.clone();
            other[place] ^= 1;
            assert_eq!(decode_spki(&other), None);
        }
    }

    #[test]
    fn the_encoding_is_that_of_the_tls_library() {
        let identity = Identity::generate().unwrap();
        let theirs = identity.certified.key.public_key().expect("ring provides the public key");
        assert_eq!(theirs.as_ref(), encode_spki(&identity.public()));
    }
}
