//! Snapshots of statistics, for combining those of several gateways.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use striate_core::StripeId;

use super::{CoAccess, CoAccessLimits};

/// The state of co-access statistics, to be written in any format that serde supports: every block's id once, and 4
/// bytes per access.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoAccessSnapshot {
    /// The interval's blocks, each as writer and sequence.
    pub blocks: Vec<(u64, u64)>,
    /// The interval's requests, oldest first, as positions in `blocks`.
    pub requests: Vec<Vec<u32>>,
}

/// Why a snapshot cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A request refers to a block that is not listed.
    #[error(
        "a request of the snapshot names block {position}, of which there are {blocks}; take a new snapshot"
    )]
    Block {
        /// The position without a block.
        position: u32,
        /// Number of blocks in the snapshot.
        blocks: usize,
    },
}

impl CoAccess {
    /// Returns the current state.
    pub fn snapshot(&self) -> CoAccessSnapshot {
        let mut positions = HashMap::with_capacity(self.interval.blocks());
        let mut blocks = Vec::with_capacity(self.interval.blocks());
        let mut position_of = |block: StripeId| {
            *positions.entry(block).or_insert_with(|| {
                blocks.push((block.writer(), block.sequence()));
                blocks.len() as u32 - 1
            })
        };
        let requests = (0..self.interval.requests())
            .map(|request| self.interval.blocks_of(request).map(&mut position_of).collect())
            .collect();
        CoAccessSnapshot { blocks, requests }
    }

    /// Combines the statistics of all snapshots. Requests are ordered by their age relative to their own interval; if
    /// the limits do not admit all, the oldest are dropped.
    ///
    /// # Errors
    /// [`SnapshotError`] for a snapshot that this version did not write.
    pub fn merged<'a>(
        limits: CoAccessLimits,
        snapshots: impl IntoIterator<Item = &'a CoAccessSnapshot>,
    ) -> Result<Self, SnapshotError> {
        let mut merged = Self::new(limits);
        let mut requests: Vec<(f64, &CoAccessSnapshot, &[u32])> = Vec::new();
        for snapshot in snapshots {
            snapshot.check()?;
            let age = |index: usize| 1.0 - (index + 1) as f64 / snapshot.requests.len() as f64;
            let of_it = snapshot.requests.iter().enumerate();
            requests.extend(of_it.map(|(index, request)| (age(index), snapshot, request.as_slice())));
        }
        // The sort is stable: requests of equal age stay in the order of the snapshots.
        requests.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, snapshot, request) in requests {
            merged.observe(request.iter().map(|&position| snapshot.block(position)));
        }
        Ok(merged)
    }
}

impl CoAccessSnapshot {
    fn block(&self, position: u32) -> StripeId {
        let (writer, sequence) = self.blocks[position as usize];
        StripeId::new(writer, sequence)
    }

    /// Checks that the requests refer only to listed blocks.
    ///
    /// # Errors
    /// [`SnapshotError`] if this version did not write it.
    pub fn check(&self) -> Result<(), SnapshotError> {
        let blocks = self.blocks.len();
        let unknown = |position: &&u32| **position as usize >= blocks;
        match self.requests.iter().flatten().find(unknown) {
            Some(&position) => Err(SnapshotError::Block { position, blocks }),
            None => Ok(()),
        }
    }
}
