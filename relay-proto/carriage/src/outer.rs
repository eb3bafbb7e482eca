//! The TLS around a WebSocket, for networks that allow nothing else out.
//!
//! It authenticates no peer: a load balancer or an intercepting proxy that terminates it sees only the inner TLS, in which
//! both sides prove their keys. So the client accepts any certificate, and the sidecar uses a self-signed one. For the
//! same reason TLS 1.2 is enough here, which is all that some proxies speak; the inner TLS is 1.3 in any case.

use std::sync::Arc;

use relay_proto::address::Host;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion};
use tokio_rustls::{TlsConnector, client};

use crate::Stream;
use crate::tls::{TlsError, provider};

/// The client's side. `host` is sent as the server name, for load balancers that route by it.
pub async fn connect<S: Stream>(stream: S, host: &Host) -> Result<client::TlsStream<S>, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(OUTER_VERSIONS)
        .expect("the provider has suites of TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(DangerAcceptAnyCert(())))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
    config.resumption = Resumption::disabled();
    let name = match host {
        Host::Ip(address) => ServerName::IpAddress((*address).into()),
        // Some names that resolve are not valid in TLS: then no server name is sent.
        Host::Name(name) => ServerName::try_from(name.clone())
            .unwrap_or_else(|_| ServerName::IpAddress(NO_SERVER_NAME.into())),
    };
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(TlsError::from_outer_io)
}

/// What the outer TLS may be; the newest that both sides have is used.
const OUTER_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The ALPN id of HTTP/1.1, in which a WebSocket is opened.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// A placeholder: rustls sends no SNI if the server name is an IP address.
const NO_SERVER_NAME: std::net::Ipv4Addr = std::net::Ipv4Addr::UNSPECIFIED;

/// Accepts any certificate: the peer is authenticated by the inner TLS alone.
#[derive(Debug)]
struct DangerAcceptAnyCert(());

impl ServerCertVerifier for DangerAcceptAnyCert {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        use SignatureScheme::*;
        vec![
            ED25519,
            ECDSA_NISTP256_SHA256,
            ECDSA_NISTP384_SHA384,
            ECDSA_NISTP521_SHA512,
            RSA_PSS_SHA256,
            RSA_PSS_SHA384,
            RSA_PSS_SHA512,
            RSA_PKCS1_SHA256,
            RSA_PKCS1_SHA384,
            RSA_PKCS1_SHA512,
        ]
    }
}

#[cfg(feature = "reception")]
pub use server::CertificateError;
#[cfg(feature = "reception")]
pub(crate) use server::server_config;

#[cfg(feature = "reception")]
mod server {
    use std::sync::Arc;

    use rustls::ServerConfig;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::server::NoServerSessionStorage;

    use super::{ALPN_HTTP1, OUTER_VERSIONS};
    use crate::tls::provider;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot create the self-signed certificate of the relay's port: {0}")]
    pub struct CertificateError(String);

    /// The server's configuration, with a self-signed certificate that is created here.
    pub(crate) fn server_config() -> Result<Arc<ServerConfig>, CertificateError> {
        let failed = |error: &dyn std::fmt::Display| CertificateError(error.to_string());
        let certified = rcgen::generate_simple_self_signed(["cofferdam.invalid".to_owned()])
            .map_err(|error| failed(&error))?;
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(OUTER_VERSIONS)
            .expect("the provider has suites of TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key.into())
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }
}
