//! The model against manual calculations, and the expected outcome of the comparison.

use striate_core::SiteId;
use striate_plan::ReadPolicy;

use super::comparison::{Comparison, figures};
use super::layout::{Layout, place};
use super::queries::{Query, draw, pace};
use super::simulation::{Run, RunSummary, Site, SiteKnowledge, run};
use super::{MESSAGE_S, OBJECT_BYTES, OBJECT_S, OBJECTS_OF_PARTITION, PARTITIONS, REQUEST_S, SITES};

fn layout(code: &str) -> Layout {
    Layout::draw(code.parse().expect("a code"), 7)
}

fn serve(layout: &Layout, policy: &str, queries: &[Query]) -> RunSummary {
    let policy: ReadPolicy = striate_baselines::read_policy(policy).expect("a policy");
    let knowledge = SiteKnowledge::Exact;
    let of = Run { layout, policy, knowledge, counted_bytes: OBJECT_BYTES, warm_up: 0, seed: 1 };
    run(&of, queries)
}

fn query(at: f64, objects: &[u64]) -> Query {
    Query { at, front_end: 0, objects: objects.to_vec() }
}

#[test]
fn a_request_takes_its_messages_itself_and_its_objects() {
    let layout = layout("rs(6,3)");
    // Two neighbours share a partition; the third object is elsewhere.
    let seen = serve(&layout, "normal", &[query(1.0, &[0, 1, 5_000])]);
    let expected = REQUEST_S + 2.0 * OBJECT_S + 2.0 * MESSAGE_S;
    assert!((seen.mean_s - expected).abs() < 1e-12 && (seen.p99_s - expected).abs() < 1e-12, "{seen:?}");
    assert!((seen.work_s - 2.0 * REQUEST_S - 3.0 * OBJECT_S).abs() < 1e-12, "{seen:?}");
    assert_eq!(seen.read_around, 0.0);
}

/// Ten objects at one site: later queries wait, or go around it.
#[test]
fn queries_wait_for_those_before_them() {
    let layout = layout("rs(6,3)");
    let objects: Vec<u64> = (0..10).collect();
    let queries = [query(1.0, &objects), query(1.0, &[20])];
    let work = |count: f64| REQUEST_S + count * OBJECT_S;
    let seen = serve(&layout, "normal", &queries);
    let expected = (work(10.0) + (work(10.0) + work(1.0))) / 2.0 + 2.0 * MESSAGE_S;
    assert!((seen.mean_s - expected).abs() < 1e-12, "{seen:?}");
    let planned = serve(&layout, "adaptive", &queries);
    assert!(planned.read_around > 0.0 && planned.mean_s < 0.7 * seen.mean_s, "{planned:?}");
}

/// A push contains the site's requests one message time ago, with the one in service in full. A gateway knows its own
/// requests earlier.
#[test]
fn what_is_pushed_is_as_old_as_a_message() {
    use SiteKnowledge::{Exact, Pushed};

    let mut site = Site::default();
    assert_eq!(site.serve(0, 1.0, 0.004), 1.004);
    assert_eq!(site.serve(1, 1.001, 0.002), 1.006);
    let queue_ms =
        |knowledge, front_end, at: f64| (1e4 * site.queue_s(knowledge, front_end, at)).round() / 10.0;
    assert_eq!(queue_ms(Exact, 2, 1.0009), 5.0, "a request that is sent now comes when 5 ms are left");
    assert_eq!(queue_ms(Exact, 2, 1.007), 0.0);
    let sent = 1.0 - MESSAGE_S;
    assert_eq!((queue_ms(Pushed, 0, sent), queue_ms(Pushed, 2, sent)), (4.0, 0.0), "its own, and others'");
    assert_eq!(queue_ms(Pushed, 2, 1.00005), 0.0, "not told yet");
    assert_eq!(queue_ms(Pushed, 2, 1.0005), 4.0);
    assert_eq!(queue_ms(Pushed, 2, 1.003), 6.0);
    assert_eq!((queue_ms(Pushed, 2, 1.0045), queue_ms(Pushed, 2, 1.00605)), (2.0, 2.0), "nor its end");
    site.forget(1.00605);
    assert_eq!(site.queue_s(Pushed, 2, 1.00605), 0.002);
    site.forget(1.0062);
    assert_eq!(site.queue_s(Pushed, 2, 1.0062), 0.0);
}

