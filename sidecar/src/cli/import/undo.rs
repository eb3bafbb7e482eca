//! `import FILE… --undo` and `import --forget`.

use std::path::PathBuf;
use std::process::ExitCode;

use cofferdam_import::{Record, RecordError, ReplaceError, Store, StoreError, Undone};

use super::ImportArguments;
use super::gather::one_path;
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};
use crate::terminal::{print_line, prompt};

pub(super) fn undo(store: &Store, files: &[PathBuf]) -> Result<ExitCode, Failure> {
    let directory = std::env::current_dir().map_err(|error| Failure::new(Sysexit::NoInput, error))?;
    let mut record = Record::read(store).map_err(store_failure)?;
    for file in files {
        let file = one_path(&directory.join(file));
        let undone = record.undo(store, &file).map_err(|error| record_failure(error, &record))?;
        let shown = file.display();
        // While an entry is left, the record of this import stays.
        let is_complete = !matches!(&undone, Undone::Entries { left } if !left.is_empty());
        match undone {
            Undone::Bytes => print_line(&format!("restored: {shown}")),
            Undone::Unchanged => print_line(&format!("{shown}: was not rewritten")),
            Undone::Entries { left } if left.is_empty() => {
                print_line(&format!(
                    "restored: the entries of {shown}; what other programs have changed since stays"
                ));
            }
            Undone::Entries { left } => print_line(&format!(
                "{shown}: {} changed since and left as it is; the backup is kept",
                left.join(", ")
            )),
        }
        if is_complete && record.rewritings().iter().any(|rewriting| rewriting.settings == file) {
            print_line(&format!(
                "an earlier import of {shown} is recorded too: run this again to go back further"
            ));
        }
    }
    print_line("the configuration and the stored secrets stay");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn forget(store: &Store, arguments: &ImportArguments) -> Result<ExitCode, Failure> {
    let record = Record::read(store).map_err(store_failure)?;
    if record.rewritings().is_empty() {
        print_line("there are no backups");
        return Ok(ExitCode::SUCCESS);
    }
    for rewriting in record.rewritings() {
        print_line(&format!("backup of {}", rewriting.settings.display()));
    }
    if arguments.dry_run {
        print_line("\nnothing was deleted: this is a dry run");
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.yes {
        prompt::confirmed("Delete these backups? Then `--undo` is not possible any more.")?;
    }
    let count = record.forget(store).map_err(store_failure)?;
    print_line(&format!("deleted: {count} {}", if count == 1 { "backup" } else { "backups" }));
    Ok(ExitCode::SUCCESS)
}

fn record_failure(error: RecordError, record: &Record) -> Failure {
    match error {
        RecordError::Store(error) => store_failure(error),
        RecordError::NotRecorded(_) => {
            let known: Vec<String> = record
                .rewritings()
                .iter()
                .map(|rewriting| format!("`{}`", rewriting.settings.display()))
                .collect();
            let hint = match known.is_empty() {
                true => {
                    "no rewritten file is recorded beside this configuration: name another with `-c FILE`"
                        .to_owned()
                }
                false => format!("recorded are {}", known.join(", ")),
            };
            Failure::new(Sysexit::NoInput, error).hint(hint)
        }
        RecordError::Replace { source: ReplaceError::Changed, .. } => {
            Failure::new(Sysexit::Unavailable, error).hint("run this again")
        }
        error => {
            let code = creation_exit_code(&error);
            Failure::new(code, error).hint("the backup is kept in `secrets/import/` beside the configuration")
        }
    }
}

pub(super) fn store_failure(error: StoreError) -> Failure {
    let (code, hint) = match &error {
        StoreError::Newer { .. } => {
            (Sysexit::Data, "nothing was changed: run this with the newer version, which knows its backups")
        }
        StoreError::Busy { .. } => (Sysexit::Unavailable, "wait until it has ended, then run this again"),
        StoreError::Read { .. } => (Sysexit::NoInput, "run this as the user who imported"),
        StoreError::Write { .. } => {
            (creation_exit_code(&error), "make the directory writable for this user, then run this again")
        }
    };
    Failure::new(code, error).hint(hint)
}
