//! Cache of stripe records, as this process last read them.
//!
//! A record may be out of date. Chunks are named by stripe, index and generation, so a stale location can miss
//! but never return wrong bytes (design.md §10.5). For a chunk that was updated in place, extents say which
//! content version they need. A reader that finds a chunk missing looks the stripe up again before it counts
//! the chunk as lost. A stripe with an unavailable site is always looked up again, because its chunk may have
//! been rebuilt elsewhere. A process forgets the records that it changes itself.
//!
//! CLOCK-Pro evicts (the `quick_cache` crate), with a hash that is the same in every run: evictions decide
//! which rows are read.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use striate_core::StripeId;

use crate::table::OpenedStripe;

type StripeCache = Cache<StripeId, Arc<OpenedStripe>, UnitWeighter, BuildHasherDefault<NameHasher>>;

/// A fixed hash is safe here: stripe names come from a counter, not from users.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let number = part.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
            self.0 = striate_splitmix::hash(self.0 ^ number);
        }
    }

    fn write_u128(&mut self, number: u128) {
        self.0 =
            striate_splitmix::hash(striate_splitmix::hash(self.0 ^ (number >> 64) as u64) ^ number as u64);
    }
}

/// A bounded number of stripe records.
pub(crate) struct Locations(Option<Mutex<StripeCache>>);

impl Locations {
    /// Creates a cache of at most `most` records; 0 disables it.
    pub(crate) fn new(most: usize) -> Self {
        let cache = || {
            let (hash, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
            Mutex::new(Cache::with(most, most as u64, UnitWeighter, hash, lifecycle))
        };
        Self((most > 0).then(cache))
    }

    /// Returns the record of a stripe, if cached.
    pub(crate) fn get(&self, id: StripeId) -> Option<Arc<OpenedStripe>> {
        self.0.as_ref()?.lock().get(&id).cloned()
    }

    /// Caches a record that was just read, unless it lacks a chunk: such a stripe is being repaired.
    pub(crate) fn insert(&self, stripe: &Arc<OpenedStripe>) {
        if let Some(cache) = &self.0
            && (0..stripe.record.locations.len())
                .all(|index| stripe.record.locations[index].site != 0 || !stripe.has_place(index))
        {
            cache.lock().insert(stripe.id, stripe.clone());
        }
    }

    /// Drops the record of a stripe that has changed, or may have.
    pub(crate) fn forget(&self, id: StripeId) {
        if let Some(cache) = &self.0 {
            cache.lock().remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_meta::records::{Location, Stripe};
    use striate_meta::{Revision, Row};

    use super::*;

    fn stripe(number: u64, sites: &[u32]) -> Arc<OpenedStripe> {
        let row = Row { key: "key".into(), value: "".into(), version: Revision(1) };
        let locations = sites.iter().map(|&site| Location { site, ..Location::default() }).collect();
        let record = Stripe { locations, ..Stripe::default() };
        let code = "rs(2,1)".parse().expect("a code");
        Arc::new(OpenedStripe {
            id: StripeId::new(1, number),
            row,
            record,
            profile: "rs(2,1)".parse().expect("a profile"),
            code,
        })
    }

    #[test]
    fn as_many_records_are_kept_as_may_be_and_none_that_lacks_a_chunk() {
        let locations = Locations::new(100);
        (0..1_000).for_each(|number| locations.insert(&stripe(number, &[1, 2, 3])));
        let kept = (0..1_000).filter(|&number| locations.get(StripeId::new(1, number)).is_some()).count();
        assert!((50..=100).contains(&kept), "{kept}");
        locations.insert(&stripe(2_000, &[1, 0, 3]));
        assert!(locations.get(StripeId::new(1, 2_000)).is_none());
    }

    #[test]
    fn what_was_forgotten_is_not_known() {
        let locations = Locations::new(10);
        locations.insert(&stripe(1, &[1, 2, 3]));
        assert!(locations.get(StripeId::new(1, 1)).is_some());
        locations.forget(StripeId::new(1, 1));
        assert!(locations.get(StripeId::new(1, 1)).is_none());
        let none = Locations::new(0);
        none.insert(&stripe(1, &[1, 2, 3]));
        assert!(none.get(StripeId::new(1, 1)).is_none());
    }
}
