//! The loads of the contest: the requests, the placement, and the speed of the nodes.

use std::path::Path;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_splitmix::hash;

use super::super::prediction::Plan;
use super::super::requests::{MEAN_BYTES, Request, Sessions, partition_of};
use super::super::{FITS, FittedLoad, OBJECTS, Table};
use crate::draws::exponential;
use crate::workload::trace::{self, Preload, ReplayOptions};
use crate::workload::{Cdn, Due, Operation, Workload};

/// A load on its placement.
#[derive(Clone, Debug)]
pub struct Load {
    /// Name of the load.
    pub name: String,
    /// Seed of the placement and of all draws.
    pub seed: u64,
    /// Source of the sessions, and speed of the nodes.
    pub fit: FittedLoad,
    /// Requests of the load.
    pub requests: Vec<Request>,
    /// Earlier requests, from which copies are placed.
    pub before: Vec<Request>,
}

/// Exponents a of loads that are not of the family: (i + 1)^−a without bursts. The last has three quarters of the
/// requests on one object.
const OTHER_SKEWS: [f64; 4] = [1.1, 1.3, 1.5, 2.5];
/// Range in which the service times of these loads are searched.
const OTHER_SERVICE_S: (f64, f64) = (0.003, 0.130);
/// Halvings of that range: near saturation, small differences matter.
const OTHER_HALVINGS: usize = 14;

/// Returns the loads of the family that give Normal's row of the table.
pub fn family(plan: &Plan, seeds: impl IntoIterator<Item = u64>) -> Vec<Load> {
    let of_seed = |seed: u64| {
        let (fit, requests, _) = plan.with_normal(seed)?;
        Some(of_sessions(format!("family, seed {seed}"), plan, fit, requests, seed))
    };
    seeds.into_iter().filter_map(of_seed).take(plan.load_count).collect()
}

/// Returns loads of other skews that give Normal's mean.
pub fn other_skews(plan: &Plan, seeds: impl IntoIterator<Item = u64>) -> Vec<Load> {
    let mut loads = Vec::new();
    for seed in seeds {
        for exponent in OTHER_SKEWS {
            let fit = FittedLoad {
                name: "Poisson",
                exponent,
                shift: 0.0,
                sigma: 0.5,
                burst: 1.0,
                gap_s: 0.005,
                service_s: [0.0; 2],
            };
            let requests =
                Sessions { fit: &fit, table: plan.table, load: 1.0, day: 0 }.draw(plan.length_s, seed);
            let fit = plan.with_normals_mean(fit, OTHER_SERVICE_S, OTHER_HALVINGS, seed, &requests);
            let name = format!("Poisson, Zipf {exponent}, seed {seed}");
            loads.push(of_sessions(name, plan, fit, requests, seed));
        }
    }
    loads
}

fn of_sessions(name: String, plan: &Plan, fit: FittedLoad, requests: Vec<Request>, seed: u64) -> Load {
    let before = Sessions { fit: &fit, table: plan.table, load: 1.0, day: 1 }.draw(plan.length_s, seed);
    Load { name, seed, fit, requests, before }
}

/// Histograms of a CDN's object sizes and popularity, as [`Cdn`] reads them.
#[derive(Clone, Debug)]
pub struct Histograms {
    /// Histogram of sizes, as JSON.
    pub sizes: String,
    /// Histogram of popularity, as JSON.
    pub popularity: String,
}

impl Histograms {
    fn cdn(&self, seed: u64) -> Result<Cdn, String> {
        Cdn::new(OBJECTS, &self.sizes, &self.popularity, seed).map_err(|error| error.to_string())
    }

