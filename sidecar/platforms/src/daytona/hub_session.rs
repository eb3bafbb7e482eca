//! The hub as a background command of a toolbox session, listening on a loopback port of the sandbox.
//!
//! What must stay true: there is at most one hub per sidecar and sandbox, because the session's id is derived from the
//! sidecar's key; the command contains no secret, because Daytona stores it and shows it to every member of the organisation.

use super::toolbox::{ShellSession, Toolbox};
use crate::guest::Guest as _;
use crate::install::{InstalledShim, SHIM_PREFIX};
use crate::{Architecture, HubSetup, PlatformError, SandboxId};

/// How many ports are tried, if other programs in the sandbox use them.
pub(super) const PORT_ATTEMPTS: u32 = 3;
/// Older versions of Daytona expose the ports 3000 to 9999 only; many programs use ports below 6800.
const FIRST_PORT: u32 = 6800;
const PORTS: u32 = 3000;
/// The hub's exit code if another hub already serves the sandbox's shims.
const EX_TEMPFAIL: i64 = 75;

/// EADDRINUSE in the hub's message. The text before it depends on the C library.
const ADDRESS_IN_USE: &str = "(os error 98)";

pub(super) const STARTING: &str = "start the hub in the sandbox";

/// A hub of this sidecar in a sandbox.
pub(super) struct HubSession {
    id: String,
}

/// The status of a hub that was started.
pub(super) enum HubStatus {
    Running,
    /// The hub exited because another program uses its port.
    PortInUse,
}

impl HubSession {
    pub(super) fn of(setup: &HubSetup) -> Result<Self, PlatformError> {
        let is_plain = !setup.pin.is_empty() && setup.pin.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_plain {
            let why = "the sidecar's key is not hexadecimal".to_owned();
            return Err(PlatformError::Protocol { action: STARTING, why });
        }
        let short: String = setup.pin.chars().take(16).collect();
        Ok(Self { id: format!("cofferdam-hub-{short}") })
    }

    /// The port of a running hub, if its shim is the version that would be installed now.
    pub(super) async fn running_port(
        &self,
        toolbox: &Toolbox,
        setup: &HubSetup,
    ) -> Result<Option<u16>, PlatformError> {
        let Some(session) = toolbox.session(STARTING, &self.id).await? else { return Ok(None) };
        let Some(hub) = running_hub(&session) else { return Ok(None) };
        let is_current = [Architecture::X86_64, Architecture::Aarch64]
            .into_iter()
            .any(|architecture| (setup.shim)(architecture).is_ok_and(|shim| shim.digest == hub.digest));
        Ok(is_current.then_some(hub.port))
    }

    /// Ends what runs in the session, and starts the hub there.
    pub(super) async fn start(
        &self,
        toolbox: &Toolbox,
        shim: &InstalledShim,
        setup: &HubSetup,
        port: u16,
    ) -> Result<(), PlatformError> {
        self.end(toolbox).await?;
        toolbox.start(STARTING, &self.id, &hub_command(shim, &setup.pin, port)).await
    }

    /// Whether the hub runs, or its port is in use. An error describes why the hub has exited otherwise.
    pub(super) async fn status(&self, toolbox: &Toolbox) -> Result<HubStatus, PlatformError> {
        let session = toolbox.session(STARTING, &self.id).await?;
        let Some(code) = session.and_then(|session| session.commands.last()?.exit_code) else {
            return Ok(HubStatus::Running);
        };
        // Whole lines, because a secret whose beginning is cut off would not be found.
        let script = r#"tail -n 5 "${HOME:-/tmp}/$1" | head -c 4096"#;
        let log = toolbox.run(STARTING, script, &[HUB_LOG]).await?.text;
        if log.contains(ADDRESS_IN_USE) {
            return Ok(HubStatus::PortInUse);
        }
        let why = format!("it exited with exit code {code}: {}", toolbox.redactor().printable(&log));
        Err(match code {
            EX_TEMPFAIL => PlatformError::Unavailable { action: STARTING, why, retry_after: None },
            _ => PlatformError::Sandbox { action: STARTING, why },
        })
    }

