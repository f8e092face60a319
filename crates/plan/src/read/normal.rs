//! The normal read: requests the wanted chunks themselves, so that nothing is decoded, and others only to replace
//! unavailable ones. It has no randomness and no state.

use std::fmt;

use rand::RngCore;
use striate_codec::{ChunkSet, CodecError};

use super::determining::cheapest_determining;
use super::piece::{QueryChunk, QueryPiece, QueryPlan};
use super::policy::{ChosenChunk, ChunkChoice, Policy, ReadPlanner, ReadQuery};

/// Reads the wanted chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Normal;

impl Policy for Normal {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(Self)
    }

    fn is_worth_planning(&self, _: &ReadQuery<'_>) -> bool {
        false
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        if chunk.is_wanted { ChunkChoice::Systematic } else { ChunkChoice::Substitute }
    }
}

impl fmt::Display for Normal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("normal")
    }
}

impl ReadPlanner for Normal {
    fn plan(&mut self, query: &ReadQuery<'_>, _: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        plan_normally(query)
    }
}

/// Returns the plan of the normal read.
///
/// # Errors
/// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
pub fn plan_normally(query: &ReadQuery<'_>) -> Result<QueryPlan, CodecError> {
    let mut chosen = Vec::with_capacity(query.pieces.iter().map(|piece| piece.wanted.len()).sum());
    for (number, piece) in query.pieces.iter().enumerate() {
        let fetch = fetched_normally(piece, query)?;
        chosen.extend(fetch.iter().map(|index| (piece.sites[index], QueryChunk { piece: number, index })));
    }
    Ok(QueryPlan::of_chunks(chosen))
}

/// Returns the chunks that the normal read requests now: the wanted ones, or the cheapest that determine them together
/// with the awaited ones.
///
/// # Errors
/// [`CodecError::Insufficient`] if the available chunks do not determine it.
pub fn fetched_normally(piece: &QueryPiece<'_>, query: &ReadQuery<'_>) -> Result<ChunkSet, CodecError> {
    if piece.code.k() > 1 && piece.requested.is_empty() {
        let is_available =
            |index: usize| piece.sites[index].0 != 0 && (query.can_be_asked)(piece.sites[index]);
        if piece.wanted.iter().all(is_available) {
            return Ok(piece.wanted);
        }
    }
    let of_chunk = |index: usize| {
        let site = piece.sites[index];
        if piece.awaited.contains(index) {
            return Some(0.0);
        }
        let cost = if site.0 == 0 || piece.requested.contains(index) { None } else { (query.cost)(site) };
        cost.map(|cost| cost.asking + cost.transfer(piece.len))
    };
    let costs: Vec<Option<f64>> = (0..piece.code.n()).map(of_chunk).collect();
    let fetch = cheapest_determining(piece.code, &piece.wanted, &costs)?;
    Ok(fetch.difference(&piece.requested))
}
