//! Losses of wide stripes, as far as they show which stripes are endangered. A stripe that has dropped its parities
//! may lack a single chunk while its wide stripe lacks four, and can lose no more.
//!
//! The reverse index finds members by their own stripes. So when several sites are gone, all stripes with chunks
//! there are read once. They are read again when other sites are gone, or after a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::Stripe;
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes, own_locations, wide_of};

use crate::repair::work_list::endangered_placements;
use crate::rows::Rows;

/// Interval between two counts for the same sites.
const COUNT_EVERY: Duration = Duration::from_secs(600);

/// Number of chunks lacking in the worst of each stripe's wide stripes, for stripes where that is more than one.
pub(crate) type Ranks = BTreeMap<StripeId, usize>;

/// The ranks for the sites that are gone.
#[derive(Debug, Default)]
pub(crate) struct WideLosses {
    counted: Option<(BTreeSet<SiteId>, Instant)>,
    ranks: Ranks,
}

impl WideLosses {
    /// Counts the losses, unless they were counted for the same sites a short time ago.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn rank(
        &mut self,
        stripes: &Stripes,
        gone: &BTreeSet<SiteId>,
    ) -> Result<&Ranks, StripeError> {
        let now = stripes.runtime().now();
        let is_fresh = |(sites, at): &(BTreeSet<SiteId>, Instant)| sites == gone && now < *at + COUNT_EVERY;
        if !self.counted.as_ref().is_some_and(is_fresh) {
            let mut losses = LossCounts::default();
            if gone.len() > 1 {
                losses.read(stripes, gone).await?;
            }
            (self.ranks, self.counted) = (losses.ranks(), Some((gone.clone(), now)));
        }
        Ok(&self.ranks)
    }

    /// Forgets a stripe that is whole.
    pub(crate) fn forget(&mut self, stripe: StripeId) {
        self.ranks.remove(&stripe);
    }
}

/// Losses counted so far.
#[derive(Default)]
struct LossCounts {
    /// Lost chunks of wide stripes, including members.
    of_wide: BTreeMap<StripeId, usize>,
    /// Stripes with a lost chunk that only the given wide stripe can restore.
    depend: Vec<(StripeId, StripeId)>,
}

impl LossCounts {
    async fn read(&mut self, stripes: &Stripes, gone: &BTreeSet<SiteId>) -> Result<(), StripeError> {
        for placement in endangered_placements(stripes, gone).await? {
            let mut rows = Rows::with_prefix(&keys::reverses(placement.number));
            while let Some(page) = rows.next(stripes).await? {
                let ids: Vec<StripeId> =
                    page.iter().filter_map(|row| keys::reverse_stripe(&row.key)).collect();
                let keys: Vec<_> = ids.iter().map(|&id| keys::stripe(id)).collect();
                for (id, row) in ids.into_iter().zip(stripes.meta().get_many(&keys).await?) {
                    let Some(row) = row else { continue };
                    self.add(id, &row.record()?, gone);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, id: StripeId, record: &Stripe, gone: &BTreeSet<SiteId>) {
        let is_wide = !record.members.is_empty();
        for (_, at) in own_locations(record).filter(|(_, at)| gone.contains(&SiteId(at.site))) {
            let wide = if is_wide { Some(id) } else { wide_of(at).map(|(wide, _)| wide) };
            let Some(wide) = wide else { continue };
            *self.of_wide.entry(wide).or_default() += 1;
            if is_wide || record.dropped {
                self.depend.push((id, wide));
            }
        }
    }

    fn ranks(&self) -> Ranks {
        let mut ranks = Ranks::new();
        for (stripe, wide) in &self.depend {
            let lost = self.of_wide[wide];
            if lost > 1 {
                let rank = ranks.entry(*stripe).or_default();
                *rank = lost.max(*rank);
            }
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use striate_meta::records::{Location, Member};

    use super::*;

    fn id(number: u64) -> StripeId {
        StripeId::new(1, number)
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

    #[test]
    fn members_are_as_endangered_as_their_wide_stripe() {
        let gone = BTreeSet::from([1, 2, 3, 4].map(SiteId));
        let mut losses = LossCounts::default();
        // Wide stripe 100 lacks three members and a parity, 101 lacks one member.
        losses.add(id(1), &own(&[(1, 100), (9, 101)], true), &gone);
        losses.add(id(2), &own(&[(2, 100), (8, 101)], true), &gone);
        losses.add(id(3), &own(&[(3, 101), (7, 101)], true), &gone);
        // This stripe has its own parities, but the wide stripe lacks its chunk all the same.
        losses.add(id(4), &own(&[(4, 100), (6, 101)], false), &gone);
        let at = |site: u32| Location { site, ..Location::default() };
        // The wide stripe's copies of its members' locations are not counted again.
        let wide = Stripe {
            members: vec![Member::default(); 2],
            locations: vec![at(1), at(2), at(3)],
            ..Stripe::default()
        };
        losses.add(id(100), &wide, &gone);
        assert_eq!(losses.ranks(), Ranks::from([(id(1), 4), (id(2), 4), (id(100), 4)]));
    }
}
