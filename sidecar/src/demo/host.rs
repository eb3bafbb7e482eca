//! The demo's host: a temporary directory with a secret and a configuration, and a real sidecar.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

use super::DemoError;
use super::SERVER;
use super::server::{KEY_VARIABLE, VALID_KEY_VARIABLE, fingerprint};

pub(super) struct Host {
    pub(super) directory: PathBuf,
    /// The secret. The demo has generated it, and searches all output for it at the end.
    pub(super) key: String,
    sidecar: Child,
}

/// For the sidecar to start, and for it to stop.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(15);

impl Host {
    pub(super) fn start(program: &Path) -> Result<Self, DemoError> {
        let doing = |what| move |source| DemoError::Io { what, source };
        let directory =
            std::env::temp_dir().join(format!("cofferdam-demo-{}", cofferdam_base::random::hex::<6>()));
        DirBuilder::new().mode(0o700).create(&directory).map_err(doing("create a directory for the demo"))?;
        let key = format!("shop-{}", cofferdam_base::random::hex::<20>());
        write_private(&directory.join("shop.key"), &key).map_err(doing("write the demo's secret"))?;
        let config = directory.join("cofferdam.toml");
        write_private(&config, &configuration(program, &directory, &key))
            .map_err(doing("write the configuration"))?;
        let log = File::create(directory.join("sidecar.log")).map_err(doing("create the sidecar's log"))?;
        #[expect(clippy::disallowed_methods, reason = "the demo is a user of the sidecar, not a part of it")]
        let sidecar = Command::new(program)
            .arg("serve")
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(doing("start the sidecar"))?;
        let mut host = Self { directory, key, sidecar };
        host.wait_until_ready()?;
        Ok(host)
    }

    pub(super) fn pid(&self) -> u32 {
        self.sidecar.id()
    }

    /// The directory that is mounted into the sandbox; it holds the socket and nothing else.
    pub(super) fn relay_directory(&self) -> PathBuf {
        self.directory.join("relay")
    }

    pub(super) fn audit_directory(&self) -> PathBuf {
        self.directory.join("state/audit")
    }

    pub(super) fn log(&self) -> Vec<u8> {
        fs::read(self.directory.join("sidecar.log")).unwrap_or_default()
    }

    /// Stops the sidecar with SIGTERM, or kills it after a timeout, and waits for its exit.
    pub(super) fn stop(&mut self) {
        if let Ok(None) = self.sidecar.try_wait() {
            let pid = Pid::from_raw(self.sidecar.id().cast_signed());
            // The sidecar may have exited meanwhile.
            let _ = kill(pid, Signal::SIGTERM);
            let deadline = Instant::now() + SIDECAR_TIMEOUT;
            while let Ok(None) = self.sidecar.try_wait()
                && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.sidecar.kill();
        let _ = self.sidecar.wait();
    }

    fn wait_until_ready(&mut self) -> Result<(), DemoError> {
        let socket = self.relay_directory().join("relay.sock");
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        while UnixStream::connect(&socket).is_err() {
            let has_exited = !matches!(self.sidecar.try_wait(), Ok(None));
            if has_exited || Instant::now() > deadline {
                return Err(DemoError::NoSidecar { log: String::from_utf8_lossy(&self.log()).into_owned() });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn configuration(program: &Path, directory: &Path, key: &str) -> String {
    let program = program.display();
    let directory = directory.display();
    let valid = fingerprint(key);
    format!(
        r#"state-dir = "{directory}/state"

[relay]
unix = "{directory}/relay/relay.sock"
unix-grant = "demo"

[admin]
socket = "{directory}/admin/admin.sock"

[secrets.shop]
file = "{directory}/shop.key"

[servers.orders]
command = ["{program}", "{SERVER}"]
env = {{ {KEY_VARIABLE} = "{{shop.value}}", {VALID_KEY_VARIABLE} = "{valid}" }}
tools = {{ deny = ["delete_*"] }}

[grants.demo]
servers = ["orders"]
ttl = "10m"
"#
    )
}
