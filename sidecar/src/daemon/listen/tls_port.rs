//! The port for sandboxes that dial out: whatever arrives is taken as far as its key, and then greeted.
//!
//! Must stay true: one time limit holds from the first byte to the Hello, whatever stands around it; who is silent holds
//! one of few places, as on a socket; and the places of this port are its own, so that a crowd here keeps nobody out
//! who comes by a socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use relay_carriage::identity::Identity;
use relay_carriage::outer::CertificateError;
use relay_carriage::reception::{Reception, ReceptionError};
use relay_carriage::tls::TlsError;
use relay_carriage::websocket::UpgradeError;
use relay_proto::address::HostPort;
use relay_proto::code::Code;
use relay_proto::control::Retry;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::daemon::admission::{Door, refuse};
use crate::daemon::handshake::{self, Arrival};
use crate::daemon::handshake_slots::{Place, Places};
use crate::daemon::state::App;

/// A bound port.
#[derive(Debug)]
pub(in crate::daemon) struct Port {
    listener: TcpListener,
    reception: Reception,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    #[error("listen on {place} for `relay.tls`: is another sidecar there, and is the address this host's?")]
    Bind {
        place: HostPort,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl Port {
    pub(in crate::daemon) async fn bind(place: &HostPort, identity: &Identity) -> Result<Self, PortError> {
        let bound = TcpListener::bind(place.to_string()).await;
        let listener = bound.map_err(|source| PortError::Bind { place: place.clone(), source })?;
        Ok(Self { listener, reception: Reception::new(identity)? })
    }

    /// Takes connections until the stop.
    pub(in crate::daemon) async fn run(self, app: Arc<App>) {
        let count = app.context.config.load().limits.greeting_connections;
        let places = Places::new(count, app.stop.clone());
        let reception = Arc::new(self.reception);
        loop {
            let Some(accepted) = app.stop.run_until_cancelled(self.listener.accept()).await else { return };
            match accepted {
                Ok((stream, _)) => {
                    let Some(place) = app.stop.run_until_cancelled(places.take()).await else { return };
                    let (app, reception) = (Arc::clone(&app), Arc::clone(&reception));
                    app.context
                        .tasks
                        .clone()
                        .spawn(async move { receive(&app, &reception, stream, place).await });
                }
                Err(error) => {
                    tracing::error!(%error, "accept on the relay's port");
                    // Out of descriptors, most likely: some will be closed soon.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn receive(app: &App, reception: &Reception, stream: TcpStream, place: Place) {
    let until = Instant::now() + app.context.config.load().limits.greeting_timeout;
    // Messages are whole when they are written: nothing is won by waiting for more.
    let _ = stream.set_nodelay(true);
    // Boxed: a handshake is large, and the link that may follow need not carry its size along.
    let received = Box::pin(timeout_at(until, reception.receive(stream)));
    match place.before_words(received).await {
        Ok(Ok(Ok((stream, key)))) => {
            let arrival = Arrival { stream: Box::new(stream), door: Door::Key { key } };
            handshake::greet_until(app, arrival, place, until).await;
        }
        Ok(Ok(Err(error))) if !is_a_probe(&error) => {
            let refusal =
                refuse(Code::MessageMalformed, &format!("on the relay's port: {error}"), Retry::Never);
            app.refusals.log(&refusal, &app.context.tasks, &app.stop);
        }
        // Somebody who had longer than others to speak is told nothing.
        _ => {}
    }
}

/// Port scanners and health checks come and go.
fn is_a_probe(error: &ReceptionError) -> bool {
    matches!(
        error,
        ReceptionError::Io(_)
            | ReceptionError::Outer(TlsError::Closed | TlsError::Io(_))
            | ReceptionError::Tls(TlsError::Closed | TlsError::Io(_))
            | ReceptionError::Upgrade(UpgradeError::Closed | UpgradeError::Io(_))
    )
}
