//! Packed objects on real sites with modelled media, read through several gateways by one policy after the other.
//!
//! Requests arrive as a Poisson process, independently of responses, at random gateways, and choose objects by Zipf's
//! law. Each policy serves the same requests. The load is that of the hottest site under normal reads, according to
//! the objects' shares and the medium's mean.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_client::{Client, ClientError, ClientOptions};
use striate_codec::{CodecError, crc32c};
use striate_core::{ChunkId, ChunkRange, Generation, Profile, SiteId};
use striate_meta::MemoryStore;
use striate_meta::records::Extent;
use striate_plan::ReadPolicy;
use striate_runtime::{Instant, Runtime};
use striate_site::Site;
use striate_stripe::StripeOptions;

use super::{RealityError, write_chunks};
use crate::calibration::Calibration;
use crate::contents::GeneratedStripes;
use crate::latency::Latencies;
use crate::world::load_metadata;

/// Number of coding groups; lengths of their partitions and of the objects in them, in bytes.
const GROUPS: usize = 24;
const PARTITION_LEN: u32 = 256 << 10;
const OBJECT_LEN: u32 = 16 << 10;
/// Zipf exponent of the objects' popularity.
const SKEW: f64 = 1.1;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct PackedSetting {
    /// Media of the sites.
    pub calibration: Calibration,
    /// Code of the groups.
    pub profile: Profile,
    /// Number of sites, numbered from 1.
    pub sites: u32,
    /// Load of the hottest site under normal reads, in [0, 1).
    pub load: f64,
    /// Length of the warm-up, whose requests do not count.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub length: Duration,
}

/// Objects in coding groups, the most popular first.
#[derive(Debug)]
pub struct PackedObjects {
    stripes: Arc<GeneratedStripes>,
    extents: Vec<Extent>,
    /// Cumulative share of the requests, for each object and the more popular ones.
    shares: Vec<f64>,
    /// Largest share of the requests that one site serves under normal reads.
    hottest: f64,
}

/// A request for an object.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Arrival time since the start.
    at: Duration,
    gateway: usize,
    object: usize,
}

impl PackedObjects {
    /// Draws places and popularity.
    ///
    /// # Errors
    /// If the profile's code cannot be built.
    pub fn draw(setting: &PackedSetting, seed: u64) -> Result<Self, CodecError> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let code = setting.profile.code.build()?;
        let (k, n) = (code.k(), code.n());
        let mut stripes = GeneratedStripes::new(&setting.profile.to_string(), code, k as u32 * PARTITION_LEN);
        let mut extents = Vec::new();
        for _ in 0..GROUPS {
            let places = rand::seq::index::sample(&mut rng, setting.sites as usize, n);
            let sites: Vec<SiteId> = places.iter().map(|place| SiteId(place as u32 + 1)).collect();
            let stripe = stripes.add(&sites, k as u32 * PARTITION_LEN);
            for (index, &site) in sites.iter().enumerate().take(k) {
                for offset in (0..PARTITION_LEN).step_by(OBJECT_LEN as usize) {
                    let chunk = ChunkId { stripe, index: index as u8, generation: Generation(1) };
                    let range = ChunkRange { chunk, offset, len: OBJECT_LEN };
                    let bytes = stripes.read(site, range).expect("it was just added");
                    extents.push((
                        site,
                        Extent {
                            stripe: stripe.to_bytes().to_vec().into(),
                            index: index as u32,
                            offset,
                            len: OBJECT_LEN,
                            crc32c: crc32c(&bytes),
                            content_version: 0,
                        },
                    ));
                }
            }
        }
        for last in (1..extents.len()).rev() {
            extents.swap(last, rng.random_range(0..=last));
        }
        Ok(Self::ranked(Arc::new(stripes), extents, setting.sites))
    }

    fn ranked(stripes: Arc<GeneratedStripes>, extents: Vec<(SiteId, Extent)>, sites: u32) -> Self {
        let weight = |rank: usize| (rank as f64 + 1.0).powf(-SKEW);
        let total: f64 = (0..extents.len()).map(weight).sum();
        let (mut of_sites, mut shares, mut sum) = (vec![0.0; sites as usize], Vec::new(), 0.0);
        for (rank, (site, _)) in extents.iter().enumerate() {
            of_sites[site.0 as usize - 1] += weight(rank) / total;
            sum += weight(rank) / total;
            shares.push(sum);
        }
        let hottest = of_sites.into_iter().fold(0.0, f64::max);
        Self { stripes, extents: extents.into_iter().map(|(_, extent)| extent).collect(), shares, hottest }
    }

    /// Returns the requests per second that load the hottest site as the setting requires.
    pub fn rate_per_s(&self, setting: &PackedSetting) -> f64 {
        let medium = setting.calibration.site;
        let service_s = medium.request_ms / 1e3 + f64::from(OBJECT_LEN) / medium.bandwidth_bytes_per_s;
        setting.load * f64::from(medium.workers) / (self.hottest * service_s)
    }

    fn requests(&self, setting: &PackedSetting, gateways: usize, seed: u64) -> Vec<Request> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x00ac_c355);
        let (rate, ends) = (self.rate_per_s(setting), setting.warm_up + setting.length);
        let (mut at, mut requests) = (Duration::ZERO, Vec::new());
        loop {
            at += Duration::from_secs_f64(-(1.0 - rng.random::<f64>()).ln() / rate);
            if at >= ends {
                return requests;
            }
            let drawn: f64 = rng.random();
            let object = self.shares.partition_point(|share| *share < drawn).min(self.extents.len() - 1);
            requests.push(Request { at, gateway: rng.random_range(0..gateways), object });
        }
    }
}

