//! The pipe through a preview link: a WebSocket to a port of the sandbox, through Daytona's proxy.
//!
//! What must stay true: the token is in a header of the request and not in its URL; a ping is sent every `ping_interval`,
//! because the proxy closes connections that are idle for 70 s; unless the operator wants it, the connection does not prevent
//! the automatic stop of the sandbox.

use std::time::Duration;

use http::HeaderMap;
use relay_carriage::websocket::{self, Header, KeepAlive, UpgradeError};
use relay_proto::address::{Host, WebSocket};
use tokio::time::timeout;

use super::SKIP_ACTIVITY;
use super::control::{Control, Preview};
use super::toolbox::PREVIEW_TOKEN;
use crate::{KeepAwake, Pipe, PlatformError};

/// Less than a third of the time after which Daytona's proxy closes an idle connection.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Another program may use the hub's port and never respond.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(8);
pub(super) const CONNECTING: &str = "connect to the hub through its preview link";

/// The options of a connection.
#[derive(Clone, Copy)]
pub(super) struct PreviewOptions {
    pub(super) awake: KeepAwake,
    pub(super) ping_interval: Duration,
}

/// The result of an attempt to connect.
pub(super) enum DialResult {
    Connected(Pipe),
    /// The proxy refuses the token, because the sandbox was restarted since the token was issued.
    TokenRefused,
    /// The proxy was reached, but the hub does not listen, or not yet.
    NotListening(String),
}

pub(super) async fn dial(
    control: &Control,
    preview: &Preview,
    options: PreviewOptions,
) -> Result<DialResult, PlatformError> {
    let url = control.parse_reported_address(CONNECTING, &preview.url)?;
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
    if options.awake == KeepAwake::No {
        headers.push(Header { name: SKIP_ACTIVITY.to_string(), value: "true".to_owned() });
    }
    let stream = service.connect(CONNECTING).await?;
    let Ok(upgraded) = timeout(UPGRADE_TIMEOUT, websocket::connect(stream, &address, &headers)).await else {
        let why = format!("no response in {} s", UPGRADE_TIMEOUT.as_secs());
        return Ok(DialResult::NotListening(why));
    };
    match upgraded {
        Ok(stream) => Ok(DialResult::Connected(Box::new(KeepAlive::new(stream, options.ping_interval)))),
        // Without a valid token the proxy redirects to a login page.
        Err(UpgradeError::Status(300..=399 | 401 | 403)) => Ok(DialResult::TokenRefused),
        Err(error @ (UpgradeError::Status(_) | UpgradeError::Closed | UpgradeError::Io(_))) => {
            Ok(DialResult::NotListening(service.printable(&error.to_string())))
        }
        Err(error) => {
            let why = service.printable(&error.to_string());
            Err(PlatformError::Protocol { action: CONNECTING, why })
        }
    }
}
