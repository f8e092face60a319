//! What is asked of a store: which objects there are and how large, which of them an operation wants, and when; and
//! how long it took.
//!
//! | module | what |
//! |--|--|
//! | [`keys`] | which object: uniform, Zipf (in key order or scrambled), latest |
//! | [`sizes`] | how large: fixed, log-uniform, power law, histogram |
//! | [`ycsb`] | the six core workloads of YCSB, with E's scans as reads of many objects |
//! | [`ec_store`], [`pages`] | the two workloads of the EC-Store paper: scans, and pages of images |
//! | [`partitions`] | small objects in partitions, as in the SoCC'17 paper |
//! | [`analytics`] | reads of large objects |
//! | [`cdn`] | a CDN, from histograms of sizes and popularity |
//! | [`trace`] | what a file says, at the times that it says |
//! | [`latency`] | response times, recorded and summarised |
//!
//! A workload is a pure function of its parameters and of the random numbers it is handed: it knows nothing of clocks
//! or of the store, so that the same one runs in the lab and against a server.

pub mod analytics;
pub mod cdn;
pub mod ec_store;
pub mod keys;
pub mod latency;
mod operation;
pub mod pages;
pub mod partitions;
pub mod sizes;
pub mod trace;
pub mod ycsb;

use std::time::Duration;

use rand::rngs::SmallRng;

pub use analytics::Analytics;
pub use cdn::{Cdn, CdnError};
pub use ec_store::EcStoreScans;
pub use keys::{KeyDistribution, Keys, Zipf};
pub use operation::{Kind, Objects, Operation};
pub use pages::Pages;
pub use partitions::Partitions;
pub use sizes::{SizeDistribution, Sizes};
pub use ycsb::{Ycsb, YcsbWorkload};

/// The size of objects where a workload's source names none, in bytes: EC-Store's blocks (§VI-B).
pub const DEFAULT_SIZE: u64 = 100_000;

/// When the next operation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Whenever the one who runs the workload likes: in a closed loop, or at a rate.
    Whenever,
    /// This long after the start.
    After(Duration),
    /// There is no further operation.
    Never,
}

/// A source of operations on objects with the numbers 0, 1, 2 …
pub trait Workload: Send {
    /// How many objects exist before the first operation: the numbers below this.
    fn objects(&self) -> u64;

    /// The size of an object, in bytes: of one that exists, or as the next write of it will make it.
    fn size(&self, object: u64) -> u64;

    /// The next operation.
    ///
    /// # Panics
    /// May, when [`Workload::due`] has answered [`Due::Never`].
    fn next(&mut self, rng: &mut SmallRng) -> Operation;

    /// When the operation that [`Workload::next`] will answer is due.
    fn due(&self) -> Due {
        Due::Whenever
    }

    /// Tells that an [`Operation::Insert`] is over and whether the object is now there. Only then is it read; one that
    /// failed is inserted again.
    fn inserted(&mut self, _object: u64, _is_there: bool) {}

    /// Whether a read of the object may answer this many bytes.
    fn may_have_size(&self, object: u64, len: u64) -> bool {
        len == self.size(object)
    }

    /// The object's key in a store that has keys. Keys sort as the numbers do.
    fn key(&self, object: u64) -> String {
        format!("{object:010}")
    }

    /// The number of the object with this key, if a workload of this kind could have one.
    fn object(&self, key: &str) -> Option<u64> {
        let is_number = key.len() >= 10 && key.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| key.parse().ok()).flatten()?;
        (self.key(number) == key).then_some(number)
    }
}

impl<W: Workload + ?Sized> Workload for Box<W> {
    fn objects(&self) -> u64 {
        (**self).objects()
    }

    fn size(&self, object: u64) -> u64 {
        (**self).size(object)
    }

    fn next(&mut self, rng: &mut SmallRng) -> Operation {
        (**self).next(rng)
    }

    fn due(&self) -> Due {
        (**self).due()
    }

    fn inserted(&mut self, object: u64, is_there: bool) {
        (**self).inserted(object, is_there);
    }

    fn may_have_size(&self, object: u64, len: u64) -> bool {
        (**self).may_have_size(object, len)
    }

    fn key(&self, object: u64) -> String {
        (**self).key(object)
    }

    fn object(&self, key: &str) -> Option<u64> {
        (**self).object(key)
    }
}
