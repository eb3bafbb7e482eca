//! `confine test`: starts a server inside its walls, replays a use of it, and lists what it asked for and was refused.
//!
//! What must stay true: the walls are those of a start by the sidecar; what the server says is scrubbed before it is printed;
//! every process has ended when the command ends, also when it is interrupted.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use cofferdam_base::text::visible_lines;
use cofferdam_process as process;
use cofferdam_scrub::Scrubber;
use cofferdam_servers::spec::ServerSpec;
use cofferdam_servers::trial::{Answer, RecordedUse, ToolNames, Trial, TrialError};
use serde::Serialize;

use super::refusals::{Collector, Refusals};
use super::{not_confined, recorded, stdio_server, view_of};
use crate::check::findings::count;
use crate::cli::arguments::ConfineTestArguments;
use crate::cli::commands::load;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::{Interruption, Interruptions};
use crate::terminal::print_line;
use crate::terminal::table::TableWidth;
use crate::terminal::wrap::wrapped;
use crate::trials::{Observers, Trials, Tried, VaultUse};

/// A server's own message may have any length.
const MESSAGE_CHARACTERS: usize = 300;

/// What `confine test --json` prints.
#[derive(Serialize)]
struct Report {
    server: String,
    /// Why the server does not work; absent if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    software: Option<String>,
    tools: usize,
    answers: Vec<ReplayedRequest>,
    #[serde(flatten)]
    refusals: Refusals,
}

