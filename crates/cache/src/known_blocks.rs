//! What a gateway knows of cached blocks: which are in memory, and in which form they are read.
//!
//! This knowledge may be wrong. A block that turns out to be absent is read from where it is stored, and its home is
//! asked again.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use striate_codec::{Code, CodeSpec};
use striate_core::{Layout, Profile, SiteId, Spread, StripeId, Tier, cached};
use striate_meta::records::{Location, Stripe};
use striate_meta::{Revision, Row};
use striate_plan::MemorySite;
use striate_plan::cache::splits::places;
use striate_runtime::Instant;
use striate_splitmix::hash;
use striate_stripe::{MemoryBlock, OpenedStripe, SplitSites, StripeError};

use crate::splits::split_len;

/// Maximum memory for known blocks in bytes. Every gateway pays it besides the memory for cached blocks.
const MOST_BYTES: u64 = 16 << 20;
/// Estimated memory of one known block in bytes.
const BYTES_OF_ONE: u64 = 700;
/// Memory that the table takes per entry besides the entry itself, in bytes.
const BYTES_BESIDE: usize = 64;
/// Interval after which a home is asked again. That is how it learns of reads.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Hasher of names, which are hashes themselves.
#[derive(Default)]
pub(crate) struct NameHasher(u64);

impl std::hash::Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |mixed, byte| hash(mixed ^ u64::from(*byte)));
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = (number >> 64) as u64 ^ number as u64;
    }
}

type Table = Cache<StripeId, CachedBlock, BlockWeighter, BuildHasherDefault<NameHasher>>;

/// Weighs a known block by its memory in bytes.
#[derive(Clone, Debug)]
struct BlockWeighter;

impl Weighter<StripeId, CachedBlock> for BlockWeighter {
    fn weight(&self, _: &StripeId, cached: &CachedBlock) -> u64 {
        let record = &cached.form.record;
        let heap = record.profile.capacity() + record.locations.capacity() * size_of::<Location>();
        (size_of::<(StripeId, CachedBlock)>() + size_of::<OpenedStripe>() + heap + BYTES_BESIDE) as u64
    }
}

/// The memory sites at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sites {
    /// Ordered by site number.
    pub(crate) sites: Vec<MemorySite>,
    /// Increases with every change of the sites.
    pub(crate) version: u64,
}

impl Sites {
    /// Returns those that answer.
    pub(crate) fn answering(&self) -> impl Iterator<Item = MemorySite> {
        self.sites.iter().copied().filter(|site| site.is_live)
    }

    /// Returns whether any of them answers.
    pub(crate) fn any_answers(&self) -> bool {
        self.answering().next().is_some()
    }
}

/// A block that is in memory, as far as this process knows.
#[derive(Clone)]
struct CachedBlock {
    form: Arc<OpenedStripe>,
    /// Version of the sites that determine the placement; `None` if the block's row names its sites.
    version: Option<u64>,
    parities: usize,
    asked_at: Instant,
    reads: u32,
    /// Number of parities that it should have. As many as it has while a reader is changing them.
    wanted_parities: usize,
}

impl CachedBlock {
    /// Returns the change of its parities that is due: how many it has, and how many it should have.
    fn due_change(&self) -> Option<(usize, usize)> {
        (self.parities != self.wanted_parities).then_some((self.parities, self.wanted_parities))
    }
}

/// Work that is due after a block was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FollowUp {
    /// Number of reads to report to the home.
    pub(crate) tell: Option<u32>,
    /// Whether the block should have another number of parities.
    pub(crate) changes_parities: bool,
}

/// The blocks that this process knows to be in memory.
pub(crate) struct KnownBlocks {
    table: Mutex<Table>,
    codes: Mutex<HashMap<CodeSpec, Code>>,
}

impl KnownBlocks {
    pub(crate) fn new() -> Self {
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        let blocks = (MOST_BYTES / BYTES_OF_ONE) as usize;
        let table = Cache::with(blocks, MOST_BYTES, BlockWeighter, hasher, lifecycle);
        Self { table: Mutex::new(table), codes: Mutex::default() }
    }

    /// Returns the form in which a cached block is read, or `None` if the block is not known to be cached. Recomputes
    /// its placement if the sites have changed.
    pub(crate) fn form(&self, name: StripeId, sites: &Sites) -> Option<Arc<OpenedStripe>> {
        let (form, parities) = match self.table.lock().get(&name)? {
            cached if cached.version == Some(sites.version) => return Some(cached.form.clone()),
            cached => (cached.form.clone(), cached.parities),
        };
        let form = self.build(name, form.record.chunk_len, parities, sites).ok()?;
        if let Some(mut cached) = self.table.lock().get_mut(&name) {
            (cached.form, cached.version) = (form.clone(), Some(sites.version));
        }
        Some(form)
    }

