//! The work list of repair: stripes that may have lost chunks, most endangered first (EC-Store §V-C).
//!
//! It has two sources: stripes in debt (writes that missed a site, damage that reads, scrub and verify found), and
//! stripes with chunks on sites that are gone, by the reverse index. A stripe is as urgent as the chunks that it is known
//! to lack make it, or as few more as its wide stripe can lose ([`crate::repair::wide_losses`]). The service takes a
//! bounded list, repairs it, and takes the next one: repaired stripes are no longer found.
//!
//! Cost: one row for each stripe in debt, together with its record, and one for each stripe of the endangered
//! placements, as far as these are walked: a bounded list skips placements that can add nothing to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use striate_core::{SiteId, StripeId};
use striate_meta::{Row, keys, records};
use striate_stripe::{StripeError, Stripes};

use crate::repair::absence::AbsentSites;
use crate::repair::wide_losses::Ranks;
use crate::rows::Rows;

/// Urgency of a stripe for each chunk that it is known to lack.
pub(crate) const A_CHUNK: usize = 1_000;
/// Placements whose stripes are scanned concurrently.
const WALKED_AT_ONCE: usize = 16;

/// Which stripes a list holds.
pub(crate) enum ListScope<'a> {
    /// All stripes.
    All,
    /// The most endangered stripes.
    Most(ListLimits<'a>),
}

/// Bounds and filters of a list.
pub(crate) struct ListLimits<'a> {
    /// Maximum number of stripes.
    pub(crate) count: usize,
    /// Stripes being repaired, which are left out.
    pub(crate) in_work: &'a BTreeSet<StripeId>,
    /// Returns whether a stripe is put off, and so left out.
    pub(crate) put_off: &'a (dyn Fn(StripeId) -> bool + Sync),
    /// Sites that take chunks. Stripes of placements to which none of them can be added are left out.
    pub(crate) takers: &'a BTreeSet<SiteId>,
    /// Whether all stripes are to be counted.
    pub(crate) total: bool,
}

/// A work list.
#[derive(Debug, Default)]
pub(crate) struct WorkList {
    /// The stripes, most endangered first, and whether each is in debt and must be examined.
    pub(crate) stripes: Vec<(StripeId, bool)>,
    /// Number of stripes found, listed or not. Without `total`, only those walked.
    pub(crate) found: u64,
    /// Stripes found that are put off, and those of placements for which no other site takes chunks.
    pub(crate) waiting: u64,
}

/// A set of sites with at least one that is gone.
pub(crate) struct Placement {
    pub(crate) number: u64,
    lost: usize,
    /// Sites of the set that are not gone.
    kept: BTreeSet<SiteId>,
}

/// A list under construction.
struct ListBuilder<'a> {
    extent: ListScope<'a>,
    ranks: &'a Ranks,
    /// Listed stripes: urgency, more first; stripe; whether it is in debt.
    listed: BTreeSet<(Reverse<usize>, StripeId, bool)>,
    /// Listed stripes that are in debt.
    in_debt: BTreeSet<StripeId>,
    list: WorkList,
}

impl WorkList {
    /// Takes the list. A stripe with a rank is at least as urgent as the rank says.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn take(
        stripes: &Stripes,
        absent: &AbsentSites,
        ranks: &Ranks,
        extent: ListScope<'_>,
    ) -> Result<Self, StripeError> {
        let mut making = ListBuilder::new(ranks, extent);
        let mut rows = Rows::with_prefix(keys::DEBTS);
        while let Some(page) = rows.next(stripes).await? {
            making.add_debts(stripes, &page, &absent.gone).await?;
        }
        // The placements of these stripes may not be walked.
        ranks.iter().for_each(|(&stripe, &urgency)| making.add(stripe, urgency, false));
        // A store of many sites has many placements with few stripes each: most of the time goes into round trips.
        let placements = endangered_placements(stripes, &absent.gone).await?;
        let begin = |placement: Placement| async move {
            let mut rows = Rows::with_prefix(&keys::reverses(placement.number));
            let first = rows.next(stripes).await;
            (placement, first, rows)
        };
        let mut placements = placements.into_iter().peekable();
        while placements.peek().is_some_and(|next| !making.is_full_for(next.lost)) {
            // Finish all first pages before walking on: a pending request that is not polled could hold the
            // connection that the walk needs.
            let begun = join_all(placements.by_ref().take(WALKED_AT_ONCE).map(begin)).await;
            for (placement, first, rows) in begun {
                if !making.is_full_for(placement.lost) {
                    making.walk(stripes, &placement, first?, rows).await?;
                }
            }
        }
        let stripes = making.listed.into_iter().map(|(_, stripe, in_debt)| (stripe, in_debt));
        Ok(Self { stripes: stripes.collect(), ..making.list })
    }
}

impl<'a> ListBuilder<'a> {
    fn new(ranks: &'a Ranks, extent: ListScope<'a>) -> Self {
        let (listed, in_debt) = (BTreeSet::new(), BTreeSet::new());
        Self { extent, ranks, listed, in_debt, list: WorkList::default() }
    }

    /// Returns whether stripes that lack `lost` chunks can no longer be listed and need not be counted.
    fn is_full_for(&self, lost: usize) -> bool {
        let ListScope::Most(ListLimits { count, total: false, .. }) = self.extent else { return false };
        self.listed.len() >= count
            && self.listed.last().is_some_and(|(Reverse(last), ..)| *last >= lost * A_CHUNK)
    }

