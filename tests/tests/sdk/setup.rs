//! A sidecar with doubles of the platforms, for a script that uses one of our SDKs and the SDK of a platform.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::installed_programs::InstalledPrograms;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::output_of;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use cofferdam_tests::{daytona_double, e2b_double};
use daytona_double::{DaytonaDouble, Speed};
use e2b_double::E2bDouble;

/// Doubles of both platforms, and a sidecar that is configured for them and finds the shim in its own directory.
pub(crate) struct SdkSetup {
    pub(crate) world: World,
    e2b: E2bDouble,
    daytona: DaytonaDouble,
    address: String,
    files: tempfile::TempDir,
    /// While this file exists, E2B's control API does not respond.
    hold_file: PathBuf,
    _programs: InstalledPrograms,
}

impl SdkSetup {
    /// `None` if bubblewrap is missing, which is reported.
    #[track_caller]
    pub(crate) fn new() -> Option<Self> {
        let (e2b, daytona) = (E2bDouble::start()?, DaytonaDouble::start(Speed(1))?);
        let (address, relay, authority) = (free_address(), free_address(), Authority::new());
        let files = tempfile::tempdir().expect("a temporary directory can be made");
        let (certificate, key) = authority.server(&address.ip().to_string()).write(files.path(), "server");
        authority.write(files.path(), "authority");
        let programs = InstalledPrograms::new();
        let world = World::new()
            .program(programs.sidecar())
            .server("tools", Server::fixture())
            .secret_file("e2b-key", e2b_double::API_KEY)
            .secret_file("daytona-key", daytona_double::API_KEY)
            .line(&format!(
                "platforms.e2b = {{ api-key = '{{e2b-key.value}}', api-url = '{}', sandbox-url = '{}', grants = ['dev'] }}",
                e2b.api_url(),
                e2b.sandbox_url()
            ))
            .line(&format!(
                "platforms.daytona = {{ api-key = '{{daytona-key.value}}', api-url = '{}', sandbox-url = '{}', grants = ['dev'] }}",
                daytona.api_url(),
                daytona.proxy_url()
            ))
            .relay(&format!("tls = \"{relay}\""))
            .admin(&format!("tls = \"{address}\"\ncert-file = {certificate:?}\nkey-file = {key:?}"))
            .admin("[grants.other]\nservers = [\"tools\"]\nttl = \"1h\"")
            .start();
        wait_until("the port is open", || TcpStream::connect(address).is_ok());
        let hold_file = files.path().join("hold");
        e2b.hold_while_exists(&hold_file);
        let address = format!("https://{address}");
        Some(Self { world, e2b, daytona, address, files, hold_file, _programs: programs })
    }

    /// Sets the environment of a script: the platforms, and the admin socket.
    pub(crate) fn use_socket(&self, script: &mut Command) {
        script.env_clear().env("PATH", "/usr/bin:/bin").current_dir(self.files.path());
        script.env("HOME", self.files.path()).env("COFFERDAM_ADMIN_SOCKET", &self.world.layout().admin);
        script.env("E2B_API_URL", self.e2b.api_url()).env("E2B_SANDBOX_URL", self.e2b.sandbox_url());
        script.env("E2B_API_KEY", e2b_double::API_KEY).env("HOLD_FILE", &self.hold_file);
        script.env("DAYTONA_API_KEY", daytona_double::API_KEY).env("DAYTONA_API_URL", self.daytona.api_url());
        script.env("DAYTONA_USE_DEPRECATED_POLLING", "true").env("SANDBOX", self.daytona.sandbox_id());
    }

    /// Like [`Self::use_socket`], with the TLS address, a token of the grant `dev` and the authority instead of the socket.
    /// Returns the token.
    pub(crate) fn use_tls(&self, script: &mut Command) -> String {
        self.use_socket(script);
        let token = self.world.cofferdam_text(&["token", "create", "--grant", "dev"]);
        script.env_remove("COFFERDAM_ADMIN_SOCKET").env("COFFERDAM_URL", &self.address);
        script.env("COFFERDAM_TOKEN", &token).env("COFFERDAM_CA_FILE", self.authority());
        token.trim().to_owned()
    }

    fn authority(&self) -> PathBuf {
        let mut found = std::fs::read_dir(self.files.path()).expect("the directory is there").flatten();
        let is_authority = |path: &Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("authority"))
        };
        found.find_map(|entry| Some(entry.path()).filter(|path| is_authority(path))).expect("it was written")
    }
}

/// Runs a script to its end and returns its output.
#[track_caller]
pub(crate) fn run(script: Command, name: &str) -> String {
    let output = output_of(script, name);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    stdout + &stderr
}

pub(crate) fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace").join("packaging")
}

/// The first code block of this language in a Markdown text.
#[track_caller]
pub(crate) fn first_code_block(readme: &str, language: &str) -> String {
    let (_, after) = readme.split_once(&format!("```{language}\n")).expect("the README has a block");
    after.split_once("```").expect("the block ends").0.to_owned()
}
