//! Undoes what is recorded, and nothing else.
//!
//! What must stay true: an object that another party has changed since stays, and so do an engine with secrets in it and a
//! login method with other roles or a configuration; what stays also stays in the record.

use std::fs;
use std::io;
use std::path::PathBuf;

use cofferdam_vault::VaultError;

use crate::credentials::read_credential;
use crate::objects::ObjectId;
use crate::operator::Operator;
use crate::record::{Record, RecordError, content_fingerprint, fingerprint};
use crate::requests;

/// More secret-ids than a role of one sidecar has; further ones are not looked at.
const MAX_SECRET_IDS: usize = 1000;

/// A recorded object, and what happens to it.
#[derive(Debug)]
pub struct Removal {
    pub id: ObjectId,
    pub action: RemovalAction,
}

#[derive(Debug, Eq, PartialEq)]
pub enum RemovalAction {
    /// It does not exist any more.
    Forget,
    Keep {
        why: String,
    },
    Remove,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("cannot delete the file `{}`", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Vault(#[from] VaultError),
}

/// What is to be undone, the last first.
pub async fn removals(operator: &Operator, record: &Record) -> Result<Vec<Removal>, RemoveError> {
    let mut removals: Vec<Removal> = Vec::new();
    for id in record.made() {
        let action = action(id, operator, record).await?;
        removals.push(Removal { id: id.clone(), action });
    }
    Ok(removals)
}

async fn action(id: &ObjectId, operator: &Operator, record: &Record) -> Result<RemovalAction, RemoveError> {
    let changed = || RemovalAction::Keep { why: "another party has changed it since".to_owned() };
    match id {
        ObjectId::File { path } => match read_credential(path) {
            Ok(None) => return Ok(RemovalAction::Forget),
            Ok(Some(content)) if record.recognises(id, &content_fingerprint(&content)) => {}
            Ok(Some(_)) => return Ok(changed()),
            Err(why) => return Ok(RemovalAction::Keep { why }),
        },
        ObjectId::SecretId { mount, role } => {
            return Ok(match marked_secret_ids(mount, role, operator, record).await?.is_empty() {
                true => RemovalAction::Forget,
                false => RemovalAction::Remove,
            });
        }
        _ => match operator.current(id).await? {
            None => return Ok(RemovalAction::Forget),
            Some(current) if record.recognises(id, &fingerprint(&current)) => {}
            Some(_) => return Ok(changed()),
        },
    }
    let keep = |why: &str| Ok(RemovalAction::Keep { why: why.to_owned() });
    match id {
        ObjectId::KvEngine { path } if !operator.is_engine_empty(path).await? => {
            keep("it has secrets, which would be deleted with it")
        }
        ObjectId::AuthMethod { mount } => {
            let roles = operator.names(&requests::list_roles(mount)?).await?;
            let is_recorded = |role: &String| {
                let (mount, name) = (mount.clone(), role.clone());
                let app_role = ObjectId::AppRole { mount: mount.clone(), name: name.clone() };
                let jwt_role = ObjectId::JwtRole { mount: mount.clone(), name: name.clone() };
                let kubernetes_role = ObjectId::KubernetesRole { mount, name };
                [app_role, jwt_role, kubernetes_role].iter().any(|id| record.contains(id))
            };
            if !roles.iter().all(is_recorded) {
                return keep("it has other roles, which would be deleted with it");
            }
            match operator.is_auth_configured(mount).await? {
                Some(true) => keep("another party has configured it since"),
                _ => Ok(RemovalAction::Remove),
            }
        }
        _ => Ok(RemovalAction::Remove),
    }
}

/// Removes one object, or keeps it, and updates the record. Returns what was done.
pub async fn remove(
    removal: &Removal,
    operator: &Operator,
    record: &mut Record,
) -> Result<RemovalAction, RemoveError> {
    // Looked at again, because an operator may have taken long to confirm, and a kept role keeps its login method.
    let action = action(&removal.id, operator, record).await?;
    match (&action, &removal.id) {
        (RemovalAction::Keep { .. }, _) => return Ok(action),
        (RemovalAction::Forget, _) => {}
        (RemovalAction::Remove, ObjectId::File { path }) => {
            fs::remove_file(path).map_err(|source| RemoveError::File { path: path.clone(), source })?;
        }
        (RemovalAction::Remove, ObjectId::SecretId { mount, role }) => {
            destroy_secret_ids(mount, role, operator, record).await?;
        }
        (RemovalAction::Remove, ObjectId::AuthMethod { mount })
            if !operator.names(&requests::list_roles(mount)?).await?.is_empty() =>
        {
            return Ok(RemovalAction::Keep { why: "it still has roles".to_owned() });
        }
        (RemovalAction::Remove, id) => {
            if let Some(request) = requests::delete(id) {
                operator.send(request?).await?;
            }
        }
    }
    record.forget(&removal.id)?;
    Ok(action)
}

/// Destroys the secret-ids that were made here.
pub(crate) async fn destroy_secret_ids(
    mount: &str,
    role: &str,
    operator: &Operator,
    record: &Record,
) -> Result<(), VaultError> {
    let id = ObjectId::SecretId { mount: mount.to_owned(), role: role.to_owned() };
    if !record.contains(&id) {
        return Ok(());
    }
    for accessor in marked_secret_ids(mount, role, operator, record).await? {
        operator.send(requests::destroy_secret_id(mount, role, &accessor)?).await?;
    }
    Ok(())
}

/// The accessors of the secret-ids with the record's mark.
async fn marked_secret_ids(
    mount: &str,
    role: &str,
    operator: &Operator,
    record: &Record,
) -> Result<Vec<String>, VaultError> {
    let mut marked = Vec::new();
    let accessors = operator.names(&requests::list_secret_ids(mount, role)?).await?;
    for accessor in accessors.into_iter().take(MAX_SECRET_IDS) {
        let found = operator.find(requests::read_secret_id(mount, role, &accessor)?).await?;
        let mark = found.as_ref().and_then(|found| found.get("metadata")?.get(requests::MARK)?.as_str());
        if mark == Some(record.mark()) {
            marked.push(accessor);
        }
    }
    Ok(marked)
}
