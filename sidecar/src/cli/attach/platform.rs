//! `attach e2b` and `attach daytona`: lets the sidecar attach a sandbox of a platform and follows the attachment.
//!
//! An interrupt ends the attachment; with `--detach` the command returns once the sandbox is attached, and the attachment
//! stays. If the sidecar restarts, the command repeats its request.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;

use super::admin_connections::{AdminFailure, FollowConnection, end_attachment, exit_code};
use super::progress::ProgressDisplay;
use super::{Pause, PauseEnd};
use crate::cli::arguments::{DaytonaArguments, E2bArguments, HarnessArgument, PlatformOptions, ViaArgument};
use crate::daemon::admin::AdminRequest;
use crate::daemon::attachments::e2b_template;
use crate::daemon::attachments::request::{AttachmentRequest, Route};
use crate::daemon::attachments::status::{AttachmentState, Kind, Lifetime, OverCause, end_command};
use crate::harness::Harness;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::interruption;
use crate::terminal::progress::Output;

/// How following an attachment ended.
enum FollowEnd {
    /// The attachment stays in the sidecar; with its name.
    Detached(String),
    Over {
        why: String,
        cause: OverCause,
    },
    SidecarGone,
    /// The command was interrupted; with the id of the attachment's enrolment or, before it has one, its name, if the sidecar
    /// has sent either.
    Stopped(Option<String>),
}

pub(super) fn e2b(admin: &Path, arguments: E2bArguments) -> Result<ExitCode, Failure> {
    let E2bArguments { sandbox, grant, dial_out, options, .. } = arguments;
    // Both are present: without `--template` the parser requires them.
    let (sandbox, grant) = (sandbox.unwrap_or_default(), grant.unwrap_or_default());
    let request = AttachmentRequest {
        kind: Kind::E2b,
        keep_awake: false,
        via: if dial_out { Route::DialOut } else { Route::default() },
        ..attachment_request(sandbox, grant, &options)?
    };
    run(admin, request, &options)
}

pub(super) fn daytona(admin: &Path, arguments: DaytonaArguments) -> Result<ExitCode, Failure> {
    let DaytonaArguments { sandbox, grant, keep_awake, via, options } = arguments;
    let via = match via {
        ViaArgument::DialOut => Route::DialOut,
        ViaArgument::Preview => Route::Preview,
        ViaArgument::Ssh => Route::Ssh,
    };
    let request = AttachmentRequest {
        kind: Kind::Daytona,
        keep_awake,
        via,
        ..attachment_request(sandbox, grant, &options)?
    };
    run(admin, request, &options)
}

/// Prints the lines to add to an E2B template.
pub(in crate::cli) fn print_template(shim: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let lines = e2b_template(shim).map_err(|why| Failure::new(Sysexit::NoInput, why))?;
    terminal::print_line(lines.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn attachment_request(
    sandbox: String,
    grant: String,
    options: &PlatformOptions,
) -> Result<AttachmentRequest, Failure> {
    // The sidecar may run in another directory.
    let shim = options.shim.as_deref().map(std::path::absolute).transpose();
    Ok(AttachmentRequest {
        kind: Kind::E2b,
        platform: options.platform.clone(),
        sandbox,
        grant,
        name: options.name.clone(),
        ttl_ms: options.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        resume: options.resume,
        keep_awake: false,
        via: Route::default(),
        shim: shim.map_err(|error| {
            Failure::new(Sysexit::Usage, format!("cannot resolve the path of `--shim`: {error}"))
        })?,
        harness: options.harness.map(|harness| match harness {
            HarnessArgument::Claude => Harness::ClaudeCode,
            HarnessArgument::Codex => Harness::Codex,
            HarnessArgument::Gemini => Harness::GeminiCli,
            HarnessArgument::Opencode => Harness::OpenCode,
        }),
    })
}

fn run(admin: &Path, request: AttachmentRequest, options: &PlatformOptions) -> Result<ExitCode, Failure> {
    let failed = |error| Failure::new(Sysexit::OperatingSystem, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let stop = interruption().map_err(failed)?;
        keep_attached(admin, request, options, stop).await
    })
}

async fn keep_attached(
    admin: &Path,
    attachment: AttachmentRequest,
    options: &PlatformOptions,
    stop: impl Future<Output = ()>,
) -> Result<ExitCode, Failure> {
    let mut stop = std::pin::pin!(stop);
    let mut display = ProgressDisplay::new(if options.quiet { Output::Quiet } else { Output::Lines });
    let mut pause = Pause::new();
    let mut request = AdminRequest::AttachPlatform { attachment, detach: options.detach };
    let mut connection =
        Some(FollowConnection::start(admin, &request).await.map_err(AdminFailure::into_failure)?);
    loop {
        let mut following = match connection.take() {
            Some(following) => following,
            None => match FollowConnection::start(admin, &request).await {
                Ok(following) => following,
                Err(error @ (AdminFailure::AttachmentRefused { .. } | AdminFailure::Refused { .. })) => {
                    return Err(error.into_failure());
                }
                // The sidecar is most likely being restarted.
                Err(error) => {
                    display.print_line(&format!("{error}; retrying"));
                    if pause.wait(stop.as_mut()).await == PauseEnd::Stopped {
                        return Ok(ExitCode::SUCCESS);
                    }
                    continue;
                }
            },
        };
        let end = follow(&mut following, &mut display, &mut request, stop.as_mut()).await;
        match end {
            FollowEnd::Detached(name) => {
                let end = end_command(&name);
                display.print_line(&format!(
                    "detached; the sidecar keeps the sandbox attached. End it with `{end}`"
                ));
                return Ok(ExitCode::SUCCESS);
            }
            FollowEnd::Over { why, cause } => {
                display.clear();
                return Err(Failure::new(exit_code(cause), why));
            }
            FollowEnd::SidecarGone => {
                display.print_line("lost the connection to the sidecar; reconnecting");
                if pause.wait(stop.as_mut()).await == PauseEnd::Stopped {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            FollowEnd::Stopped(attachment) => {
                display.print_line("ending the attachment");
                // Done before this connection is dropped, because otherwise the sandbox's sessions would last for their grace.
                if let Some(attachment) = attachment {
                    end_attachment(admin, &attachment).await;
                }
                display.clear();
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Shows each status until the attachment is over or detached, or the command is interrupted.
async fn follow(
    following: &mut FollowConnection,
    display: &mut ProgressDisplay,
    request: &mut AdminRequest,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> FollowEnd {
    let mut attachment = None;
    loop {
        let status = tokio::select! {
            () = stop.as_mut() => return FollowEnd::Stopped(attachment),
            status = following.next_status() => status,
        };
        let Some(status) = status else { return FollowEnd::SidecarGone };
        if let AttachmentState::Over { why, cause } = status.state {
            return FollowEnd::Over { why, cause };
        }
        if let (AttachmentState::Attached { .. }, AdminRequest::AttachPlatform { attachment, .. }) =
            (&status.state, &mut *request)
        {
            // If the request is repeated after a restart of the sidecar, a sandbox that was suspended meanwhile stays
            // suspended.
            attachment.resume = false;
        }
        display.warn(status.warning.as_deref());
        display.show(&status.state);
        if status.lifetime == Lifetime::Detached {
            return FollowEnd::Detached(status.name);
        }
        // The enrolment's id is preferred, because another grant may use the same name.
        attachment = Some(status.enrolment.unwrap_or(status.name));
    }
}
