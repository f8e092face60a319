//! The work list of repair: stripes that may have lost chunks, most endangered first (EC-Store §V-C).
//!
//! Two sources: stripes in debt (writes that missed a site, damage that reads, scrub and verify found), and those with
//! chunks on sites that are gone, by the reverse index. How endangered a stripe is says the number of chunks that it is
//! known to lack, or that its wide stripe lacks ([`crate::repair::wide_losses`]). A service takes a bounded list, repairs it, and takes the next
//! one: what was repaired is no longer found.
//!
//! Cost: one row for each stripe in debt, its record with it, and one for each stripe of the endangered placements, as far
//! as these are walked: a bounded list ends with the placements that can add nothing to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use striate_core::{SiteId, StripeId};
use striate_meta::{Row, keys, records};
use striate_stripe::{StripeError, Stripes};

use crate::repair::absence::Absent;
use crate::repair::wide_losses::Ranks;
use crate::rows::Rows;

/// Placements whose stripes are asked for at the same time.
const WALKED_AT_ONCE: usize = 16;

/// How long a list may be.
pub(crate) enum Extent<'a> {
    /// Everything.
    All,
    /// The most endangered ones.
    Most(Most<'a>),
}

/// Which stripes a bounded list has.
pub(crate) struct Most<'a> {
    /// So many at most.
    pub(crate) count: usize,
    /// Stripes that are being repaired are left out,
    pub(crate) in_work: &'a BTreeSet<StripeId>,
    /// and those that are put off,
    pub(crate) put_off: &'a (dyn Fn(StripeId) -> bool + Sync),
    /// and those of placements to which none of these sites can be added.
    pub(crate) takers: &'a BTreeSet<SiteId>,
    /// All stripes are to be counted.
    pub(crate) total: bool,
}

/// A work list.
#[derive(Debug, Default)]
pub(crate) struct WorkList {
    /// Most endangered first, and whether each is in debt and must be examined.
    pub(crate) stripes: Vec<(StripeId, bool)>,
    /// Stripes found, listed or not. Of those walked only, where no total was asked for.
    pub(crate) found: u64,
    /// Of these, stripes that are put off, and those of placements for which no other site takes chunks.
    pub(crate) waiting: u64,
}

/// A set of sites that contains one that is gone.
pub(crate) struct Placement {
    pub(crate) number: u64,
    lost: usize,
    /// Its sites that are not gone.
    kept: BTreeSet<SiteId>,
}

/// A list while it is made.
struct Making<'a> {
    extent: Extent<'a>,
    ranks: &'a Ranks,
    /// Chunks lost, more first; stripe; in debt.
    listed: BTreeSet<(Reverse<usize>, StripeId, bool)>,
    /// Those of them that are in debt.
    in_debt: BTreeSet<StripeId>,
    list: WorkList,
}

