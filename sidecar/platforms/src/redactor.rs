//! The secrets of one client: removed from texts of a platform or a sandbox before they are shown, and among the values that
//! every link and the log search for.
//!
//! What must stay true: a secret is held by a [`Redactor`] before it is used, and until nothing of the client uses it any more; a text that a platform, a sandbox or `ssh` wrote reaches an error or a log only through a
//! [`Redactor`], which removes the API key and every token of the client's sandboxes, and shortens the text after that: a
//! secret of which a part is cut off would not be found.

use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_scrub::shared::SharedValues;
use cofferdam_scrub::{Needle, Scrubber};
use zeroize::Zeroizing;

/// The longest text that is shown, in characters.
const MAX_SHOWN: usize = 200;
/// A client gets a new token whenever its sandbox resumes; the oldest of so many is no longer valid.
const MAX_SECRETS: usize = 64;
/// Links do not search for shorter secrets: they would also be found in ordinary text. No platform gives such tokens.
const SHORTEST_ON_LINKS: usize = 8;

/// Holds a client's secrets, and removes them from texts. Clones share the secrets.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    secrets: Arc<HeldSecrets>,
}

/// Released from the values of all links when it is dropped.
#[derive(Default)]
struct HeldSecrets {
    /// The API key, then the tokens, the newest last.
    known: Mutex<Vec<Needle>>,
    /// The values that every link and the log search for.
    values: Arc<SharedValues>,
}

impl Redactor {
    pub(crate) fn holding_in(values: &Arc<SharedValues>) -> Self {
        Self { secrets: Arc::new(HeldSecrets { known: Mutex::default(), values: Arc::clone(values) }) }
    }

    /// Adds a secret, for all clones too.
    pub(crate) fn add(&self, label: &str, secret: &[u8]) {
        let HeldSecrets { known, values } = &*self.secrets;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if secret.is_empty() || known.iter().any(|known| *known.value == secret) {
            return;
        }
        let needle = Needle { label: label.into(), value: Zeroizing::new(secret.to_vec()) };
        values.learn(on_links(slice::from_ref(&needle)));
        if known.len() == MAX_SECRETS {
            // The first secret is the API key, which stays valid.
            let oldest = known.remove(1);
            values.release(on_links(slice::from_ref(&oldest)));
        }
        known.push(needle);
    }

    /// Removes secrets from a text of this program that contains a value from the platform, such as a host name.
    pub(crate) fn redact(&self, text: &str) -> String {
        let needles = self.secrets.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Created for each text: texts are rare, and a scrubber needs more memory than an idle attachment.
        Scrubber::new(needles).name(text).into_owned()
    }

    /// Prepares a text of a platform or a sandbox for an error or a log: removes secrets, shortens it, and puts it on one line.
    pub(crate) fn printable(&self, text: &str) -> String {
        let text = self.redact(text);
        let mut shown: String = text
            .chars()
            .map(|character| if character.is_control() { ' ' } else { character })
            .take(MAX_SHOWN)
            .collect();
        if text.chars().nth(MAX_SHOWN).is_some() {
            shown.push('…');
        }
        shown
    }
}

impl Drop for HeldSecrets {
    fn drop(&mut self) {
        let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
        known.iter().for_each(|needle| self.values.release(on_links(slice::from_ref(needle))));
    }
}

/// The secret, or nothing if links do not search for it.
fn on_links(secret: &[Needle]) -> &[Needle] {
    match secret.iter().all(|needle| needle.value.len() >= SHORTEST_ON_LINKS) {
        true => secret,
        false => &[],
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_scrub::Naming;

    use super::*;

    const TOKEN: &str = "t0ken-of-a-sandbox";

    fn redactor() -> Redactor {
        let redactor = Redactor::default();
        redactor.add("api-key", b"k3y-of-the-account");
        redactor.clone().add("token", TOKEN.as_bytes());
        redactor
    }

    #[test]
    fn every_secret_of_the_client_is_removed_also_in_another_encoding() {
        let shown =
            redactor().printable(&format!("no\n{TOKEN} and k3y-of-the-account, dDBrZW4tb2YtYS1zYW5kYm94"));
        assert_eq!(shown, "no [redacted:token] and [redacted:api-key], [redacted:token]");
    }

    #[test]
    fn links_search_for_a_secret_as_long_as_the_client_uses_it() {
        let values = Arc::<SharedValues>::default();
        let token = Needle { label: "token".into(), value: Zeroizing::new(TOKEN.into()) };
        let is_known = || values.ids(slice::from_ref(&token)) != [None];
        let redactor = Redactor::holding_in(&values);
        let service = redactor.clone();
        service.add("token", TOKEN.as_bytes());
        service.add("token", b"t0k3n");
        assert_eq!(values.scrubber(Naming::All).text(TOKEN.as_bytes()).redactions, 1);
        assert_eq!(values.scrubber(Naming::All).text(b"t0k3n").redactions, 0, "it is too short");
        drop(redactor);
        // Values that nothing holds are forgotten after some others.
        let release_many = || {
            for number in 0..2000 {
                let client = Redactor::holding_in(&values);
                client.add("token", format!("token-of-another-client-{number}").as_bytes());
            }
        };
        release_many();
        assert!(is_known(), "a clone holds the secret");
        drop(service);
        release_many();
        assert!(!is_known());
    }

    #[test]
    fn a_secret_is_removed_before_the_text_is_shortened() {
        for before in MAX_SHOWN - TOKEN.len()..MAX_SHOWN {
            let shown = redactor().printable(&format!("{}{TOKEN}{}", "x".repeat(before), "y".repeat(99)));
            assert!(!shown.contains("t0k") && shown.chars().count() == MAX_SHOWN + 1, "{before}: {shown}");
        }
    }

    #[test]
    fn the_oldest_token_is_dropped_and_the_api_key_is_not() {
        let redactor = redactor();
        for number in 0..MAX_SECRETS {
            redactor.add("token", format!("one-of-many-tokens-{number}").as_bytes());
        }
        let shown = redactor.printable(&format!("{TOKEN} k3y-of-the-account one-of-many-tokens-63"));
        assert_eq!(shown, format!("{TOKEN} [redacted:api-key] [redacted:token]"));
    }
}
