//! Repair: what a damaged stripe needs to become whole again.
//!
//! Lost chunks are computed from any sufficient set of good ones and placed on sites that hold none of the stripe. A
//! lost chunk that finds no site stays debt. If too few good chunks are left, the plan reports it; nothing is given up,
//! since chunks may return with their disks.

pub mod by_racks;
pub mod combine_tree;
pub mod lrs;

use striate_codec::{Code, CodecError, DecodePlan};
use striate_core::SiteId;

/// The state of one chunk of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Verified at its site.
    Good(SiteId),
    /// Missing, damaged, or on a site that was removed.
    Lost,
    /// On a site that is currently unreachable: neither a source nor to be rebuilt.
    Unknown,
    /// Neither a source nor a fault: the stripe has dropped it, or it is lost and another stripe rebuilds it.
    Elsewhere,
    /// A position of a wide stripe without a member. Its content is known without a read.
    Zero,
}

/// A repair of one stripe.
#[derive(Clone, Debug)]
pub struct StripeRepair {
    /// Computes the chunks to write, in the order of `targets`.
    pub decode: DecodePlan,
    /// (chunk index, destination).
    pub targets: Vec<(usize, SiteId)>,
    /// Lost chunks without a site.
    pub unplaced: Vec<usize>,
}

/// Plans the repair of a stripe. `chunks` holds the state of each of its n chunks, `costs` the cost of reading each of
/// them (in any unit, not negative), and `targets` the lost chunks that can be placed, with their destinations
/// ([`crate::PlacementRule::draw_targets`]). The sources are those of the cheapest equation for each chunk, where a
/// source that another equation reads is free. Returns `None` if there is nothing to do: no chunk is lost, or none can
/// be placed.
///
/// # Errors
/// [`CodecError::Insufficient`] if the good chunks do not determine a lost one.
pub fn plan_repair(
    code: &Code,
    chunks: &[ChunkState],
    costs: &[f64],
    targets: &[(usize, SiteId)],
) -> Result<Option<StripeRepair>, CodecError> {
    let of = |state: fn(&ChunkState) -> bool| -> Vec<usize> {
        chunks.iter().enumerate().filter(|(_, chunk)| state(chunk)).map(|(index, _)| index).collect()
    };
    let good = of(|chunk| matches!(chunk, ChunkState::Good(_) | ChunkState::Zero));
    let lost = of(|chunk| *chunk == ChunkState::Lost);
    code.decode_plan(&good, &lost)?;
    let targets: Vec<(usize, SiteId)> =
        targets.iter().copied().filter(|(chunk, _)| lost.contains(chunk)).collect();
    if targets.is_empty() {
        return Ok(None);
    }
    let placed: Vec<usize> = targets.iter().map(|&(chunk, _)| chunk).collect();
    let sources = cheapest_sources(code, &good, costs, &placed).unwrap_or(good);
    let decode = code.decode_plan(&sources, &placed)?;
    let unplaced = lost.into_iter().filter(|chunk| !placed.contains(chunk)).collect();
    Ok(Some(StripeRepair { decode, targets, unplaced }))
}

/// Returns the chunks read by the cheapest equations for the lost ones. `None` if one of them has no equation.
fn cheapest_sources(code: &Code, good: &[usize], costs: &[f64], lost: &[usize]) -> Option<Vec<usize>> {
    let mut marginal = vec![None; code.n()];
    good.iter().for_each(|&chunk| marginal[chunk] = costs.get(chunk).copied());
    let mut sources = Vec::new();
    for &chunk in lost {
        let equation = code.cheapest_repair(chunk, &marginal).ok()?;
        for (source, _) in equation.sources {
            marginal[source] = Some(0.0);
            sources.push(source);
        }
    }
    sources.sort_unstable();
    sources.dedup();
    Some(sources)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChunkState::{Good, Lost, Unknown};

    const EVEN: [f64; 6] = [1.0; 6];

    fn states(lost: &[usize]) -> Vec<ChunkState> {
        (0..6).map(|i| if lost.contains(&i) { Lost } else { Good(SiteId(i as u32 + 1)) }).collect()
    }

    #[test]
    fn lost_chunks_go_to_free_sites_and_the_rest_stays_debt() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let plan = plan_repair(&code, &states(&[1, 5]), &EVEN, &[(1, SiteId(9))]).unwrap().unwrap();
        assert_eq!((plan.targets, plan.unplaced), (vec![(1, SiteId(9))], vec![5]));
        assert_eq!(plan.decode.wanted(), [1]);
    }

    #[test]
    fn a_chunk_on_a_silent_site_is_neither_read_nor_rebuilt() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let mut chunks = states(&[5]);
        chunks[0] = Unknown;
        let plan = plan_repair(&code, &chunks, &EVEN, &[(5, SiteId(9))]).unwrap().unwrap();
        assert_eq!(plan.targets, vec![(5, SiteId(9))]);
        assert!(!plan.decode.sources().contains(&0));
    }

    #[test]
    fn nothing_to_do_is_no_plan_and_too_many_losses_are_an_error() {
        let code: Code = "rs(4,2)".parse().unwrap();
        assert!(plan_repair(&code, &states(&[]), &EVEN, &[]).unwrap().is_none());
        assert!(plan_repair(&code, &states(&[0]), &EVEN, &[]).unwrap().is_none());
        let three = [(0, SiteId(7)), (1, SiteId(8)), (2, SiteId(9))];
        assert!(plan_repair(&code, &states(&[0, 1, 2]), &EVEN, &three).is_err());
    }

    #[test]
    fn the_cheapest_chunks_are_read_and_those_of_several_equations_once() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let costs = [9.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let plan = plan_repair(&code, &states(&[5]), &costs, &[(5, SiteId(9))]).unwrap().unwrap();
        assert_eq!(plan.decode.sources(), [1, 2, 3, 4], "the dear one is left out");
        let two = [(1, SiteId(8)), (5, SiteId(9))];
        let plan = plan_repair(&code, &states(&[1, 5]), &costs, &two).unwrap().unwrap();
        assert_eq!(plan.decode.sources(), [0, 2, 3, 4]);

        let code: Code = "lrc(4,2,2)".parse().unwrap();
        let states: Vec<_> =
            (0..8).map(|i| if i == 1 || i == 3 { Lost } else { Good(SiteId(i + 1)) }).collect();
        let plan =
            plan_repair(&code, &states, &[1.0; 8], &[(1, SiteId(8)), (3, SiteId(9))]).unwrap().unwrap();
        assert_eq!(plan.decode.sources(), [0, 2, 4, 5], "each from its own group");
    }
}
