//! Nodes, front ends, probes and tables, event by event.
//!
//! - A *node* serves read tasks one at a time, first come, first served: 1.5 ms each and its bytes over the node's rate. Its
//!   queue is the bytes of all tasks that it has not ended.
//! - A *front end* handles one request at a time: 0.4 ms to decide, and 1.25 ms for each probe, one after the other. What it is told
//!   is how queues are half-way through its probes. Requests come to random ones: 8 where requests are probed for, else 3 (§4).
//! - A message takes 0.4 ms. A request has been answered when the chunks that came determine its own.
//! - *Tables* are made every T seconds, of queues as they are half-way through the probes of all nodes, and are in force when
//!   these have ended and the policy has solved. All front ends refresh at the same time and have the same table, for
//!   which the requests of all count ("separate yet nearly identical", §3.1): one planner stands for all. Each probes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::{ChunkSet, Code};
use striate_core::{SiteId, StripeId};
use striate_plan::{
    Probe, ProbedSite, Purpose, QueryPiece, ReadPlanner, ReadPolicy, ReadQuery, SiteCost, SiteQueue,
};
use striate_splitmix::hash;

use super::outcome::Row;
use super::requests::{MEAN_BYTES, Request};
use super::{Fit, NODES, PARTITIONS, Table};

/// Seconds that a task takes beside its bytes.
const TASK_S: f64 = 0.0015;
/// Seconds of a message.
const MESSAGE_S: f64 = 0.0004;
/// Seconds of a decision.
const DECISION_S: f64 = 0.0004;
/// Seconds of a probe: the paper's least response times rise by so much for each.
pub const PROBE_S: f64 = 0.001_25;
/// Front ends where requests are probed for, and where they are not.
const FRONT_ENDS: [usize; 2] = [8, 3];

/// What is run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The load, and the nodes' speed.
    pub fit: &'a Fit,
    /// The code, and the rate of requests.
    pub table: Table,
    /// Who directs them.
    pub policy: ReadPolicy,
    /// Seconds of a probe.
    pub probe_s: f64,
    /// Requests before this time are served and do not count, in seconds.
    pub warm_up_s: f64,
    /// Of placement, front ends and the policy's draws.
    pub seed: u64,
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Of requests: from their arrival at the front end to the last byte needed.
    pub requests: Row,
    /// Of tasks: from their arrival at the node to their end.
    pub tasks: Row,
    /// Tasks for each request.
    pub tasks_per_request: f64,
    /// The share of requests that timed out.
    pub timed_out: f64,
}

/// Serves all requests.
///
/// # Panics
/// Without requests after the warm-up.
pub fn run(run: &Run<'_>, requests: &[Request]) -> Seen {
    Simulation::new(run, requests).run()
}

enum Event {
    /// A request comes to its front end.
    Arrives(usize),
    /// A front end takes its next request.
    Takes(usize),
    /// The queues are as the front end is told; tasks are sent at this time.
    Directs { request: usize, probed: Vec<SiteId>, sends_at: f64 },
    /// A task comes to its node.
    Begins { request: usize, chunk: usize },
    /// A task ends.
    Ends { request: usize, chunk: usize, entered: f64 },
    /// A request's time-out.
    TimesOut(usize),
    /// The probes for a table are half done.
    Probes { since_last: f64 },
    /// The table is in force.
    InForce(Probe),
}

/// An event at its time; of two at the same time the one that was made first comes first.
struct Timed {
    at: f64,
    number: u64,
    event: Event,
}

impl Ord for Timed {
    /// The earliest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timed {}

#[derive(Clone, Copy, Default)]
struct Node {
    /// When it has ended all tasks.
    free_at: f64,
    queue_bytes: f64,
}

#[derive(Clone, Default)]
struct FrontEnd {
    waiting: VecDeque<usize>,
    is_busy: bool,
}

/// A request on its way.
#[derive(Clone, Copy, Default)]
struct Progress {
    front_end: usize,
    asked: ChunkSet,
    came: ChunkSet,
    is_answered: bool,
}

struct Simulation<'a> {
    run: &'a Run<'a>,
    requests: &'a [Request],
    code: Code,
    /// The sites of each group of k partitions.
    placed: Vec<Vec<SiteId>>,
    planner: Box<dyn ReadPlanner>,
    rng: SmallRng,
    nodes: Vec<Node>,
    front_ends: Vec<FrontEnd>,
    progress: Vec<Progress>,
    events: BinaryHeap<Timed>,
    made: u64,
    bytes_per_s: f64,
    times: Vec<f64>,
    task_times: Vec<f64>,
    probes: u64,
    timed_out: u64,
}

