//! Measures processor time that virtual time does not see: encoding, decoding, planning, and evaluating moves.
//!
//! The work is a client's own on blocks of 100 KB, over more data than the inner caches hold. The fastest of many
//! rounds counts, because other load on the machine can only slow them down.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use striate_baselines::random::Random;
use striate_codec::{Code, crc32c, crc32c_append};
use striate_core::{SiteId, StripeId};
use striate_plan::movement::instances::MovementShape;
use striate_plan::movement::{MovementBudget, Objective, select_movement};
use striate_plan::{CostModel, QueryPiece, ReadPolicy, ReadPurpose, ReadQuery, SiteCost, SiteQueue};
use striate_runtime::Runtime;

use crate::calibration::ProcessorCost;

const CHUNK_LEN: usize = 50_000;
const GRANULE_LEN: usize = 64 << 10;
/// Blocks per round: 25 MB of chunks.
const BLOCKS: usize = 128;
const ROUNDS: usize = 40;
/// Queries per round, and blocks per query.
const QUERIES: usize = 1_000;
const QUERY_BLOCKS: usize = 10;
const SITES: u32 = 32;

/// Measures the costs on this machine for RS(2,2). `clock` is the machine's real clock.
pub fn measure(clock: &Runtime) -> ProcessorCost {
    let code: Code = "rs(2,2)".parse().expect("a code");
    let mut stripes: Vec<Vec<Vec<u8>>> = (0..BLOCKS as u64).map(random_data).collect();
    let encode_s = fastest(clock, || stripes.iter_mut().for_each(|chunks| encode(&code, chunks)));
    let stripes: Vec<Vec<Bytes>> =
        stripes.into_iter().map(|chunks| chunks.into_iter().map(Bytes::from).collect()).collect();
    let decode_s = fastest(clock, || {
        let crc = stripes.iter().fold(0, |crc, chunks| crc ^ decode(&code, chunks));
        std::hint::black_box(crc);
    });
    let bytes = (BLOCKS * 2 * CHUNK_LEN) as f64;
    ProcessorCost {
        encode_bytes_per_s: bytes / encode_s,
        decode_bytes_per_s: bytes / decode_s,
        plan_ns_per_chunk: plan_ns_per_chunk(clock, &ReadPolicy::new(Random::default())),
        optimise_ns_per_chunk: plan_ns_per_chunk(clock, &ReadPolicy::new(CostModel::default())),
        published_move_ns: move_ns(clock, Objective::published()),
        improved_move_ns: move_ns(clock, Objective::improved()),
    }
}

/// Measures the evaluation of a candidate move in nanoseconds, for RS(2,2) in groups of eight with 24 partners for
/// each block. `clock` is the machine's real clock.
pub fn move_ns(clock: &Runtime, objective: Objective) -> f64 {
    let extra_reads = usize::from(objective.counts_requests());
    let shape = MovementShape {
        sites: SITES,
        racks: SITES,
        k: 2,
        r: 2,
        extra_reads,
        blocks: 512,
        group: 8,
        partners: 24,
    };
    let drawn = shape.draw(1);
    let candidates: Vec<_> = drawn.blocks.iter().map(|block| block.id).collect();
    let state = objective.state(drawn.sites, drawn.blocks, &drawn.requests, drawn.traffic);
    let budget = MovementBudget { moves: 10_000, patience: usize::MAX };
    let mut evaluated = 1;
    let round_s = fastest(clock, || {
        evaluated = select_movement(&state, objective, candidates.iter().copied(), budget).evaluated;
    });
    1e9 * round_s / evaluated.max(1) as f64
}

/// Measures the planning time per chunk of a sufficient set in nanoseconds, for RS(2,2). `clock` is the machine's
/// real clock.
pub fn plan_ns_per_chunk(clock: &Runtime, policy: &ReadPolicy) -> f64 {
    let code: Code = "rs(2,2)".parse().expect("a code");
    1e9 * plan(clock, &code, policy) / (QUERIES * QUERY_BLOCKS * code.k()) as f64
}

/// Returns two random data chunks, and room for two parities.
fn random_data(seed: u64) -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut chunks = vec![vec![0; CHUNK_LEN]; 4];
    chunks[..2].iter_mut().for_each(|chunk| rng.fill_bytes(chunk));
    chunks
}

/// Computes the parities and the checksums of all four chunks in one pass, as a write does.
fn encode(code: &Code, chunks: &mut [Vec<u8>]) {
    let (data, parity) = chunks.split_at_mut(2);
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    let checksums = code.encode_and_checksum(&[&data[0], &data[1]], &mut parity, GRANULE_LEN);
    std::hint::black_box(checksums.expect("chunks of equal length").chunk_checksum(3));
}

/// Decodes the first data chunk from a parity and the second; returns the block's checksum.
fn decode(code: &Code, chunks: &[Bytes]) -> u32 {
    let plan = code.decode_plan(&[1, 2], &[0]).expect("two chunks suffice");
    let sources: Vec<&[u8]> = plan.sources().iter().map(|&index| &chunks[index][..]).collect();
    let mut missing = vec![0; CHUNK_LEN];
    plan.apply(&sources, &mut [&mut missing]).expect("chunks of equal length");
    crc32c_append(crc32c(&missing), &chunks[1])
}

/// Returns the seconds of a round of queries on sites whose costs differ.
fn plan(clock: &Runtime, code: &Code, policy: &ReadPolicy) -> f64 {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut place = || -> Vec<SiteId> {
        let first = rng.next_u32() % SITES;
        (0..4).map(|index| SiteId(1 + (first + 7 * index) % SITES)).collect()
    };
    let places: Vec<Vec<SiteId>> = (0..QUERIES + QUERY_BLOCKS).map(|_| place()).collect();
    let mut pieces = Vec::with_capacity(places.len());
    for (id, sites) in (0..).zip(&places) {
        pieces.push(QueryPiece::whole(StripeId::new(1, id), code, sites, CHUNK_LEN as u32));
    }
    fastest(clock, || {
        let (mut rng, mut planner) = (SmallRng::seed_from_u64(2), policy.planner());
        for pieces in pieces.windows(QUERY_BLOCKS).take(QUERIES) {
            let cost = |site: SiteId| Some(SiteCost::of_asking(1.0 + f64::from(site.0 % 7)));
            let query = ReadQuery {
                pieces,
                purpose: ReadPurpose::Query,
                can_be_asked: &|_| true,
                cost: &cost,
                queue: &|_| Some(SiteQueue::default()),
            };
            let planned = planner.plan(&query, &mut rng);
            std::hint::black_box(planned.expect("every chunk can be had"));
        }
    })
}

fn fastest(clock: &Runtime, mut round: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let began = clock.uptime();
        round();
        (clock.uptime() - began).as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measured work is correct: the decoded chunk equals the encoded one.
    #[test]
    fn the_measured_work_is_right() {
        let code: Code = "rs(2,2)".parse().unwrap();
        let mut chunks = random_data(3);
        encode(&code, &mut chunks);
        let chunks: Vec<Bytes> = chunks.into_iter().map(Bytes::from).collect();
        assert_eq!(decode(&code, &chunks), crc32c(&[&chunks[0][..], &chunks[1][..]].concat()));
    }
}
