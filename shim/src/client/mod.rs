//! The command-line client: `servers`, `tools` and `call`, for scripts in a sandbox that have no MCP client.
//!
//! `servers` asks for a status. `tools` and `call` open a link as any shim does, with the relay in this process and this
//! module in the place of the harness: so every kind of link works, and so does a connection that is lost meanwhile.
//!
//! What must stay true: stdout is data and stderr is talk; arguments are checked before anything is sent; a link ends
//! with its command, also at a signal; nothing is called twice.
//!
//! | module | what it holds |
//! |---|---|
//! | [`command`] | the words after the options |
//! | `arguments` | the arguments of a call, checked |
//! | `conversation` | requests and responses of one MCP client, in either era |
//! | `relayed` | a conversation with a server through a relay in this process |
//! | `messages` | the messages that the client sends |
//! | `listing`, `result` | what `tools` and `call` print |

mod arguments;
pub mod command;
mod conversation;
mod listing;
mod messages;
mod relayed;
mod result;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use relay_proto::address::Address;
use relay_proto::name::Name;

use crate::failure::Failure;
use crate::options::{Options, OutputFormat};
use crate::{EX_IOERR, EX_OSERR, print_error, status};
use arguments::Arguments;
use command::ClientCommand;
use relayed::{Signals, with_server};

/// The text for stdout and for stderr, and the exit code.
#[derive(Debug, Default, Eq, PartialEq)]
struct Printed {
    stdout: Vec<u8>,
    stderr: String,
    exit: u8,
}

/// The whole program, after the command line was read.
pub(crate) fn main(command: ClientCommand, options: Options, format: OutputFormat) -> ExitCode {
    let command = match Checked::new(command) {
        Ok(command) => command,
        Err(failure) => return show(failed(&failure, format)),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("start: {error}"));
            return ExitCode::from(EX_OSERR);
        }
    };
    show(runtime.block_on(run(command, options, format)))
}

/// A command whose arguments can be sent.
enum Checked {
    Call { server: Name, tool: String, arguments: Arguments },
    Servers,
    Tools(Option<Name>),
}

impl Checked {
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

async fn run(command: Checked, options: Options, format: OutputFormat) -> Printed {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return failed(&Failure::unavailable(&format!("watch for signals: {error}")), format),
    };
    match command {
        Checked::Call { server, tool, arguments } => {
            let called = with_server(&options, Some(server), &mut signals, async |conversation| {
                conversation.call(&tool, &arguments).await
            });
            match called.await {
                Ok(result) => result::printed(&result, format),
                Err(failure) => failed(&failure, format),
            }
        }
        Checked::Servers => match status::fetch(options).await.1 {
            Ok(status) => Printed { stdout: listing::servers(&status.servers, format), ..Printed::default() },
            Err(failure) => failed(&failure, format),
        },
        Checked::Tools(server) => match servers_to_list(server, &options).await {
            Ok(servers) => tools(servers, &options, &mut signals, format).await,
            Err(failure) => failed(&failure, format),
        },
    }
}

/// The server that was named, or all that are granted. Where a link can be opened only once there is no connection to
/// spare for that question: then the only granted server is listed, or the sidecar's refusal says that there are several.
async fn servers_to_list(server: Option<Name>, options: &Options) -> Result<Vec<Option<Name>>, Failure> {
    match (server, &options.relay) {
        (Some(server), _) => Ok(vec![Some(server)]),
        (None, Some(Address::Fd(_) | Address::Listen(_))) => Ok(vec![None]),
        (None, _) => Ok(status::fetch(options.clone()).await.1?.servers.into_iter().map(Some).collect()),
    }
}

/// Lists each server's tools. A server that fails does not hide the others; the exit code is that of the first failure.
async fn tools(
    servers: Vec<Option<Name>>,
    options: &Options,
    signals: &mut Signals,
    format: OutputFormat,
) -> Printed {
    let mut listings = Vec::new();
    for server in servers {
        let listed =
            with_server(options, server.clone(), signals, async |conversation| conversation.tools().await);
        let tools = listed.await;
        let interrupted = tools.as_ref().is_err_and(Failure::is_interrupt);
        listings.push(listing::Listing { server, tools });
        if interrupted {
            break;
        }
    }
    match listings.as_slice() {
        [listing::Listing { tools: Err(failure), .. }] => failed(failure, format),
        listings => listing::tools(listings, format),
    }
}

fn failed(failure: &Failure, format: OutputFormat) -> Printed {
    let exit = failure.exit_code();
    match format {
        OutputFormat::Json => Printed { stdout: status::trouble_json(failure), stderr: String::new(), exit },
        OutputFormat::Text => {
            let stderr = format!("{}: {}", failure.code, failure.message);
            Printed { stdout: Vec::new(), stderr, exit }
        }
    }
}

/// What a server sent may contain terminal commands: on a terminal they are left out.
fn show(printed: Printed) -> ExitCode {
    let mut stdout = printed.stdout;
    if io::stdout().is_terminal() {
        stdout = without_control(&String::from_utf8_lossy(&stdout)).into_bytes();
    }
    if !printed.stderr.is_empty() {
        print_error(&without_control(&printed.stderr));
    }
    let written = io::stdout().lock().write_all(&stdout);
    match written.and_then(|()| io::stdout().lock().flush()) {
        Ok(()) => ExitCode::from(printed.exit),
        Err(_) => ExitCode::from(EX_IOERR),
    }
}

fn without_control(text: &str) -> String {
    text.chars().filter(|character| matches!(character, '\n' | '\t') || !character.is_control()).collect()
}
