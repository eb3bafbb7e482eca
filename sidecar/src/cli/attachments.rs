//! `attach list` and `attach end`: the attachments of sandboxes on platforms.

use std::path::Path;
use std::process::ExitCode;

use super::arguments::ListArguments;
use super::commands::{request, unexpected_response};
use super::sessions::print_killed;
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::daemon::attachments::status::{AttachmentStatus, Lifetime};
use crate::terminal;
use crate::terminal::colour::{Colours, Role};
use crate::terminal::failure::Failure;
use crate::terminal::table::{Cell, Column, EMPTY, Table, TableWidth};

pub(super) fn end(file: Option<&Path>, name: String) -> Result<ExitCode, Failure> {
    print_killed(request(file, &AdminRequest::EndAttachment { name })?)
}

pub(super) fn list(file: Option<&Path>, arguments: &ListArguments) -> Result<ExitCode, Failure> {
    let AdminResponse::Attachments { attachments } = request(file, &AdminRequest::Attachments)? else {
        return Err(unexpected_response());
    };
    if arguments.json {
        terminal::print_line(&serde_json::to_string_pretty(&attachments).expect("statuses are plain data"));
    } else if attachments.is_empty() {
        eprintln!("no attachments");
    } else {
        let lines = table(&attachments).lines(TableWidth::of_stdout(), Colours::of_stdout());
        lines.iter().for_each(|line| terminal::print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn table(attachments: &[AttachmentStatus]) -> Table {
    let mut table = Table::new([
        Column::names("ATTACHMENT"),
        Column::names("PLATFORM"),
        Column::below("SANDBOX", "sandbox"),
        Column::names("GRANT"),
        Column::whole("STATE"),
        Column::below("ENROLMENT", "enrolment"),
        Column::whole("KEPT"),
    ]);
    for status in attachments {
        let kept = match status.lifetime {
            Lifetime::Configured => "in the configuration",
            Lifetime::Detached => "until ended",
            Lifetime::Followed => "by its command",
        };
        table.row([
            status.name.clone(),
            status.platform.clone(),
            status.sandbox.clone(),
            status.grant.clone(),
            status.state.name().to_owned(),
            status.enrolment.clone().unwrap_or_else(|| EMPTY.to_owned()),
            kept.to_owned(),
        ]);
        if let Some(why) = status.state.reason() {
            table.note(Cell::new(Role::Warning, why));
        }
    }
    table
}
