//! Prints a plan: each object as a difference, the credential files, what is left to the operator, missing permissions.

use cofferdam_vault::policy_lines;
use cofferdam_vault_setup::{
    Change, CredentialPlan, FileAction, KeepReason, Line, PermissionNeed, Step, difference,
};

use super::derive::NeededSetup;
use crate::terminal::print_line;

pub(super) fn show_step(step: &Step) {
    let id = step.object.id();
    let shown = |current: &[String]| {
        for line in difference(current, &step.wanted) {
            match line {
                Line::Added(text) => print_line(format!("  + {text}").trim_end()),
                Line::Removed(text) => print_line(format!("  - {text}").trim_end()),
                Line::Same(text) => print_line(format!("    {text}").trim_end()),
            }
        }
    };
    match &step.change {
        Change::Nothing => print_line(&format!("{id}: as it should be")),
        Change::Create => {
            print_line(&format!("{id}: new"));
            shown(&[]);
        }
        Change::Update { current } => {
            print_line(&format!("{id}: changed"));
            shown(current);
        }
        Change::Keep { current, reason } => {
            let reason = match reason {
                KeepReason::ChangedSince => "another party has changed it since this command made it",
                KeepReason::NotMadeHere => "this command did not make it",
            };
            print_line(&format!("{id}: KEPT as it is: {reason}. This command would make it so:"));
            shown(current);
        }
    }
}

pub(super) fn show_credentials(plan: &CredentialPlan<'_>) {
    let files = [
        ("role-id", plan.files.role_id_file, &plan.role_id),
        ("secret-id", plan.files.secret_id_file, &plan.secret_id),
    ];
    for (name, file, action) in files {
        let file = file.display();
        print_line(&match action {
            FileAction::Keep { why } => format!("{name} file {file}: KEPT as it is: {why}"),
            FileAction::Nothing => format!("{name} file {file}: as it should be"),
            FileAction::Write { why } => {
                format!("{name} file {file}: will be written, with mode 0600 ({why})")
            }
        });
    }
}

pub(super) fn show_remaining(setup: &NeededSetup<'_>) {
    for note in &setup.notes {
        print_line(&format!("note: {note}"));
    }
    if !setup.remaining.is_empty() {
        print_line("\nleft to you, because the configuration does not determine it:");
    }
    for remaining in &setup.remaining {
        print_line(&format!("  {}", remaining.what));
        print_line(&format!("    next: {}", remaining.next));
    }
}

/// Prints what the operator's token may not do, and the policy lines that would allow it.
pub(super) fn show_missing(missing: &[PermissionNeed]) {
    print_line("\nyour token may not do what is needed:");
    for PermissionNeed { need, reason } in missing {
        print_line(&format!("  MISSING {:<6} {}: {reason}", need.capability, need.path));
    }
    print_line("\nadd to a policy of your token, in the namespace of [vault]:\n");
    print_line(policy_lines(missing.iter().map(|missing| &missing.need), "").trim_end());
}
