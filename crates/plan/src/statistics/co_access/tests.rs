//! Compares the statistics with a model that keeps whole requests and counts by scanning them.

use std::collections::{BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

/// Requests as sets, oldest first.
#[derive(Default)]
struct Model {
    requests: VecDeque<BTreeSet<StripeId>>,
}

impl Model {
    fn observe(&mut self, limits: CoAccessLimits, request: &[StripeId]) {
        let mut counted = BTreeSet::new();
        for &block in request {
            if counted.len() < limits.request_blocks {
                counted.insert(block);
            }
        }
        if counted.is_empty() {
            return;
        }
        let accesses = |model: &Self| model.requests.iter().map(BTreeSet::len).sum::<usize>();
        while self.requests.len() >= limits.requests || accesses(self) + counted.len() > limits.blocks {
            self.requests.pop_front().expect("a request fits when nothing else is there");
        }
        self.requests.push_back(counted);
    }

    fn count(&self, blocks: &[StripeId]) -> usize {
        self.requests.iter().filter(|request| blocks.iter().all(|block| request.contains(block))).count()
    }
}

fn id(number: u64) -> StripeId {
    StripeId::new(number % 3, number)
}

fn requests(blocks: u64, most: usize) -> impl Strategy<Value = Vec<Vec<StripeId>>> {
    proptest::collection::vec(proptest::collection::vec((0..blocks).prop_map(id), 0..most), 0..60)
}

fn limits() -> impl Strategy<Value = CoAccessLimits> {
    (1..20_usize, 1..60_usize, 1..10_usize).prop_map(|(requests, blocks, request_blocks)| CoAccessLimits {
        requests,
        blocks,
        request_blocks: request_blocks.min(blocks),
    })
}

/// Scans of 1 to 20 keys in key order, with Zipf(1) starts over `blocks` keys: the lab's YCSB-E.
fn zipf_scans(seed: u64, blocks: u64, count: usize) -> Vec<Vec<StripeId>> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let scan = |_| {
        let start = (blocks as f64).powf(rng.random::<f64>()) as u64 - 1;
        let len = rng.random_range(1..=20);
        (start..start + len).map(id).collect()
    };
    (0..count).map(scan).collect()
}

proptest! {
    #[test]
    fn counts_are_those_of_the_requests_in_the_interval(limits in limits(), requests in requests(12, 15)) {
        let (mut statistics, mut model) = (CoAccess::new(limits), Model::default());
        for request in &requests {
            statistics.observe(request.iter().copied());
            model.observe(limits, request);
            let totals = statistics.totals();
            prop_assert_eq!(totals.requests, model.requests.len());
            prop_assert_eq!(totals.accesses, model.requests.iter().map(BTreeSet::len).sum::<usize>());
            let blocks: BTreeSet<_> = model.requests.iter().flatten().copied().collect();
            prop_assert_eq!(totals.blocks, blocks.len());
        }
        for b in (0..12).map(id) {
            let count = model.count(&[b]);
            prop_assert_eq!(statistics.count(b), count);
            let partners: HashMap<_, _> =
                statistics.partners(b, usize::MAX).into_iter().map(|it| (it.block, it.likelihood)).collect();
            for i in (0..12).map(id).filter(|&i| i != b) {
                let together = model.count(&[b, i]);
                prop_assert_eq!(statistics.count_together(b, i), together);
                let likelihood = if count == 0 { 0.0 } else { together as f64 / count as f64 };
                prop_assert_eq!(statistics.likelihood(b, i), likelihood);
                prop_assert_eq!(partners.get(&i).copied().unwrap_or(0.0), likelihood);
            }
        }
    }

    #[test]
    fn the_best_partners_are_the_first_of_all(requests in requests(30, 15), most in 0..10_usize) {
        let mut statistics = CoAccess::default();
        requests.iter().for_each(|request| statistics.observe(request.iter().copied()));
        for b in (0..30).map(id) {
            let all = statistics.partners(b, usize::MAX);
            prop_assert!(all.is_sorted_by(|a, b| a.likelihood >= b.likelihood));
            prop_assert_eq!(statistics.partners(b, most), all[..most.min(all.len())].to_vec());
        }
    }

    #[test]
    fn the_hottest_blocks_are_those_of_most_requests(requests in requests(12, 8), most in 0..14_usize) {
        let mut statistics = CoAccess::default();
        requests.iter().for_each(|request| statistics.observe(request.iter().copied()));
        let mut expected: Vec<StripeId> = (0..12).map(id).filter(|&block| statistics.count(block) > 0).collect();
        expected.sort_by_key(|&block| (std::cmp::Reverse(statistics.count(block)), block));
        expected.truncate(most);
        prop_assert_eq!(statistics.hottest(most), expected);
    }

    #[test]
    fn merged_statistics_are_those_of_all_requests(
        gateways in proptest::collection::vec(requests(12, 8), 0..4),
    ) {
        let observed = |requests: &Vec<Vec<StripeId>>| {
            let mut statistics = CoAccess::default();
            requests.iter().for_each(|request| statistics.observe(request.iter().copied()));
            statistics
        };
        let snapshots: Vec<_> = gateways.iter().map(|requests| observed(requests).snapshot()).collect();
        let text = serde_json::to_string(&snapshots).expect("snapshots are plain data");
        let read: Vec<CoAccessSnapshot> = serde_json::from_str(&text).expect("they read back");
        prop_assert_eq!(&read, &snapshots);
        let merged = CoAccess::merged(CoAccessLimits::default(), &read).expect("they are sound");
        let all = observed(&gateways.into_iter().flatten().collect());
        for b in (0..12).map(id) {
            prop_assert_eq!(merged.partners(b, usize::MAX), all.partners(b, usize::MAX));
            prop_assert_eq!(merged.popularity(b), all.popularity(b));
        }
    }
}

