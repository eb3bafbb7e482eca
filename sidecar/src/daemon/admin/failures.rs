//! Counts requests with unknown tokens by address. After ten in a minute, further unknown tokens from the address are
//! refused with `Retry-After`. Valid tokens are still accepted, because other clients may share their address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct AuthenticationFailures(Mutex<HashMap<IpAddr, FailureCount>>);

#[derive(Clone, Copy, Debug)]
struct FailureCount {
    first: Instant,
    count: u32,
}

/// How many unknown tokens one address may send within [`WINDOW`].
const MAX_FAILURES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// How many addresses are counted at a time.
const MAX_ADDRESSES: usize = 1024;

impl AuthenticationFailures {
    /// For how much longer this address is blocked; `None` if it is not.
    pub(super) fn blocked_for(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = table.get(&network(address)).filter(|failures| failures.count >= MAX_FAILURES)?;
        (failures.first + WINDOW).checked_duration_since(now).filter(|left| !left.is_zero())
    }

    pub(super) fn count(&self, address: IpAddr, now: Instant) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = network(address);
        if !table.contains_key(&address) && table.len() >= MAX_ADDRESSES {
            table.retain(|_, failures| now.duration_since(failures.first) < WINDOW);
            let oldest = table.iter().min_by_key(|(_, failures)| failures.first).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| table.len() >= MAX_ADDRESSES) {
                table.remove(&oldest);
            }
        }
        let failures = table.entry(address).or_insert(FailureCount { first: now, count: 0 });
        if now.duration_since(failures.first) >= WINDOW {
            *failures = FailureCount { first: now, count: 0 };
        }
        failures.count += 1;
        if failures.count == MAX_FAILURES {
            tracing::warn!(%address, "{MAX_FAILURES} requests with unknown tokens within a minute");
        }
    }
}

/// The unit that is counted: the address, or its /64 network, because a host usually has a whole /64 of IPv6 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_blocked_after_ten_failures_for_the_rest_of_the_minute() {
        let failures = AuthenticationFailures::default();
        let (one, neighbour, other) =
            ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let start = Instant::now();
        for count in 0..MAX_FAILURES {
            assert_eq!(failures.blocked_for(one, start), None, "{count}");
            failures.count(one, start);
        }
        assert_eq!(failures.blocked_for(neighbour, start + WINDOW / 2), Some(WINDOW / 2));
        assert_eq!(failures.blocked_for(other, start), None);
        assert_eq!(failures.blocked_for(one, start + WINDOW), None);
        failures.count(one, start + WINDOW);
        assert_eq!(
            failures.blocked_for(one, start + WINDOW),
            None,
            "the count must start again after the window"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_counted_addresses_is_limited() {
        let failures = AuthenticationFailures::default();
        let start = Instant::now();
        for number in 0..2 * u32::try_from(MAX_ADDRESSES).unwrap() {
            failures.count(IpAddr::V4(number.into()), start + Duration::from_millis(number.into()));
        }
        assert_eq!(failures.0.lock().unwrap().len(), MAX_ADDRESSES);
    }
}
