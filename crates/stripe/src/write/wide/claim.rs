//! Claims: the members' own stripes record which wide stripe they belong to, until it is given up.

use std::collections::HashMap;

use bytes::Bytes;
use striate_codec::Code;
use striate_core::{Profile, RackId, SiteId, StripeId};
use striate_meta::records::{Location, Member, Stripe};
use striate_meta::{Row, keys};
use striate_plan::{PlacementFault, PlacementRule, check_placement};

use super::links::{copy_of, is_same_file};
use super::seal::commit;
use crate::error::StripeError;
use crate::table::{OpenedStripe, wide_of};
use crate::write::entry::put_record;
use crate::write::writes::Writes;

/// Maximum number of own stripes changed by one transaction: with the wide stripe, they use all preconditions of a
/// transaction.
pub(super) const CLAIMED_AT_ONCE: usize = 45;

/// Own stripes of members, as they were read.
pub(super) struct MemberStripes(Vec<(StripeId, Row, Stripe)>);

impl MemberStripes {
    pub(super) async fn read(writes: &Writes, ids: &[StripeId]) -> Result<Self, StripeError> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let keys: Vec<Bytes> = ids.iter().map(|&id| keys::stripe(id)).collect();
        let mut own = Vec::with_capacity(ids.len());
        for (id, row) in ids.into_iter().zip(writes.shared.table.meta().get_many(&keys).await?) {
            if let Some(row) = row {
                let record = row.record()?;
                own.push((id, row, record));
            }
        }
        Ok(Self(own))
    }

    fn location(&self, stripe: StripeId, index: usize) -> Option<(&Stripe, &Location)> {
        let at = self.0.binary_search_by_key(&stripe, |(id, ..)| *id).ok()?;
        let record = &self.0[at].2;
        Some((record, record.locations.get(index)?))
    }

    /// Whether a stripe exists and is dead.
    pub(super) fn is_dead(&self, stripe: StripeId) -> bool {
        self.0.binary_search_by_key(&stripe, |(id, ..)| *id).is_ok_and(|at| self.0[at].2.dead)
    }

    /// Returns the location of a chunk that may become a member, with its record.
    pub(super) fn free_member(
        &self,
        stripe: StripeId,
        index: usize,
        chunk_len: u32,
    ) -> Option<(&Stripe, &Location)> {
        let (record, location) = self.location(stripe, index)?;
        is_free(record, location, chunk_len).then_some((record, location))
    }
}

/// Whether a chunk may become a member of a wide stripe with chunks of `chunk_len` bytes.
pub(super) fn is_free(stripe: &Stripe, location: &Location, chunk_len: u32) -> bool {
    let is_narrow = stripe.members.is_empty() && !stripe.dead;
    location.site != 0 && location.wide.is_empty() && is_narrow && stripe.chunk_len <= chunk_len
}

/// Returns the member record of a chunk of `len` bytes.
pub(super) fn member_of(stripe: StripeId, index: usize, len: u32) -> Member {
    Member { stripe: stripe.to_bytes().to_vec().into(), index: index as u32, len }
}

/// Outcome of claiming.
pub(super) enum ClaimOutcome {
    All,
    /// Some are not claimed yet, or records have changed meanwhile.
    NotNow,
    /// A member is lost, gone or another stripe's, or its place breaks the rule.
    Never,
}

/// S2 and S2′: records the wide stripe in the members' own stripes. Refreshes outdated copies of locations first.
pub(super) async fn claim(writes: &Writes, wide: &OpenedStripe) -> Result<ClaimOutcome, StripeError> {
    let all: Vec<(usize, StripeId, usize)> = wide.record.member_chunks().collect();
    let own =
        MemberStripes::read(writes, &all.iter().map(|&(_, stripe, _)| stripe).collect::<Vec<_>>()).await?;
    let (mut refreshed, mut unclaimed) = (wide.record.clone(), Vec::new());
    for (position, stripe, index) in all {
        let Some((record, location)) = own.location(stripe, index) else { return Ok(ClaimOutcome::Never) };
        match wide_of(location) {
            Some(at) if at == (wide.id, position) => continue,
            None if is_free(record, location, wide.record.chunk_len) => {
                unclaimed.push((position, stripe, index))
            }
            Some(_) | None => return Ok(ClaimOutcome::Never),
        }
        if !is_same_file(&refreshed.locations[position], location) {
            refreshed.locations[position] = copy_of(location);
        }
    }
    if refreshed.locations != wide.record.locations {
        return refresh(writes, wide, refreshed).await;
    }
    if unclaimed.is_empty() {
        return Ok(ClaimOutcome::All);
    }
    unclaimed.sort_by_key(|&(_, stripe, _)| stripe);
    let mut from = 0;
    while from < unclaimed.len() {
        let mut stripes = 0;
        let mut to = from;
        while to < unclaimed.len() && stripes < CLAIMED_AT_ONCE {
            let own_stripe = unclaimed[to].1;
            to += unclaimed[to..].iter().take_while(|&&(_, stripe, _)| stripe == own_stripe).count();
            stripes += 1;
        }
        if !claim_some(writes, wide, &own, &unclaimed[from..to]).await? {
            return Ok(ClaimOutcome::NotNow);
        }
        from = to;
    }
    // Records read before the last claim may have changed since.
    Ok(ClaimOutcome::NotNow)
}

