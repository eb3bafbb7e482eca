//! Resume tokens that turn.
//!
//! A token is good for one resume. The new one counts from the shim's first frame after the `Welcome` that brought it;
//! until then the old one is still good, because that `Welcome` may never have arrived.

use relay_proto::control::ResumeToken;
use subtle::ConstantTimeEq;

pub(crate) struct Tokens {
    current: ResumeToken,
    offered: Option<ResumeToken>,
}

impl Tokens {
    /// The token of a new link's first `Welcome`.
    pub(crate) fn new() -> Self {
        Self { current: fresh(), offered: None }
    }

    pub(crate) fn current(&self) -> ResumeToken {
        self.current.clone()
    }

    /// Whether this token may resume the link.
    pub(crate) fn accept(&self, token: &ResumeToken) -> bool {
        same(&self.current, token) || self.offered.as_ref().is_some_and(|offered| same(offered, token))
    }

    /// The token for the next `Welcome`; `used` stays good until it is confirmed.
    pub(crate) fn offer(&mut self, used: ResumeToken) -> ResumeToken {
        self.current = used;
        let token = fresh();
        self.offered = Some(token.clone());
        token
    }

    /// The shim spoke after the `Welcome`: the token it brought is the only one now.
    pub(crate) fn confirm(&mut self) {
        if let Some(offered) = self.offered.take() {
            self.current = offered;
        }
    }
}

fn fresh() -> ResumeToken {
    ResumeToken(crate::random::hex::<32>())
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
        let mut tokens = Tokens::new();
        let first = tokens.current();
        let second = tokens.offer(first.clone());
        assert!(tokens.accept(&first) && tokens.accept(&second));
        tokens.confirm();
        assert!(!tokens.accept(&first));
        assert!(tokens.accept(&second));
    }
}
