//! Which name has which address inside a server's network.
//!
//! Names that are listed as such have theirs for good. Names below a wildcard are given one when they are looked up, from
//! a bounded table. When it is full, the name that was used least recently loses its address, but only after
//! [`REUSE_AFTER`]: a client that still has the address from an earlier answer would reach another name. If there is no
//! such name, the look-up fails for now.
//!
//! What must stay true: an address has one name at a time, and a name one address.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::Instant;

use crate::name::HostName;
use crate::pool::AddressPool;

/// How long a client may keep an answer.
pub(crate) const TTL: Duration = Duration::from_secs(5);
/// Many times the [`TTL`], because many clients keep answers longer than they may.
const REUSE_AFTER: Duration = Duration::from_secs(60);
/// How many names below wildcards have addresses at a time.
const MAX_ASSIGNED: usize = 1024;

pub(crate) struct NameTable {
    pool: AddressPool,
    /// The first of the pool's addresses, in this order.
    listed: Vec<HostName>,
    /// The addresses after those.
    assigned: Vec<Assigned>,
    indices: HashMap<HostName, usize>,
}

struct Assigned {
    name: HostName,
    last_used: Instant,
}

impl NameTable {
    pub(crate) fn new(pool: AddressPool, listed: Vec<HostName>) -> Self {
        let indices = listed.iter().cloned().enumerate().map(|(index, name)| (name, index)).collect();
        Self { pool, listed, assigned: Vec::new(), indices }
    }

    /// The name's address, which is given to it now if it has none; `None` if all are in use.
    pub(crate) fn assign(&mut self, name: &HostName, now: Instant) -> Option<Ipv4Addr> {
        let index = match self.indices.get(name) {
            Some(&index) => {
                self.touch(index, now);
                index
            }
            None => {
                let free = self.vacant(now)?;
                let assigned = Assigned { name: name.clone(), last_used: now };
                match self.assigned.get_mut(free) {
                    Some(former) => {
                        self.indices.remove(&former.name);
                        *former = assigned;
                    }
                    None => self.assigned.push(assigned),
                }
                let index = self.listed.len() + free;
                self.indices.insert(name.clone(), index);
                index
            }
        };
        self.pool.address(index)
    }

    /// The name that has an address, to which a client has just connected.
    pub(crate) fn name_at(&mut self, address: Ipv4Addr, now: Instant) -> Option<HostName> {
        let index = self.pool.index(address)?;
        self.touch(index, now);
        let assigned = || index.checked_sub(self.listed.len()).and_then(|index| self.assigned.get(index));
        self.listed.get(index).or_else(|| assigned().map(|assigned| &assigned.name)).cloned()
    }

    /// The place for another name in `assigned`: a new one, or that of the name which was used least recently.
    fn vacant(&self, now: Instant) -> Option<usize> {
        if self.assigned.len() < MAX_ASSIGNED.min(self.pool.capacity() - self.listed.len()) {
            return Some(self.assigned.len());
        }
        let (index, oldest) =
            self.assigned.iter().enumerate().min_by_key(|(_, assigned)| assigned.last_used)?;
        (now.duration_since(oldest.last_used) >= REUSE_AFTER).then_some(index)
    }

    fn touch(&mut self, index: usize, now: Instant) {
        let assigned = index.checked_sub(self.listed.len()).and_then(|index| self.assigned.get_mut(index));
        if let Some(assigned) = assigned {
            assigned.last_used = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn listed_names_keep_their_addresses_and_others_get_the_next() {
        let mut table = NameTable::new(AddressPool::default(), vec![name("a.example"), name("b.example")]);
        let now = Instant::now();
        let [a, b, c] = [[29, 18, 0, 1], [29, 18, 0, 2], [29, 18, 0, 3]].map(Ipv4Addr::from);
        assert_eq!(table.assign(&name("b.example"), now), Some(b));
        assert_eq!(table.assign(&name("x.c.example"), now), Some(c));
        assert_eq!(table.assign(&name("x.c.example"), now), Some(c));
        assert_eq!(table.name_at(a, now), Some(name("a.example")));
        assert_eq!(table.name_at(c, now), Some(name("x.c.example")));
        assert_eq!(table.name_at(Ipv4Addr::new(29, 18, 0, 4), now), None);
        assert_eq!(table.name_at(Ipv4Addr::new(10, 0, 0, 1), now), None);
    }

    #[test]
    fn a_full_table_gives_away_the_address_unused_for_longest_but_no_recent_one() {
        let mut table = NameTable::new("29.18.0.0/24".parse().unwrap(), vec![name("a.example")]);
        let start = Instant::now();
        let numbered = |number: usize| name(&format!("n{number}.b.example"));
        let addresses: Vec<_> =
            (0..253).map(|number| table.assign(&numbered(number), start).unwrap()).collect();
        assert_eq!(addresses.last(), Some(&Ipv4Addr::new(29, 18, 0, 254)));

        let early = start + REUSE_AFTER - Duration::from_millis(1);
        assert_eq!(table.assign(&name("new.b.example"), early), None);
        // A look-up and a connection each count as use.
        assert_eq!(table.assign(&numbered(0), early), Some(addresses[0]));
        assert_eq!(table.name_at(addresses[1], early), Some(numbered(1)));

        let later = start + REUSE_AFTER;
        assert_eq!(table.assign(&name("new.b.example"), later), Some(addresses[2]));
        assert_eq!(table.name_at(addresses[2], later), Some(name("new.b.example")));
        assert_eq!(table.assign(&numbered(2), later), Some(addresses[3]), "its address was given away");
    }

    #[test]
    fn the_table_is_bounded_also_in_a_large_pool() {
        let mut table = NameTable::new(AddressPool::default(), Vec::new());
        let now = Instant::now();
        let given =
            (0..2 * MAX_ASSIGNED).filter_map(|number| table.assign(&name(&format!("n{number}.b.c")), now));
        assert_eq!(given.count(), MAX_ASSIGNED);
    }
}
