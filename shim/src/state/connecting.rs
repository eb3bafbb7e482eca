//! From the enrolment to a connection: find it, dial, then wait for the turn to say who we are.
//!
//! The turn is waited for when the connection stands, so that a way that leads nowhere keeps no other shim waiting.

use std::time::Duration;

use relay_carriage::dial::Dial;
use relay_proto::address::{Address, HostPort};
use relay_proto::decoder::Decoder;

use super::{State, StateError};
use crate::link::{ConnectError, Connection, Opened};
use crate::network::Network;
use crate::stream::Stream;

/// Everything up to the proof of both keys.
const CONNECT: Duration = Duration::from_secs(10);

impl State {
    /// Connects with the sandbox's key: to `relay`, or where the enrolment leads.
    pub(crate) async fn connect(
        self,
        relay: Option<Address>,
        network: Network,
    ) -> Result<Opened, ConnectError> {
        let saved = self.find().await?;
        let relay = relay.unwrap_or_else(|| saved.relay.clone());
        let target = match &relay {
            Address::Tls(place) => place.clone(),
            Address::WebSocket(place) => HostPort { host: place.host.clone(), port: place.port },
            _ => return Err(ConnectError::NotKnown(relay)),
        };
        let proxy = network.proxies.towards(&target);
        let proxy = proxy.map_err(|(variable, source)| ConnectError::Proxy { variable, source })?;
        let dial = Dial { identity: &saved.identity, pin: &saved.pin, proxy: proxy.as_ref(), limit: CONNECT };
        let dialled = match &relay {
            Address::WebSocket(place) => dial.web_socket(place).await,
            _ => dial.tls(&target).await,
        };
        let stream = dialled
            .map_err(|source| ConnectError::Dial { address: relay.clone(), source: Box::new(source) })?;
        let (held, proof) = self.hold(&saved.identity.public()).await?;
        let connection = Connection { stream: Stream::carried(stream), decoder: Decoder::new() };
        Ok(Opened { connection, address: relay, proof, held: Some(held) })
    }
}

impl From<StateError> for ConnectError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::None => Self::NoEnrolment(error.to_string()),
            error => Self::State(error.to_string()),
        }
    }
}