    pub(super) async fn end(&self, toolbox: &Toolbox) -> Result<(), PlatformError> {
        toolbox.end("end the hub in the sandbox", &self.id).await
    }
}

/// The port of the hub in a sandbox. Different sidecars use different ports, so that their hubs rarely conflict.
pub(super) fn hub_port(pin: &str, id: &SandboxId, attempt: u32) -> u16 {
    // FNV-1a, to distribute the ports.
    let hash = pin
        .bytes()
        .chain(id.as_str().bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let port = FIRST_PORT + hash.wrapping_add(attempt.wrapping_mul(7919)) % PORTS;
    u16::try_from(port).expect("the range of ports is below 65536")
}

struct RunningHub {
    digest: String,
    port: u16,
}

const LISTEN: &str = " --listen 127.0.0.1:";

/// The path of the hub's log, relative to the home of the sandbox's user.
const HUB_LOG: &str = ".local/lib/cofferdam/hub.log";

/// The command that starts the hub. Its paths need no escaping: see [`crate::install::is_plain_path`].
fn hub_command(shim: &InstalledShim, pin: &str, port: u16) -> String {
    let InstalledShim { file, home, .. } = shim;
    format!("'{file}' hub --pin {pin}{LISTEN}{port} 2>'{home}/{HUB_LOG}'")
}

/// Parses a [`hub_command`]. The sandbox may report a wrong one; then at worst another port of the same sandbox is dialled.
fn running_hub(session: &ShellSession) -> Option<RunningHub> {
    let last = session.commands.last().filter(|command| command.exit_code.is_none())?;
    let (_, rest) = last.command.split_once(SHIM_PREFIX)?;
    let (digest, rest) = rest.split_at_checked(64)?;
    let (_, rest) = rest.split_once(LISTEN)?;
    let port = rest.split(' ').next()?.parse().ok()?;
    Some(RunningHub { digest: digest.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::super::toolbox::SessionCommand;
    use super::*;
    use crate::install::HOME_DIRECTORY;

    #[test]
    fn a_running_hub_is_recognised_by_its_command() {
        let digest = "ab".repeat(32);
        let shim = InstalledShim {
            file: format!("/home/daytona/{HOME_DIRECTORY}/{SHIM_PREFIX}{digest}"),
            digest: digest.clone(),
            link: "/home/daytona/.local/bin/cofferdam-shim".to_owned(),
            home: "/home/daytona".to_owned(),
        };
        let session = |exit_code| ShellSession {
            commands: vec![SessionCommand { command: hub_command(&shim, "c0ffee", 7001), exit_code }],
        };
        let hub = running_hub(&session(None)).unwrap();
        assert_eq!((hub.digest, hub.port), (digest.clone(), 7001));
        assert!(running_hub(&session(Some(0))).is_none());
        let other = SessionCommand { command: "sleep 9".into(), exit_code: None };
        assert!(running_hub(&ShellSession { commands: vec![other] }).is_none());
    }

    #[test]
    fn ports_differ_and_are_in_the_range_that_every_version_of_daytona_exposes() {
        let ids = ["a", "sandbox-1", "0f1b2c3d"].map(|id| id.parse::<SandboxId>().unwrap());
        for (id, attempt) in ids.iter().zip(0..PORT_ATTEMPTS) {
            assert!((3000..=9999).contains(&hub_port("c0ffee", id, attempt)));
        }
        assert_ne!(hub_port("c0ffee", &ids[0], 0), hub_port("c0ffee", &ids[0], 1));
        assert_ne!(hub_port("c0ffee", &ids[0], 0), hub_port("decaf", &ids[0], 0));
        assert_eq!(hub_port("c0ffee", &ids[0], 0), hub_port("c0ffee", &ids[0], 0));
    }
}
