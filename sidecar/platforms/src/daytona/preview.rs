//! The way in through a preview link: a WebSocket to a port of the sandbox, by Daytona's proxy.
//!
//! What must stay true: the token is a header of the request and not in its URL; something is sent at least every
//! `ping_interval`, because the proxy closes connections that are idle for 70 s; unless the operator wants it, the
//! connection does not keep the sandbox from its automatic stop.

use std::time::Duration;

use http::HeaderMap;
use relay_carriage::websocket::{self, Header, KeepAlive, UpgradeError};
use relay_proto::address::{Host, WebSocket};
use tokio::time::timeout;

use super::SKIP_ACTIVITY;
use super::control::{Control, Preview};
use super::toolbox::PREVIEW_TOKEN;
use crate::{KeepAwake, Pipe, PlatformError};

/// Under a third of the time after which Daytona's proxy closes an idle connection.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Another program may have the hub's port and never answer.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(8);
pub(super) const CONNECTING: &str = "connect to the hub by its preview link";

/// How a connection behaves once it is open.
#[derive(Clone, Copy)]
pub(super) struct PreviewRoute {
    pub(super) awake: KeepAwake,
    pub(super) ping_interval: Duration,
}

/// What an attempt to connect gave.
pub(super) enum Dialled {
    Connected(Pipe),
    /// The proxy does not accept the token: it is of a time before the sandbox's restart.
    TokenRefused,
    /// The proxy was reached and nothing listens behind it, or not yet.
    NotListening(String),
}

pub(super) async fn dial(
    control: &Control,
    preview: &Preview,
    route: PreviewRoute,
) -> Result<Dialled, PlatformError> {
    let url = control.named_address(CONNECTING, &preview.url)?;
    let service = control.sandbox_service(CONNECTING, &url, HeaderMap::new())?;
    let host = url.host().unwrap_or_default();
    let port = url.port_u16().unwrap_or(match url.scheme_str() {
        Some("http") => 80,
        _ => 443,
    });
    let address = WebSocket {
        host: host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip),
        port,
        path: format!("{}/", service.prefix()),
    };
    let mut headers =
        vec![Header { name: PREVIEW_TOKEN.to_string(), value: preview.token.text().to_owned() }];
    if route.awake == KeepAwake::No {
        headers.push(Header { name: SKIP_ACTIVITY.to_string(), value: "true".to_owned() });
    }
    let stream = service.connect(CONNECTING).await?;
    let Ok(upgraded) = timeout(UPGRADE_TIMEOUT, websocket::connect(stream, &address, &headers)).await else {
        let why = format!("no response in {} s", UPGRADE_TIMEOUT.as_secs());
        return Ok(Dialled::NotListening(why));
    };
    match upgraded {
        Ok(stream) => Ok(Dialled::Connected(Box::new(KeepAlive::new(stream, route.ping_interval)))),
        // Without a good token the proxy redirects to a page for people.
        Err(UpgradeError::Status(300..=399 | 401 | 403)) => Ok(Dialled::TokenRefused),
        Err(error @ (UpgradeError::Status(_) | UpgradeError::Closed | UpgradeError::Io(_))) => {
            Ok(Dialled::NotListening(service.printable(&error.to_string())))
        }
        Err(error) => {
            let why = service.printable(&error.to_string());
            Err(PlatformError::Protocol { doing: CONNECTING, why })
        }
    }
}
