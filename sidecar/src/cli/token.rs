//! `token`: bearer tokens of the admin API.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::arguments::{TokenCommand, TokenCreateArguments};
use super::commands::{request, unexpected_response};
use crate::daemon::admin::{AdminRequest, AdminResponse, TokenEntry};
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};

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
                terminal::print_line("TOKEN              EXPIRES     GRANTS               NAME");
                for token in &tokens {
                    terminal::print_line(&token_line(token));
                }
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
                AdminResponse::Refused { why } => Err(Failure::new(Sysexit::NoInput, why)),
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
            eprintln!(
                "token {id}, valid for {expires_in_seconds} s; it is not shown again. Clients of `admin.tls` send it as \
                 `Authorization: Bearer TOKEN`"
            );
            terminal::print_line(token.as_str());
            Ok(ExitCode::SUCCESS)
        }
        AdminResponse::Refused { why } => Err(Failure::new(Sysexit::Usage, why)),
        _ => Err(unexpected_response()),
    }
}

fn token_line(token: &TokenEntry) -> String {
    let expires = match token.expires_in_seconds {
        0 => "expired".into(),
        seconds @ 1..172_800 => format!("in {} min", seconds / 60),
        seconds => format!("in {} d", seconds / 86_400),
    };
    let name = token.name.as_deref().unwrap_or("-");
    format!("{:<18} {expires:<11} {:<20} {name}", token.id, token.grants.join(", "))
}
