//! The secrets of one client, and the only way in which a text of a platform or a sandbox is shown.
//!
//! What must stay true: a text that a platform, a sandbox or `ssh` wrote reaches an error or a log through a
//! [`Redactor`] alone, which removes the API key and every token of the client's sandboxes before it shortens the
//! text: a secret that is cut in two would not be found any more.

use std::sync::{Arc, Mutex, PoisonError};

use cofferdam_scrub::{Needle, Scrubber};
use zeroize::Zeroizing;

/// Of a text that is shown, in characters.
const MAX_SHOWN: usize = 200;
/// A client gets a new token whenever its sandbox resumes. Of so many, the oldest one has long become invalid.
const MAX_SECRETS: usize = 64;

/// Removes a client's secrets from texts. Clones share the secrets.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    secrets: Arc<Mutex<Vec<Needle>>>,
}

impl Redactor {
    /// Remembers a secret, from now on for all clones too.
    pub(crate) fn learn(&self, label: &str, secret: &[u8]) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if secret.is_empty() || secrets.iter().any(|known| *known.value == secret) {
            return;
        }
        if secrets.len() == MAX_SECRETS {
            // The first one is the API key, which stays valid.
            secrets.remove(1);
        }
        secrets.push(Needle { label: label.into(), value: Zeroizing::new(secret.to_vec()) });
    }

    /// A text of this program with a name in it that a platform chose, such as a host: without secrets.
    pub(crate) fn redacted(&self, text: &str) -> String {
        let needles = self.secrets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Made for each text: texts are rare, and a scrubber takes more memory than an attachment that is idle.
        Scrubber::new(needles).name(text).into_owned()
    }

    /// A text of a platform or a sandbox, for an error or a log: without secrets, short, on one line.
    pub(crate) fn printable(&self, text: &str) -> String {
        let text = self.redacted(text);
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
        redactor.learn("api-key", b"k3y-of-the-account");
        redactor.clone().learn("token", TOKEN.as_bytes());
        redactor
    }

    #[test]
    fn every_secret_of_the_client_is_removed_also_in_another_encoding() {
        let shown =
            redactor().printable(&format!("no\n{TOKEN} and k3y-of-the-account, dDBrZW4tb2YtYS1zYW5kYm94"));
        assert_eq!(shown, "no [redacted:token] and [redacted:api-key], [redacted:token]");
    }

    #[test]
    fn a_secret_at_the_cut_is_removed_before_the_text_is_shortened() {
        for before in MAX_SHOWN - TOKEN.len()..MAX_SHOWN {
            let shown = redactor().printable(&format!("{}{TOKEN}{}", "x".repeat(before), "y".repeat(99)));
            assert!(!shown.contains("t0k") && shown.chars().count() == MAX_SHOWN + 1, "{before}: {shown}");
        }
    }

    #[test]
    fn old_tokens_are_forgotten_and_the_key_is_not() {
        let redactor = redactor();
        for number in 0..MAX_SECRETS {
            redactor.learn("token", format!("one-of-many-tokens-{number}").as_bytes());
        }
        let shown = redactor.printable(&format!("{TOKEN} k3y-of-the-account one-of-many-tokens-63"));
        assert_eq!(shown, format!("{TOKEN} [redacted:api-key] [redacted:token]"));
    }
}
