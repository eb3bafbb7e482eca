//! Which servers of a session use a secret, and whether they can take a new value of it.
//!
//! A process with `replace = "never"` keeps the value that it was started with. If all users of a secret are like that,
//! a new credential would have no user, so none is made.
//!
//! What must stay true: a secret without a registered user counts as wanted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relay_proto::name::Name;

/// What a user of a secret does with a new value of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SecretUse {
    KeepsFirstValue,
    TakesNewValues,
}

/// The users of all secrets of a session.
#[derive(Debug, Default)]
pub(super) struct SecretUses(Mutex<BTreeMap<Name, UserCounts>>);

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct UserCounts {
    keeping: usize,
    taking: usize,
}

/// The secrets that one server uses; registered until this is dropped.
#[derive(Debug)]
pub struct RegisteredUses {
    all: Arc<SecretUses>,
    own: Vec<(Name, SecretUse)>,
}

impl SecretUses {
    pub(super) fn register(self: &Arc<Self>, own: Vec<(Name, SecretUse)>) -> RegisteredUses {
        let mut users = self.lock();
        for (secret, secret_use) in &own {
            *users.entry(secret.clone()).or_default().of(*secret_use) += 1;
        }
        drop(users);
        RegisteredUses { all: Arc::clone(self), own }
    }

    /// Whether a new value of this secret would have a user.
    pub(super) fn wants_new_value(&self, secret: &Name) -> bool {
        self.lock().get(secret).is_none_or(|users| users.taking > 0 || users.keeping == 0)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, UserCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UserCounts {
    fn of(&mut self, secret_use: SecretUse) -> &mut usize {
        match secret_use {
            SecretUse::KeepsFirstValue => &mut self.keeping,
            SecretUse::TakesNewValues => &mut self.taking,
        }
    }
}

impl Drop for RegisteredUses {
    fn drop(&mut self) {
        let mut users = self.all.lock();
        for (secret, secret_use) in &self.own {
            let Some(counts) = users.get_mut(secret) else { continue };
            let count = counts.of(*secret_use);
            *count = count.saturating_sub(1);
            if *counts == UserCounts::default() {
                users.remove(secret);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_value_is_unwanted_only_while_all_users_keep_their_first_one() {
        let uses = Arc::new(SecretUses::default());
        let secret: Name = "database".parse().unwrap();
        let register = |secret_use| uses.register(vec![(secret.clone(), secret_use)]);
        assert!(uses.wants_new_value(&secret), "no user is registered");
        let keeping = register(SecretUse::KeepsFirstValue);
        assert!(!uses.wants_new_value(&secret));
        assert!(uses.wants_new_value(&"other".parse().unwrap()));
        let taking = register(SecretUse::TakesNewValues);
        assert!(uses.wants_new_value(&secret));
        drop(taking);
        assert!(!uses.wants_new_value(&secret));
        drop(keeping);
        assert!(uses.wants_new_value(&secret));
        assert!(uses.lock().is_empty(), "the session remembers users that have gone");
    }
}
