//! Bearer tokens of the admin API: random, shown once, stored as hashes, and valid for some grants and a limited time.
//!
//! What must stay true: a token is on disk before it is shown, and its file is gone before its revocation is confirmed; a
//! file that cannot be read is logged, left in place and skipped; tokens are compared in constant time. Functions marked
//! "Writes" write and sync files: they must not run on a thread of the async runtime.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use cofferdam_base::atomic_file::{Replace, TEMPORARY_SUFFIX, read_bounded, sync_directory, write_file};
use cofferdam_base::text::hex;
use cofferdam_base::{clock, random};
use relay_proto::name::Name;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{BearerToken, TOKEN_PREFIX, TokenEntry};

pub(crate) struct Tokens {
    directory: PathBuf,
    table: Mutex<Table>,
    /// Locked while files are written or removed. `table` is not locked meanwhile, so authentication never waits for the
    /// disk.
    disk: Mutex<()>,
}

type Table = BTreeMap<Arc<str>, StoredToken>;

struct StoredToken {
    record: TokenRecord,
    revoked: CancellationToken,
}

/// The content of `tokens/ID.json`. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
struct TokenRecord {
    id: String,
    /// SHA-256 of the token in hex. A token has 256 random bits, so it cannot be found from its hash.
    hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    grants: Vec<Name>,
    created: u64,
    expires: u64,
}

/// The parameters of a new token.
#[derive(Clone, Debug)]
pub(super) struct TokenTerms {
    pub(super) grants: Vec<Name>,
    pub(super) name: Option<String>,
    pub(super) ttl: Duration,
}

