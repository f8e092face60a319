//! The chunk mover: moves one chunk from one site to another (EC-Store §V-B2, design.md §10).
//!
//! Each step may be the last one before a crash:
//! 1. Take a new generation from the stripe record, durably.
//! 2. The destination fetches the chunk from its site, compares it with the checksum of the original encoding and
//!    stores it under the new generation. If the destination cannot fetch it, this process carries it over.
//! 3. The destination verifies the chunk from its medium.
//! 4. Compare-and-swap the stripe record, with the reverse index and a garbage row for the old chunk
//!    ([`striate_stripe::StripeChange`]).
//!
//! Readers find one chunk or the other: the old chunk is deleted after a grace that is longer than any read, and a
//! reader with the old location then looks up the new one.
//!
//! A chunk that is missing or damaged at its recorded place is not moved: its stripe is put in debt, for repair.

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use striate_codec::crc32c;
use striate_core::{ChunkId, Generation, SiteId};
use striate_meta::{Commit, keys};
use striate_plan::movement::ChunkMove;
use striate_plan::{ChunkState, LeavingRacks};
use striate_site::{Priority, SiteError};
use striate_stripe::{StripeError, Stripes};

use crate::repair::state_after;
use striate_stripe::{DebtEffect, StripeChange};

/// Attempts to move a chunk when other changes of the stripe win.
const ATTEMPTS: u32 = 4;

/// Outcome of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The chunk is in its new place.
    Moved {
        /// Bytes of the chunk.
        bytes: u64,
    },
    /// The stripe is gone, or the chunk is not on the site to move it from.
    Outdated,
    /// The chunk is missing or damaged; the stripe is now in debt.
    LeftToRepair,
    /// A site failed, or the move would break a rule; the text says why.
    Refused(String),
    /// Other processes kept changing the stripe.
    Contended,
}

/// Moves one chunk.
///
/// # Errors
/// When the metadata store fails. The chunk is then in its old or its new place.
pub fn move_chunk<'a>(
    stripes: &'a Stripes,
    chunk_move: &'a ChunkMove,
) -> BoxFuture<'a, Result<MoveOutcome, StripeError>> {
    move_while_leaving(stripes, chunk_move, LeavingRacks::default())
}

/// As [`move_chunk`], while chunks leave the racks in `leaving`.
pub(crate) fn move_while_leaving<'a>(
    stripes: &'a Stripes,
    chunk_move: &'a ChunkMove,
    leaving: LeavingRacks,
) -> BoxFuture<'a, Result<MoveOutcome, StripeError>> {
    Box::pin(async move {
        let mut path = TransferPath::Direct;
        for _ in 0..ATTEMPTS {
            let change = stripes.change(chunk_move.stripe, Priority::Background).await?;
            let Some(mut change) = change else { return Ok(MoveOutcome::Outdated) };
            change.leave(&leaving);
            if let Some(outcome) = attempt(stripes, change, chunk_move, &mut path).await? {
                return Ok(outcome);
            }
        }
        Ok(MoveOutcome::Contended)
    })
}

/// Path of the chunk's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransferPath {
    /// From site to site.
    Direct,
    /// Through this process.
    Here,
}

/// Returns `None` if another process changed the stripe, or the bytes cannot take that path.
async fn attempt(
    stripes: &Stripes,
    mut change: StripeChange<'_>,
    chunk_move: &ChunkMove,
    path: &mut TransferPath,
) -> Result<Option<MoveOutcome>, StripeError> {
    let location = change.record.locations.get(chunk_move.index);
    if location.is_none_or(|at| at.site == 0 || at.site != chunk_move.from.0) {
        return Ok(Some(MoveOutcome::Outdated));
    }
    if let Err(reason) = check(stripes, &change, chunk_move) {
        return Ok(Some(MoveOutcome::Refused(reason)));
    }
    let Some(generation) = change.open(&[(chunk_move.index, chunk_move.to)]).await? else { return Ok(None) };
    match path {
        TransferPath::Direct => {
            if let ControlFlow::Break(outcome) = send_directly(&mut change, chunk_move, generation).await {
                if outcome.is_none() {
                    // Retry under a new generation: a chunk of this one may exist.
                    *path = TransferPath::Here;
                }
                return Ok(outcome);
            }
        }
        TransferPath::Here => {
            if let ControlFlow::Break(outcome) = carry(stripes, &mut change, chunk_move, generation).await? {
                change.give_up(&[], generation).await;
                return Ok(outcome);
            }
        }
    }
    let written = [(chunk_move.index, chunk_move.to)];
    if let Err(reason) = verify_new(stripes, &change, chunk_move.index, chunk_move.to, generation).await {
        change.give_up(&written, generation).await;
        return Ok(Some(MoveOutcome::Refused(reason)));
    }
    let replaced = change.replace(chunk_move.index, chunk_move.to, generation).into_iter().collect();
    if change.swap(replaced, DebtEffect::AsItIs).await? {
        return Ok(Some(MoveOutcome::Moved { bytes: u64::from(change.record.chunk_len) }));
    }
    change.give_up(&written, generation).await;
    Ok(None)
}

/// Returns whether the destination would refuse the chunk from this process too.
fn is_final(error: &SiteError) -> bool {
    matches!(error, SiteError::NoSpace | SiteError::Busy | SiteError::Suspect(_) | SiteError::Deadline)
}

