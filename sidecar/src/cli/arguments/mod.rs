//! The commands and options of the command line.

mod attach;
mod confine;
mod import;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(super) use attach::{
    AttachCommand, AttachOptions, DaytonaArguments, E2bArguments, HarnessArgument, ListArguments,
    PlatformOptions, ViaArgument,
};

pub(super) use confine::{ConfineCommand, ConfineShowArguments, ConfineTestArguments};
pub(super) use import::{DestinationArgument, HarnessArguments, HarnessNameArgument, ImportArguments};

use crate::config;
use crate::run::{Kind, LoginArgument, NetworkArgument};
use crate::terminal::colour::ColourArgument;

/// Runs MCP servers with their credentials on the host, for agents in sandboxes.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version = super::version(), propagate_version = true)]
#[command(after_help = "Example: cofferdam run -- claude")]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,

    /// The configuration file. Default: ./cofferdam.toml, then cofferdam/cofferdam.toml in the user's configuration
    /// directory, then /etc/cofferdam/cofferdam.toml
    #[arg(short, long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Whether output has colours. By default only on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    pub(super) color: ColourArgument,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Attach sandboxes: connect to them, list them, and end their attachments
    #[command(
        subcommand,
        after_help = "Example: cofferdam attach exec --grant dev -- ssh -T box1 cofferdam-shim hub --pin {pin}"
    )]
    Attach(AttachCommand),
    /// Read, verify and prune the audit of decisions and outcomes
    #[command(subcommand, after_help = "Example: cofferdam audit tail --follow")]
    Audit(AuditCommand),
    /// Check the configuration and list all its problems, without side effects
    #[command(after_help = "Example: cofferdam check --strict")]
    Check(CheckArguments),
    /// Print what completes this program's commands and options in a shell
    #[command(after_help = "\
bash reads it from ~/.local/share/bash-completion/completions/cofferdam, zsh from a file `_cofferdam` in a directory of \
its `fpath`, fish from ~/.config/fish/completions/cofferdam.fish.\n\n\
Example: cofferdam completions bash")]
    Completions(CompletionsArguments),
    /// Show what a confined server gets, and test whether that suffices
    #[command(subcommand, after_help = "Example: cofferdam confine show github")]
    Confine(ConfineCommand),
    /// Show a tool call with a credential that the sandbox never sees; needs no configuration
    #[command(after_help = "Example: cofferdam demo")]
    Demo(DemoArguments),
    /// Look for what is wrong with the configuration, this host and Vault, and name the next step
    #[command(after_help = "\
Starts each server for a moment, without calling a tool. Exits with 0 if there are only warnings.\n\n\
Example: cofferdam doctor")]
    Doctor(DoctorArguments),
    /// Enrol one sandbox: prints the enrolment string for its shim
    #[command(after_help = "Example: cofferdam enroll --grant dev --name box1 --ttl 8h")]
    Enroll(EnrollArguments),
    /// List the enrolments: which sandboxes may connect
    #[command(after_help = "Example: cofferdam enrolments")]
    Enrolments(EnrolmentsArguments),
    /// Print, add or remove the entries of a harness's settings that start the shim
    #[command(
        after_help = "Example: cofferdam harness codex --write --relay unix:/run/cofferdam/relay/relay.sock"
    )]
    Harness(HarnessArguments),
    /// Move MCP servers and their secrets from the settings of harnesses to the sidecar
    #[command(after_help = "\
Secrets are recognised by name, form and randomness, shown masked, and each can be refused. An import that was \
interrupted continues when it is run again.\n\n\
Example: cofferdam import .mcp.json --rewrite --dry-run")]
    Import(ImportArguments),
    /// End a session: its links, server processes, credentials and enrolment
    #[command(after_help = "Example: cofferdam kill box1")]
    Kill(KillArguments),
    /// Write a first configuration for this user
    #[command(after_help = "Example: cofferdam init --yes")]
    Init(InitArguments),
    /// Print the sidecar's public key, which sandboxes pin
    #[command(after_help = "Example: cofferdam key")]
    Key,
    /// Show what a server wrote to stderr
    #[command(after_help = "Example: cofferdam logs github --follow")]
    Logs(LogsArguments),
    /// Write the manual pages of all commands into a directory, for a package
    #[command(hide = true, after_help = "Example: cofferdam man-pages /usr/local/share/man/man1")]
    ManPages(ManPagesArguments),
    /// Make the running sidecar read its configuration again
    #[command(after_help = "Example: cofferdam reload")]
    Reload,
    /// Run a command in a sandbox on this machine, with the tools of a grant
    #[command(after_help = "Example: cofferdam run --grant dev -- claude")]
    Run(RunCommand),
    /// Run the sidecar
    #[command(after_help = "\
