//! Swaps the local parity of a group with a member in another rack of the group.
//!
//! The changes of a member are sent to the rack of its local parity, unless it is in that rack. So the local parity
//! belongs in the rack that changes most ([`striate_plan::swap_due`]; ECWide §4.3). Both chunks are copied, each into
//! the other's rack, under entries in the records of both stripes, and one transaction names both copies. With two
//! transactions, the first would leave a rack with one chunk more than may be lost. No content changes, so changes of
//! other places continue beside it.

use std::cmp::Reverse;

use striate_core::{Generation, RackId, SiteId, StripeId};
use striate_site::Priority;

use super::exchange::ExchangeOutcome;
use super::links::{copy_of, is_same_file};
use super::seal::{commit, verify_made};
use crate::error::StripeError;
use crate::write::change::StripeChange;
use crate::write::writes::Writes;

/// Attempts of a transaction while other changes win.
const ATTEMPTS: usize = 8;

/// A chunk that moves.
struct SwapSide<'a> {
    change: StripeChange<'a>,
    index: usize,
}

impl SwapSide<'_> {
    fn site(&self) -> SiteId {
        SiteId(self.change.record.locations[self.index].site)
    }

    fn rack(&self) -> Option<RackId> {
        self.change.rack_of(self.site())
    }
}

/// Swaps the local parity of a position's group with the member there. [`ExchangeOutcome::Unfit`] if there is no member
/// or no local parity, both are in one rack, or no sites of the two racks suit.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn swap_local_parity(
    writes: &Writes,
    id: StripeId,
    position: usize,
) -> Result<ExchangeOutcome, StripeError> {
    let table = &writes.shared.table;
    let Some(wide) = table.find(id).await? else { return Ok(ExchangeOutcome::NotNow) };
    let member = wide.record.member_chunks().find(|&(at, ..)| at == position);
    let group = wide.code.local_group_of(position);
    let (Some((_, own, index)), Some(group)) = (member, group) else { return Ok(ExchangeOutcome::Unfit) };
    let Some(own) = table.find(own).await? else { return Ok(ExchangeOutcome::NotNow) };
    let is_claimed = own.wide_of(index) == Some((id, position));
    // Waiting for changes in progress is a courtesy: this change would cancel them, or run beside them.
    let is_quiet = wide.record.entries.is_empty() && own.record.entries.is_empty();
    if !wide.record.is_sealed() || !is_quiet || !is_claimed {
        return Ok(ExchangeOutcome::NotNow);
    }
    let parity = wide.code.k() + group;
    let local = StripeChange::new(writes, wide, Priority::Background).await?;
    let member = StripeChange::beside_wide(writes, own, Priority::Background).await?;
    let copy = &local.record.locations[position];
    if !is_same_file(copy, &member.record.locations[index]) || copy.site == 0 {
        return Ok(ExchangeOutcome::NotNow);
    }
    let (local, member) = (SwapSide { change: local, index: parity }, SwapSide { change: member, index });
    match (local.site().0, places(writes, &local, &member, position)) {
        (0, _) => Ok(ExchangeOutcome::NotNow),
        (_, None) => Ok(ExchangeOutcome::Unfit),
        (_, Some(places)) => swap_to(writes, local, member, position, places).await,
    }
}

/// Chooses the new sites of the local parity and of the member, each in the other's rack: each other's own sites if
/// possible, otherwise the emptiest.
fn places(
    writes: &Writes,
    local: &SwapSide<'_>,
    member: &SwapSide<'_>,
    position: usize,
) -> Option<[SiteId; 2]> {
    let (parity, index) = (local.index, member.index);
    let racks = (local.rack()?, member.rack()?);
    if racks.0 == racks.1 {
        return None;
    }
    let is_taken = |change: &StripeChange<'_>, own: &[usize], site: SiteId| {
        let mut others = change.record.locations.iter().enumerate().filter(|(at, _)| !own.contains(at));
        others.any(|(_, at)| at.site == site.0) || change.expected_sites(own).contains(&site)
    };
    let is_taken_in_wide = |site: SiteId| is_taken(&local.change, &[parity, position], site);
    let mut candidates = writes.shared.sites.candidates();
    let mut choose = |rack: &RackId, best: SiteId, is_taken: &dyn Fn(SiteId) -> bool| {
        candidates
            .sort_by_key(|candidate| (candidate.site != best, Reverse(candidate.free_bytes), candidate.site));
        candidates
            .iter()
            .find(|candidate| candidate.rack == *rack && !is_taken(candidate.site))
            .map(|candidate| candidate.site)
    };
    let parity_site = choose(&racks.1, member.site(), &is_taken_in_wide)?;
    let member_site = choose(&racks.0, local.site(), &|site| {
        is_taken_in_wide(site) || is_taken(&member.change, &[index], site)
    })?;
    Some([parity_site, member_site])
}

