//! Plans of queries under every policy.

use std::collections::HashSet;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_codec::{ChunkSet, Code};
use striate_core::{SiteId, StripeId};

use super::normal::plan_normally;
use super::piece::{QueryChunk, QueryPiece, QueryPlan};
use super::policy::{ReadPolicy, ReadPurpose, ReadQuery};
use crate::cost::{SiteCost, SiteQueue};

const POLICIES: [&str; 4] = ["normal", "cost-model", "cost-model(1)", "adaptive"];
const CHUNK_LEN: u32 = 50_000;
const STRIPE: StripeId = StripeId(1);

fn code(text: &str) -> Code {
    text.parse().expect("a code")
}

fn sites(first: u32, count: usize) -> Vec<SiteId> {
    (first..).take(count).map(SiteId).collect()
}

fn set(indices: &[usize]) -> ChunkSet {
    indices.iter().copied().collect()
}

fn plan(
    policy: &str,
    purpose: ReadPurpose,
    pieces: &[QueryPiece<'_>],
    cost: &dyn Fn(SiteId) -> Option<SiteCost>,
    seed: u64,
) -> Result<QueryPlan, striate_codec::CodecError> {
    let policy: ReadPolicy = policy.parse().expect("a policy");
    let can_be_asked = |site| cost(site).is_some();
    let query = ReadQuery {
        pieces,
        purpose,
        can_be_asked: &can_be_asked,
        cost,
        queue: &|_| Some(SiteQueue::default()),
    };
    match policy.is_worth_planning(&query) {
        true => policy.planner().plan(&query, &mut SmallRng::seed_from_u64(seed)),
        false => plan_normally(&query),
    }
}

fn idle(_: SiteId) -> Option<SiteCost> {
    Some(SiteCost::of_asking(1.0))
}

fn asked(plan: &QueryPlan) -> Vec<u32> {
    plan.reads.iter().map(|read| read.site.0).collect()
}

proptest! {
    /// Every plan is legal: chunks that exist, on sites that can be asked, each once. Together with the awaited chunks
    /// they determine what each piece wants, with at most δ extra. Otherwise the losses are truly too many.
    #[test]
    fn plans_ask_each_site_once_for_determining_chunks(
        which in 0usize..6, policy in 0usize..4, down: u16, gone: u32, wanted: u16, before: u32, seed: u64, overlap in 1u32..5,
    ) {
        let code = code(["rs(2,2)", "rs(4,2)", "lrc(6,2,2)", "lrc(12,3,2)", "lrc(4,2,3)", "replica(3)"][which]);
        let mut placed: Vec<Vec<SiteId>> = (0..3).map(|i| sites(1 + i * overlap, code.n())).collect();
        placed[1].iter_mut().enumerate().for_each(|(i, site)| if gone >> i & 1 == 1 { site.0 = 0 });
        let is_up = |site: SiteId| down >> (site.0 % 16) & 1 == 0;
        let mut pieces: Vec<_> =
            placed.iter().map(|sites| QueryPiece::whole(STRIPE, &code, sites, CHUNK_LEN)).collect();
        // The last piece wants only some chunks. Some were requested already, every second of them without success.
        let some: ChunkSet = (0..code.k()).filter(|i| wanted >> i & 1 == 1).collect();
        pieces[2].wanted = if some.is_empty() { set(&[0]) } else { some };
        pieces[2].requested = (0..code.n()).filter(|i| before >> i & 1 == 1).collect();
        pieces[2].awaited = pieces[2].requested.iter().step_by(2).collect();
        let cost = |site| is_up(site).then_some(SiteCost::of_asking(f64::from(site.0)));
        let can_be_had = |piece: &QueryPiece<'_>| -> ChunkSet {
            piece.available(&|site| cost(site).is_some()).chain(piece.awaited.iter()).collect()
        };
        match plan(POLICIES[policy], ReadPurpose::Query, &pieces, &cost, seed) {
            Err(_) => prop_assert!(pieces.iter().any(|piece| !code.determines(&can_be_had(piece), &piece.wanted))),
            Ok(plan) => {
                prop_assert!(plan.reads.is_sorted_by(|a, b| a.site < b.site));
                for (number, piece) in pieces.iter().enumerate() {
                    let asked = plan.reads.iter().flat_map(|read| {
                        read.chunks.iter().filter(|c| c.piece == number).map(|c| (read.site, c.index))
                    });
                    let asked: Vec<(SiteId, usize)> = asked.collect();
                    let indices: ChunkSet = asked.iter().map(|(_, index)| *index).collect();
                    prop_assert!(asked.iter().all(|&(site, index)| piece.sites[index] == site && is_up(site)));
                    prop_assert_eq!(indices.len(), asked.len());
                    prop_assert!(indices.intersection(&piece.requested).is_empty());
                    let had: ChunkSet = indices.iter().chain(piece.awaited.iter()).collect();
                    prop_assert!(code.determines(&had, &piece.wanted));
                    if code.tolerance() == code.parity_count() && !piece.is_determined() {
                        prop_assert!(had.len() <= code.k().max(piece.awaited.len()) + 1);
                    }
                }
            }
        }
    }
}