async fn claim_some(
    writes: &Writes,
    wide: &OpenedStripe,
    own: &MemberStripes,
    members: &[(usize, StripeId, usize)],
) -> Result<bool, StripeError> {
    let mut tx = writes.shared.table.transaction_on(wide);
    for (id, row, before) in &own.0 {
        let mut record = before.clone();
        for &(position, _, index) in members.iter().filter(|(_, stripe, _)| stripe == id) {
            record.locations[index].claim(wide.id, position);
        }
        if record != *before {
            tx.require_unchanged(keys::stripe(*id), Some(row));
            put_record(&mut tx, *id, &record, before);
        }
    }
    let ids: Vec<StripeId> = members.iter().map(|&(_, stripe, _)| stripe).collect();
    commit(writes, tx, &ids).await
}

/// Checks that the members' places obey the rule, as this process knows the sites.
pub(super) fn check_places(
    writes: &Writes,
    profile: &Profile,
    code: &Code,
    record: &Stripe,
) -> Result<(), PlacementFault> {
    let racks = writes.shared.sites.rack_sizes();
    let rule = PlacementRule::new(profile, code, racks);
    let views = writes.shared.sites.views();
    let racks_by_site: HashMap<SiteId, RackId> =
        views.iter().map(|view| (view.site.id(), view.site.rack())).collect();
    let sites: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
    check_placement(&rule, &sites, |site| racks_by_site.get(&site))
}

/// S2′: refreshes the copies of locations after a member has moved before it was claimed.
async fn refresh(writes: &Writes, wide: &OpenedStripe, record: Stripe) -> Result<ClaimOutcome, StripeError> {
    match check_places(writes, &wide.profile, &wide.code, &record) {
        Ok(()) => {}
        // The site may be back soon.
        Err(PlacementFault::UnknownSite(_)) => return Ok(ClaimOutcome::NotNow),
        Err(_) => return Ok(ClaimOutcome::Never),
    }
    let mut tx = writes.shared.table.transaction_on(wide);
    put_record(&mut tx, wide.id, &record, &wide.record);
    commit(writes, tx, &[wide.id]).await?;
    Ok(ClaimOutcome::NotNow)
}

/// A2: removes the claims of the own stripes. Returns whether none is left.
pub(super) async fn take_claims_back(writes: &Writes, wide: &OpenedStripe) -> Result<bool, StripeError> {
    let ids: Vec<StripeId> = wide.record.member_chunks().map(|(_, stripe, _)| stripe).collect();
    let own = MemberStripes::read(writes, &ids).await?;
    let is_ours = |location: &Location| wide_of(location).is_some_and(|(id, _)| id == wide.id);
    let claiming: Vec<_> = own.0.iter().filter(|(.., record)| record.locations.iter().any(is_ours)).collect();
    let mut is_done = true;
    for batch in claiming.chunks(CLAIMED_AT_ONCE) {
        let mut tx = writes.shared.table.transaction();
        for (id, row, before) in batch {
            let mut record = before.clone();
            record.locations.iter_mut().filter(|at| is_ours(at)).for_each(|at| *at = copy_of(at));
            tx.require_unchanged(keys::stripe(*id), Some(row));
            put_record(&mut tx, *id, &record, before);
        }
        let ids: Vec<StripeId> = batch.iter().map(|(id, ..)| *id).collect();
        is_done &= commit(writes, tx, &ids).await?;
    }
    Ok(is_done)
}
