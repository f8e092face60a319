//! Nodes, front ends, probes and tables, event by event.
//!
//! - A *node* serves read tasks one at a time, first come, first served: 1.5 ms each, plus its bytes over the node's
//!   rate. Its queue is the bytes of all tasks that have not ended.
//! - A *front end* handles one request at a time: 0.4 ms to decide, and 1.25 ms for each probe, one after the other.
//!   It sees the queues as they are half-way through its probes. Requests arrive at random front ends: 8 if requests
//!   are probed for, otherwise 3 (§4).
//! - A message takes 0.4 ms. A request is answered when the arrived chunks determine its own.
//! - The store's default probes nothing: nodes push their queues ([`StoreDefault`]), one message to every front end.
//!   It has 8.
//! - *Tables* are made every T seconds from the queues half-way through the probes of all nodes. They take effect
//!   when the probes have ended and the policy has solved. All front ends refresh at the same time and have the same
//!   table, based on the requests of all ("separate yet nearly identical", §3.1): one planner stands for all of them.
//!   Each of them probes.

use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::{ChunkSet, Code};
use striate_core::{SiteId, StripeId};
use striate_plan::read::options::local_group;
use striate_plan::{
    Probe, ProbedSite, QueryPiece, ReadPlanner, ReadPolicy, ReadPurpose, ReadQuery, SiteCost, SiteQueue,
    plan_normally,
};
use striate_splitmix::hash;

use super::copies::HotCopies;
use super::outcome::Row;
use super::placement::place;
use super::requests::{MEAN_BYTES, Request};
use super::store_default::{Degraded, Pushes, StoreDefault};
use super::{FittedLoad, NODES, Table};
use crate::events::Events;

mod event;
mod nodes;
mod run_summary;
mod views;

use event::Event;
pub use nodes::SlowEpisodes;
use nodes::{BELIEF_S, Node};
pub use run_summary::{RunSummary, RunTimes, quantile};
use views::Views;

/// Seconds per task, excluding its bytes.
const TASK_S: f64 = 0.0015;
/// Seconds per message.
const MESSAGE_S: f64 = 0.0004;
/// Seconds per decision.
const DECISION_S: f64 = 0.0004;
/// Seconds per probe: each one raises the paper's minimum response times by this much.
pub const PROBE_S: f64 = 0.001_25;
/// Number of front ends if requests are probed for, and if they are not.
const FRONT_ENDS: [usize; 2] = [8, 3];

/// What directs requests.
#[derive(Clone, Debug)]
pub enum Director {
    /// A policy of the paper.
    Published(ReadPolicy),
    /// The store's default.
    Store(StoreDefault),
}

impl Director {
    fn probe_every(&self) -> Option<Duration> {
        if let Self::Published(policy) = self { policy.probe_every() } else { None }
    }

    fn solve_time(&self) -> Duration {
        if let Self::Published(policy) = self { policy.solve_time() } else { Duration::ZERO }
    }

    fn policy(&self) -> ReadPolicy {
        match self {
            Self::Published(policy) => policy.clone(),
            Self::Store(rule) => rule.policy(),
        }
    }

