//! Repair: what a damaged stripe needs to be whole again.
//!
//! Lost chunks are computed from any sufficient set of good ones and put on sites that hold none of the
//! stripe. A lost chunk that finds no site stays debt. When too few good chunks are left the plan says so;
//! nothing is given up, since chunks may come back with their disks.

use striate_codec::{Code, CodecError, DecodePlan};
use striate_core::SiteId;

/// What is known of one chunk of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Verified, at its site.
    Good(SiteId),
    /// Missing, damaged, or on a site that is gone.
    Lost,
    /// On a site that does not answer at the moment: no source, and not to be rebuilt either.
    Unknown,
}

/// A repair of one stripe.
#[derive(Clone, Debug)]
pub struct StripeRepair {
    /// Computes the chunks to be written, in the order of `targets`.
    pub decode: DecodePlan,
    /// (chunk index, destination).
    pub targets: Vec<(usize, SiteId)>,
    /// Lost chunks for which there is no site.
    pub unplaced: Vec<usize>,
}

/// Plans the repair of a stripe: `chunks` says what is known of each of its n chunks, `destinations` which
/// sites may take a chunk, best first, none of which holds one. `None` when nothing can be done: no chunk is
/// lost or no destination is free.
///
/// # Errors
/// [`CodecError::Insufficient`] when the good chunks do not determine a lost one.
pub fn plan_repair(
    code: &Code,
    chunks: &[ChunkState],
    destinations: &[SiteId],
) -> Result<Option<StripeRepair>, CodecError> {
    let of = |state: fn(&ChunkState) -> bool| -> Vec<usize> {
        chunks.iter().enumerate().filter(|(_, chunk)| state(chunk)).map(|(index, _)| index).collect()
    };
    let (good, lost) =
        (of(|chunk| matches!(chunk, ChunkState::Good(_))), of(|chunk| *chunk == ChunkState::Lost));
    let placed = lost.len().min(destinations.len());
    code.decode_plan(&good, &lost)?;
    if placed == 0 {
        return Ok(None);
    }
    let decode = code.decode_plan(&good, &lost[..placed])?;
    let targets = lost[..placed].iter().copied().zip(destinations.iter().copied()).collect();
    Ok(Some(StripeRepair { decode, targets, unplaced: lost[placed..].to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChunkState::{Good, Lost, Unknown};

    fn states(lost: &[usize]) -> Vec<ChunkState> {
        (0..6).map(|i| if lost.contains(&i) { Lost } else { Good(SiteId(i as u32 + 1)) }).collect()
    }

    #[test]
    fn lost_chunks_go_to_free_sites_and_the_rest_stays_debt() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let plan = plan_repair(&code, &states(&[1, 5]), &[SiteId(9)]).unwrap().unwrap();
        assert_eq!((plan.targets, plan.unplaced), (vec![(1, SiteId(9))], vec![5]));
        assert_eq!(plan.decode.wanted(), [1]);
    }

    #[test]
    fn a_chunk_on_a_silent_site_is_neither_read_nor_rebuilt() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let mut chunks = states(&[5]);
        chunks[0] = Unknown;
        let plan = plan_repair(&code, &chunks, &[SiteId(9)]).unwrap().unwrap();
        assert_eq!(plan.targets, vec![(5, SiteId(9))]);
        assert!(!plan.decode.sources().contains(&0));
    }

    #[test]
    fn nothing_to_do_is_no_plan_and_too_many_losses_are_an_error() {
        let code: Code = "rs(4,2)".parse().unwrap();
        assert!(plan_repair(&code, &states(&[]), &[SiteId(9)]).unwrap().is_none());
        assert!(plan_repair(&code, &states(&[0]), &[]).unwrap().is_none());
        assert!(plan_repair(&code, &states(&[0, 1, 2]), &[SiteId(7), SiteId(8), SiteId(9)]).is_err());
    }
}
