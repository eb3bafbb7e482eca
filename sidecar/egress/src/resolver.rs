//! Answers the look-ups of a server.
//!
//! What must stay true: no look-up of a server reaches another name server. A listed name has an address inside the
//! server's network; what that name really resolves to is asked when the server connects to it.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;

use crate::dns::{Answer, MAX_QUERY, Query, Rejected};
use crate::event::{LimitReached, Refusal};
use crate::name::HostName;
use crate::names::TTL;
use crate::shared::Shared;

/// How long the resolver waits after a failure of its socket.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);

/// Answers until it is dropped.
pub(crate) async fn answer_lookups(socket: UdpSocket, shared: &Shared) {
    let (mut packet, mut is_failing) = ([0; MAX_QUERY], false);
    loop {
        let (length, client) = match socket.recv_from(&mut packet).await {
            Ok(received) => received,
            Err(error) => {
                if !is_failing {
                    tracing::warn!(%error, "cannot receive a look-up of a confined server; trying again");
                }
                is_failing = true;
                tokio::time::sleep(RECEIVE_PAUSE).await;
                continue;
            }
        };
        is_failing = false;
        let response = match Query::parse(&packet[..length]) {
            Ok(query) => query.response(answer(&query, shared)),
            Err(Rejected::With(header)) => header.to_vec(),
            Err(Rejected::Silently) => continue,
        };
        // The client may be gone, and repeats its question if it is not.
        let _ = socket.send_to(&response, client).await;
    }
}

fn answer(query: &Query<'_>, shared: &Shared) -> Answer {
    let text = query.name();
    let name = text.parse::<HostName>().ok().filter(|_| query.is_of_internet());
    let address = match name {
        Some(name) if name.is_localhost() => Some(Ipv4Addr::LOCALHOST),
        Some(name) if shared.plan.lists(&name) => {
            let address = shared.names().assign(&name, Instant::now());
            if address.is_none() {
                shared.refused(Refusal::Limit { limit: LimitReached::Names });
                return Answer::TryLater;
            }
            address
        }
        _ => None,
    };
    let Some(address) = address else {
        // Programs look for the names of addresses by themselves; no entry would allow that.
        if !text.to_ascii_lowercase().ends_with(".arpa") {
            shared.refused(Refusal::Name { name: text.to_ascii_lowercase() });
        }
        return Answer::NoSuchName;
    };
    match query.wants_address() {
        true => Answer::Address { address, ttl: TTL.as_secs() as u32 },
        false => Answer::NoRecord,
    }
}