    /// Records that a block is in memory with `parities` parities, and returns the form in which it is read.
    ///
    /// # Errors
    /// If no such code exists.
    pub(crate) fn add(
        &self,
        name: StripeId,
        split_len: u32,
        (parities, wanted_parities): (usize, usize),
        sites: &Sites,
        now: Instant,
    ) -> Result<Arc<OpenedStripe>, StripeError> {
        let form = self.build(name, split_len, parities, sites)?;
        let version = Some(sites.version);
        let cached =
            CachedBlock { form: form.clone(), version, parities, asked_at: now, reads: 0, wanted_parities };
        self.table.lock().insert(name, cached);
        Ok(form)
    }

    /// Records the number of parities that the home says a block should have.
    pub(crate) fn set_wanted_parities(&self, name: StripeId, wanted_parities: usize) {
        if let Some(mut cached) = self.table.lock().get_mut(&name) {
            cached.wanted_parities = wanted_parities;
        }
    }

    /// Returns the number of parities of a known block.
    pub(crate) fn parities(&self, name: StripeId) -> Option<usize> {
        self.table.lock().get(&name).map(|cached| cached.parities)
    }

    /// Forgets a block. Returns whether it was known.
    pub(crate) fn forget(&self, name: StripeId) -> bool {
        self.table.lock().remove(&name).is_some()
    }

    /// Records a read of a block, or of a part of it, and returns the work that is due.
    pub(crate) fn note_read(&self, name: StripeId, now: Instant) -> FollowUp {
        let mut table = self.table.lock();
        let Some(mut cached) = table.get_mut(&name) else { return FollowUp::default() };
        cached.reads = cached.reads.saturating_add(1);
        let is_due = now.saturating_duration_since(cached.asked_at) >= ASK_AGAIN_AFTER;
        let tell = is_due.then(|| std::mem::take(&mut cached.reads));
        if is_due {
            cached.asked_at = now;
        }
        FollowUp { tell, changes_parities: cached.due_change().is_some() }
    }

    /// Hands out the change of a block's parities that is due: how many it has, and how many it should have. Of many
    /// readers, one gets it. If it fails, the home's next answer makes it due again.
    pub(crate) fn take_change(&self, name: StripeId) -> Option<(usize, usize)> {
        let mut table = self.table.lock();
        let mut cached = table.get_mut(&name)?;
        let change = cached.due_change()?;
        cached.wanted_parities = cached.parities;
        Some(change)
    }

    /// Builds the stripe of the memory tier as which a block is read whose places follow from its name.
    fn build(
        &self,
        name: StripeId,
        split_len: u32,
        parities: usize,
        sites: &Sites,
    ) -> Result<Arc<OpenedStripe>, StripeError> {
        let spec = code(cached::splits(name), parities);
        let places = places(name, &sites.sites, cached::splits(name) + parities);
        self.stripe_at(name, spec, split_len, places)
    }

    /// Returns the stripe of the memory tier as which a block is read whose row names its sites.
    ///
    /// # Errors
    /// If no such code exists.
    pub(crate) fn recorded(
        &self,
        block: &MemoryBlock,
        placed: &SplitSites,
        now: Instant,
    ) -> Result<Arc<OpenedStripe>, StripeError> {
        let name = StripeId(block.content);
        if let Some(cached) = self.table.lock().get(&name).filter(|cached| cached.version.is_none()) {
            return Ok(cached.form.clone());
        }
        let parities = placed.sites.len().saturating_sub(placed.splits);
        let spec = code(placed.splits, parities);
        let form = self.stripe_at(name, spec, split_len(block.len, placed.splits), placed.sites.clone())?;
        let cached = CachedBlock {
            form: form.clone(),
            version: None,
            parities,
            asked_at: now,
            reads: 0,
            wanted_parities: parities,
        };
        self.table.lock().insert(name, cached);
        Ok(form)
    }

    /// Builds a stripe of the memory tier with its splits on `sites`. Parities that the block does not have get site 0.
    fn stripe_at(
        &self,
        name: StripeId,
        spec: CodeSpec,
        split_len: u32,
        mut sites: Vec<SiteId>,
    ) -> Result<Arc<OpenedStripe>, StripeError> {
        let code = self.code(spec)?;
        sites.resize(code.n(), SiteId(0));
        let profile =
            Profile { code: spec, layout: Layout::Split, spread: Spread::default(), tier: Tier::Memory };
        let locations = sites.iter().map(|site| Location { site: site.0, ..Location::default() }).collect();
        let record =
            Stripe { profile: profile.to_string(), chunk_len: split_len, locations, ..Stripe::default() };
        let row = Row { key: Bytes::new(), value: Bytes::new(), version: Revision(0) };
        Ok(Arc::new(OpenedStripe { id: name, row, record, profile, code }))
    }

