//! Cold data of a bucket: the stripes that hold its objects' bytes, and their partitions that are in no wide stripe.
//!
//! Partitions of packed stripes and data chunks of the stripes of large objects are sealed alike: both keep their
//! names and places, so no row of an object, a block or a part changes. Members of one wide stripe should have
//! similar lengths, since shorter ones count as zeros beyond their ends. So a pool holds the partitions that go under
//! one profile and whose lengths differ by an eighth at most.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use striate_core::{Profile, SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{Location, Object, Stripe};
use striate_plan::OpenPartition;
use striate_stripe::{StripeError, Stripes, wide_of};

use super::SealOptions;
use super::balance::RackCounts;
use super::local_parities::ChangeShares;
use super::survey::ColdStripe;
use super::target::{ColdTarget, Target};
use crate::rows::Rows;

/// Stripe records read together.
const PAGE: usize = 300;
/// Minimum length of a sealed chunk in bytes: rows of shorter ones would cost more than their parities. The packer
/// makes partitions of such objects when they are cold.
const SHORTEST: u32 = 64 << 10;
/// Share of dead object bytes above which a stripe is repacked first.
const DEAD_SHARE: f64 = 0.25;

/// Partitions that may share a wide stripe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolKey {
    /// Text of the wide profile.
    pub(super) profile: String,
    /// Class of their lengths.
    pub(super) lens: LengthClass,
}

/// Cold data of a bucket.
#[derive(Default)]
pub(super) struct ColdData {
    /// Partitions in no wide stripe, grouped by those that may share one.
    pub(super) pools: BTreeMap<PoolKey, Vec<OpenPartition>>,
    /// Partitions that wait and are in no pool any more, counted by site.
    pub(super) set_aside: HashMap<SiteId, usize>,
    /// Partitions that wait for the repair of their stripes, counted by site.
    pub(super) owed: HashMap<SiteId, usize>,
    /// Cold stripes that wait for repair.
    pub(super) in_debt: u64,
    /// Cold data chunks, sealed or not, by profile and rack.
    pub(super) in_racks: BTreeMap<String, RackCounts>,
    /// Chunk lengths in bytes of the stripes that have partitions in the pools.
    pub(super) chunk_lens: BTreeMap<StripeId, u32>,
    /// Wide stripes that some of the cold stripes are in.
    pub(super) wide: BTreeSet<StripeId>,
    /// Wide stripes that are being built or given up.
    pub(super) unsealed: BTreeSet<StripeId>,
    /// Wide stripes in which partitions have taken places.
    pub(super) filled: BTreeSet<StripeId>,
    /// Shares of the members of wide stripes that are expected to change.
    pub(super) changing: ChangeShares,
    /// Cold stripes that still have parities although all their data chunks are in wide stripes: they were hot.
    pub(super) cooled: Vec<StripeId>,
    /// Of these, those that keep their parities because their data chunks are in too many wide stripes.
    pub(super) scattered: u64,
    /// Cold stripes; those that come under no profile count only if some of their data chunks are in wide stripes.
    pub(super) stripes: u64,
    /// Cold stripes with all their data chunks in sealed wide stripes, as far as they are counted.
    pub(super) sealed: u64,
    /// Cold stripes with only some of their data chunks in sealed wide stripes.
    pub(super) half_sealed: u64,
    /// Cold stripes too short to be sealed: of small objects that are not packed, and the last stripes of large
    /// objects.
    pub(super) short: u64,
    /// Living bytes in the stripes too short to be sealed.
    pub(super) short_bytes: u64,
}

/// Class of lengths that differ by an eighth at most: the octave of the longest, and the eighth within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LengthClass(u32, u32);

impl LengthClass {
    pub(super) fn of(len: u32) -> Self {
        let last = len.max(2) - 1;
        let octave = last.ilog2();
        Self(octave, last >> octave.saturating_sub(3))
    }
}

/// Returns whether a one-block object is cold and its stripe too short to be sealed.
///
/// # Errors
/// When the object's profile cannot be parsed.
pub(crate) fn is_too_short(
    stripes: &Stripes,
    options: &SealOptions,
    object: &Object,
    now_ms: u64,
) -> Result<bool, StripeError> {
    if !Target::of(object, options).is_due(now_ms) {
        return Ok(false);
    }
    let k = stripes.code(&stripes.profiles().parse(&object.profile)?)?.k();
    Ok(object.size < k as u64 * u64::from(SHORTEST))
}

