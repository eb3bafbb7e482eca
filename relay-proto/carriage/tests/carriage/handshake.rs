//! The inner TLS: which peers are accepted, and the errors for the others.

use std::sync::Arc;

use relay_carriage::dial::{DialError, connect_tcp};
use relay_carriage::identity::Identity;
use relay_carriage::tls::{self, ALPN, TlsError};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::support::*;

#[tokio::test]
async fn both_sides_prove_their_keys() {
    let (sandbox, sidecar) = (identity(), identity());
    let (key, pin) = (sandbox.public(), sidecar.public());
    let (endpoint, served) = listen_once(move |stream| async move {
        let (mut stream, key) = tls::accept(stream, &sidecar).await.unwrap();
        let _ = echo(&mut stream).await;
        key
    })
    .await;
    let stream = in_time(dial(&sandbox, &pin).tls(&endpoint)).await.unwrap();
    exchange(stream, 300_000).await;
    assert_eq!(in_time(served).await.unwrap(), key);
}

#[tokio::test]
async fn a_handshake_succeeds_if_a_few_bytes_arrive_at_a_time() {
    let (sandbox, sidecar) = (identity(), identity());
    let (pin, (near, far)) = (sidecar.public(), thin_pipe(16));
    let server = spawn(async move {
        let (mut stream, _) = tls::accept(far, &sidecar).await.unwrap();
        echo(&mut stream).await
    });
    let stream = in_time(tls::connect(near, &sandbox, &pin)).await.unwrap();
    exchange(stream, 5_000).await;
    let _ = in_time(server).await.unwrap();
}

#[tokio::test]
async fn another_key_than_the_pinned_one_is_refused() {
    let (sandbox, sidecar, expected) = (identity(), identity(), identity().public());
    let presented = sidecar.public();
    let (endpoint, served) =
        listen_once(move |stream| async move { tls::accept(stream, &sidecar).await.err() }).await;
    let refused = in_time(dial(&sandbox, &expected).tls(&endpoint)).await.err().unwrap();
    let DialError::Tls(TlsError::WrongPin { presented: found, pinned }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((*found, *pinned), (presented, expected));
    let text = refused.to_string();
    assert!(text.contains(&presented.to_string()) && text.contains("`cofferdam key`"), "{text}");
    let refused = in_time(served).await.unwrap();
    assert!(
        matches!(refused, Some(TlsError::KeyRefused)),
        "the sidecar did not report the refused key: {refused:?}"
    );
}

/// The public key of `claimed` with the private key of `signer`.
pub(crate) fn mismatched_key(claimed: &Identity, signer: &Identity) -> Arc<CertifiedKey> {
    let mut spki = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    spki.extend(claimed.public().as_bytes());
    let pkcs8 = signer.to_pkcs8();
    let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_slice())).unwrap();
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signer))
}

#[tokio::test]
async fn a_public_key_without_its_private_key_is_refused() {
    let (sandbox, sidecar, thief) = (identity(), identity(), identity());
    // A server that presents the pinned key and cannot sign with it.
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(Arc::new(AcceptAnyKey))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(mismatched_key(
            &sidecar, &thief,
        ))));
    config.alpn_protocols = vec![ALPN.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (endpoint, _served) =
        listen_once(move |stream| async move { acceptor.accept(stream).await.is_err() }).await;
    let pin = sidecar.public();
    let refused = in_time(dial(&sandbox, &pin).tls(&endpoint)).await.err().unwrap();
    assert!(matches!(refused, DialError::Tls(TlsError::Protocol(_))), "{refused:?}");

    // A client that presents an enrolled key and cannot sign with it.
    let (endpoint, served) =
        listen_once(move |stream| async move { tls::accept(stream, &sidecar).await.err() }).await;
    let connector = TlsConnector::from(Arc::new(raw_key_config(mismatched_key(&sandbox, &thief))));
    let _ = connect_and_send(connector, endpoint).await;
    let refused = in_time(served).await.unwrap();
    assert!(refused.is_some(), "the sidecar accepted a key whose private part the client does not have");
}

/// A client that accepts any sidecar and presents this key.
pub(crate) fn raw_key_config(key: Arc<CertifiedKey>) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyKey))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}

async fn connect_and_send(
    connector: TlsConnector,
    endpoint: relay_proto::address::HostPort,
) -> std::io::Result<()> {
    let stream = connect_tcp(&endpoint, TEST_TIMEOUT).await.unwrap();
    let mut stream = connector.connect(ServerName::try_from("sidecar.invalid").unwrap(), stream).await?;
    stream.write_all(b"let me in").await
}

