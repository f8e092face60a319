//! Queries with pieces that want one chunk, under the default policy.

use std::collections::HashSet;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_codec::{ChunkSet, Code, CodecError};
use striate_core::{SiteId, StripeId};

use crate::cost::{SiteCost, SiteQueue};
use crate::read::adaptive::Adaptive;
use crate::read::normal::plan_normally;
use crate::read::options::degraded_options;
use crate::read::piece::{QueryPiece, QueryPlan};
use crate::read::policy::{Policy, ReadPolicy, ReadPurpose, ReadQuery};

const LEN: u32 = 16_384;
/// The transfer of an object takes as long as a request.
const PER_BYTE: f64 = 1.0 / LEN as f64;

fn code(text: &str) -> Code {
    text.parse().expect("a code")
}

fn set(indices: &[usize]) -> ChunkSet {
    indices.iter().copied().collect()
}

fn sites(first: u32, count: usize) -> Vec<SiteId> {
    (first..).take(count).map(SiteId).collect()
}

/// A packed object in chunk `index`.
fn packed<'a>(code: &'a Code, sites: &'a [SiteId], index: usize) -> QueryPiece<'a> {
    QueryPiece::part(StripeId(1), code, sites, LEN, set(&[index]))
}

/// Calls `look` with a query of these pieces; `queue` is the number of objects queued at each site, `None` if it is
/// unreachable.
fn with_query<R>(
    purpose: ReadPurpose,
    pieces: &[QueryPiece<'_>],
    queue: &dyn Fn(u32) -> Option<f64>,
    look: impl FnOnce(&ReadQuery<'_>) -> R,
) -> R {
    let can_be_asked = |site: SiteId| queue(site.0).is_some();
    let cost = |site: SiteId| {
        queue(site.0)?;
        Some(SiteCost { asking: 1.0, per_byte: PER_BYTE, decode_per_byte: 0.0 })
    };
    let queue = |site: SiteId| Some(SiteQueue { waiting: 0.0, bytes: queue(site.0)? / PER_BYTE });
    look(&ReadQuery { pieces, purpose, can_be_asked: &can_be_asked, cost: &cost, queue: &queue })
}

fn plan(
    policy: &str,
    pieces: &[QueryPiece<'_>],
    queue: &dyn Fn(u32) -> Option<f64>,
    seed: u64,
) -> Result<QueryPlan, CodecError> {
    let policy: ReadPolicy = policy.parse().expect("a policy");
    with_query(ReadPurpose::Query, pieces, queue, |query| match policy.is_worth_planning(query) {
        true => policy.planner().plan(query, &mut SmallRng::seed_from_u64(seed)),
        false => plan_normally(query),
    })
}

fn asked(plan: &QueryPlan) -> Vec<u32> {
    plan.reads.iter().map(|read| read.site.0).collect()
}

/// Returns the sites asked for one piece with these queues; site 1 has chunk 0, and so on.
fn asked_for_one(policy: &str, code: &Code, index: usize, queue: &dyn Fn(u32) -> Option<f64>) -> Vec<u32> {
    let sites = sites(1, code.n());
    asked(&plan(policy, &[packed(code, &sites, index)], queue, 1).expect("it can be read"))
}

fn hot(site: u32, queue: f64) -> impl Fn(u32) -> Option<f64> {
    move |of| Some(if of == site { queue } else { 0.0 })
}

#[test]
fn a_packed_object_behind_a_queue_is_read_from_its_group_or_from_any_k() {
    let (rs, lrc) = (code("rs(6,3)"), code("lrc(6,2,2)"));
    for policy in ["adaptive", "adaptive(0.1)"] {
        assert_eq!(asked_for_one(policy, &lrc, 2, &hot(3, 9.0)), [1, 2, 7]);
        assert_eq!(asked_for_one(policy, &lrc, 2, &hot(3, 0.0)), [3]);
        assert_eq!(asked_for_one(policy, &rs, 2, &hot(3, 9.0)).len(), 6);
        assert!(!asked_for_one(policy, &rs, 2, &hot(3, 9.0)).contains(&3));
    }
    // Compares (1 + w) (2 + q) with 2 + 12 w, or with 2 + 6 w in a group.
    assert_eq!(asked_for_one("adaptive", &rs, 2, &hot(3, 0.55)), [3]);
    assert_eq!(asked_for_one("adaptive", &lrc, 2, &hot(3, 0.55)).len(), 3);
    assert_eq!(asked_for_one("adaptive(1)", &lrc, 2, &hot(3, 1.9)), [3]);
    assert_eq!(asked_for_one("adaptive(1)", &lrc, 2, &hot(3, 2.1)).len(), 3);
}

/// Six other chunks arrive as soon as the local group and avoid its loaded site.
#[test]
fn of_sets_that_end_together_the_one_on_the_idlest_sites_is_read() {
    let lrc = code("lrc(6,2,2)");
    let queue = |site: u32| {
        Some(if site == 2 {
            9.0
        } else if [1, 3, 7].contains(&site) {
            3.0
        } else {
            0.0
        })
    };
    let read = asked_for_one("adaptive", &lrc, 1, &queue);
    assert_eq!(read.iter().filter(|site| [1, 3, 7].contains(*site)).count(), 1, "{read:?}");
}

/// The local group is as late as the chunk itself: six others are read, at most three of them from the other group.
#[test]
fn behind_a_loaded_group_any_k_others_are_read() {
    let lrc = code("lrc(6,2,2)");
    let queue = |site: u32| Some(if [1, 2].contains(&site) { 9.0 } else { 0.0 });
    assert_eq!(asked_for_one("adaptive", &lrc, 1, &queue).len(), 6);
    let read: ChunkSet =
        asked_for_one("adaptive", &lrc, 1, &queue).iter().map(|&site| site as usize - 1).collect();
    assert!(lrc.determines(&read, &set(&[1])) && !read.contains(0), "{read:?}");
}

#[test]
fn a_copy_is_a_further_way_to_read_a_chunk() {
    let (code, sites) = (code("rs(6,3)"), sites(1, 9));
    let copies = [SiteId(20), SiteId(21)];
    let piece = QueryPiece { copies: &copies, ..packed(&code, &sites, 4) };
    let queue = |site: u32| {
        Some(match site {
            5 => 3.0,
            20 => 1.0,
            _ => 0.0,
        })
    };
    let read = plan("adaptive", &[piece], &queue, 1).unwrap();
    assert_eq!((asked(&read), read.reads[0].chunks[0].index), (vec![21], 10));
    assert_eq!(asked(&plan("adaptive", &[piece], &|_| Some(0.0), 1).unwrap()), [5], "nobody waits");
    let away = |site: u32| (site != 5).then_some(if site == 21 { 1.0 } else { 0.0 });
    assert_eq!(asked(&plan("adaptive", &[piece], &away, 1).unwrap()), [20], "the chunk's site is away");
}

/// Two objects in one chunk, and a block on overlapping sites: all of it is one plan.
#[test]
fn packed_objects_and_blocks_are_one_plan() {
    let (rs, split) = (code("rs(6,3)"), code("rs(4,2)"));
    let (of_packed, of_block) = (sites(1, 9), sites(1, 6));
    let block = QueryPiece::whole(StripeId(2), &split, &of_block, LEN);
    let pieces = [packed(&rs, &of_packed, 0), block, packed(&rs, &of_packed, 0)];
    let read = plan("adaptive", &pieces, &|_| Some(0.0), 1).unwrap();
    let from_first = read.reads.iter().find(|read| read.site.0 == 1).expect("site 1 is asked");
    assert_eq!(from_first.chunks.len(), 2, "the objects, and not the block: {read:?}");
    assert_eq!(read.extra_chunks, 0);
    let cost = read.cost.expect("it is minimised");
    assert!(cost.lower_bound > 0.0 && cost.gap() < 0.5, "{cost:?}");
    // If site 1 has a queue, the objects are read around it, and the block avoids it.
    let read = plan("adaptive", &pieces, &hot(1, 30.0), 1).unwrap();
    assert!(!asked(&read).contains(&1));
    let of_block = read.reads.iter().flat_map(|read| &read.chunks).filter(|chunk| chunk.piece == 1);
    assert_eq!(of_block.count(), 4);
}

#[test]
fn what_was_asked_for_before_is_read_normally_and_counts_as_load() {
    let (code, sites) = (code("lrc(6,2,2)"), sites(1, 10));
    let again = QueryPiece { requested: set(&[0]), ..packed(&code, &sites, 0) };
    let read = plan("adaptive", &[again, packed(&code, &sites, 4)], &|_| Some(0.0), 1).unwrap();
    assert_eq!(asked(&read), [2, 3, 5, 7]);
    let awaited = QueryPiece { requested: set(&[0]), awaited: set(&[0]), ..packed(&code, &sites, 0) };
    let read = plan("adaptive", &[awaited, packed(&code, &sites, 4)], &|_| Some(0.0), 1).unwrap();
    assert_eq!(asked(&read), [5], "nothing more is needed of the first");
}

#[test]
fn gateways_that_see_the_same_do_not_all_ask_the_same() {
    let (code, sites) = (code("rs(6,3)"), sites(1, 9));
    let drawn: HashSet<Vec<u32>> = (0..40)
        .map(|seed| asked(&plan("adaptive", &[packed(&code, &sites, 0)], &hot(1, 9.0), seed).unwrap()))
        .collect();
    assert!(drawn.len() > 10, "{drawn:?}");
}

/// Read-ahead follows the cost model, which reads parts normally.
#[test]
fn what_is_read_ahead_is_not_read_around() {
    let (code, sites) = (code("rs(6,3)"), sites(1, 9));
    let block = QueryPiece::whole(StripeId(2), &code, &sites, LEN);
    let pieces = [packed(&code, &sites, 0), block];
    let read = with_query(ReadPurpose::Ahead, &pieces, &hot(1, 30.0), |query| {
        Adaptive::default().planner().plan(query, &mut SmallRng::seed_from_u64(1)).unwrap()
    });
    assert!(asked(&read).contains(&1));
    let alone = with_query(ReadPurpose::Ahead, &pieces[..1], &hot(1, 30.0), |query| {
        assert!(Adaptive::default().is_worth_planning(query));
        Adaptive::default().planner().plan(query, &mut SmallRng::seed_from_u64(1)).unwrap()
    });
    assert!(!asked(&alone).contains(&1), "of one object somebody waits for all of it");
}

proptest! {
    /// One piece is read by the option of least latency plus w times its time at all sites, within the randomisation of
    /// queues. Where planning is not worth it, that option is the chunk itself.
    #[test]
    fn one_piece_is_read_by_its_least_option(
        which in 0usize..4, index in 0usize..6, queues in proptest::collection::vec(0.0f64..4.0, 10),
        down: u16, weight in 0.0f64..0.5, seed: u64,
    ) {
        let code = code(["rs(6,3)", "lrc(6,2,2)", "lrc(4,2,1)", "rs(2,1)"][which]);
        let (index, sites) = (index % code.k(), sites(1, code.n()));
        let queue = |site: u32| {
            let place = site as usize - 1;
            (down >> place & 7 != 7).then_some(if queues[place] < 1.0 { 0.0 } else { queues[place] })
        };
        let available: ChunkSet = (0..code.n()).filter(|&chunk| queue(chunk as u32 + 1).is_some()).collect();
        let value = |option: &ChunkSet| {
            let end = |chunk: usize| queue(chunk as u32 + 1).map_or(f64::INFINITY, |queue| queue + 2.0);
            option.iter().map(end).fold(0.0, f64::max) + weight * option.iter().map(end).sum::<f64>()
        };
        let mut options = degraded_options(&code, index, &available);
        options.extend(available.contains(index).then(|| set(&[index])));
        let policy = Adaptive { load_weight: weight };
        let piece = [packed(&code, &sites, index)];
        with_query(ReadPurpose::Query, &piece, &queue, |query| {
            let planned = policy.planner().plan(query, &mut SmallRng::seed_from_u64(seed));
            if options.is_empty() {
                prop_assert!(planned.is_err());
                return Ok(());
            }
            let planned = planned.expect("there are options");
            let chosen: ChunkSet =
                planned.reads.iter().flat_map(|read| &read.chunks).map(|chunk| chunk.index).collect();
            prop_assert!(options.contains(&chosen), "{chosen:?}");
            let least = options.iter().map(value).fold(f64::INFINITY, f64::min);
            prop_assert!(value(&chosen) <= least + 0.06, "{} instead of {least}", value(&chosen));
            if !policy.is_worth_planning(query) {
                prop_assert!(value(&set(&[index])) <= least + 1e-9);
            }
            Ok(())
        })?;
    }
}
