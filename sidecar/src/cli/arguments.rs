//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config;

/// Credentials for sandboxed agents' tools, on the host's side of the dam.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, propagate_version = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,

    /// The configuration; else ./cofferdam.toml, then the user's and the system's configuration folder
    #[arg(short, long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Reach into a sandbox that cannot reach out, and stay there until interrupted
    #[command(subcommand)]
    Attach(AttachCommand),
    /// Read the record of decisions and outcomes
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Say everything that is wrong with the configuration, without side effects
    Check(CheckArguments),
    /// Watch a credential being used and never seen; needs no configuration
    Demo(DemoArguments),
    /// Let one sandbox in: prints the string that its shim needs
    Enroll(EnrollArguments),
    /// End a session: its links, its processes, its credentials, its enrolment
    Kill(KillArguments),
    /// Print the sidecar's public key, which sandboxes pin
    Key,
    /// Make the running sidecar read its configuration again
    Reload,
    /// Run the sidecar
    Serve,
    /// Show who is here
    Sessions(SessionsArguments),
}

#[derive(Debug, Subcommand)]
pub(super) enum AttachCommand {
    /// Dial a hub or a shim that listens
    Dial(DialArguments),
    /// Run a command whose stdin and stdout lead to a hub: `docker exec -i`, `ssh -T`, `kubectl exec -i`, …
    Exec(ExecArguments),
}

#[derive(Debug, Args)]
pub(super) struct AttachTerms {
    /// What the sandbox may use
    #[arg(long)]
    pub(super) grant: String,
    /// What people call it, and by what it is known when it is attached again; else the command or the address
    #[arg(long)]
    pub(super) name: Option<String>,
    /// How long it may stay; else as long as the grant lasts
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct DialArguments {
    /// HOST:PORT; wss://HOST[:PORT]/PATH where the port is exposed as a WebSocket; vsock:CID:PORT of a virtual machine, or
    /// vsock:PATH:PORT where its monitor has a Unix socket for its vsock (Firecracker and the like)
    pub(super) place: String,
    #[command(flatten)]
    pub(super) terms: AttachTerms,
}

#[derive(Debug, Args)]
pub(super) struct ExecArguments {
    #[command(flatten)]
    pub(super) terms: AttachTerms,
    /// The command; {pin} in it becomes this sidecar's public key, for the hub's --pin
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Show the records of a session, a link, or one call (SESSION/LINK/SEQ)
    Show(ShowArguments),
    /// Show the last records
    Tail(TailArguments),
    /// Check the chain from the first record to the last
    Verify(VerifyArguments),
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Print the JSON Schema of the configuration instead
    #[arg(long)]
    pub(super) schema: bool,
    /// Ask Vault too: is it there, does the login work, what do the policies lack? Reads no secret
    #[arg(long, conflicts_with = "schema")]
    pub(super) online: bool,
}

#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// The static shim to put into the sandbox; else this program plays the shim
    #[arg(long, value_name = "FILE")]
    pub(super) shim: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct EnrollArguments {
    /// What the sandbox may use
    #[arg(long)]
    pub(super) grant: String,
    /// How long it may come; else as long as the grant lasts
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) ttl: Option<Duration>,
    /// How soon it must come for the first time
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration, default_value = "2m", conflicts_with = "socket")]
    pub(super) ticket_ttl: Duration,
    /// What people call it
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Make a socket in this directory, to be mounted into the sandbox, instead of a ticket
    #[arg(long, value_name = "DIR")]
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct KillArguments {
    /// As `cofferdam sessions` shows it; or an enrolment, as `cofferdam enroll` names it
    pub(super) session: String,
}

#[derive(Debug, Args)]
pub(super) struct SessionsArguments {
    /// As JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    pub(super) id: String,
    /// As they are on disk
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct TailArguments {
    /// How many
    #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT")]
    pub(super) lines: u64,
    /// Go on with new ones until interrupted
    #[arg(short, long)]
    pub(super) follow: bool,
    /// As they are on disk
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    /// The last hash that was seen, to find a cut tail
    #[arg(long, value_name = "HASH")]
    pub(super) head: Option<String>,
}
