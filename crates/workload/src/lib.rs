//! Workloads: the objects that exist and their sizes, the objects that each operation reads or writes, the times at
//! which operations are due, and the response times that result.
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
//! | [`trace`] | replay of a trace file, at the times that it gives |
//! | [`latency`] | response times: recording and summaries |
//!
//! A workload is a pure function of its parameters and of the random numbers passed to it. It knows neither clocks
//! nor the store, so the same workload runs in the lab and against a server.

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

/// Object size where a workload's source names none, in bytes: EC-Store's blocks (§VI-B).
pub const DEFAULT_SIZE: u64 = 100_000;

/// When the next operation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At any time: the caller runs a closed loop or sets a rate.
    Whenever,
    /// This long after the start.
    After(Duration),
    /// There is no further operation.
    Never,
}

/// A source of operations on objects numbered 0, 1, 2 …
pub trait Workload: Send {
    /// Returns the number of objects that exist before the first operation; they are numbered from 0.
    fn objects(&self) -> u64;

    /// Returns the size of an object in bytes: its current size, or the size that its next write will give it.
    fn size(&self, object: u64) -> u64;

    /// Returns the next operation.
    ///
    /// # Panics
    /// May panic after [`Workload::due`] has returned [`Due::Never`].
    fn next(&mut self, rng: &mut SmallRng) -> Operation;

    /// Returns when the next operation from [`Workload::next`] is due.
    fn due(&self) -> Due {
        Due::Whenever
    }

    /// Reports the end of an [`Operation::Insert`] and whether the object now exists. The object is read only after
    /// that; a failed insert is repeated.
    fn inserted(&mut self, _object: u64, _is_there: bool) {}

    /// Returns true if a read of the object may return this many bytes.
    fn may_have_size(&self, object: u64, len: u64) -> bool {
        len == self.size(object)
    }

    /// Returns the object's key in the store. Keys sort in the order of the numbers.
    fn key(&self, object: u64) -> String {
        format!("{object:010}")
    }

    /// Returns the number of the object with this key, if a workload of this kind can have such a key.
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
