//! Whole copies of the most-read partitions, on the sites that reads load least; dropped when the partitions cool.
//!
//! A copy is one more file of a data chunk. It has a generation of its own, and the stripe's record names it beside
//! the chunk's location. It is made like a move, within an entry ([`striate_stripe::StripeChange`]), and so exists as
//! a whole or not at all. The transaction that removes a copy from the record also makes it garbage, even when the
//! stripe is released. Only reads and this service know of copies: they add no redundancy, the placement rule and
//! repair ignore them, and a lost copy costs a read a second request.
//!
//! Processes that read cache records of stripes, which stay valid without copies: [`keep_following`] invalidates them
//! when copies change.
//!
//! [`striate_plan::placement::hot_copies`] chooses the partitions by the reads that gateways report, within a share
//! of all packed bytes. One process of a cluster runs the service; two at once would make some copies for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use striate_core::{SiteId, StripeId, formats};
use striate_meta::records::{CopiesWork, Stripe};
use striate_meta::{Revision, keys, records};
use striate_plan::placement::hot_copies::LEAST_READS;
use striate_plan::{CopyPlan, HotPartition, Partition, PartitionReads, plan_copies};
use striate_site::Priority;
use striate_stripe::{DebtEffect, StripeError, Stripes};

use crate::movement::{AccessSource, verify_new};
use crate::packing::journal::published;
use crate::rows::Rows;

/// Interval between two passes.
const PASS_EVERY: Duration = Duration::from_secs(30);
/// Time after the start during which no partition counts as cold: the services may not have seen enough reads yet.
pub(crate) const WARM_UP: Duration = Duration::from_secs(600);
/// Interval between two polls for changed copies.
const FOLLOW_EVERY: Duration = Duration::from_secs(15);
/// Number of most-read partitions considered.
const HOTTEST: usize = 1_024;
/// Maximum number of copies made in one pass.
const MADE_AT_ONCE: usize = 16;
/// Attempts to make or drop a copy when other changes of the stripe win.
const ATTEMPTS: u32 = 4;
/// Rows read together.
const PAGE: usize = 256;

/// Configuration of the service of hot copies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotCopiesOptions {
    /// Share of packed bytes that copies may take; 0 disables copies.
    pub share: f64,
}

impl Default for HotCopiesOptions {
    /// One percent.
    fn default() -> Self {
        Self { share: 0.01 }
    }
}

/// Outcome of making a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The copy was made.
    Made {
        /// Bytes of the copy.
        bytes: u64,
    },
    /// The stripe is gone or being written, the partition has a copy, or the site holds a chunk of the stripe.
    Outdated,
    /// A site failed; the text says why.
    Refused(String),
    /// Other processes kept changing the stripe.
    Contended,
}

/// The service of hot copies. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HotCopies {
    options: HotCopiesOptions,
    work: Arc<Mutex<CopiesWork>>,
}

/// The stripes of hot partitions, and those with copies.
type StripeRecords = BTreeMap<StripeId, Stripe>;

impl HotCopies {
    /// Creates a service without starting it.
    pub fn new(options: HotCopiesOptions) -> Self {
        let share_ppm = (options.share.clamp(0.0, 1.0) * 1e6) as u32;
        let work = CopiesWork { share_ppm, ..CopiesWork::default() };
        Self { options, work: Arc::new(Mutex::new(work)) }
    }

