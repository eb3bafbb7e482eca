//! Secrets on this host: files, environment variables and commands.
//!
//! What must stay true: no more than `secret-bytes` of a source are held in memory; a source that hangs or prints too
//! much is an error; no error contains what was read. Nothing here can be revoked. After a command failed to print an
//! expiring credential it is not run again for [`RETRY_PAUSE`], however many callers wait.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::text::error_chain;
use cofferdam_scrub::Guessable;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nix::fcntl::OFlag;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::error::{ExpiringError, SecretError, SecretProblem, SourceError, SourceFailure};
use super::expiring::{self, ExpiringCredential};
use super::exposed_values::needles;
use super::fields;
use super::material::Material;
use super::renewal::{RenewalClass, Terms};
use super::source::{Lease, Requester, Source, SourceRequest, Unleased};
use super::spec::{ExecFormat, Origin, SecretSpec, SourceLimits};
use cofferdam_base::clock;
use cofferdam_process::{RunError, run_bounded};

/// The pause after a command failed to print an expiring credential.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The mode bit that lets every user of the host read a file.
const READABLE_BY_OTHERS: u32 = 0o004;

/// Whether a file's content is secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FileContent {
    Public,
    /// A warning is logged if every user of the host can read the file.
    Secret,
}

/// Files, variables and commands. Renewal tasks end when this is dropped.
#[derive(Debug, Default)]
pub struct LocalSource {
    renewal_stop: CancellationToken,
    /// For [`Hold::changes`]. Nothing is ever sent, because local secrets depend on no token.
    changes: watch::Sender<u64>,
}

/// Reads a secret of this host once.
pub async fn fetch(spec: &SecretSpec, limits: SourceLimits) -> Result<Material, SecretError> {
    let request = SourceRequest { spec, limits, requester: Requester::Caller, add_to_scrubbers: &|_, _| {} };
    let lease = LocalSource::default().read(request).await;
    lease.map(|lease| Material::new(spec, lease)).map_err(|cause| SecretError::new(spec, cause))
}

/// What a check of the configuration is told of a secret in a file or an environment variable.
#[derive(Debug)]
pub struct LocalFields {
    pub names: BTreeSet<String>,
    /// Of the first value that could be found by guessing, if there is one. Values of public fields do not count.
    pub guessable: Option<Guessable>,
}

/// Reads the fields of a secret in a file or an environment variable, for a check of the configuration. `None` for a secret
/// of another origin: no command is run. May block.
pub fn local_fields(spec: &SecretSpec, limits: SourceLimits) -> Result<Option<LocalFields>, SecretProblem> {
    let content = match &spec.origin {
        Origin::Env(name) => check_variable(std::env::var_os(name), limits.bytes)?,
        Origin::File(path) => read_file(path, limits.bytes, FileContent::Public)?,
        Origin::Exec { .. } | Origin::Vault(_) => return Ok(None),
    };
    let public: BTreeSet<String> = spec.public.iter().cloned().collect();
    let fields = fields::parse(&content, &public, spec.short)?;
    let secret = fields.iter().filter(|(field, _)| !public.contains(*field));
    let guessable = needles(&spec.name, secret).iter().find_map(|needle| Guessable::of(&needle.value));
    Ok(Some(LocalFields { names: fields.into_keys().collect(), guessable }))
}

impl LocalSource {
    async fn read_lease(
        &self,
        SourceRequest { spec, limits, .. }: SourceRequest<'_>,
    ) -> Result<Lease, SecretProblem> {
        let (requested_at, wall_clock) = (Instant::now(), clock::now());
        let content = read_content(&spec.origin, limits).await?;
        let public = spec.public.iter().cloned().collect();
        let (fields, lifetime) = match &spec.origin {
            Origin::Exec { format: ExecFormat::Expiring, .. } => {
                let ExpiringCredential { fields, lifetime } =
                    expiring::parse(&content, wall_clock, &public, spec.short)?;
                if requested_at + lifetime <= Instant::now() {
                    return Err(ExpiringError::Expired { at: (wall_clock + lifetime).into() }.into());
                }
                (fields, Some(lifetime))
            }
            _ => (fields::parse(&content, &public, spec.short)?, None),
        };
        Ok(Lease {
            fields: fields.into(),
            // Without a lifetime this class means that the credential is not read again by itself.
            terms: Terms { class: RenewalClass::OwnExpiry, requested_at, lifetime, token_expiry: None },
            hold: Arc::new(Unleased::new(self.changes.subscribe())),
            read_id: None,
            valid_after_revocation_until: None,
        })
    }
}

