//! Sparse wide stripes: most members have died, and all parities stay as long as one lives. The last members go into
//! holes of others, and the parities are freed.
//!
//! The sparsest go first, into the fullest that have holes. So in the end few wide stripes of one profile and length
//! are less than half full, and the rest stores at most twice the parities that full ones do.

use std::collections::{BTreeMap, BTreeSet};

use striate_core::{RackId, SiteId, StripeId};
use striate_plan::{LeavingMember, PlacementRule, PlannedTransfer, TakingStripe, is_sparse, plan_emptying};
use striate_stripe::{ExchangeOutcome, MemberTransfer, OpenedStripe, StripeError, Stripes, is_hole};

use super::cold::{ColdData, LengthClass, PoolKey};
use super::{CountCallback, advance};

/// Maximum number of wide stripes emptied in one look: each costs reading its members, and rewriting the parities of
/// those that take them.
const MOST_IN_A_LOOK: u64 = 256;
/// Maximum number of wide stripes considered for the members of one.
const CONSIDERED: usize = 32;
/// Number of wide stripes tried in vain, one after the other, after which a look leaves the rest of their kind alone.
const IN_VAIN: usize = 32;

/// Wide stripes of one kind that have holes, with the number of their members.
type Roomy = Vec<(usize, StripeId)>;

/// Moves the members of sparse wide stripes into others. Calls `tell` after each with the number emptied so far.
///
/// # Errors
/// When the metadata store fails.
pub(super) async fn empty_sparse(
    stripes: &Stripes,
    cold: &ColdData,
    tell: CountCallback<'_>,
) -> Result<(), StripeError> {
    let mut emptied = 0;
    for mut roomy in roomy(stripes, &cold.wide).await?.into_values() {
        roomy.sort_unstable();
        let (mut sparsest, mut in_vain) = (0, 0);
        while sparsest < roomy.len() && in_vain < IN_VAIN && emptied < MOST_IN_A_LOOK {
            if tell(emptied).is_break() {
                return Ok(());
            }
            let from = roomy[sparsest].1;
            let is_emptied = match cold.filled.contains(&from) {
                // It is on its way to be full again.
                true => Some(false),
                false => empty(stripes, from, &mut roomy, sparsest).await?,
            };
            match is_emptied {
                None => break,
                Some(true) => (emptied, in_vain) = (emptied + 1, 0),
                Some(false) => (sparsest, in_vain) = (sparsest + 1, in_vain + 1),
            }
        }
    }
    let _ = tell(emptied);
    Ok(())
}

/// Returns the sealed wide stripes with holes, by profile and length.
async fn roomy(
    stripes: &Stripes,
    wide: &BTreeSet<StripeId>,
) -> Result<BTreeMap<PoolKey, Roomy>, StripeError> {
    let mut found: BTreeMap<PoolKey, Roomy> = BTreeMap::new();
    for &id in wide {
        let Some(stripe) = stripes.find(id).await? else { continue };
        let members = stripe.record.member_chunks().count();
        if stripe.record.is_sealed() && members < stripe.code.k() {
            let lens = LengthClass::of(stripe.record.chunk_len);
            let key = PoolKey { profile: stripe.record.profile.clone(), lens };
            found.entry(key).or_default().push((members, id));
        }
    }
    Ok(found)
}

/// Empties a wide stripe into others, and takes it off the list. Returns `false` if that is impossible now, and `None` if
/// it is no longer sparse: neither are those after it.
async fn empty(
    stripes: &Stripes,
    from: StripeId,
    roomy: &mut Roomy,
    at: usize,
) -> Result<Option<bool>, StripeError> {
    let Some(found) = stripes.find(from).await? else { return Ok(Some(false)) };
    let k = found.code.k();
    if !is_sparse(found.record.member_chunks().count(), k) {
        return Ok(None);
    }
    let fullest = roomy[at + 1..].iter().rev().take(CONSIDERED);
    let others: Vec<StripeId> = fullest.map(|&(_, id)| id).collect();
    let Some(moves) = empty_wide(stripes, from, &others).await? else { return Ok(Some(false)) };
    let members_of = |id: StripeId| moves.iter().filter(|moved| moved.to == id).count();
    roomy.remove(at);
    roomy.iter_mut().for_each(|(members, id)| *members += members_of(*id));
    roomy.retain(|(members, _)| *members < k);
    roomy[at..].sort_unstable();
    Ok(Some(true))
}

