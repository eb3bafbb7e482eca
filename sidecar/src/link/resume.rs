//! Resume tokens that turn.
//!
//! A token is good for one resume. The new one counts from the shim's first frame after the `Welcome` that brought it;
//! until then the old one is still good, because that `Welcome` may never have arrived.
//!
//! Must stay true: every token that the shim may hold is good. A `Welcome` may have arrived although its confirmation
//! was lost, and a Hello that was under way for long may come after it with the token before: then two were offered,
//! and the shim holds the first.

use std::collections::VecDeque;

use relay_proto::control::ResumeToken;
use subtle::ConstantTimeEq;

pub(crate) struct ResumeTokens {
    current: ResumeToken,
    /// Those of the unconfirmed `Welcome`s that answered `current`, the last one's last.
    offered: VecDeque<ResumeToken>,
    /// What was current before.
    turned: Option<ResumeToken>,
}

/// Unconfirmed offers for one token: a shim holds one of the first few, or its network is beyond help.
const MAX_OFFERED: usize = 16;

impl ResumeTokens {
    /// The token of a new link's first `Welcome`.
    pub(crate) fn new() -> Self {
        Self { current: fresh(), offered: VecDeque::new(), turned: None }
    }

    pub(crate) fn current(&self) -> ResumeToken {
        self.current.clone()
    }

    /// Whether this token may resume the link.
    pub(crate) fn accept(&self, token: &ResumeToken) -> bool {
        self.offered.iter().fold(same(&self.current, token), |found, offered| found | same(offered, token))
    }

    /// The token for the next `Welcome`; `used` stays good until it is confirmed.
    pub(crate) fn offer(&mut self, used: ResumeToken) -> ResumeToken {
        if !same(&self.current, &used) {
            // The shim holds it, so it has what came before it no longer.
            self.turn(used);
        }
        if self.offered.len() == MAX_OFFERED {
            self.offered.pop_front();
        }
        let token = fresh();
        self.offered.push_back(token.clone());
        token
    }

    /// The shim spoke after the last `Welcome`: the token it brought is the only one now.
    pub(crate) fn confirm(&mut self) {
        if let Some(offered) = self.offered.pop_back() {
            self.turn(offered);
        }
    }

    /// Whether this one was good until the present one was: a Hello that was under way for long may bring it.
    pub(crate) fn has_just_turned(&self, token: &ResumeToken) -> bool {
        self.turned.as_ref().is_some_and(|turned| same(turned, token))
    }

    fn turn(&mut self, token: ResumeToken) {
        self.turned = Some(std::mem::replace(&mut self.current, token));
        self.offered.clear();
    }
}

fn fresh() -> ResumeToken {
    ResumeToken(cofferdam_base::random::hex::<32>())
}

/// Takes the same time wherever they differ.
fn same(left: &ResumeToken, right: &ResumeToken) -> bool {
    left.0.as_bytes().ct_eq(right.0.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_token_is_good_until_the_new_one_is_confirmed() {
        let mut tokens = ResumeTokens::new();
        let first = tokens.current();
        let second = tokens.offer(first.clone());
        assert!(tokens.accept(&first) && tokens.accept(&second));
        tokens.confirm();
        assert!(!tokens.accept(&first) && tokens.has_just_turned(&first));
        assert!(tokens.accept(&second) && !tokens.has_just_turned(&second));
        tokens.offer(second);
        tokens.confirm();
        assert!(!tokens.has_just_turned(&first), "that was long ago");
    }

    #[test]
    fn a_hello_that_comes_late_does_not_cost_the_shim_the_token_it_holds() {
        let mut tokens = ResumeTokens::new();
        let first = tokens.current();
        let held = tokens.offer(first.clone());
        // Its confirmation is lost, and an older Hello arrives at last.
        tokens.offer(first.clone());
        assert!(tokens.accept(&held));
        let next = tokens.offer(held.clone());
        assert!(!tokens.accept(&first), "the shim has turned");
        assert!(tokens.accept(&held) && tokens.accept(&next));
        tokens.confirm();
        assert!(!tokens.accept(&held));
    }

    #[test]
    fn unconfirmed_offers_are_few() {
        let mut tokens = ResumeTokens::new();
        let first = tokens.current();
        let second = tokens.offer(first.clone());
        for _ in 0..MAX_OFFERED {
            tokens.offer(first.clone());
        }
        assert_eq!(tokens.offered.len(), MAX_OFFERED);
        assert!(!tokens.accept(&second));
        assert!(tokens.accept(&first));
    }
}