/// The grants of a valid token, and its expiry.
#[derive(Clone, Debug)]
pub(super) struct TokenScope {
    pub(super) id: Arc<str>,
    pub(super) name: Option<String>,
    pub(super) grants: Vec<Name>,
    expires: SystemTime,
    revoked: CancellationToken,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TokenRefused {
    Expired,
    /// Never created here, or revoked.
    Unknown,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{path}`")]
pub(crate) struct TokenStoreError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TokenNotCreated {
    #[error("there are {MAX_TOKENS} tokens already; revoke one with `cofferdam token revoke`")]
    Full,
    #[error(transparent)]
    Store(#[from] TokenStoreError),
}

/// Tokens of one sidecar, expired ones included: each orchestrator needs one or two.
const MAX_TOKENS: usize = 1024;
/// How long an expired token is still listed, and refused as expired instead of as unknown.
const LIST_EXPIRED_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A record has a few hundred bytes, and more with many grants.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// The wall clock may jump, so it is read at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

impl Tokens {
    /// Reads the tokens in the state directory. Writes.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, TokenStoreError> {
        let directory = state_dir.join("tokens");
        let failed = |action| TokenStoreError::of(action, &directory);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed("create the directory"))?;
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).map_err(failed("set mode 0700 on"))?;
        let mut table = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(failed("list"))? {
            let path = entry.map_err(failed("list"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX) {
                // Left over from a write that a crash interrupted.
                let _ = fs::remove_file(&path);
                continue;
            }
            match read(&path) {
                Ok(record) if name == file_name(&record.id) => {
                    let stored = StoredToken { record, revoked: CancellationToken::new() };
                    table.insert(stored.record.id.as_str().into(), stored);
                }
                Ok(_) => {
                    tracing::error!(path = %path.display(), "skipped: the file name does not match the token's id")
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "skipped: cannot read this file as a token")
                }
            }
        }
        Ok(Self { directory, table: Mutex::new(table), disk: Mutex::default() })
    }

    /// Creates a token. Writes.
    pub(super) fn create(
        &self,
        terms: TokenTerms,
        now: SystemTime,
    ) -> Result<(String, BearerToken), TokenNotCreated> {
        let TokenTerms { grants, name, ttl } = terms;
        let id = random::id("t");
        let token = BearerToken::generate(&id);
        let record = TokenRecord {
            id: id.clone(),
            hash: hash(token.as_str()),
            name,
            grants,
            created: milliseconds(now),
            expires: milliseconds(now).saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        };
        let _writing = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_long_expired(now);
        if self.lock().len() >= MAX_TOKENS {
            return Err(TokenNotCreated::Full);
        }
        let path = self.directory.join(file_name(&id));
        let mut bytes = serde_json::to_vec_pretty(&record).expect("a record is plain data");
        bytes.push(b'\n');
        write_file(&self.directory, &path, &bytes, Replace::Never)
            .map_err(TokenStoreError::of("write the token's file", &path))?;
        self.lock().insert(id.as_str().into(), StoredToken { record, revoked: CancellationToken::new() });
        Ok((id, token))
    }

    /// Revokes a token; streams that were opened with the token end. Returns whether the token existed. After an error the
    /// token is revoked too, but only until a restart. Writes.
    pub(super) fn revoke(&self, id: &str) -> Result<bool, TokenStoreError> {
        let _writing = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stored) = self.lock().remove(id) else { return Ok(false) };
        stored.revoked.cancel();
        self.remove_file(id)?;
        Ok(true)
    }

    pub(super) fn list(&self, now: SystemTime) -> Vec<TokenEntry> {
        let now = milliseconds(now);
        let entry = |stored: &StoredToken| TokenEntry {
            id: stored.record.id.clone(),
            name: stored.record.name.clone(),
            grants: stored.record.grants.iter().map(ToString::to_string).collect(),
            expires_in_seconds: stored.record.expires.saturating_sub(now).div_ceil(1000),
        };
        self.lock().values().map(entry).collect()
    }

    /// Checks a token and returns what it permits.
    pub(super) fn check(&self, token: &str, now: SystemTime) -> Result<TokenScope, TokenRefused> {
        let hash = hash(token);
        let id = token.strip_prefix(TOKEN_PREFIX).and_then(|rest| rest.split_once('_')).map(|(id, _)| id);
        let table = self.lock();
        let stored = id.and_then(|id| table.get(id)).ok_or(TokenRefused::Unknown)?;
        if !bool::from(stored.record.hash.as_bytes().ct_eq(hash.as_bytes())) {
            return Err(TokenRefused::Unknown);
        }
        let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(stored.record.expires));
        match expires.filter(|expires| *expires > now) {
            Some(expires) => Ok(TokenScope {
                id: stored.record.id.as_str().into(),
                name: stored.record.name.clone(),
                grants: stored.record.grants.clone(),
                expires,
                revoked: stored.revoked.clone(),
            }),
            None => Err(TokenRefused::Expired),
        }
    }

    fn remove_long_expired(&self, now: SystemTime) {
        let limit = milliseconds(now.checked_sub(LIST_EXPIRED_FOR).unwrap_or(SystemTime::UNIX_EPOCH));
        let removed: Table = self.lock().extract_if(.., |_, stored| stored.record.expires <= limit).collect();
        for id in removed.keys() {
            if let Err(error) = self.remove_file(id) {
                tracing::error!(%error, token = %id, "the file of an expired token was not removed");
            }
        }
    }

    fn remove_file(&self, id: &str) -> Result<(), TokenStoreError> {
        let path = self.directory.join(file_name(id));
        let failed = TokenStoreError::of("remove the token's file", &path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => sync_directory(&self.directory).map_err(failed),
        }
    }

    /// Ignores poisoning, because every change under the lock leaves the table consistent.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenScope {
    /// Waits until the token expires or is revoked.
    pub(super) async fn await_end(&self) {
        let expired = async {
            while let Ok(left) = self.expires.duration_since(clock::now()) {
                sleep(left.min(LONGEST_SLEEP).max(Duration::from_millis(10))).await;
            }
        };
        tokio::select! {
            () = self.revoked.cancelled() => {}
            () = expired => {}
        }
    }
}

impl TokenStoreError {
    fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

fn read(path: &Path) -> io::Result<TokenRecord> {
    Ok(serde_json::from_slice(&read_bounded(path, MAX_FILE_BYTES)?)?)
}

fn file_name(id: &str) -> String {
    format!("{id}.json")
}

fn hash(token: &str) -> String {
    hex(digest(&SHA256, token.as_bytes()).as_ref())
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            Self(std::env::temp_dir().join(random::id("cofferdam-tokens-")))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn terms() -> TokenTerms {
        TokenTerms { grants: vec!["dev".parse().unwrap()], name: None, ttl: Duration::from_secs(60) }
    }

    #[test]
    fn a_token_is_accepted_until_it_expires_also_after_a_restart() {
        let directory = Directory::new();
        let now = clock::now();
        let (id, token) = Tokens::open(&directory.0).unwrap().create(terms(), now).unwrap();
        let tokens = Tokens::open(&directory.0).unwrap();
        assert_eq!(tokens.check(token.as_str(), now).unwrap().grants, terms().grants);
        let later = now + Duration::from_secs(61);
        assert_eq!(tokens.check(token.as_str(), later).unwrap_err(), TokenRefused::Expired);
        assert_eq!(tokens.list(later)[0].expires_in_seconds, 0);
        assert!(tokens.revoke(&id).unwrap() && !tokens.revoke(&id).unwrap());
        assert_eq!(tokens.check(token.as_str(), now).unwrap_err(), TokenRefused::Unknown);
        assert!(Tokens::open(&directory.0).unwrap().list(now).is_empty(), "the token's file was not removed");
    }

    #[test]
    fn the_file_has_mode_0600_and_no_token_and_damaged_files_are_skipped() {
        let directory = Directory::new();
        let now = clock::now();
        let tokens = Tokens::open(&directory.0).unwrap();
        let (id, token) = tokens.create(terms(), now).unwrap();
        let path = directory.0.join("tokens").join(file_name(&id));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let secret = token.as_str().rsplit('_').next().unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains(secret));
        fs::write(directory.0.join("tokens/t1.json"), "{").unwrap();
        fs::copy(&path, directory.0.join("tokens/t2.json")).unwrap();
        let again = Tokens::open(&directory.0).unwrap();
        assert_eq!(again.list(now).len(), 1);
        assert!(again.check(token.as_str(), now).is_ok());
    }

    #[test]
    fn texts_that_differ_from_the_token_are_refused_as_unknown() {
        let directory = Directory::new();
        let now = clock::now();
        let tokens = Tokens::open(&directory.0).unwrap();
        let (id, token) = tokens.create(terms(), now).unwrap();
        let text = token.as_str();
        let other = format!("{TOKEN_PREFIX}{id}_{}", "0".repeat(64));
        for wrong in
            ["", "_", &other, &text[1..], &text[..text.len() - 1], &format!("{text}0"), &text.to_uppercase()]
        {
            assert_eq!(tokens.check(wrong, now).unwrap_err(), TokenRefused::Unknown, "{wrong}");
        }
    }

    #[test]
    fn tokens_that_expired_long_ago_are_removed_when_another_is_created() {
        let directory = Directory::new();
        let now = clock::now();
        let tokens = Tokens::open(&directory.0).unwrap();
        let (old, _) = tokens.create(terms(), now).unwrap();
        tokens.create(terms(), now + LIST_EXPIRED_FOR + Duration::from_secs(61)).unwrap();
        assert!(tokens.list(now).iter().all(|entry| entry.id != old));
        assert_eq!(fs::read_dir(directory.0.join("tokens")).unwrap().count(), 1);
    }
}
