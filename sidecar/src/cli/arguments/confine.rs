//! The commands and options of `cofferdam confine`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ConfineCommand {
    /// Show what a server gets when it starts: files, variables, hosts, walls and limits
    #[command(after_help = "\
Nothing is started, and no secret is read. Run it as the sidecar's user, with the sidecar's environment: home, PATH and \
permissions decide what is found.\n\n\
Example: cofferdam confine show github")]
    Show(ConfineShowArguments),
    /// Start a server inside its walls, replay a use of it, and list what it asked for and was refused
    #[command(after_help = "\
The server gets its real credentials, and a recorded use calls its tools again. Exits with 77 if something was refused that an \
entry of its profile would allow, with 69 if the server does not work.\n\n\
Example: cofferdam confine test github --use use.jsonl")]
    Test(ConfineTestArguments),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ConfineTestArguments {
    /// The server: which `[servers.NAME]` of the configuration
    #[arg(value_name = "SERVER")]
    pub(in crate::cli) server: String,
    /// A file with one request of MCP as JSON on each line: its `method` and, if it has them, its `params`
    #[arg(long = "use", value_name = "FILE")]
    pub(in crate::cli) recorded: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ConfineShowArguments {
    /// The server: which `[servers.NAME]` of the configuration
    #[arg(value_name = "SERVER")]
    pub(in crate::cli) server: String,
    /// Print JSON
    #[arg(long)]
    pub(in crate::cli) json: bool,
    /// Print the narrowest AgentManifest for what the server gets
    #[arg(long, conflicts_with = "json")]
    pub(in crate::cli) manifest: bool,
}
