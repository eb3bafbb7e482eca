//! What a reload cannot change while the sidecar runs.
//!
//! Compared with the configuration of the start, not with the last one: what waits for a restart is named at every
//! reload until it comes.

use super::socket::Mode;
use crate::config::Config;

/// Keys whose new values count only after a restart.
pub(super) fn at_restart(started: &Config, now: &Config) -> Vec<&'static str> {
    let path = |config: &Config| config.relay.unix.as_ref().map(|unix| unix.path.clone());
    let listen = |config: &Config| config.relay.tls.as_ref().map(|tls| tls.listen.clone());
    // Who is named counts at once; whether anybody is decides the mode of the socket's file.
    let mode = |config: &Config| Mode::of(&config.relay);
    let (old, new) = (&started.limits, &now.limits);
    let changed = [
        ("state-dir", started.state_dir != now.state_dir),
        ("audit-sync", started.audit_sync != now.audit_sync),
        ("relay.tls", listen(started) != listen(now)),
        ("relay.unix", path(started) != path(now)),
        ("relay.unix-uids", mode(started) != mode(now)),
        ("relay.vsock-dir", started.relay.vsock_dir != now.relay.vsock_dir),
        ("admin.socket", started.admin.socket != now.admin.socket),
        ("admin.http", started.admin.http != now.admin.http),
        ("vault", started.vault != now.vault),
        ("limits.links-per-minute", old.links_per_minute != new.links_per_minute),
        ("limits.processes", old.processes != new.processes),
        ("limits.starts-per-minute", old.starts_per_minute != new.starts_per_minute),
        ("limits.greeting-connections", old.greeting_connections != new.greeting_connections),
        ("limits.audit-file-bytes", old.audit_file_bytes != new.audit_file_bytes),
        ("limits.audit-field-bytes", old.audit_field_bytes != new.audit_field_bytes),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
}
