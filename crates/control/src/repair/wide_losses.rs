//! Losses of wide stripes, as far as they show which stripes are endangered. A stripe that has dropped its parities
//! may lack a single chunk while its wide stripe lacks four, and can lose no more. It is then as urgent as one that lacks
//! all the chunks that its own code can lose ([`urgency_in_wide`]).
//!
//! The reverse index finds members by their own stripes, and the record of a wide stripe says where all its members are.
//! So when several sites are gone, all stripes with chunks there are read once, and the wide stripes that they need; the
//! most endangered are kept. They are read again when other sites are gone, after a time, and when those that were kept
//! are whole.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{Location, Stripe};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes, own_locations, wide_of};

use crate::repair::work_list::{A_CHUNK, Placement, endangered_placements};
use crate::rows::Rows;

/// Interval between two counts for the same sites.
const COUNT_EVERY: Duration = Duration::from_secs(600);
/// Maximum number of stripes with a rank, which take less than a megabyte.
const MOST_RANKED: usize = 8_192;
/// Placements whose stripes are read concurrently.
const READ_AT_ONCE: usize = 16;
/// Records read together: those of wide stripes have up to ten kilobytes.
const PAGE: usize = 100;

/// Urgency of each stripe by the worst of its wide stripes, for stripes where that is more than that of one lost chunk.
pub(crate) type Ranks = BTreeMap<StripeId, usize>;

/// The ranks of the most endangered stripes.
#[derive(Debug, Default)]
pub(crate) struct WideLosses {
    /// The sites that were gone at the last count, and when it ended.
    counted: Option<(BTreeSet<SiteId>, Instant)>,
    ranks: Ranks,
    /// Whether stripes were left out.
    is_cut: bool,
}

impl WideLosses {
    /// Counts the losses.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn count(stripes: &Stripes, gone: &BTreeSet<SiteId>) -> Result<Self, StripeError> {
        let found = Mutex::new(MostEndangered::default());
        // No wide stripe has two chunks on one site.
        if gone.len() > 1 {
            let placements = endangered_placements(stripes, gone).await?;
            let read = |placement: Placement| read_placement(stripes, placement.number, gone, &found);
            let mut reading = stream::iter(placements).map(read).buffer_unordered(READ_AT_ONCE);
            while let Some(outcome) = reading.next().await {
                outcome?;
            }
        }
        let MostEndangered { stripes: most, is_cut } = found.into_inner();
        // The greater rank of a stripe comes later.
        let ranks = most.into_iter().map(|(lost, stripe)| (stripe, lost)).collect();
        Ok(Self { counted: Some((gone.clone(), stripes.runtime().now())), ranks, is_cut })
    }

    /// Counts the losses if that is due, and returns the ranks.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn rank(
        &mut self,
        stripes: &Stripes,
        gone: &BTreeSet<SiteId>,
    ) -> Result<&Ranks, StripeError> {
        if self.is_due(gone, stripes.runtime().now()) {
            *self = Self::count(stripes, gone).await?;
        }
        Ok(&self.ranks)
    }

    /// Returns whether the losses are to be counted: other sites are gone, the last count is old, or all stripes that it
    /// has kept are whole.
    pub(crate) fn is_due(&self, gone: &BTreeSet<SiteId>, now: Instant) -> bool {
        let is_fresh = |(sites, at): &(BTreeSet<SiteId>, Instant)| sites == gone && now < *at + COUNT_EVERY;
        let is_used_up = self.is_cut && self.ranks.is_empty();
        is_used_up || !self.counted.as_ref().is_some_and(is_fresh)
    }

    /// Returns whether a count would find no other sites gone.
    pub(crate) fn is_for(&self, gone: &BTreeSet<SiteId>) -> bool {
        gone.len() < 2 || self.counted.as_ref().is_some_and(|(sites, _)| sites == gone)
    }

    /// Returns the ranks of the last count; none if one of its sites is back.
    pub(crate) fn ranks(&self, gone: &BTreeSet<SiteId>) -> Ranks {
        let holds = self.counted.as_ref().is_some_and(|(sites, _)| sites.is_subset(gone));
        if holds { self.ranks.clone() } else { Ranks::new() }
    }

    /// Forgets a stripe that is whole.
    pub(crate) fn forget(&mut self, stripe: StripeId) {
        self.ranks.remove(&stripe);
    }
}

