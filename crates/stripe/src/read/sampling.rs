//! Samples requests for the co-access statistics (EC-Store §V-A).
//!
//! A request is what a caller asked for at once: a query of many blocks, a batch of objects, or one get. It counts
//! for the blocks that it asked for. Packed objects are in partitions, for which only reads are counted
//! ([`striate_plan::statistics::heat`]): what is requested with one of a thousand objects says little about the
//! others. A separate generator decides which requests are sampled, so that the runtime's draws, and with them a run
//! in virtual time, are the same with and without sampling.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use striate_core::StripeId;
use striate_plan::{
    CoAccess, CoAccessLimits, CoAccessSnapshot, CoAccessTotals, Partition, PartitionHeat, PartitionReads,
};

use super::span::StoredBytes;

/// Maximum number of blocks with a known object name. Names are only shown to people.
const MOST_NAMED: usize = 16 << 10;
/// Maximum number of partitions with a read count.
const PARTITIONS: usize = 4_096;
/// Reads of partitions after which counts are halved.
const HALVED_AFTER: u64 = 1 << 17;

/// A block that many requests read.
#[derive(Clone, Debug, PartialEq)]
pub struct HotBlock {
    /// Stripe of the block.
    pub block: StripeId,
    /// Fraction of the requests that read it.
    pub popularity: f64,
    /// An object in the block, as `bucket/key`, if known.
    pub object: Option<Arc<str>>,
}

/// Samples requests and keeps statistics of them.
#[derive(Debug)]
pub struct Sampler {
    /// A request is sampled if its draw is below this: the rate times 2⁶⁴.
    below: u64,
    state: AtomicU64,
    statistics: Mutex<SampleStatistics>,
}

/// Statistics of sampled requests.
#[derive(Debug)]
struct SampleStatistics {
    co_access: CoAccess,
    /// Object that last asked for each block.
    objects: HashMap<StripeId, Arc<str>>,
    heat: PartitionHeat,
    /// Reads of partitions since the start.
    partition_reads: u64,
}

/// One sampled request; counted when the last of its readers is done.
#[derive(Debug)]
pub struct Sample {
    sampler: Arc<Sampler>,
    request: Mutex<SampledRequest>,
}

/// Blocks and partitions that a request reads.
#[derive(Debug, Default)]
struct SampledRequest {
    blocks: Vec<(StripeId, Option<Arc<str>>)>,
    partitions: Vec<Partition>,
}

/// An object read in a sampled request.
#[derive(Clone, Debug)]
pub struct SampledObject {
    sample: Arc<Sample>,
    name: Arc<str>,
}

impl Sampler {
    /// Creates a sampler of this fraction of the requests, with statistics within `limits`.
    pub fn new(rate: f64, limits: CoAccessLimits) -> Self {
        // Saturating: a rate of 1 samples every request but one in 2⁶⁴.
        let below = (rate.max(0.0) * 2.0_f64.powi(64)) as u64;
        let statistics = SampleStatistics {
            co_access: CoAccess::new(limits),
            objects: HashMap::new(),
            heat: PartitionHeat::new(PARTITIONS),
            partition_reads: 0,
        };
        Self { below, state: AtomicU64::new(0), statistics: Mutex::new(statistics) }
    }

    /// Begins a request; `None` if it is not sampled.
    pub fn begin(self: &Arc<Self>) -> Option<Arc<Sample>> {
        if self.below == 0 {
            return None;
        }
        let draw = striate_splitmix::hash(self.state.fetch_add(striate_splitmix::GAMMA, Ordering::Relaxed));
        (draw < self.below).then(|| Arc::new(Sample { sampler: Arc::clone(self), request: Mutex::default() }))
    }
}

impl Sample {
    /// Records that the request reads stored bytes.
    pub fn add(&self, stored: &StoredBytes) {
        self.note(stored, None);
    }

    fn note(&self, stored: &StoredBytes, object: Option<&Arc<str>>) {
        let Ok(id) = stored.stripe() else { return };
        let request = &mut *self.request.lock();
        // The statistics count at most this many per request, and ignore repetitions.
        let most = CoAccessLimits::default().request_blocks;
        match stored {
            StoredBytes::Block(_) if request.blocks.len() < most => {
                request.blocks.push((id, object.cloned()))
            }
            StoredBytes::Extent(extent) if request.partitions.len() < most => {
                request.partitions.push((id, extent.index as u8));
            }
            _ => {}
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let SampledRequest { blocks, partitions } = std::mem::take(self.request.get_mut());
        let mut statistics = self.sampler.statistics.lock();
        partitions.into_iter().for_each(|partition| statistics.read(partition));
        statistics.co_access.observe(blocks.iter().map(|(block, _)| *block));
        let named = blocks.into_iter().filter_map(|(block, object)| Some((block, object?)));
        named.for_each(|(block, object)| statistics.name(block, object));
    }
}

impl SampledObject {
    /// Records that this request reads the object `name`: its bucket, a slash, and its key.
    pub fn new(sample: Arc<Sample>, name: Arc<str>) -> Self {
        Self { sample, name }
    }