impl WorkList {
    /// Takes the list. Stripes that have a rank are as endangered as it says, at least.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn take(
        stripes: &Stripes,
        absent: &Absent,
        ranks: &Ranks,
        extent: Extent<'_>,
    ) -> Result<Self, StripeError> {
        let mut making = Making::new(ranks, extent);
        let mut rows = Rows::with_prefix(keys::DEBTS);
        while let Some(page) = rows.next(stripes).await? {
            making.add_debts(stripes, &page, &absent.gone).await?;
        }
        // Their placements may be among those that are not walked.
        ranks.iter().for_each(|(&stripe, &lost)| making.add(stripe, lost, false));
        // A store of many sites has many placements with few stripes each: most of the time is that of the way.
        let placements = endangered_placements(stripes, &absent.gone).await?;
        let begin = |placement: Placement| async move {
            let mut rows = Rows::with_prefix(&keys::reverses(placement.number));
            let first = rows.next(stripes).await;
            (placement, first, rows)
        };
        let mut placements = placements.into_iter().peekable();
        while placements.peek().is_some_and(|next| !making.is_full_for(next.lost)) {
            // All of them are done before one is walked on: what nobody polls could keep the connection that this needs.
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

impl<'a> Making<'a> {
    fn new(ranks: &'a Ranks, extent: Extent<'a>) -> Self {
        let (listed, in_debt) = (BTreeSet::new(), BTreeSet::new());
        Self { extent, ranks, listed, in_debt, list: WorkList::default() }
    }

    /// Whether stripes that lack so many chunks can neither be listed any more nor must be counted.
    fn is_full_for(&self, lost: usize) -> bool {
        let Extent::Most(Most { count, total: false, .. }) = self.extent else { return false };
        self.listed.len() >= count && self.listed.last().is_some_and(|(Reverse(last), ..)| *last >= lost)
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
            // Where chunks have no place, none can be told from the record.
            let is_complete = !record.dropped && !record.dead && record.members.is_empty();
            let unwritten = record.locations.iter().filter(|at| at.site == 0 && is_complete).count();
            // One that nothing of is known to be lost was found damaged.
            let lost = (on_gone + unwritten).max(on_gone + 1);
            if on_gone == 0 {
                self.list.found += 1;
            }
            self.add(stripe, lost, true);
        }
        Ok(())
    }

    /// Takes a placement's stripes: the first page, and the rest of the walk.
    async fn walk(
        &mut self,
        stripes: &Stripes,
        placement: &Placement,
        mut page: Option<Vec<Row>>,
        mut rest: Rows,
    ) -> Result<(), StripeError> {
        let has_site = match &self.extent {
            Extent::All => true,
            Extent::Most(most) => most.takers.iter().any(|site| !placement.kept.contains(site)),
        };
        while let Some(rows) = page {
            self.list.found += rows.len() as u64;
            if !has_site {
                self.list.waiting += rows.len() as u64;
            }
            for stripe in rows.iter().filter_map(|row| keys::reverse_stripe(&row.key)).filter(|_| has_site) {
                self.add(stripe, placement.lost, false);
            }
            if has_site && self.is_full_for(placement.lost) {
                break;
            }
            page = rest.next(stripes).await?;
        }
        Ok(())
    }

    /// A stripe in debt is listed as such, and before it is found by its placement: it lacks as much at least.
    fn add(&mut self, stripe: StripeId, lost: usize, in_debt: bool) {
        let most = match &self.extent {
            Extent::All => usize::MAX,
            Extent::Most(most) if most.in_work.contains(&stripe) => return,
            Extent::Most(most) if (most.put_off)(stripe) => {
                self.list.waiting += 1;
                return;
            }
            Extent::Most(most) => most.count,
        };
        if in_debt {
            self.in_debt.insert(stripe);
        } else if self.in_debt.contains(&stripe) {
            return;
        }
        let rank = self.ranks.get(&stripe).copied().unwrap_or_default();
        if rank < lost {
            // It may be listed by its rank already.
            self.listed.remove(&(Reverse(rank), stripe, false));
        }
        let lost = rank.max(lost);
        self.listed.insert((Reverse(lost), stripe, in_debt));
        if self.listed.len() > most
            && let Some((_, evicted, true)) = self.listed.pop_last()
        {
            self.in_debt.remove(&evicted);
        }
    }
}

/// Sets of sites that contain one that is gone, those that lack most first.
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
        let mut making = Making::new(&ranks, Extent::All);
        // One in debt, those with a rank, and what the placements have.
        making.add(id(4), 1, true);
        ranks.iter().for_each(|(&stripe, &lost)| making.add(stripe, lost, false));
        (1..=4).for_each(|number| making.add(id(number), if number == 2 { 2 } else { 1 }, false));
        // It lacks more itself than its wide stripes do, each.
        making.add(id(3), 5, false);
        let order: Vec<(StripeId, bool)> = making.listed.iter().map(|&(_, id, debt)| (id, debt)).collect();
        assert_eq!(order, [(id(3), false), (id(4), true), (id(2), false), (id(1), false)]);
    }
}