/// The most endangered stripes found so far.
#[derive(Default)]
struct MostEndangered {
    /// Their ranks and names.
    stripes: BTreeSet<(usize, StripeId)>,
    /// Whether stripes were left out.
    is_cut: bool,
}

impl MostEndangered {
    fn extend(&mut self, ranks: Vec<(StripeId, usize)>) {
        for (stripe, urgency) in ranks.into_iter().filter(|&(_, urgency)| urgency > A_CHUNK) {
            self.stripes.insert((urgency, stripe));
            if self.stripes.len() > MOST_RANKED {
                self.stripes.pop_first();
                self.is_cut = true;
            }
        }
    }
}

/// Adds the ranks of a placement's stripes.
async fn read_placement(
    stripes: &Stripes,
    number: u64,
    gone: &BTreeSet<SiteId>,
    found: &Mutex<MostEndangered>,
) -> Result<(), StripeError> {
    let mut rows = Rows::with_prefix(&keys::reverses(number));
    while let Some(page) = rows.next(stripes).await? {
        let ids: Vec<StripeId> = page.iter().filter_map(|row| keys::reverse_stripe(&row.key)).collect();
        for ids in ids.chunks(PAGE) {
            let ranks = ranks_of(stripes, ids, gone).await?;
            found.lock().extend(ranks);
        }
    }
    Ok(())
}

/// Returns the urgency of these stripes by each wide stripe that one of them needs.
async fn ranks_of(
    stripes: &Stripes,
    ids: &[StripeId],
    gone: &BTreeSet<SiteId>,
) -> Result<Vec<(StripeId, usize)>, StripeError> {
    let mut needed_by: BTreeMap<StripeId, Vec<(StripeId, usize)>> = BTreeMap::new();
    for (id, record) in stripes.records_of(ids).await? {
        // One that cannot be read does not keep the others from being ranked.
        let Ok(code) = stripes.code_of(&record) else { continue };
        for wide in needed_wide(id, &record, gone) {
            needed_by.entry(wide).or_default().push((id, code.tolerance()));
        }
    }
    let (wide, mut ranks): (Vec<StripeId>, _) = (needed_by.keys().copied().collect(), Vec::new());
    for page in wide.chunks(PAGE) {
        for (id, record) in stripes.records_of(page).await? {
            let Ok(code) = stripes.code_of(&record) else { continue };
            let needed = &needed_by[&id];
            let least = needed.iter().map(|&(_, tolerance)| tolerance).min().unwrap_or_default();
            let urgency = urgency_in_wide(lost_chunks(&record, gone), least, code.tolerance());
            ranks.extend(needed.iter().map(|&(stripe, _)| (stripe, urgency)));
        }
    }
    Ok(ranks)
}

/// Returns the urgency of a stripe whose own code can lose `own_tolerance` chunks, and of which only a wide stripe that can
/// lose `tolerance` chunks, and lacks `lost` of them, restores some: as if it lacked so many that as many more may be
/// lost. Of equals, those come first whose wide stripe lacks more.
fn urgency_in_wide(lost: usize, own_tolerance: usize, tolerance: usize) -> usize {
    (lost + own_tolerance).saturating_sub(tolerance) * A_CHUNK + lost.saturating_sub(1)
}

/// Returns the wide stripes that alone can restore lost chunks of this stripe; a wide stripe restores its own.
fn needed_wide(id: StripeId, record: &Stripe, gone: &BTreeSet<SiteId>) -> BTreeSet<StripeId> {
    let wide = |at: &Location| match record.members.is_empty() {
        true => wide_of(at).map(|(wide, _)| wide).filter(|_| record.dropped),
        false => Some(id),
    };
    let lost = own_locations(record).filter(|(_, at)| gone.contains(&SiteId(at.site)));
    lost.filter_map(|(_, at)| wide(at)).collect()
}

/// Returns how many chunks a wide stripe lacks, including members.
fn lost_chunks(wide: &Stripe, gone: &BTreeSet<SiteId>) -> usize {
    wide.locations.iter().filter(|at| gone.contains(&SiteId(at.site))).count()
}

#[cfg(test)]
mod tests {
    use striate_meta::records::Member;
    use striate_runtime::run_in_virtual_time;

    use super::*;

    fn id(number: u64) -> StripeId {
        StripeId::new(1, number)
    }

