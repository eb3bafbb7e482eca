//! Reloads the configuration, and finds the keys that take effect only after a restart.
//!
//! Such keys are compared with the configuration at the start, not with the last one that was loaded: a key that waits
//! for a restart is reported at every reload until the restart.

use std::sync::Arc;

use cofferdam_audit::Event;

use super::service_manager;
use super::state::Daemon;
use super::unix_socket::Mode;
use crate::config::{self, Config, Problems};

/// The result of a reload.
#[derive(Debug)]
pub(super) struct Reloaded {
    pub(super) policy: String,
    /// Keys whose new values take effect only after a restart.
    pub(super) at_restart: Vec<&'static str>,
}

impl Daemon {
    /// Reads the configuration again. An invalid one changes nothing.
    pub(super) fn reload(&self) -> Result<Reloaded, Problems> {
        service_manager::notify_reloading();
        let reloaded = load_again(self);
        service_manager::notify_ready();
        reloaded
    }
}

fn load_again(daemon: &Daemon) -> Result<Reloaded, Problems> {
    match config::load(&daemon.config_file) {
        Ok(config) => {
            let policy = config.policy_digest.clone();
            let keys = keys_needing_restart(&daemon.config_at_start, &config);
            if let Some(settings) = &config.admin.tls {
                daemon.admin.reload_certificate(settings, &daemon.context.own_credentials);
            }
            daemon.context.config.store(Arc::new(config));
            tracing::info!(policy, "configuration reloaded");
            if !keys.is_empty() {
                tracing::warn!(keys = keys.join(", "), "takes effect at restart");
            }
            daemon.record(Event::Reload, Some(&policy));
            daemon.attachments.reconfigure();
            Ok(Reloaded { policy, at_restart: keys })
        }
        Err(problems) => {
            tracing::error!(%problems, "configuration not reloaded: the previous configuration stays in effect");
            Err(problems)
        }
    }
}

/// Keys whose new values take effect only after a restart.
fn keys_needing_restart(started: &Config, now: &Config) -> Vec<&'static str> {
    let path = |config: &Config| config.relay.unix.as_ref().map(|unix| unix.path.clone());
    let listen = |config: &Config| config.relay.tls.as_ref().map(|tls| tls.listen.clone());
    let admin_listen = |config: &Config| config.admin.tls.as_ref().map(|tls| tls.listen.clone());
    // A changed list applies at once; only adding or removing the list would change the mode of the socket's file.
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
        ("admin.tls", admin_listen(started) != admin_listen(now)),
        ("vault", started.vault != now.vault),
        ("limits.total-memory", old.memory_ceilings().total != new.memory_ceilings().total),
        ("limits.links-per-minute", old.links_per_minute != new.links_per_minute),
        ("limits.processes", old.processes != new.processes),
        ("limits.starts-per-minute", old.starts_per_minute != new.starts_per_minute),
        ("limits.greeting-connections", old.greeting_connections != new.greeting_connections),
        ("limits.stderr-log-bytes", old.stderr_log_bytes != new.stderr_log_bytes),
        ("limits.audit-file-bytes", old.audit_file_bytes != new.audit_file_bytes),
        ("limits.audit-total-bytes", old.audit_total_bytes != new.audit_total_bytes),
        ("limits.audit-field-bytes", old.audit_field_bytes != new.audit_field_bytes),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
}
