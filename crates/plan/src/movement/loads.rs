//! ω_j after a move, and what the move does to the balance (EC-Store §IV-C, Eq. 6 and 7).

use super::state::{PlacedBlock, Traffic};
use crate::statistics::site_load::SiteLoad;

/// The sites' loads, split into what moves with requests and what moves with chunks.
#[derive(Clone, Debug)]
pub(super) struct Loads {
    /// Weighted load of processor and disk, per site.
    dynamic: Vec<f64>,
    /// Weighted number of chunks over the mean, per site.
    stored: Vec<f64>,
    /// Sum of the dynamic loads of all sites.
    all_dynamic: f64,
    /// What one chunk adds to `stored`.
    of_chunk: f64,
    /// ω̃, which moves do not change.
    mean: f64,
    request_bytes: f64,
}

/// The load that moves with a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LoadShift {
    pub dynamic: f64,
    pub stored: f64,
}

impl LoadShift {
    pub(super) fn total(self) -> f64 {
        self.dynamic + self.stored
    }
}

impl Loads {
    pub(super) fn new(loads: impl Iterator<Item = SiteLoad>, traffic: Traffic) -> Self {
        let Traffic { request_bytes, weights } = traffic;
        let loads: Vec<SiteLoad> = loads.collect();
        let count = loads.len().max(1) as f64;
        let mean_chunks = loads.iter().map(|load| load.chunks).sum::<f64>() / count;
        let of_chunk = if mean_chunks > 0.0 { weights.chunks / mean_chunks } else { 0.0 };
        let dynamic: Vec<f64> =
            loads.iter().map(|load| weights.cpu * load.cpu + weights.io * load.io).collect();
        let stored: Vec<f64> = loads.iter().map(|load| of_chunk * load.chunks).collect();
        let all_dynamic: f64 = dynamic.iter().sum();
        let mean = (all_dynamic + stored.iter().sum::<f64>()) / count;
        Self { dynamic, stored, all_dynamic, of_chunk, mean, request_bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.dynamic.len()
    }

    /// ω_j.
    pub(super) fn omega(&self, site: usize) -> f64 {
        self.dynamic[site] + self.stored[site]
    }

    /// ω̃.
    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the share of one chunk of this block in all bytes that requests read. Requests read `need` of its n
    /// chunks.
    pub(super) fn share_of(&self, block: &PlacedBlock) -> f64 {
        let chunks = block.at.len().max(1) as f64;
        block.popularity * block.need as f64 / chunks * self.part_of_bytes(block.chunk_len)
    }

    /// Returns `len` as a part of the mean bytes of a request.
    pub(super) fn part_of_bytes(&self, len: u32) -> f64 {
        if self.request_bytes > 0.0 { f64::from(len) / self.request_bytes } else { 0.0 }
    }

    /// Returns the load that one of the block's chunks takes from `source`, at most what the source has.
    pub(super) fn shift_of(&self, block: &PlacedBlock, source: usize) -> LoadShift {
        let dynamic = (self.all_dynamic * self.share_of(block)).min(self.dynamic[source]);
        LoadShift { dynamic, stored: self.of_chunk.min(self.stored[source]) }
    }

    /// Returns the dynamic load of a chunk that this share of the block's requests reads.
    pub(super) fn of_reads(&self, block: &PlacedBlock, share: f64) -> f64 {
        self.all_dynamic * block.popularity * share * self.part_of_bytes(block.chunk_len)
    }

    /// Returns the changes of the sites' dynamic loads when each sends this additional part of all bytes. `None` if a
    /// site that gains load would exceed both the mean and the previous load of every site that loses some.
    pub(super) fn shifts_of(&self, sent: &[f64]) -> Option<Vec<(usize, f64)>> {
        let changed = sent.iter().enumerate().filter(|(_, part)| part.abs() > f64::EPSILON);
        let shifts: Vec<(usize, f64)> = changed.map(|(site, part)| (site, part * self.all_dynamic)).collect();
        let less = shifts.iter().filter(|(_, shift)| *shift < 0.0).map(|&(site, _)| self.omega(site));
        let most = less.fold(self.mean, f64::max);
        let is_borne = shifts.iter().all(|&(site, shift)| shift < 0.0 || self.omega(site) + shift <= most);
        is_borne.then_some(shifts)
    }

    /// Limits `shift` to what `source` has.
    pub(super) fn at_most(&self, shift: LoadShift, source: usize) -> LoadShift {
        let LoadShift { dynamic, stored } = shift;
        LoadShift { dynamic: dynamic.min(self.dynamic[source]), stored: stored.min(self.stored[source]) }
    }

    /// Adds to the dynamic load of a site, which stays at 0 or above.
    pub(super) fn add(&mut self, site: usize, dynamic: f64) {
        self.dynamic[site] = (self.dynamic[site] + dynamic).max(0.0);
    }

    /// Moves the stored load of one chunk.
    pub(super) fn shift_stored(&mut self, from: usize, to: usize) {
        let stored = self.of_chunk.min(self.stored[from]);
        self.stored[from] -= stored;
        self.stored[to] += stored;
    }

    /// Returns I (Eq. 7).
    pub(super) fn published_gain(&self, from: usize, to: usize, shift: f64) -> f64 {
        let farther = |source: f64, destination: f64| self.imbalance(source).max(self.imbalance(destination));
        let (source, destination) = (self.omega(from), self.omega(to));
        farther(source, destination) - farther(source - shift, destination + shift)
    }

    /// Returns half the decrease of the mean square of ω_j/ω̃: the share of all load that moves, times how much lower
    /// the load at its destination is.
    pub(super) fn square_gain(&self, from: usize, to: usize, shift: f64) -> f64 {
        if self.mean <= 0.0 {
            return 0.0;
        }
        let (source, destination) = (self.omega(from) / self.mean, self.omega(to) / self.mean);
        let shift = shift / self.mean;
        shift * (source - destination - shift) / self.len() as f64
    }

    /// Returns whether the destination ends with no more load than the source had, or than the mean. The most loaded
    /// site is then no more loaded than before.
    pub(super) fn keeps_balance(&self, from: usize, to: usize, shift: f64) -> bool {
        self.omega(to) + shift <= self.omega(from).max(self.mean)
    }

    /// Ω_j of a site with load `omega`.
    fn imbalance(&self, omega: f64) -> f64 {
        if self.mean > 0.0 { (1.0 - omega / self.mean).abs() } else { 0.0 }
    }
}
