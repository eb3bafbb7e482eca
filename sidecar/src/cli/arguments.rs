//! The commands and options of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config;
use crate::run::{Kind, NetworkArgument};

/// Runs MCP servers with their credentials on the host, for agents in sandboxes.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, propagate_version = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,

    /// The configuration file. Default: ./cofferdam.toml, then cofferdam/cofferdam.toml in the user's configuration directory, then /etc/cofferdam/cofferdam.toml
    #[arg(short, long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Connect to a sandbox that cannot connect out, and keep it connected until interrupted
    #[command(subcommand)]
    Attach(AttachCommand),
    /// Read and verify the audit of decisions and outcomes
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Check the configuration and list all its problems, without side effects
    Check(CheckArguments),
    /// Show how a credential is used that the sandbox never sees; needs no configuration
    Demo(DemoArguments),
    /// Enrol one sandbox: prints the enrolment string for its shim
    Enroll(EnrollArguments),
    /// End a session: its links, server processes, credentials and enrolment
    Kill(KillArguments),
    /// Print the sidecar's public key, which sandboxes pin
    Key,
    /// Make the running sidecar read its configuration again
    Reload,
    /// Run a command in a sandbox of this machine, with the tools of a grant
    Run(RunCommand),
    /// Run the sidecar
    Serve(ServeArguments),
    /// List sessions
    Sessions(SessionsArguments),
}

#[derive(Debug, Subcommand)]
pub(super) enum AttachCommand {
    /// Connect to a hub or a shim that listens
    Dial(DialArguments),
    /// Run a command whose stdin and stdout are connected to a hub: `docker exec -i`, `ssh -T`, `kubectl exec -i`, …
    Exec(ExecArguments),
}

#[derive(Debug, Args)]
pub(super) struct AttachTerms {
    /// What the sandbox may use
    #[arg(long)]
    pub(super) grant: String,
    /// The sandbox's name, by which it is recognised when it is attached again. Default: the command or the address
    #[arg(long)]
    pub(super) name: Option<String>,
    /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct DialArguments {
    /// HOST:PORT; wss://HOST[:PORT]/PATH if the port is exposed as a WebSocket; vsock:CID:PORT of a virtual machine, or
    /// vsock:PATH:PORT if its monitor has a Unix socket for its vsock (as Firecracker has)
    pub(super) address: String,
    #[command(flatten)]
    pub(super) terms: AttachTerms,
}

#[derive(Debug, Args)]
pub(super) struct ExecArguments {
    #[command(flatten)]
    pub(super) terms: AttachTerms,
    /// The command. {pin} in it is replaced by this sidecar's public key, for the hub's --pin
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Show the records of a session, a link, or one call (SESSION/LINK/SEQ)
    Show(ShowArguments),
    /// Show the last records
    Tail(TailArguments),
    /// Verify the hash chain from the first record to the last
    Verify(VerifyArguments),
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Print the JSON Schema of the configuration instead
    #[arg(long)]
    pub(super) schema: bool,
    /// Also check Vault: whether it can be reached, the login works and the policies suffice. Reads no secret
    #[arg(long, conflicts_with = "schema")]
    pub(super) online: bool,
}

#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// The static shim to use in the sandbox. Default: this program, run as the shim
    #[arg(long, value_name = "FILE")]
    pub(super) shim: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct EnrollArguments {
    /// What the sandbox may use
    #[arg(long)]
    pub(super) grant: String,
    /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) ttl: Option<Duration>,
    /// How soon the sandbox must connect for the first time
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration, default_value = "2m", conflicts_with = "socket")]
    pub(super) ticket_ttl: Duration,
    /// The sandbox's name, for lists and logs
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Instead of printing a ticket, create a socket in this directory, which is to be mounted into the sandbox
    #[arg(long, value_name = "DIR")]
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct KillArguments {
    /// The id of a session, as `cofferdam sessions` lists it, or of an enrolment, as `cofferdam enroll` prints it
    pub(super) session: String,
}

#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// The kind of sandbox
    #[arg(long, value_name = "KIND", default_value = "bwrap")]
    pub(super) sandbox: Kind,
    /// The image of a container. Default: this machine's system, read-only
    #[arg(long)]
    pub(super) image: Option<String>,
    /// What the sandbox may use. Default: the only grant, or that of `relay.unix-grant`
    #[arg(long)]
    pub(super) grant: Option<String>,
    /// What the sandbox can connect to. Default: `host` for a known harness, which must reach its model, otherwise `none`
    #[arg(long)]
    pub(super) network: Option<NetworkArgument>,
    /// A further file or directory that the sandbox sees
    #[arg(long = "mount", value_name = "SRC[:DST][:ro]")]
    pub(super) mounts: Vec<OsString>,
    /// A variable of this environment that the command gets
    #[arg(long = "env", value_name = "NAME")]
    pub(super) variables: Vec<String>,
    /// The shim to put into the sandbox. Default: `cofferdam-shim` beside this program
    #[arg(long, value_name = "FILE")]
    pub(super) shim: Option<PathBuf>,
    /// Print the command line that would be used, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not say what is in the sandbox
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    /// Stop when no `cofferdam run` uses this sidecar any more
    #[arg(long, hide = true)]
    pub(super) while_held: bool,
}

#[derive(Debug, Args)]
pub(super) struct SessionsArguments {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    /// SESSION, LINK, SESSION/LINK or SESSION/LINK/SEQ
    pub(super) id: String,
    /// Print the JSON lines of the audit files
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct TailArguments {
    /// How many records to print
    #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT")]
    pub(super) lines: u64,
    /// Print new records as they are written, until interrupted
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Print the JSON lines of the audit files
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    /// A hash that was printed earlier as `head`: fails if the record with it is no longer there
    #[arg(long, value_name = "HASH")]
    pub(super) head: Option<String>,
}
