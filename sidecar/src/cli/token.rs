//! `token`: bearer tokens of the admin API.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_base::duration;

use super::arguments::{TokenCommand, TokenCreateArguments};
use super::commands::{request, unexpected_response};
use super::sessions::time_left;
use crate::daemon::admin::{AdminRequest, AdminResponse, TokenEntry};
use crate::terminal;
use crate::terminal::colour::Colours;
use crate::terminal::failure::Failure;
use crate::terminal::table::{Column, Table, TableWidth};

pub(super) fn run(file: Option<&Path>, command: TokenCommand) -> Result<ExitCode, Failure> {
    match command {
        TokenCommand::Create(arguments) => create(file, arguments),
        TokenCommand::List(arguments) => {
            let AdminResponse::Tokens { tokens } = request(file, &AdminRequest::Tokens)? else {
                return Err(unexpected_response());
            };
            if arguments.json {
                terminal::print_line(&serde_json::to_string_pretty(&tokens).expect("a list is plain data"));
            } else if tokens.is_empty() {
                eprintln!("no tokens");
            } else {
                let mut table = Table::new([
                    Column::whole("TOKEN"),
                    Column::whole("EXPIRES"),
                    Column::names("GRANTS"),
                    Column::names("NAME"),
                ]);
                for TokenEntry { id, name, grants, expires_in_seconds } in tokens {
                    let name = name.unwrap_or_else(|| "-".to_owned());
                    table.row([id, time_left(expires_in_seconds), grants.join(", "), name]);
                }
                let lines = table.lines(TableWidth::of_stdout(), Colours::of_stdout());
                lines.iter().for_each(|line| terminal::print_line(line));
            }
            Ok(ExitCode::SUCCESS)
        }
        TokenCommand::Revoke(arguments) => {
            match request(file, &AdminRequest::RevokeToken { token: arguments.id })? {
                AdminResponse::TokenRevoked { id } => {
                    terminal::print_line(&format!(
                        "token {id}: revoked; enrolments that were created with it stay valid until they end"
                    ));
                    Ok(ExitCode::SUCCESS)
                }
                _ => Err(unexpected_response()),
            }
        }
    }
}

/// Prints the token to stdout, and the next step to stderr.
fn create(file: Option<&Path>, arguments: TokenCreateArguments) -> Result<ExitCode, Failure> {
    let TokenCreateArguments { grants, ttl, name } = arguments;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let create = AdminRequest::CreateToken { grants, name, ttl_ms: ttl.map(milliseconds) };
    match request(file, &create)? {
        AdminResponse::TokenCreated { id, token, expires_in_seconds } => {
            let validity = duration::rounded(Duration::from_secs(expires_in_seconds));
            eprintln!(
                "token {id}, valid for {validity}; it is not shown again. Clients of `admin.tls` send it as \
                 `Authorization: Bearer TOKEN`"
            );
            terminal::print_line(token.as_str());
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(unexpected_response()),
    }
}
