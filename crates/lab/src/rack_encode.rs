//! The global parities of a wide stripe, computed on real sites in racks (ECWide, FAST'21, §4.2 and experiment A.2):
//! either on one node that fetches the data chunks, or on all nodes that have them.
//!
//! Local parities are left out, as in the paper's figure. Chunks are placed by combined locality; site i + 1 has
//! chunk i, and the sites of the global parities share a rack.
//!
//! | method | received over the link of the global parities' rack | processors |
//! |--|--|--|
//! | one node | the k data chunks | each byte is sent once, and multiplied on one core |
//! | trees | a sum for each parity and chain of racks | each byte is multiplied where it is, and sent once for each parity |
//!
//! This module neither starts processes nor limits what links carry.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_codec::{Code, Coefficients, Kernel, Stores};
use striate_core::{ChunkId, ChunkRange, FencingEpoch, Generation, RackId, SiteId, StripeId};
use striate_plan::{CombineTerm, CombineTree};
use striate_runtime::Runtime;
use striate_site::{AssembleRequest, DeleteRequest, Priority, ReadRequest, Site, SiteError, WriteRequest};
use striate_stripe::{SLICE_LEN, combination};

use crate::contents::WRITER;
use crate::rack_repair::{RackRepairError, write_chunks};

/// Slices of all chunks that one node prefetches while it encodes another: enough to keep its link busy.
const SLICES_AHEAD: usize = 3;

/// A stripe whose data chunks are on sites.
#[derive(Clone, Debug)]
pub struct RackEncode {
    runtime: Runtime,
    code: Code,
    sites: Vec<Arc<dyn Site>>,
    chunk_len: u32,
}

impl RackEncode {
    /// Creates a stripe with chunks of `chunk_len` bytes; its data chunks may already exist.
    ///
    /// # Errors
    /// [`RackRepairError::Unfit`] unless there is one site for each chunk.
    pub fn new(
        runtime: &Runtime,
        code: Code,
        sites: Vec<Arc<dyn Site>>,
        chunk_len: u32,
    ) -> Result<Self, RackRepairError> {
        match sites.len() == code.n() {
            true => Ok(Self { runtime: runtime.clone(), code, sites, chunk_len }),
            false => Err(RackRepairError::Unfit(format!("{} sites for {} chunks", sites.len(), code.n()))),
        }
    }

    /// Writes the data chunks; returns the checksums of all chunks.
    ///
    /// # Errors
    /// If a site does not accept a write.
    pub async fn write_data(&self) -> Result<Vec<u32>, RackRepairError> {
        let data: Vec<usize> = (0..self.code.k()).collect();
        write_chunks(&self.runtime, stripe(), &self.code, &self.sites, &data, self.chunk_len).await
    }

    fn globals(&self) -> std::ops::Range<usize> {
        self.code.k() + self.code.local_groups().len()..self.code.n()
    }

    fn rack_of(&self, site: SiteId) -> RackId {
        self.sites[site.0 as usize - 1].rack()
    }

    /// Returns the tree that adds up a parity, as in sealing a wide stripe.
    fn tree(&self, parity: usize) -> CombineTree {
        let term = |(chunk, coefficient): (usize, u8)| CombineTerm {
            chunk,
            coefficient,
            site: SiteId(chunk as u32 + 1),
            rack: self.sites[chunk].rack(),
            cost: 0.0,
        };
        let row = self.code.row(parity).into_iter().enumerate();
        let terms: Vec<CombineTerm> = row.filter(|&(_, coefficient)| coefficient != 0).map(term).collect();
        let (site, rack) = (SiteId(parity as u32 + 1), self.sites[parity].rack());
        CombineTree::quickest(&terms, site, &rack, self.chunk_len, SLICE_LEN)
    }

    /// Returns the number of sums that the trees of all global parities send across racks, and the maximum that
    /// arrive at one rack.
    pub fn sums(&self) -> (usize, usize) {
        let streams = self.globals().flat_map(|parity| self.tree(parity).streams());
        let racks = streams.map(|(from, to)| (self.rack_of(from), self.rack_of(to)));
        let into: Vec<RackId> = racks.filter(|(from, to)| from != to).map(|(_, to)| to).collect();
        let most = into.iter().map(|rack| into.iter().filter(|other| *other == rack).count()).max();
        (into.len(), most.unwrap_or_default())
    }

