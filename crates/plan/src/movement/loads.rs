//! ω_j after a move, and what that does for the balance (EC-Store §IV-C, Eq. 6 and 7).

use super::state::{Placed, Traffic};
use crate::statistics::site_load::SiteLoad;

/// The sites' loads, split in what moves with requests and what moves with chunks.
#[derive(Clone, Debug)]
pub(super) struct Loads {
    /// Of each site: processor and disk, weighted.
    dynamic: Vec<f64>,
    /// Of each site: its number of chunks over the mean, weighted.
    stored: Vec<f64>,
    /// The dynamic load of all sites.
    all_dynamic: f64,
    /// What one chunk adds to `stored`.
    of_chunk: f64,
    /// ω̃, which moves do not change.
    mean: f64,
    request_bytes: f64,
}

/// The load that a chunk takes along.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shift {
    pub dynamic: f64,
    pub stored: f64,
}

impl Shift {
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

    /// The part of all bytes that requests read which is of one chunk of this block: of its n chunks k are read.
    pub(super) fn share_of(&self, block: &Placed) -> f64 {
        let chunks = block.at.len().max(1) as f64;
        block.popularity * block.need as f64 / chunks * self.part_of_bytes(block.chunk_len)
    }

    /// The part of the bytes that a request reads in the mean.
    pub(super) fn part_of_bytes(&self, len: u32) -> f64 {
        if self.request_bytes > 0.0 { f64::from(len) / self.request_bytes } else { 0.0 }
    }

    /// What one of the block's chunks takes along from `source`: no more than is there.
    pub(super) fn shift_of(&self, block: &Placed, source: usize) -> Shift {
        let dynamic = (self.all_dynamic * self.share_of(block)).min(self.dynamic[source]);
        Shift { dynamic, stored: self.of_chunk.min(self.stored[source]) }
    }

    /// The dynamic load of a chunk that this share of the requests for its block read.
    pub(super) fn of_reads(&self, block: &Placed, share: f64) -> f64 {
        self.all_dynamic * block.popularity * share * self.part_of_bytes(block.chunk_len)
    }

    /// The dynamic load that sites have more, or less, when they send these parts of all bytes more. `None` where one that
    /// has more would have more than the mean and than any that has less had.
    pub(super) fn shifts_of(&self, sent: &[f64]) -> Option<Vec<(usize, f64)>> {
        let changed = sent.iter().enumerate().filter(|(_, part)| part.abs() > f64::EPSILON);
        let shifts: Vec<(usize, f64)> = changed.map(|(site, part)| (site, part * self.all_dynamic)).collect();
        let less = shifts.iter().filter(|(_, shift)| *shift < 0.0).map(|&(site, _)| self.omega(site));
        let most = less.fold(self.mean, f64::max);
        let is_borne = shifts.iter().all(|&(site, shift)| shift < 0.0 || self.omega(site) + shift <= most);
        is_borne.then_some(shifts)
    }

    /// As much of it as is at `source`.
    pub(super) fn at_most(&self, shift: Shift, source: usize) -> Shift {
        let Shift { dynamic, stored } = shift;
        Shift { dynamic: dynamic.min(self.dynamic[source]), stored: stored.min(self.stored[source]) }
    }

    /// Adds to the dynamic load of a site, which is not below none.
    pub(super) fn add(&mut self, site: usize, dynamic: f64) {
        self.dynamic[site] = (self.dynamic[site] + dynamic).max(0.0);
    }

    /// Moves what is stored.
    pub(super) fn shift_stored(&mut self, from: usize, to: usize) {
        let stored = self.of_chunk.min(self.stored[from]);
        self.stored[from] -= stored;
        self.stored[to] += stored;
    }

    /// I (Eq. 7).
    pub(super) fn published_gain(&self, from: usize, to: usize, shift: f64) -> f64 {
        let farther = |source: f64, destination: f64| self.imbalance(source).max(self.imbalance(destination));
        let (source, destination) = (self.omega(from), self.omega(to));
        farther(source, destination) - farther(source - shift, destination + shift)
    }

    /// Half the decrease of the mean square of ω_j/ω̃: the share of all load that moves, times how much less load it meets
    /// where it comes to.
    pub(super) fn square_gain(&self, from: usize, to: usize, shift: f64) -> f64 {
        if self.mean <= 0.0 {
            return 0.0;
        }
        let (source, destination) = (self.omega(from) / self.mean, self.omega(to) / self.mean);
        let shift = shift / self.mean;
        shift * (source - destination - shift) / self.len() as f64
    }

    /// Whether the destination would be left with no more than the source has, or with no more than the mean: the most
    /// loaded site is then no more loaded than before.
    pub(super) fn keeps_balance(&self, from: usize, to: usize, shift: f64) -> bool {
        self.omega(to) + shift <= self.omega(from).max(self.mean)
    }

    /// Ω of a load.
    fn imbalance(&self, omega: f64) -> f64 {
        if self.mean > 0.0 { (1.0 - omega / self.mean).abs() } else { 0.0 }
    }
}
