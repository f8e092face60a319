use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::catalogue::Catalogue;
use super::figures::{PUBLISHED, writes};
use super::simulation::run;
use super::{Scheme, Setting};

/// The load of each server if every block is read as often as it is popular: over the copies, or the splits.
fn loads(setting: &Setting, scheme: Scheme, seed: u64) -> Vec<f64> {
    let catalogue = Catalogue::draw(setting, scheme, seed);
    let mut loads = vec![0.0; setting.servers];
    for (block, places) in catalogue.places.iter().enumerate() {
        let share = catalogue.probability(block) / places.len() as f64;
        places.iter().for_each(|&server| loads[server] += share);
    }
    loads
}

fn variance(setting: &Setting, scheme: Scheme) -> f64 {
    let mean = 1.0 / setting.servers as f64;
    let all: Vec<f64> = (0..300).flat_map(|seed| loads(setting, scheme, seed)).collect();
    all.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / all.len() as f64
}

/// Theorem 1: with splits on servers at random, a server's load varies k times less than with whole blocks. Without parities and
/// copies; also under skew. The theorem draws each split's server by itself; distinct servers vary less still.
#[test]
fn splits_make_the_load_vary_k_times_less() {
    for exponent in [0.0, 0.9] {
        let setting = Setting { exponent, blocks: 200, overhead: 0.0, ..Setting::PAPER };
        let ratio = variance(&setting, Scheme::SelectiveReplication)
            / variance(&setting, Scheme::EcCache { extra: 0 });
        // Distinct ones of n servers: k (n − 1) / (n − k).
        let (n, k) = (setting.servers as f64, setting.splits as f64);
        let expected = k * (n - 1.0) / (n - k);
        assert!((0.9..1.1).contains(&(ratio / expected)), "{exponent}: {ratio} instead of {expected}");
        assert!(ratio >= k);
    }
}

/// §5.2: where each flow is late with probability p, a read of k of them is late with 1 − (1 − p)^k.
#[test]
fn a_read_of_many_flows_is_late_more_often_as_the_paper_says() {
    let (p, k, mut rng) = (0.01, 10, SmallRng::seed_from_u64(1));
    let late = (0..100_000).filter(|_| (0..k).any(|_| rng.random::<f64>() < p)).count() as f64 / 1e5;
    let expected = 1.0 - (1.0f64 - p).powi(k);
    assert!((late / expected - 1.0).abs() < 0.05, "{late} instead of {expected}");
    // And so the model: without anything else that delays, reads that stall are those of which a flow does.
    let quiet = Setting { stalls: p, delay_sigma: 0.0, clients: 1, ..Setting::PAPER };
    let p95 = run(&quiet, Scheme::EcCache { extra: 0 }, 4_000, 3);
    assert!(p95.p95_ms > 700.0 && p95.median_ms < 200.0, "{p95:?}");
    let saved = run(&quiet, PUBLISHED, 4_000, 3);
    assert!(saved.p95_ms < 200.0, "one more flow than is needed: {saved:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let setting = Setting { has_background: true, lost: Some(0.5), ..Setting::PAPER };
    for scheme in [Scheme::SelectiveReplication, Scheme::SplitReplication, PUBLISHED, Scheme::Ours] {
        assert_eq!(run(&setting, scheme, 300, 7), run(&setting, scheme, 300, 7));
    }
}

#[test]
fn encoding_is_a_small_part_of_a_write() {
    for write in writes() {
        assert!(write.encode_s < 0.1 * write.coded_s, "{write:?}");
    }
}