impl<'a> Simulation<'a> {
    fn new(run: &'a Run<'a>, requests: &'a [Request]) -> Self {
        let code = run.table.code();
        let probes_requests = run.policy.probe_every().is_none() && run.policy.time_out().is_none();
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
            planner: run.policy.planner(),
            rng,
            nodes: vec![Node::default(); NODES],
            front_ends: vec![FrontEnd::default(); front_ends],
            progress,
            events: BinaryHeap::new(),
            made: 0,
            bytes_per_s: MEAN_BYTES / (run.fit.mean_service_s(run.table) - TASK_S),
            times: Vec::with_capacity(requests.len()),
            task_times: Vec::with_capacity(requests.len()),
            probes: 0,
            timed_out: 0,
        };
        simulation.schedule_all();
        simulation
    }

    /// The arrivals, and the tables' refreshes as long as there are some.
    fn schedule_all(&mut self) {
        let requests = self.requests;
        requests.iter().enumerate().for_each(|(request, of)| self.push(of.at, Event::Arrives(request)));
        let (Some(every), Some(last)) = (self.run.policy.probe_every(), requests.last()) else { return };
        let (every, half) = (every.as_secs_f64(), self.probing_nodes_s() / 2.0);
        let refreshes = (last.at / every) as u32;
        for refresh in 0..=refreshes {
            let since_last = if refresh == 0 { 0.0 } else { every };
            self.push(f64::from(refresh) * every + half, Event::Probes { since_last });
        }
    }

    /// Seconds that a front end takes to probe all nodes.
    fn probing_nodes_s(&self) -> f64 {
        NODES as f64 * self.run.probe_s
    }

    fn push(&mut self, at: f64, event: Event) {
        self.made += 1;
        self.events.push(Timed { at, number: self.made, event });
    }

    fn run(mut self) -> Seen {
        while let Some(Timed { at, event, .. }) = self.events.pop() {
            match event {
                Event::Arrives(request) => self.arrives(at, request),
                Event::Takes(front_end) => self.takes(at, front_end),
                Event::Directs { request, probed, sends_at } => self.directs(request, &probed, sends_at),
                Event::Begins { request, chunk } => self.begins(at, request, chunk),
                Event::Ends { request, chunk, entered } => self.ends(at, request, chunk, entered),
                Event::TimesOut(request) => self.times_out(at, request),
                Event::Probes { since_last } => self.probes(at, since_last),
                Event::InForce(probe) => self.planner.take_probe(&probe, &mut self.rng),
            }
        }
        let counted = self.times.len() as f64;
        let seconds = self.requests.last().map_or(0.0, |last| last.at) - self.run.warm_up_s;
        let requests = Row::of(self.times, self.probes as f64 / seconds);
        let tasks_per_request = self.task_times.len() as f64 / counted;
        Seen {
            requests,
            tasks: Row::of(self.task_times, 0.0),
            tasks_per_request,
            timed_out: self.timed_out as f64 / counted,
        }
    }

    /// Whether what happens to a request counts.
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
        let probed = self.with_query(request, Purpose::Query, &|_| None, |query, this| {
            this.run.policy.sites_to_probe(query, &mut this.rng)
        });
        if self.counts(request) {
            self.probes += probed.len() as u64;
        }
        let probing = probed.len() as f64 * self.run.probe_s;
        let sends_at = at + DECISION_S + probing;
        self.push(at + probing / 2.0, Event::Directs { request, probed, sends_at });
        self.push(sends_at, Event::Takes(number));
    }

    /// Plans a request by the queues of the sites that were probed, or by the table, and sends its tasks.
    fn directs(&mut self, request: usize, probed: &[SiteId], sends_at: f64) {
        let nodes = self.nodes.clone();
        let queue = |site: SiteId| {
            let bytes = nodes[site.0 as usize - 1].queue_bytes;
            probed.contains(&site).then_some(SiteQueue { waiting: 0.0, bytes })
        };
        self.asks(request, Purpose::Query, &queue, sends_at);
        if let Some(time_out) = self.run.policy.time_out() {
            self.push(sends_at + time_out.as_secs_f64(), Event::TimesOut(request));
        }
    }

    fn asks(
        &mut self,
        request: usize,
        purpose: Purpose,
        queue: &dyn Fn(SiteId) -> Option<SiteQueue>,
        sends_at: f64,
    ) {
        let plan =
            self.with_query(request, purpose, queue, |query, this| this.planner.plan(query, &mut this.rng));
        let plan = plan.expect("no node is down");
        for chunk in plan.reads.iter().flat_map(|read| &read.chunks).map(|chunk| chunk.index) {
            self.progress[request].asked.insert(chunk);
            self.push(sends_at + MESSAGE_S, Event::Begins { request, chunk });
        }
    }

    fn times_out(&mut self, at: f64, request: usize) {
        if !self.progress[request].is_answered {
            self.timed_out += u64::from(self.counts(request));
            self.asks(request, Purpose::Rest, &|_| None, at);
        }
    }

    fn begins(&mut self, at: f64, request: usize, chunk: usize) {
        let bytes = f64::from(self.requests[request].bytes);
        let service = TASK_S + bytes / self.bytes_per_s;
        let node = self.node(request, chunk);
        node.queue_bytes += bytes;
        node.free_at = node.free_at.max(at) + service;
        let ends_at = node.free_at;
        self.push(ends_at, Event::Ends { request, chunk, entered: at });
    }

    fn ends(&mut self, at: f64, request: usize, chunk: usize, entered: f64) {
        let (bytes, arrived) = (f64::from(self.requests[request].bytes), self.requests[request].at);
        self.node(request, chunk).queue_bytes -= bytes;
        let wanted = self.wanted(request);
        let counts = self.counts(request);
        if counts {
            self.task_times.push(at - entered);
        }
        let progress = &mut self.progress[request];
        progress.came.insert(chunk);
        if !progress.is_answered && self.code.determines(&progress.came, &wanted) {
            progress.is_answered = true;
            if counts {
                self.times.push(at + MESSAGE_S - arrived);
            }
        }
    }

    fn probes(&mut self, at: f64, since_last: f64) {
        if at >= self.run.warm_up_s {
            self.probes += (NODES * self.front_ends.len()) as u64;
        }
        let told = |(number, node): (usize, &Node)| ProbedSite {
            site: SiteId(number as u32 + 1),
            requests: 0.0,
            bytes: node.queue_bytes,
        };
        let sites = self.nodes.iter().enumerate().map(told).collect();
        let probe = Probe { since_last: std::time::Duration::from_secs_f64(since_last), sites };
        let solved_at = at + self.probing_nodes_s() / 2.0 + self.run.policy.solve_time().as_secs_f64();
        self.push(solved_at, Event::InForce(probe));
    }

    fn wanted(&self, request: usize) -> ChunkSet {
        std::iter::once(self.requests[request].partition % self.code.k()).collect()
    }

    fn node(&mut self, request: usize, chunk: usize) -> &mut Node {
        let site = self.placed[self.requests[request].partition / self.code.k()][chunk];
        &mut self.nodes[site.0 as usize - 1]
    }

    /// The query of a request, as the policy sees it.
    fn with_query<R>(
        &mut self,
        request: usize,
        purpose: Purpose,
        queue: &dyn Fn(SiteId) -> Option<SiteQueue>,
        look: impl FnOnce(&ReadQuery<'_>, &mut Self) -> R,
    ) -> R {
        let of = self.requests[request];
        let group = of.partition / self.code.k();
        let (code, sites) = (self.code.clone(), std::mem::take(&mut self.placed[group]));
        let stripe = StripeId(group as u128 + 1);
        let piece = QueryPiece {
            asked: self.progress[request].asked,
            ..QueryPiece::part(stripe, &code, &sites, of.bytes, self.wanted(request))
        };
        let cost = |_: SiteId| Some(SiteCost::of_asking(1.0));
        let query = ReadQuery { pieces: &[piece], purpose, can_be_asked: &|_| true, cost: &cost, queue };
        let seen = look(&query, self);
        self.placed[group] = sites;
        seen
    }
}

/// The sites of each group of k partitions: random ones, so that every node has about as many chunks (§3).
pub(super) fn place(code: &Code, seed: u64) -> Vec<Vec<SiteId>> {
    let mut rng = SmallRng::seed_from_u64(hash(seed ^ 0x91ace));
    let mut counts = vec![0u32; NODES];
    let group = |_| {
        let mut order: Vec<(u32, u64, usize)> =
            counts.iter().enumerate().map(|(node, &count)| (count, rng.random(), node)).collect();
        order.sort_unstable();
        order.truncate(code.n());
        // The least loaded come in random order: which of them gets data is a draw too.
        order.sort_unstable_by_key(|(_, draw, _)| *draw);
        order.iter().for_each(|(.., node)| counts[*node] += 1);
        order.into_iter().map(|(.., node)| SiteId(node as u32 + 1)).collect()
    };
    (0..PARTITIONS.div_ceil(code.k())).map(group).collect()
}

#[cfg(test)]
mod tests;
