//! Sampled requests on their way into the co-access statistics (EC-Store §V-A).
//!
//! A request is what a caller asked for at once: a query of many blocks, a batch of objects, or one get.
//! Blocks count as far as they were asked for. Packed objects are in partitions, of which only how often they are read counts
//! ([`striate_plan::statistics::heat`]): what is asked for with one of a thousand objects says little of the others. Which requests are sampled is decided by a generator of its own, so
//! that the runtime's draws, and with them a run in virtual time, are the same with and without sampling.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use striate_core::StripeId;
use striate_plan::{
    CoAccess, CoAccessLimits, CoAccessSnapshot, CoAccessTotals, Partition, PartitionHeat, PartitionReads,
};

use super::span::Stored;

/// Objects of so many blocks are known by name. They are for people to read.
const MOST_NAMED: usize = 16 << 10;
/// Partitions of which reads are counted.
const PARTITIONS: usize = 4_096;
/// Counts are halved after so many reads of partitions.
const HALVED_AFTER: u64 = 1 << 17;

/// A block that many requests ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct HotBlock {
    /// Its stripe.
    pub block: StripeId,
    /// The share of the requests that ask for it.
    pub popularity: f64,
    /// An object that has it, as `bucket/key`, where that is known.
    pub object: Option<Arc<str>>,
}

/// Chooses requests and keeps what they asked for.
#[derive(Debug)]
pub struct Sampler {
    /// Requests are sampled whose draw is below this: the rate times 2⁶⁴.
    below: u64,
    state: AtomicU64,
    kept: Mutex<Kept>,
}

/// What is known of sampled requests.
#[derive(Debug)]
struct Kept {
    statistics: CoAccess,
    /// The object that last asked for a block.
    objects: HashMap<StripeId, Arc<str>>,
    heat: PartitionHeat,
    /// Reads of partitions, since the beginning.
    partition_reads: u64,
}

/// One sampled request; observed when the last of its readers is done.
#[derive(Debug)]
pub struct Sample {
    sampler: Arc<Sampler>,
    asked: Mutex<Asked>,
}

/// What a request asks for.
#[derive(Debug, Default)]
struct Asked {
    blocks: Vec<(StripeId, Option<Arc<str>>)>,
    partitions: Vec<Partition>,
}

/// An object that is read in a sampled request.
#[derive(Clone, Debug)]
pub struct SampledObject {
    sample: Arc<Sample>,
    name: Arc<str>,
}

impl Sampler {
    /// Samples this share of the requests, and keeps as much of them.
    pub fn new(rate: f64, limits: CoAccessLimits) -> Self {
        // Saturates: a rate of 1 or more is below every draw but the last, one in 2⁶⁴.
        let below = (rate.max(0.0) * 2.0_f64.powi(64)) as u64;
        let kept = Kept {
            statistics: CoAccess::new(limits),
            objects: HashMap::new(),
            heat: PartitionHeat::new(PARTITIONS),
            partition_reads: 0,
        };
        Self { below, state: AtomicU64::new(0), kept: Mutex::new(kept) }
    }

    /// A request begins; `None` if it is not sampled.
    pub fn begin(self: &Arc<Self>) -> Option<Arc<Sample>> {
        if self.below == 0 {
            return None;
        }
        let draw = striate_splitmix::hash(self.state.fetch_add(striate_splitmix::GAMMA, Ordering::Relaxed));
        (draw < self.below).then(|| Arc::new(Sample { sampler: Arc::clone(self), asked: Mutex::default() }))
    }
}

impl Sample {
    /// The request asks for stored bytes.
    pub fn add(&self, stored: &Stored) {
        self.note(stored, None);
    }

    fn note(&self, stored: &Stored, object: Option<&Arc<str>>) {
        let Ok(id) = stored.stripe() else { return };
        let asked = &mut *self.asked.lock();
        // The statistics count no more of one request. They leave out repetitions.
        let most = CoAccessLimits::default().request_blocks;
        match stored {
            Stored::Block(_) if asked.blocks.len() < most => asked.blocks.push((id, object.cloned())),
            Stored::Extent(extent) if asked.partitions.len() < most => {
                asked.partitions.push((id, extent.index as u8));
            }
            _ => {}
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let Asked { blocks, partitions } = std::mem::take(self.asked.get_mut());
        let mut kept = self.sampler.kept.lock();
        partitions.into_iter().for_each(|partition| kept.read(partition));
        kept.statistics.observe(blocks.iter().map(|(block, _)| *block));
        let named = blocks.into_iter().filter_map(|(block, object)| Some((block, object?)));
        named.for_each(|(block, object)| kept.name(block, object));
    }
}

impl SampledObject {
    /// This request reads the object `name`: its bucket, a slash, and its key.
    pub fn new(sample: Arc<Sample>, name: Arc<str>) -> Self {
        Self { sample, name }
    }

    /// It asks for bytes of it.
    pub fn add(&self, stored: &Stored) {
        self.sample.note(stored, Some(&self.name));
    }
}

impl Kept {
    fn read(&mut self, partition: Partition) {
        self.heat.add(partition, 1);
        self.partition_reads += 1;
        if self.partition_reads.is_multiple_of(HALVED_AFTER) {
            self.heat.halve();
        }
    }

    fn name(&mut self, block: StripeId, object: Arc<str>) {
        if self.objects.len() >= MOST_NAMED {
            self.objects.retain(|&block, _| self.statistics.count(block) > 0);
        }
        if self.objects.len() >= MOST_NAMED {
            // What is asked for often has a name again soon.
            self.objects.clear();
        }
        self.objects.insert(block, object);
    }
}

impl Sampler {
    /// The statistics of sampled requests: which blocks are asked for together.
    pub fn with_co_access<R>(&self, look: impl FnOnce(&CoAccess) -> R) -> R {
        look(&self.kept.lock().statistics)
    }

    /// The statistics as a whole.
    pub fn totals(&self) -> CoAccessTotals {
        self.with_co_access(CoAccess::totals)
    }

    /// The blocks that most of the requests ask for, the hottest first, at most so many.
    pub fn hottest(&self, most: usize) -> Vec<HotBlock> {
        let kept = self.kept.lock();
        let hot = |block| HotBlock {
            block,
            popularity: kept.statistics.popularity(block),
            object: kept.objects.get(&block).cloned(),
        };
        kept.statistics.hottest(most).into_iter().map(hot).collect()
    }

    /// The most read partitions, the hottest first, at most so many.
    pub fn hottest_partitions(&self, most: usize) -> Vec<PartitionReads> {
        self.kept.lock().heat.hottest().take(most).collect()
    }

    /// Reads of partitions by sampled requests.
    pub fn partition_reads(&self) -> u64 {
        self.kept.lock().partition_reads
    }

    /// The statistics, to be merged with those of other processes.
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
            assert!(sampler.kept.lock().objects.len() <= MOST_NAMED);
        }
        let kept = sampler.kept.lock();
        assert_eq!(kept.objects[&StripeId::new(1, 0)].as_ref(), "bucket/key-0");
        assert!(!kept.objects.contains_key(&StripeId::new(1, 1)));
    }
}
