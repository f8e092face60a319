//! The checker of movement plans: decides whether every move is legal, independently of the code that chose it (I6).

use std::collections::HashMap;

use striate_core::SiteId;

use super::state::{ChunkMove, MovementBlock, MovementSite};
use crate::placement::check::PlacementFault;

/// Why a move is not legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MovementFault {
    /// The chunk is not where the move takes it from.
    #[error("stripe {}: its chunk {} is not on site {}", .0.stripe, .0.index, .0.from)]
    NotThere(ChunkMove),
    /// The destination takes no chunks: it is drained, unreachable or unknown.
    #[error("stripe {}: site {} takes no chunks", .0.stripe, .0.to)]
    TakesNone(ChunkMove),
    /// The destination has no space for it.
    #[error("stripe {}: site {} has no space for its chunk", .0.stripe, .0.to)]
    NoSpace(ChunkMove),
    /// The stripe would have two chunks on one site, or too many in one rack.
    #[error(transparent)]
    Placement(#[from] PlacementFault),
}

/// Checks moves in order. A rack that already holds too many chunks of a stripe may keep them, but may not get another.
///
/// # Errors
/// The first fault found.
pub fn check_movement(
    moves: &[ChunkMove],
    sites: &[MovementSite],
    blocks: &[MovementBlock],
) -> Result<(), MovementFault> {
    let site_of: HashMap<SiteId, &MovementSite> = sites.iter().map(|site| (site.site, site)).collect();
    let mut at: HashMap<_, _> = blocks.iter().map(|block| (block.id, (block, block.sites.clone()))).collect();
    let mut taken_bytes: HashMap<SiteId, u64> = HashMap::new();
    for &chunk_move in moves {
        let (block, places) = at.get_mut(&chunk_move.stripe).ok_or(MovementFault::NotThere(chunk_move))?;
        let place = places
            .get_mut(chunk_move.index)
            .filter(|place| **place == chunk_move.from && chunk_move.from.0 != 0);
        *place.ok_or(MovementFault::NotThere(chunk_move))? = chunk_move.to;
        if chunk_move.from == chunk_move.to {
            return Err(PlacementFault::SiteTwice(chunk_move.to).into());
        }
        let to = site_of.get(&chunk_move.to).filter(|site| site.takes_chunks && site.cost.is_some());
        let to = to.ok_or(MovementFault::TakesNone(chunk_move))?;
        let taken_bytes = taken_bytes.entry(chunk_move.to).or_default();
        *taken_bytes += u64::from(block.chunk_len);
        if *taken_bytes > to.free_bytes {
            return Err(MovementFault::NoSpace(chunk_move));
        }
        if places.iter().enumerate().any(|(chunk, site)| chunk != chunk_move.index && *site == chunk_move.to)
        {
            return Err(PlacementFault::SiteTwice(chunk_move.to).into());
        }
        let site_before = |chunk, site| if chunk == chunk_move.index { chunk_move.from } else { site };
        let at = places.iter().enumerate();
        let at = at.filter_map(|(chunk, &site)| Some((chunk, &site_of.get(&site_before(chunk, site))?.rack)));
        if !block.rule.admits(chunk_move.index, &to.rack, at) {
            return Err(PlacementFault::NotAdmitted { chunk: chunk_move.index, rack: to.rack.clone() }.into());
        }
    }
    Ok(())
}
