//! Line 1 of Algorithm 1: which blocks are considered (EC-Store §IV-D).

use std::collections::{HashMap, HashSet};

use rand::Rng;
use striate_core::StripeId;

use crate::statistics::co_access::{CoAccess, Partner};

/// Maximum number of different blocks in a search; further requests are left out.
const MOST_BLOCKS: usize = 4_096;

/// How much a search collects about each candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovementSample {
    /// Maximum number of partners.
    pub partners: usize,
    /// Maximum number of requests.
    pub requests: usize,
}

/// A drawn block, or another block of a request for a drawn one, with how it is requested.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementCandidate {
    /// The block.
    pub block: StripeId,
    /// P(b ∈ Q).
    pub popularity: f64,
    /// The blocks most likely to be requested with it.
    pub partners: Vec<Partner>,
    /// The newest requests for it, as positions in the list of drawn requests.
    pub requests: Vec<usize>,
    /// Number of times it was drawn. A block with 0 draws gets no move of its own, but may move along with another.
    pub draws: usize,
}

/// The drawn blocks and their requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MovementCandidates {
    /// The drawn blocks in the order of the draws, followed by the other blocks of the requests.
    pub blocks: Vec<MovementCandidate>,
    /// Sets of blocks that were requested together.
    pub requests: Vec<Vec<StripeId>>,
}

/// Draws a block `count` times, in proportion to the requests for it. Returns the distinct blocks, each with up to
/// `sample` of its partners and of its requests.
pub fn draw_candidates(
    statistics: &CoAccess,
    rng: &mut impl Rng,
    count: usize,
    sample: MovementSample,
) -> MovementCandidates {
    let mut places: HashMap<StripeId, usize> = HashMap::new();
    let mut drawn = MovementCandidates::default();
    for block in (0..count).map_while(|_| statistics.draw(rng)) {
        let place = *places.entry(block).or_insert(drawn.blocks.len());
        if place == drawn.blocks.len() {
            let partners = statistics.partners(block, sample.partners);
            drawn.blocks.push(MovementCandidate { partners, ..companion(statistics, block) });
        }
        drawn.blocks[place].draws += 1;
    }
    add_requests(statistics, &mut drawn, sample.requests);
    let companions: HashSet<StripeId> = drawn.requests.iter().flatten().copied().collect();
    let mut companions: Vec<StripeId> =
        companions.into_iter().filter(|block| !places.contains_key(block)).collect();
    companions.sort_unstable();
    drawn.blocks.extend(companions.into_iter().map(|block| companion(statistics, block)));
    drawn
}

/// Adds the newest request of each candidate, then the second newest of each, and so on.
fn add_requests(statistics: &CoAccess, drawn: &mut MovementCandidates, most: usize) {
    let MovementCandidates { blocks, requests } = drawn;
    let request_numbers: Vec<Vec<usize>> =
        blocks.iter().map(|candidate| statistics.requests_of(candidate.block, most)).collect();
    let (mut places, mut listed_blocks) = (HashMap::new(), HashSet::new());
    for turn in 0..most {
        for (candidate, numbers) in blocks.iter_mut().zip(&request_numbers) {
            let Some(&number) = numbers.get(turn) else { continue };
            if let Some(&place) = places.get(&number) {
                candidate.requests.push(place);
            } else if listed_blocks.len() < MOST_BLOCKS {
                let request = statistics.request(number);
                listed_blocks.extend(request.iter().copied());
                places.insert(number, requests.len());
                candidate.requests.push(requests.len());
                requests.push(request);
            }
        }
    }
}

fn companion(statistics: &CoAccess, block: StripeId) -> MovementCandidate {
    let popularity = statistics.popularity(block);
    MovementCandidate { block, popularity, partners: Vec::new(), requests: Vec::new(), draws: 0 }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const SAMPLE: MovementSample = MovementSample { partners: 20, requests: 16 };

    fn id(sequence: u64) -> StripeId {
        StripeId::new(1, sequence)
    }

    #[test]
    fn what_is_asked_for_often_is_drawn_with_its_partners_and_requests() {
        let mut statistics = CoAccess::default();
        (0..100).for_each(|_| statistics.observe([id(1), id(2)]));
        (0..100).for_each(|_| statistics.observe([id(1)]));
        statistics.observe([id(3), id(1)]);
        let mut rng = SmallRng::seed_from_u64(1);
        let MovementCandidates { blocks, requests } = draw_candidates(&statistics, &mut rng, 1, SAMPLE);
        assert_eq!((blocks[0].block, blocks[0].draws, blocks[0].popularity), (id(1), 1, 1.0), "{blocks:?}");
        assert_eq!(blocks[0].partners.len(), 2);
        assert_eq!(blocks[0].requests, (0..16).collect::<Vec<_>>());
        assert_eq!(requests[0], [id(3), id(1)], "the newest");
        assert!(requests[1..].iter().all(|request| *request == [id(1)]));
        assert_eq!((blocks[1].block, blocks[1].draws, blocks.len()), (id(3), 0, 2), "it may go along");
        let all = draw_candidates(&statistics, &mut rng, 1_000, SAMPLE);
        let of_two = all.blocks.iter().find(|candidate| candidate.block == id(2)).expect("it was drawn");
        assert_eq!(of_two.partners, [Partner { block: id(1), likelihood: 1.0 }]);
        assert!(of_two.requests.iter().all(|&place| all.requests[place] == [id(1), id(2)]));
        assert_eq!(
            draw_candidates(&CoAccess::default(), &mut rng, 10, SAMPLE),
            MovementCandidates::default()
        );
    }

    /// A request shared by several candidates is taken once, and long requests do not fill the memory.
    #[test]
    fn requests_are_shared_and_their_blocks_are_limited() {
        let mut statistics = CoAccess::default();
        (0..50).for_each(|request| statistics.observe((0..1_000).map(|block| id(request * 500 + block))));
        let mut rng = SmallRng::seed_from_u64(1);
        let drawn = draw_candidates(&statistics, &mut rng, 3, SAMPLE);
        assert!(drawn.blocks.len() <= MOST_BLOCKS + 1_000, "{}", drawn.blocks.len());
        assert!((3..9).contains(&drawn.requests.len()), "{}", drawn.requests.len());
        let known: usize = drawn.blocks.iter().map(|block| block.requests.len()).sum();
        assert!(known >= drawn.requests.len(), "{known}");
        assert!(drawn.blocks.iter().any(|block| block.requests.len() == 2));
    }
}