    /// Makes and drops copies until the task is dropped. Run it in one process of a cluster at a time.
    pub fn run(self, stripes: Stripes, source: AccessSource) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let began = stripes.runtime().now();
            loop {
                stripes.runtime().sleep(PASS_EVERY).await;
                let hottest = source.hottest_partitions(stripes.runtime(), HOTTEST);
                let is_warm = stripes.runtime().now() - began >= WARM_UP;
                if let Err(error) = self.run_pass(&stripes, &hottest, is_warm).await {
                    tracing::warn!(%error, "copies of hot partitions are looked after later");
                }
            }
        })
    }

    /// Runs one pass: drops copies of cooled partitions and makes some of the wanted ones. `hottest` are the
    /// most-read partitions. Unless `is_warm`, the list may be incomplete, and no partition with a copy counts as
    /// cold.
    ///
    /// # Errors
    /// When the metadata store fails; completed changes remain.
    pub async fn run_pass(
        &self,
        stripes: &Stripes,
        hottest: &[PartitionReads],
        is_warm: bool,
    ) -> Result<(), StripeError> {
        if stripes.formats().records < formats::COPIES {
            return Ok(());
        }
        let budget = (packed_bytes(stripes).await? as f64 * self.options.share.clamp(0.0, 1.0)) as u64;
        let stripe_records = load_records(stripes, hottest).await?;
        let least = if is_warm { 0 } else { LEAST_READS };
        let plan = plan(stripes, &stripe_records, hottest, budget, least);
        let (made, dropped) = carry_out(stripes, &stripe_records, &plan).await?;
        narrow_again(stripes, &stripe_records, &plan).await?;
        let copies = copies_now(&stripe_records, made, dropped);
        let work = {
            let mut work = self.work.lock();
            work.made += made.0;
            work.dropped += dropped.0;
            (work.copies, work.bytes, work.budget_bytes) = (copies.0, copies.1, budget);
            *work
        };
        publish(stripes, &work).await
    }
}

/// Number of copies, and their bytes.
type CopyTotals = (u64, u64);

fn copies_now(stripe_records: &StripeRecords, made: CopyTotals, dropped: CopyTotals) -> CopyTotals {
    let bytes = |stripe: &Stripe| stripe.copies.len() as u64 * u64::from(stripe.chunk_len);
    let before = stripe_records
        .values()
        .fold((0, 0), |(copies, sum), stripe| (copies + stripe.copies.len() as u64, sum + bytes(stripe)));
    ((before.0 + made.0).saturating_sub(dropped.0), (before.1 + made.1).saturating_sub(dropped.1))
}

/// Returns the bytes of all partitions, as the packing service has counted them.
async fn packed_bytes(stripes: &Stripes) -> Result<u64, StripeError> {
    Ok(published(stripes).await?.figures.map_or(0, |figures| figures.partition_bytes))
}

async fn load_records(stripes: &Stripes, hottest: &[PartitionReads]) -> Result<StripeRecords, StripeError> {
    let mut ids: BTreeSet<StripeId> = hottest.iter().map(|reads| reads.partition.0).collect();
    let mut rows = Rows::with_prefix(keys::COPIES);
    while let Some(page) = rows.next(stripes).await? {
        ids.extend(page.iter().filter_map(|row| keys::stripe_of(&row.key)));
    }
    let ids: Vec<StripeId> = ids.into_iter().collect();
    let mut stripe_records = StripeRecords::new();
    for page in ids.chunks(PAGE) {
        stripe_records.extend(stripes.records_of(page).await?);
    }
    Ok(stripe_records)
}

/// Plans copies. Partitions with copies count as read at least `least` times.
fn plan(
    stripes: &Stripes,
    stripe_records: &StripeRecords,
    hottest: &[PartitionReads],
    budget: u64,
    least: u64,
) -> CopyPlan {
    let counts: BTreeMap<Partition, u64> =
        hottest.iter().map(|reads| (reads.partition, reads.count)).collect();
    let copied = stripe_records
        .iter()
        .flat_map(|(&id, record)| record.copies.iter().map(move |copy| (id, copy.index as u8)));
    let partitions: BTreeSet<Partition> = counts.keys().copied().chain(copied).collect();
    let hot_partition = |partition: Partition| {
        let record = stripe_records.get(&partition.0)?;
        let location = record.locations.get(usize::from(partition.1)).filter(|at| at.site != 0)?;
        let copy = record.copies.iter().find(|copy| copy.index == u32::from(partition.1));
        let places = record.entries.iter().flat_map(|entry| &entry.places).map(|place| place.site);
        Some(HotPartition {
            partition,
            count: counts.get(&partition).copied().unwrap_or(0).max(if copy.is_some() { least } else { 0 }),
            bytes: record.chunk_len.into(),
            home: SiteId(location.site),
            holders: record.locations.iter().map(|at| at.site).chain(places).map(SiteId).collect(),
            copy: copy.map(|copy| SiteId(copy.site)),
        })
    };
    let hot: Vec<HotPartition> = partitions.into_iter().filter_map(hot_partition).collect();
    let sites: Vec<SiteId> = stripes.candidates().into_iter().map(|candidate| candidate.site).collect();
    if sites.is_empty() {
        // No sites are known yet.
        return CopyPlan::default();
    }
    plan_copies(&hot, budget, &sites)
}