    /// Has the sites make all parities along trees, at the same time. `checksums` are those of all chunks: a site
    /// stores only a chunk with the expected checksum.
    ///
    /// # Errors
    /// If a site does not make its parity.
    pub async fn by_trees(&self, generation: u32, checksums: &[u32]) -> Result<Duration, RackRepairError> {
        let began = self.runtime.now();
        try_join_all(self.globals().map(|parity| async move {
            let files = |index: usize| (chunk(index, 1), self.chunk_len);
            let combination =
                combination(&self.tree(parity), &files, &(0..self.chunk_len), Priority::Background);
            let (chunk, crc32c) = (chunk(parity, generation), checksums[parity]);
            let request = AssembleRequest { chunk, crc32c, combination, windows: Vec::new() };
            self.sites[parity].assemble(request).await.map_err(|reason| self.failed(parity, reason))
        }))
        .await?;
        Ok(self.runtime.now() - began)
    }

    /// Fetches the data chunks, encodes them on one core, and writes the parities.
    ///
    /// # Errors
    /// If a site does not return or accept a chunk.
    pub async fn here(&self, generation: u32) -> Result<Duration, RackRepairError> {
        // Open the connections before the clock starts.
        try_join_all((0..self.code.n()).map(|index| async move {
            self.sites[index].status().await.map_err(|reason| self.failed(index, reason))
        }))
        .await?;
        let began = self.runtime.now();
        let rows: Vec<u8> = self.globals().flat_map(|parity| self.code.row(parity)).collect();
        let coefficients = Coefficients::from_rows(self.globals().len(), self.code.k(), &rows);
        let mut parities = vec![vec![0; self.chunk_len as usize]; self.globals().len()];
        let offsets = (0..self.chunk_len).step_by(SLICE_LEN as usize);
        let mut slices = stream::iter(offsets).map(|offset| self.fetch(offset)).buffered(SLICES_AHEAD);
        let mut at = 0;
        while let Some(slice) = slices.try_next().await? {
            let sources: Vec<&[u8]> = slice.iter().map(|bytes| &bytes[..]).collect();
            let end = at + sources[0].len();
            let mut sums: Vec<&mut [u8]> = parities.iter_mut().map(|parity| &mut parity[at..end]).collect();
            Kernel::best().dot(&coefficients, &sources, &mut sums, Stores::Cached);
            at = end;
        }
        try_join_all(self.globals().zip(parities).map(|(parity, bytes)| async move {
            let (chunk, payload) = (chunk(parity, generation), Bytes::from(bytes));
            let request = WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Background };
            self.sites[parity].write(request).await.map_err(|reason| self.failed(parity, reason))
        }))
        .await?;
        Ok(self.runtime.now() - began)
    }

    /// Fetches the same columns of all data chunks.
    async fn fetch(&self, offset: u32) -> Result<Vec<Bytes>, RackRepairError> {
        let len = SLICE_LEN.min(self.chunk_len - offset);
        let of_chunk = |index: usize| async move {
            let ranges = vec![ChunkRange { chunk: chunk(index, 1), offset, len }];
            let request = ReadRequest { ranges, priority: Priority::Background, deadline: None };
            let reply = self.sites[index].read(request).next().await;
            let unanswered = || SiteError::Unavailable("its answer ended early".to_owned());
            let bytes = reply.ok_or_else(unanswered).and_then(|reply| reply.result);
            bytes.map_err(|reason| self.failed(index, reason))
        };
        try_join_all((0..self.code.k()).map(of_chunk)).await
    }

    /// Reads the parities of a generation from their media, compares them, and deletes them.
    ///
    /// # Errors
    /// If a parity is wrong.
    pub async fn verify(&self, generation: u32, checksums: &[u32]) -> Result<(), RackRepairError> {
        for parity in self.globals() {
            let (site, chunk) = (&self.sites[parity], chunk(parity, generation));
            let info = site.verify(chunk).await.map_err(|reason| self.failed(parity, reason))?;
            if info.crc32c != checksums[parity] {
                return Err(RackRepairError::Unfit(format!("parity {parity} is not what it must be")));
            }
            let request = DeleteRequest { chunks: vec![chunk], epoch: FencingEpoch::NONE };
            site.delete(request).await.map_err(|reason| self.failed(parity, reason))?;
        }
        Ok(())
    }

    fn failed(&self, index: usize, reason: SiteError) -> RackRepairError {
        RackRepairError::Site { site: self.sites[index].id(), reason }
    }
}

fn stripe() -> StripeId {
    StripeId::new(WRITER, 0)
}

fn chunk(index: usize, generation: u32) -> ChunkId {
    ChunkId { stripe: stripe(), index: index as u8, generation: Generation(generation) }
}
