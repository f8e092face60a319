//! Moves all members of a sparse wide stripe into holes of others, which frees its parities.
//!
//! For each wide stripe that takes some, this is a change like filling its holes: its parities are rewritten where they
//! are, under an entry. One transaction then names all of them, moves every member's claim, and gives the sparse wide
//! stripe up. Before it, the sparse wide stripe protects the members; after it, the others do. No data chunk moves, and
//! nothing is made for the stripe that goes. If one change cannot be made, none is.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use striate_core::{SiteId, StripeId};
use striate_meta::{Precondition, keys};
use striate_plan::LeavingRacks;

use super::exchange::{
    ATTEMPTS, Change, ExchangeOutcome, MadeChange, MovedChunk, OwnStripes, admits_member, is_changeable,
    moved_chunk,
};
use super::leave::add_giving_up;
use super::links::is_same_file;
use super::seal::{READ_AT_ONCE, commit};
use crate::error::StripeError;
use crate::table::{OpenedStripe, is_hole};
use crate::write::writes::Writes;

/// A member of one wide stripe that goes into a hole of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberTransfer {
    /// The member's position.
    pub position: usize,
    /// The wide stripe that takes it.
    pub to: StripeId,
    /// Its position there.
    pub hole: usize,
}

/// Moves all members of a wide stripe. [`ExchangeOutcome::Unfit`] if `moves` are not its living members, or the rule
/// forbids a new position.
///
/// # Errors
/// When the metadata store fails.
pub(crate) async fn transfer(
    writes: &Writes,
    from: StripeId,
    moves: &[MemberTransfer],
) -> Result<ExchangeOutcome, StripeError> {
    let Some(from) = writes.shared.table.find(from).await? else { return Ok(ExchangeOutcome::NotNow) };
    // Waiting for changes in progress is a courtesy: closing this change cancels them.
    if !from.record.is_sealed() || !from.record.entries.is_empty() {
        return Ok(ExchangeOutcome::NotNow);
    }
    let mut by_target: BTreeMap<StripeId, Vec<MemberTransfer>> = BTreeMap::new();
    moves.iter().for_each(|&moved| by_target.entry(moved.to).or_default().push(moved));
    let members: Vec<usize> = from.record.member_chunks().map(|(position, ..)| position).collect();
    let mut leaving: Vec<usize> = moves.iter().map(|moved| moved.position).collect();
    leaving.sort_unstable();
    if leaving != members || by_target.contains_key(&from.id) {
        return Ok(ExchangeOutcome::Unfit);
    }
    let mut planned = Vec::new();
    for (to, moves) in by_target {
        match plan(writes, &from, to, &moves).await? {
            Ok(changes) => planned.push(changes),
            Err(why_not) => return Ok(why_not),
        }
    }
    let mut made = Vec::new();
    for (to, changes) in planned {
        match MadeChange::make(writes, to, changes).await? {
            Some(change) => made.push(change),
            None => return give_up(made).await,
        }
    }
    close(writes, &from, made).await
}

/// Looks up what one wide stripe takes: the changes of its positions, or why they cannot be made.
async fn plan(
    writes: &Writes,
    from: &OpenedStripe,
    to: StripeId,
    moves: &[MemberTransfer],
) -> Result<Result<(OpenedStripe, Vec<Change>), ExchangeOutcome>, StripeError> {
    let Some(to) = writes.shared.table.find(to).await? else { return Ok(Err(ExchangeOutcome::NotNow)) };
    let members = from.record.member_chunks().filter(|&(at, ..)| moves.iter().any(|of| of.position == at));
    let joining: Vec<StripeId> = members.map(|(_, stripe, _)| stripe).chain([from.id]).collect();
    if !is_changeable(writes, &to, &joining).await? {
        return Ok(Err(ExchangeOutcome::NotNow));
    }
    let mut filled = to.clone();
    for moved in moves {
        let copy = &from.record.locations[moved.position];
        if !is_hole(&filled.record, moved.hole)
            || !admits_member(writes, &filled, moved.hole, SiteId(copy.site), &LeavingRacks::default())
        {
            return Ok(Err(ExchangeOutcome::Unfit));
        }
        filled.record.locations[moved.hole] = copy.clone();
        filled.record.members[moved.hole] = from.record.members[moved.position].clone();
    }
    let len = to.record.chunk_len;
    let read = stream::iter(moves.to_vec()).map(|moved| change_of(writes, from, moved, len));
    let changes: Vec<Option<Change>> = read.buffered(READ_AT_ONCE).try_collect().await?;
    let changes: Option<Vec<Change>> = changes.into_iter().collect();
    Ok(changes.map(|changes| (to, changes)).ok_or(ExchangeOutcome::NotNow))
}

/// Returns the change that puts a member into its hole. `None` if the member is dead or has changed, or its bytes are
/// not there.
async fn change_of(
    writes: &Writes,
    from: &OpenedStripe,
    moved: MemberTransfer,
    len: u32,
) -> Result<Option<Change>, StripeError> {
    let claim = (from.id, moved.position);
    let Some((_, id, index)) = from.record.member_chunks().find(|&(at, ..)| at == moved.position) else {
        return Ok(None);
    };
    let Some(stripe) = writes.shared.table.find(id).await? else { return Ok(None) };
    let is_member = stripe.wide_of(index) == Some(claim)
        && is_same_file(&stripe.record.locations[index], &from.record.locations[moved.position]);
    if stripe.record.dead || !is_member || stripe.record.chunk_len > len {
        return Ok(None);
    }
    let new: Option<MovedChunk> = moved_chunk(writes, stripe, index, len).await?;
    Ok(new.map(|new| Change { position: moved.hole, old: None, new: Some(new), comes_from: Some(claim) }))
}

async fn give_up(made: Vec<MadeChange<'_>>) -> Result<ExchangeOutcome, StripeError> {
    for change in made {
        change.give_up().await;
    }
    Ok(ExchangeOutcome::NotNow)
}

/// Names all new parities, moves the claims of all members, and gives up the stripe that they leave, in one transaction.
async fn close(
    writes: &Writes,
    from: &OpenedStripe,
    mut made: Vec<MadeChange<'_>>,
) -> Result<ExchangeOutcome, StripeError> {
    for _ in 0..ATTEMPTS {
        let current = writes.shared.table.find(from.id).await?;
        // Another member would lose its protection.
        let is_as_before =
            |now: &OpenedStripe| now.record.is_sealed() && now.record.members == from.record.members;
        let Some(current) = current.filter(is_as_before) else { break };
        let (mut tx, mut owners) = (writes.shared.table.transaction(), OwnStripes::default());
        let mut is_closable = true;
        for change in &made {
            is_closable = is_closable && change.add_closing(writes, &mut tx, &mut owners).await?;
        }
        if !is_closable {
            break;
        }
        let mut empty = current.record.clone();
        let k = current.code.k();
        empty.members.fill_with(Default::default);
        empty.locations[..k].fill_with(Default::default);
        add_giving_up(&mut tx, &current, empty);
        tx.require(Precondition::Absent(keys::debt(from.id)));
        let mut ids = owners.put(&mut tx);
        ids.extend(made.iter().map(MadeChange::id).chain([from.id]));
        if commit(writes, tx, &ids).await? {
            made.iter_mut().for_each(MadeChange::note_closed);
            return Ok(ExchangeOutcome::Done);
        }
    }
    give_up(made).await
}