    fn time_out(&self) -> Option<Duration> {
        if let Self::Published(policy) = self { policy.time_out() } else { None }
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The load, and the nodes' speed.
    pub fit: &'a FittedLoad,
    /// The code, and the rate of requests.
    pub table: Table,
    /// What directs the requests.
    pub director: Director,
    /// Seconds of a probe.
    pub probe_s: f64,
    /// Length of the warm-up, in seconds: its requests are served but do not count.
    pub warm_up_s: f64,
    /// Seed of placement, front ends and the policy's draws.
    pub seed: u64,
    /// Slow episodes of nodes, if any.
    pub slow: Option<SlowEpisodes>,
    /// Extra copies, which only the store's default uses.
    pub copies: Option<&'a HotCopies>,
}

/// Serves all requests.
///
/// # Panics
/// If there are no requests after the warm-up.
pub fn run(run: &Run<'_>, requests: &[Request]) -> RunSummary {
    run_in_full(run, requests).0
}

/// Serves all requests and returns every time.
///
/// # Panics
/// If there are no requests after the warm-up.
pub fn run_in_full(run: &Run<'_>, requests: &[Request]) -> (RunSummary, RunTimes) {
    Simulation::new(run, requests).run()
}

#[derive(Clone, Default)]
struct FrontEnd {
    waiting: VecDeque<usize>,
    is_busy: bool,
}

/// State of a request.
#[derive(Clone, Copy, Default)]
struct Progress {
    front_end: usize,
    requested: ChunkSet,
    came: ChunkSet,
    is_answered: bool,
}

struct Simulation<'a> {
    run: &'a Run<'a>,
    requests: &'a [Request],
    code: Code,
    /// Sites of each group of k partitions.
    placed: Vec<Vec<SiteId>>,
    policy: ReadPolicy,
    planner: Box<dyn ReadPlanner>,
    rng: SmallRng,
    nodes: Vec<Node>,
    front_ends: Vec<FrontEnd>,
    views: Views,
    progress: Vec<Progress>,
    events: Events<Event>,
    bytes_per_s: f64,
    times: RunTimes,
    probes: u64,
    pushes: u64,
    timed_out: u64,
}

impl<'a> Simulation<'a> {
    fn new(run: &'a Run<'a>, requests: &'a [Request]) -> Self {
        let code = run.table.code();
        let probes_requests = run.director.probe_every().is_none() && run.director.time_out().is_none();
        let front_ends = FRONT_ENDS[usize::from(!probes_requests)];
        let mut rng = SmallRng::seed_from_u64(hash(run.seed ^ 0x5eed));
        let placed = place(&code, run.seed);
        let progress = requests
            .iter()
            .map(|_| Progress { front_end: rng.random_range(0..front_ends), ..Progress::default() })
            .collect();
        let mut simulation = Self {
            run,
            requests,
            code,
            placed,
            planner: run.director.policy().planner(),
            policy: run.director.policy(),
            rng,
            nodes: (0..NODES).map(|number| Node::new(number, run.seed, run.slow)).collect(),
            front_ends: vec![FrontEnd::default(); front_ends],
            views: Views::new(front_ends),
            progress,
            events: Events::default(),
            bytes_per_s: MEAN_BYTES / (run.fit.mean_service_s(run.table) - TASK_S),
            times: RunTimes::default(),
            probes: 0,
            pushes: 0,
            timed_out: 0,
        };
        simulation.schedule_all();
        simulation
    }

    /// Schedules the arrivals and, while requests arrive, the tables' refreshes and the periodic pushes.
    fn schedule_all(&mut self) {
        let requests = self.requests;
        requests
            .iter()
            .enumerate()
            .for_each(|(request, arrival)| self.push(arrival.at, Event::Arrives(request)));
        if let Director::Store(StoreDefault { pushes: Pushes::Every(every_s), .. }) = self.run.director {
            for node in 0..NODES {
                let phase: f64 = self.rng.random();
                self.push(phase * every_s, Event::Pushes { node, every_s });
            }
        }
        let (Some(every), Some(last)) = (self.run.director.probe_every(), requests.last()) else { return };
        let (every, half) = (every.as_secs_f64(), self.probing_nodes_s() / 2.0);
        let refreshes = (last.at / every) as u32;
        for refresh in 0..=refreshes {
            let since_last = if refresh == 0 { 0.0 } else { every };
            self.push(f64::from(refresh) * every + half, Event::Probes { since_last });
        }
    }

    /// Returns the seconds that a front end takes to probe all nodes.
    fn probing_nodes_s(&self) -> f64 {
        NODES as f64 * self.run.probe_s
    }

    fn push(&mut self, at: f64, event: Event) {
        self.events.push(at, event);
    }

