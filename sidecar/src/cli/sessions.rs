//! `sessions`, `kill` and `enrolments`: lists and ends sessions and enrolments.

use std::path::Path;
use std::process::ExitCode;

use cofferdam_vault::Revoked;
use serde_json::json;

use super::arguments::{EnrolmentsArguments, EnrolmentsCommand, SessionsArguments};
use super::commands::{admin_socket, request, unexpected_response};
use crate::daemon::admin::{
    AdminRequest, AdminResponse, AttachState, AttachedSandbox, EndedAttachment, EnrolmentEntry,
};
use crate::daemon::attachments::status::{AttachmentStatus, Lifetime};
use crate::enrolment::EnrolmentKind;
use crate::link::command::{Description, Processes, ScopeProcess};
use crate::link::registry::EndedLink;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};

pub(super) fn sessions(file: Option<&Path>, arguments: &SessionsArguments) -> Result<ExitCode, Failure> {
    if arguments.watch {
        return super::watch::run(&admin_socket(file)?, arguments);
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
    for line in table_lines(&sessions, &attached, &attachments) {
        terminal::print_line(&line);
    }
    Ok(ExitCode::SUCCESS)
}

/// The lines of the table; empty if there is nothing to show.
pub(super) fn table_lines(
    sessions: &[Description],
    attached: &[AttachedSandbox],
    attachments: &[AttachmentStatus],
) -> Vec<String> {
    let mut lines = Vec::new();
    if !sessions.is_empty() || !attached.is_empty() {
        lines.push(
            "SESSION            LINK               GRANT     SERVER    STATE      PID      CALLS  REFUSED  EXPIRES    SANDBOX"
                .to_owned(),
        );
    }
    for session in sessions {
        lines.push(session_line(session));
        lines.extend(session.scopes.iter().map(|scope| scope_line(session, scope)));
        lines.extend(session.replacement.iter().map(|text| format!("  replacement: {text}")));
        lines.extend(session.credentials.iter().map(|credential| format!("  {}", credential.line())));
    }
    lines.extend(attached.iter().map(attached_line));
    if !attachments.is_empty() {
        lines.extend(super::attachments::table_lines(attachments));
    }
    lines
}

fn session_line(session: &Description) -> String {
    let state = match session.connected {
        true => "connected",
        false => "lost",
    };
    let expires = format!("in {} min", session.expires_in_seconds / 60);
    format!(
        "{:<18} {:<18} {:<9} {:<9} {state:<10} {:<8} {:<6} {:<8} {expires:<10} {}",
        session.session,
        session.link,
        session.grant,
        session.server,
        session.pid.map_or("-".into(), |pid| pid.to_string()),
        session.calls,
        session.refused,
        session.name.as_deref().unwrap_or("-"),
    )
}

/// The line of a scope's process, below that of its link and with the pid in the same column.
fn scope_line(session: &Description, scope: &ScopeProcess) -> String {
    format!(
        "{:<18} {:<18} {:<30} {:<8} tools {}",
        "", session.link, "  with other credentials", scope.pid, scope.tools
    )
}

/// The line of an attached sandbox without links, with grant, state and name in the columns of links.
fn attached_line(sandbox: &AttachedSandbox) -> String {
    let state = match sandbox.state {
        AttachState::Attached => "attached",
        AttachState::Connecting => "connecting",
        AttachState::Detached => "detached",
    };
    let reason = sandbox.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!(
        "{:<18} {:<18} {:<9} {:<9} {state:<10} {:<8} {:<6} {:<8} {:<10} {}{reason}",
        "-", "-", sandbox.grant, "-", "-", "-", "-", "-", sandbox.name,
    )
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
        terminal::print_line("ENROLMENT          GRANT     KIND      LINKS  EXPIRES     SANDBOX");
        for enrolment in &enrolments {
            terminal::print_line(&enrolment_line(enrolment));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn enrolment_line(enrolment: &EnrolmentEntry) -> String {
    let kind = match enrolment.kind {
        EnrolmentKind::Attached => "attached",
        EnrolmentKind::Key => "key",
        EnrolmentKind::Socket => "socket",
        EnrolmentKind::Ticket => "ticket",
    };
    let expires = format!("in {} min", enrolment.expires_in_seconds / 60);
    let name = enrolment.name.as_deref().unwrap_or("-");
    format!(
        "{:<18} {:<9} {kind:<9} {:<6} {expires:<11} {name}",
        enrolment.enrolment, enrolment.grant, enrolment.links
    )
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
        AdminResponse::Refused { why } => Err(Failure::new(Sysexit::NoInput, why)),
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