    fn sites(numbers: &[u32]) -> BTreeSet<SiteId> {
        numbers.iter().copied().map(SiteId).collect()
    }

    /// A stripe with chunks on these sites, each a member of a wide stripe.
    fn own(chunks: &[(u32, u64)], dropped: bool) -> Stripe {
        let at = |&(site, wide): &(u32, u64)| Location {
            site,
            wide: id(wide).to_bytes().to_vec().into(),
            ..Location::default()
        };
        Stripe { locations: chunks.iter().map(at).collect(), dropped, ..Stripe::default() }
    }

    /// A wide stripe of which the first two chunks on these sites are members.
    fn wide(chunks: &[u32]) -> Stripe {
        let at = |&site: &u32| Location { site, ..Location::default() };
        Stripe {
            members: vec![Member::default(); 2],
            locations: chunks.iter().map(at).collect(),
            ..Stripe::default()
        }
    }

    #[test]
    fn stripes_need_the_wide_ones_of_lost_chunks_that_their_own_parities_do_not_restore() {
        let gone = sites(&[1, 2, 3, 4]);
        let needed = |record: &Stripe| needed_wide(id(7), record, &gone);
        assert_eq!(needed(&own(&[(1, 100), (9, 101)], true)), BTreeSet::from([id(100)]));
        assert_eq!(needed(&own(&[(1, 100), (2, 101)], true)), BTreeSet::from([id(100), id(101)]));
        assert_eq!(needed(&own(&[(1, 100), (9, 101)], false)), BTreeSet::new());
        assert_eq!(needed(&wide(&[8, 9, 3])), BTreeSet::from([id(7)]));
        assert_eq!(needed(&wide(&[1, 2, 9])), BTreeSet::new(), "its members have stripes of their own");
        assert_eq!(lost_chunks(&wide(&[1, 9, 3]), &gone), 2);
    }

    #[test]
    fn the_most_endangered_stripes_are_kept() {
        let mut found = MostEndangered::default();
        found.extend(vec![(id(1), A_CHUNK), (id(2), 4 * A_CHUNK)]);
        assert!(found.stripes == BTreeSet::from([(4 * A_CHUNK, id(2))]) && !found.is_cut);
        found.extend((3..=MOST_RANKED as u64 + 3).map(|number| (id(number), 2 * A_CHUNK)).collect());
        found.extend(vec![(id(1), 3 * A_CHUNK)]);
        assert!(found.stripes.len() == MOST_RANKED && found.is_cut);
        let has = |lost: usize, stripe: StripeId| found.stripes.contains(&(lost * A_CHUNK, stripe));
        assert!(has(4, id(2)) && has(3, id(1)));
    }

    /// The wide code can lose four chunks.
    #[test]
    fn what_counts_is_how_many_more_chunks_may_be_lost() {
        let (one_lost, two_lost) = (A_CHUNK, 2 * A_CHUNK);
        let by_wide = |lost: usize| urgency_in_wide(lost, 2, 4);
        assert!(by_wide(4) >= two_lost, "neither it nor a stripe of rs(4,2) that lacks two can lose another");
        assert!((one_lost..two_lost).contains(&by_wide(3)) && by_wide(3) > one_lost);
        assert!(by_wide(2) < one_lost && by_wide(1) < by_wide(2), "two more may be lost, or three");
        // The own code can lose as many.
        assert!(urgency_in_wide(2, 4, 4) > two_lost && urgency_in_wide(1, 4, 4) == one_lost);
    }

    #[test]
    fn ranks_hold_while_their_sites_are_gone_and_are_counted_again_when_they_are_used_up() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (now, gone, more) = (runtime.now(), sites(&[1, 2]), sites(&[1, 2, 3]));
            let counted = Some((gone.clone(), now));
            let mut losses = WideLosses { counted, ranks: Ranks::from([(id(1), 2)]), is_cut: true };
            assert!(losses.is_for(&gone) && !losses.is_due(&gone, now));
            assert!(losses.is_due(&gone, now + COUNT_EVERY));
            assert!(!losses.is_for(&more) && losses.is_due(&more, now));
            assert_eq!(losses.ranks(&more), losses.ranks);
            assert_eq!(losses.ranks(&sites(&[1, 3])), Ranks::new(), "one of the lost sites is back");
            losses.forget(id(1));
            assert!(losses.is_due(&gone, now));
        });
    }
}
