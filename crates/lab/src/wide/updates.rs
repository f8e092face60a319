//! Updates of 4 KiB chunks in memory (§4.3, Fig. 13): a client reads a chunk and writes it back, and its site sends
//! the difference to the parities.
//!
//! | method | across racks, besides the chunk itself |
//! |--|--|
//! | the data's site reads, changes and writes each parity | two for each global parity and for the local one |
//! | each parity is sent the difference | one for each |
//! | global parities forward it in their rack | one for all global ones |
//! | the local parity is where its group is updated most | mostly none for the local one |

use std::collections::{HashMap, HashSet};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_core::SiteId;
use striate_plan::{Scheme, WideGeometry};

use super::cluster::{Cluster, Setting};
use super::layout::Layout;
use super::simulation::{self, Job};
use crate::data_updates::{DataChunk, DataChunks, UpdateMethod, count, hottest_rack};

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Number of stripes.
    pub stripes: usize,
    /// Operations whose updates count; equally many earlier ones show which racks are updated most.
    pub operations: usize,
    /// Number of clients, each with one operation at a time.
    pub clients: usize,
    /// Share of updates.
    pub updates: f64,
    /// Seed of the run.
    pub seed: u64,
}

/// An operation on a data chunk, by a client in a rack.
#[derive(Clone, Copy, Debug)]
struct Operation {
    data: DataChunk,
    client: SiteId,
    is_update: bool,
}

/// Returns the mean seconds of an update.
pub fn mean_update_s(layout: &Layout, setting: &Setting, method: UpdateMethod, load: &Load) -> f64 {
    let Scheme::Combined(geometry) = &layout.scheme else { return f64::NAN };
    // One extra site in each rack is a client.
    let cluster = Cluster::new(layout.parts(), geometry.c() + 1, setting);
    let store = Store { cluster: &cluster, layout, geometry, chunk: setting.chunk, method };
    let chunks = DataChunks::new(load.stripes, geometry.k());
    let mut rng = SmallRng::seed_from_u64(load.seed);
    let draw = |_| {
        let data = chunks.draw(&mut rng);
        let client = cluster.site(rng.random_range(0..layout.parts()), geometry.c());
        let is_update = rng.random_bool(load.updates);
        Operation { data, client, is_update }
    };
    let operations: Vec<Operation> = (0..2 * load.operations).map(draw).collect();
    let (before, counted) = operations.split_at(load.operations);
    let hottest = store.hottest(before);
    let jobs = counted.iter().map(|operation| store.job(operation, &hottest));
    let result = simulation::run(&cluster.links, jobs, load.clients);
    let of_updates = counted.iter().zip(&result.job_s).filter(|(operation, _)| operation.is_update);
    let (sum, count) = of_updates.fold((0.0, 0usize), |(sum, count), (_, s)| (sum + s, count + 1));
    sum / count as f64
}

struct Store<'a> {
    cluster: &'a Cluster,
    layout: &'a Layout,
    geometry: &'a WideGeometry,
    chunk: f64,
    method: UpdateMethod,
}

impl Store<'_> {
    /// Returns the rack of a chunk: the parts of each stripe begin in another rack.
    fn rack(&self, stripe: usize, chunk: usize) -> usize {
        (self.layout.part_of[chunk] + stripe) % self.layout.parts()
    }

    fn site(&self, stripe: usize, chunk: usize) -> SiteId {
        self.cluster.site(self.rack(stripe, chunk), chunk % self.geometry.c())
    }

    /// Returns the most updated rack for each group of each updated stripe.
    fn hottest(&self, operations: &[Operation]) -> HashMap<(usize, usize), usize> {
        let counts =
            count(operations.iter().filter(|operation| operation.is_update).map(|operation| operation.data));
        let groups: HashSet<(usize, usize)> =
            counts.keys().map(|data| (data.stripe, self.group(data.chunk))).collect();
        let hottest = |&(stripe, group): &(usize, usize)| {
            let updates = |chunk| counts.get(&DataChunk { stripe, chunk }).copied().unwrap_or_default();
            hottest_rack(self.geometry.group_data(group), updates, |chunk| self.rack(stripe, chunk))
        };
        groups.into_iter().map(|group| (group, hottest(&group))).collect()
    }

    fn group(&self, chunk: usize) -> usize {
        chunk / self.geometry.r()
    }

    /// Returns the site of the local parity for a chunk.
    fn local_parity(&self, operation: &Operation, hottest: &HashMap<(usize, usize), usize>) -> SiteId {
        let DataChunk { stripe, chunk } = operation.data;
        let group = self.group(chunk);
        let original = self.geometry.local_parity(group);
        let moved = hottest.get(&(stripe, group)).filter(|_| self.method.inner_local);
        match moved {
            // It has swapped places with a data chunk there that is not the updated one.
            Some(&rack) => self.cluster.site(rack, (chunk + 1) % self.geometry.c()),
            None => self.site(stripe, original),
        }
    }

    fn job(&self, operation: &Operation, hottest: &HashMap<(usize, usize), usize>) -> Job {
        let mut job = Job::default();
        let stripe = operation.data.stripe;
        let data = self.site(stripe, operation.data.chunk);
        let mut send = |from, to, after: &[usize]| job.add(self.cluster.send(from, to), self.chunk, after);
        let read = send(data, operation.client, &[]);
        if !operation.is_update {
            return job;
        }
        let written = send(operation.client, data, &[read]);
        let globals: Vec<SiteId> =
            self.geometry.global_parities().map(|global| self.site(stripe, global)).collect();
        let local = self.local_parity(operation, hottest);
        let direct = if self.method.inner_global { &globals[..1] } else { &globals[..] };
        for &parity in direct.iter().chain([&local]).filter(|&&parity| parity != data) {
            let before = match self.method.reads_parities {
                true => send(parity, data, &[written]),
                false => written,
            };
            let changed = send(data, parity, &[before]);
            if self.method.inner_global && parity == globals[0] {
                globals[1..].iter().for_each(|&other| {
                    send(parity, other, &[changed]);
                });
            }
        }
        job
    }
}