#[test]
fn the_normal_read_takes_the_data_chunks() {
    let (code, sites) = (code("rs(4,2)"), sites(1, 6));
    let whole = QueryPiece::whole(STRIPE, &code, &sites, CHUNK_LEN);
    assert_eq!(asked(&plan("normal", ReadPurpose::Query, &[whole], &idle, 1).unwrap()), [1, 2, 3, 4]);
    let part = QueryPiece::part(STRIPE, &code, &sites, 4_096, set(&[2]));
    assert_eq!(asked(&plan("normal", ReadPurpose::Query, &[part], &idle, 1).unwrap()), [3]);
}

/// The default plans nothing for a small read-ahead of one piece; for a large one it avoids an expensive site.
#[test]
fn the_default_says_itself_when_planning_is_not_worth_it() {
    let (code, sites) = (code("rs(4,2)"), sites(1, 6));
    let dear = |site: SiteId| Some(SiteCost::of_asking(if site.0 == 2 { 90.0 } else { 1.0 }));
    let reads = |len| {
        let piece = QueryPiece::whole(STRIPE, &code, &sites, len);
        asked(&plan("adaptive", ReadPurpose::Ahead, &[piece], &dear, 1).unwrap())
    };
    assert_eq!(reads(2_560), [1, 2, 3, 4]);
    assert!(!reads(1 << 20).contains(&2));
}

/// A part is read from its own chunk, or, if that is unavailable, from a determining set: the local group of an LRC.
#[test]
fn parts_take_their_own_chunks_or_what_determines_them() {
    let (code, sites) = (code("lrc(12,3,2)"), sites(1, 17));
    for policy in POLICIES {
        let part = QueryPiece::part(STRIPE, &code, &sites, 4_096, set(&[5]));
        assert_eq!(asked(&plan(policy, ReadPurpose::Query, &[part], &idle, 1).unwrap()), [6], "{policy}");
        let late = QueryPiece { requested: set(&[5]), ..part };
        let around = asked(&plan(policy, ReadPurpose::Rest, &[late], &idle, 1).unwrap());
        assert_eq!(around, [5, 7, 8, 14], "{policy}: the group of chunks 4 to 7 and their parity");
    }
}

/// Blocks on overlapping sites: the plan asks few sites, and an expensive one only if nothing else suffices.
#[test]
fn the_cost_model_asks_few_and_cheap_sites() {
    let code = code("rs(2,2)");
    let placed = [[1, 2, 3, 4], [3, 4, 5, 6], [3, 4, 7, 8]].map(|of| of.map(SiteId));
    let pieces = [0, 1, 2].map(|block| QueryPiece::whole(STRIPE, &code, &placed[block], CHUNK_LEN));
    let reads = |cost: fn(SiteId) -> Option<SiteCost>| {
        asked(&plan("cost-model", ReadPurpose::Query, &pieces, &cost, 1).unwrap())
    };
    assert_eq!(reads(idle), [3, 4]);
    assert_eq!(reads(|site| Some(SiteCost::of_asking(if site.0 == 3 { 9.0 } else { 1.0 }))).len(), 4);
    assert!(!reads(|site| (site.0 != 4).then_some(SiteCost::of_asking(1.0))).contains(&4));
}

/// A block whose chunk 1 arrived and whose chunk 0 is late: one more chunk completes it, and chunk 0 is not requested
/// again.
#[test]
fn what_was_asked_before_is_counted_if_awaited_and_not_asked_again() {
    let (code, sites) = (code("rs(2,2)"), sites(1, 4));
    for policy in POLICIES {
        let whole = QueryPiece::whole(STRIPE, &code, &sites, CHUNK_LEN);
        let piece = QueryPiece { requested: set(&[0, 1]), awaited: set(&[1]), ..whole };
        let plan = plan(policy, ReadPurpose::Rest, &[piece], &idle, 1).unwrap();
        let asked: Vec<_> = plan.reads.iter().flat_map(|read| &read.chunks).collect();
        assert!(matches!(asked[..], [QueryChunk { index: 2 | 3, .. }]), "{policy}: {asked:?}");
    }
}