    fn run(mut self) -> (RunSummary, RunTimes) {
        while let Some((at, event)) = self.events.pop() {
            match event {
                Event::Arrives(request) => self.arrives(at, request),
                Event::Takes(front_end) => self.takes(at, front_end),
                Event::Directs { request, probed, sends_at } => self.directs(at, request, &probed, sends_at),
                Event::Begins { request, chunk, node } => self.begins(at, request, chunk, node),
                Event::Ends { request, chunk, node, entered } => self.ends(at, request, chunk, node, entered),
                Event::TimesOut(request) => self.times_out(at, request),
                Event::Probes { since_last } => self.probes(at, since_last),
                Event::InForce(probe) => self.planner.take_probe(&probe, &mut self.rng),
                Event::Looks(node) => self.pushes_change(at, node),
                Event::Pushes { node, every_s } => self.pushes(at, node, every_s),
                Event::Told { node, waits_s, at } => self.views.tell(node, waits_s, at),
            }
        }
        self.sum_up()
    }

    fn sum_up(mut self) -> (RunSummary, RunTimes) {
        self.times.sort();
        let counted = self.times.requests.len() as f64;
        let seconds = self.requests.last().map_or(0.0, |last| last.at) - self.run.warm_up_s;
        let most = self.nodes.iter().map(|node| node.served_bytes).fold(0.0, f64::max);
        let mean = self.nodes.iter().map(|node| node.served_bytes).sum::<f64>() / NODES as f64;
        let summary = RunSummary {
            requests: Row::of(&self.times.requests, self.probes as f64 / seconds),
            p99: quantile(&self.times.requests, 0.99),
            tasks: Row::of(&self.times.tasks, 0.0),
            tasks_per_request: self.times.tasks.len() as f64 / counted,
            timed_out: self.timed_out as f64 / counted,
            pushes_per_s: self.pushes as f64 / seconds,
            imbalance: 100.0 * (most / mean - 1.0),
        };
        (summary, self.times)
    }

    /// Returns true if the request arrived after the warm-up.
    fn counts(&self, request: usize) -> bool {
        self.requests[request].at >= self.run.warm_up_s
    }

    fn arrives(&mut self, at: f64, request: usize) {
        let number = self.progress[request].front_end;
        let front_end = &mut self.front_ends[number];
        front_end.waiting.push_back(request);
        if !std::mem::replace(&mut front_end.is_busy, true) {
            self.takes(at, number);
        }
    }

    fn takes(&mut self, at: f64, number: usize) {
        let Some(request) = self.front_ends[number].waiting.pop_front() else {
            self.front_ends[number].is_busy = false;
            return;
        };
        let run = self.run;
        let probed = self.with_query(request, ReadPurpose::Query, &|_| None, |query, simulation| {
            simulation.policy.sites_to_probe(query, &mut simulation.rng)
        });
        if self.counts(request) {
            self.probes += probed.len() as u64;
        }
        let probing = probed.len() as f64 * run.probe_s;
        let sends_at = at + DECISION_S + probing;
        if self.counts(request) {
            self.times.controllers.push(sends_at - self.requests[request].at);
        }
        self.push(at + probing / 2.0, Event::Directs { request, probed, sends_at });
        self.push(sends_at, Event::Takes(number));
    }

    /// Plans a request by the probed queues, the table, or the pushed queues, and sends its tasks.
    fn directs(&mut self, at: f64, request: usize, probed: &[SiteId], sends_at: f64) {
        if let Director::Store(_) = self.run.director {
            return self.asks_by_forecast(at, request, sends_at);
        }
        let queues: Vec<f64> = self.nodes.iter().map(|node| node.queue_bytes).collect();
        let queue = |site: SiteId| {
            let bytes = queues[number(site)];
            probed.contains(&site).then_some(SiteQueue { waiting: 0.0, bytes })
        };
        self.asks(request, ReadPurpose::Query, &queue, sends_at);
        if let Some(time_out) = self.run.director.time_out() {
            self.push(sends_at + time_out.as_secs_f64(), Event::TimesOut(request));
        }
    }

