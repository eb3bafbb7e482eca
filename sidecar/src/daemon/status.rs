//! The status of a sandbox, which its shim can request. The request opens no link and uses up no ticket.

use relay_proto::control::Status;
use tokio::time::Instant;

use super::state::Daemon;
use crate::config::Config;
use crate::session::principal::Principal;

pub(super) fn sandbox_status(daemon: &Daemon, config: &Config, principal: &Principal) -> Status {
    let enrolled = principal.enrolment.as_ref();
    let session_and_links = enrolled.and_then(|enrolled| daemon.registry.session_of_enrolment(&enrolled.id));
    Status {
        name: enrolled.map(|enrolled| enrolled.name.to_string()),
        grant: principal.grant.clone(),
        servers: granted_servers(config, principal),
        session: session_and_links.as_ref().map(|(session, _)| session.to_string()),
        links: session_and_links.map_or(0, |(_, links)| links as u64),
        expires_in_seconds: enrolled
            .map(|enrolled| enrolled.expires.saturating_duration_since(Instant::now()).as_secs()),
        software: concat!("cofferdam ", env!("CARGO_PKG_VERSION")).into(),
        unix_time: cofferdam_base::clock::now()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()
            .map(|time| time.as_secs()),
    }
}

/// As many names as fit in a frame: a name has at most 64 bytes, a control body 16 KiB.
const MAX_SERVERS: usize = 200;

fn granted_servers(config: &Config, principal: &Principal) -> Vec<relay_proto::name::Name> {
    let granted =
        config.grants.get(&principal.grant).map(|grant| grant.servers.as_slice()).unwrap_or_default();
    granted.iter().take(MAX_SERVERS).cloned().collect()
}