    /// Creates the load of a CDN with its popularity and sizes. Requests arrive as a Poisson process at the table's
    /// rate, on nodes as fast as A3's.
    ///
    /// # Errors
    /// If the texts are not such histograms.
    pub fn of_a_cdn(&self, table: Table, length_s: f64, seed: u64) -> Result<Load, String> {
        let mut cdn = self.cdn(seed)?;
        let mut draw = |day: u64| {
            let mut rng = SmallRng::seed_from_u64(hash(seed ^ (day << 32) ^ 0xcd));
            let (mut at, mut requests) = (0.0, Vec::new());
            loop {
                at += exponential(&mut rng, 1.0 / table.requests_per_s());
                if at >= length_s {
                    return requests;
                }
                if let Operation::Read(objects) = cdn.next(&mut rng) {
                    requests.extend(objects.iter().map(|object| Request {
                        at,
                        partition: partition_of(object, seed),
                        bytes: cdn.size(object).clamp(1, u64::from(u32::MAX)) as u32,
                    }));
                }
            }
        };
        let (requests, before) = (draw(0), draw(1));
        Ok(on_nodes_of_a3(format!("CDN, seed {seed}"), requests, before, seed))
    }

    /// Creates a load of the family with the CDN's sizes instead of lognormal ones, scaled to the same mean.
    ///
    /// # Errors
    /// If the texts are not such histograms.
    pub fn in_the_place_of_sizes(&self, load: &Load) -> Result<Load, String> {
        let cdn = self.cdn(load.seed)?;
        let with_sizes = |requests: &[Request], day: u64| -> Vec<Request> {
            let size =
                |number: usize| cdn.size(hash(load.seed ^ hash(number as u64) ^ day) % OBJECTS).max(1) as f64;
            let mean = (0..requests.len()).map(size).sum::<f64>() / requests.len() as f64;
            let scaled = |(number, request): (usize, &Request)| Request {
                bytes: (size(number) * MEAN_BYTES / mean).clamp(1.0, f64::from(u32::MAX)) as u32,
                ..*request
            };
            requests.iter().enumerate().map(scaled).collect()
        };
        Ok(Load {
            name: format!("{}, sizes of a CDN", load.name),
            requests: with_sizes(&load.requests, 0),
            before: with_sizes(&load.before, 1),
            ..load.clone()
        })
    }
}

/// Creates a load from a trace's reads, each object a separate request, sped up to the table's rate, on nodes as fast
/// as A3's. The first half of the trace becomes the earlier requests.
///
/// # Errors
/// If the trace cannot be read.
pub fn of_a_trace(path: &Path, table: Table, seed: u64) -> Result<Load, String> {
    let options = ReplayOptions { time_scale: 1.0, preload: Preload::All };
    let mut replay =
        trace::open(path, options).map_err(|error| format!("{}: {error}", path.display()))?.reads_only();
    let (mut rng, mut requests) = (SmallRng::seed_from_u64(0), Vec::new());
    while let Due::After(due) = replay.due() {
        if let Operation::Read(objects) = replay.next(&mut rng) {
            requests.extend(objects.iter().map(|object| Request {
                at: due.as_secs_f64(),
                partition: partition_of(object, seed),
                bytes: replay.size(object).clamp(1, u64::from(u32::MAX)) as u32,
            }));
        }
    }
    let speed = requests.last().map_or(1.0, |last| table.requests_per_s() * last.at / requests.len() as f64);
    let mut rest = requests.split_off(requests.len() / 2);
    let begin = rest.first().map_or(0.0, |first| first.at);
    rest.iter_mut().for_each(|request| request.at = (request.at - begin) / speed);
    Ok(on_nodes_of_a3(format!("trace, seed {seed}"), rest, requests, seed))
}

/// Puts requests on nodes that serve their mean as fast as A3's. Sizes are scaled: only their ratios matter to the
/// model.
fn on_nodes_of_a3(name: String, mut requests: Vec<Request>, mut before: Vec<Request>, seed: u64) -> Load {
    let count = requests.len().max(1) as f64;
    let mean = requests.iter().map(|request| f64::from(request.bytes)).sum::<f64>() / count;
    for request in requests.iter_mut().chain(&mut before) {
        request.bytes = (f64::from(request.bytes) * MEAN_BYTES / mean).clamp(1.0, f64::from(u32::MAX)) as u32;
    }
    let fit = FittedLoad { name: "given", ..FITS[2] };
    Load { name, seed, fit, requests, before }
}
