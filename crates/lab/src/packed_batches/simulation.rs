//! Sites that serve requests in turn, and gateways that know about their queues.
//!
//! A gateway plans a query on arrival and sends each site one request; nothing is sent later. A request's end is
//! therefore known when it is sent, and the model needs no events: a site is the list of its running and recently
//! ended requests.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_core::SiteId;
use striate_plan::{QueryPiece, ReadPlanner, ReadPolicy, ReadPurpose, ReadQuery, SiteCost, SiteQueue};
use striate_splitmix::hash;

use super::layout::{Layout, place};
use super::queries::Query;
use super::{FRONT_ENDS, MESSAGE_S, OBJECT_BYTES, OBJECT_S, REQUEST_S, SITES};

/// What a gateway knows about a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKnowledge {
    /// When the site will have served everything that was sent to it.
    Exact,
    /// The site's last push, a message to every gateway when a request arrived or ended: its requests, counting the
    /// one in service in full. In addition, the gateway's own requests that the push cannot contain.
    Pushed,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Places of all partitions.
    pub layout: &'a Layout,
    /// Policy of the gateways.
    pub policy: ReadPolicy,
    /// Knowledge of the gateways.
    pub knowledge: SiteKnowledge,
    /// Size of an object for policies that count bytes.
    pub counted_bytes: u32,
    /// Number of warm-up queries, which are served but do not count.
    pub warm_up: usize,
    /// Seed of the planners' draws.
    pub seed: u64,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunSummary {
    /// Mean time from a query's arrival to its last object, in seconds.
    pub mean_s: f64,
    /// 99th percentile of that time, in seconds.
    pub p99_s: f64,
    /// Seconds of site work per query.
    pub work_s: f64,
    /// Share of objects that were not read from their own chunk or a copy.
    pub read_around: f64,
    /// Pushes per second of all sites to all gateways; 0 if nothing is pushed.
    pub pushes_per_s: f64,
}

/// A request at its site.
#[derive(Clone, Copy, Debug)]
struct Task {
    front_end: usize,
    comes_at: f64,
    work: f64,
    ends_at: f64,
}

/// A site, as the list of its running and recently ended requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Site {
    tasks: VecDeque<Task>,
}

impl Site {
    /// Serves a request that arrives after all earlier ones; returns when it ends.
    pub(super) fn serve(&mut self, front_end: usize, comes_at: f64, work: f64) -> f64 {
        let free_at = self.tasks.back().map_or(0.0, |last| last.ends_at);
        let ends_at = free_at.max(comes_at) + work;
        self.tasks.push_back(Task { front_end, comes_at, work, ends_at });
        ends_at
    }

    /// Drops requests that no later push can contain.
    pub(super) fn forget(&mut self, now: f64) {
        while self.tasks.front().is_some_and(|task| task.ends_at < now - MESSAGE_S) {
            self.tasks.pop_front();
        }
    }

    /// Returns the seconds of work ahead of a request that is sent now, as a gateway knows it.
    pub(super) fn queue_s(&self, knowledge: SiteKnowledge, front_end: usize, now: f64) -> f64 {
        match knowledge {
            SiteKnowledge::Exact => {
                self.tasks.back().map_or(0.0, |last| (last.ends_at - now - MESSAGE_S).max(0.0))
            }
            SiteKnowledge::Pushed => {
                let told_at = now - MESSAGE_S;
                let is_known = |task: &&Task| match task.comes_at > told_at {
                    true => task.front_end == front_end,
                    false => task.ends_at > told_at,
                };
                self.tasks.iter().filter(is_known).map(|task| task.work).sum()
            }
        }
    }
}

/// Serves all queries.
///
/// # Panics
/// If there are no queries after the warm-up.
pub fn run(run: &Run<'_>, queries: &[Query]) -> RunSummary {
    let mut simulation = Simulation {
        run,
        sites: vec![Site::default(); SITES],
        planners: (0..FRONT_ENDS).map(|_| run.policy.planner()).collect(),
        rng: SmallRng::seed_from_u64(hash(run.seed ^ 0xba7c4)),
        requests: 0,
        read_around: 0,
    };
    let mut counted = queries.len() - run.warm_up;
    let (mut times, mut work_s, mut objects) = (Vec::with_capacity(counted), 0.0, 0);
    for (number, query) in queries.iter().enumerate() {
        if number == run.warm_up {
            (simulation.requests, simulation.read_around) = (0, 0);
        }
        let (took, work) = simulation.read(query);
        if number >= run.warm_up {
            times.push(took);
            work_s += work;
            objects += query.objects.len();
        }
    }
    times.sort_by(f64::total_cmp);
    let length_s = queries[queries.len() - 1].at - queries[run.warm_up].at;
    let pushes = match run.knowledge {
        SiteKnowledge::Exact => 0.0,
        SiteKnowledge::Pushed => (2 * simulation.requests * FRONT_ENDS) as f64 / length_s,
    };
    counted = counted.max(1);
    RunSummary {
        mean_s: times.iter().sum::<f64>() / counted as f64,
        p99_s: times[(counted * 99 / 100).min(counted - 1)],
        work_s: work_s / counted as f64,
        read_around: simulation.read_around as f64 / objects as f64,
        pushes_per_s: pushes,
    }
}

struct Simulation<'a> {
    run: &'a Run<'a>,
    sites: Vec<Site>,
    planners: Vec<Box<dyn ReadPlanner>>,
    rng: SmallRng,
    requests: usize,
    read_around: usize,
}

impl Simulation<'_> {
    /// Plans and serves a query; returns its response time and the work of the sites.
    fn read(&mut self, query: &Query) -> (f64, f64) {
        self.sites.iter_mut().for_each(|site| site.forget(query.at));
        let run = self.run;
        let piece = |&object: &u64| run.layout.piece(object, run.counted_bytes);
        let pieces: Vec<QueryPiece<'_>> = query.objects.iter().map(piece).collect();
        let plan = self.plan(&pieces, query);
        let mut chunks = vec![0; pieces.len()];
        let (mut last, mut work_s) = (0.0f64, 0.0);
        for read in &plan.reads {
            read.chunks.iter().for_each(|chunk| chunks[chunk.piece] += 1);
            let work = REQUEST_S + OBJECT_S * read.chunks.len() as f64;
            let ends_at = self.sites[place(read.site)].serve(query.front_end, query.at + MESSAGE_S, work);
            (last, work_s) = (last.max(ends_at), work_s + work);
        }
        self.requests += plan.reads.len();
        self.read_around += chunks.iter().filter(|&&count| count > 1).count();
        (last + MESSAGE_S - query.at, work_s)
    }

    fn plan(&mut self, pieces: &[QueryPiece<'_>], query: &Query) -> striate_plan::QueryPlan {
        let Self { run, sites, planners, rng, .. } = self;
        // The cost of asking an idle site is the unit, and an object takes as long.
        let per_byte = OBJECT_S / REQUEST_S / f64::from(OBJECT_BYTES);
        let queue = |site: SiteId| {
            let seconds = sites[place(site)].queue_s(run.knowledge, query.front_end, query.at);
            Some(SiteQueue { waiting: 0.0, bytes: seconds / OBJECT_S * f64::from(OBJECT_BYTES) })
        };
        let read_query = ReadQuery {
            pieces,
            purpose: ReadPurpose::Query,
            can_be_asked: &|_| true,
            cost: &|_| Some(SiteCost { asking: 1.0, per_byte, decode_per_byte: 0.0 }),
            queue: &queue,
        };
        planners[query.front_end].plan(&read_query, rng).expect("no site is down")
    }
}