    async fn add_debts(
        &mut self,
        stripes: &Stripes,
        page: &[Row],
        gone: &BTreeSet<SiteId>,
    ) -> Result<(), StripeError> {
        let ids: Vec<StripeId> = page.iter().filter_map(|row| keys::stripe_of(&row.key)).collect();
        let keys: Vec<_> = ids.iter().map(|&stripe| keys::stripe(stripe)).collect();
        let rows = stripes.meta().get_many(&keys).await?;
        for (stripe, row) in ids.into_iter().zip(rows) {
            let record: Option<records::Stripe> = row.map(|row| row.record()).transpose()?;
            let record = record.unwrap_or_default();
            let on_gone = record.locations.iter().filter(|at| gone.contains(&SiteId(at.site))).count();
            // Chunks without a place cannot be told from unwritten ones by the record.
            let is_complete = !record.dropped && !record.dead && record.members.is_empty();
            let unwritten = record.locations.iter().filter(|at| at.site == 0 && is_complete).count();
            // A stripe without a known loss was found damaged.
            let lost = (on_gone + unwritten).max(on_gone + 1);
            if on_gone == 0 {
                self.list.found += 1;
            }
            self.add(stripe, lost * A_CHUNK, true);
        }
        Ok(())
    }

    /// Adds a placement's stripes: those of the first page, and the rest of the walk.
    async fn walk(
        &mut self,
        stripes: &Stripes,
        placement: &Placement,
        mut page: Option<Vec<Row>>,
        mut rest: Rows,
    ) -> Result<(), StripeError> {
        let has_site = match &self.extent {
            ListScope::All => true,
            ListScope::Most(most) => most.takers.iter().any(|site| !placement.kept.contains(site)),
        };
        while let Some(rows) = page {
            self.list.found += rows.len() as u64;
            if !has_site {
                self.list.waiting += rows.len() as u64;
            }
            for stripe in rows.iter().filter_map(|row| keys::reverse_stripe(&row.key)).filter(|_| has_site) {
                self.add(stripe, placement.lost * A_CHUNK, false);
            }
            if has_site && self.is_full_for(placement.lost) {
                break;
            }
            page = rest.next(stripes).await?;
        }
        Ok(())
    }

    /// Adds a stripe. Stripes in debt are added before their placements are walked, since they lack at least as much.
    fn add(&mut self, stripe: StripeId, urgency: usize, in_debt: bool) {
        let most = match &self.extent {
            ListScope::All => usize::MAX,
            ListScope::Most(most) if most.in_work.contains(&stripe) => return,
            ListScope::Most(most) if (most.put_off)(stripe) => {
                self.list.waiting += 1;
                return;
            }
            ListScope::Most(most) => most.count,
        };
        if in_debt {
            self.in_debt.insert(stripe);
        } else if self.in_debt.contains(&stripe) {
            return;
        }
        let rank = self.ranks.get(&stripe).copied().unwrap_or_default();
        if rank < urgency {
            // It may already be listed by its rank.
            self.listed.remove(&(Reverse(rank), stripe, false));
        }
        self.listed.insert((Reverse(rank.max(urgency)), stripe, in_debt));
        if self.listed.len() > most
            && let Some((_, evicted, true)) = self.listed.pop_last()
        {
            self.in_debt.remove(&evicted);
        }
    }
}

/// Returns the sets of sites with one that is gone, those that lack most first.
pub(crate) async fn endangered_placements(
    stripes: &Stripes,
    gone: &BTreeSet<SiteId>,
) -> Result<Vec<Placement>, StripeError> {
    let mut placements = BTreeMap::new();
    for &site in gone {
        let mut rows = Rows::with_prefix(&keys::placements(site));
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let Some(number) = keys::placement_number(&row.key) else { continue };
                let record: records::Placement = row.record()?;
                let sites: BTreeSet<SiteId> = record.sites.into_iter().map(SiteId).collect();
                let kept: BTreeSet<SiteId> = sites.difference(gone).copied().collect();
                placements.insert(number, Placement { number, lost: sites.len() - kept.len(), kept });
            }
        }
    }
    let mut placements: Vec<Placement> = placements.into_values().collect();
    placements.sort_by_key(|placement| (Reverse(placement.lost), placement.number));
    Ok(placements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_listed_by_what_its_wide_stripe_lacks() {
        let id = |number: u64| StripeId::new(1, number);
        let ranks = Ranks::from([(id(3), 4), (id(4), 3)]);
        let mut making = ListBuilder::new(&ranks, ListScope::All);
        // One stripe in debt, those with a rank, and those of the placements.
        making.add(id(4), 1, true);
        ranks.iter().for_each(|(&stripe, &lost)| making.add(stripe, lost, false));
        (1..=4).for_each(|number| making.add(id(number), if number == 2 { 2 } else { 1 }, false));
        // It lacks more than any of its wide stripes does.
        making.add(id(3), 5, false);
        let order: Vec<(StripeId, bool)> = making.listed.iter().map(|&(_, id, debt)| (id, debt)).collect();
        assert_eq!(order, [(id(3), false), (id(4), true), (id(2), false), (id(1), false)]);
    }
}
