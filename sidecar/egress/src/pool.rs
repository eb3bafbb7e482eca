//! The made-up addresses that names have inside a server's network.
//!
//! What must stay true: every address of a pool looks public, because clients that refuse private addresses would refuse
//! to connect. No packet ever leaves the server's network with one: it is an address of its loopback interface.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use cofferdam_net::AddressPolicy;

/// From too many addresses to check, to too few to give.
const PREFIXES: std::ops::RangeInclusive<u8> = 12..=24;
/// All special-purpose blocks of IPv4 are made of blocks of this size.
const SMALLEST_SPECIAL_BLOCK: usize = 256;

/// A block of IPv4 addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressPool {
    network: Ipv4Addr,
    prefix: u8,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidPool {
    #[error("`{0}` is not a block of IPv4 addresses such as `29.18.0.0/16`")]
    Notation(String),
    #[error("`{0}` has addresses that are not public; clients inside would refuse to connect to them")]
    NotPublic(AddressPool),
    #[error("the prefix of `{block}` is not from {} to {}", PREFIXES.start(), PREFIXES.end())]
    Prefix { block: String },
}

impl AddressPool {
    pub fn contains(self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(v4) => v4.to_bits() & self.mask() == self.network.to_bits(),
            IpAddr::V6(_) => false,
        }
    }

    pub(crate) fn block(self) -> (Ipv4Addr, u8) {
        (self.network, self.prefix)
    }

    /// How many addresses can be given. The first and the last of a block look like a network and a broadcast address.
    pub(crate) fn capacity(self) -> usize {
        (!self.mask()) as usize - 1
    }

    /// The address with this number, from 0.
    pub(crate) fn address(self, index: usize) -> Option<Ipv4Addr> {
        let offset = u32::try_from(index).ok().filter(|_| index < self.capacity())?;
        Some(Ipv4Addr::from_bits(self.network.to_bits() + offset + 1))
    }

    /// The number of an address that the pool gives.
    pub(crate) fn index(self, address: Ipv4Addr) -> Option<usize> {
        let offset = address.to_bits().checked_sub(self.network.to_bits())?.checked_sub(1)? as usize;
        (offset < self.capacity()).then_some(offset)
    }

    fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.prefix))
    }
}

impl Default for AddressPool {
    /// A block that its owner has never announced to the internet.
    fn default() -> Self {
        Self { network: Ipv4Addr::new(29, 18, 0, 0), prefix: 16 }
    }
}

impl FromStr for AddressPool {
    type Err = InvalidPool;

    fn from_str(text: &str) -> Result<Self, InvalidPool> {
        let notation = || InvalidPool::Notation(text.into());
        let (network, prefix) = text.split_once('/').ok_or_else(notation)?;
        let network: Ipv4Addr = network.parse().map_err(|_| notation())?;
        let prefix: u8 = prefix.parse().map_err(|_| notation())?;
        if !PREFIXES.contains(&prefix) {
            return Err(InvalidPool::Prefix { block: text.into() });
        }
        let pool = Self { network, prefix };
        if network.to_bits() & !pool.mask() != 0 {
            return Err(notation());
        }
        let last = network.to_bits() | !pool.mask();
        let is_public = (network.to_bits()..=last)
            .step_by(SMALLEST_SPECIAL_BLOCK)
            .all(|address| AddressPolicy::PublicOnly.permits(Ipv4Addr::from_bits(address).into()));
        match is_public {
            true => Ok(pool),
            false => Err(InvalidPool::NotPublic(pool)),
        }
    }
}

impl fmt::Display for AddressPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_block_of_public_addresses() {
        assert_eq!("29.18.0.0/16".parse(), Ok(AddressPool::default()));
        let notation = |text: &str| Err(InvalidPool::Notation(text.into()));
        for text in ["29.18.0.0", "29.18/16", "29.18.0.1/16", "29.18.0.0/", "::/16", "29.18.0.0/16/16"] {
            assert_eq!(text.parse::<AddressPool>(), notation(text));
        }
        for text in ["16.0.0.0/8", "29.18.0.0/25", "29.18.0.0/32", "0.0.0.0/0"] {
            assert_eq!(text.parse::<AddressPool>(), Err(InvalidPool::Prefix { block: text.into() }));
        }
        // The last has 192.0.2.0/24 in its middle.
        for text in ["10.0.0.0/16", "198.18.0.0/15", "127.0.0.0/16", "224.0.0.0/16", "192.0.0.0/16"] {
            assert!(matches!(text.parse::<AddressPool>(), Err(InvalidPool::NotPublic(_))), "{text}");
        }
    }

    #[test]
    fn addresses_have_numbers() {
        let pool: AddressPool = "29.18.3.0/24".parse().unwrap();
        assert_eq!(pool.capacity(), 254);
        assert_eq!(pool.address(0), Some(Ipv4Addr::new(29, 18, 3, 1)));
        assert_eq!(pool.address(253), Some(Ipv4Addr::new(29, 18, 3, 254)));
        assert_eq!(pool.address(254), None);
        assert_eq!(pool.index(Ipv4Addr::new(29, 18, 3, 254)), Some(253));
        for other in [[29, 18, 3, 0], [29, 18, 3, 255], [29, 18, 4, 1], [29, 18, 2, 255]] {
            assert_eq!(pool.index(other.into()), None);
        }
        assert!(pool.contains("29.18.3.255".parse().unwrap()));
        assert!(pool.contains("::ffff:29.18.3.9".parse().unwrap()));
        assert!(!pool.contains("29.18.4.0".parse().unwrap()));
    }
}
