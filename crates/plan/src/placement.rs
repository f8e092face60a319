//! Placement: which sites take the chunks of a stripe.
//!
//! Sites are drawn at random without replacement, each with a weight that grows with its free space and falls
//! with its queue (weighted reservoir sampling: Efraimidis and Spirakis, 2006). Random draws spread the chunks
//! of many stripes over all sites, so that a repair has many sources, and the order of the draw decides who
//! holds data and who parity, so that reads of systematic chunks spread too.
//!
//! Cost: O(N log N) for N candidates.

use std::collections::HashMap;

use rand::Rng;
use striate_core::{RackId, SiteId};

/// A site that may take a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its number.
    pub site: SiteId,
    /// Its failure domain.
    pub rack: RackId,
    /// Bytes it can still take.
    pub free_bytes: u64,
    /// Requests waiting there.
    pub queue_requests: u32,
}

/// How many chunks of a stripe one rack may hold: the f that the code tolerates (I6), but enough that `n`
/// chunks fit on `racks` racks at all.
pub fn rack_limit(n: usize, tolerance: usize, racks: usize) -> usize {
    n.div_ceil(racks.max(1)).max(tolerance).max(1)
}

/// Up to `n` distinct sites, at most `rack_limit` in a rack beyond those that `taken` counts there. Fewer than
/// `n` when candidates or racks do not suffice.
pub fn choose_sites(
    rng: &mut impl Rng,
    candidates: &[Candidate],
    n: usize,
    rack_limit: usize,
    taken: &HashMap<RackId, usize>,
) -> Vec<SiteId> {
    let mut drawn: Vec<(f64, &Candidate)> = candidates
        .iter()
        .map(|candidate| {
            let weight = candidate.free_bytes.max(1) as f64 / (1.0 + f64::from(candidate.queue_requests));
            (-f64::ln(1.0 - rng.random::<f64>()) / weight, candidate)
        })
        .collect();
    drawn.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.site.cmp(&b.1.site)));
    take_within_racks(drawn.into_iter().map(|(_, candidate)| candidate), n, rack_limit, taken)
}

/// The first `n` candidates, at most `rack_limit` in a rack beyond those that `taken` counts there.
pub(crate) fn take_within_racks<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    n: usize,
    rack_limit: usize,
    taken: &HashMap<RackId, usize>,
) -> Vec<SiteId> {
    let mut in_rack = taken.clone();
    let mut chosen = Vec::with_capacity(n);
    for candidate in candidates {
        if chosen.len() == n {
            break;
        }
        let count = in_rack.entry(candidate.rack.clone()).or_default();
        if *count < rack_limit {
            *count += 1;
            chosen.push(candidate.site);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::check::check_placement;

    fn candidates(sites: usize, racks: usize) -> Vec<Candidate> {
        let site = |i: usize| Candidate {
            site: SiteId(i as u32 + 1),
            rack: RackId(format!("rack{}", i % racks)),
            free_bytes: 1 << 30,
            queue_requests: 0,
        };
        (0..sites).map(site).collect()
    }

    proptest! {
        #[test]
        fn every_placement_passes_the_checker_and_is_full_when_sites_suffice(
            seed: u64, sites in 1usize..40, racks in 1usize..10, n in 1usize..20, tolerance in 0usize..5,
        ) {
            let racks = racks.min(sites);
            let all = candidates(sites, racks);
            let limit = rack_limit(n, tolerance, racks);
            let mut rng = SmallRng::seed_from_u64(seed);
            let chosen = choose_sites(&mut rng, &all, n, limit, &HashMap::new());
            let rack_of: HashMap<_, _> = all.iter().map(|c| (c.site, c.rack.clone())).collect();
            prop_assert_eq!(check_placement(&chosen, |site| rack_of.get(&site), limit), Ok(()));
            let room: usize = (0..racks).map(|rack| limit.min((sites - rack).div_ceil(racks))).sum();
            prop_assert_eq!(chosen.len(), n.min(room));
        }
    }

    #[test]
    fn draws_follow_free_space() {
        let mut all = candidates(2, 2);
        all[0].free_bytes = 3 << 30;
        let mut rng = SmallRng::seed_from_u64(1);
        let first =
            (0..4_000).filter(|_| choose_sites(&mut rng, &all, 1, 1, &HashMap::new()) == [SiteId(1)]).count();
        assert!((2_850..3_150).contains(&first), "3 of 4 draws expected, {first} of 4000 seen");
    }

    #[test]
    fn a_rack_that_holds_its_share_gets_no_more() {
        let all = candidates(4, 2);
        let taken = HashMap::from([(RackId("rack0".into()), 1)]);
        let chosen = choose_sites(&mut SmallRng::seed_from_u64(2), &all, 4, 1, &taken);
        assert_eq!(chosen.len(), 1);
        assert!(chosen[0] == SiteId(2) || chosen[0] == SiteId(4));
    }
}
