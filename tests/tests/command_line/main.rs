//! The command lines of both programs: exit codes, tables, messages, and what `check` finds on this host.
//!
//! | module | what it tests |
//! |---|---|
//! | [`check`] | `cofferdam check`: what the configuration refers to on this host |
//! | [`exit_codes`] | every exit code that the guide lists |
//! | [`messages`] | the next step in messages about sockets, users and second sidecars |
//! | [`suggestions`] | what is suggested for mistyped commands, options, servers and grants |
//! | [`tables`] | the tables of `sessions` and `enrolments` |
//! | [`unprivileged`] | a user who is not root |
//! | [`walls`] | `cofferdam check`: what the walls of a server keep from it |

mod check;
mod exit_codes;
mod messages;
mod suggestions;
mod tables;
mod unprivileged;
mod walls;

use std::process::Output;

/// What a program printed to stdout and to stderr.
fn printed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
