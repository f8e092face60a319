//! Statistics on their way to where those of several gateways are brought together.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use striate_core::StripeId;

use super::{CoAccess, CoAccessLimits};

/// The state of co-access statistics, to be written in any format that serde knows: every block's id once, and 4 bytes
/// for each access.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoAccessSnapshot {
    /// The interval's blocks, each as writer and sequence.
    pub blocks: Vec<(u64, u64)>,
    /// Its requests, oldest first; positions in `blocks`.
    pub requests: Vec<Vec<u32>>,
}

/// Why a snapshot cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A request names a block that is not listed.
    #[error(
        "a request of the snapshot names block {position}, of which there are {blocks}; take a new snapshot"
    )]
    Block {
        /// What it names.
        position: u32,
        /// Blocks in the snapshot.
        blocks: usize,
    },
}

impl CoAccess {
    /// The state now.
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

    /// The statistics of all snapshots together. Requests are ordered by how old they are within their own interval;
    /// where the limits do not hold all, the oldest are forgotten.
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
        // Stable: requests of one age stay in the order of the snapshots.
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