#[tokio::test]
async fn a_peer_without_a_key_is_refused() {
    let sidecar = identity();
    let (endpoint, served) =
        listen_once(move |stream| async move { tls::accept(stream, &sidecar).await.err() }).await;
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyKey))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let _ = connect_and_send(TlsConnector::from(Arc::new(config)), endpoint).await;
    let refused = in_time(served).await.unwrap();
    assert!(matches!(refused, Some(TlsError::NotARelay)), "{refused:?}");
}

/// The keys are correct, but no application protocol was negotiated.
#[tokio::test]
async fn a_peer_that_does_not_offer_the_relay_protocol_is_refused() {
    let (sandbox, sidecar) = (identity(), identity());
    let (endpoint, served) =
        listen_once(move |stream| async move { tls::accept(stream, &sidecar).await.err() }).await;
    let mut config = raw_key_config(mismatched_key(&sandbox, &sandbox));
    config.alpn_protocols.clear();
    let _ = connect_and_send(TlsConnector::from(Arc::new(config)), endpoint).await;
    let refused = in_time(served).await.unwrap();
    assert!(matches!(refused, Some(TlsError::NotARelay)), "{refused:?}");
}

#[tokio::test]
async fn an_older_tls_is_reported() {
    let (sandbox, pin) = (identity(), identity().public());
    let acceptor = TlsAcceptor::from(certificate_tls_config(&[&TLS12]));
    let (endpoint, _served) =
        listen_once(move |stream| async move { acceptor.accept(stream).await.is_err() }).await;
    let refused = in_time(dial(&sandbox, &pin).tls(&endpoint)).await.err().unwrap();
    assert!(matches!(refused, DialError::Tls(TlsError::OlderTls)), "{refused:?}");
    assert!(refused.to_string().contains("1.3") && refused.to_string().contains("wss://"), "{refused}");
}

#[tokio::test]
async fn a_tls_server_with_a_certificate_is_refused() {
    let (sandbox, pin) = (identity(), identity().public());
    let acceptor = TlsAcceptor::from(certificate_tls_config(&[&TLS13]));
    let (endpoint, _served) =
        listen_once(move |stream| async move { acceptor.accept(stream).await.is_err() }).await;
    let refused = in_time(dial(&sandbox, &pin).tls(&endpoint)).await.err().unwrap();
    assert!(matches!(refused, DialError::Tls(TlsError::NotARelay)), "{refused:?}");
}

#[tokio::test]
async fn a_peer_without_tls_is_reported() {
    let (sandbox, pin) = (identity(), identity().public());
    for text in [&b"SSH-2.0-OpenSSH_9.9\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 64], &[0xff; 64]]
    {
        let refused = in_time(dial(&sandbox, &pin).tls(&peer_that_sends(text).await)).await.err().unwrap();
        assert!(matches!(refused, DialError::Tls(TlsError::NotTls)), "{refused:?}");
        assert!(refused.to_string().contains("`relay.advertise`"), "{refused}");
    }
}

#[tokio::test]
async fn a_close_during_the_handshake_is_reported() {
    let (sandbox, pin) = (identity(), identity().public());
    let refused = in_time(dial(&sandbox, &pin).tls(&peer_that_closes().await)).await.err().unwrap();
    assert!(matches!(refused, DialError::Tls(TlsError::Closed)), "{refused:?}");
}

#[tokio::test]
async fn a_silent_peer_times_out_with_the_name_of_the_step() {
    let (sandbox, pin) = (identity(), identity().public());
    let endpoint = peer_that_sends(b"").await;
    let limit = std::time::Duration::from_millis(300);
    let dial = relay_carriage::dial::Dial { limit, ..dial(&sandbox, &pin) };
    let refused = in_time(dial.tls(&endpoint)).await.err().unwrap().to_string();
    assert!(refused.starts_with("completing the TLS handshake took longer than 0.3 seconds"), "{refused}");
}

#[tokio::test]
async fn a_refused_connection_and_an_unresolved_name_are_reported() {
    let (sandbox, pin) = (identity(), identity().public());
    let (endpoint, task) = listen_once(|_| async {}).await;
    task.abort();
    let _ = task.await;
    let refused = in_time(dial(&sandbox, &pin).tls(&endpoint)).await.err().unwrap();
    assert!(matches!(&refused, DialError::Tcp { endpoint: found, .. } if *found == endpoint), "{refused:?}");
    let nowhere = "nowhere.invalid:1".parse().unwrap();
    let refused = in_time(dial(&sandbox, &pin).tls(&nowhere)).await.err().unwrap();
    assert!(matches!(refused, DialError::Resolve { .. }), "{refused:?}");
}

/// Accepts any key without checking the signature.
#[derive(Debug)]
pub(crate) struct AcceptAnyKey;

impl rustls::client::danger::ServerCertVerifier for AcceptAnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl rustls::server::danger::ClientCertVerifier for AcceptAnyKey {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        Ok(rustls::server::danger::ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