#[test]
fn queries_come_at_the_pace_that_keeps_the_hottest_site_busy() {
    let layout = layout("lrc(6,2,2)");
    let mut queries = draw(2_000, 3);
    let per_s = layout.queries_per_s(&queries, 0.5);
    pace(&mut queries, per_s);
    let length = queries[queries.len() - 1].at;
    assert!((queries.len() as f64 / length / per_s - 1.0).abs() < 0.1);
    // The load of the hottest site, calculated here.
    let mut work = vec![0.0; SITES];
    for query in &queries {
        let mut sites: Vec<SiteId> =
            query.objects.iter().map(|&object| layout.piece(object, 1)).map(own_site).collect();
        sites.sort_unstable();
        sites.iter().for_each(|site| work[place(*site)] += OBJECT_S);
        sites.dedup();
        sites.iter().for_each(|site| work[place(*site)] += REQUEST_S);
    }
    let busiest = work.into_iter().fold(0.0, f64::max);
    assert!((busiest / (queries.len() as f64 / per_s) - 0.5).abs() < 1e-9);
}

fn own_site(piece: striate_plan::QueryPiece<'_>) -> SiteId {
    piece.sites[piece.wanted.iter().next().expect("one chunk is wanted")]
}

#[test]
fn queries_read_distinct_objects_and_the_hottest_most() {
    let queries = draw(2_000, 5);
    assert_eq!(queries, draw(2_000, 5));
    let mut counts = std::collections::BTreeMap::new();
    for query in &queries {
        let distinct: std::collections::BTreeSet<_> = query.objects.iter().collect();
        assert!(distinct.len() == query.objects.len() && (10..=20).contains(&query.objects.len()));
        query.objects.iter().for_each(|object| *counts.entry(*object).or_insert(0) += 1);
    }
    let most = counts.values().max().copied().unwrap_or(0);
    assert!((1_500..2_000).contains(&most), "nearly every query reads the hottest: {most}");
}

#[test]
fn copies_are_of_hot_partitions_on_other_sites_and_within_their_share() {
    let queries = draw(500, 9);
    let layout = layout("rs(6,3)").with_copies(0.01, &queries);
    let pieces: Vec<_> =
        (0..PARTITIONS as u64).map(|partition| layout.piece(partition * OBJECTS_OF_PARTITION, 1)).collect();
    let copies: usize = pieces.iter().map(|piece| piece.copies.len()).sum();
    assert_eq!(copies, PARTITIONS / 100);
    for piece in &pieces {
        let sites: std::collections::BTreeSet<_> = piece.all_sites().collect();
        assert_eq!(sites.len(), piece.sites.len() + piece.copies.len(), "each on a site of its own");
    }
    assert!(pieces.iter().any(|piece| piece.copies.len() > 1), "the hottest has several");
}

/// A short run: one plan is faster than one decision per object, copies help, and runs are deterministic.
#[test]
fn one_plan_is_sooner_than_least_marginal_load_first() {
    let comparison = Comparison {
        code: "lrc(6,2,2)".parse().expect("a code"),
        knowledge: SiteKnowledge::Exact,
        load: 0.8,
        load_weight: striate_plan::solver::makespan::USUAL_WEIGHT,
        copies: 0.01,
        queries: 400,
    };
    let placements = [comparison.run(1), comparison.run(2)];
    assert_eq!(placements[0], comparison.run(1));
    let figures = figures(&placements);
    let ratio = |policy: usize| figures[policy].mean_over_lmlf.iter().sum::<f64>() / 2.0;
    assert!(ratio(3) < 0.95 && ratio(4) < ratio(3), "{figures:?}");
    assert!(figures[0].work == 1.0 && figures[3].work > 1.0, "{figures:?}");
    assert_eq!(figures[3].pushes_per_s, 0.0);
}
