//! Line 1 of Algorithm 1: which blocks are looked at (EC-Store §IV-D).

use std::collections::HashMap;

use rand::Rng;
use striate_core::StripeId;

use crate::co_access::{CoAccess, Partner};

/// A block that was drawn, or a partner of one, and what is known of how it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementCandidate {
    /// The block.
    pub block: StripeId,
    /// P(b ∈ Q).
    pub popularity: f64,
    /// The most likely of those that are asked for with it.
    pub partners: Vec<Partner>,
    /// How often it was drawn. Where that is 0 no move is looked for, but it may go along.
    pub draws: usize,
}

/// Draws `count` times a block, in proportion to the requests that ask for it, and answers the different ones, in the order
/// of the draws, each with at most `partners` partners. Behind them come those partners that are asked for with every
/// second request at least, which may move with them.
pub fn draw_candidates(
    statistics: &CoAccess,
    rng: &mut impl Rng,
    count: usize,
    partners: usize,
) -> Vec<MovementCandidate> {
    let mut places: HashMap<StripeId, usize> = HashMap::new();
    let mut candidates: Vec<MovementCandidate> = Vec::new();
    let candidate = |block: StripeId| MovementCandidate {
        block,
        popularity: statistics.popularity(block),
        partners: statistics.partners(block, partners),
        draws: 0,
    };
    for block in (0..count).map_while(|_| statistics.draw(rng)) {
        let place = *places.entry(block).or_insert_with(|| {
            candidates.push(candidate(block));
            candidates.len() - 1
        });
        candidates[place].draws += 1;
    }
    for drawn in 0..candidates.len() {
        let close: Vec<StripeId> = candidates[drawn]
            .partners
            .iter()
            .filter(|partner| partner.likelihood >= 0.5)
            .map(|partner| partner.block)
            .take(8)
            .collect();
        for block in close {
            places.entry(block).or_insert_with(|| {
                candidates.push(candidate(block));
                candidates.len() - 1
            });
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    /// Two blocks that are always asked for together.
    fn with_companion() -> CoAccess {
        let mut statistics = CoAccess::default();
        statistics.observe([StripeId::new(1, 8), StripeId::new(1, 9)]);
        statistics
    }

    #[test]
    fn what_is_asked_for_often_is_drawn_and_its_close_partners_come_behind() {
        let id = |sequence| StripeId::new(1, sequence);
        let mut statistics = CoAccess::default();
        (0..100).for_each(|_| statistics.observe([id(1), id(2)]));
        (0..100).for_each(|_| statistics.observe([id(1)]));
        statistics.observe([id(3), id(1)]);
        let mut rng = SmallRng::seed_from_u64(1);
        let drawn = draw_candidates(&statistics, &mut rng, 1, 20);
        assert_eq!((drawn[0].block, drawn[0].draws), (id(1), 1), "{drawn:?}");
        assert_eq!(drawn[0].popularity, 1.0);
        assert_eq!(drawn[0].partners.len(), 2);
        assert_eq!(drawn.len(), 1, "neither partner is there in half of the requests");
        let companions = draw_candidates(&with_companion(), &mut rng, 1, 20);
        assert_eq!(companions.iter().map(|candidate| candidate.draws).collect::<Vec<_>>(), [1, 0]);
        let all = draw_candidates(&statistics, &mut rng, 1_000, 20);
        let of_two = all.iter().find(|candidate| candidate.block == id(2)).expect("it was drawn");
        assert_eq!(of_two.partners, [Partner { block: id(1), likelihood: 1.0 }]);
        assert!(draw_candidates(&CoAccess::default(), &mut rng, 10, 20).is_empty());
    }
}
