//! `sessions`, `kill` and `enrolments`: lists and ends sessions and enrolments.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_base::duration;
use cofferdam_vault::Revoked;
use serde_json::json;

use super::arguments::{EnrolmentsArguments, EnrolmentsCommand, SessionsArguments};
use super::commands::{request, unexpected_response};
use crate::daemon::admin::{
    AdminRequest, AdminResponse, AttachState, AttachedSandbox, EndedAttachment, EnrolmentEntry,
};
use crate::daemon::attachments::status::{AttachmentStatus, Lifetime};
use crate::enrolment::EnrolmentKind;
use crate::link::command::{Confine, Description, Processes, ScopeProcess, Wall};
use crate::link::describe::Credential;
use crate::link::registry::EndedLink;
use crate::terminal;
use crate::terminal::colour::{Colours, Role};
use crate::terminal::failure::Failure;
use crate::terminal::table::{Cell, Column, EMPTY, Table, TableWidth};

pub(super) fn sessions(file: Option<&Path>, arguments: &SessionsArguments) -> Result<ExitCode, Failure> {
    if arguments.watch {
        return super::watch::run(file, arguments);
    }
    let AdminResponse::Sessions { sessions, attached, attachments } = request(file, &AdminRequest::Sessions)?
    else {
        return Err(unexpected_response());
    };
    if arguments.json {
        // The object of `GET /v1/sessions`, with all keys even if a list is empty.
        let all = json!({ "sessions": sessions, "attached": attached, "attachments": attachments });
        terminal::print_line(&serde_json::to_string_pretty(&all).expect("descriptions are plain data"));
        return Ok(ExitCode::SUCCESS);
    }
    if sessions.is_empty() && attached.is_empty() {
        eprintln!("no sessions");
    }
    for line in table_lines(&sessions, &attached, &attachments, TableWidth::of_stdout(), Colours::of_stdout())
    {
        terminal::print_line(&line);
    }
    Ok(ExitCode::SUCCESS)
}

/// The lines of the tables of sessions and of attachments; empty if there is nothing to show.
fn table_lines(
    sessions: &[Description],
    attached: &[AttachedSandbox],
    attachments: &[AttachmentStatus],
    width: TableWidth,
    colours: Colours,
) -> Vec<String> {
    let mut lines = Vec::new();
    if !sessions.is_empty() || !attached.is_empty() {
        lines.extend(sessions_table(sessions, attached, &CallRates::Unknown).lines(width, colours));
    }
    if !attachments.is_empty() {
        lines.extend(super::attachments::table(attachments).lines(width, colours));
    }
    lines
}

/// Calls a second by link, where they are known.
pub(super) enum CallRates {
    ByLink(HashMap<String, f64>),
    /// The table has no such column.
    Unknown,
}

pub(super) fn sessions_table(
    sessions: &[Description],
    attached: &[AttachedSandbox],
    rates: &CallRates,
) -> Table {
    // The view has a column more, and shows the process of the selected link only.
    let (pid, rate) = match rates {
        CallRates::ByLink(_) => (Column::below("PID", "process"), Some(Column::whole("CALLS/S"))),
        CallRates::Unknown => (Column::whole("PID"), None),
    };
    let mut columns = vec![
        Column::below("SESSION", "session"),
        Column::below("LINK", "link"),
        Column::names("GRANT"),
        Column::names("SERVER"),
        Column::whole("STATE"),
        pid,
        Column::whole("CALLS"),
    ];
    columns.extend(rate);
    columns.extend([
        Column::whole("REFUSED"),
        Column::whole("EXPIRES"),
        Column::below("ENROLMENT", "enrolment"),
        Column::names("SANDBOX"),
    ]);
    let mut table = Table::new(columns);
    let mut sorted: Vec<&Description> = sessions.iter().collect();
    // The links of a sandbox together, and sandboxes without a name last.
    sorted.sort_by_key(|session| {
        let Description { name, began, session, server, link, .. } = session;
        (name.is_none(), name, began, session, server, link)
    });
    sorted.into_iter().for_each(|session| add_session(&mut table, session, rates));
    attached.iter().for_each(|sandbox| add_attached(&mut table, sandbox, rates));
    table
}

