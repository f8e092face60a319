//! Runs all policies on several placements and compares one plan with least marginal load first on each.

use serde::Serialize;
use striate_codec::Code;
use striate_plan::{Adaptive, ReadPolicy};

use super::layout::Layout;
use super::simulation::{self, Run, RunSummary, SiteKnowledge};
use super::{OBJECT_BYTES, OBJECT_S, REQUEST_S, queries};

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Code of the partitions.
    pub code: Code,
    /// What gateways know about the sites.
    pub knowledge: SiteKnowledge,
    /// Share of its time that the hottest site is busy under normal reads.
    pub load: f64,
    /// w of the default policy.
    pub load_weight: f64,
    /// Copies of the hottest partitions, as a share of all bytes.
    pub copies: f64,
    /// Queries of each run, after a warm-up of a tenth as many.
    pub queries: usize,
}

/// Results on one placement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Placement {
    /// Reads of each object's own chunk.
    pub normal: RunSummary,
    /// Least marginal load first for each object, with times for Q and D; an object's D includes its request.
    pub lmlf: RunSummary,
    /// Least marginal load first with a D that excludes the request: it underestimates the load that it adds.
    pub lmlf_of_bytes: RunSummary,
    /// One plan of the default policy.
    pub one_plan: RunSummary,
    /// One plan of the default policy, with copies.
    pub with_copies: RunSummary,
}

/// A policy's figures over all placements.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Name of the policy.
    pub policy: &'static str,
    /// Mean response time in milliseconds, averaged over the placements.
    pub mean_ms: f64,
    /// 99th percentile in milliseconds, averaged over the placements.
    pub p99_ms: f64,
    /// Work of the sites, relative to normal reads.
    pub work: f64,
    /// Share of objects that were read around.
    pub read_around: f64,
    /// Pushes per second.
    pub pushes_per_s: f64,
    /// Ratio to LMLF's mean on each placement.
    pub mean_over_lmlf: Vec<f64>,
    /// Ratio to LMLF's 99th percentile on each placement.
    pub p99_over_lmlf: Vec<f64>,
}

impl Comparison {
    /// Runs every policy on the placement and the queries of a seed.
    pub fn run(&self, seed: u64) -> Placement {
        let warm_up = self.queries / 10;
        let mut queries = queries::draw(self.queries + warm_up, seed);
        let layout = Layout::draw(self.code.clone(), seed);
        let per_s = layout.queries_per_s(&queries, self.load);
        queries::pace(&mut queries, per_s);
        let copied = layout.clone().with_copies(self.copies, &queries[..warm_up]);
        let one_plan = ReadPolicy::new(Adaptive { load_weight: self.load_weight });
        let named = |text: &str| striate_baselines::read_policy(text).expect("the policy is known");
        let run = |layout: &Layout, policy: ReadPolicy, counted_bytes: u32| {
            let run = Run { layout, policy, knowledge: self.knowledge, counted_bytes, warm_up, seed };
            simulation::run(&run, &queries)
        };
        let with_request = (f64::from(OBJECT_BYTES) * (1.0 + REQUEST_S / OBJECT_S)) as u32;
        Placement {
            normal: run(&layout, named("normal"), OBJECT_BYTES),
            lmlf: run(&layout, named("lmlf"), with_request),
            lmlf_of_bytes: run(&layout, named("lmlf"), OBJECT_BYTES),
            one_plan: run(&layout, one_plan.clone(), OBJECT_BYTES),
            with_copies: run(&copied, one_plan, OBJECT_BYTES),
        }
    }
}

/// Selects a policy's results on a placement.
type ResultSelector = fn(&Placement) -> RunSummary;

/// Returns the figures of all policies over all placements.
pub fn figures(placements: &[Placement]) -> Vec<Figures> {
    let columns: [(&str, ResultSelector); 5] = [
        ("normal", |placement| placement.normal),
        ("LMLF", |placement| placement.lmlf),
        ("LMLF, D without the request", |placement| placement.lmlf_of_bytes),
        ("one plan", |placement| placement.one_plan),
        ("one plan, with copies", |placement| placement.with_copies),
    ];
    let mean = |value: &dyn Fn(&Placement) -> f64| {
        placements.iter().map(value).sum::<f64>() / placements.len() as f64
    };
    let figures = |(policy, selected): (&'static str, ResultSelector)| Figures {
        policy,
        mean_ms: 1e3 * mean(&|placement| selected(placement).mean_s),
        p99_ms: 1e3 * mean(&|placement| selected(placement).p99_s),
        work: mean(&|placement| selected(placement).work_s / placement.normal.work_s),
        read_around: mean(&|placement| selected(placement).read_around),
        pushes_per_s: mean(&|placement| selected(placement).pushes_per_s),
        mean_over_lmlf: placements
            .iter()
            .map(|placement| selected(placement).mean_s / placement.lmlf.mean_s)
            .collect(),
        p99_over_lmlf: placements
            .iter()
            .map(|placement| selected(placement).p99_s / placement.lmlf.p99_s)
            .collect(),
    };
    columns.into_iter().map(figures).collect()
}