    /// Returns a code, which is built once.
    ///
    /// # Errors
    /// If the parameters describe no code.
    pub(crate) fn code(&self, spec: CodeSpec) -> Result<Code, StripeError> {
        if let Some(code) = self.codes.lock().get(&spec) {
            return Ok(code.clone());
        }
        let code = spec.build().map_err(|error| StripeError::InvalidArgument(error.to_string()))?;
        self.codes.lock().insert(spec, code.clone());
        Ok(code)
    }
}

/// The code of a cached block. Whole blocks are copied. Otherwise the code's rows for more parities begin with its rows
/// for fewer, so parities come and go while data splits stay.
pub(crate) fn code(splits: usize, parities: usize) -> CodeSpec {
    match splits {
        1 => CodeSpec::Replica { copies: 1 + parities },
        _ => CodeSpec::Rs { data: splits, parity: parities.max(1) },
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    fn sites(count: u32, version: u64) -> Sites {
        let site = |number| MemorySite { site: SiteId(number), bytes: 1 << 30, is_live: true };
        Sites { sites: (1..=count).map(site).collect(), version }
    }

    #[test]
    fn parities_come_and_go_while_others_stay() {
        for splits in 2..=10 {
            let most = code(splits, 10).build().unwrap();
            for parities in 1..10 {
                let fewer = code(splits, parities).build().unwrap();
                (0..splits + parities).for_each(|chunk| assert_eq!(fewer.row(chunk), most.row(chunk)));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn known_blocks_take_a_bounded_amount_of_memory() {
        let (known, runtime) = (KnownBlocks::new(), Runtime::deterministic(1, Duration::ZERO));
        for number in 0..70_000 {
            let name = cached::name(number << 64, 4);
            known.add(name, 100, (1, 1), &sites(6, 1), runtime.now()).unwrap();
        }
        let (blocks, form) =
            (known.table.lock().len(), size_of::<OpenedStripe>() + 5 * size_of::<Location>());
        assert!(blocks > 10_000, "{blocks} are known");
        assert!((blocks * form) as u64 <= MOST_BYTES, "{blocks} blocks of more than {form} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_sites_recomputes_the_placement_of_a_known_block() {
        let (known, runtime) = (KnownBlocks::new(), Runtime::deterministic(1, Duration::ZERO));
        let name = cached::name(7 << 64, 4);
        assert!(known.form(name, &sites(6, 1)).is_none());
        let form = known.add(name, 100, (1, 1), &sites(6, 1), runtime.now()).unwrap();
        assert_eq!((form.code.k(), form.code.n(), form.record.chunk_len), (4, 5, 100));
        assert!(Arc::ptr_eq(&form, &known.form(name, &sites(6, 1)).unwrap()));
        let moved = known.form(name, &sites(3, 2)).unwrap();
        assert!(moved.record.locations.iter().all(|location| (1..=3).contains(&location.site)));
        assert!(Arc::ptr_eq(&moved, &known.form(name, &sites(3, 2)).unwrap()));
        known.forget(name);
        assert!(known.form(name, &sites(3, 2)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_home_is_told_of_reads_now_and_then() {
        let (known, runtime) = (KnownBlocks::new(), Runtime::deterministic(1, Duration::ZERO));
        let name = cached::name(7 << 64, 4);
        known.add(name, 100, (0, 0), &sites(6, 1), runtime.now()).unwrap();
        assert_eq!(known.note_read(name, runtime.now()), FollowUp::default());
        runtime.sleep(ASK_AGAIN_AFTER).await;
        assert_eq!(known.note_read(name, runtime.now()).tell, Some(2));
        known.set_wanted_parities(name, 3);
        let due = FollowUp { tell: None, changes_parities: true };
        assert_eq!(known.note_read(name, runtime.now()), due);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_readers_one_changes_the_parities() {
        let (known, runtime) = (KnownBlocks::new(), Runtime::deterministic(1, Duration::ZERO));
        let name = cached::name(7 << 64, 4);
        known.add(name, 100, (1, 3), &sites(8, 1), runtime.now()).unwrap();
        let is_due = || known.note_read(name, runtime.now()).changes_parities;
        assert!(is_due());
        assert_eq!(known.take_change(name), Some((1, 3)));
        assert!(!is_due());
        assert_eq!(known.take_change(name), None, "another reader has it");
        known.set_wanted_parities(name, 3);
        assert_eq!(known.take_change(name), Some((1, 3)), "it has failed, and the home asks for it again");
    }
}