async fn carry_out(
    stripes: &Stripes,
    stripe_records: &StripeRecords,
    plan: &CopyPlan,
) -> Result<(CopyTotals, CopyTotals), StripeError> {
    let (mut made, mut dropped) = ((0, 0), (0, 0));
    for &(id, index) in &plan.drop {
        let count = drop_copies(stripes, id, index).await?;
        let bytes = stripe_records.get(&id).map_or(0, |record| u64::from(record.chunk_len));
        dropped = (dropped.0 + count, dropped.1 + count * bytes);
    }
    for &(partition, to) in plan.make.iter().take(MADE_AT_ONCE) {
        match make_copy(stripes, partition, to).await? {
            CopyOutcome::Made { bytes } => made = (made.0 + 1, made.1 + bytes),
            outcome => {
                tracing::debug!(stripe = %partition.0, chunk = partition.1, ?outcome, "no copy was made")
            }
        }
    }
    if (made.0, dropped.0) != (0, 0) {
        tracing::info!(made = made.0, dropped = dropped.0, "copies of hot partitions");
    }
    Ok((made, dropped))
}

/// Gives sealed stripes that stay hot their own parities again, so that a read asks few sites when a chunk is late or
/// lost. These are stripes that already had copies and keep them.
async fn narrow_again(
    stripes: &Stripes,
    stripe_records: &StripeRecords,
    plan: &CopyPlan,
) -> Result<(), StripeError> {
    let has_cooled = |id: &StripeId| plan.drop.iter().any(|(dropped, _)| dropped == id);
    let stays_hot =
        |(id, record): &(&StripeId, &Stripe)| record.dropped && !record.copies.is_empty() && !has_cooled(id);
    let mut made = 0;
    // Stripes that may not get them back yet (two of their chunks share a site) do not count, so they do not delay
    // others.
    for (&id, _) in stripe_records.iter().filter(stays_hot) {
        if stripes.narrow_again(id).await? {
            tracing::info!(stripe = %id, "what is sealed has become hot and gets its own parities again");
            made += 1;
        }
        if made == MADE_AT_ONCE {
            break;
        }
    }
    Ok(())
}

/// Makes a copy of a partition on a site.
///
/// # Errors
/// When the metadata store fails. The copy may then exist or not.
pub fn make_copy(
    stripes: &Stripes,
    partition: Partition,
    to: SiteId,
) -> BoxFuture<'_, Result<CopyOutcome, StripeError>> {
    Box::pin(async move {
        for _ in 0..ATTEMPTS {
            if let Some(outcome) = attempt(stripes, partition, to).await? {
                return Ok(outcome);
            }
        }
        Ok(CopyOutcome::Contended)
    })
}

