//! Places of the partitions: k of them and their parities on random sites, and copies of the hottest.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use striate_codec::{ChunkSet, Code};
use striate_core::{SiteId, StripeId};
use striate_plan::QueryPiece;
use striate_splitmix::hash;

use super::queries::Query;
use super::{OBJECT_S, OBJECTS_OF_PARTITION, PARTITIONS, REQUEST_S, SITES};

/// Places of all partitions, parities and copies.
#[derive(Clone, Debug)]
pub struct Layout {
    code: Code,
    /// Sites of each stripe's chunks.
    stripes: Vec<Vec<SiteId>>,
    /// Sites of each partition's copies.
    copies: Vec<Vec<SiteId>>,
}

impl Layout {
    /// Draws a random placement without copies.
    pub fn draw(code: Code, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(hash(seed ^ 0x91ace));
        let stripe = |_| sample(&mut rng, SITES, code.n()).iter().map(site).collect();
        let stripes = (0..PARTITIONS.div_ceil(code.k())).map(stripe).collect();
        Self { code, stripes, copies: vec![Vec::new(); PARTITIONS] }
    }

    /// Adds copies of a share of the bytes, based on the reads of some queries. Each copy is of the partition with
    /// the most reads per copy, and goes to the site with the least load.
    #[must_use]
    pub fn with_copies(mut self, share: f64, sample: &[Query]) -> Self {
        let mut reads = vec![0.0; PARTITIONS];
        let objects = sample.iter().flat_map(|query| &query.objects);
        objects.for_each(|&object| reads[partition_of(object)] += 1.0);
        for _ in 0..(share * PARTITIONS as f64) as usize {
            let each = |partition: usize| reads[partition] / (1 + self.copies[partition].len()) as f64;
            let hottest = (0..PARTITIONS).max_by(|&a, &b| each(a).total_cmp(&each(b))).unwrap_or(0);
            let mut loads = vec![0.0; SITES];
            for partition in 0..PARTITIONS {
                self.holders(partition).for_each(|site| loads[place(site)] += each(partition));
            }
            let chunks = &self.stripes[hottest / self.code.k()];
            let is_free = |&site: &SiteId| !chunks.contains(&site) && !self.copies[hottest].contains(&site);
            let free = (0..SITES).map(site).filter(is_free);
            let target = free.min_by(|a, b| loads[place(*a)].total_cmp(&loads[place(*b)]));
            self.copies[hottest].extend(target);
        }
        self
    }

    /// Returns the sites that have all of a partition.
    fn holders(&self, partition: usize) -> impl Iterator<Item = SiteId> {
        let k = self.code.k();
        let own = self.stripes[partition / k][partition % k];
        std::iter::once(own).chain(self.copies[partition].iter().copied())
    }

    /// Returns an object as a piece that planners count as `bytes` bytes.
    pub fn piece(&self, object: u64, bytes: u32) -> QueryPiece<'_> {
        let (partition, k) = (partition_of(object), self.code.k());
        let chunk: ChunkSet = std::iter::once(partition % k).collect();
        let stripe = StripeId::new(1, (partition / k) as u64);
        let piece = QueryPiece::part(stripe, &self.code, &self.stripes[partition / k], bytes, chunk);
        QueryPiece { copies: &self.copies[partition], ..piece }
    }

    /// Returns the queries per second at which the hottest site is busy for `load` of the time, if all are read
    /// normally.
    pub fn queries_per_s(&self, queries: &[Query], load: f64) -> f64 {
        let mut work = vec![0.0; SITES];
        for query in queries {
            let mut is_asked = [false; SITES];
            for &object in &query.objects {
                let k = self.code.k();
                let own = place(self.stripes[partition_of(object) / k][partition_of(object) % k]);
                work[own] += OBJECT_S;
                if !std::mem::replace(&mut is_asked[own], true) {
                    work[own] += REQUEST_S;
                }
            }
        }
        load * queries.len() as f64 / work.into_iter().fold(0.0, f64::max)
    }
}

/// Returns the partition of an object. Objects are packed in the order of their keys, independently of their heat.
fn partition_of(object: u64) -> usize {
    (object / OBJECTS_OF_PARTITION) as usize
}

fn site(place: usize) -> SiteId {
    SiteId(place as u32 + 1)
}

/// Returns a site's index.
pub(super) fn place(site: SiteId) -> usize {
    site.0 as usize - 1
}
