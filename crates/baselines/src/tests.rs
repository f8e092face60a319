//! Tests of the baselines' plans.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_codec::Code;
use striate_core::{SiteId, StripeId};
use striate_plan::{QueryPiece, QueryPlan, ReadPurpose, ReadQuery, SiteCost, SiteQueue};

use crate::read_policy;

mod load_directing;

const POLICIES: [&str; 6] =
    ["random", "late-binding(1)", "late-binding(2,keep)", "least-loaded", "published", "published(1)"];
const STRIPE: StripeId = StripeId(1);

fn plan(
    policy: &str,
    pieces: &[QueryPiece<'_>],
    cost: &dyn Fn(SiteId) -> Option<SiteCost>,
    seed: u64,
) -> QueryPlan {
    let (purpose, queue) = (ReadPurpose::Query, &|_| Some(SiteQueue::default()));
    let query = ReadQuery { pieces, purpose, can_be_asked: &|site| cost(site).is_some(), cost, queue };
    let policy = read_policy(policy).expect("a policy");
    policy.planner().plan(&query, &mut SmallRng::seed_from_u64(seed)).expect("enough chunks")
}

fn idle(_: SiteId) -> Option<SiteCost> {
    Some(SiteCost::of_asking(1.0))
}

#[test]
fn policies_survive_their_text_and_others_are_refused() {
    for text in POLICIES.into_iter().chain(["normal", "adaptive", "cost-model(1)"]) {
        assert_eq!(read_policy(text).expect("a policy").to_string(), text);
    }
    for text in
        ["", "late-binding", "late-binding(x)", "late-binding(1,keep", "random(1)", "published(1,keep)"]
    {
        assert!(read_policy(text).is_err(), "{text}");
    }
}

#[test]
fn each_block_is_determined_with_no_more_than_the_extra_chunks_beyond() {
    let code: Code = "rs(4,2)".parse().unwrap();
    let placed: Vec<Vec<SiteId>> = (0..3).map(|block| (1 + block..7 + block).map(SiteId).collect()).collect();
    let pieces: Vec<_> = (0..)
        .zip(&placed)
        .map(|(id, sites)| QueryPiece::whole(StripeId::new(1, id), &code, sites, 50_000))
        .collect();
    for policy in POLICIES {
        for seed in 0..50 {
            let plan = plan(policy, &pieces, &idle, seed);
            let extra_reads = read_policy(policy).unwrap().extra_reads();
            assert_eq!(plan.extra_chunks, 3 * extra_reads, "{policy}");
            for piece in 0..3 {
                let chunks = plan.reads.iter().flat_map(|read| &read.chunks);
                let mut indices: Vec<_> =
                    chunks.filter(|chunk| chunk.piece == piece).map(|chunk| chunk.index).collect();
                indices.sort_unstable();
                indices.dedup();
                assert_eq!(indices.len(), 4 + extra_reads, "{policy}");
            }
        }
    }
}

#[test]
fn a_random_read_takes_every_chunk_as_often_as_any_other() {
    let code: Code = "rs(2,2)".parse().unwrap();
    let sites: Vec<SiteId> = (1..=4).map(SiteId).collect();
    let piece = QueryPiece::whole(STRIPE, &code, &sites, 50_000);
    let mut counts = [0; 4];
    for seed in 0..4_000 {
        for read in plan("random", &[piece], &idle, seed).reads {
            read.chunks.iter().for_each(|chunk| counts[chunk.index] += 1);
        }
    }
    // 2,000 expected, with a standard deviation of 32.
    assert!(counts.iter().all(|count| (1_850..2_150).contains(count)), "{counts:?}");
}

#[test]
fn the_least_loaded_read_avoids_busy_sites_and_spreads_over_equals() {
    let code: Code = "replica(3)".parse().unwrap();
    let sites: Vec<SiteId> = (1..=3).map(SiteId).collect();
    let pieces = [QueryPiece::whole(STRIPE, &code, &sites, 50_000); 4];
    let cost = |site: SiteId| Some(SiteCost::of_asking(if site.0 == 2 { 9.0 } else { 1.0 }));
    let plan = plan("least-loaded", &pieces, &cost, 1);
    let counts: Vec<_> = plan.reads.iter().map(|read| (read.site.0, read.chunks.len())).collect();
    assert_eq!(counts, [(1, 2), (3, 2)]);
}
