//! Why blocks that this process has read are not in memory, for those who ask. Nothing depends on it.

use std::hash::BuildHasherDefault;

use parking_lot::Mutex;
use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use striate_core::{SiteId, StripeId};
use striate_stripe::OWN_MEMORY;

use crate::known::NameHasher;

/// Blocks whose fate is known, at most.
const MOST_KNOWN: usize = 16 << 10;

/// Why a block is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was there.
    Gone,
    /// It was to be filled while the blocks on their way took all the memory that they may.
    TooMuchOnTheWay,
    /// This memory site had no room for it.
    NoRoom(SiteId),
    /// This memory site did not take it.
    NotWritten(SiteId),
    /// Who was to fill it did not get all of its bytes.
    NotRead,
}

impl Fate {
    /// The reason, in words that follow "not in memory".
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Gone => "evicted, or lost with a memory site".to_owned(),
            Self::TooMuchOnTheWay => "given up, since too many other blocks were on their way".to_owned(),
            Self::NoRoom(site) => {
                format!("given up, since {} had no room: all there was being read", named(site))
            }
            Self::NotWritten(site) => format!("given up, since {} did not take it", named(site)),
            Self::NotRead => "given up, since it was not read to its end".to_owned(),
        }
    }
}

/// A memory site, in words.
fn named(site: SiteId) -> String {
    match site {
        OWN_MEMORY => "the memory of this process".to_owned(),
        _ => format!("memory site {site}"),
    }
}

/// What became of blocks, as far as this process knows.
pub(crate) struct Fates {
    table: Mutex<Cache<StripeId, Fate, UnitWeighter, BuildHasherDefault<NameHasher>>>,
}

impl Fates {
    pub(crate) fn new() -> Self {
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        let table = Cache::with(MOST_KNOWN, MOST_KNOWN as u64, UnitWeighter, hasher, lifecycle);
        Self { table: Mutex::new(table) }
    }

    pub(crate) fn note(&self, name: StripeId, fate: Fate) {
        self.table.lock().insert(name, fate);
    }

    /// A block is in memory now.
    pub(crate) fn forget(&self, name: StripeId) {
        self.table.lock().remove(&name);
    }

    /// Why a block is not in memory that is not.
    pub(crate) fn of(&self, name: StripeId) -> Option<Fate> {
        self.table.lock().get(&name).copied()
    }
}
