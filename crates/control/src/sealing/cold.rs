//! What is cold of a bucket: the stripes that hold its objects' bytes, and their partitions that are in no wide stripe.
//!
//! Partitions of packed stripes and data chunks of the stripes of large objects are sealed alike: both keep their names and places, so
//! that no row of an object, a block or a part changes. Members of one wide stripe should be about as long as each other, since the
//! shorter ones count as zeros behind their ends: a pool has the partitions that go under one profile and whose lengths differ by an
//! eighth at most.

use std::collections::{BTreeMap, BTreeSet};

use striate_core::{Profile, SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{Location, Object, Stripe, object::Body};
use striate_plan::OpenPartition;
use striate_stripe::{StripeError, Stripes, wide_of};

use super::SealOptions;
use super::balance::InRacks;
use super::local_parities::Changing;
use super::target::{Living, Target};
use crate::object_stripes::stripes_of;
use crate::rows::Rows;

/// Records of stripes read together.
const PAGE: usize = 300;
/// Shorter chunks are not sealed: their rows would cost more than their parities. The packer makes partitions of small objects.
const SHORTEST: u32 = 64 << 10;

/// Partitions that may share a wide stripe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Alike {
    /// The text of the wide profile.
    pub(super) profile: String,
    /// Their lengths.
    pub(super) lens: LengthClass,
}

/// A stripe that is cold: the wide profile that its data chunks come under, and since when it is cold.
#[derive(Clone, Copy)]
struct ColdStripe {
    id: StripeId,
    living_bytes: u64,
    profile: Profile,
    since_ms: u64,
}

/// The cold part of a bucket.
#[derive(Default)]
pub(super) struct Cold {
    /// Partitions that are in no wide stripe, by those that may share one.
    pub(super) pools: BTreeMap<Alike, Vec<OpenPartition>>,
    /// Data chunks that are cold, sealed or not, by profile and rack.
    pub(super) in_racks: BTreeMap<String, InRacks>,
    /// The lengths in bytes of the chunks of cold stripes.
    pub(super) chunk_lens: BTreeMap<StripeId, u32>,
    /// Wide stripes that some are in.
    pub(super) wide: BTreeSet<StripeId>,
    /// How much of the members of wide stripes is expected to change.
    pub(super) changing: Changing,
    /// Cold stripes that have parities although all their data chunks are in wide stripes: they were hot.
    pub(super) cooled: Vec<StripeId>,
    /// Objects that are cold, and not in stripes that are sealed: too small, and not packed.
    pub(super) small_objects: u64,
    /// Their bytes.
    pub(super) small_bytes: u64,
}

/// Lengths that differ by an eighth at most: the octave of the longest, and its eighth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LengthClass(u32, u32);

impl LengthClass {
    pub(super) fn of(len: u32) -> Self {
        let last = len.max(2) - 1;
        let octave = last.ilog2();
        Self(octave, last >> octave.saturating_sub(3))
    }
}

