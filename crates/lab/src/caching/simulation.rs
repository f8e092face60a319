//! Clients that read one block after the other.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use striate_plan::cache::last_splits::{LAST_SPLITS, WAIT_SHARE};
use striate_workload::latency::Latencies;

use super::catalogue::Catalogue;
use super::network::{FlowId, Network};
use super::{Part, Scheme, Setting};
use crate::draws::{exponential, normal};
use crate::events::Events;

/// Half-life, in seconds, of the record of what servers were asked for.
const FORGET_S: f64 = 1.0;
/// A parity is requested instead of a data split if its server was recently asked for this many fewer splits.
const DATA_FIRST: f64 = 3.0;
/// Rate of a slow flow over that of others.
const SLOW_FLOW: f64 = 1.0 / 3.0;

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReadResults {
    /// Number of reads.
    pub reads: u64,
    /// Mean time of a read, in milliseconds.
    pub mean_ms: f64,
    /// Median, in milliseconds.
    pub median_ms: f64,
    /// 95th percentile, in milliseconds.
    pub p95_ms: f64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// 99.9th percentile, in milliseconds.
    pub p999_ms: f64,
    /// λ over the oracle, in percent: bytes sent by the most loaded server, relative to what each would have sent
    /// under equal load and without superfluous reads.
    pub imbalance: f64,
    /// Share of reads that took at least as long as a stalled flow.
    pub late: f64,
    /// Mean processor time of decoding for a read, in milliseconds.
    pub decode_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum EventKind {
    /// A client starts its next read.
    Read { client: usize },
    /// The flows of a read begin.
    Begin { request: usize },
    /// A delayed or stalled flow begins.
    Delayed { flow: FlowId },
    /// Other splits are requested, if a read still lacks some.
    Hedge { request: usize },
    /// A read from elsewhere, or a decode, has ended.
    End { request: usize },
    /// A server's card becomes slow or recovers.
    Card { server: usize, is_slow: bool },
}

struct Request {
    client: usize,
    block: usize,
    began: f64,
    /// Number of splits that must arrive.
    needed: usize,
    came: usize,
    /// True if some arrived splits are parities.
    has_parity: bool,
    flows: Vec<FlowId>,
    is_over: bool,
}

struct SplitFlow {
    request: usize,
    /// Index of the split in the block.
    split: usize,
    is_ended: bool,
}

/// Reads of all clients.
struct Simulation<'a> {
    setting: &'a Setting,
    scheme: Scheme,
    catalogue: &'a Catalogue,
    rng: SmallRng,
    now: f64,
    network: Network,
    events: Events<EventKind>,
    requests: Vec<Request>,
    flows: Vec<SplitFlow>,
    /// Bytes that each server has sent.
    sent: Vec<f64>,
    /// Bytes that each server was recently asked for, and the time of the last update.
    recent_requests: Vec<(f64, f64)>,
    useful: f64,
    reads: u64,
    /// Reads that took at least as long as a stalled flow.
    late: u64,
    /// Seconds of decoding.
    decoded_s: f64,
    latencies: Latencies,
}

/// Lets the clients read `reads` blocks, after a warm-up of a tenth as many.
pub fn run(setting: &Setting, scheme: Scheme, reads: u64, seed: u64) -> ReadResults {
    let catalogue = Catalogue::draw(setting, scheme, seed);
    let cards = vec![setting.server_card; setting.servers];
    let mut simulation = Simulation {
        setting,
        scheme,
        catalogue: &catalogue,
        rng: SmallRng::seed_from_u64(!seed),
        now: 0.0,
        network: Network::new(cards, vec![setting.client_card; setting.clients]),
        events: Events::default(),
        requests: Vec::new(),
        flows: Vec::new(),
        sent: vec![0.0; setting.servers],
        recent_requests: vec![(0.0, 0.0); setting.servers],
        useful: 0.0,
        reads: 0,
        late: 0,
        decoded_s: 0.0,
        latencies: Latencies::default(),
    };
    simulation.begin();
    simulation.run_until(reads / 10);
    simulation.forget();
    simulation.run_until(reads);
    simulation.results()
}

