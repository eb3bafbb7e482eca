//! Rotating resume tokens.
//!
//! A token is valid for one resume. The shim's first frame after a `Welcome` confirms the token in it; until then the
//! old token is still valid, because that `Welcome` may never have arrived.
//!
//! What must stay true: every token that the shim may hold is valid. A `Welcome` may have arrived although its
//! confirmation was lost, and a delayed Hello with the previous token may arrive after it: then two tokens were
//! offered, and the shim holds the first.

use std::collections::VecDeque;

use relay_proto::control::ResumeToken;
use subtle::ConstantTimeEq;

pub(crate) struct ResumeTokens {
    current: ResumeToken,
    /// The tokens of the unconfirmed `Welcome`s that answered a Hello with `current`, the newest last.
    offered: VecDeque<ResumeToken>,
    /// The token that was current before.
    previous: Option<ResumeToken>,
}

/// Unconfirmed tokens that are valid at a time; the oldest is dropped first. An honest shim causes only a few.
const MAX_OFFERED: usize = 16;

impl ResumeTokens {
    /// The token of a new link's first `Welcome`.
    pub(crate) fn new() -> Self {
        Self { current: fresh(), offered: VecDeque::new(), previous: None }
    }

    pub(crate) fn current(&self) -> ResumeToken {
        self.current.clone()
    }

    /// Whether this token may resume the link.
    pub(crate) fn accepts(&self, token: &ResumeToken) -> bool {
        self.offered.iter().fold(same(&self.current, token), |found, offered| found | same(offered, token))
    }

    /// The token for the next `Welcome`; `used` stays valid until that one is confirmed.
    pub(crate) fn offer(&mut self, used: ResumeToken) -> ResumeToken {
        if !same(&self.current, &used) {
            // The shim has stored this token, so it no longer holds an older one.
            self.rotate_to(used);
        }
        if self.offered.len() == MAX_OFFERED {
            self.offered.pop_front();
        }
        let token = fresh();
        self.offered.push_back(token.clone());
        token
    }

    /// The shim sent a frame after the last `Welcome`: its token is the only valid one now.
    pub(crate) fn confirm(&mut self) {
        if let Some(offered) = self.offered.pop_back() {
            self.rotate_to(offered);
        }
    }

    /// Whether this token was valid before the current one: a delayed Hello may contain it.
    pub(crate) fn is_previous(&self, token: &ResumeToken) -> bool {
        self.previous.as_ref().is_some_and(|previous| same(previous, token))
    }

    fn rotate_to(&mut self, token: ResumeToken) {
        self.previous = Some(std::mem::replace(&mut self.current, token));
        self.offered.clear();
    }
}

fn fresh() -> ResumeToken {
    ResumeToken(cofferdam_base::random::hex::<32>())
}

/// Compares in constant time.
fn same(left: &ResumeToken, right: &ResumeToken) -> bool {
    left.0.as_bytes().ct_eq(right.0.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_token_is_valid_until_the_new_one_is_confirmed() {
        let mut tokens = ResumeTokens::new();
        let first = tokens.current();
        let second = tokens.offer(first.clone());
        assert!(tokens.accepts(&first) && tokens.accepts(&second));
        tokens.confirm();
        assert!(!tokens.accepts(&first) && tokens.is_previous(&first));
        assert!(tokens.accepts(&second) && !tokens.is_previous(&second));
        tokens.offer(second);
        tokens.confirm();
        assert!(!tokens.is_previous(&first), "only the token just before counts");
    }

    #[test]
    fn a_late_hello_does_not_invalidate_the_token_that_the_shim_holds() {
        let mut tokens = ResumeTokens::new();
        let first = tokens.current();
        let held = tokens.offer(first.clone());
        // The confirmation of `held` is lost, and an older Hello arrives.
        tokens.offer(first.clone());
        assert!(tokens.accepts(&held));
        let next = tokens.offer(held.clone());
        assert!(!tokens.accepts(&first), "the shim has a newer token");
        assert!(tokens.accepts(&held) && tokens.accepts(&next));
        tokens.confirm();
        assert!(!tokens.accepts(&held));
    }

    #[test]
    fn the_number_of_unconfirmed_tokens_is_bounded() {
        let mut tokens = ResumeTokens::new();
        let first = tokens.current();
        let second = tokens.offer(first.clone());
        for _ in 0..MAX_OFFERED {
            tokens.offer(first.clone());
        }
        assert_eq!(tokens.offered.len(), MAX_OFFERED);
        assert!(!tokens.accepts(&second));
        assert!(tokens.accepts(&first));
    }
}
