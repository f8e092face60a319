//! The seven policies of Hu et al. (SoCC'17, §3.1), on Reed–Solomon codes and LRCs.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_codec::{ChunkSet, Code, CodecError};
use striate_core::{SiteId, StripeId};
use striate_plan::{
    Probe, ProbedSite, QueryPiece, QueryPlan, ReadPlanner, ReadPolicy, ReadPurpose, ReadQuery, SiteCost,
    SiteQueue,
};

use crate::read_policy;

const POLICIES: [&str; 8] =
    ["normal(2s)", "llf", "lmlf", "llf-pw2", "lmlf-pw2", "lmlf-lazy", "opt-lazy", "opt-lazy(all)"];
const CODES: [&str; 2] = ["rs(6,3)", "lrc(6,2,2)"];
/// D in bytes.
const LEN: u32 = 1_000;

/// A policy in use, driven as the engine drives it.
struct Reader {
    policy: ReadPolicy,
    planner: Box<dyn ReadPlanner>,
    rng: SmallRng,
    probes: usize,
}

impl Reader {
    fn new(policy: &str) -> Self {
        let policy = read_policy(policy).expect("a policy");
        let (planner, rng) = (policy.planner(), SmallRng::seed_from_u64(1));
        Self { policy, planner, rng, probes: 0 }
    }

