//! The answer to a sandbox that asks for its status. Opens no link and uses up nothing.

use relay_proto::control::Status;
use tokio::time::Instant;

use super::state::Daemon;
use crate::config::Config;
use crate::session::principal::Principal;

pub(super) fn status(daemon: &Daemon, config: &Config, visitor: &Principal) -> Status {
    let enrolled = visitor.enrolment.as_ref();
    let standing = enrolled.and_then(|enrolled| daemon.registry.standing(&enrolled.id));
    Status {
        name: enrolled.map(|enrolled| enrolled.name.to_string()),
        grant: visitor.grant.clone(),
        servers: servers(config, visitor),
        session: standing.as_ref().map(|(session, _)| session.to_string()),
        links: standing.map_or(0, |(_, links)| links as u64),
        expires_in_seconds: enrolled
            .map(|enrolled| enrolled.expires.saturating_duration_since(Instant::now()).as_secs()),
        software: concat!("cofferdam ", env!("CARGO_PKG_VERSION")).into(),
    }
}

/// As many as fit a frame: a name has at most 64 bytes, a control body 16 KiB.
const MOST_SERVERS: usize = 200;

fn servers(config: &Config, visitor: &Principal) -> Vec<relay_proto::name::Name> {
    let granted = config.grants.get(&visitor.grant).map(|grant| grant.servers.as_slice()).unwrap_or_default();
    granted.iter().take(MOST_SERVERS).cloned().collect()
}
