//! Searches for column points of every LRC of at most 20 chunks: the first seed with which the code is maximally
//! recoverable, or else the best seed tried. Prints the table of `src/lrc_points.rs` and, as comments, the fractions.
//!
//! `cargo run --release -p striate-codec --example search_lrc_points`

use striate_codec::Code;
use striate_codec::lrc::{Recoverability, SMALL_N, recoverability, sampled_recoverability, seeded_points};

/// Number of seeds tried per code with up to 3 global parities, and with more, where maximal codes are rare.
const SEEDS: [u16; 2] = [4000, 40];
/// Number of random losses of which a seed must decode at least as many as the best so far before all losses are
/// counted.
const SAMPLES: u64 = 300;

fn main() {
    for k in 2..SMALL_N {
        for l in (1..=k / 2).filter(|l| k % l == 0) {
            for g in 1..=8 {
                if k + l + g <= SMALL_N {
                    search(k, l, g);
                }
            }
        }
    }
}

fn failures(found: Recoverability) -> u64 {
    found.possible - found.decoded
}

fn search(k: usize, l: usize, g: usize) {
    let natural_points: Vec<u8> = (0..k as u8).collect();
    let Ok(code) = Code::lrc_with_points(k, l, g, &natural_points) else { return };
    let mut best = recoverability(&code);
    let mut best_sampled = failures(sampled_recoverability(&code, SAMPLES, 0));
    let mut best_seed = None;
    for seed in 0..SEEDS[usize::from(g > 3)] {
        if best.is_maximal() {
            break;
        }
        let points = seeded_points(k, g, u64::from(seed));
        let code = Code::lrc_with_points(k, l, g, &points).expect("the same parameters");
        let sampled = failures(sampled_recoverability(&code, SAMPLES, 0));
        if sampled <= best_sampled {
            let found = recoverability(&code);
            if found.decoded > best.decoded {
                (best, best_sampled, best_seed) = (found, sampled, Some(seed));
            }
        }
    }
    if let Some(seed) = best_seed {
        println!("    ({k}, {l}, {g}, {seed}), // {} of {}", best.decoded, best.possible);
    }
}
