//! The files with the role-id and the secret-id of an AppRole, which the configuration names.
//!
//! What must stay true: a file that was not written here, or that another party has changed since, is not replaced; a
//! secret-id and a wrapping token are in memory that is wiped, and nowhere but in the file of mode 0600.

use std::io;
use std::path::Path;
use std::time::Duration;

use cofferdam_base::text::error_chain;
use cofferdam_secrets::{FileContent, SourceError, read_file};
use cofferdam_vault::login::UnwrapRecords;
use cofferdam_vault::{Kind, Token, VaultError};
use zeroize::Zeroizing;

use crate::objects::ObjectId;
use crate::operator::Operator;
use crate::record::{Record, content_fingerprint};
use crate::requests;

/// How long a wrapped secret-id can be unwrapped: until the sidecar has to be started.
pub const WRAP_TTL: Duration = Duration::from_secs(10 * 60);
/// More than any role-id, secret-id or wrapping token.
const MAX_FILE_BYTES: usize = 64 * 1024;

/// The credential files of an AppRole.
#[derive(Clone, Copy, Debug)]
pub struct CredentialFiles<'a> {
    /// Below `auth/`.
    pub mount: &'a str,
    pub role: &'a str,
    pub role_id_file: &'a Path,
    pub secret_id_file: &'a Path,
    pub delivery: SecretIdDelivery,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SecretIdDelivery {
    Plain,
    /// The file gets a wrapping token.
    Wrapped,
}

/// What happens to the two files.
#[derive(Debug)]
pub struct CredentialPlan<'a> {
    pub files: CredentialFiles<'a>,
    pub role_id: FileAction,
    pub secret_id: FileAction,
}

#[derive(Debug, Eq, PartialEq)]
pub enum FileAction {
    /// The file does not fit, but was not written here.
    Keep {
        why: String,
    },
    /// The file is as it should be.
    Nothing,
    Write {
        why: String,
    },
}

impl CredentialFiles<'_> {
    pub(crate) fn role_path(&self) -> String {
        format!("auth/{}/role/{}", self.mount, self.role)
    }

    pub(crate) fn secret_id(&self) -> ObjectId {
        ObjectId::SecretId { mount: self.mount.to_owned(), role: self.role.to_owned() }
    }
}

impl<'a> CredentialPlan<'a> {
    /// The plan while the AppRole does not exist.
    pub fn for_new_role(files: CredentialFiles<'a>, record: &Record) -> Self {
        let action = |file: &Path| match read_credential(file) {
            Ok(None) => FileAction::Write { why: "new".to_owned() },
            Ok(Some(content)) => replace_or_keep(file, &content, record, "it belongs to no role"),
            Err(why) => FileAction::Keep { why },
        };
        Self { files, role_id: action(files.role_id_file), secret_id: action(files.secret_id_file) }
    }

    /// The plan for an AppRole that exists. `unwraps` says which wrapping tokens the sidecar has used itself.
    pub async fn for_existing_role(
        files: CredentialFiles<'a>,
        operator: &Operator,
        record: &Record,
        unwraps: &UnwrapRecords,
    ) -> Result<Self, VaultError> {
        let role_id = match read_credential(files.role_id_file) {
            Err(why) => FileAction::Keep { why },
            Ok(None) => FileAction::Write { why: "new".to_owned() },
            Ok(Some(content)) => match read_role_id(operator, &files).await? {
                expected if trimmed(&content) == expected.as_bytes() => FileAction::Nothing,
                _ => replace_or_keep(
                    files.role_id_file,
                    &content,
                    record,
                    "it has the role-id of another role",
                ),
            },
        };
        let file = files.secret_id_file;
        let secret_id = match read_credential(file) {
            Err(why) => FileAction::Keep { why },
            Ok(None) => FileAction::Write { why: "new".to_owned() },
            Ok(Some(content)) if files.delivery == SecretIdDelivery::Wrapped => {
                wrap_action(&files, &content, operator, record, unwraps).await?
            }
            Ok(Some(content)) => {
                let text = std::str::from_utf8(trimmed(&content)).unwrap_or_default();
                let text = Zeroizing::new(text.to_owned());
                match operator.vault.is_secret_id_of(&operator.token, &files.role_path(), text).await {
                    Ok(true) => FileAction::Nothing,
                    Ok(false) => {
                        replace_or_keep(file, &content, record, "the role does not know its secret-id")
                    }
                    Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Missing) => {
                        replace_or_keep(file, &content, record, "the role does not know its secret-id")
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(Self { files, role_id, secret_id })
    }

    pub fn writes_files(&self) -> bool {
        [&self.role_id, &self.secret_id].iter().any(|action| matches!(action, FileAction::Write { .. }))
    }
}

/// What happens to a file with a wrapping token.
async fn wrap_action(
    files: &CredentialFiles<'_>,
    content: &[u8],
    operator: &Operator,
    record: &Record,
    unwraps: &UnwrapRecords,
) -> Result<FileAction, VaultError> {
    let file = files.secret_id_file;
    let Ok(wrap) = Token::read(content) else {
        return Ok(replace_or_keep(file, content, record, "it has no wrapping token"));
    };
    match operator.vault.wrapping_lookup(&wrap).await {
        Ok(info) if info.creation_path == format!("{}/secret-id", files.role_path()) => {
            Ok(FileAction::Nothing)
        }
        Ok(_) => {
            let why = "ALERT: its wrapping token was not made by the AppRole: another party may have replaced it; find out which, and delete the file";
            Ok(FileAction::Keep { why: why.to_owned() })
        }
        Err(error) if error.kind() == Kind::Invalid => {
            let why = match unwraps.has_unwrapped(&wrap).await {
                true => "the sidecar has used its wrapping token, which is for one start",
                false => {
                    "its wrapping token has expired or was used; if this sidecar did not use it, look for `sys/wrapping/unwrap` in Vault's audit"
                }
            };
            Ok(replace_or_keep(file, content, record, why))
        }
        Err(error) => Err(error),
    }
}

/// Whether a file that does not fit may be replaced: only if it was written here.
fn replace_or_keep(file: &Path, content: &[u8], record: &Record, why: &str) -> FileAction {
    let id = ObjectId::File { path: file.to_owned() };
    match record.recognises(&id, &content_fingerprint(content)) {
        true => FileAction::Write { why: why.to_owned() },
        false => FileAction::Keep {
            why: format!("{why}, and this command did not write it; move it away, then run this again"),
        },
    }
}

/// The content of a credential file; `None` if it does not exist or is empty.
pub(crate) fn read_credential(file: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
    match read_file(file, MAX_FILE_BYTES, FileContent::Secret) {
        Ok(content) if trimmed(&content).is_empty() => Ok(None),
        Ok(content) => Ok(Some(content)),
        Err(SourceError::Read(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("it cannot be read: {}", error_chain(&error))),
    }
}

pub(crate) async fn read_role_id(
    operator: &Operator,
    files: &CredentialFiles<'_>,
) -> Result<Zeroizing<String>, VaultError> {
    let request = requests::read_role_id(files.mount, files.role)?;
    let line = cofferdam_vault::RequestLine { method: request.method.clone(), path: request.path.clone() };
    let data = operator.send(request).await?.data;
    data.and_then(|data| data.text("role_id")).ok_or(VaultError {
        request: line,
        problem: cofferdam_vault::Problem::Malformed { why: "it has no role-id" },
    })
}

fn trimmed(content: &[u8]) -> &[u8] {
    content.trim_ascii()
}