/// Returns `None` if another process changed the stripe.
async fn attempt(
    stripes: &Stripes,
    (id, index): Partition,
    to: SiteId,
) -> Result<Option<CopyOutcome>, StripeError> {
    let index = usize::from(index);
    // A group that is still being written may be given up.
    if stripes.meta().get(&keys::intent(id.writer(), id.sequence())).await?.is_some() {
        return Ok(Some(CopyOutcome::Outdated));
    }
    let Some(mut change) = stripes.change(id, Priority::Background).await? else {
        return Ok(Some(CopyOutcome::Outdated));
    };
    let record = &change.record;
    let is_held = record.locations.iter().any(|at| at.site == to.0)
        || record.copies.iter().any(|copy| copy.site == to.0 || copy.index as usize == index)
        || change.expected_sites(&[]).contains(&to);
    if index >= change.code.k() || record.locations[index].site == 0 || is_held {
        return Ok(Some(CopyOutcome::Outdated));
    }
    let Some(generation) = change.open(&[(index, to)]).await? else { return Ok(None) };
    let tree = change.combine_tree(to, &[(1, index)], |_| 0.0);
    if let Err(error) = change.assemble_chunk(index, generation, &tree).await {
        change.note_stray(index, to, generation, &error);
        change.give_up(&[], generation).await;
        return Ok(Some(CopyOutcome::Refused(format!("site {to}: {error}"))));
    }
    if let Err(reason) = verify_new(stripes, &change, index, to, generation).await {
        change.give_up(&[(index, to)], generation).await;
        return Ok(Some(CopyOutcome::Refused(reason)));
    }
    change.add_copy(index, to, generation);
    if change.swap(Vec::new(), DebtEffect::AsItIs).await? {
        return Ok(Some(CopyOutcome::Made { bytes: u64::from(change.record.chunk_len) }));
    }
    change.give_up(&[(index, to)], generation).await;
    Ok(None)
}

/// Drops the copies of a partition; returns their number.
///
/// # Errors
/// When the metadata store fails.
pub async fn drop_copies(stripes: &Stripes, id: StripeId, index: u8) -> Result<u64, StripeError> {
    drop_copies_where(stripes, id, |copy| copy.index == u32::from(index)).await
}

/// Drops some of a stripe's copies; returns their number.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn drop_copies_where(
    stripes: &Stripes,
    id: StripeId,
    is_dropped: impl Fn(&records::Copy) -> bool,
) -> Result<u64, StripeError> {
    for _ in 0..ATTEMPTS {
        let Some(mut change) = stripes.change(id, Priority::Background).await? else { return Ok(0) };
        let files = change.record.drop_copies(&is_dropped);
        let count = files.len() as u64;
        if count == 0 || change.swap(files, DebtEffect::AsItIs).await? {
            return Ok(count);
        }
    }
    Ok(0)
}

/// Polls for stripes whose copies have changed, and makes this process look them up at the next read. Runs until the
/// task is dropped.
pub fn keep_following(stripes: Stripes) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let mut before = BTreeMap::new();
        loop {
            stripes.runtime().sleep(FOLLOW_EVERY).await;
            match copied_stripes(&stripes).await {
                Ok(now) => {
                    let is_new = |(id, at): &(&StripeId, &Revision)| before.get(*id) != Some(*at);
                    now.iter().filter(is_new).for_each(|(id, _)| stripes.stripe_changed(*id));
                    let gone = before.keys().filter(|id| !now.contains_key(id));
                    gone.for_each(|id| stripes.stripe_changed(*id));
                    before = now;
                }
                Err(error) => tracing::debug!(%error, "copies of hot partitions are looked for later"),
            }
        }
    })
}

/// Returns the stripes that have copies, and the revision of each one's row.
async fn copied_stripes(stripes: &Stripes) -> Result<BTreeMap<StripeId, Revision>, StripeError> {
    let mut copied = BTreeMap::new();
    let mut rows = Rows::with_prefix(keys::COPIES);
    while let Some(page) = rows.next(stripes).await? {
        copied.extend(page.iter().filter_map(|row| Some((keys::stripe_of(&row.key)?, row.version))));
    }
    Ok(copied)
}

async fn publish(stripes: &Stripes, work: &CopiesWork) -> Result<(), StripeError> {
    let mut tx = stripes.transaction();
    let value = records::encode(work);
    let is_told = stripes.meta().get(&keys::copies_work()).await?.is_some_and(|row| row.value == value);
    if !is_told {
        tx.put(keys::copies_work(), value);
        stripes.meta().commit(tx).await?;
    }
    Ok(())
}
