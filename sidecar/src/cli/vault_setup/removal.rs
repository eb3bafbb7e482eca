//! `vault setup --remove`: undoes what is recorded, and nothing else.

use std::process::ExitCode;

use cofferdam_vault_setup::{Operator, Record, RemovalAction, RemoveError, removal_needs, removals, remove};

use super::survey::Permissions;
use super::{AGAIN, record_failure, show};
use crate::check::online::vault_failure;
use crate::cli::arguments::VaultSetupArguments;
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};
use crate::terminal::{print_line, prompt};

pub(super) async fn run(
    arguments: &VaultSetupArguments,
    operator: &Operator,
    record: &mut Record,
) -> Result<ExitCode, Failure> {
    if record.is_empty() {
        print_line("nothing to remove: this command has made nothing for this configuration");
        return Ok(ExitCode::SUCCESS);
    }
    let mut permissions = Permissions::of(operator);
    permissions.check(removal_needs(record)).await.map_err(vault_failure)?;
    if !permissions.missing.is_empty() {
        show::show_missing(&permissions.missing);
        let what = format!("nothing was removed: your token lacks {} permissions", permissions.missing.len());
        let hint = "add the lines to a policy of your token, or use another token";
        return Err(Failure::new(Sysexit::NoPermission, what).hint(hint));
    }
    let planned = removals(operator, record).await.map_err(remove_failure)?;
    print_line("");
    for removal in &planned {
        print_line(&match &removal.action {
            RemovalAction::Forget => format!("{}: is gone already", removal.id),
            RemovalAction::Keep { why } => format!("{}: KEPT: {why}", removal.id),
            RemovalAction::Remove => format!("{}: will be removed", removal.id),
        });
    }
    if arguments.dry_run {
        print_line("\nnothing was removed: this is a dry run");
        return Ok(ExitCode::SUCCESS);
    }
    let removes = planned.iter().any(|removal| removal.action == RemovalAction::Remove);
    if removes && !arguments.yes {
        prompt::confirmed("Remove these? The sidecar cannot log in afterwards.")?;
    }
    let mut kept = Vec::new();
    for removal in &planned {
        match remove(removal, operator, record).await.map_err(remove_failure)? {
            RemovalAction::Forget => {}
            RemovalAction::Keep { why } => kept.push(format!("{}: {why}", removal.id)),
            RemovalAction::Remove => print_line(&format!("removed: {}", removal.id)),
        }
    }
    if kept.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let what = format!("not everything was removed: {}", kept.join("; "));
    let hint = "look at what was kept and remove it by hand if it is not needed, then run this again";
    Err(Failure::new(Sysexit::Data, what).hint(hint))
}

fn remove_failure(error: RemoveError) -> Failure {
    match error {
        RemoveError::Vault(error) => vault_failure(error),
        RemoveError::Record(error) => record_failure(error),
        RemoveError::File { .. } => {
            Failure::new(creation_exit_code(&error), error).hint(format!("correct that, then {AGAIN}"))
        }
    }
}