The log goes to standard error. The environment variable COFFERDAM_LOG chooses what is logged: error, warn, info (the \
default), debug or trace, also by part, as in `warn,cofferdam=debug`.\n\n\
Example: cofferdam serve -c /etc/cofferdam/cofferdam.toml")]
    Serve(ServeArguments),
    /// List sessions, and attached sandboxes
    #[command(after_help = "Example: cofferdam sessions --watch")]
    Sessions(SessionsArguments),
    /// Write the static shim for a sandbox: the one that belongs to this program
    #[command(after_help = "Example: cofferdam shim --arch aarch64 --out cofferdam-shim")]
    Shim(ShimArguments),
    /// Create, list and revoke bearer tokens of the admin API
    #[command(subcommand, after_help = "Example: cofferdam token create --grant dev --ttl 30d")]
    Token(TokenCommand),
    /// Prepare Vault or OpenBao for the configuration
    #[command(subcommand, after_help = "Example: cofferdam vault setup --dry-run")]
    Vault(VaultCommand),
}

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Remove the oldest audit files, after verifying them; `verify` then begins at the signed mark that this leaves
    #[command(after_help = "Example: cofferdam audit prune --older-than 90d")]
    Prune(PruneArguments),
    /// Show the records of a session, a link, or one call (SESSION/LINK/SEQ)
    #[command(after_help = "Example: cofferdam audit show SESSION")]
    Show(ShowArguments),
    /// Show the last records
    #[command(after_help = "Example: cofferdam audit tail --lines 50 --follow")]
    Tail(TailArguments),
    /// Verify the hash chain from the first record to the last
    #[command(after_help = "Example: cofferdam audit verify --head HASH")]
    Verify(VerifyArguments),
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Print the JSON Schema of the configuration instead
    #[arg(long, conflicts_with_all = ["strict", "json"])]
    pub(super) schema: bool,
    /// Fail if the check finds a file, program or environment variable that is missing or not protected, instead of warning
    #[arg(long)]
    pub(super) strict: bool,
    /// Print the findings as JSON
    #[arg(long, conflicts_with = "online")]
    pub(super) json: bool,
    /// Also check Vault: whether it can be reached, the login works and the policies suffice. Reads no secret
    #[arg(long, conflicts_with = "schema")]
    pub(super) online: bool,
}

#[derive(Debug, Args)]
pub(super) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub(super) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManPagesArguments {
    /// The directory, which must exist
    #[arg(value_name = "DIR")]
    pub(super) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// The static shim to use in the sandbox. Default: this program, run as the shim
    #[arg(long, value_name = "FILE")]
    pub(super) shim: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    /// Print the findings as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Do not start the servers
    #[arg(long)]
    pub(super) no_servers: bool,
}

