//! The arguments of `import` and `harness`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArguments {
    /// Settings files of harnesses. Default: those in the current directory and the home that exist
    #[arg(value_name = "FILE")]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// Where secrets go: files in `secrets/` beside the configuration, or a key-value engine of the configuration's Vault
    #[arg(long, value_enum, value_name = "WHERE", default_value = "file", conflicts_with_all = ["undo", "forget"])]
    pub(in crate::cli) to: DestinationArgument,
    /// With `--to vault`: the path below which secrets are stored
    #[arg(long, value_name = "PATH", default_value = "secret/cofferdam", conflicts_with_all = ["undo", "forget"])]
    pub(in crate::cli) kv_path: String,
    /// The grant that gets the servers. Default: the only one, that of `relay.unix-grant`, or a new one, `dev`
    #[arg(long, conflicts_with_all = ["undo", "forget"])]
    pub(in crate::cli) grant: Option<String>,
    /// Replace the servers in the settings by the shim, and keep a backup of each file
    #[arg(long, conflicts_with_all = ["undo", "forget"])]
    pub(in crate::cli) rewrite: bool,
    #[command(flatten)]
    pub(in crate::cli) shim: ShimProgramArguments,
    /// Show what would be done, ask nothing and change nothing
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// Ask nothing: every secret that is found is moved
    #[arg(long, conflicts_with = "dry_run")]
    pub(in crate::cli) yes: bool,
    /// Restore these settings files as they were before they were rewritten
    #[arg(long, requires = "files")]
    pub(in crate::cli) undo: bool,
    /// Delete the backups of rewritten settings, which contain the secrets
    #[arg(long, conflicts_with_all = ["undo", "files"])]
    pub(in crate::cli) forget: bool,
}

/// How an entry starts the shim.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShimProgramArguments {
    /// The shim's program, as the harness finds it in the sandbox
    #[arg(long, value_name = "PROGRAM", default_value = "cofferdam-shim")]
    pub(in crate::cli) shim: String,
    /// The link for the shim's `--relay`. Default: none, so that the shim finds the relay by itself
    #[arg(long, value_name = "LINK")]
    pub(in crate::cli) relay: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(in crate::cli) enum DestinationArgument {
    File,
    Vault,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct HarnessArguments {
    /// The harness
    #[arg(value_enum)]
    pub(in crate::cli) name: HarnessNameArgument,
    /// Add the entries to the settings file
    #[arg(long)]
    pub(in crate::cli) write: bool,
    /// Remove the entries from the settings file
    #[arg(long, conflicts_with = "write")]
    pub(in crate::cli) remove: bool,
    /// The settings file. Default: the harness's own of this user; for VS Code that of the project
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) file: Option<PathBuf>,
    /// The grant whose servers get an entry. Default: every server of the configuration
    #[arg(long)]
    pub(in crate::cli) grant: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) shim: ShimProgramArguments,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(in crate::cli) enum HarnessNameArgument {
    Claude,
    Codex,
    Gemini,
    #[value(name = "opencode")]
    OpenCode,
    #[value(name = "vscode")]
    VsCode,
}
