//! The files of a sandbox whose shims run on the host as plain processes: its state directory, and the file with its enrolment
//! string.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use relay_carriage::dial::Dial;
use relay_carriage::identity::Identity;
use relay_proto::address::Address;
use serde_json::Value;

use crate::deadline::PATIENCE;
use crate::harness::Harness;
use crate::process::{built, command, output_of, read};
use crate::relay::RawRelay;
use crate::world::World;

#[derive(Debug)]
pub struct SandboxFiles {
    root: tempfile::TempDir,
}

impl SandboxFiles {
    /// Creates a sandbox without an enrolment.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("sandbox-").tempdir();
        Self { root: root.expect("a temporary directory can be made") }
    }

    /// Creates a sandbox with an enrolment string in its file.
    #[track_caller]
    pub fn enrolled(world: &World) -> Self {
        let sandbox = Self::new();
        sandbox.put(&enroll(world, &[]));
        sandbox
    }

    /// A copy of all its files, as a snapshot would have them.
    #[track_caller]
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        if self.state().exists() {
            std::fs::create_dir(copy.state()).expect("a fresh directory is writable");
        }
        for file in ["enroll", "state/enrolment.json", "state/lock"] {
            if self.root.path().join(file).exists() {
                std::fs::copy(self.root.path().join(file), copy.root.path().join(file))
                    .unwrap_or_else(|error| panic!("cannot copy {file}: {error}"));
            }
        }
        copy
    }

    /// Writes the string to the file that its shims read.
    pub fn put(&self, string: &str) {
        // Atomically: a shim may be reading it.
        let aside = self.root.path().join("enroll.new");
        std::fs::write(&aside, string).expect("a temporary directory is writable");
        std::fs::rename(&aside, self.enrolment_file()).expect("a temporary directory is writable");
    }

    pub fn enrolment_file(&self) -> PathBuf {
        self.root.path().join("enroll")
    }

    pub fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Changes the content of its state file.
    #[track_caller]
    pub fn edit(&self, change: impl FnOnce(&mut Value)) {
        let path = self.state().join("enrolment.json");
        let mut content = self.saved();
        change(&mut content);
        std::fs::write(path, content.to_string()).expect("the state is writable");
    }

    /// The content of its state file.
    #[track_caller]
    pub fn saved(&self) -> Value {
        let bytes = read(&self.state().join("enrolment.json"));
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("the state is not JSON: {error}"))
    }

    /// Its shim, with an empty environment.
    #[track_caller]
    pub fn command(&self) -> Command {
        let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
        command.env_clear().env("COFFERDAM_STATE", self.state());
        command.env("COFFERDAM_ENROLL_FILE", self.enrolment_file());
        command
    }

    /// Starts a shim, with a harness on its stdio.
    #[track_caller]
    pub fn shim(&self) -> Harness {
        Harness::start(self.command(), "cofferdam-shim")
    }

    /// Like [`Self::shim`], with the legacy handshake made.
    #[track_caller]
    pub fn connected(&self) -> Harness {
        self.shim().initialized()
    }

    /// The output of `status --json`; its exit status must be a failure if it reports trouble, and only then.
    #[track_caller]
    pub fn status(&self) -> Value {
        let output = self.run(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).expect("status --json is JSON");
        assert_eq!(output.status.success(), status.get("trouble").is_none(), "{status}");
        status
    }

    /// A relay connection that authenticates with the key in the state file.
    #[track_caller]
    pub fn relay(&self) -> RawRelay {
        let saved = self.saved();
        let text = |name: &str| saved[name].as_str().unwrap_or_default().to_owned();
        let identity = Identity::from_pkcs8(&decode_hex(&text("key"))).expect("the state has a key");
        let pin = text("pin").parse().expect("the state has a pin");
        let Ok(Address::Tls(address)) = text("relay").parse() else {
            panic!("the state has no tls:// address")
        };
        let (near, far) = UnixStream::pair().expect("a pair of sockets can be made");
        far.set_nonblocking(true).expect("a socket can be set to non-blocking");
        // Ends with the connection.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async move {
                let dial = Dial { identity: &identity, pin: &pin, proxy: None, limit: PATIENCE };
                if let (Ok(mut stream), Ok(mut far)) =
                    (dial.tls(&address).await, tokio::net::UnixStream::from_std(far))
                {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
                }
            });
        });
        RawRelay::over(near)
    }

    /// Runs its shim to the end with these arguments.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command();
        command.args(arguments);
        output_of(command, &format!("cofferdam-shim {}", arguments.join(" ")))
    }
}

/// The enrolment string that `cofferdam enroll` prints for the default grant.
#[track_caller]
pub fn enroll(world: &World, arguments: &[&str]) -> String {
    let arguments = [&["enroll", "--grant", "dev"], arguments].concat();
    world.cofferdam_text(&arguments).trim().to_owned()
}

fn decode_hex(text: &str) -> Vec<u8> {
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default();
    pairs.iter().map(|[high, low]| (digit(*high) * 16 + digit(*low)) as u8).collect()
}
