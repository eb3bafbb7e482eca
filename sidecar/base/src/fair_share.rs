//! Limits that several owners share, so that no owner takes everything.
//!
//! An owner may take one more place while it leaves at least as many free as it then has, not counting the reserve: the
//! last eighth, which only owners that have none may take. With 128 places one owner gets 56, a second one 28, and 16
//! places are left for owners that come later.
//!
//! What must stay true: nothing is taken away from an owner that has it; an owner without a place gets one as long as a
//! single one is free; an owner that has no place and no recent event uses no memory here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// What a limit counts for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum LimitOwner {
    Enrolment(Arc<str>),
    /// The user of a peer on the shared socket: its sandboxes cannot be told apart otherwise.
    SharedSocketUser(Option<u32>),
}

/// Places that owners take and release.
#[derive(Debug)]
pub struct FairShare {
    limit: usize,
    taken: usize,
    by_owner: BTreeMap<LimitOwner, usize>,
}

/// Events of the last `window`, of all owners: no window, wherever it begins, contains more than the limit.
#[derive(Debug)]
pub struct FairRateLimiter {
    window: Duration,
    share: FairShare,
    /// The events of the current window, oldest first.
    events: VecDeque<(Instant, LimitOwner)>,
}

/// Why an owner gets no further place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShareRefused {
    /// All places are taken.
    AllTaken,
    /// The owner has its share; the places that are left are for others.
    OwnShare,
}

/// The part of all places that only owners without a place may take: one in this many.
const RESERVE_DIVISOR: usize = 8;

impl FairShare {
    pub const fn new(limit: usize) -> Self {
        Self { limit, taken: 0, by_owner: BTreeMap::new() }
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Takes a place, if the owner's share allows it.
    pub fn take(&mut self, owner: &LimitOwner) -> Result<(), ShareRefused> {
        let free = self.free();
        let held = self.by_owner.get(owner).copied().unwrap_or(0);
        if free == 0 {
            return Err(ShareRefused::AllTaken);
        }
        if held > 0 && held + 1 + self.reserve() > free {
            return Err(ShareRefused::OwnShare);
        }
        self.add(owner);
        Ok(())
    }

    /// Takes a place beyond the owner's share, but not from the reserve.
    pub fn take_beyond_share(&mut self, owner: &LimitOwner) -> Result<(), ShareRefused> {
        if self.free() <= self.reserve() {
            return Err(ShareRefused::AllTaken);
        }
        self.add(owner);
        Ok(())
    }

    pub fn release(&mut self, owner: &LimitOwner) {
        if let Some(held) = self.by_owner.get_mut(owner) {
            *held -= 1;
            self.taken -= 1;
            if *held == 0 {
                self.by_owner.remove(owner);
            }
        }
    }

    fn add(&mut self, owner: &LimitOwner) {
        self.taken += 1;
        *self.by_owner.entry(owner.clone()).or_default() += 1;
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.taken)
    }

    fn reserve(&self) -> usize {
        self.limit / RESERVE_DIVISOR
    }
}

impl FairRateLimiter {
    pub const fn per_minute(limit: u32) -> Self {
        Self {
            window: Duration::from_secs(60),
            share: FairShare::new(limit as usize),
            events: VecDeque::new(),
        }
    }

    /// Counts an event of this owner, if its share allows one now.
    pub fn admit(&mut self, owner: &LimitOwner, now: Instant) -> Result<(), ShareRefused> {
        while let Some((time, expired)) = self.events.front()
            && now.duration_since(*time) >= self.window
        {
            self.share.release(expired);
            self.events.pop_front();
        }
        self.share.take(owner)?;
        self.events.push_back((now, owner.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: u32) -> LimitOwner {
        LimitOwner::SharedSocketUser(Some(uid))
    }

    /// Takes as much as possible; returns how much that is.
    fn take_all(share: &mut FairShare, uid: u32) -> usize {
        std::iter::repeat_with(|| share.take(&owner(uid))).take_while(Result::is_ok).count()
    }

    #[test]
    fn greedy_owners_leave_places_for_owners_without_one() {
        let mut share = FairShare::new(128);
        assert_eq!(take_all(&mut share, 0), 56);
        assert_eq!(share.take(&owner(0)), Err(ShareRefused::OwnShare));
        assert_eq!(take_all(&mut share, 1), 28);
        let greedy: usize = (2..10).map(|uid| take_all(&mut share, uid)).sum();
        assert!(greedy > 0 && share.taken() <= 128 - 8, "{} are taken", share.taken());
        assert_eq!(share.take(&owner(100)), Ok(()), "an owner that comes late gets a place");
        for uid in 200..300 {
            let _ = share.take(&owner(uid));
        }
        assert_eq!(share.taken(), 128);
        assert_eq!(share.take(&owner(400)), Err(ShareRefused::AllTaken));
        share.release(&owner(0));
        assert_eq!(share.take(&owner(0)), Err(ShareRefused::OwnShare), "a free place is for others first");
        assert_eq!(share.take(&owner(400)), Ok(()));
    }

    #[test]
    fn an_owner_can_use_small_limits_and_forgotten_owners_use_no_memory() {
        for (limit, share_of_one) in [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4), (16, 7)] {
            let mut share = FairShare::new(limit);
            assert_eq!(take_all(&mut share, 0), share_of_one, "of {limit}");
            (0..share_of_one).for_each(|_| share.release(&owner(0)));
            assert!(share.taken() == 0 && share.by_owner.is_empty());
            share.release(&owner(0));
            assert_eq!(share.taken(), 0);
        }
        assert_eq!(FairShare::new(0).take(&owner(0)), Err(ShareRefused::AllTaken));
    }

    #[test]
    fn places_beyond_the_share_are_not_taken_from_the_reserve() {
        let mut share = FairShare::new(16);
        while share.take_beyond_share(&owner(0)).is_ok() {}
        assert_eq!(share.taken(), 14);
        assert_eq!(share.take(&owner(1)), Ok(()));
    }

    #[test]
    fn events_count_for_their_owner_until_the_window_has_passed() {
        let start = Instant::now();
        let mut limiter = FairRateLimiter::per_minute(8);
        let admitted = (0..8).filter(|_| limiter.admit(&owner(0), start).is_ok()).count();
        assert_eq!(admitted, 4);
        assert_eq!(limiter.admit(&owner(1), start), Ok(()));
        assert_eq!(limiter.admit(&owner(0), start + Duration::from_secs(59)), Err(ShareRefused::OwnShare));
        assert_eq!(limiter.admit(&owner(0), start + Duration::from_secs(60)), Ok(()));
        assert_eq!(limiter.share.taken(), 1);
    }
}
