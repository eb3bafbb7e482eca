//! The commands and options of `attach`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::config;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum AttachCommand {
    /// Attach a sandbox on Daytona, and keep it attached until interrupted
    #[command(after_help = "Example: cofferdam attach daytona SANDBOX_ID --grant dev --keep-awake")]
    Daytona(DaytonaArguments),
    /// Attach a sandbox on E2B or a compatible platform, and keep it attached until interrupted
    #[command(after_help = "Example: cofferdam attach e2b SANDBOX_ID --grant dev --harness claude")]
    E2b(E2bArguments),
    /// End the attachment of a sandbox on a platform: its pipe, sessions and enrolment
    #[command(after_help = "Example: cofferdam attach end box1")]
    End(EndArguments),
    /// List the attachments of sandboxes on platforms
    #[command(after_help = "Example: cofferdam attach list")]
    List(ListArguments),
    /// Connect to a hub or a shim that listens
    #[command(after_help = "Example: cofferdam attach dial box1.internal:7443 --grant dev")]
    Dial(DialArguments),
    /// Run a command whose stdin and stdout are connected to a hub: `docker exec -i`, `ssh -T`, `kubectl exec -i`, …
    #[command(
        after_help = "Example: cofferdam attach exec --grant dev -- docker exec -i box1 cofferdam-shim hub --pin {pin}"
    )]
    Exec(ExecArguments),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct AttachOptions {
    /// The grant: which `[grants.NAME]` of the configuration the sandbox gets
    #[arg(long)]
    pub(in crate::cli) grant: String,
    /// The sandbox's name, by which it is recognised when it is attached again. Default: the command or the address
    #[arg(long)]
    pub(in crate::cli) name: Option<String>,
    /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(in crate::cli) ttl: Option<Duration>,
}

/// The options that `attach e2b` and `attach daytona` have in common.
#[derive(Debug, Args)]
pub(in crate::cli) struct PlatformOptions {
    /// The sandbox's name in lists and logs, and for `attach end` and `kill`. Default: its id
    #[arg(long)]
    pub(in crate::cli) name: Option<String>,
    /// The platform's table `[platforms.NAME]` in the configuration. Default: `[platforms.e2b]`
    /// for `attach e2b` and `[platforms.daytona]` for `attach daytona`, or the only table of that kind
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) platform: Option<String>,
    /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(in crate::cli) ttl: Option<Duration>,
    /// Resume the sandbox if it is paused or stopped now. Without this option it is attached once it is resumed on the platform
    #[arg(long)]
    pub(in crate::cli) resume: bool,
    /// Return once the sandbox is attached; the sidecar keeps it attached, also across its restarts
    #[arg(long)]
    pub(in crate::cli) detach: bool,
    /// Add the servers of the grant to the settings file of this harness in the sandbox. Other settings in the file stay
    #[arg(long, value_enum)]
    pub(in crate::cli) harness: Option<HarnessArgument>,
    /// The static shim to upload. Default: `cofferdam-shim-ARCHITECTURE` or `cofferdam-shim` beside the sidecar's program
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) shim: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub(in crate::cli) quiet: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct E2bArguments {
    /// The sandbox's id on its platform
    #[arg(required_unless_present = "template")]
    pub(in crate::cli) sandbox: Option<String>,
    /// The grant: which `[grants.NAME]` of the configuration the sandbox gets
    #[arg(long, required_unless_present = "template")]
    pub(in crate::cli) grant: Option<String>,
    /// Instead of attaching, print the lines to add to a template's Dockerfile, so that its sandboxes contain the shim
    #[arg(long, conflicts_with_all = ["sandbox", "grant", "name", "platform", "ttl", "resume", "detach", "harness", "dial_out"])]
    pub(in crate::cli) template: bool,
    /// Let the sandbox connect to this sidecar's `relay.advertise`, a `wss://` address, instead of using the platform's
    /// exec stream
    #[arg(long)]
    pub(in crate::cli) dial_out: bool,
    #[command(flatten)]
    pub(in crate::cli) options: PlatformOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DaytonaArguments {
    /// The sandbox's id on its platform
    pub(in crate::cli) sandbox: String,
    /// The grant: which `[grants.NAME]` of the configuration the sandbox gets
    #[arg(long)]
    pub(in crate::cli) grant: String,
    /// Count the attachment as activity, so that the platform does not stop the sandbox
    #[arg(long)]
    pub(in crate::cli) keep_awake: bool,
    /// How the sandbox is reached
    #[arg(long, value_enum, default_value_t = ViaArgument::Preview)]
    pub(in crate::cli) via: ViaArgument,
    #[command(flatten)]
    pub(in crate::cli) options: PlatformOptions,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(in crate::cli) enum ViaArgument {
    /// The sandbox connects to this sidecar's `relay.advertise`, a `wss://` address
    DialOut,
    /// A WebSocket through the platform's preview proxy
    Preview,
    /// The system's `ssh`, through the platform's SSH gateway
    Ssh,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(in crate::cli) enum HarnessArgument {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// Gemini CLI
    Gemini,
    /// opencode
    Opencode,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct EndArguments {
    /// The sandbox's name, as `cofferdam attach list` shows it
    pub(in crate::cli) name: String,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DialArguments {
    /// HOST:PORT; wss://HOST[:PORT]/PATH if the port is exposed as a WebSocket; vsock:CID:PORT of a virtual machine, or
    /// vsock:PATH:PORT if its monitor has a Unix socket for its vsock (as Firecracker has)
    pub(in crate::cli) address: String,
    #[command(flatten)]
    pub(in crate::cli) options: AttachOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ExecArguments {
    #[command(flatten)]
    pub(in crate::cli) options: AttachOptions,
    /// The command. {pin} in it is replaced by this sidecar's public key, for the hub's --pin
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(in crate::cli) command: Vec<OsString>,
}