    /// Records that the request reads stored bytes of the object.
    pub fn add(&self, stored: &StoredBytes) {
        self.sample.note(stored, Some(&self.name));
    }
}

impl SampleStatistics {
    fn read(&mut self, partition: Partition) {
        self.heat.add(partition, 1);
        self.partition_reads += 1;
        if self.partition_reads.is_multiple_of(HALVED_AFTER) {
            self.heat.halve();
        }
    }

    fn name(&mut self, block: StripeId, object: Arc<str>) {
        if self.objects.len() >= MOST_NAMED {
            self.objects.retain(|&block, _| self.co_access.count(block) > 0);
        }
        if self.objects.len() >= MOST_NAMED {
            // Frequently requested blocks soon get a name again.
            self.objects.clear();
        }
        self.objects.insert(block, object);
    }
}

impl Sampler {
    /// Calls `look` with the statistics of blocks that are read together.
    pub fn with_co_access<R>(&self, look: impl FnOnce(&CoAccess) -> R) -> R {
        look(&self.statistics.lock().co_access)
    }

    /// Totals of the statistics.
    pub fn totals(&self) -> CoAccessTotals {
        self.with_co_access(CoAccess::totals)
    }

    /// Returns at most `most` blocks, those that most requests read first.
    pub fn hottest(&self, most: usize) -> Vec<HotBlock> {
        let statistics = self.statistics.lock();
        let hot = |block| HotBlock {
            block,
            popularity: statistics.co_access.popularity(block),
            object: statistics.objects.get(&block).cloned(),
        };
        statistics.co_access.hottest(most).into_iter().map(hot).collect()
    }

    /// Returns at most `most` partitions, the most read first.
    pub fn hottest_partitions(&self, most: usize) -> Vec<PartitionReads> {
        self.statistics.lock().heat.hottest().take(most).collect()
    }

    /// Reads of partitions by sampled requests.
    pub fn partition_reads(&self) -> u64 {
        self.statistics.lock().partition_reads
    }

    /// Returns the statistics, to be merged with those of other processes.
    pub fn snapshot(&self) -> CoAccessSnapshot {
        self.with_co_access(CoAccess::snapshot)
    }
}

#[cfg(test)]
mod tests {
    use striate_meta::records::{Block, Extent};

    use super::*;

    #[test]
    fn as_many_requests_are_sampled_as_the_rate_says() {
        for (rate, range) in
            [(0.0, 0..=0), (0.125, 1_150..=1_350), (1.0, 10_000..=10_000), (7.0, 10_000..=10_000)]
        {
            let sampler = Arc::new(Sampler::new(rate, CoAccessLimits::default()));
            let sampled = (0..10_000).filter(|_| sampler.begin().is_some()).count();
            assert!(range.contains(&sampled), "{sampled} at {rate}");
        }
    }

    #[test]
    fn partitions_are_counted_by_themselves() {
        let sampler = Arc::new(Sampler::new(1.0, CoAccessLimits::default()));
        let stripe = StripeId::new(1, 7);
        for index in [0, 1, 1] {
            let extent = Extent { stripe: stripe.to_bytes().to_vec().into(), index, ..Extent::default() };
            sampler.begin().expect("every request is sampled").add(&extent.into());
        }
        let hottest = sampler.hottest_partitions(10);
        let hottest: Vec<_> = hottest.iter().map(|reads| (reads.partition, reads.count)).collect();
        assert_eq!(hottest, [((stripe, 1), 2), ((stripe, 0), 1)]);
        assert_eq!((sampler.totals().observed, sampler.partition_reads()), (0, 3));
    }

    #[test]
    fn names_are_bounded_and_those_of_hot_blocks_stay() {
        let limits = CoAccessLimits { requests: 100, ..CoAccessLimits::default() };
        let sampler = Arc::new(Sampler::new(1.0, limits));
        let read = |sequence: u64| {
            let name = format!("bucket/key-{sequence}").into();
            let stripe = StripeId::new(1, sequence).to_bytes().to_vec();
            let sample = sampler.begin().expect("every request is sampled");
            SampledObject::new(sample, name).add(&Block { stripe: stripe.into(), ..Block::default() }.into());
        };
        for sequence in 1..2 * MOST_NAMED as u64 {
            read(sequence);
            read(0);
            assert!(sampler.statistics.lock().objects.len() <= MOST_NAMED);
        }
        let statistics = sampler.statistics.lock();
        assert_eq!(statistics.objects[&StripeId::new(1, 0)].as_ref(), "bucket/key-0");
        assert!(!statistics.objects.contains_key(&StripeId::new(1, 1)));
    }
}