/// All six sites have a chunk of each block. With one extra read the plan asks five of them, without the expensive one;
/// among equally cheap sites the choice is random.
#[test]
fn the_cost_model_prefers_data_chunks_on_the_sites_that_it_asks() {
    let (code, sites) = (code("rs(4,2)"), sites(1, 6));
    let dear = |site: SiteId| Some(SiteCost::of_asking(if site.0 == 2 { 3.0 } else { 1.0 }));
    let piece = QueryPiece::whole(STRIPE, &code, &sites, CHUNK_LEN);
    let mut drawn = HashSet::new();
    for seed in 0..20 {
        let plan_of_two = plan("adaptive", ReadPurpose::Query, &[piece, piece], &dear, seed).unwrap();
        assert_eq!(asked(&plan_of_two), [1, 3, 4, 5, 6], "five of six, without the dear one");
        drawn.insert(asked(&plan("cost-model", ReadPurpose::Query, &[piece], &idle, seed).unwrap()));
    }
    assert!(drawn.len() > 5, "which sites are asked is drawn among equals: {drawn:?}");
}

/// Two blocks whose data is on different sites of the same six: four sites would suffice for both if decoding were
/// free.
#[test]
fn the_cost_model_asks_more_sites_where_decoding_is_dear() {
    let code = code("rs(4,2)");
    let placed = [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 1, 2]].map(|of| of.map(SiteId));
    let pieces = [0, 1].map(|block| QueryPiece::whole(STRIPE, &code, &placed[block], CHUNK_LEN));
    let plan = |decode_per_byte| {
        let cost = move |_| Some(SiteCost { decode_per_byte, ..SiteCost::of_asking(1.0) });
        plan("cost-model", ReadPurpose::Query, &pieces, &cost, 1).unwrap()
    };
    assert_eq!(plan(0.0).reads.len(), 4);
    let dear = plan(1e-4);
    assert_eq!(dear.reads.len(), 6);
    assert!(dear.reads.iter().flat_map(|read| &read.chunks).all(|chunk| chunk.index < 4), "{dear:?}");
}

/// A packed object whose own site no other piece needs, and a block that reads the rest of its local group anyway.
#[test]
fn the_cost_model_reads_packed_objects_where_sites_are_asked_anyway() {
    let (lrc, split) = (code("lrc(6,2,2)"), code("rs(2,1)"));
    let (of_packed, of_block) = (sites(1, 10), [2, 3, 7].map(SiteId));
    let object = QueryPiece::part(STRIPE, &lrc, &of_packed, 4_096, set(&[0]));
    let block = QueryPiece::whole(STRIPE, &split, &of_block, CHUNK_LEN);
    let plan =
        |policy, pieces: &[QueryPiece<'_>], cost| plan(policy, ReadPurpose::Query, pieces, cost, 1).unwrap();
    assert_eq!(asked(&plan("cost-model", &[object], &idle)), [1]);
    let with_block = plan("cost-model(1)", &[object, block], &idle);
    assert_eq!((asked(&with_block), with_block.extra_chunks), (vec![2, 3, 7], 1));
    let cost = with_block.cost.expect("it is minimised");
    assert!(cost.gap() == 0.0 && cost.cost > 3.0, "{cost:?}");
    // Site 1 costs more than the three sites of the group: without the block the object is read around it too.
    let dear = |site: SiteId| Some(SiteCost::of_asking(if site.0 == 1 { 9.0 } else { 1.0 }));
    assert_eq!(asked(&plan("cost-model", &[object], &dear)), [2, 3, 7]);
    let copies = [SiteId(20)];
    let copied = plan("cost-model", &[QueryPiece { copies: &copies, ..object }], &dear);
    assert_eq!((asked(&copied), copied.reads[0].chunks[0].index), (vec![20], 10));
}

#[test]
fn one_extra_chunk_is_asked_for_only_while_nobody_waits() {
    let (code, sites) = (code("rs(4,2)"), sites(1, 6));
    let pieces = [QueryPiece::whole(STRIPE, &code, &sites, CHUNK_LEN)];
    let extra = |waiting: f64| {
        let policy: ReadPolicy = "adaptive".parse().unwrap();
        let query = ReadQuery {
            pieces: &pieces,
            purpose: ReadPurpose::Query,
            can_be_asked: &|_| true,
            cost: &idle,
            queue: &|_| Some(SiteQueue { waiting, bytes: 0.0 }),
        };
        policy.planner().plan(&query, &mut SmallRng::seed_from_u64(1)).unwrap().extra_chunks
    };
    assert_eq!((extra(0.0), extra(2.0)), (1, 0));
}
