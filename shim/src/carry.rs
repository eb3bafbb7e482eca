//! Links with keys: out over TLS or a WebSocket, through a proxy where there must be one.

use std::time::Duration;

use relay_carriage::dial::Dial;
use relay_carriage::identity::Identity;
use relay_carriage::proxy::Proxies;
use relay_proto::address::{Address, HostPort};
use relay_proto::key::PublicKey;

use crate::link::ConnectError;
use crate::stream::Stream;

/// Who we are, and which sidecar we expect.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) identity: Identity,
    pub(crate) pin: PublicKey,
}

#[expect(dead_code, reason = "the keys come with enrolment")]
/// Connects to a `tls://` or `wss://` link and proves both keys.
pub(crate) async fn connect(
    address: &Address,
    keys: &Keys,
    proxies: &Proxies,
) -> Result<Stream, ConnectError> {
    let target = match address {
        Address::Tls(place) => place.clone(),
        Address::WebSocket(place) => HostPort { host: place.host.clone(), port: place.port },
        other => return Err(ConnectError::NotKnown(other.clone())),
    };
    let proxy =
        proxies.towards(&target).map_err(|(variable, source)| ConnectError::Proxy { variable, source })?;
    let dial = Dial { identity: &keys.identity, pin: &keys.pin, proxy: proxy.as_ref(), limit: LIMIT };
    let dialled = match address {
        Address::WebSocket(place) => dial.web_socket(place).await,
        _ => dial.tls(&target).await,
    };
    let stream = dialled
        .map_err(|source| ConnectError::Dial { address: address.clone(), source: Box::new(source) })?;
    Ok(Stream::carried(stream))
}

/// For all steps together. A call waits longer than this, so that it can be told which step it was.
const LIMIT: Duration = Duration::from_secs(10);
