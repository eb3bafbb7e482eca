//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

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
    /// Read the record of decisions and outcomes
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Say everything that is wrong with the configuration, without side effects
    Check(CheckArguments),
    /// Watch a credential being used and never seen; needs no configuration
    Demo(DemoArguments),
    /// End a session: its links, its processes, its credentials
    Kill(KillArguments),
    /// Make the running sidecar read its configuration again
    Reload,
    /// Run the sidecar
    Serve,
    /// Show who is here
    Sessions(SessionsArguments),
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
}

#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// The static shim to put into the sandbox; else this program plays the shim
    #[arg(long, value_name = "FILE")]
    pub(super) shim: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct KillArguments {
    /// As `cofferdam sessions` shows it
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