impl Cold {
    /// Looks through the rows of a bucket's objects, and the records of the stripes that they name.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn find(
        stripes: &Stripes,
        bucket: &str,
        options: &SealOptions,
    ) -> Result<Self, StripeError> {
        let now_ms = stripes.runtime().wall_time().as_millis() as u64;
        let mut cold = Self::default();
        let living = cold.walk(stripes, bucket, options, now_ms).await?;
        let is_cold = |(id, of): (StripeId, Living)| {
            let (profile, since_ms) = of.sealed_as(options, now_ms)?;
            Some(ColdStripe { id, living_bytes: of.bytes, profile, since_ms })
        };
        let of_cold: Vec<ColdStripe> = living.into_iter().filter_map(is_cold).collect();
        let overdue_ms = now_ms.saturating_sub(options.patience.as_millis() as u64);
        for page in of_cold.chunks(PAGE) {
            cold.look_at(stripes, page, options, overdue_ms).await?;
        }
        Ok(cold)
    }

    /// What lives in each stripe that the objects of a bucket name.
    async fn walk(
        &mut self,
        stripes: &Stripes,
        bucket: &str,
        options: &SealOptions,
        now_ms: u64,
    ) -> Result<BTreeMap<StripeId, Living>, StripeError> {
        let mut living: BTreeMap<StripeId, Living> = BTreeMap::new();
        let mut rows = Rows::with_prefix(&keys::objects(bucket));
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let object: Object = row.record()?;
                let Some(body) = &object.body else { continue };
                let target = Target::of(&object, options);
                let is_cold = target.is_cold(now_ms);
                // What is not cold keeps the others warm that share its stripe; large objects share none.
                if !is_cold && !matches!(body, Body::Extent(_)) {
                    continue;
                }
                let mut add = |id: StripeId, len: u32| {
                    let of = living.entry(id).and_modify(|of| of.add(len, &object, target));
                    of.or_insert_with(|| Living::new(len, &object, target));
                };
                stripes_of(stripes, body, &mut add).await?;
                if is_cold && matches!(body, Body::Blocks(_)) && object.size < u64::from(SHORTEST) {
                    self.small_objects += 1;
                    self.small_bytes += object.size;
                }
            }
        }
        Ok(living)
    }

    async fn look_at(
        &mut self,
        stripes: &Stripes,
        page: &[ColdStripe],
        options: &SealOptions,
        overdue_ms: u64,
    ) -> Result<(), StripeError> {
        let rows_of =
            |key: fn(StripeId) -> bytes::Bytes| page.iter().map(|of| key(of.id)).collect::<Vec<_>>();
        let meta = stripes.meta();
        let records = meta.get_many(&rows_of(keys::stripe)).await?;
        let debts = meta.get_many(&rows_of(keys::debt)).await?;
        let intents = meta.get_many(&rows_of(|id| keys::intent(id.writer(), id.sequence()))).await?;
        for (((of, row), debt), intent) in page.iter().zip(records).zip(debts).zip(intents) {
            let (Some(row), None, None) = (row, debt, intent) else { continue };
            let record: Stripe = row.record()?;
            if record.chunk_len >= SHORTEST && !record.dead && record.members.is_empty() {
                self.add(stripes, of, &record, (options, overdue_ms))?;
            }
        }
        Ok(())
    }

    /// Takes note of a stripe's data chunks, unless it is worn, or hot.
    fn add(
        &mut self,
        stripes: &Stripes,
        &ColdStripe { id, living_bytes, profile, since_ms }: &ColdStripe,
        record: &Stripe,
        (options, overdue_ms): (&SealOptions, u64),
    ) -> Result<(), StripeError> {
        let dead = record.packed_bytes.saturating_sub(living_bytes);
        let is_worn = dead as f64 > options.dead_share * record.packed_bytes as f64;
        let dead_share = dead as f64 / record.packed_bytes.max(1) as f64;
        // Worn stripes are rewritten as a whole.
        self.changing.expect(record, if is_worn { 1.0 } else { dead_share });
        if is_worn || !record.copies.is_empty() {
            return Ok(());
        }
        let k = stripes.code(&stripes.profiles().parse(&record.profile)?)?.k();
        let data = &record.locations[..k];
        self.chunk_lens.insert(id, record.chunk_len);
        self.wide.extend(data.iter().filter_map(wide_of).map(|(wide, _)| wide));
        let in_racks = self.in_racks.entry(profile.to_string()).or_default();
        for site in data.iter().filter_map(|at| stripes.site(SiteId(at.site))) {
            *in_racks.entry(site.rack()).or_default() += 1;
        }
        let free = |(_, at): &(usize, &Location)| wide_of(at).is_none();
        let free: Vec<(usize, &Location)> = data.iter().enumerate().filter(free).collect();
        if free.is_empty() && !record.dropped {
            self.cooled.push(id);
        }
        let waiting = free.iter().filter_map(|&(index, at)| {
            let site = SiteId(at.site);
            Some(OpenPartition {
                partition: (id, index as u8),
                site,
                rack: stripes.site(site)?.rack(),
                open_siblings: free.len(),
                dead_share,
                is_overdue: since_ms <= overdue_ms,
            })
        });
        let alike = Alike { profile: profile.to_string(), lens: LengthClass::of(record.chunk_len) };
        self.pools.entry(alike).or_default().extend(waiting);
        Ok(())
    }

    /// How many cold stripes are in wide stripes with all their data chunks, and with some.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn count(&self, stripes: &Stripes) -> Result<(u64, u64), StripeError> {
        let (mut sealed, mut half_sealed) = (0, 0);
        let ids: Vec<StripeId> = self.chunk_lens.keys().copied().collect();
        for page in ids.chunks(PAGE) {
            let keys: Vec<_> = page.iter().map(|&id| keys::stripe(id)).collect();
            for row in stripes.meta().get_many(&keys).await?.into_iter().flatten() {
                let record: Stripe = row.record()?;
                let k = stripes.code(&stripes.profiles().parse(&record.profile)?)?.k();
                match record.locations[..k].iter().filter(|at| wide_of(at).is_some()).count() {
                    0 => {}
                    claimed if claimed == k => sealed += 1,
                    _ => half_sealed += 1,
                }
            }
        }
        Ok((sealed, half_sealed))
    }
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
