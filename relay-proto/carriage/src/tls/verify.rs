//! Verifiers of the peer's key: one accepts the pinned key only, one accepts any key.
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
use crate::identity::decode_spki;

/// The client's verifier: accepts only this key of the sidecar.
#[derive(Debug)]
pub(super) struct PinnedKeyVerifier {
    pin: PublicKey,
}

/// The server's verifier: accepts any Ed25519 key of a sandbox. What the sandbox may do is decided after the handshake.
#[derive(Debug)]
pub(super) struct AnyKeyVerifier(());

/// The peer has another key than the pinned one.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the key {presented} is not the pinned {pinned}")]
pub(super) struct WrongPin {
    pub(super) presented: PublicKey,
    pub(super) pinned: PublicKey,
}

impl PinnedKeyVerifier {
    pub(super) fn new(pin: PublicKey) -> Self {
        Self { pin }
    }
}

impl AnyKeyVerifier {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl ServerCertVerifier for PinnedKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = decode_spki(end_entity).ok_or(CertificateError::BadEncoding)?;
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
        verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        decode_spki(end_entity).ok_or(CertificateError::BadEncoding)?;
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
        verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn verify_signature(
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

/// The error for TLS 1.2, which neither side offers.
fn never_tls12() -> Error {
    PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into()
}
