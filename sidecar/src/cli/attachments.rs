//! `attach list` and `attach end`: the attachments of sandboxes on platforms.

use std::path::Path;
use std::process::ExitCode;

use super::arguments::ListArguments;
use super::commands::{request, unexpected_response};
use super::sessions::print_killed;
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::daemon::attachments::status::{AttachmentStatus, Lifetime};
use crate::terminal;
use crate::terminal::failure::Failure;

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
        table_lines(&attachments).iter().for_each(|line| terminal::print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn table_lines(attachments: &[AttachmentStatus]) -> Vec<String> {
    let mut lines =
        vec!["ATTACHMENT         PLATFORM  SANDBOX                GRANT     STATE      KEPT".to_owned()];
    for status in attachments {
        let kept = match status.lifetime {
            Lifetime::Configured => "in the configuration",
            Lifetime::Detached => "until ended",
            Lifetime::Followed => "by its command",
        };
        lines.push(format!(
            "{:<18} {:<9} {:<22} {:<9} {:<10} {kept}",
            status.name,
            status.platform,
            status.sandbox,
            status.grant,
            status.state.name()
        ));
        lines.extend(status.state.reason().map(|why| format!("  {why}")));
    }
    lines
}