    /// Plans by the store's policy with the front end's forecast: how long the work that waits at each node takes.
    fn asks_by_forecast(&mut self, at: f64, request: usize, sends_at: f64) {
        let front_end = self.progress[request].front_end;
        let waits_s: Vec<f64> = (0..NODES).map(|node| self.views.waits_s(front_end, node, at)).collect();
        let queue = |site: SiteId| Some(SiteQueue { waiting: waits_s[number(site)] / TASK_S, bytes: 0.0 });
        let nodes = self.asks(request, ReadPurpose::Query, &queue, sends_at);
        let takes_s = self.service_s(request);
        nodes.into_iter().for_each(|node| self.views.sends(front_end, node, sends_at + MESSAGE_S, takes_s));
    }

    /// Plans a request and sends its tasks. Returns the nodes that get one.
    fn asks(
        &mut self,
        request: usize,
        purpose: ReadPurpose,
        queue: &dyn Fn(SiteId) -> Option<SiteQueue>,
        sends_at: f64,
    ) -> Vec<usize> {
        let plan = self.with_query(request, purpose, queue, |query, simulation| {
            match simulation.policy.is_worth_planning(query) {
                true => simulation.planner.plan(query, &mut simulation.rng),
                false => plan_normally(query),
            }
        });
        let (n, data_chunk) = (self.code.n(), self.requests[request].partition % self.code.k());
        let mut nodes = Vec::new();
        for read in plan.expect("no node is down").reads {
            for chunk in read.chunks {
                let index = if chunk.index < n { chunk.index } else { data_chunk };
                self.sends(request, index, number(read.site), sends_at);
                nodes.push(number(read.site));
            }
        }
        nodes
    }

    fn sends(&mut self, request: usize, chunk: usize, node: usize, sends_at: f64) {
        self.progress[request].requested.insert(chunk);
        self.push(sends_at + MESSAGE_S, Event::Begins { request, chunk, node });
    }

    fn times_out(&mut self, at: f64, request: usize) {
        if !self.progress[request].is_answered {
            self.timed_out += u64::from(self.counts(request));
            self.asks(request, ReadPurpose::Rest, &|_| None, at);
        }
    }

    /// Returns the seconds that a node takes for a request, unless it is slow.
    fn service_s(&self, request: usize) -> f64 {
        TASK_S + f64::from(self.requests[request].bytes) / self.bytes_per_s
    }

    fn begins(&mut self, at: f64, request: usize, chunk: usize, node: usize) {
        let (bytes, service_s, slow) =
            (f64::from(self.requests[request].bytes), self.service_s(request), self.run.slow);
        let (served_at, ends_at) = self.nodes[node].take(at, bytes, service_s, slow);
        if self.counts(request) {
            self.times.waits.push(served_at - at);
            self.nodes[node].served_bytes += bytes;
        }
        self.push(ends_at, Event::Ends { request, chunk, node, entered: at });
        self.pushes_change(at, node);
    }

    fn ends(&mut self, at: f64, request: usize, chunk: usize, node: usize, entered: f64) {
        let (bytes, arrived) = (f64::from(self.requests[request].bytes), self.requests[request].at);
        self.nodes[node].end(at, bytes);
        self.pushes_change(at, node);
        let requested = self.requested_chunk(request);
        let counts = self.counts(request);
        if counts {
            self.times.tasks.push(at - entered);
        }
        let progress = &mut self.progress[request];
        progress.came.insert(chunk);
        if !progress.is_answered && self.code.determines(&progress.came, &requested) {
            progress.is_answered = true;
            if counts {
                self.times.requests.push(at + MESSAGE_S - arrived);
            }
        }
    }

    /// Pushes a node's queue if it differs from what front ends believe and pushes happen on change. The node checks
    /// when a task arrives or ends, and when by its last push all tasks should have ended.
    fn pushes_change(&mut self, at: f64, node: usize) {
        let does =
            matches!(self.run.director, Director::Store(StoreDefault { pushes: Pushes::OnChange, .. }));
        if does && self.nodes[node].is_believed_wrongly(at) {
            let waits_s = self.tells(at, node);
            if waits_s > 0.0 && self.run.slow.is_some() {
                self.push(at + waits_s + 2.0 * BELIEF_S, Event::Looks(node));
            }
        }
    }

