//! Which chunks of a stripe share a rack, and where stripes lie in a cluster.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use striate_codec::{Code, CodeSpec, CodecError};
use striate_core::SiteId;
use striate_plan::{PlacementRule, Scheme, WideGeometry};

use super::cluster::Cluster;

/// A code, and the placement of its chunks in racks.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The scheme, as in the paper.
    pub scheme: Scheme,
    /// The code.
    pub code: Code,
    /// For each chunk, its rack among the stripe's racks.
    pub part_of: Vec<usize>,
    /// Rule for the sites at which a chunk may be made.
    pub rule: PlacementRule,
}

impl Layout {
    /// Combined locality, for a code such as `wide(64,7,4)`.
    ///
    /// # Errors
    /// If the name is not that of a wide code.
    pub fn combined(name: &str) -> Result<Self, CodecError> {
        let spec: CodeSpec = name.parse()?;
        let geometry = WideGeometry::new(spec)
            .map_err(|reason| CodecError::Syntax { text: name.to_owned(), reason: reason.to_string() })?;
        let rule = PlacementRule::of_wide(&geometry);
        let part_of = geometry.parts_of_chunks();
        Ok(Self { code: spec.build()?, part_of, rule, scheme: Scheme::Combined(geometry) })
    }

    /// An Azure-LRC with one rack per chunk.
    ///
    /// # Errors
    /// If there is no code with these parameters.
    pub fn lrc(data: usize, locality: usize, tolerance: usize) -> Result<Self, CodecError> {
        Self::filling_racks(Scheme::Lrc { data, locality, tolerance })
    }

    /// Topology locality: Reed–Solomon, with f chunks in each rack.
    ///
    /// # Errors
    /// If there is no code with these parameters.
    pub fn topology(data: usize, tolerance: usize) -> Result<Self, CodecError> {
        Self::filling_racks(Scheme::Topology { data, tolerance })
    }

    fn filling_racks(scheme: Scheme) -> Result<Self, CodecError> {
        let (code, limit) = (scheme.code().build()?, scheme.rack_limit());
        let part_of = (0..code.n()).map(|chunk| chunk / limit).collect();
        let rule = PlacementRule::at_most(limit, code.n());
        Ok(Self { scheme, code, part_of, rule })
    }

    /// Returns the number of racks of a stripe.
    pub fn parts(&self) -> usize {
        self.scheme.racks()
    }

    /// Places a stripe on the cluster's first racks, on their first sites.
    pub fn fixed(&self, cluster: &Cluster) -> Vec<SiteId> {
        let mut used = vec![0; self.parts()];
        let place = |&part: &usize| {
            used[part] += 1;
            cluster.site(part, used[part] - 1)
        };
        self.part_of.iter().map(place).collect()
    }

    /// Places a stripe on random racks and sites, with chunk `lost` on `failed`.
    pub fn around(&self, cluster: &Cluster, lost: usize, failed: SiteId, rng: &mut SmallRng) -> Vec<SiteId> {
        let mut racks = sample(rng, cluster.racks.len(), self.parts()).into_vec();
        let (own, failed_rack) = (self.part_of[lost], cluster.rack_of(failed));
        match racks.iter().position(|&rack| rack == failed_rack) {
            Some(other) => racks.swap(other, own),
            None => racks[own] = failed_rack,
        }
        let mut sites = vec![failed; self.code.n()];
        for (part, &rack) in racks.iter().enumerate() {
            let chunks: Vec<usize> =
                (0..sites.len()).filter(|&chunk| self.part_of[chunk] == part && chunk != lost).collect();
            let mut free: Vec<SiteId> = cluster.sites_of(rack).filter(|&site| site != failed).collect();
            for chunk in chunks {
                sites[chunk] = free.swap_remove(rng.random_range(0..free.len()));
            }
        }
        sites
    }
}
