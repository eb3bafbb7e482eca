//! The sidecar's own credentials, which no link may pass on: those of its login to Vault, and its private keys.
//!
//! They belong to no server and to no session, so that links replace them without a name. Sessions learn their values by
//! themselves (see [`crate::shared`]).
//!
//! What must stay true: a credential is searched for from the moment that [`OwnCredentials::hold`] returns, so a caller
//! holds it before it is sent or used; of each kind the newest [`HELD_OF_EACH_KIND`] are held, whatever follows.

use std::collections::VecDeque;
use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use zeroize::Zeroizing;

use crate::shared::SharedValues;
use crate::{Entropy, Needle};

/// Of credentials that are replaced while the sidecar runs, such as tokens: enough for those that are still valid.
const HELD_OF_EACH_KIND: usize = 16;
/// Shorter credentials would also be found in ordinary text.
const SHORTEST: usize = 8;

/// Holds the credentials in the values that every link and the log search for.
#[derive(Default)]
pub struct OwnCredentials {
    values: Arc<SharedValues>,
    /// The newest last.
    held: Mutex<VecDeque<Needle>>,
}

/// What [`OwnCredentials::hold`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Holding {
    /// The credential was held before.
    Known,
    /// Links search for it from now on.
    Searched,
    /// Links do not search for it: redaction would confirm a guess, or remove ordinary text.
    Guessable,
}

impl OwnCredentials {
    pub fn new(values: Arc<SharedValues>) -> Self {
        Self { values, held: Mutex::default() }
    }

    /// The values of all sessions, which these are among.
    pub fn values(&self) -> &Arc<SharedValues> {
        &self.values
    }

    /// Adds a credential, or makes a known one the newest. The log replaces it by `[redacted:KIND]`.
    pub fn hold(&self, kind: &str, value: &[u8]) -> Holding {
        let value = value.trim_ascii();
        if value.len() < SHORTEST {
            return Holding::Guessable;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_this = |needle: &Needle| &*needle.label == kind && *needle.value == value;
        if let Some(needle) = held.iter().position(is_this).and_then(|at| held.remove(at)) {
            held.push_back(needle);
            return Holding::Known;
        }
        let needle = Needle { label: kind.into(), value: Zeroizing::new(value.to_vec()) };
        self.values.learn(slice::from_ref(&needle));
        held.push_back(needle);
        let of_this_kind = |needle: &Needle| &*needle.label == kind;
        if held.iter().filter(|needle| of_this_kind(needle)).count() > HELD_OF_EACH_KIND
            && let Some(oldest) = held.iter().position(of_this_kind).and_then(|at| held.remove(at))
        {
            self.values.release(slice::from_ref(&oldest));
        }
        match Entropy::of(value) {
            Entropy::Low => Holding::Guessable,
            Entropy::Enough => Holding::Searched,
        }
    }

    /// Adds the private keys of a PEM file, which are found line by line. Certificates beside them are no secret.
    pub fn hold_private_keys(&self, kind: &str, pem: &[u8]) {
        let mut key: Option<Zeroizing<Vec<u8>>> = None;
        for line in pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            if line.starts_with(b"-----BEGIN ") {
                // Room for the whole file, so that growing leaves no copy behind.
                let room = || Zeroizing::new(Vec::with_capacity(pem.len() + 1));
                key = line.ends_with(b"PRIVATE KEY-----").then(room);
            } else if line.starts_with(b"-----END ") {
                if let Some(key) = key.take() {
                    self.hold(kind, &key);
                }
            } else if let Some(key) = &mut key {
                key.extend_from_slice(line);
                key.push(b'\n');
            }
        }
    }
}

/// Late messages and log lines are still scrubbed: see [`SharedValues::release`].
impl Drop for OwnCredentials {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.values.release(held.make_contiguous());
    }
}

