//! The command-line client: `servers`, `tools` and `call`, for scripts in a sandbox that have no MCP client.
//!
//! `servers` requests the sidecar's status. `tools` and `call` open a link as any shim does, with the relay in this process
//! and this module in the place of the harness: so every kind of link works, and a lost connection is resumed.
//!
//! What must stay true: data goes to stdout and messages for the user to stderr; arguments are checked before anything
//! is sent; a link ends with its command, also after a signal; no tool is called twice.
//!
//! | module | what it holds |
//! |---|---|
//! | `arguments` | reading and checking the arguments of a call |
//! | `conversation` | requests and responses of one MCP client, in either era |
//! | `relayed` | a conversation with a server through a relay in this process |
//! | `messages` | the messages that the client sends |
//! | `listing`, `result` | the output of `servers` and `tools`, and of `call` |

mod arguments;
mod conversation;
mod listing;
mod messages;
mod relayed;
mod result;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use relay_proto::address::Address;
use relay_proto::name::Name;

use crate::client_command::ClientCommand;
use crate::failure::Failure;
use crate::options::{Options, OutputFormat};
use crate::{EX_IOERR, EX_OSERR, print_error, status};
use arguments::Arguments;
use relayed::{Signals, with_server};

/// What a command writes to stdout and stderr, and its exit code.
#[derive(Debug, Default, Eq, PartialEq)]
struct CommandOutput {
    stdout: Vec<u8>,
    stderr: String,
    exit: u8,
}

/// The whole program, after the command line was read.
pub(crate) fn main(command: ClientCommand, options: Options, format: OutputFormat) -> ExitCode {
    let command = match CheckedCommand::new(command) {
        Ok(command) => command,
        Err(failure) => return print_output(failure_output(&failure, format)),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("start: {error}"));
            return ExitCode::from(EX_OSERR);
        }
    };
    print_output(runtime.block_on(run(command, options, format)))
}

/// A command whose arguments can be sent.
enum CheckedCommand {
    Call { server: Name, tool: String, arguments: Arguments },
    Servers,
    Tools(Option<Name>),
}

impl CheckedCommand {
    /// Reads and checks the arguments of a call, from stdin too.
    fn new(command: ClientCommand) -> Result<Self, Failure> {
        Ok(match command {
            ClientCommand::Call { server, tool, arguments } => {
                let arguments = Arguments::read(&tool, arguments, io::stdin())?;
                Self::Call { server, tool, arguments }
            }
            ClientCommand::Servers => Self::Servers,
            ClientCommand::Tools { server } => Self::Tools(server),
        })
    }
}

async fn run(command: CheckedCommand, options: Options, format: OutputFormat) -> CommandOutput {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            return failure_output(&Failure::unavailable(&format!("watch for signals: {error}")), format);
        }
    };
    match command {
        CheckedCommand::Call { server, tool, arguments } => {
            let called = with_server(&options, Some(server), &mut signals, async |conversation| {
                conversation.call(&tool, &arguments).await
            });
            match called.await {
                Ok(result) => result::format_result(&result, format),
                Err(failure) => failure_output(&failure, format),
            }
        }
        CheckedCommand::Servers => match status::fetch(options).await.1 {
            Ok(status) => CommandOutput {
                stdout: listing::format_servers(&status.servers, format),
                ..CommandOutput::default()
            },
            Err(failure) => failure_output(&failure, format),
        },
        CheckedCommand::Tools(server) => match servers_to_list(server, &options).await {
            Ok(servers) => list_tools(servers, &options, &mut signals, format).await,
            Err(failure) => failure_output(&failure, format),
        },
    }
}

/// The server that was named, or all that are granted. A link that can be opened only once leaves no connection for asking
/// which servers are granted: then `None` stands for the only granted server, and the sidecar refuses it if there are
/// several.
async fn servers_to_list(server: Option<Name>, options: &Options) -> Result<Vec<Option<Name>>, Failure> {
    match (server, &options.relay) {
        (Some(server), _) => Ok(vec![Some(server)]),
        (None, Some(Address::Fd(_) | Address::Listen(_))) => Ok(vec![None]),
        (None, _) => Ok(status::fetch(options.clone()).await.1?.servers.into_iter().map(Some).collect()),
    }
}

/// Lists each server's tools. A server that fails does not hide the others; the exit code is that of the first failure.
async fn list_tools(
    servers: Vec<Option<Name>>,
    options: &Options,
    signals: &mut Signals,
    format: OutputFormat,
) -> CommandOutput {
    let mut listings = Vec::new();
    for server in servers {
        let listed = with_server(options, server.clone(), signals, async |conversation| {
            conversation.list_tools().await
        });
        let tools = listed.await;
        let interrupted = tools.as_ref().is_err_and(Failure::is_interrupt);
        listings.push(listing::Listing { server, tools });
        if interrupted {
            break;
        }
    }
    match listings.as_slice() {
        [listing::Listing { tools: Err(failure), .. }] => failure_output(failure, format),
        listings => listing::format_tools(listings, format),
    }
}

fn failure_output(failure: &Failure, format: OutputFormat) -> CommandOutput {
    let exit = failure.exit_code();
    match format {
        OutputFormat::Json => {
            CommandOutput { stdout: status::failure_json(failure), stderr: String::new(), exit }
        }
        OutputFormat::Text => {
            let stderr = format!("{}: {}", failure.code, failure.message);
            CommandOutput { stdout: Vec::new(), stderr, exit }
        }
    }
}

/// A server's text may contain terminal control sequences: control characters are removed from stderr, and from stdout
/// if it is a terminal.
fn print_output(printed: CommandOutput) -> ExitCode {
    let mut stdout = printed.stdout;
    if io::stdout().is_terminal() {
        stdout = without_control_characters(&String::from_utf8_lossy(&stdout)).into_bytes();
    }
    if !printed.stderr.is_empty() {
        print_error(&without_control_characters(&printed.stderr));
    }
    let written = io::stdout().lock().write_all(&stdout);
    match written.and_then(|()| io::stdout().lock().flush()) {
        Ok(()) => ExitCode::from(printed.exit),
        Err(_) => ExitCode::from(EX_IOERR),
    }
}

fn without_control_characters(text: &str) -> String {
    text.chars().filter(|character| matches!(character, '\n' | '\t') || !character.is_control()).collect()
}
