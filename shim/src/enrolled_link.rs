//! Connects with the sandbox's key: finds the enrolment, dials, then takes the lock and presents the key.
//!
//! The lock is taken only after the connection is up, so that an address that does not respond delays no other shim.

use std::time::Duration;

use relay_carriage::dial::Dial;
use relay_proto::address::{Address, HostPort};
use relay_proto::decoder::Decoder;

use crate::connection::{ConnectError, Connection, OpenedConnection};
use crate::network::Network;
use crate::state::{EnrolmentState, StateError};
use crate::stream::Stream;

/// The timeout from the start of the connection until both sides have proved their keys.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to `relay`, or to the address in the enrolment.
pub(crate) async fn connect(
    state: EnrolmentState,
    relay: Option<Address>,
    network: Network,
) -> Result<OpenedConnection, ConnectError> {
    let saved = state.find().await?;
    let relay = relay.unwrap_or_else(|| saved.relay.clone());
    let target = match &relay {
        Address::Tls(endpoint) => endpoint.clone(),
        Address::WebSocket(endpoint) => HostPort { host: endpoint.host.clone(), port: endpoint.port },
        _ => return Err(ConnectError::UnsupportedAddress(relay)),
    };
    let proxy = network.proxies.proxy_for(&target);
    let proxy = proxy.map_err(|(variable, source)| ConnectError::Proxy { variable, source })?;
    let dial =
        Dial { identity: &saved.identity, pin: &saved.pin, proxy: proxy.as_ref(), limit: CONNECT_TIMEOUT };
    let dialled = match &relay {
        Address::WebSocket(endpoint) => dial.web_socket(endpoint).await,
        _ => dial.tls(&target).await,
    };
    let stream =
        dialled.map_err(|source| ConnectError::Dial { address: relay.clone(), source: Box::new(source) })?;
    let (held_key, proof) = state.hold(&saved.identity.public()).await?;
    let connection = Connection { stream: Stream::from_async(stream), decoder: Decoder::new() };
    Ok(OpenedConnection { connection, address: relay, proof, held_key: Some(held_key) })
}

impl From<StateError> for ConnectError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::None => Self::NoEnrolment(error.to_string()),
            error => Self::State(error.to_string()),
        }
    }
}
