//! A real PostgreSQL: a cluster of the test's own, in its own directory, on its own loopback address and Unix socket.
//!
//! It is ended by its process id when the test is over, and by the kernel if the test itself is killed and `setpriv` is
//! installed. PostgreSQL refuses to run as root, so a test that runs as root starts it in a user namespace in which
//! root has another user id; no other account is needed. The thread that starts PostgreSQL has to
//! outlive it: for the kernel, that thread is the parent, and when it ends, the kernel kills PostgreSQL.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::deadline::{PATIENCE, holds_within};
use crate::openbao::killed_with_parent;
use crate::port::free_address;
use crate::process::{Running, command, into_file, output_of, read};
use crate::tools::{Tool, on_path};

/// The superuser; needs no password on the Unix socket.
const OWNER: &str = "postgres";
/// The superuser's password over TCP.
pub const OWNER_PASSWORD: &str = "the-owner-of-the-cluster";
/// The id of the account `nobody`, which every system has: `initdb` needs a user name.
const NOBODY: &str = "65534";

/// A cluster, running unless it was stopped.
#[derive(Debug)]
pub struct Postgres {
    process: Option<Running>,
    directory: TempDir,
    programs: PathBuf,
    /// Its TCP listener, which asks for passwords.
    pub listens_at: SocketAddr,
}

/// An executed statement, from the log of the cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Statement {
    pub user: String,
    pub text: String,
}

impl Postgres {
    /// Creates a cluster and starts it; `None` where PostgreSQL is missing.
    #[track_caller]
    pub fn start() -> Option<Self> {
        let programs = Tool::Postgres.path()?;
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let mut cluster = Self { process: None, directory, programs, listens_at: free_address() };
        let mut initdb = cluster.program("initdb");
        initdb.arg("-D").arg(cluster.data()).args(["-U", OWNER, "--no-sync", "--no-locale", "-E", "UTF8"]);
        initdb.args(["--wal-segsize=1", "--auth-local=trust", "--auth-host=scram-sha-256"]);
        assert_success("initdb", &output_of(initdb, "initdb"));
        let rules = cluster.data().join("pg_hba.conf");
        let rules_text = "local all all trust\nhost all all 127.0.0.0/8 scram-sha-256\n";
        std::fs::write(rules, rules_text).expect("the cluster's directory is ours");
        cluster.up();
        cluster.query(&format!("ALTER ROLE {OWNER} PASSWORD '{OWNER_PASSWORD}'"));
        Some(cluster)
    }

    /// Starts the server and waits until it responds.
    #[track_caller]
    pub fn up(&mut self) {
        let mut server = self.program("postgres");
        server.arg("-D").arg(self.data()).arg("-k").arg(self.directory.path());
        server
            .arg("-h")
            .arg(self.listens_at.ip().to_string())
            .arg("-p")
            .arg(self.listens_at.port().to_string());
        let settings =
            ["fsync=off", "jit=off", "log_statement=all", "log_line_prefix=%u|", "max_connections=80"];
        server.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let log = self.directory.path().join("log");
        server.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
        self.process = Some(Running::spawn(server, "PostgreSQL"));
        let responds =
            holds_within(PATIENCE, || self.run_psql(&self.owner_url(), "SELECT 1").status.success());
        assert!(responds, "PostgreSQL did not respond:\n{}", self.log());
    }

    /// Stops it in an orderly way and closes its connections.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.signal(Signal::SIGINT);
        process.wait(PATIENCE);
    }

    /// Runs a query of the owner over the Unix socket; returns a line per row, with `|` between fields.
    #[track_caller]
    pub fn query(&self, sql: &str) -> Vec<String> {
        let output = self.run_psql(&self.owner_url(), sql);
        assert_success(sql, &output);
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Logs in with this URL; the error is PostgreSQL's message.
    #[track_caller]
    pub fn log_in(&self, url: &str) -> Result<(), String> {
        let output = self.run_psql(url, "SELECT 1");
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The URL for this user.
    pub fn url(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@{}/postgres", self.listens_at)
    }

    /// The prepared statements that were executed, oldest first, without an incomplete last line of the log.
    pub fn executed(&self) -> Vec<Statement> {
        let log = self.log();
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let statement = |line: &str| {
            let (user, rest) = line.split_once('|')?;
            let (_, text) = rest.strip_prefix("LOG:  execute ")?.split_once(": ")?;
            Some(Statement { user: user.to_owned(), text: text.to_owned() })
        };
        whole.lines().filter_map(statement).collect()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&read(&self.directory.path().join("log"))).into_owned()
    }

    fn owner_url(&self) -> String {
        format!(
            "postgres://{OWNER}@/postgres?host={}&port={}",
            self.directory.path().display(),
            self.listens_at.port()
        )
    }

    fn run_psql(&self, url: &str, sql: &str) -> Output {
        let mut psql = self.with_libraries(command(self.programs.join("psql")));
        psql.args(["-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]);
        psql.env("PGCONNECT_TIMEOUT", "10");
        output_of(psql, "psql")
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A program of PostgreSQL that is killed with the test and never runs as root.
    fn program(&self, name: &str) -> Command {
        let killed_with_parent = killed_with_parent(&self.programs.join(name));
        let unprivileged = match on_path("unshare").filter(|_| nix::unistd::geteuid().is_root()) {
            Some(unshare) => {
                let mut unprivileged = command(unshare);
                unprivileged.args(["--user", "--map-user", NOBODY, "--map-group", NOBODY, "--"]);
                unprivileged.arg(killed_with_parent.get_program()).args(killed_with_parent.get_args());
                unprivileged
            }
            None => killed_with_parent,
        };
        self.with_libraries(unprivileged)
    }

    /// Clears the environment, and adds the libraries that were unpacked beside the programs.
    fn with_libraries(&self, mut command: Command) -> Command {
        let libraries = self.programs.ancestors().nth(3).map(Path::to_owned).unwrap_or_default();
        let architecture = format!("{}-linux-gnu", std::env::consts::ARCH);
        command.env_clear().env("LD_LIBRARY_PATH", libraries.join(architecture));
        command
    }
}

/// An immediate shutdown, which ends its child processes too; after a SIGKILL they would run until they detect it.
impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.signal(Signal::SIGQUIT);
            let _ = holds_within(Duration::from_secs(10), || !process.is_running());
        }
        if std::thread::panicking() {
            let log = self.log();
            let skipped = log.lines().count().saturating_sub(40);
            let end: Vec<&str> = log.lines().skip(skipped).collect();
            eprintln!("=== PostgreSQL's log (end)\n{}", end.join("\n"));
        }
    }
}

#[track_caller]
fn assert_success(what: &str, output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