fn add_session(table: &mut Table, session: &Description, rates: &CallRates) {
    let state = match session.connected {
        true => Cell::new(Role::Good, "connected"),
        false => Cell::new(Role::Warning, "lost"),
    };
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(dash);
    let mut cells = vec![
        session.session.clone().into(),
        session.link.clone().into(),
        session.grant.clone().into(),
        session.server.clone().into(),
        state,
        session.pid.map_or_else(dash, |pid| pid.to_string()).into(),
        session.calls.to_string().into(),
    ];
    cells.extend(rates.cell(&session.link));
    cells.extend([
        refused(session.refused),
        time_left(session.expires_in_seconds).into(),
        or_dash(&session.enrolment).into(),
        or_dash(&session.name).into(),
    ]);
    table.row(cells);
    if session.confine == Some(Confine::Off) {
        let text = "confine: off; the server can reach all that the sidecar's user can";
        table.note(Cell::new(Role::Warning, text));
    }
    for ScopeProcess { pid, tools } in &session.scopes {
        table.note(format!("process {pid} with other credentials: tools {tools}"));
    }
    if !session.walls.is_empty() {
        table.note(Cell::new(Role::Faint, format!("confined: {}", describe_walls(&session.walls))));
    }
    session.replacement.iter().for_each(|text| table.note(format!("replacement: {text}")));
    for credential in &session.credentials {
        table.note(Cell::new(credential_role(credential), credential.line()));
    }
}

/// What every confined server's walls are made of. `--json` names it too.
const USUAL_MEANS: [&str; 5] = ["filter", "namespace", "process limits", "the sidecar's", "unused"];

/// The walls in one line, each with what is unusual about it: `files (landlock), limits, user (root without capabilities)`.
fn describe_walls(walls: &[Wall]) -> String {
    let describe = |Wall { name, made_of }: &Wall| {
        let is_unusual = |means: &&str| !USUAL_MEANS.contains(means);
        let unusual: Vec<&str> = made_of.iter().map(String::as_str).filter(is_unusual).collect();
        match unusual.is_empty() {
            true => name.clone(),
            false => format!("{name} ({})", unusual.join(", ")),
        }
    };
    walls.iter().map(describe).collect::<Vec<_>>().join(", ")
}

impl CallRates {
    /// The cell of a link, if the table has the column.
    fn cell(&self, link: &str) -> Option<Cell> {
        match self {
            Self::ByLink(rates) => {
                Some(rates.get(link).map_or_else(dash, |rate| format!("{rate:.1}")).into())
            }
            Self::Unknown => None,
        }
    }
}

/// The number of refused calls.
fn refused(count: u64) -> Cell {
    let role = match count {
        0 => Role::Normal,
        _ => Role::Warning,
    };
    Cell::new(role, count.to_string())
}

/// A credential that has expired or could not be read again is a warning.
pub(super) fn credential_role(credential: &Credential) -> Role {
    match credential.expires_in_seconds == Some(0) || credential.last_error.is_some() {
        true => Role::Warning,
        false => Role::Faint,
    }
}

/// Adds an attached sandbox without links.
fn add_attached(table: &mut Table, sandbox: &AttachedSandbox, rates: &CallRates) {
    let (state, role) = match sandbox.state {
        AttachState::Attached => ("attached", Role::Good),
        AttachState::Connecting => ("connecting", Role::Warning),
        AttachState::Detached => ("detached", Role::Warning),
    };
    let mut cells = vec![
        dash().into(),
        dash().into(),
        sandbox.grant.clone().into(),
        dash().into(),
        Cell::new(role, state),
        dash().into(),
        dash().into(),
    ];
    cells.extend(rates.cell(""));
    cells.extend([
        dash().into(),
        dash().into(),
        sandbox.enrolment.clone().into(),
        sandbox.name.clone().into(),
    ]);
    table.row(cells);
    sandbox.reason.iter().for_each(|reason| table.note(Cell::new(Role::Warning, reason.clone())));
}

/// A cell without a value.
fn dash() -> String {
    EMPTY.to_owned()
}

