//! Which keys are accepted: one pinned key, or any.
//!
//! Must stay true: a key is accepted only if its holder signed this handshake with it.

use std::sync::Arc;

use relay_proto::key::PublicKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
    SignatureScheme,
};

use super::provider;
use crate::identity::decoded;

/// Accepts this key only, as the sidecar's.
#[derive(Debug)]
pub(super) struct Pinned {
    pin: PublicKey,
}

/// Accepts any Ed25519 key, as the sandbox's: what it may do is decided after the handshake.
#[derive(Debug)]
pub(super) struct AnyKey(());

/// The peer has another key.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the key {presented} is not the pinned {pinned}")]
pub(super) struct WrongPin {
    pub(super) presented: PublicKey,
    pub(super) pinned: PublicKey,
}

impl Pinned {
    pub(super) fn new(pin: PublicKey) -> Self {
        Self { pin }
    }
}

impl AnyKey {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = decoded(end_entity).ok_or(CertificateError::BadEncoding)?;
        if presented != self.pin {
            let wrong = WrongPin { presented, pinned: self.pin };
            return Err(CertificateError::Other(OtherError(Arc::new(wrong))).into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(never_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        decoded(end_entity).ok_or(CertificateError::BadEncoding)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(never_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn verify(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
    verify_tls13_signature_with_raw_key(
        message,
        &key,
        signature,
        &provider().signature_verification_algorithms,
    )
}

/// Neither side offers it.
fn never_tls12() -> Error {
    PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into()
}
