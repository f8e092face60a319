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
    let mut taken: HashMap<SiteId, u64> = HashMap::new();
    for &wanted in moves {
        let (block, places) = at.get_mut(&wanted.stripe).ok_or(MovementFault::NotThere(wanted))?;
        let place = places.get_mut(wanted.index).filter(|place| **place == wanted.from && wanted.from.0 != 0);
        *place.ok_or(MovementFault::NotThere(wanted))? = wanted.to;
        if wanted.from == wanted.to {
            return Err(PlacementFault::SiteTwice(wanted.to).into());
        }
        let to = site_of.get(&wanted.to).filter(|site| site.takes_chunks && site.cost.is_some());
        let to = to.ok_or(MovementFault::TakesNone(wanted))?;
        let taken = taken.entry(wanted.to).or_default();
        *taken += u64::from(block.chunk_len);
        if *taken > to.free_bytes {
            return Err(MovementFault::NoSpace(wanted));
        }
        if places.iter().enumerate().any(|(chunk, site)| chunk != wanted.index && *site == wanted.to) {
            return Err(PlacementFault::SiteTwice(wanted.to).into());
        }
        let before = |chunk, site| if chunk == wanted.index { wanted.from } else { site };
        let at = places.iter().enumerate();
        let at = at.filter_map(|(chunk, &site)| Some((chunk, &site_of.get(&before(chunk, site))?.rack)));
        if !block.rule.admits(wanted.index, &to.rack, at) {
            return Err(PlacementFault::NotAdmitted { chunk: wanted.index, rack: to.rack.clone() }.into());
        }
    }
    Ok(())
}
