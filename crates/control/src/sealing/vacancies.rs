//! Vacant places in sealed wide stripes: those of dead members, and holes. A cold partition in the right rack that is
//! due for the same profile takes one: the parities change once, and the wide stripe stays as full as before.
//!
//! Partitions of the members' length come first. Shorter ones, which wait for others of their own length, may take what
//! is then still vacant: the place counts as zeros behind their ends, as a hole does as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use striate_core::{SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::{LeavingRacks, OpenPartition};
use striate_stripe::{ExchangeOutcome, OpenedStripe, StripeError, Stripes, is_hole};

use super::cold::{ColdData, LengthClass, PoolKey};
use super::dead::wide_of_dead;
use super::{CountCallback, advance};

/// A partition that takes a place has at least the fraction 1 / 2^this of the members' length: each change of a place
/// rewrites whole parities.
const SHORTER_BY_OCTAVES: u32 = 2;

/// Lengths of the partitions that take places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    /// Those of the members' class, as far as they are not longer than the parities.
    Alike,
    /// Shorter ones.
    Shorter,
}

impl Lengths {
    /// Returns the pools of partitions that may take places in a wide stripe, the longest first.
    fn pools<'a>(
        self,
        pools: &'a mut BTreeMap<PoolKey, Vec<OpenPartition>>,
        wide: &Stripe,
    ) -> Vec<&'a mut Vec<OpenPartition>> {
        let key = |len: u32| PoolKey { profile: wide.profile.clone(), lens: LengthClass::of(len) };
        let own_key = key(wide.chunk_len);
        match self {
            Self::Alike => pools.get_mut(&own_key).into_iter().collect(),
            Self::Shorter => {
                let shortest = key(wide.chunk_len >> SHORTER_BY_OCTAVES);
                pools.range_mut(shortest..own_key).rev().map(|(_, pool)| pool).collect()
            }
        }
    }
}

/// Gives vacant places, including those of `dead` stripes, to cold partitions of these lengths, which leave their pools.
/// Calls `tell` after each wide stripe with the number of places taken so far.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn fill_vacancies(
    stripes: &Stripes,
    cold: &mut ColdData,
    dead: &[OpenedStripe],
    lengths: Lengths,
    tell: CountCallback<'_>,
) -> Result<(), StripeError> {
    let mut wide = cold.wide.clone();
    wide.extend(wide_of_dead(dead));
    let dead: BTreeSet<StripeId> = dead.iter().map(|stripe| stripe.id).collect();
    let mut places_taken = 0;
    for id in wide {
        if tell(places_taken).is_break() {
            return Ok(());
        }
        let Some(opened) = stripes.find(id).await? else { continue };
        let ColdData { pools, chunk_lens, set_aside, .. } = &mut *cold;
        let mut pools = lengths.pools(pools, &opened.record);
        pools.retain(|pool| !pool.is_empty());
        if opened.record.is_sealed() && !pools.is_empty() {
            let mut candidates = Candidates { pools, chunk_lens, set_aside };
            let filled = fill(stripes, opened, &mut candidates, &dead).await?;
            if filled > 0 {
                cold.filled.insert(id);
                // The new members may drop their parities.
                advance(stripes, id).await?;
            }
            places_taken += filled;
        }
    }
    let _ = tell(places_taken);
    Ok(())
}

/// Fills the vacant places of one wide stripe.
async fn fill(
    stripes: &Stripes,
    mut wide: OpenedStripe,
    candidates: &mut Candidates<'_>,
    dead: &BTreeSet<StripeId>,
) -> Result<u64, StripeError> {
    let is_vacant = |position: &usize| {
        let member = wide.record.members[*position].stripe_id();
        is_hole(&wide.record, *position) || member.is_some_and(|id| dead.contains(&id))
    };
    let vacant: Vec<usize> = (0..wide.code.k()).filter(is_vacant).collect();
    let mut places_taken = 0;
    for position in vacant {
        while let Some((pool, at)) = candidates.find(stripes, &wide, position) {
            let (stripe, index) = candidates.pools[pool][at].partition;
            match stripes.place_in_wide(wide.id, position, (stripe, index.into())).await? {
                ExchangeOutcome::Done => {
                    candidates.pools[pool].swap_remove(at);
                    places_taken += 1;
                    tracing::info!(wide = %wide.id, position, %stripe, "a partition has taken a vacant place");
                    break;
                }
                ExchangeOutcome::NotNow => return Ok(places_taken),
                ExchangeOutcome::Unfit => candidates.set_aside(pool, at),
            }
        }
        match stripes.find(wide.id).await? {
            Some(now) => wide = now,
            None => break,
        }
    }
    Ok(places_taken)
}

