//! Why blocks that this process has read are not in memory. Serves explanations only.

use std::hash::BuildHasherDefault;

use parking_lot::Mutex;
use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use striate_core::{SiteId, StripeId};
use striate_stripe::OWN_MEMORY;

use crate::known_blocks::NameHasher;

/// Maximum number of blocks whose miss reason is remembered.
const MOST_KNOWN: usize = 16 << 10;

/// Why a block is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissReason {
    /// It was in memory and is gone.
    Gone,
    /// When it was to be filled, other blocks had taken the memory for bodies or fills.
    TooMuchOnTheWay,
    /// It would take too much of this process's memory for bodies.
    TooLarge,
    /// This memory site had no room for it.
    NoRoom(SiteId),
    /// This memory site did not store it.
    NotWritten(SiteId),
    /// The process that was to fill it did not read all of its bytes.
    NotRead,
}

impl MissReason {
    /// The reason as text that follows "not in memory".
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Gone => "evicted, or lost with a memory site".to_owned(),
            Self::TooMuchOnTheWay => "given up, since too many other blocks were on their way".to_owned(),
            Self::TooLarge => {
                "given up, since it is more than a quarter of this gateway's memory for bodies (--body-memory-mib)"
                    .to_owned()
            }
            Self::NoRoom(site) => {
                format!("given up, since {} had no room: all there was being read", named(site))
            }
            Self::NotWritten(site) => format!("given up, since {} did not take it", named(site)),
            Self::NotRead => "given up, since it was not read to its end".to_owned(),
        }
    }
}

/// The name of a memory site in explanations.
fn named(site: SiteId) -> String {
    match site {
        OWN_MEMORY => "the memory of this process".to_owned(),
        _ => format!("memory site {site}"),
    }
}

/// Why blocks are not in memory, as far as this process knows.
pub(crate) struct MissReasons {
    table: Mutex<Cache<StripeId, MissReason, UnitWeighter, BuildHasherDefault<NameHasher>>>,
}

impl MissReasons {
    pub(crate) fn new() -> Self {
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        let table = Cache::with(MOST_KNOWN, MOST_KNOWN as u64, UnitWeighter, hasher, lifecycle);
        Self { table: Mutex::new(table) }
    }

    pub(crate) fn note(&self, name: StripeId, reason: MissReason) {
        self.table.lock().insert(name, reason);
    }

    /// Removes the miss reason of a block that is in memory again.
    pub(crate) fn forget(&self, name: StripeId) {
        self.table.lock().remove(&name);
    }

    /// Returns why a block is not in memory.
    pub(crate) fn of(&self, name: StripeId) -> Option<MissReason> {
        self.table.lock().get(&name).copied()
    }
}