/// When a session, an enrolment or a token expires, for people.
pub(super) fn time_left(seconds: u64) -> String {
    match seconds {
        0 => "expired".to_owned(),
        seconds => format!("in {}", duration::rounded(Duration::from_secs(seconds))),
    }
}

pub(super) fn kill(file: Option<&Path>, target: String) -> Result<ExitCode, Failure> {
    print_killed(request(file, &AdminRequest::Kill { session: target })?)
}

pub(super) fn enrolments(file: Option<&Path>, arguments: EnrolmentsArguments) -> Result<ExitCode, Failure> {
    if let Some(EnrolmentsCommand::End(end)) = arguments.command {
        return print_killed(request(file, &AdminRequest::EndEnrolment { enrolment: end.name })?);
    }
    let AdminResponse::Enrolments { enrolments } = request(file, &AdminRequest::Enrolments)? else {
        return Err(unexpected_response());
    };
    if arguments.json {
        terminal::print_line(&serde_json::to_string_pretty(&enrolments).expect("a list is plain data"));
    } else if enrolments.is_empty() {
        eprintln!("no enrolments");
    } else {
        let mut table = Table::new([
            Column::below("ENROLMENT", "enrolment"),
            Column::names("GRANT"),
            Column::whole("KIND"),
            Column::whole("STATE"),
            Column::whole("LINKS"),
            Column::below("SESSION", "session"),
            Column::whole("EXPIRES"),
            Column::names("SANDBOX"),
        ]);
        enrolments.iter().for_each(|enrolment| add_enrolment(&mut table, enrolment));
        let lines = table.lines(TableWidth::of_stdout(), Colours::of_stdout());
        lines.iter().for_each(|line| terminal::print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

fn add_enrolment(table: &mut Table, enrolment: &EnrolmentEntry) {
    let kind = match enrolment.kind {
        EnrolmentKind::Attached => "attached",
        EnrolmentKind::Key => "key",
        EnrolmentKind::Socket => "socket",
        EnrolmentKind::Ticket => "ticket",
    };
    let state = match (enrolment.links, enrolment.kind) {
        (0, EnrolmentKind::Ticket) => "not used yet",
        (0, _) => "no links",
        _ => "in use",
    };
    table.row([
        enrolment.enrolment.clone(),
        enrolment.grant.clone(),
        kind.to_owned(),
        state.to_owned(),
        enrolment.links.to_string(),
        enrolment.session.clone().unwrap_or_else(dash),
        time_left(enrolment.expires_in_seconds),
        enrolment.name.clone().unwrap_or_else(dash),
    ]);
}

pub(super) fn print_killed(response: AdminResponse) -> Result<ExitCode, Failure> {
    match response {
        AdminResponse::Killed { links, enrolment, attachment, total_ms } => {
            for link in &links {
                terminal::print_line(&ended_line(link));
                for line in link.ended.vault.iter().flat_map(Revoked::lines) {
                    terminal::print_line(&format!("session {}: {line}", link.session));
                }
                for credential in &link.ended.not_revocable {
                    terminal::print_line(&format!("session {}: {}", link.session, credential.line()));
                }
            }
            if let Some(enrolment) = enrolment {
                terminal::print_line(&format!(
                    "enrolment {enrolment}: ended; its sandbox cannot connect again"
                ));
            }
            if let Some(EndedAttachment { name, lifetime }) = attachment {
                let note = match lifetime {
                    Lifetime::Configured => {
                        "; the configuration attaches it again at the next reload or restart: remove its table"
                    }
                    Lifetime::Detached | Lifetime::Followed => "",
                };
                terminal::print_line(&format!("attachment {name}: ended{note}"));
            }
            terminal::print_line(&format!("ended after {total_ms} ms"));
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(unexpected_response()),
    }
}

fn ended_line(link: &EndedLink) -> String {
    let processes = match link.ended.processes {
        Processes::AllEnded => "the server and all its descendants ended",
        Processes::StillDying => "processes of the server were killed but have not exited yet",
    };
    format!(
        "link {}: {processes} after {} ms; {} calls had no response",
        link.link, link.ended.server_ended_ms, link.ended.calls_unanswered
    )
}