impl Source for LocalSource {
    fn read<'a>(&'a self, request: SourceRequest<'a>) -> BoxFuture<'a, Result<Lease, SecretProblem>> {
        async move {
            let read = self.read_lease(request).await;
            match request.spec.origin {
                Origin::Exec { format: ExecFormat::Expiring, .. } => {
                    read.map_err(|problem| source_failure(request.spec, &problem).into())
                }
                _ => read,
            }
        }
        .boxed()
    }

    fn too_slow(&self, spec: &SecretSpec) -> SourceFailure {
        source_failure(spec, &SourceError::TooSlow.into())
    }

    fn renewal_stop(&self) -> CancellationToken {
        self.renewal_stop.clone()
    }
}

impl Drop for LocalSource {
    fn drop(&mut self) {
        self.renewal_stop.cancel();
    }
}

/// The failure with the causes of the problem; none of them contains what the command printed, and those for the sandbox
/// do not name the command.
fn source_failure(spec: &SecretSpec, problem: &SecretProblem) -> SourceFailure {
    SourceFailure {
        message: problem.for_sandbox(),
        detail: error_chain(problem),
        next_step: problem.next_step(&format!("[secrets.{}]", spec.name)),
        next_attempt: Instant::now() + RETRY_PAUSE,
        not_before: None,
    }
}

async fn read_content(origin: &Origin, limits: SourceLimits) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    let limit = limits.bytes;
    match origin {
        Origin::Env(name) => check_variable(std::env::var_os(name), limit),
        Origin::Exec { command, .. } => match run_bounded(command, limits.exec_timeout, limit).await {
            Err(RunError::OutputTooLarge { limit }) => Err(SourceError::TooLarge { limit }),
            result => Ok(result?),
        },
        Origin::File(path) => {
            let path = path.clone();
            // A file system may hang, and the runtime's threads must not.
            let read =
                tokio::task::spawn_blocking(move || read_file(&path, limit, FileContent::Secret)).await;
            read.map_err(|panic| SourceError::Read(io::Error::other(panic)))?
        }
        Origin::Vault(_) => Err(SourceError::NotLocal),
    }
}

fn check_variable(value: Option<OsString>, limit: usize) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    let value = Zeroizing::new(value.ok_or(SourceError::Unset)?.into_vec());
    match value.len() > limit {
        true => Err(SourceError::TooLarge { limit }),
        false => Ok(value),
    }
}

/// Reads a regular file of at most `limit` bytes into memory that is wiped when dropped. May block.
pub fn read_file(path: &Path, limit: usize, content: FileContent) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    // Opening a named pipe without O_NONBLOCK would block until a writer appears.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut file =
        File::options().read(true).custom_flags(flags.bits()).open(path).map_err(SourceError::Read)?;
    let metadata = file.metadata().map_err(SourceError::Read)?;
    if !metadata.is_file() {
        return Err(SourceError::NotAFile);
    }
    if content == FileContent::Secret && metadata.mode() & READABLE_BY_OTHERS != 0 {
        let path = PathBuf::from(path);
        tracing::warn!(path = %path.display(), "every user of this host can read a file with a secret: run `chmod o-r` on it");
    }
    if metadata.len() > limit as u64 {
        return Err(SourceError::TooLarge { limit });
    }
    // Allocated at once, because a growing buffer leaves copies that are not wiped. The file may have grown since `metadata`.
    let mut bytes = Zeroizing::new(vec![0; limit + 1]);
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SourceError::Read(error)),
        }
    }
    if length > limit {
        return Err(SourceError::TooLarge { limit });
    }
    bytes.truncate(length);
    Ok(bytes)
}
