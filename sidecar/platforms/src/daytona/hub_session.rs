//! The hub as a background command of a toolbox session, listening on a loopback port of the sandbox.
//!
//! What must stay true: at most one hub per sidecar and sandbox, because the session's id follows from the sidecar's key;
//! the command holds nothing secret: Daytona keeps it and shows it to every member of the organisation.

use super::install::{DIRECTORY, InstalledShim, SHIM_PREFIX};
use super::toolbox::{Session, Toolbox};
use crate::rest::printable;
use crate::{Architecture, HubSetup, PlatformError, SandboxId};

/// Ports that are tried, should another program of the sandbox listen on one.
pub(super) const PORT_ATTEMPTS: u32 = 3;
/// Older versions of Daytona expose 3000 to 9999 only; many programs choose a round number or one below these.
const FIRST_PORT: u32 = 6800;
const PORTS: u32 = 3000;
/// The hub's exit code while another hub serves the sandbox's shims.
const EX_TEMPFAIL: i64 = 75;

/// EADDRINUSE in the hub's message. The words before it depend on the C library.
const ADDRESS_IN_USE: &str = "(os error 98)";

pub(super) const STARTING: &str = "start the hub in the sandbox";

/// A hub of this sidecar in a sandbox.
pub(super) struct HubSession {
    id: String,
}

/// What became of a hub that was started.
pub(super) enum HubFate {
    Running,
    /// Its port is in use.
    PortTaken,
}

impl HubSession {
    pub(super) fn of(setup: &HubSetup) -> Result<Self, PlatformError> {
        let is_plain = !setup.pin.is_empty() && setup.pin.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_plain {
            let why = "the sidecar's key is not hexadecimal".to_owned();
            return Err(PlatformError::Protocol { doing: STARTING, why });
        }
        let short: String = setup.pin.chars().take(16).collect();
        Ok(Self { id: format!("cofferdam-hub-{short}") })
    }

    /// The port of a running hub, if it is of the shim that would be installed now.
    pub(super) async fn running(
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

    /// Starts the hub, after whatever ran in its session.
    pub(super) async fn start(
        &self,
        toolbox: &Toolbox,
        shim: &InstalledShim,
        setup: &HubSetup,
        port: u16,
    ) -> Result<(), PlatformError> {
        self.end(toolbox).await?;
        toolbox.start(STARTING, &self.id, &command(&shim.digest, &setup.pin, port)).await
    }

    /// Why the hub cannot be connected to, if it has exited.
    pub(super) async fn fate(&self, toolbox: &Toolbox) -> Result<HubFate, PlatformError> {
        let session = toolbox.session(STARTING, &self.id).await?;
        let Some(code) = session.and_then(|session| session.commands.last()?.exit_code) else {
            return Ok(HubFate::Running);
        };
        let log = toolbox.execute(STARTING, &format!("tail -c 600 {DIRECTORY}/hub.log")).await?.result;
        if log.contains(ADDRESS_IN_USE) {
            return Ok(HubFate::PortTaken);
        }
        let why = format!("it ended with exit code {code}: {}", printable(&log));
        Err(match code {
            EX_TEMPFAIL => PlatformError::Unavailable { doing: STARTING, why, retry_after: None },
            _ => PlatformError::Sandbox { doing: STARTING, why },
        })
    }

    pub(super) async fn end(&self, toolbox: &Toolbox) -> Result<(), PlatformError> {
        toolbox.end("end the hub in the sandbox", &self.id).await
    }
}

/// The port of the hub in a sandbox. It differs between sidecars, so that two of them do not take each other's.
pub(super) fn port(pin: &str, id: &SandboxId, attempt: u32) -> u16 {
    // FNV-1a: only to spread the numbers.
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

fn command(digest: &str, pin: &str, port: u16) -> String {
    format!("{DIRECTORY}/{SHIM_PREFIX}{digest} hub --pin {pin}{LISTEN}{port} 2>{DIRECTORY}/hub.log")
}

/// Reads [`command`] back. The session's own word for it comes from the sandbox: at worst, a wrong port of it is dialled.
fn running_hub(session: &Session) -> Option<RunningHub> {
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

    #[test]
    fn a_running_hub_is_recognised_by_its_command() {
        let digest = "ab".repeat(32);
        let session = |exit_code| Session {
            commands: vec![SessionCommand { command: command(&digest, "c0ffee", 7001), exit_code }],
        };
        let hub = running_hub(&session(None)).unwrap();
        assert_eq!((hub.digest, hub.port), (digest.clone(), 7001));
        assert!(running_hub(&session(Some(0))).is_none());
        let other = SessionCommand { command: "sleep 9".into(), exit_code: None };
        assert!(running_hub(&Session { commands: vec![other] }).is_none());
    }

    #[test]
    fn ports_are_in_the_range_that_every_version_exposes() {
        let ids = ["a", "sandbox-1", "0f1b2c3d"].map(|id| id.parse::<SandboxId>().unwrap());
        for (id, attempt) in ids.iter().zip(0..PORT_ATTEMPTS) {
            assert!((3000..=9999).contains(&port("c0ffee", id, attempt)));
        }
        assert_ne!(port("c0ffee", &ids[0], 0), port("c0ffee", &ids[0], 1));
        assert_ne!(port("c0ffee", &ids[0], 0), port("decaf", &ids[0], 0));
        assert_eq!(port("c0ffee", &ids[0], 0), port("c0ffee", &ids[0], 0));
    }
}
