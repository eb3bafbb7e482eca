//! Removes the secrets of one client from texts of a platform or a sandbox, before they are shown.
//!
//! What must stay true: a text that a platform, a sandbox or `ssh` wrote reaches an error or a log only through a
//! [`Redactor`], which removes the API key and every token of the client's sandboxes, and shortens the text after that: a
//! secret of which a part is cut off would not be found.

use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_scrub::{Needle, Scrubber};
use zeroize::Zeroizing;

/// The longest text that is shown, in characters.
const MAX_SHOWN: usize = 200;
/// A client gets a new token whenever its sandbox resumes; the oldest of so many is no longer valid.
const MAX_SECRETS: usize = 64;

/// Removes a client's secrets from texts. Clones share the secrets.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    secrets: Arc<Mutex<Vec<Needle>>>,
}

impl Redactor {
    /// Adds a secret, for all clones too.
    pub(crate) fn add(&self, label: &str, secret: &[u8]) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if secret.is_empty() || secrets.iter().any(|known| *known.value == secret) {
            return;
        }
        if secrets.len() == MAX_SECRETS {
            // The first secret is the API key, which stays valid.
            secrets.remove(1);
        }
        secrets.push(Needle { label: label.into(), value: Zeroizing::new(secret.to_vec()) });
    }

    /// Removes secrets from a text of this program that contains a value from the platform, such as a host name.
    pub(crate) fn redact(&self, text: &str) -> String {
        let needles = self.secrets.lock().unwrap_or_else(PoisonError::into_inner).clone();
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

#[cfg(test)]
mod tests {
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
