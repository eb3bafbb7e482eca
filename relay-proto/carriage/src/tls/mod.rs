//! TLS 1.3 in which both sides prove a raw public key (RFC 7250), and nothing else.
//!
//! The sandbox's side is always the client and has the sidecar's key pinned; the sidecar's side is always the server
//! and accepts any key. Nothing can be resumed, so no handshake can be replayed: no tickets, no early data,
//! no stored sessions.

mod error;
mod verify;

use std::sync::{Arc, LazyLock};

use relay_proto::key::PublicKey;
use relay_proto::limits::VERSION;
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, AlwaysResolvesServerRawPublicKeys, ClientHello, NoServerSessionStorage};
use rustls::version::TLS13;
use rustls::{ClientConfig, CommonState, ServerConfig};
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, TlsConnector, client, server};

use crate::Stream;
use crate::identity::{Identity, decode_spki};
pub use error::TlsError;
use verify::{AnyKeyVerifier, PinnedKeyVerifier};

/// The application protocol of a link.
pub const ALPN: &[u8] = b"cofferdam-relay/1";

/// The application protocol of a hub, which carries many links.
pub const HUB_ALPN: &[u8] = b"cofferdam-hub/1";

/// What a stream carries: its application protocol, which is negotiated with ALPN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamProtocol {
    /// A hub, with the links of all its shims.
    Hub,
    /// One shim's link.
    Link,
}

/// The sandbox's side: connects only to a peer with the key `pin`.
pub async fn connect<S: Stream>(
    stream: S,
    identity: &Identity,
    pin: &PublicKey,
) -> Result<client::TlsStream<S>, TlsError> {
    connect_for(StreamProtocol::Link, stream, identity, pin).await
}

/// Like [`connect`], for a link or a hub.
pub async fn connect_for<S: Stream>(
    protocol: StreamProtocol,
    stream: S,
    identity: &Identity,
    pin: &PublicKey,
) -> Result<client::TlsStream<S>, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has suites of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedKeyVerifier::new(*pin)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
            &identity.certified,
        ))));
    config.alpn_protocols = vec![protocol.alpn().to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    let name = ServerName::try_from("sidecar.invalid").expect("this is a name");
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(TlsError::from_io)?;
    match StreamProtocol::of(stream.get_ref().1) {
        Some(spoken) if spoken == protocol => Ok(stream),
        _ => Err(TlsError::NotARelay),
    }
}

/// The sidecar's side: accepts any key, and returns it.
pub async fn accept<S: Stream>(
    stream: S,
    identity: &Identity,
) -> Result<(server::TlsStream<S>, PublicKey), TlsError> {
    accept_with(server_config(identity), stream).await
}

/// The sidecar's side of a stream that the host opened: also returns what it carries.
pub async fn accept_pipe<S: Stream>(
    stream: S,
    identity: &Identity,
) -> Result<(server::TlsStream<S>, PublicKey, StreamProtocol), TlsError> {
    let mut config = ServerConfig::clone(&server_config(identity));
    config.alpn_protocols = vec![HUB_ALPN.to_vec(), ALPN.to_vec()];
    let started = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(TlsError::from_io)?;
    let other_version = offered_version(&started.client_hello()).filter(|theirs| *theirs != VERSION);
    let stream = match (started.into_stream(Arc::new(config)).await, other_version) {
        (Ok(stream), _) => stream,
        // The peer was sent the alert that there is no common protocol.
        (Err(_), Some(theirs)) => return Err(TlsError::OtherVersion { ours: VERSION, theirs }),
        (Err(error), None) => return Err(TlsError::from_io(error)),
    };
    let state = stream.get_ref().1;
    let protocol = StreamProtocol::of(state).ok_or(TlsError::NotARelay)?;
    let key = peer_key(state)?;
    Ok((stream, key, protocol))
}

pub(crate) async fn accept_with<S: Stream>(
    config: Arc<ServerConfig>,
    stream: S,
) -> Result<(server::TlsStream<S>, PublicKey), TlsError> {
    let stream = TlsAcceptor::from(config).accept(stream).await.map_err(TlsError::from_io)?;
    let key = link_peer_key(stream.get_ref().1)?;
    Ok((stream, key))
}

pub(crate) fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has suites of TLS 1.3")
        .with_client_cert_verifier(Arc::new(AnyKeyVerifier::new()))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(
            &identity.certified,
        ))));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Arc::new(config)
}

/// The peer's key after a handshake for one link; an error if another protocol was agreed on.
pub(crate) fn link_peer_key(state: &CommonState) -> Result<PublicKey, TlsError> {
    match StreamProtocol::of(state) {
        Some(StreamProtocol::Link) => peer_key(state),
        _ => Err(TlsError::NotARelay),
    }
}

/// The latest version of the link or hub protocol that a peer offers.
fn offered_version(hello: &ClientHello<'_>) -> Option<u16> {
    let version = |name: &[u8]| {
        let name = std::str::from_utf8(name).ok()?;
        let digits = name.strip_prefix("cofferdam-hub/").or_else(|| name.strip_prefix("cofferdam-relay/"))?;
        digits.parse().ok()
    };
    hello.alpn()?.filter_map(version).max()
}

fn peer_key(state: &CommonState) -> Result<PublicKey, TlsError> {
    let [certificate] = state.peer_certificates().unwrap_or_default() else {
        return Err(TlsError::NotARelay);
    };
    decode_spki(certificate).ok_or(TlsError::NotARelay)
}

/// The cryptographic algorithms of all TLS connections here.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(ring::default_provider()));
    Arc::clone(&PROVIDER)
}

impl StreamProtocol {
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Hub => HUB_ALPN,
            Self::Link => ALPN,
        }
    }

    fn of(state: &CommonState) -> Option<Self> {
        [Self::Hub, Self::Link].into_iter().find(|protocol| state.alpn_protocol() == Some(protocol.alpn()))
    }
}