#[test]
fn the_newest_requests_of_every_gateway_stay_when_merged_ones_do_not_fit() {
    let gateway = |writer: u64| {
        let mut statistics = CoAccess::default();
        (0..10).for_each(|sequence| statistics.observe([StripeId::new(writer, sequence)]));
        statistics.snapshot()
    };
    let limits = CoAccessLimits { requests: 6, ..CoAccessLimits::default() };
    let merged = CoAccess::merged(limits, &[gateway(1), gateway(2)]).expect("they are sound");
    for writer in [1, 2] {
        let kept = (0..10).filter(|&sequence| merged.count(StripeId::new(writer, sequence)) == 1);
        assert_eq!(kept.collect::<Vec<_>>(), [7, 8, 9]);
    }
}

#[test]
fn a_snapshot_that_names_what_it_has_not_is_refused() {
    let merged = |text: &str| {
        let snapshot: CoAccessSnapshot = serde_json::from_str(text).expect("a snapshot");
        CoAccess::merged(CoAccessLimits::default(), &[snapshot]).map(|_| ())
    };
    assert_eq!(merged(r#"{"blocks":[[1,1]],"requests":[[0]]}"#), Ok(()));
    assert_eq!(
        merged(r#"{"blocks":[[1,1]],"requests":[[0],[1]]}"#),
        Err(SnapshotError::Block { position: 1, blocks: 1 })
    );
}

#[test]
fn memory_stays_within_its_bound_whatever_is_asked() {
    let mut statistics = CoAccess::default();
    let mut next = 0;
    for len in (0..40_000_u64).map(|request| if request % 100 == 0 { 5_000 } else { request % 60 }) {
        statistics.observe((next..next + len).map(id));
        next += len;
    }
    let totals = statistics.totals();
    assert!(totals.accesses <= 100_000 && totals.requests <= 5_000, "{totals:?}");
    assert!(totals.left_out > 0);
    assert!(totals.memory_bytes <= 16 << 20, "{totals:?}");
}

#[test]
fn a_full_interval_of_the_papers_requests_takes_little() {
    let mut statistics = CoAccess::default();
    zipf_scans(1, 1_000_000, 20_000).into_iter().for_each(|request| statistics.observe(request));
    let totals = statistics.totals();
    assert_eq!(totals.requests, 5_000);
    assert!(totals.memory_bytes <= 5 << 20, "{totals:?}");
}

#[test]
fn popular_blocks_are_drawn_more_often() {
    let mut statistics = CoAccess::default();
    assert_eq!(statistics.draw(&mut SmallRng::seed_from_u64(0)), None);
    for request in 0..100 {
        statistics.observe([id(1)].into_iter().chain((request < 10).then_some(id(2))));
    }
    let mut rng = SmallRng::seed_from_u64(3);
    let drawn = (0..11_000).filter(|_| statistics.draw(&mut rng) == Some(id(2))).count();
    assert!((800..1_200).contains(&drawn), "{drawn} of 11,000, where 1,000 are expected");
}

#[test]
fn numbers_may_wrap() {
    let limits = CoAccessLimits { requests: 3, ..CoAccessLimits::default() };
    let mut statistics = CoAccess::new(limits);
    statistics.interval.start_at(u32::MAX - 5);
    for request in 0..20_u64 {
        statistics.observe([id(0), id(request), id(request + 1)]);
        assert_eq!(statistics.count(id(0)), statistics.totals().requests);
        assert_eq!(statistics.likelihood(id(request), id(0)), 1.0);
    }
    assert_eq!(statistics.partners(id(0), 2).len(), 2);
}