#[derive(Serialize)]
struct ReplayedRequest {
    method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn run(file: Option<&Path>, arguments: &ConfineTestArguments) -> Result<ExitCode, Failure> {
    let (path, config) = load(file)?;
    let (server, stdio) = stdio_server(&arguments.server, &config)?;
    let Some(confinement) = &stdio.confinement else { return Err(not_confined(server)) };
    let view = view_of(server, stdio, confinement, &config)?.files;
    let recorded = match &arguments.recorded {
        Some(file) => recorded::read(file, server.call_timeout)?,
        None => RecordedUse::default(),
    };
    let failed = |error: std::io::Error| Failure::new(Sysexit::OperatingSystem, error);
    process::harden().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let collector = Collector::default();
    let tried = runtime.block_on(async {
        let interruptions = Interruptions::new().map_err(failed)?;
        try_server(&path, server, &recorded, &collector, interruptions).await
    });
    // A file system that hangs must not keep this process.
    runtime.shutdown_background();
    let (tried, last_stderr) = match tried? {
        Ok(tried) => tried,
        Err(interruption) => return Ok(interruption.exit_code()),
    };
    let refusals = collector.refusals(&view, &confinement.hidden);
    let report = report(server, &recorded, tried, last_stderr, refusals);
    match arguments.json {
        true => print_line(&serde_json::to_string_pretty(&report).expect("a report is plain data")),
        false => lines(&report, TableWidth::of_stdout()).iter().for_each(|line| print_line(line)),
    }
    Ok(match (&report.error, report.refusals.refused.is_empty()) {
        (Some(_), _) => Sysexit::Unavailable.into(),
        (None, false) => Sysexit::NoPermission.into(),
        (None, true) => ExitCode::SUCCESS,
    })
}

type Finished = (Tried, Option<String>);

async fn try_server(
    path: &Path,
    server: &ServerSpec,
    recorded: &RecordedUse,
    collector: &Collector,
    mut interruptions: Interruptions,
) -> Result<Result<Finished, Interruption>, Failure> {
    let trials = Trials::open(path, VaultUse::LogIn, "confine-test")
        .map_err(|error| Failure::new(Sysexit::CannotCreate, error))?;
    let config = trials.context.config.load_full();
    // The file was read again meanwhile.
    let server = config.servers.get(&server.name).ok_or_else(|| {
        Failure::new(Sysexit::Configuration, "the configuration has changed").hint("run this again")
    })?;
    let observers = Observers { network: Arc::new(collector.clone()), paths: Arc::new(collector.clone()) };
    let tried = tokio::select! {
        tried = trials.run(server, recorded, Some(observers)) => Ok(tried),
        interruption = interruptions.next() => Err(interruption),
    };
    trials.end().await;
    Ok(tried.map(|tried| (tried, trials.last_stderr(&server.name))))
}

fn report(
    server: &ServerSpec,
    recorded: &RecordedUse,
    tried: Tried,
    last_stderr: Option<String>,
    mut refusals: Refusals,
) -> Report {
    let Tried { result, scrubber } = tried;
    for refusal in &mut refusals.refused {
        for text in [&mut refusal.entry, &mut refusal.what].into_iter().flatten() {
            *text = scrubber.name(text).into_owned();
        }
    }
    let server = server.name.to_string();
    match result {
        Ok(Trial { software, tools, answers, .. }) => Report {
            server,
            error: None,
            software: Some(said(&scrubber, &software)),
            tools: match tools {
                ToolNames::All(names) | ToolNames::Some(names) => names.len(),
                ToolNames::None => 0,
            },
            answers: answered(recorded, answers, &scrubber),
            refusals,
        },
        Err(error) => {
            let why = match last_stderr {
                Some(line) if !matches!(error, TrialError::NotStarted(_) | TrialError::NoCredential(_)) => {
                    format!("{error}; its last line on stderr: `{line}`")
                }
                _ => error.to_string(),
            };
            Report {
                server,
                error: Some(said(&scrubber, &why)),
                software: None,
                tools: 0,
                answers: Vec::new(),
                refusals,
            }
        }
    }
}

fn answered(recorded: &RecordedUse, answers: Vec<Answer>, scrubber: &Scrubber) -> Vec<ReplayedRequest> {
    let answered = recorded.requests.iter().zip(answers).map(|(request, answer)| ReplayedRequest {
        method: request.method.clone(),
        error: match answer {
            Answer::Error(message) => Some(said(scrubber, &message)),
            Answer::Result => None,
        },
    });
    answered.collect()
}

/// What a server said, scrubbed, on one line of bounded length. It is scrubbed first, because the rest of a credential that was
/// cut in two would not be recognised.
fn said(scrubber: &Scrubber, text: &str) -> String {
    let visible = visible_lines(&scrubber.name(text)).replace('\n', " ");
    match visible.char_indices().nth(MESSAGE_CHARACTERS) {
        Some((end, _)) => format!("{}…", &visible[..end]),
        None => visible,
    }
}

fn lines(report: &Report, width: TableWidth) -> Vec<String> {
    let Report { server, error, software, tools, answers, refusals } = report;
    let first = match (error, software) {
        (Some(error), _) => format!("server `{server}` does not work inside its walls: {error}"),
        (None, software) => format!(
            "server `{server}` works inside its walls: {}, {}; {} replayed",
            software.as_deref().unwrap_or_default(),
            count(*tools, "tool"),
            count(answers.len(), "request")
        ),
    };
    let mut lines = wrapped("", &first, width);
    for (index, answer) in answers.iter().enumerate() {
        if let Some(error) = &answer.error {
            let text =
                format!("request {}, {}, was answered with an error: {error}", index + 1, answer.method);
            lines.extend(wrapped("  ", &text, width));
        }
    }
    match refusals.refused.is_empty() {
        true => lines.push("nothing was refused".to_owned()),
        false => lines.push("refused:".to_owned()),
    }
    for refusal in &refusals.refused {
        let text = match (&refusal.key, &refusal.entry, &refusal.what) {
            (Some(key), Some(entry), _) => format!("`servers.{server}.{key}` lacks `{entry}`"),
            (_, _, what) => what.clone().unwrap_or_default(),
        };
        lines.extend(wrapped("  ", &text, width));
    }
    let unseen = [
        (refusals.unknown, "could not be read, so what they asked for is not known"),
        (refusals.left_out, "were left out, because there were too many"),
    ];
    for (number, what) in unseen.into_iter().filter(|(number, _)| *number > 0) {
        let requests =
            format!("{} for paths or hosts", count(usize::try_from(number).unwrap_or(usize::MAX), "request"));
        lines.extend(wrapped("", &format!("{requests} {what}"), width));
    }
    lines
}