impl fmt::Debug for OwnCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OwnCredentials").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Naming, OwnNames};

    fn credentials() -> (Arc<SharedValues>, OwnCredentials) {
        let values = Arc::<SharedValues>::default();
        (Arc::clone(&values), OwnCredentials::new(values))
    }

    /// What a link sends for this text.
    fn on_a_link(values: &SharedValues, text: &str) -> String {
        let names = OwnNames { labels: Arc::default(), is_own: Arc::new(|_| true) };
        String::from_utf8(values.scrubber(Naming::Own(names)).text(text.as_bytes()).bytes.into_owned())
            .unwrap()
    }

    fn in_the_log(values: &SharedValues, text: &str) -> String {
        String::from_utf8(values.scrubber(Naming::All).text(text.as_bytes()).bytes.into_owned()).unwrap()
    }

    #[test]
    fn a_credential_of_the_sidecar_has_a_name_in_the_log_only() {
        let (values, own) = credentials();
        assert!(Arc::ptr_eq(own.values(), &values));
        assert_eq!(own.hold("vault.login-secret-id", b"6a2f-secret-id\n"), Holding::Searched);
        assert_eq!(on_a_link(&values, "it is 6a2f-secret-id."), "it is [redacted].");
        assert_eq!(in_the_log(&values, "it is 6a2f-secret-id."), "it is [redacted:vault.login-secret-id].");
    }

    #[test]
    fn the_newest_sixteen_of_each_kind_are_held() {
        let (values, own) = credentials();
        own.hold("vault.login-password", b"the-password");
        for number in 0..20 {
            // Used again at each login.
            assert_eq!(own.hold("vault.login-password", b"the-password"), Holding::Known);
            assert_eq!(
                own.hold("vault.login-token", format!("token-{number:04}").as_bytes()),
                Holding::Searched
            );
        }
        let held: Vec<String> = own
            .held
            .lock()
            .unwrap()
            .iter()
            .filter(|needle| &*needle.label == "vault.login-token")
            .map(|needle| String::from_utf8(needle.value.to_vec()).unwrap())
            .collect();
        assert_eq!(held, (4..20).map(|number| format!("token-{number:04}")).collect::<Vec<_>>());
        assert_eq!(on_a_link(&values, "the-password token-0019"), "[redacted] [redacted]");
    }

    #[test]
    fn what_can_be_guessed_stays_on_links() {
        let (values, own) = credentials();
        assert_eq!(own.hold("vault.login-password", b"73519824"), Holding::Guessable);
        assert_eq!(own.hold("vault.login-password", b"secret"), Holding::Guessable);
        assert_eq!(
            own.hold("vault.login-password", b"k7Qp-z2W"),
            Holding::Searched,
            "eight bytes are enough"
        );
        assert_eq!(on_a_link(&values, "73519824 is secret"), "73519824 is secret");
        assert_eq!(in_the_log(&values, "a secret"), "a secret", "ordinary text is removed from the log");
    }

    #[test]
    fn credentials_are_released_when_nothing_holds_them_any_more() {
        let (values, own) = credentials();
        own.hold("vault.login-token", b"token-of-the-login");
        assert_eq!(format!("{own:?}"), "OwnCredentials { .. }");
        drop(own);
        assert_eq!(on_a_link(&values, "token-of-the-login"), "[redacted]", "late messages are not scrubbed");
        // As many as are searched for after their release.
        for number in 0..1024 {
            let value = format!("token-of-session-{number}").into_bytes().into();
            let needle = Needle { label: "session.token".into(), value };
            values.learn(slice::from_ref(&needle));
            values.release(slice::from_ref(&needle));
        }
        assert_eq!(on_a_link(&values, "token-of-the-login"), "token-of-the-login");
    }

    #[test]
    fn keys_are_found_by_their_lines_and_certificates_stay() {
        let (values, own) = credentials();
        let pem = "-----BEGIN CERTIFICATE-----\nMIIBnzCCAUWgAwIBAgIUfLOB\n-----END CERTIFICATE-----\r\n\
                   -----BEGIN EC PRIVATE KEY-----\r\nMHcCAQEEIObtbqXl7g1b5HkR\r\nq9AgEGCCqGSM49AwEHoUQD\r\n\
                   -----END EC PRIVATE KEY-----\r\n";
        own.hold_private_keys("admin.key", pem.as_bytes());
        let expected = "-----BEGIN CERTIFICATE-----\nMIIBnzCCAUWgAwIBAgIUfLOB\n-----END CERTIFICATE-----\r\n\
                        -----BEGIN EC PRIVATE KEY-----\r\n[redacted]\r\n\
                        -----END EC PRIVATE KEY-----\r\n";
        assert_eq!(on_a_link(&values, pem), expected);
        assert_eq!(on_a_link(&values, "a part: q9AgEGCCqGSM49AwEHoUQD"), "a part: [redacted]");
    }
}