    /// Pushes a node's queue and schedules the next push, as long as requests arrive.
    fn pushes(&mut self, at: f64, node: usize, every_s: f64) {
        self.tells(at, node);
        if self.requests.last().is_some_and(|last| at <= last.at) {
            self.push(at + every_s, Event::Pushes { node, every_s });
        }
    }

    fn tells(&mut self, at: f64, node: usize) -> f64 {
        if at >= self.run.warm_up_s {
            self.pushes += self.front_ends.len() as u64;
        }
        let waits_s = self.nodes[node].tell(at);
        self.push(at + MESSAGE_S, Event::Told { node, waits_s, at });
        waits_s
    }

    fn probes(&mut self, at: f64, since_last: f64) {
        if at >= self.run.warm_up_s {
            self.probes += (NODES * self.front_ends.len()) as u64;
        }
        let probed_site = |(number, node): (usize, &Node)| ProbedSite {
            site: SiteId(number as u32 + 1),
            requests: 0.0,
            bytes: node.queue_bytes,
        };
        let sites = self.nodes.iter().enumerate().map(probed_site).collect();
        let probe = Probe { since_last: Duration::from_secs_f64(since_last), sites };
        let solved_at = at + self.probing_nodes_s() / 2.0 + self.run.director.solve_time().as_secs_f64();
        self.push(solved_at, Event::InForce(probe));
    }

    fn requested_chunk(&self, request: usize) -> ChunkSet {
        std::iter::once(self.requests[request].partition % self.code.k()).collect()
    }

    /// Returns the sites of the chunks from which a request may be read; site 0 for the others.
    fn options(&self, request: usize, sites: &[SiteId]) -> Vec<SiteId> {
        let index = self.requests[request].partition % self.code.k();
        let is_local =
            matches!(self.run.director, Director::Store(StoreDefault { degraded: Degraded::Local, .. }));
        let Some(local) = is_local.then(|| local_group(&self.code, index)).flatten() else {
            return sites.to_vec();
        };
        let is_option = |chunk: usize| chunk == index || local.contains(chunk);
        let option = |(chunk, &site): (usize, &SiteId)| if is_option(chunk) { site } else { SiteId(0) };
        sites.iter().enumerate().map(option).collect()
    }

    /// Builds the query of a request, as the policy sees it.
    fn with_query<R>(
        &mut self,
        request: usize,
        purpose: ReadPurpose,
        queue: &dyn Fn(SiteId) -> Option<SiteQueue>,
        look: impl FnOnce(&ReadQuery<'_>, &mut Self) -> R,
    ) -> R {
        let details = self.requests[request];
        let group = details.partition / self.code.k();
        let (code, sites) = (self.code.clone(), std::mem::take(&mut self.placed[group]));
        let stripe = StripeId(group as u128 + 1);
        let options = self.options(request, &sites);
        let piece = QueryPiece {
            requested: self.progress[request].requested,
            copies: self.run.copies.map_or(&[][..], |copies| copies.sites(details.partition)),
            ..QueryPiece::part(stripe, &code, &options, details.bytes, self.requested_chunk(request))
        };
        // The cost of asking an idle node is 1.
        let per_byte = 1.0 / self.bytes_per_s / TASK_S;
        let cost = |_: SiteId| Some(SiteCost { asking: 1.0, per_byte, decode_per_byte: 0.0 });
        let query = ReadQuery { pieces: &[piece], purpose, can_be_asked: &|_| true, cost: &cost, queue };
        let result = look(&query, self);
        self.placed[group] = sites;
        result
    }
}

/// Returns a node's index.
fn number(site: SiteId) -> usize {
    site.0 as usize - 1
}

#[cfg(test)]
mod tests;