/// Lets the destination fetch the chunk from its site. If it does not, gives the generation up and breaks with the
/// result of [`attempt`]: `None` if the bytes may take the other path.
async fn send_directly(
    change: &mut StripeChange<'_>,
    chunk_move: &ChunkMove,
    generation: Generation,
) -> ControlFlow<Option<MoveOutcome>> {
    let tree = change.combine_tree(chunk_move.to, &[(1, chunk_move.index)], |_| 0.0);
    let sent = change.assemble_chunk(chunk_move.index, generation, &tree).await;
    let Err(error) = sent else { return ControlFlow::Continue(()) };
    change.note_stray(chunk_move.index, chunk_move.to, generation, &error);
    change.give_up(&[], generation).await;
    if is_final(&error) {
        return ControlFlow::Break(Some(MoveOutcome::Refused(format!("site {}: {error}", chunk_move.to))));
    }
    tracing::debug!(stripe = %chunk_move.stripe, %error, "a chunk is moved through this process");
    ControlFlow::Break(None)
}

/// Reads the chunk and writes it to its new place. Breaks with the result of [`attempt`].
async fn carry(
    stripes: &Stripes,
    change: &mut StripeChange<'_>,
    chunk_move: &ChunkMove,
    generation: Generation,
) -> Result<ControlFlow<Option<MoveOutcome>>, StripeError> {
    let refused = |site: SiteId, error: SiteError| MoveOutcome::Refused(format!("site {site}: {error}"));
    let _memory = stripes.memory_for(change.record.chunk_len as usize).await;
    let payload = match change.read_chunk(chunk_move.index).await {
        Ok(payload) if crc32c(&payload) == change.record.locations[chunk_move.index].crc32c => payload,
        Ok(_) => return leave_to_repair(stripes, change).await.map(ControlFlow::Break),
        Err(error) if state_after(&error) == ChunkState::Lost => {
            return leave_to_repair(stripes, change).await.map(ControlFlow::Break);
        }
        Err(error) => return Ok(ControlFlow::Break(Some(refused(chunk_move.from, error)))),
    };
    if let Err(error) = change.write_chunk(chunk_move.index, chunk_move.to, generation, payload).await {
        change.note_refusal(chunk_move.index, chunk_move.to, generation, &error);
        return Ok(ControlFlow::Break(Some(refused(chunk_move.to, error))));
    }
    Ok(ControlFlow::Continue(()))
}

/// Checks that the destination takes chunks and that the chunk's wide stripe admits it there. If the stripe is bound
/// by its own rule, the destination must hold none of its chunks, and the rack must not hold too many (I6).
fn check(stripes: &Stripes, change: &StripeChange<'_>, chunk_move: &ChunkMove) -> Result<(), String> {
    let to = chunk_move.to;
    if chunk_move.index < change.record.members.len() {
        return Err("a member of a wide stripe moves with the stripe that it was written in".to_owned());
    }
    let candidates = stripes.candidates();
    let candidate = candidates.iter().find(|candidate| candidate.site == to);
    let rack = &candidate.ok_or(format!("site {to} takes no chunks"))?.rack;
    if !change.wide_admits(chunk_move.index, to) {
        return Err(format!("the wide stripe of the chunk does not let it go to site {to}"));
    }
    if !change.is_bound_by_rule() {
        return Ok(());
    }
    if change.record.locations.iter().any(|location| location.site == to.0) {
        return Err(format!("site {to} holds a chunk of the stripe"));
    }
    if change.expected_sites(&[chunk_move.index]).contains(&to) {
        return Err(format!("site {to} is to take another chunk of the stripe"));
    }
    let racks = change.racks(&[chunk_move.index]);
    let places = racks.iter().enumerate().filter_map(|(chunk, rack)| Some((chunk, rack.as_ref()?)));
    match change.rule().admits(chunk_move.index, rack, places) {
        true => Ok(()),
        false => Err(format!("rack {rack} may not take another chunk of the stripe")),
    }
}

/// Has `to` verify a stored chunk from its medium.
pub(crate) async fn verify_new(
    stripes: &Stripes,
    change: &StripeChange<'_>,
    index: usize,
    to: SiteId,
    generation: Generation,
) -> Result<(), String> {
    let refuse = |error: SiteError| format!("site {to} cannot verify what it took: {error}");
    let site = stripes.required_site(to).map_err(refuse)?;
    let chunk = ChunkId { stripe: change.id, index: index as u8, generation };
    let verified = stripes.runtime().timeout(stripes.options().write_deadline, site.verify(chunk)).await;
    let info = verified.unwrap_or(Err(SiteError::Deadline)).map_err(refuse)?;
    let (crc, len) = (change.record.locations[index].crc32c, change.record.chunk_len);
    match (info.crc32c, info.len) == (crc, len) {
        true => Ok(()),
        false => Err(format!("site {to} stored something else than it was sent")),
    }
}

/// Puts the stripe in debt, unless its record has changed meanwhile: then the chunk may have been read from an
/// outdated place.
async fn leave_to_repair(
    stripes: &Stripes,
    change: &StripeChange<'_>,
) -> Result<Option<MoveOutcome>, StripeError> {
    let mut tx = change.unchanged();
    tx.put(keys::debt(change.id), bytes::Bytes::new());
    let done = matches!(stripes.meta().commit(tx).await?, Commit::Done(_));
    Ok(done.then_some(MoveOutcome::LeftToRepair))
}
