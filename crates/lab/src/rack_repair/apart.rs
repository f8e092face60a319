//! The two unavoidable parts of a repair, measured separately: moving its bytes, and adding up its sums. Whatever a
//! repair takes beyond both is overhead.
//!
//! | | a repair out of m chunks | moved apart | added apart |
//! |--|--|--|--|
//! | read and verified by a site | m chunks | m chunks | – |
//! | sent, between racks | one from each other rack | as many | – |
//! | sent, inside racks | the rest of m | as many | – |
//! | stored by the spare site | the sum, compared with its checksum | a chunk, compared with its checksum | – |
//! | added up | m chunks, at the sites that pass them on | – | m chunks, in memory |
//!
//! One chunk is moved across racks in the store's way: the receiving site fetches and stores it. A code whose repair
//! crosses racks more than once is refused. The other chunks are sent to this process, in a repair's slices and
//! streams, and dropped, because a repair stores no more than one chunk either. For this the process must run in the
//! lost chunk's rack.
//!
//! The processor time of other processes is not measured.

use std::time::Duration;

use futures::StreamExt;
use futures::future::{try_join, try_join_all};
use rand::RngCore;
use rustix::time::{ClockId, clock_gettime};
use striate_codec::{CodecError, DecodePlan};
use striate_core::{ChunkId, FencingEpoch, Generation, SiteId};
use striate_plan::CombineTree;
use striate_site::{AssembleRequest, CombineRequest, DeleteRequest, Priority, SiteError};
use striate_stripe::combination;

use super::{RackRepair, RackRepairError, needed};

/// Generation of the moved chunk; no repair reaches it.
const MOVED: Generation = Generation(u32::MAX);
/// Columns that are added up together, as in the codec's benchmark.
const COLUMNS: usize = 1 << 20;

impl RackRepair {
    /// Moves as many bytes as a repair does; returns the time taken. Call [`RackRepair::delete_moved`] before the
    /// next move.
    ///
    /// # Errors
    /// If a site does not return or accept a chunk; [`RackRepairError::Unfit`] unless the sources are in the lost
    /// chunk's rack and one other.
    pub async fn move_apart(&self) -> Result<Duration, RackRepairError> {
        let (inside, across) = self.transfers()?;
        let began = self.runtime.now();
        let received = try_join_all(inside.into_iter().map(|index| self.receive(index)));
        try_join(received, self.fetch_to_spare(across)).await?;
        Ok(self.runtime.now() - began)
    }

    /// Deletes the chunk that [`RackRepair::move_apart`] has stored.
    ///
    /// # Errors
    /// If the site does not delete it.
    pub async fn delete_moved(&self) -> Result<(), RackRepairError> {
        let (_, across) = self.transfers()?;
        let (at, chunks) = (self.places[1], vec![self.named(across, MOVED)]);
        let deleted = self.site(at).delete(DeleteRequest { chunks, epoch: FencingEpoch::NONE }).await;
        deleted.map(drop).map_err(|reason| RackRepairError::Site { site: at, reason })
    }

    /// Returns the chunks received inside the lost chunk's rack (that rack's own, in turn, as many as a repair receives),
    /// and the one that is moved across.
    fn transfers(&self) -> Result<(Vec<usize>, usize), RackRepairError> {
        let rack_of = |index: usize| self.sites[index].rack();
        let sources = self.sources();
        let (near, far): (Vec<_>, Vec<_>) =
            sources.iter().copied().partition(|&index| rack_of(index) == rack_of(self.lost));
        let is_one_rack = far.iter().all(|&index| rack_of(index) == rack_of(far[0]));
        if near.is_empty() || far.is_empty() || !is_one_rack {
            return Err(RackRepairError::Unfit("the sources are not in two racks".to_owned()));
        }
        Ok((near.into_iter().cycle().take(sources.len() - 1).collect(), far[0]))
    }

    /// Returns the chunks that a repair reads.
    fn sources(&self) -> Vec<usize> {
        needed(&self.code, self.lost).into_iter().filter(|&index| index != self.lost).collect()
    }

    /// Receives a chunk here as a site of a tree would, and drops it.
    async fn receive(&self, index: usize) -> Result<(), RackRepairError> {
        let site = &self.sites[index];
        let failed = |reason| RackRepairError::Site { site: site.id(), reason };
        let mut slices = site.combine(self.combined(&self.leaf(index)));
        let mut received = 0;
        while let Some(slice) = slices.next().await {
            received += slice.map_err(failed)?.len();
        }
        match received == self.chunk_len as usize {
            true => Ok(()),
            false => Err(failed(SiteError::Unavailable(format!("it sent {received} bytes of its chunk")))),
        }
    }

    /// Has the spare site fetch and store a chunk, as the store moves one.
    async fn fetch_to_spare(&self, index: usize) -> Result<(), RackRepairError> {
        let at = self.places[1];
        let tree = CombineTree { site: at, local: Vec::new(), upstream: vec![self.leaf(index)] };
        let (chunk, crc32c) = (self.named(index, MOVED), self.checksums[index]);
        let combination = self.combined(&tree);
        let request = AssembleRequest { chunk, crc32c, combination, windows: Vec::new() };
        let stored = self.site(at).assemble(request).await;
        stored.map(drop).map_err(|reason| RackRepairError::Site { site: at, reason })
    }

    /// Returns the request to a site: whole chunks, in a repair's slices.
    fn combined(&self, tree: &CombineTree) -> CombineRequest {
        let file = |index: usize| (self.named(index, Generation(1)), self.chunk_len);
        combination(tree, &file, &(0..self.chunk_len), Priority::Repair)
    }

    /// Returns the tree that sends a chunk unchanged from its site.
    fn leaf(&self, index: usize) -> CombineTree {
        CombineTree { site: SiteId(index as u32 + 1), local: vec![(1, index)], upstream: Vec::new() }
    }

    fn named(&self, index: usize, generation: Generation) -> ChunkId {
        ChunkId { stripe: self.stripe, index: index as u8, generation }
    }

    /// Prepares the sums of a repair in memory.
    ///
    /// # Errors
    /// If the code cannot decode the chunk.
    pub fn sums(&self) -> Result<Sums, CodecError> {
        let plan = self.code.decode_plan(&self.sources(), &[self.lost])?;
        let random = |_: &usize| {
            let mut bytes = vec![0; self.chunk_len as usize];
            self.runtime.rng().fill_bytes(&mut bytes);
            bytes
        };
        let sources: Vec<Vec<u8>> = plan.sources().iter().map(random).collect();
        let sum = sources[0].clone();
        Ok(Sums { plan, sources, sum })
    }
}

/// Chunks in memory, and the chunk to which they add up.
#[derive(Debug)]
pub struct Sums {
    plan: DecodePlan,
    sources: Vec<Vec<u8>>,
    sum: Vec<u8>,
}

impl Sums {
    /// Decodes the chunk as the codec's benchmark does; returns the processor time of this thread.
    ///
    /// # Errors
    /// None are known: all chunks have the same length.
    pub fn add_apart(&mut self) -> Result<Duration, CodecError> {
        let began = processor_time();
        for (number, sum) in self.sum.chunks_mut(COLUMNS).enumerate() {
            let at = number * COLUMNS;
            let inputs: Vec<&[u8]> = self.sources.iter().map(|source| &source[at..at + sum.len()]).collect();
            self.plan.apply(&inputs, &mut [sum])?;
        }
        Ok(processor_time() - began)
    }
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