    /// Probes as the policy wants, and plans. `queue` is the reply of each site that answers.
    fn read(
        &mut self,
        pieces: &[QueryPiece<'_>],
        purpose: ReadPurpose,
        queue: &dyn Fn(SiteId) -> Option<f64>,
    ) -> Result<QueryPlan, CodecError> {
        let nothing = |_: SiteId| None;
        let query = |queue| ReadQuery { pieces, purpose, can_be_asked: &|_| true, cost: &cost, queue };
        let probed = match purpose {
            ReadPurpose::Rest => Vec::new(),
            _ => self.policy.sites_to_probe(&query(&nothing), &mut self.rng),
        };
        assert!(probed.is_sorted_by(|a, b| a < b), "each once: {probed:?}");
        self.probes += probed.len();
        let told = |site: SiteId| {
            let bytes = queue(site).filter(|_| probed.contains(&site))?;
            Some(SiteQueue { waiting: 0.0, bytes })
        };
        self.planner.plan(&query(&told), &mut self.rng)
    }

    /// The chunks that a request for one piece asks for.
    fn chunks(&mut self, piece: QueryPiece<'_>, queue: &dyn Fn(SiteId) -> Option<f64>) -> ChunkSet {
        let plan = self.read(&[piece], ReadPurpose::Query, queue).expect("enough chunks");
        chunks_of(&plan, 0)
    }

    /// Passes all sites' queues to the planner, `seconds` after the last time.
    fn refresh(&mut self, sites: &[SiteId], seconds: u64, queue: &dyn Fn(SiteId) -> Option<f64>) {
        let told = |&site: &SiteId| Some(ProbedSite { site, requests: 0.0, bytes: queue(site)? });
        let sites = sites.iter().filter_map(told).collect();
        let probe = Probe { since_last: Duration::from_secs(seconds), sites };
        self.planner.take_probe(&probe, &mut self.rng);
    }
}

fn cost(_: SiteId) -> Option<SiteCost> {
    Some(SiteCost::of_asking(1.0))
}

fn chunks_of(plan: &QueryPlan, piece: usize) -> ChunkSet {
    let chunks = plan.reads.iter().flat_map(|read| &read.chunks);
    chunks.filter(|chunk| chunk.piece == piece).map(|chunk| chunk.index).collect()
}

fn code(text: &str) -> Code {
    text.parse().expect("a code")
}

fn sites(code: &Code) -> Vec<SiteId> {
    (1..=code.n() as u32).map(SiteId).collect()
}

fn set(indices: &[usize]) -> ChunkSet {
    indices.iter().copied().collect()
}

/// A request for chunk `index` of stripe 1.
fn request<'a>(code: &'a Code, sites: &'a [SiteId], index: usize) -> QueryPiece<'a> {
    QueryPiece::part(StripeId(1), code, sites, LEN, set(&[index]))
}

#[test]
fn policies_survive_their_text_and_others_are_refused() {
    for text in POLICIES.into_iter().chain(["normal(300ms)", "normal"]) {
        assert_eq!(read_policy(text).expect("a policy").to_string(), text);
    }
    for text in ["normal(2)", "normal(0s)", "normal(-1s)", "normal(s)", "llf(1)", "opt-lazy(one)", "lmlf-pw3"]
    {
        assert!(read_policy(text).is_err(), "{text}");
    }
    let time_out = |text: &str| read_policy(text).unwrap().time_out();
    assert_eq!(time_out("normal(300ms)"), Some(Duration::from_millis(300)));
    assert_eq!((time_out("normal(2s)"), time_out("normal")), (Some(Duration::from_secs(2)), None));
}

/// §2.5, Tables 1 and 2: 9 and 7 probes per request for the (6,3) RS code, 10 and 4 for the (6,2,2) LRC, and none for
/// others.
#[test]
fn each_policy_probes_as_many_sites_as_the_paper_says() {
    for (policy, rs, lrc) in [
        ("normal(2s)", 0, 0),
        ("llf", 9, 10),
        ("lmlf", 9, 10),
        ("llf-pw2", 7, 4),
        ("lmlf-pw2", 7, 4),
        ("lmlf-lazy", 0, 0),
        ("opt-lazy", 0, 0),
    ] {
        for (code, expected) in CODES.map(code).iter().zip([rs, lrc]) {
            let (sites, mut reader) = (sites(code), Reader::new(policy));
            for index in 0..6 {
                reader.chunks(request(code, &sites, index), &|_| Some(0.0));
            }
            assert_eq!(reader.probes, 6 * expected, "{policy}, {code}");
        }
    }
    for (policy, seconds) in
        [("lmlf-lazy", Some(1)), ("opt-lazy", Some(4)), ("lmlf", None), ("normal(2s)", None)]
    {
        assert_eq!(read_policy(policy).unwrap().probe_every(), seconds.map(Duration::from_secs), "{policy}");
    }
}

#[test]
fn idle_sites_are_read_normally_and_loaded_ones_around_except_by_normal() {
    for policy in POLICIES {
        for code in CODES.map(code) {
            let (sites, mut reader) = (sites(&code), Reader::new(policy));
            let loaded = |site: SiteId| Some(if site.0 == 3 { 1e6 } else { f64::from(site.0) });
            let piece = request(&code, &sites, 2);
            assert_eq!(reader.chunks(piece, &|_| Some(0.0)), piece.wanted, "{policy}, {code}: idle");
            reader.refresh(&sites, 4, &loaded);
            let chunks = reader.chunks(piece, &loaded);
            if policy.starts_with("normal") {
                assert_eq!(chunks, piece.wanted, "{policy}");
                continue;
            }
            assert!(
                !chunks.contains(2) && code.determines(&chunks, &piece.wanted),
                "{policy}, {code}: {chunks:?}"
            );
            if policy == "opt-lazy(all)" {
                continue;
            }
            if code.to_string() == "lrc(6,2,2)" {
                assert_eq!(chunks, set(&[0, 1, 6]), "{policy}: the local group is least");
            } else if ["llf", "lmlf", "lmlf-lazy"].contains(&policy) {
                assert_eq!(chunks, set(&[0, 1, 3, 4, 5, 6]), "{policy}: the six least loaded");
            } else {
                assert_eq!(chunks.len(), 6, "{policy}");
            }
        }
    }
}

/// §2.4: LMLF weighs the load of all tasks of a degraded read, LLF only the longest.
#[test]
fn least_latency_reads_degraded_where_least_marginal_load_does_not() {
    for code in CODES.map(code) {
        let sites = sites(&code);
        let queue = |site: SiteId| Some(if site.0 == 1 { 2_000.0 } else { 1_500.0 });
        let chunks = |policy: &str| Reader::new(policy).chunks(request(&code, &sites, 0), &queue);
        for sampled in ["", "-pw2"] {
            assert!(!chunks(&format!("llf{sampled}")).contains(0), "{code}");
            assert_eq!(chunks(&format!("lmlf{sampled}")), set(&[0]), "{code}");
        }
    }
}

#[test]
fn the_power_of_two_draws_its_degraded_reads_of_reed_solomon_codes_only() {
    for (code, distinct) in CODES.map(code).iter().zip([28, 1]) {
        let sites = sites(code);
        let mut reader = Reader::new("lmlf-pw2");
        let loaded = |site: SiteId| Some(if site.0 == 1 { 1e9 } else { 0.0 });
        let drawn: BTreeSet<Vec<usize>> =
            (0..1_000).map(|_| reader.chunks(request(code, &sites, 0), &loaded).iter().collect()).collect();
        assert_eq!(drawn.len(), distinct, "{code}");
    }
}

#[test]
fn sites_that_do_not_answer_a_probe_are_not_chosen() {
    for code in CODES.map(code) {
        let sites = sites(&code);
        let piece = request(&code, &sites, 0);
        for policy in ["llf", "lmlf", "llf-pw2", "lmlf-pw2"] {
            let mut reader = Reader::new(policy);
            assert_eq!(reader.chunks(piece, &|site| (site.0 == 1).then_some(1e9)), piece.wanted, "{policy}");
            let degraded = reader.chunks(piece, &|site| (site.0 != 1).then_some(5.0));
            assert!(!degraded.contains(0) && code.determines(&degraded, &piece.wanted), "{policy}");
            assert_eq!(reader.chunks(piece, &|_| None), piece.wanted, "{policy}: nothing is known");
        }
    }
}

/// Figure 1's example with the policies: in the LRC, S1 is loaded; S2, S3 and L1 are not.
#[test]
fn the_papers_example_is_read_from_the_local_group() {
    let code = code("lrc(6,2,2)");
    let sites = sites(&code);
    let queue = |site: SiteId| Some(if [2, 3, 7].contains(&site.0) { 500.0 } else { 50_000.0 });
    for policy in ["llf-pw2", "lmlf-pw2", "lmlf-lazy", "opt-lazy"] {
        let mut reader = Reader::new(policy);
        reader.refresh(&sites, 4, &queue);
        assert_eq!(reader.chunks(request(&code, &sites, 0), &queue), set(&[1, 2, 6]), "{policy}");
    }
}

#[test]
fn lazy_reads_go_by_the_table_until_it_is_refreshed() {
    let code = code("lrc(6,2,2)");
    let sites = sites(&code);
    let piece = request(&code, &sites, 0);
    let mut reader = Reader::new("lmlf-lazy");
    let queue = |busy: u32| move |site: SiteId| Some(if site.0 == busy { 1e6 } else { 0.0 });
    assert_eq!(reader.chunks(piece, &queue(1)), set(&[0]), "no table yet");
    reader.refresh(&sites, 1, &queue(1));
    for _ in 0..100 {
        assert_eq!(reader.chunks(piece, &queue(2)), set(&[1, 2, 6]), "all run to the same sites");
    }
    reader.refresh(&sites, 1, &queue(2));
    assert_eq!(reader.chunks(piece, &queue(1)), set(&[0]));
}

/// A partition of D bytes a second and nothing else: x D at the normal node and (1 − x) D at those of one degraded read
/// have their least squares at x = 3/4 (three nodes) and 6/7 (six); over all 28 sets each of eight nodes has ¾ (1 − x)
/// D, x = 9/11. If the normal node's queue holds as many bytes as are requested in a second, 1 + x = 3 (1 − x).
#[test]
fn opt_lazy_directs_requests_by_the_least_squares_proportions() {
    for (policy, code_text, queue, share) in [
        ("opt-lazy", "lrc(6,2,2)", 0.0, 3.0 / 4.0),
        ("opt-lazy", "lrc(6,2,2)", 100_000.0, 1.0 / 2.0),
        ("opt-lazy", "rs(6,3)", 0.0, 6.0 / 7.0),
        ("opt-lazy(all)", "rs(6,3)", 0.0, 9.0 / 11.0),
    ] {
        let code = code(code_text);
        let sites = sites(&code);
        let piece = request(&code, &sites, 0);
        let mut reader = Reader::new(policy);
        for _ in 0..400 {
            reader.chunks(piece, &|_| None);
        }
        reader.refresh(&sites, 4, &|site| Some(if site.0 == 1 { queue } else { 0.0 }));
        let mut degraded = BTreeSet::new();
        let normal = (0..8_000).filter(|_| {
            let chunks = reader.chunks(piece, &|_| None);
            let is_normal = chunks == piece.wanted;
            if !is_normal {
                degraded.insert(chunks.iter().collect::<Vec<_>>());
            }
            is_normal
        });
        // The standard deviation is at most 39.
        let normal = normal.count() as f64;
        assert!((normal - 8_000.0 * share).abs() < 150.0, "{policy}, {code}: {normal}");
        assert_eq!(
            degraded.len() > 1,
            policy == "opt-lazy(all)",
            "one degraded read takes part: {degraded:?}"
        );
    }
}

#[test]
fn opt_lazy_knows_demands_of_the_last_period_only_and_directs_the_rest_by_its_loads() {
    let code = code("lrc(6,2,2)");
    let near = sites(&code);
    let far: Vec<SiteId> = std::iter::once(near[0]).chain((20..29).map(SiteId)).collect();
    let all: Vec<SiteId> = near.iter().chain(&far[1..]).copied().collect();
    let hot = request(&code, &near, 0);
    let cold = QueryPiece::part(StripeId(2), &code, &far, LEN, set(&[0]));
    let mut reader = Reader::new("opt-lazy");
    for _ in 0..400 {
        reader.chunks(hot, &|_| None);
    }
    assert_eq!(reader.chunks(cold, &|_| None), cold.wanted, "no table yet");
    reader.refresh(&all, 4, &|_| Some(0.0));
    // In the next period only the hot partition is known; the previous table expected 75,000 bytes at its site.
    for _ in 0..4_000 {
        reader.chunks(hot, &|_| None);
    }
    reader.refresh(&all, 4, &|_| Some(0.0));
    assert_eq!(reader.chunks(cold, &|_| None), set(&[1, 2, 6]), "the hot partition loads its site");
    reader.refresh(&all, 4, &|_| Some(0.0));
    reader.refresh(&all, 4, &|_| Some(0.0));
    assert_eq!(reader.chunks(cold, &|_| None), cold.wanted, "nobody has asked for the hot one since");
}

/// Normal: {i} first; on time-out i was requested and is no longer awaited.
#[test]
fn normal_asks_others_on_time_out() {
    for code in CODES.map(code) {
        let sites = sites(&code);
        let piece = request(&code, &sites, 4);
        let late = QueryPiece { requested: piece.wanted, ..piece };
        let mut reader = Reader::new("normal(2s)");
        assert_eq!(reader.chunks(piece, &|_| None), piece.wanted);
        let mut drawn = BTreeSet::new();
        for _ in 0..200 {
            let plan = reader.read(&[late], ReadPurpose::Rest, &|_| None).unwrap();
            let chunks = chunks_of(&plan, 0);
            assert!(!chunks.contains(4) && code.determines(&chunks, &late.wanted), "{chunks:?}");
            drawn.insert(chunks.iter().collect::<Vec<_>>());
        }
        if code.to_string() == "rs(6,3)" {
            assert!(drawn.len() > 20 && drawn.iter().all(|chunks| chunks.len() == 6), "{drawn:?}");
        } else {
            assert_eq!(drawn, BTreeSet::from([vec![3, 5, 7]]));
        }
        let lost = QueryPiece { requested: ChunkSet::first(code.n()), ..piece };
        assert!(reader.read(&[lost], ReadPurpose::Rest, &|_| None).is_err());
        assert!(!reader.policy.cancels());
    }
}

#[test]
fn requests_of_one_query_see_each_other() {
    let code = code("rs(2,1)");
    let sites = sites(&code);
    let piece = request(&code, &sites, 0);
    let plan = Reader::new("llf").read(&[piece, piece, piece], ReadPurpose::Query, &|_| Some(0.0)).unwrap();
    assert_eq!([0, 1, 2].map(|piece| chunks_of(&plan, piece)), [set(&[0]), set(&[1, 2]), set(&[0])]);
}

#[test]
fn whole_blocks_and_parts_of_several_chunks_are_read_too() {
    for policy in POLICIES {
        for code in CODES.map(code) {
            let (sites, mut reader) = (sites(&code), Reader::new(policy));
            let queue = |site: SiteId| Some(if site.0 == 1 { 1e6 } else { 0.0 });
            let whole = QueryPiece::whole(StripeId(1), &code, &sites, LEN);
            let part = QueryPiece::part(StripeId(2), &code, &sites, LEN, set(&[1, 2]));
            let plan =
                reader.read(&[whole, request(&code, &sites, 3), part], ReadPurpose::Query, &queue).unwrap();
            let whole = chunks_of(&plan, 0);
            assert!(code.is_sufficient_set(&whole), "{policy}: {whole:?}");
            assert_eq!(whole.contains(0), !["llf", "lmlf"].contains(&policy), "{policy}: {whole:?}");
            assert_eq!((chunks_of(&plan, 1), chunks_of(&plan, 2)), (set(&[3]), set(&[1, 2])), "{policy}");
        }
    }
}