impl ColdData {
    /// Notes the wide stripes that are not sealed: another process is making them, or has left them unfinished.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn note_unsealed(&mut self, stripes: &Stripes) -> Result<(), StripeError> {
        let mut rows = Rows::with_prefix(keys::CHANGES);
        while let Some(page) = rows.next(stripes).await? {
            let ids: Vec<StripeId> = page.iter().filter_map(|row| keys::stripe_of(&row.key)).collect();
            let records = stripes.records_of(&ids).await?;
            let unsealed = records.iter().filter(|(_, of)| !of.members.is_empty() && !of.is_sealed());
            self.unsealed.extend(unsealed.map(|(id, _)| *id));
        }
        Ok(())
    }

    /// Reads the records of cold stripes, and adds their waiting data chunks to the pools. Returns how many it added.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn consider(
        &mut self,
        stripes: &Stripes,
        page: &[ColdStripe],
        options: &SealOptions,
        now_ms: u64,
    ) -> Result<usize, StripeError> {
        let rows_of =
            |key: fn(StripeId) -> bytes::Bytes| page.iter().map(|stripe| key(stripe.id)).collect::<Vec<_>>();
        let meta = stripes.meta();
        let records = meta.get_many(&rows_of(keys::stripe)).await?;
        let debts = meta.get_many(&rows_of(keys::debt)).await?;
        let intents = meta.get_many(&rows_of(|id| keys::intent(id.writer(), id.sequence()))).await?;
        let overdue_ms = now_ms.saturating_sub(options.patience.as_millis() as u64);
        let mut added = 0;
        for (((stripe, row), debt), intent) in page.iter().zip(records).zip(debts).zip(intents) {
            let Some(row) = row else { continue };
            let record: Stripe = row.record()?;
            if record.chunk_len < SHORTEST && stripe.target.profile.is_some() {
                self.short += 1;
                self.short_bytes += stripe.living_bytes;
                continue;
            }
            // Rows are still being switched to a group under its own intent. The intent of other stripes covers many
            // and says nothing.
            let is_being_named = intent.is_some() && record.packed_bytes > 0;
            if !is_being_named && !record.dead && record.members.is_empty() {
                added += self.add(stripes, stripe, &record, debt.is_some(), (options, overdue_ms))?;
            }
        }
        Ok(added)
    }

    /// Notes the wide stripes of a cold stripe, and counts its data chunks by their racks if they come under a profile.
    fn count_places(&mut self, stripes: &Stripes, data: &[Location], profile: Option<Profile>) {
        self.wide.extend(data.iter().filter_map(wide_of).map(|(wide, _)| wide));
        let Some(profile) = profile else { return };
        let in_racks = self.in_racks.entry(profile.to_string()).or_default();
        for site in data.iter().filter_map(|at| stripes.site(SiteId(at.site))) {
            *in_racks.entry(site.rack()).or_default() += 1;
        }
    }

    /// Counts a stripe and adds its waiting data chunks to a pool, unless it is worn, hot, or kept warm by reads. Those of
    /// a stripe in debt (`is_owed`) wait for its repair. Returns how many it added.
    fn add(
        &mut self,
        stripes: &Stripes,
        stripe: &ColdStripe,
        record: &Stripe,
        is_owed: bool,
        (options, overdue_ms): (&SealOptions, u64),
    ) -> Result<usize, StripeError> {
        let dead = record.packed_bytes.saturating_sub(stripe.living_bytes);
        let dead_share = dead as f64 / record.packed_bytes.max(1) as f64;
        let is_worn = dead_share > DEAD_SHARE;
        // Worn stripes are rewritten as a whole.
        self.changing.expect(record, if is_worn { 1.0 } else { dead_share });
        if is_worn || !record.copies.is_empty() {
            return Ok(0);
        }
        let data = &record.locations[..stripes.code_of(record)?.k()];
        let open = data.iter().filter(|at| wide_of(at).is_none()).count();
        let ColdTarget { profile, since_ms, by_age } = stripe.target;
        let is_read = |read: &BTreeSet<StripeId>| read.contains(&stripe.id);
        let is_warm = by_age && options.recently_read.as_ref().is_none_or(is_read);
        // What is sealed stays so.
        if (is_warm && open > 0) || (profile.is_none() && open == data.len()) {
            return Ok(0);
        }
        self.stripes += 1;
        self.in_debt += u64::from(is_owed);
        self.count_places(stripes, data, profile);
        let Some(profile) = profile.filter(|_| open > 0) else {
            self.count(data);
            self.cooled.extend((open == 0 && !record.dropped && !is_warm).then_some(stripe.id));
            return Ok(0);
        };
        let pool_key = PoolKey { profile: profile.to_string(), lens: LengthClass::of(record.chunk_len) };
        let waiting = open_partitions(stripes, stripe.id, data, dead_share, since_ms <= overdue_ms);
        let added = waiting.len();
        self.chunk_lens.insert(stripe.id, record.chunk_len);
        if is_owed {
            waiting.iter().for_each(|open| *self.owed.entry(open.site).or_default() += 1);
            return Ok(0);
        }
        self.pools.entry(pool_key).or_default().extend(waiting);
        Ok(added)
    }

    /// Says how many sealed stripes keep their parities because their data chunks are in too many wide stripes.
    pub(super) fn scattered_warning(&self) -> Option<String> {
        let count = self.scattered;
        let what =
            "sealed stripes keep their own parities, because their data chunks are in too many wide stripes";
        (count > 0).then(|| format!("{what}: {count}"))
    }

    /// Counts the cold stripes that have no partition in a pool any more, and forgets them.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn count_done(&mut self, stripes: &Stripes) -> Result<(), StripeError> {
        let waiting: BTreeSet<StripeId> =
            self.pools.values().flatten().map(|open| open.partition.0).collect();
        let is_done = |id: &StripeId| !waiting.contains(id);
        let done: Vec<StripeId> = self.chunk_lens.keys().copied().filter(is_done).collect();
        self.chunk_lens.retain(|id, _| waiting.contains(id));
        self.count_each(stripes, &done).await
    }

    /// Counts the cold stripes whose partitions wait.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn count_waiting(&mut self, stripes: &Stripes) -> Result<(), StripeError> {
        let waiting: Vec<StripeId> = std::mem::take(&mut self.chunk_lens).into_keys().collect();
        self.count_each(stripes, &waiting).await
    }

    /// Counts stripes by their records of now.
    async fn count_each(&mut self, stripes: &Stripes, ids: &[StripeId]) -> Result<(), StripeError> {
        for page in ids.chunks(PAGE) {
            for (_, record) in stripes.records_of(page).await? {
                self.count(&record.locations[..stripes.code_of(&record)?.k()]);
            }
        }
        Ok(())
    }

    /// Counts a stripe if all or some of its data chunks are in sealed wide stripes.
    fn count(&mut self, data: &[Location]) {
        let is_sealed = |at: &&Location| wide_of(at).is_some_and(|(wide, _)| !self.unsealed.contains(&wide));
        match data.iter().filter(is_sealed).count() {
            0 => {}
            sealed if sealed == data.len() => self.sealed += 1,
            _ => self.half_sealed += 1,
        }
    }

    /// Says how many stripes wait for repair.
    pub(super) fn debt_reason(&self) -> Option<String> {
        (self.in_debt > 0).then(|| format!("cold stripes that wait for repair: {}", self.in_debt))
    }
}

/// Returns the data chunks of a stripe that are in no wide stripe, as partitions that wait.
fn open_partitions(
    stripes: &Stripes,
    id: StripeId,
    data: &[Location],
    dead_share: f64,
    is_overdue: bool,
) -> Vec<OpenPartition> {
    let is_open = |(_, at): &(usize, &Location)| wide_of(at).is_none();
    let open: Vec<(usize, &Location)> = data.iter().enumerate().filter(is_open).collect();
    let partition = |&(index, at): &(usize, &Location)| {
        let site = SiteId(at.site);
        Some(OpenPartition {
            partition: (id, index as u8),
            site,
            rack: stripes.site(site)?.rack(),
            open_siblings: open.len(),
            dead_share,
            is_overdue,
        })
    };
    open.iter().filter_map(partition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_a_class_differ_by_an_eighth_at_most() {
        let mut first = SHORTEST;
        for len in SHORTEST..=1 << 18 {
            if LengthClass::of(len) != LengthClass::of(first) {
                first = len;
            }
            assert!(f64::from(first) / f64::from(len) >= 8.0 / 9.0, "{first} and {len}");
        }
        assert_ne!(LengthClass::of(64 << 20), LengthClass::of((64 << 20) + 1), "a whole partition");
    }
}