impl Simulation<'_> {
    fn begin(&mut self) {
        for client in 0..self.setting.clients {
            let at = self.rng.random::<f64>() * self.setting.think_s.max(0.05);
            self.at(at, EventKind::Read { client });
        }
        if let Some(phases) = self.setting.slow_phases {
            for server in 0..self.setting.servers {
                let at = self.rng.random::<f64>() * phases.every_s;
                self.at(at, EventKind::Card { server, is_slow: true });
            }
        }
    }

    fn at(&mut self, at: f64, event: EventKind) {
        self.events.push(at, event);
    }

    /// Resets all counters.
    fn forget(&mut self) {
        self.sent.fill(0.0);
        (self.useful, self.reads, self.late, self.decoded_s) = (0.0, 0, 0, 0.0);
        self.latencies = Latencies::default();
    }

    fn run_until(&mut self, reads: u64) {
        while self.reads < reads {
            let next_event = self.events.next_at().unwrap_or(f64::INFINITY);
            let next_end = self.network.next_end_s().map_or(f64::INFINITY, |after| self.now + after);
            let at = next_event.min(next_end);
            for ended in self.network.pass(at - self.now) {
                self.flow_ended(ended.id, ended.server, at);
            }
            self.now = at;
            if next_event <= next_end
                && let Some((_, event)) = self.events.pop()
            {
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: EventKind) {
        match event {
            EventKind::Read { client } => self.read(client),
            EventKind::Begin { request } => self.begin_flows(request),
            EventKind::Delayed { flow } => self.begin_flow(flow),
            EventKind::Hedge { request } => self.hedge(request),
            EventKind::End { request } => self.end(request),
            EventKind::Card { server, is_slow } => self.set_card(server, is_slow),
        }
    }

    fn set_card(&mut self, server: usize, is_slow: bool) {
        let Some(phases) = self.setting.slow_phases else { return };
        let (share, pause) =
            if is_slow { (phases.share, phases.for_s) } else { (1.0, phases.every_s - phases.for_s) };
        self.network.set_server(server, self.setting.server_card * share);
        self.at(self.now + pause, EventKind::Card { server, is_slow: !is_slow });
    }

    /// Draws the delay of a read or a flow: 0 for the part that nothing delays.
    fn delay(&mut self, part: Part) -> f64 {
        let (setting, mut delay) = (self.setting, 0.0);
        if setting.delayed == part {
            delay += setting.delay_s * (setting.delay_sigma * normal(&mut self.rng)).exp();
        }
        if setting.stalled == part && self.rng.random::<f64>() < setting.stalls {
            delay += setting.stall_s;
        }
        delay
    }

    /// Draws the maximum rate of a flow, if flows differ.
    fn max_rate(&mut self) -> f64 {
        let (setting, mut rate) = (self.setting, self.setting.stream);
        if setting.rate_sigma > 0.0 {
            rate *= (setting.rate_sigma * normal(&mut self.rng)).exp();
        }
        if setting.slow_flows > 0.0 && self.rng.random::<f64>() < setting.slow_flows {
            rate *= SLOW_FLOW;
        }
        rate
    }

    /// Has a client start its next read after a pause.
    fn pause(&mut self, client: usize) {
        let think = exponential(&mut self.rng, self.setting.think_s);
        self.at(self.now + think, EventKind::Read { client });
    }

    /// Starts a client's read, with the delay of the request first.
    fn read(&mut self, client: usize) {
        let setting = self.setting;
        if setting.is_open {
            self.pause(client);
        }
        let block = self.catalogue.next(&mut self.rng);
        let needed = match self.scheme {
            Scheme::SelectiveReplication => 1,
            _ => setting.splits,
        };
        let request = self.requests.len();
        self.requests.push(Request {
            client,
            block,
            began: self.now,
            needed,
            came: 0,
            has_parity: false,
            flows: Vec::new(),
            is_over: false,
        });
        let delay = self.delay(Part::Request);
        self.at(self.now + delay + setting.connection_s, EventKind::Begin { request });
    }

    fn begin_flows(&mut self, request: usize) {
        let splits = self.choose(request);
        if splits.len() < self.requests[request].needed {
            let lost_read_s = self.setting.lost.unwrap_or(0.0);
            return self.at(self.now + lost_read_s, EventKind::End { request });
        }
        splits.into_iter().for_each(|split| self.ask(request, split));
    }

    /// Chooses the splits, or the copy, that are requested first.
    fn choose(&mut self, request: usize) -> Vec<usize> {
        let places = &self.catalogue.places[self.requests[request].block];
        // The last server is the lost one.
        let is_there =
            |split: &usize| self.setting.lost.is_none() || places[*split] + 1 != self.setting.servers;
        let mut candidates: Vec<usize> = (0..places.len()).filter(is_there).collect();
        let k = self.setting.splits;
        match self.scheme {
            Scheme::SelectiveReplication => {
                candidates.shuffle(&mut self.rng);
                candidates.truncate(1);
            }
            Scheme::SplitReplication => {
                let copies = places.len() / k;
                candidates.shuffle(&mut self.rng);
                candidates.sort_by_key(|split| split / copies);
                candidates.dedup_by_key(|split| *split / copies);
            }
            Scheme::EcCache { extra } => {
                candidates.shuffle(&mut self.rng);
                candidates.truncate(k + extra);
            }
            Scheme::Ours => {
                let split_bytes = self.setting.split_bytes();
                let cost = |split: &usize| {
                    let parity = if *split < k { 0.0 } else { DATA_FIRST * split_bytes };
                    self.recent_bytes(places[*split]) + parity
                };
                candidates.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
                candidates.truncate(k);
            }
        }
        candidates
    }

    /// Returns the bytes that a server was recently asked for.
    fn recent_bytes(&self, server: usize) -> f64 {
        let (bytes, at) = self.recent_requests[server];
        bytes * 0.5f64.powf((self.now - at) / FORGET_S)
    }

    fn ask(&mut self, request: usize, split: usize) {
        let flow = self.flows.len();
        self.flows.push(SplitFlow { request, split, is_ended: false });
        self.requests[request].flows.push(flow);
        let server = self.catalogue.places[self.requests[request].block][split];
        self.recent_requests[server] = (self.recent_bytes(server) + self.bytes_of_flow(), self.now);
        let delay = self.delay(Part::Flow);
        match delay > 0.0 {
            true => self.at(self.now + delay, EventKind::Delayed { flow }),
            false => self.begin_flow(flow),
        }
    }

    fn bytes_of_flow(&self) -> f64 {
        match self.scheme {
            Scheme::SelectiveReplication => self.setting.block_bytes,
            _ => self.setting.split_bytes(),
        }
    }

    fn begin_flow(&mut self, flow: FlowId) {
        let SplitFlow { request, split, is_ended } = self.flows[flow];
        if is_ended {
            return;
        }
        let Request { client, block, .. } = self.requests[request];
        let server = self.catalogue.places[block][split];
        let max_rate = self.max_rate();
        self.network.begin(flow, server, client, self.bytes_of_flow(), max_rate);
    }

    fn flow_ended(&mut self, flow: FlowId, server: usize, at: f64) {
        self.sent[server] += self.bytes_of_flow();
        let SplitFlow { request, split, .. } = self.flows[flow];
        self.flows[flow].is_ended = true;
        let read = &mut self.requests[request];
        if read.is_over {
            return;
        }
        read.came += 1;
        read.has_parity |= split >= self.setting.splits && self.scheme != Scheme::SplitReplication;
        let (lacks, began) = (read.needed.saturating_sub(read.came), read.began);
        if lacks == 0 {
            read.is_over = true;
            self.came(request, at);
        } else if lacks == LAST_SPLITS && self.scheme == Scheme::Ours {
            self.at(at + WAIT_SHARE * (at - began), EventKind::Hedge { request });
        }
    }

    /// Called when enough of a read has arrived.
    fn came(&mut self, request: usize, at: f64) {
        let decode = match self.scheme {
            Scheme::EcCache { .. } => self.setting.decode_of_block_s(),
            Scheme::Ours if self.requests[request].has_parity => self.setting.decode_of_block_s(),
            _ => 0.0,
        };
        if self.scheme == Scheme::Ours {
            for flow in self.requests[request].flows.clone() {
                self.take_back(flow);
            }
        }
        self.decoded_s += decode;
        self.at(at + decode, EventKind::End { request });
    }

    /// Cancels a flow. What the server has already sent counts.
    fn take_back(&mut self, flow: FlowId) {
        let SplitFlow { request, split, is_ended } = self.flows[flow];
        if std::mem::replace(&mut self.flows[flow].is_ended, true) || is_ended {
            return;
        }
        if let Some(unsent) = self.network.cancel(flow) {
            let server = self.catalogue.places[self.requests[request].block][split];
            self.sent[server] += self.bytes_of_flow() - unsent;
        }
    }

    /// Requests other splits instead of those that have not arrived.
    fn hedge(&mut self, request: usize) {
        let read = &self.requests[request];
        let lacks = read.needed.saturating_sub(read.came);
        if read.is_over || lacks == 0 {
            return;
        }
        let requested: Vec<usize> = read.flows.iter().map(|&flow| self.flows[flow].split).collect();
        let places = &self.catalogue.places[read.block];
        let is_there =
            |split: &usize| self.setting.lost.is_none() || places[*split] + 1 != self.setting.servers;
        let mut others: Vec<usize> =
            (0..places.len()).filter(|split| !requested.contains(split)).filter(is_there).collect();
        others.sort_by(|&a, &b| self.recent_bytes(places[a]).total_cmp(&self.recent_bytes(places[b])));
        others.truncate(lacks);
        others.into_iter().for_each(|split| self.ask(request, split));
    }

    fn end(&mut self, request: usize) {
        let Request { client, began, .. } = self.requests[request];
        self.latencies.record(Duration::from_secs_f64(self.now - began));
        self.late += u64::from(self.now - began >= self.setting.stall_s);
        self.useful += self.setting.block_bytes;
        self.reads += 1;
        if !self.setting.is_open {
            self.pause(client);
        }
    }

    fn results(&self) -> ReadResults {
        let ms = |percent| self.latencies.at_percentile_ms(percent);
        let most = self.sent.iter().copied().fold(0.0, f64::max);
        let oracle = self.useful / self.setting.servers as f64;
        ReadResults {
            reads: self.reads,
            mean_ms: self.latencies.summary().mean_ms,
            median_ms: ms(50.0),
            p95_ms: ms(95.0),
            p99_ms: ms(99.0),
            p999_ms: ms(99.9),
            imbalance: 100.0 * (most / oracle - 1.0),
            late: self.late as f64 / self.reads as f64,
            decode_ms: 1e3 * self.decoded_s / self.reads as f64,
        }
    }
}