/// Partitions that may take places in a wide stripe.
struct Candidates<'a> {
    /// Their pools, the longest first.
    pools: Vec<&'a mut Vec<OpenPartition>>,
    /// Chunk lengths of their stripes.
    chunk_lens: &'a BTreeMap<StripeId, u32>,
    /// Partitions that have left their pools and still wait, counted by site.
    set_aside: &'a mut HashMap<SiteId, usize>,
}

impl Candidates<'_> {
    /// Returns a partition for a place, by its pool and its index there. It is of the first pool that has one: the one
    /// whose stripe has the fewest waiting partitions, so that the stripe is sealed soon.
    fn find(&self, stripes: &Stripes, wide: &OpenedStripe, position: usize) -> Option<(usize, usize)> {
        let is_short_enough = |candidate: &OpenPartition| {
            let len = self.chunk_lens.get(&candidate.partition.0);
            len.is_some_and(|&len| len <= wide.record.chunk_len)
        };
        let stays = LeavingRacks::default();
        let mut admits = once_a_site(|site| stripes.admits_in_wide(wide, position, site, &stays));
        self.pools.iter().enumerate().find_map(|(number, pool)| {
            let at = best_of(pool, |candidate| is_short_enough(candidate) && admits(candidate.site))?;
            Some((number, at))
        })
    }

    /// Takes a partition out of its pool that has turned out to be unfit: the next look sees why.
    fn set_aside(&mut self, pool: usize, at: usize) {
        let unfit = self.pools[pool].swap_remove(at);
        *self.set_aside.entry(unfit.site).or_default() += 1;
    }
}

/// Makes a costly question about sites be asked once for each: many partitions share a site.
fn once_a_site(mut ask: impl FnMut(SiteId) -> bool) -> impl FnMut(SiteId) -> bool {
    let mut known = HashMap::new();
    move |site| *known.entry(site).or_insert_with(|| ask(site))
}

/// Returns the first of the partitions that fit and whose stripe has the fewest waiting partitions. Does not ask about
/// those that cannot be it.
fn best_of(pool: &[OpenPartition], mut fits: impl FnMut(&OpenPartition) -> bool) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    for (at, candidate) in pool.iter().enumerate() {
        let is_better = best.is_none_or(|(_, fewest)| candidate.open_siblings < fewest);
        if is_better && fits(candidate) {
            best = Some((at, candidate.open_siblings));
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use striate_core::RackId;

    use super::*;

    fn partition((number, (site, open_siblings)): (u64, (u32, usize))) -> OpenPartition {
        OpenPartition {
            partition: (StripeId::new(1, number), 0),
            site: SiteId(site),
            rack: RackId("a".to_owned()),
            open_siblings,
            dead_share: 0.0,
            is_overdue: false,
        }
    }

    #[test]
    fn the_first_partition_of_a_stripe_with_fewest_waiting_is_found_and_each_site_asked_about_once() {
        let pool = [(1, 3), (2, 5), (1, 2), (3, 1), (3, 1), (4, 2), (5, 2)];
        let pool: Vec<OpenPartition> = (0..).zip(pool).map(partition).collect();
        let found = |refused: &[u32]| {
            let mut asked = Vec::new();
            let mut admits = once_a_site(|site| {
                asked.push(site.0);
                !refused.contains(&site.0)
            });
            let best = best_of(&pool, |candidate| admits(candidate.site));
            drop(admits);
            (best, asked)
        };
        assert_eq!(found(&[]), (Some(3), vec![1, 3]));
        assert_eq!(found(&[3]), (Some(2), vec![1, 3]));
        assert_eq!(found(&[1, 3]), (Some(5), vec![1, 2, 3, 4]));
        assert_eq!(found(&[1, 2, 3, 4, 5]), (None, vec![1, 2, 3, 4, 5]));
    }
}
