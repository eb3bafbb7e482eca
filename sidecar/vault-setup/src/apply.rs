//! Carries out a plan, one object after the other.
//!
//! What must stay true: each object is recorded before it is made; a run that was interrupted anywhere can be repeated.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, Replace};
use cofferdam_vault::{Problem, RequestLine, VaultError};
use zeroize::Zeroizing;

use crate::credentials::{
    CredentialPlan, FileAction, SecretIdDelivery, WRAP_TTL, read_credential, read_role_id,
};
use crate::objects::ObjectId;
use crate::operator::Operator;
use crate::plan::Step;
use crate::record::{Record, RecordError, content_fingerprint, fingerprint};
use crate::{remove, requests};

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("the {object} was changed by another party while this command ran, and was not overwritten")]
    ChangedMeanwhile { object: ObjectId },
    #[error("cannot write the file `{}`", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Vault(#[from] VaultError),
}

/// Makes or changes the object of a step, unless it is not any more what the plan was made for.
pub async fn apply_step(step: &Step, operator: &Operator, record: &mut Record) -> Result<(), ApplyError> {
    let (id, fingerprint) = (step.object.id(), fingerprint(&step.wanted));
    // An operator may have taken long to confirm.
    if Step::of(step.object.clone(), operator, record).await?.change != step.change {
        return Err(ApplyError::ChangedMeanwhile { object: id });
    }
    let request = requests::write(&step.object, record.mark())?;
    record.intend(&id, &fingerprint)?;
    operator.send(request).await?;
    record.confirm(&id, &fingerprint)?;
    Ok(())
}

/// Writes the credential files; returns those that were written.
pub async fn apply_credentials(
    plan: &CredentialPlan<'_>,
    operator: &Operator,
    record: &mut Record,
) -> Result<Vec<PathBuf>, ApplyError> {
    let files = &plan.files;
    let mut written = Vec::new();
    if let FileAction::Write { .. } = plan.role_id {
        let role_id = read_role_id(operator, files).await?;
        write_credential(files.role_id_file, role_id.as_bytes(), record)?;
        written.push(files.role_id_file.to_owned());
    }
    if let FileAction::Write { .. } = plan.secret_id {
        if files.delivery == SecretIdDelivery::Plain {
            // Secret-ids of interrupted runs: the file has none of them. (A running sidecar may still use one that was wrapped.)
            remove::destroy_secret_ids(files.mount, files.role, operator, record).await?;
        }
        let id = files.secret_id();
        let mark = record.mark().to_owned();
        record.intend(&id, &mark)?;
        let secret_id = create_secret_id(plan, operator, &mark).await?;
        write_credential(files.secret_id_file, &secret_id, record)?;
        written.push(files.secret_id_file.to_owned());
    }
    Ok(written)
}

/// The content of the file: a secret-id, or a wrapping token.
async fn create_secret_id(
    plan: &CredentialPlan<'_>,
    operator: &Operator,
    mark: &str,
) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let files = &plan.files;
    let wrap_ttl = match files.delivery {
        SecretIdDelivery::Plain => None,
        SecretIdDelivery::Wrapped => Some(WRAP_TTL),
    };
    let request = requests::create_secret_id(files.mount, files.role, mark, wrap_ttl)?;
    let line = RequestLine { method: request.method.clone(), path: request.path.clone() };
    let malformed = |why| VaultError { request: line, problem: Problem::Malformed { why } };
    let envelope = operator.send(request).await?;
    match files.delivery {
        SecretIdDelivery::Plain => {
            let secret_id = envelope.data.and_then(|data| data.text("secret_id"));
            let secret_id = secret_id.ok_or_else(|| malformed("it has no secret-id"))?;
            Ok(Zeroizing::new(secret_id.as_bytes().to_vec()))
        }
        SecretIdDelivery::Wrapped => match envelope.wrap_info {
            Some(wrap) => Ok(wrap.token.file_content()),
            None => Err(malformed("it is not wrapped")),
        },
    }
}

fn write_credential(path: &Path, content: &[u8], record: &mut Record) -> Result<(), ApplyError> {
    let id = ObjectId::File { path: path.to_owned() };
    let fingerprint = content_fingerprint(content);
    let is_foreign = |found: Zeroizing<Vec<u8>>| !record.recognises(&id, &content_fingerprint(&found));
    if read_credential(path).ok().flatten().is_some_and(is_foreign) {
        return Err(ApplyError::ChangedMeanwhile { object: id });
    }
    record.intend(&id, &fingerprint)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let failed = |source| ApplyError::File { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    atomic_file::write_file(directory, path, content, Replace::Always).map_err(failed)?;
    record.confirm(&id, &fingerprint)?;
    Ok(())
}