/// Moves all members of a sealed wide stripe into holes of others, the first of `others` that take them, and frees its
/// parities. Returns the moves; `None` if that is impossible now.
///
/// # Errors
/// When the metadata store fails.
pub async fn empty_wide(
    stripes: &Stripes,
    from: StripeId,
    others: &[StripeId],
) -> Result<Option<Vec<MemberTransfer>>, StripeError> {
    let Some(from) = stripes.find(from).await? else { return Ok(None) };
    let Some(members) = leaving(stripes, &from) else { return Ok(None) };
    let (takers, places) = takers(stripes, others).await?;
    let rule = PlacementRule::new(&from.profile, &from.code, stripes.rack_sizes());
    let Some(planned) = plan_emptying(&rule, &members, &places) else { return Ok(None) };
    let transfer = |of: &PlannedTransfer| MemberTransfer {
        position: members[of.member].position,
        to: takers[of.taker],
        hole: of.hole,
    };
    let moves: Vec<MemberTransfer> = planned.iter().map(transfer).collect();
    if stripes.transfer_wide(from.id, &moves).await? != ExchangeOutcome::Done {
        tracing::debug!(wide = %from.id, "its members cannot go into others now");
        return Ok(None);
    }
    let into: BTreeSet<StripeId> = moves.iter().map(|moved| moved.to).collect();
    tracing::info!(wide = %from.id, members = moves.len(), ?into, "a wide stripe was emptied into others");
    for &id in into.iter().chain([&from.id]) {
        advance(stripes, id).await?;
    }
    Ok(Some(moves))
}

/// Returns those of these wide stripes that may take members, with their places.
async fn takers(
    stripes: &Stripes,
    others: &[StripeId],
) -> Result<(Vec<StripeId>, Vec<TakingStripe>), StripeError> {
    let (mut takers, mut places) = (Vec::new(), Vec::new());
    for &id in others {
        let Some(taker) = stripes.find(id).await? else { continue };
        if let Some(taking) = taking(stripes, &taker) {
            takers.push(id);
            places.push(taking);
        }
    }
    Ok((takers, places))
}

/// Returns the members of a wide stripe that is to be emptied; `None` if the place of one is not known.
fn leaving(stripes: &Stripes, from: &OpenedStripe) -> Option<Vec<LeavingMember>> {
    let member = |(position, ..): (usize, StripeId, usize)| {
        let site = SiteId(from.record.locations[position].site);
        let rack = stripes.site(site)?.rack();
        Some(LeavingMember { position, len: from.record.members[position].len, site, rack })
    };
    from.record.member_chunks().map(member).collect()
}

/// Returns the places of a wide stripe that may take members; `None` if a change of it is in progress, or the place of a
/// chunk is not known.
fn taking(stripes: &Stripes, taker: &OpenedStripe) -> Option<TakingStripe> {
    let place = |(chunk, at): (usize, &striate_meta::records::Location)| -> Option<Option<(SiteId, RackId)>> {
        match is_hole(&taker.record, chunk) {
            true => Some(None),
            false => Some(Some((SiteId(at.site), stripes.site(SiteId(at.site))?.rack()))),
        }
    };
    let places: Option<Vec<_>> = taker.record.locations.iter().enumerate().map(place).collect();
    let is_quiet = taker.record.is_sealed() && taker.record.entries.is_empty();
    let (chunk_len, k) = (taker.record.chunk_len, taker.code.k());
    places.filter(|_| is_quiet).map(|places| TakingStripe { chunk_len, k, places })
}