async fn swap_to(
    writes: &Writes,
    mut local: SwapSide<'_>,
    mut member: SwapSide<'_>,
    position: usize,
    [parity_site, member_site]: [SiteId; 2],
) -> Result<ExchangeOutcome, StripeError> {
    let Some(generation) = local.change.open(&[(local.index, parity_site)]).await? else {
        return Ok(ExchangeOutcome::NotNow);
    };
    let generations = match member.change.open(&[(member.index, member_site)]).await? {
        Some(member_generation) => [generation, member_generation],
        None => {
            local.change.give_up(&[], generation).await;
            return Ok(ExchangeOutcome::NotNow);
        }
    };
    let outcome =
        copy_and_close(writes, &mut local, &mut member, position, [parity_site, member_site], generations);
    let outcome = outcome.await?;
    if outcome != ExchangeOutcome::Done {
        local.change.give_up(&[], generations[0]).await;
        member.change.give_up(&[], generations[1]).await;
    }
    Ok(outcome)
}

/// Copies both chunks and names the copies. If the outcome is not `Done`, the caller gives up the entries.
async fn copy_and_close(
    writes: &Writes,
    local: &mut SwapSide<'_>,
    member: &mut SwapSide<'_>,
    position: usize,
    [parity_site, member_site]: [SiteId; 2],
    [generation, member_generation]: [Generation; 2],
) -> Result<ExchangeOutcome, StripeError> {
    for (side, to, generation) in
        [(&*local, parity_site, generation), (member, member_site, member_generation)]
    {
        if let Err(error) = copy(writes, side, to, generation).await {
            let stripe = side.change.id;
            tracing::debug!(%stripe, index = side.index, %error, "a chunk cannot change places with another now");
            return Ok(ExchangeOutcome::NotNow);
        }
    }
    let replaced_parity = local.change.replace(local.index, parity_site, generation);
    let replaced_member = member.change.replace(member.index, member_site, member_generation);
    local.change.record.locations[position] = copy_of(&member.change.record.locations[member.index]);
    if !local.change.obeys_own_rule()? || !member.change.obeys_own_rule()? {
        return Ok(ExchangeOutcome::Unfit);
    }
    for _ in 0..ATTEMPTS {
        let mut tx = writes.shared.table.transaction();
        local.change.add_swap(&mut tx, replaced_parity.as_slice()).await?;
        member.change.add_swap(&mut tx, replaced_member.as_slice()).await?;
        if commit(writes, tx, &[local.change.id, member.change.id]).await? {
            local.change.note_closed();
            member.change.note_closed();
            return Ok(ExchangeOutcome::Done);
        }
        local.change.forget_places();
        member.change.forget_places();
        // The wide stripe's record has both new places, and is judged as a whole.
        if !local.change.rebase().await? || !member.change.rebase().await? {
            break;
        }
    }
    Ok(ExchangeOutcome::NotNow)
}

/// Copies a chunk to another place, and reads it back from its medium there.
async fn copy(
    writes: &Writes,
    side: &SwapSide<'_>,
    to: SiteId,
    generation: Generation,
) -> Result<(), StripeError> {
    let tree = side.change.combine_tree(to, &[(1, side.index)], |_| 0.0);
    side.change.assemble_chunk(side.index, generation, &tree).await?;
    verify_made(writes, &side.change, side.index, to, generation).await
}