#[derive(Debug, Args)]
pub(super) struct InitArguments {
    /// Ask nothing: take the answers that are proposed
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct LogsArguments {
    /// The server: which `[servers.NAME]` of the configuration
    #[arg(value_name = "SERVER")]
    pub(super) server: String,
    /// How many of the last lines to print
    #[arg(short = 'n', long, default_value_t = 100, value_name = "COUNT")]
    pub(super) lines: usize,
    /// Print new lines as they are written, until interrupted
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Print the JSON lines of the files
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ShimArguments {
    /// The processor of the sandbox. Default: that of this machine
    #[arg(long, value_enum)]
    pub(super) arch: Option<ArchitectureArgument>,
    /// The file to write, or `-` for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ArchitectureArgument {
    #[value(name = "aarch64", alias = "arm64")]
    Aarch64,
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
}

#[derive(Debug, Args)]
pub(super) struct EnrollArguments {
    /// The grant: which `[grants.NAME]` of the configuration the sandbox gets
    #[arg(long)]
    pub(super) grant: String,
    /// How long the sandbox stays enrolled. Default and maximum: the grant's `ttl`
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) ttl: Option<Duration>,
    /// How soon the sandbox must connect for the first time
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration, default_value = "2m", conflicts_with = "socket")]
    pub(super) ticket_ttl: Duration,
    /// The sandbox's name in lists and logs
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Instead of printing an enrolment string, create a socket in this directory, to be mounted into the sandbox
    #[arg(long, value_name = "DIR")]
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct EnrolmentsArguments {
    #[command(subcommand)]
    pub(super) command: Option<EnrolmentsCommand>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum EnrolmentsCommand {
    /// End an enrolment and its session: its sandbox cannot connect again
    #[command(after_help = "Example: cofferdam enrolments end box1")]
    End(EnrolmentsEndArguments),
}

#[derive(Debug, Args)]
pub(super) struct EnrolmentsEndArguments {
    /// The sandbox's name, or the enrolment's id
    pub(super) name: String,
}

#[derive(Debug, Args)]
pub(super) struct KillArguments {
    /// A session's id, an enrolment's id, or a sandbox's name, as `cofferdam sessions` and `cofferdam enrolments` list them
    pub(super) target: String,
}

#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// The kind of sandbox
    #[arg(long, value_name = "KIND", default_value = "bwrap")]
    pub(super) sandbox: Kind,
    /// The container image; required for docker. Default for podman: this machine's own file system, read-only
    #[arg(long)]
    pub(super) image: Option<String>,
    /// The grant: which `[grants.NAME]` of the configuration the sandbox gets. Default: the only grant, or that of
    /// `relay.unix-grant`
    #[arg(long)]
    pub(super) grant: Option<String>,
    /// What the sandbox can connect to. Default: `host` for a known harness, which must reach its model, otherwise `none`
    #[arg(long)]
    pub(super) network: Option<NetworkArgument>,
    /// What happens at the end to a login that the harness in the sandbox has refreshed
    #[arg(long, value_name = "WHAT", default_value = "copy-back")]
    pub(super) login: LoginArgument,
    /// Mount a file or directory into the sandbox; may be given several times
    #[arg(long = "mount", value_name = "SRC[:DST][:ro]")]
    pub(super) mounts: Vec<OsString>,
    /// Pass this environment variable to the command; may be given several times
    #[arg(long = "env", value_name = "NAME")]
    pub(super) variables: Vec<String>,
    /// The shim to put into the sandbox. Default: `cofferdam-shim` beside this program
    #[arg(long, value_name = "FILE")]
    pub(super) shim: Option<PathBuf>,
    /// Print the command line of the sandbox without running it
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not print the summary of the sandbox's contents
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
    /// Print JSON; with --watch, one line for each change
    #[arg(long)]
    pub(super) json: bool,
    /// Follow the sessions until interrupted: a live view on a terminal, one line for each change in a pipe
    #[arg(long)]
    pub(super) watch: bool,
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

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token and print it; it is not shown again
    #[command(after_help = "Example: cofferdam token create --grant dev --ttl 30d --name ci")]
    Create(TokenCreateArguments),
    /// List the tokens, without their secret parts
    #[command(after_help = "Example: cofferdam token list")]
    List(TokenListArguments),
    /// Revoke a token
    #[command(after_help = "Example: cofferdam token revoke ID")]
    Revoke(TokenRevokeArguments),
}

#[derive(Debug, Args)]
pub(super) struct TokenCreateArguments {
    /// A grant that the token may be used for; may be given several times
    #[arg(long = "grant", required = true, value_name = "GRANT")]
    pub(super) grants: Vec<String>,
    /// How long the token is valid. Default: 30d
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) ttl: Option<Duration>,
    /// A description, shown by `cofferdam token list`
    #[arg(long)]
    pub(super) name: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct TokenListArguments {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct TokenRevokeArguments {
    /// The token's id, as `cofferdam token list` shows it
    pub(super) id: String,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct PruneArguments {
    /// Remove files that were last written longer ago than this. The two newest files always stay
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub(super) older_than: Option<Duration>,
    /// Keep at most this many bytes of the newest files. The two newest files always stay
    #[arg(long, value_name = "SIZE", value_parser = config::parse_size)]
    pub(super) keep: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    /// A hash that an earlier run printed as `head`; fails if the record with this hash is missing
    #[arg(long, value_name = "HASH")]
    pub(super) head: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum VaultCommand {
    /// Make in Vault what the configuration needs: engines, policies, roles and the sidecar's login; then check it
    #[command(after_help = "\
Your own token comes from VAULT_TOKEN, BAO_TOKEN or ~/.vault-token, or is asked for. Every change is shown before it is \
made; what this command did not make is not changed.\n\n\
Example: cofferdam vault setup --dry-run")]
    Setup(VaultSetupArguments),
}

#[derive(Debug, Args)]
pub(super) struct VaultSetupArguments {
    /// Show the changes without making them
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not ask for a confirmation
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) yes: bool,
    /// Undo what this command has made for this configuration, and nothing else
    #[arg(long, conflicts_with = "print")]
    pub(super) remove: bool,
    /// Print the set-up as a script or configuration instead, without connecting to Vault
    #[arg(long, value_enum, value_name = "LANGUAGE", conflicts_with_all = ["dry_run", "yes"])]
    pub(super) print: Option<TextLanguage>,
    /// The name of the sidecar's policy in Vault, and of its AppRole. Default: that of the last run, or `cofferdam`
    #[arg(long)]
    pub(super) name: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum TextLanguage {
    /// Commands of `bao`, OpenBao's command line
    Bao,
    /// Terraform's or OpenTofu's configuration, for the provider `hashicorp/vault`
    Terraform,
}
