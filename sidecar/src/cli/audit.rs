//! The commands that read, verify and prune the audit. They read its files and need no running sidecar.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_audit as audit;
use cofferdam_audit::{Keep, PruneError, Selector, VerifyError};

use super::arguments::{AuditCommand, PruneArguments, ShowArguments, TailArguments, VerifyArguments};
use super::audit_lines::Layout;
use super::commands::load;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};

pub(super) fn run(file: Option<&Path>, command: AuditCommand) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let directory = config.state_dir.join("audit");
    match command {
        AuditCommand::Prune(arguments) => prune(&directory, &arguments),
        AuditCommand::Show(arguments) => show(&directory, &arguments),
        AuditCommand::Tail(arguments) => tail(&directory, &arguments),
        AuditCommand::Verify(arguments) => verify(&directory, &arguments),
    }
}

fn prune(directory: &Path, arguments: &PruneArguments) -> Result<ExitCode, Failure> {
    let keep = match (arguments.older_than, arguments.keep) {
        (Some(age), _) => Keep::YoungerThan(age),
        (None, Some(bytes)) => Keep::Bytes(bytes),
        (None, None) => {
            return Err(Failure::new(Sysexit::Usage, "give `--older-than TIME` or `--keep SIZE`"));
        }
    };
    let pruned =
        audit::prune(directory, keep, cofferdam_base::clock::now()).map_err(|error| match error {
            PruneError::NotVerified(error) => verify_failure(error),
            error => Failure::new(Sysexit::CannotCreate, error).hint("run this as the sidecar's user"),
        })?;
    terminal::print_line(&format!("removed {} files with {} bytes", pruned.files, pruned.bytes));
    if pruned.files > 0 {
        terminal::print_line(&format!(
            "records up to {} are gone; a `head` from before that is no longer found by `audit verify`",
            pruned.last_record
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(directory: &Path, arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let selector: Selector = arguments.id.parse().map_err(|error| Failure::new(Sysexit::Usage, error))?;
    let format = RecordFormat::of_stdout(arguments.json);
    let mut found = false;
    audit::show(directory, &selector, |record| {
        found = true;
        print_record(record, format);
        Ok(())
    })
    .map_err(|error| Failure::new(Sysexit::NoInput, error))?;
    match found {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::new(Sysexit::NoInput, format!("no record belongs to `{}`", arguments.id))
            .hint(
                "give SESSION, LINK, SESSION/LINK or SESSION/LINK/SEQ, as `cofferdam audit tail` shows them",
            )),
    }
}

fn tail(directory: &Path, arguments: &TailArguments) -> Result<ExitCode, Failure> {
    let unreadable = |error| Failure::new(Sysexit::NoInput, error);
    let format = RecordFormat::of_stdout(arguments.json);
    let mut follower = audit::Follower::from_last(directory, arguments.lines).map_err(unreadable)?;
    loop {
        for record in follower.poll().map_err(unreadable)? {
            print_record(&record, format);
        }
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

fn verify(directory: &Path, arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    let verified = audit::verify(directory, arguments.head.as_deref()).map_err(verify_failure)?;
    terminal::print_line(&format!(
        "{} records in {} files: the chain is intact",
        verified.records, verified.files
    ));
    if verified.pruned > 0 {
        terminal::print_line(&format!(
            "the {} records before them were removed by `cofferdam audit prune`",
            verified.pruned
        ));
    }
    if let Some(place) = &verified.last_torn {
        terminal::print_line(&format!(
            "{} incomplete lines were found and marked when a sidecar started; the last at {place}",
            verified.torn
        ));
    }
    if let Some(place) = &verified.unfinished {
        terminal::print_line(&format!(
            "{place}: the last line is incomplete: it is being written, or the sidecar was killed"
        ));
    }
    if let Some(head) = &verified.head {
        terminal::print_line(&format!("head {}", head.hash.as_str()));
    }
    Ok(ExitCode::SUCCESS)
}

fn verify_failure(error: VerifyError) -> Failure {
    let (code, hint) = match &error {
        VerifyError::HeadMalformed(_) | VerifyError::HeadMistyped { .. } => (
            Sysexit::Usage,
            "copy the whole hash after `head`, as an earlier `cofferdam audit verify` printed it",
        ),
        VerifyError::HeadMaybePruned { .. } => {
            (Sysexit::Data, "give a head that was printed after the last `cofferdam audit prune`")
        }
        VerifyError::Empty { .. } | VerifyError::Read { .. } => (
            Sysexit::NoInput,
            "is `state-dir` the one of the sidecar, and is this its user? If a sidecar ran with it, its audit was removed",
        ),
        _ => (Sysexit::Data, "the audit files were changed by a program other than the sidecar"),
    };
    Failure::new(code, error).hint(hint)
}

/// How records are printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RecordFormat {
    Json,
    Text(Layout),
}

impl RecordFormat {
    fn of_stdout(json: bool) -> Self {
        match json {
            true => Self::Json,
            false => Self::Text(Layout::of_stdout()),
        }
    }
}

fn print_record(record: &str, format: RecordFormat) {
    match format {
        RecordFormat::Json => terminal::print_line(record),
        RecordFormat::Text(layout) => {
            layout.lines(record).iter().for_each(|line| terminal::print_line(line));
        }
    }
}
