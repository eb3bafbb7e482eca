//! `sessions --watch`: follows the sessions until it is interrupted. On a terminal it is a live view; in a pipe it prints one
//! line for each change, and ends with the sidecar.
//!
//! | module | what it holds |
//! |---|---|
//! | `live` | the live view: threads that fetch, and the loop that draws |
//! | `model` | what the view shows, and how keys and news change it |
//! | `screen` | draws the model |
//! | `guard` | takes the terminal over, and gives it back however the program ends |

mod guard;
mod live;
mod model;
mod screen;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use super::arguments::SessionsArguments;
use super::commands::{admin_failure, admin_socket, load, refusal};
use crate::daemon::admin::event_stream::{self, WatchEvent, WatchResponse};
use crate::session::changes::Change;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::interruption;

/// What is printed for each change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LineFormat {
    Json,
    Text,
}

pub(super) fn run(file: Option<&Path>, arguments: &SessionsArguments) -> Result<ExitCode, Failure> {
    let socket = admin_socket(file)?;
    let format = match (arguments.json, io::stdout().is_terminal()) {
        (true, _) => LineFormat::Json,
        (false, false) => LineFormat::Text,
        (false, true) => {
            // Without a valid configuration, the view lacks the decisions only.
            let audit = load(file).ok().map(|(_, config)| config.state_dir.join("audit"));
            return live::run(&socket, audit);
        }
    };
    let failed = |error: io::Error| Failure::new(Sysexit::OperatingSystem, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let interrupted = interruption().map_err(failed)?;
        tokio::select! {
            () = interrupted => Ok(ExitCode::SUCCESS),
            followed = follow(&socket, format) => followed,
        }
    })
}

async fn follow(socket: &Path, format: LineFormat) -> Result<ExitCode, Failure> {
    let mut stream = match event_stream::watch(socket).await.map_err(admin_failure)? {
        WatchResponse::Stream(stream) => stream,
        WatchResponse::Refused { code, why } => return Err(refusal(&code, why)),
    };
    while let Some(event) = stream.next().await.map_err(admin_failure)? {
        terminal::print_line(&match format {
            LineFormat::Json => json_line(&event),
            LineFormat::Text => text_line(&event),
        });
    }
    eprintln!("the sidecar has stopped");
    Ok(ExitCode::SUCCESS)
}

fn json_line(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Changed(change) => serde_json::to_string(change).expect("a change is plain data"),
        WatchEvent::Lagged => r#"{"event":"lagged"}"#.to_owned(),
        WatchEvent::Ready => r#"{"event":"ready"}"#.to_owned(),
    }
}

fn text_line(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Changed(change) => escape_control(&change_line(change)),
        WatchEvent::Lagged => "some changes are missing here: this command read too slowly".to_owned(),
        WatchEvent::Ready => {
            "watching for changes; `cofferdam sessions` lists the current sessions".to_owned()
        }
    }
}

fn change_line(change: &Change) -> String {
    let mut parts = vec![format!("{}  {:<17}  grant {}", change.time, change.event.as_str(), change.grant)];
    let ids = [
        ("sandbox", &change.name),
        ("enrolment", &change.enrolment),
        ("session", &change.session),
        ("link", &change.link),
    ];
    parts.extend(ids.iter().filter_map(|(what, id)| Some(format!("{what} {}", id.as_ref()?))));
    let line = parts.join("  ");
    match &change.reason {
        Some(reason) => format!("{line}: {reason}"),
        None => line,
    }
}

/// Escapes control characters: a reason may contain text from a sandbox, which must not control the terminal.
fn escape_control(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => visible.extend(character.escape_unicode()),
            false => visible.push(character),
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::changes::ChangeKind;

    #[test]
    fn a_change_is_one_line_that_cannot_control_the_terminal() {
        let change = Change {
            time: "T".into(),
            name: Some("box 1".into()),
            session: Some("s1".into()),
            reason: Some("\x1b[2Jgone".into()),
            ..Change::new(ChangeKind::SessionEnded, &"dev".parse().unwrap())
        };
        assert_eq!(
            text_line(&WatchEvent::Changed(change)),
            "T  session-ended      grant dev  sandbox box 1  session s1: \\u{1b}[2Jgone"
        );
    }
}
