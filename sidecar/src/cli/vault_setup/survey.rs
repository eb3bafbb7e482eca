//! Compares what should exist with what exists, and looks up what the operator's token may do.
//!
//! What must stay true: nothing is changed; every missing permission is found in one run, also if some objects cannot be read.

use cofferdam_vault::login::UnwrapRecords;
use cofferdam_vault::{Capability, Kind, Need, Settings, VaultError, Verdict};
use cofferdam_vault_setup::{
    Change, CredentialPlan, ObjectId, Operator, PermissionNeed, Record, Step, VaultObject, credential_needs,
    read_needs, write_needs,
};

use super::derive::{Existing, NeededSetup, derive};
use super::inspect;
use crate::config::Config;

/// A plan, and what the operator's token lacks for it.
pub(super) struct Survey<'a> {
    pub(super) steps: Vec<Step>,
    /// Objects that the operator's token may not read.
    pub(super) unknown: Vec<ObjectId>,
    /// For a login with an AppRole whose state is known.
    pub(super) credentials: Option<CredentialPlan<'a>>,
    pub(super) missing: Vec<PermissionNeed>,
    pub(super) setup: NeededSetup<'a>,
}

pub(super) async fn survey<'a>(
    config: &'a Config,
    settings: &'a Settings,
    name: &'a str,
    operator: &Operator,
    record: &Record,
) -> Result<Survey<'a>, VaultError> {
    // Which policies and roles are needed does not depend on what exists, only their content does.
    let ids: Vec<ObjectId> =
        derive(config, settings, name, &Existing::default()).objects.iter().map(VaultObject::id).collect();
    let mut permissions = Permissions { operator, missing: Vec::new() };
    permissions.check(read_needs(&ids)).await?;
    let mut existing = Existing::default();
    if permissions.allow(&Need::read("sys/mounts")) {
        existing.engines = operator.engines().await?;
    }
    if permissions.allow(&Need::read("sys/auth")) {
        existing.auth_methods = operator.auth_methods().await?;
    }
    let mut setup = derive(config, settings, name, &existing);
    inspect::find_remaining(config, settings, operator, &existing, &mut setup).await?;
    let (mut steps, mut unknown, mut needs) = (Vec::new(), Vec::new(), Vec::new());
    for object in &setup.objects {
        let id = object.id();
        let path = id.api_path().unwrap_or_default();
        let step = match &id {
            ObjectId::KvEngine { .. } | ObjectId::AuthMethod { .. } => Step::creation(object.clone(), record),
            _ if !permissions.allow(&Need::read(path)) => {
                needs.extend(write_needs(&id, None));
                unknown.push(id);
                continue;
            }
            _ => Step::of(object.clone(), operator, record).await?,
        };
        needs.extend(write_needs(&id, Some(&step.change)));
        steps.push(step);
    }
    let mut credentials = None;
    if let (Some(files), Some(role)) = (setup.files, steps.iter().find(|step| is_app_role(step))) {
        credentials = match role.change {
            Change::Create => Some(CredentialPlan::for_new_role(files, record)),
            _ => {
                let reads = ["role-id", "secret-id/lookup"]
                    .map(|name| format!("auth/{}/role/{}/{name}", files.mount, files.role));
                let reads = [
                    PermissionNeed {
                        need: Need::read(&reads[0]),
                        reason: "reads the role-id for the sidecar's file".into(),
                    },
                    PermissionNeed {
                        need: Need::update(&reads[1]),
                        reason: "checks the secret-id in the sidecar's file".into(),
                    },
                ];
                match permissions.check(reads.to_vec()).await? {
                    Verdict::Missing => None,
                    Verdict::Allowed => {
                        let unwraps = UnwrapRecords::in_state(&config.state_dir);
                        Some(CredentialPlan::for_existing_role(files, operator, record, &unwraps).await?)
                    }
                }
            }
        };
        if let Some(plan) = &credentials {
            needs.extend(credential_needs(plan, role, record));
        }
    }
    permissions.check(needs).await?;
    let missing = permissions.missing;
    Ok(Survey { steps, unknown, credentials, missing, setup })
}

fn is_app_role(step: &Step) -> bool {
    matches!(step.object.id(), ObjectId::AppRole { .. })
}

/// What the operator's token may do.
pub(super) struct Permissions<'a> {
    operator: &'a Operator,
    pub(super) missing: Vec<PermissionNeed>,
}

impl<'a> Permissions<'a> {
    pub(super) fn of(operator: &'a Operator) -> Self {
        Self { operator, missing: Vec::new() }
    }

    /// Looks up capabilities and collects those that are missing.
    pub(super) async fn check(&mut self, mut needs: Vec<PermissionNeed>) -> Result<Verdict, VaultError> {
        if needs.is_empty() {
            return Ok(Verdict::Allowed);
        }
        needs.sort();
        needs.dedup_by(|one, other| one.need == other.need);
        let wanted: Vec<Need> = needs.iter().map(|need| need.need.clone()).collect();
        let verdicts = match self.operator.vault.verdicts(&self.operator.token, &wanted).await {
            Ok(verdicts) => verdicts,
            Err(error) if error.kind() == Kind::Denied => {
                self.add(PermissionNeed {
                    need: Need::new(Capability::Update, "sys/capabilities-self"),
                    reason: "looks up what your token may do, before anything is changed".into(),
                });
                return Ok(Verdict::Missing);
            }
            Err(error) => return Err(error),
        };
        let mut all = Verdict::Allowed;
        for (need, verdict) in needs.into_iter().zip(verdicts) {
            if verdict == Verdict::Missing {
                all = Verdict::Missing;
                self.add(need);
            }
        }
        Ok(all)
    }

    /// Whether a capability that was looked up is allowed.
    fn allow(&self, need: &Need) -> bool {
        let is_unknown = |missing: &PermissionNeed| missing.need.path == "sys/capabilities-self";
        !self.missing.iter().any(|missing| missing.need == *need || is_unknown(missing))
    }

    fn add(&mut self, need: PermissionNeed) {
        if !self.missing.contains(&need) {
            self.missing.push(need);
        }
    }
}
