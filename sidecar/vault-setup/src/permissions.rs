//! Which capabilities the operator's token needs. They are looked up before anything is changed.
//!
//! What must stay true: a token that has them all can carry out the plan; a test runs the command with such a token.

use cofferdam_vault::{Capability, Need};

use crate::credentials::{CredentialPlan, FileAction, SecretIdDelivery};
use crate::objects::ObjectId;
use crate::plan::{Change, Step};
use crate::record::Record;

/// A capability that the operator's token needs, and what for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PermissionNeed {
    pub need: Need,
    pub reason: String,
}

impl PermissionNeed {
    fn new(capability: Capability, path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { need: Need::new(capability, path), reason: reason.into() }
    }
}

/// To find out whether these objects exist.
pub fn read_needs<'a>(objects: impl IntoIterator<Item = &'a ObjectId>) -> Vec<PermissionNeed> {
    let mut needs = vec![
        PermissionNeed::new(Capability::Read, "sys/mounts", "lists the secrets engines"),
        PermissionNeed::new(Capability::Read, "sys/auth", "lists the login methods"),
    ];
    for id in objects {
        if let (Some(path), Some(Ok(_))) = (id.api_path(), crate::requests::read(id)) {
            needs.push(PermissionNeed::new(Capability::Read, path, format!("reads the {id}")));
        }
    }
    needs
}

/// To make or change the object of a step. While `change` is not known, because the object may not be read, the capabilities
/// for both.
pub fn write_needs(id: &ObjectId, change: Option<&Change>) -> Vec<PermissionNeed> {
    let Some(path) = id.api_path() else { return Vec::new() };
    let capabilities: &[Capability] = match (id, change) {
        (_, Some(Change::Nothing | Change::Keep { .. })) => &[],
        (ObjectId::KvEngine { .. } | ObjectId::Policy { .. }, _) => &[Capability::Update],
        (ObjectId::AuthMethod { .. }, _) => &[Capability::Sudo, Capability::Update],
        (_, Some(Change::Create)) => &[Capability::Create],
        (_, Some(Change::Update { .. })) => &[Capability::Update],
        (_, None) => &[Capability::Create, Capability::Update],
    };
    let verb = match change {
        Some(Change::Update { .. }) => "changes",
        _ => "makes",
    };
    let need =
        |capability: &Capability| PermissionNeed::new(*capability, path.clone(), format!("{verb} the {id}"));
    capabilities.iter().map(need).collect()
}

/// To write the credential files of an AppRole.
pub fn credential_needs(plan: &CredentialPlan<'_>, role: &Step, record: &Record) -> Vec<PermissionNeed> {
    let path = plan.files.role_path();
    let mut needs = vec![PermissionNeed::new(
        Capability::Read,
        format!("{path}/role-id"),
        "reads the role-id for the sidecar's file",
    )];
    if plan.files.delivery == SecretIdDelivery::Plain && role.change != Change::Create {
        needs.push(PermissionNeed::new(
            Capability::Update,
            format!("{path}/secret-id/lookup"),
            "checks the secret-id in the sidecar's file",
        ));
    }
    if matches!(plan.secret_id, FileAction::Write { .. }) {
        needs.push(PermissionNeed::new(
            Capability::Update,
            format!("{path}/secret-id"),
            "makes the secret-id for the sidecar's file",
        ));
        if plan.files.delivery == SecretIdDelivery::Plain && record.contains(&plan.files.secret_id()) {
            needs.extend(secret_id_removal_needs(plan.files.mount, plan.files.role));
        }
    }
    needs
}

fn secret_id_removal_needs(mount: &str, role: &str) -> Vec<PermissionNeed> {
    let role = format!("auth/{mount}/role/{role}");
    let path = format!("{role}/secret-id");
    let list = PermissionNeed::new(Capability::List, path, "lists the secret-ids of the AppRole");
    let actions = ["lookup", "destroy"].map(|action| {
        let path = format!("{role}/secret-id-accessor/{action}");
        PermissionNeed::new(Capability::Update, path, "removes secret-ids that were made here")
    });
    [list].into_iter().chain(actions).collect()
}

/// To undo what is recorded.
pub fn removal_needs(record: &Record) -> Vec<PermissionNeed> {
    let mut needs = read_needs(record.made());
    for id in record.made() {
        let Some(path) = id.api_path() else { continue };
        let reason = format!("removes the {id}");
        match id {
            ObjectId::SecretId { mount, role } => {
                needs.extend(secret_id_removal_needs(mount, role));
            }
            ObjectId::AuthMethod { mount } => {
                let roles = format!("auth/{mount}/role");
                needs.push(PermissionNeed::new(Capability::List, roles, "checks that no other role is left"));
                needs.push(PermissionNeed::new(Capability::Delete, path.clone(), reason.clone()));
                needs.push(PermissionNeed::new(Capability::Sudo, path, reason));
            }
            ObjectId::KvEngine { path: mount } => {
                let names = format!("{mount}/metadata");
                needs.push(PermissionNeed::new(Capability::List, names, "checks that no secret is left"));
                needs.push(PermissionNeed::new(Capability::Delete, path, reason));
            }
            _ => needs.push(PermissionNeed::new(Capability::Delete, path, reason)),
        }
    }
    needs
}
