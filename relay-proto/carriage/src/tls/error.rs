//! Failures of a TLS handshake, distinguished by what to do about them.

use std::io;

use relay_proto::key::PublicKey;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use super::verify::WrongPin;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("the peer closed the connection during the TLS handshake; see its log")]
    Closed,
    #[error("the connection failed during the TLS handshake: {0}")]
    Io(#[source] io::Error),
    /// On the sidecar's side: the sandbox has another key pinned.
    #[error(
        "the peer expects another key than this one: it was enrolled with another sidecar, or the sidecar's key has changed \
         since; enrol the sandbox again"
    )]
    KeyRefused,
    #[error(
        "the peer speaks TLS, but not the relay protocol in it; is this the port that `relay.advertise` names, and \
         does a proxy in between terminate TLS? (then use a `wss://` address)"
    )]
    NotARelay,
    #[error("the peer does not speak TLS; is this the port that `relay.advertise` names?")]
    NotTls,
    #[error(
        "the peer speaks no TLS newer than 1.2, and a link needs 1.3; does a proxy in between terminate TLS? \
         (then use a `wss://` address through it, or let it pass TLS through)"
    )]
    OlderTls,
    #[error("the peer speaks no TLS newer than 1.1; enable TLS 1.2 or 1.3 in the proxy that terminates it")]
    OlderOuterTls,
    #[error(
        "the peer refused the TLS handshake; enable TLS 1.3, or TLS 1.2 with a cipher suite that has ECDHE and AES-GCM or \
         ChaCha20, in the proxy that terminates it"
    )]
    OuterRefused,
    /// On the sidecar's side of a pipe: the versions of the application protocol differ.
    #[error(
        "the hub or shim in the sandbox speaks version {theirs} of the relay protocol, the sidecar speaks {ours}; {}",
        upgrade_advice(*.ours, *.theirs)
    )]
    OtherVersion { ours: u16, theirs: u16 },
    #[error("the peer violated the TLS protocol: {0}; is this the port that `relay.advertise` names?")]
    Protocol(#[source] Error),
    #[error("the peer refused the TLS handshake ({0}); are shim and sidecar of the same version?")]
    Refused(String),
    #[error(
        "the peer has the key {presented}, but {pinned} is pinned: it is another sidecar, or an interception; \
         compare with `cofferdam key` on the host, and enrol this sandbox afresh if the sidecar's key is new"
    )]
    WrongPin { presented: PublicKey, pinned: PublicKey },
}

fn upgrade_advice(ours: u16, theirs: u16) -> &'static str {
    match theirs > ours {
        true => "the sidecar on the host is older: upgrade it",
        false => "the shim in the sandbox is older: upgrade it",
    }
}

impl TlsError {
    pub(crate) fn from_io(error: io::Error) -> Self {
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return Self::from_tls(error.clone());
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }

    /// An error of the TLS around a WebSocket, which proves no key and may be older than that of a link.
    pub(crate) fn from_outer_io(error: io::Error) -> Self {
        match Self::from_io(error) {
            Self::OlderTls => Self::OlderOuterTls,
            Self::NotARelay => Self::OuterRefused,
            other => other,
        }
    }

    fn from_tls(error: Error) -> Self {
        match &error {
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                match other.0.downcast_ref::<WrongPin>() {
                    Some(WrongPin { presented, pinned }) => {
                        Self::WrongPin { presented: *presented, pinned: *pinned }
                    }
                    None => Self::Protocol(error),
                }
            }
            Error::InvalidMessage(_) => Self::NotTls,
            Error::AlertReceived(AlertDescription::ProtocolVersion)
            | Error::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            ) => Self::OlderTls,
            // `HandshakeFailure` is sent by a server without a raw Ed25519 key.
            Error::AlertReceived(
                AlertDescription::NoApplicationProtocol | AlertDescription::HandshakeFailure,
            )
            | Error::NoApplicationProtocol
            | Error::NoCertificatesPresented
            | Error::InvalidCertificate(CertificateError::BadEncoding)
            | Error::PeerIncompatible(_) => Self::NotARelay,
            Error::AlertReceived(AlertDescription::BadCertificate | AlertDescription::CertificateUnknown) => {
                Self::KeyRefused
            }
            Error::AlertReceived(alert) => Self::Refused(format!("{alert:?}")),
            _ => Self::Protocol(error),
        }
    }
}