/// The objects on real sites.
pub struct PackedStore {
    objects: Arc<PackedObjects>,
    engine: Arc<MemoryStore>,
}

impl PackedStore {
    /// Writes the groups to real sites, which must be empty and numbered from 1.
    ///
    /// # Errors
    /// On the first write that fails.
    pub async fn prepare(
        runtime: &Runtime,
        objects: PackedObjects,
        sites: &[Arc<dyn Site>],
    ) -> Result<Self, RealityError> {
        write_chunks(sites, &objects.stripes).await?;
        let engine = Arc::new(MemoryStore::new(runtime.clone()));
        load_metadata(runtime, &engine, &objects.stripes).await?;
        Ok(Self { objects: Arc::new(objects), engine })
    }

    /// Serves the requests of a seed by a policy, through one gateway for each of `connections`. Response times start
    /// when a request is due.
    ///
    /// # Errors
    /// On the first read that fails.
    pub async fn run(
        &self,
        runtime: &Runtime,
        setting: &PackedSetting,
        policy: &ReadPolicy,
        connections: Vec<Vec<Arc<dyn Site>>>,
        seed: u64,
    ) -> Result<Latencies, RealityError> {
        let mut gateways = Vec::new();
        for sites in connections {
            let stripes = StripeOptions { read_policy: policy.clone(), ..StripeOptions::default() };
            let options = ClientOptions { stripes, ..ClientOptions::default() };
            gateways.push(Client::open(runtime.clone(), self.engine.clone(), sites, options).await?);
        }
        let (began, mut tasks) = (runtime.now(), Vec::new());
        for request in self.objects.requests(setting, gateways.len(), seed) {
            runtime.sleep_until_exactly(began + request.at).await;
            let (client, extent) =
                (gateways[request.gateway].clone(), self.objects.extents[request.object].clone());
            let counts = request.at >= setting.warm_up;
            let reading = read(runtime.clone(), client, extent, began + request.at);
            tasks.push((counts, runtime.spawn(reading)));
        }
        let mut latencies = Latencies::default();
        for (counts, task) in tasks {
            let took = task.await.expect("a reader does not panic")?;
            if counts {
                latencies.record(took);
            }
        }
        Ok(latencies)
    }
}

async fn read(
    runtime: Runtime,
    client: Client,
    extent: Extent,
    due: Instant,
) -> Result<Duration, ClientError> {
    client.read_blocks(&[extent]).await?;
    Ok(runtime.now() - due)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting() -> PackedSetting {
        PackedSetting {
            calibration: Calibration::D,
            profile: "packed rs(4,2)".parse().expect("a profile"),
            sites: 12,
            load: 0.8,
            warm_up: Duration::from_secs(2),
            length: Duration::from_secs(10),
        }
    }

    /// The requests put the setting's load on the hottest site under normal reads.
    #[test]
    fn requests_load_the_hottest_site_as_the_setting_says() {
        let setting = setting();
        let objects = PackedObjects::draw(&setting, 3).expect("a code");
        let requests = objects.requests(&setting, 3, 7);
        let mut of_sites = [0.0; 12];
        for request in &requests {
            let extent = &objects.extents[request.object];
            let stripe = striate_core::StripeId::from_bytes(extent.stripe.as_ref().try_into().unwrap());
            let record = objects.stripes.record(stripe.sequence() as usize);
            of_sites[record.locations[extent.index as usize].site as usize - 1] += 1.0;
        }
        let service_s = 0.004 + 16_384.0 / 150e6;
        let load = of_sites.into_iter().fold(0.0, f64::max) * service_s / 12.0;
        assert!((load - 0.8).abs() < 0.06, "{load}");
        assert!(requests.iter().any(|of| of.gateway == 2) && requests.iter().all(|of| of.gateway < 3));
    }
}
