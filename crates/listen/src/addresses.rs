//! How many connections each address has.

use std::collections::HashMap;
use std::net::IpAddr;

/// Number of connections that an honest peer often has at once: of two addresses with up to so many, neither is called
/// the heavier.
const USUAL: usize = 4;

/// Counts of connections by address. A connection without an address, of a trusted proxy for example, is not counted.
#[derive(Debug, Default)]
pub struct AddressCounts(HashMap<IpAddr, usize>);

impl AddressCounts {
    /// Returns the number of connections of an address.
    pub fn of(&self, address: IpAddr) -> usize {
        self.0.get(&address).copied().unwrap_or(0)
    }

    /// Returns how heavy an address is beside others: its connections in steps of what is usual; 0 without an address.
    pub fn weight(&self, address: Option<IpAddr>) -> usize {
        address.map_or(0, |address| self.of(address).div_ceil(USUAL))
    }

    /// Counts a connection.
    pub fn add(&mut self, address: Option<IpAddr>) {
        if let Some(address) = address {
            *self.0.entry(address).or_default() += 1;
        }
    }

    /// Counts a connection no more. Addresses without any are forgotten.
    pub fn remove(&mut self, address: Option<IpAddr>) {
        let Some(address) = address else { return };
        let Some(count) = self.0.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&address);
        }
    }

    /// Returns whether no connection is counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_address_and_addresses_without_any_are_forgotten() {
        let [few, many] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut counts = AddressCounts::default();
        counts.add(None);
        counts.add(Some(few));
        (0..=USUAL).for_each(|_| counts.add(Some(many)));
        assert_eq!((counts.of(few), counts.of(many)), (1, USUAL + 1));
        let weights = [None, Some(few), Some(many)].map(|address| counts.weight(address));
        assert_eq!(weights, [0, 1, 2]);
        (0..=USUAL).for_each(|_| counts.remove(Some(many)));
        counts.remove(Some(many));
        counts.remove(None);
        assert!(counts.of(many) == 0 && !counts.is_empty());
        counts.remove(Some(few));
        assert!(counts.is_empty());
    }
}
