//! `sessions --watch`: follows the sessions until it is interrupted or the sidecar stops. On a terminal it shows the table of
//! `sessions` and draws it again after each change; in a pipe it prints one line for each change.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_process::Window;
use tokio::time::{Instant, sleep, sleep_until};

use super::arguments::SessionsArguments;
use super::commands::{admin_failure, refusal, unexpected_response};
use super::sessions::table_lines;
use crate::daemon::admin::event_stream::{self, EventStream, WatchEvent, WatchResponse};
use crate::daemon::admin::{AdminRequest, AdminResponse, client};
use crate::session::changes::Change;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::interruption;
use crate::terminal::table::TableWidth;

/// What is printed for each change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum WatchOutput {
    JsonLines,
    Lines,
    Table,
}

/// Changes within this time are drawn together.
const DRAW_PAUSE: Duration = Duration::from_millis(100);
/// Numbers of calls are not sent as changes, so the table is drawn again after this time.
const REDRAW_INTERVAL: Duration = Duration::from_secs(2);
/// For terminals that report no size.
const DEFAULT_ROWS: u16 = 24;
/// Erases the screen and moves the cursor to its beginning; long lines are cut instead of wrapped.
const BEGIN_DRAWING: &str = "\x1b[?7l\x1b[H\x1b[2J";
const END_DRAWING: &str = "\x1b[?7h";

pub(super) fn run(socket: &Path, arguments: &SessionsArguments) -> Result<ExitCode, Failure> {
    let output = match (arguments.json, io::stdout().is_terminal()) {
        (true, _) => WatchOutput::JsonLines,
        (false, true) => WatchOutput::Table,
        (false, false) => WatchOutput::Lines,
    };
    let failed = |error: io::Error| Failure::new(Sysexit::OperatingSystem, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let interrupted = interruption().map_err(failed)?;
        tokio::select! {
            () = interrupted => Ok(ExitCode::SUCCESS),
            followed = follow(socket, output) => followed,
        }
    })
}

async fn follow(socket: &Path, output: WatchOutput) -> Result<ExitCode, Failure> {
    let mut stream = match event_stream::watch(socket).await.map_err(admin_failure)? {
        WatchResponse::Stream(stream) => stream,
        WatchResponse::Refused { code, why } => return Err(refusal(&code, why)),
    };
    match output {
        WatchOutput::Table => follow_table(socket, &mut stream).await?,
        WatchOutput::JsonLines | WatchOutput::Lines => {
            while let Some(event) = stream.next().await.map_err(admin_failure)? {
                terminal::print_line(&match output {
                    WatchOutput::JsonLines => json_line(&event),
                    WatchOutput::Lines | WatchOutput::Table => text_line(&event),
                });
            }
        }
    }
    eprintln!("the sidecar has stopped");
    Ok(ExitCode::SUCCESS)
}

/// Draws the table until the stream ends.
async fn follow_table(socket: &Path, stream: &mut EventStream) -> Result<(), Failure> {
    loop {
        draw(&current_table(socket).await?);
        let mut redraw: Pin<Box<dyn Future<Output = ()>>> = Box::pin(sleep(REDRAW_INTERVAL));
        let mut changed = false;
        loop {
            tokio::select! {
                event = stream.next() => {
                    if event.map_err(admin_failure)?.is_none() {
                        return Ok(());
                    }
                    if !changed {
                        changed = true;
                        redraw = Box::pin(sleep_until(Instant::now() + DRAW_PAUSE));
                    }
                }
                () = redraw.as_mut() => break,
            }
        }
    }
}

async fn current_table(socket: &Path) -> Result<Vec<String>, Failure> {
    match client::exchange(socket, &AdminRequest::Sessions).await.map_err(admin_failure)? {
        AdminResponse::Sessions { sessions, attached, attachments } => {
            Ok(table_lines(&sessions, &attached, &attachments, TableWidth::of_stdout()))
        }
        AdminResponse::Refused { code, why } => Err(refusal(&code, why)),
        _ => Err(unexpected_response()),
    }
}

fn draw(lines: &[String]) {
    let rows = Window::of(io::stdout()).map_or(0, Window::rows);
    let screen = screen(lines, if rows == 0 { DEFAULT_ROWS } else { rows });
    // A failure is ignored: if the terminal is gone, SIGHUP ends the program.
    let _ = io::stdout().write_all(screen.as_bytes()).and_then(|()| io::stdout().flush());
}

/// The bytes that show these lines on a terminal with this many rows.
fn screen(lines: &[String], rows: u16) -> String {
    let mut screen = BEGIN_DRAWING.to_owned();
    // The last two rows are for the note and for the cursor.
    let visible_rows = usize::from(rows).saturating_sub(2).max(1);
    for line in lines.iter().take(visible_rows) {
        screen.push_str(&escape_control(line));
        screen.push_str("\r\n");
    }
    let note = match lines.len().saturating_sub(visible_rows) {
        0 if lines.is_empty() => "no sessions; ctrl-C ends".to_owned(),
        0 => "ctrl-C ends".to_owned(),
        more => format!("{more} more lines; ctrl-C ends"),
    };
    screen + &note + "\r\n" + END_DRAWING
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

    #[test]
    fn the_table_fits_the_window() {
        let lines: Vec<String> = (0..10).map(|number| format!("line {number}")).collect();
        let all = screen(&lines, 24);
        assert!(all.contains("line 9\r\nctrl-C ends\r\n"), "{all:?}");
        let cut = screen(&lines, 6);
        assert!(
            cut.contains("line 3\r\n6 more lines; ctrl-C ends\r\n") && !cut.contains("line 4"),
            "{cut:?}"
        );
        assert!(screen(&[], 0).contains("no sessions"));
    }
}
