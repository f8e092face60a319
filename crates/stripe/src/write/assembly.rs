//! Makes chunks that are sums of others: at a site, so that no bytes pass through this process (design.md §4.2), or
//! here.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use striate_codec::{accumulate, crc32c_append};
use striate_core::{ChunkId, ChunkRange, Generation, RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::CombineTree;
use striate_site::{AssembleRequest, CombineRequest, CombineSource, LocalTerm, Priority, SiteError, Window};

use super::change::LocatedFile;
use super::writes::Writes;
use crate::table::{file_of, len_of};
use crate::trees::{self, Files, SLICE_LEN};

/// Minimum rate at which a site receives data while it makes a chunk, in bytes per second.
const SLOWEST: u64 = 8 << 20;

/// A stripe whose chunks are summed at sites.
#[derive(Clone, Copy)]
pub(super) struct Assembly<'a> {
    pub(super) writes: &'a Writes,
    pub(super) stripe: StripeId,
    /// Record with the locations and names of its chunks.
    pub(super) record: &'a Stripe,
    pub(super) priority: Priority,
    /// Number of chunks made at the same time.
    pub(super) together: usize,
}

/// A file for a site to make.
#[derive(Clone, Copy)]
pub(super) struct AssembledFile {
    pub(super) chunk: ChunkId,
    pub(super) crc32c: u32,
    /// Length in bytes.
    pub(super) len: u32,
}

/// Returns the bytes that a window sends to the site that receives most, among the sites that add it up.
fn bytes_sent_for(window: &Window) -> u64 {
    fn most_sums(upstream: &[CombineSource]) -> u64 {
        let deeper_sums = upstream.iter().map(|source| most_sums(&source.request.upstream)).max();
        deeper_sums.unwrap_or_default().max(upstream.len() as u64)
    }
    let sums = match window {
        Window::Sum(sum) => most_sums(&sum.upstream),
        Window::Bytes { .. } => 1,
    };
    sums.max(1) * u64::from(window.place().1)
}

impl Assembly<'_> {
    /// Plans which site adds up what, so that `site` obtains the sum of these (coefficient, chunk index). `cost`
    /// gives the cost of asking the site of each chunk.
    pub(super) fn tree(
        &self,
        site: SiteId,
        terms: &[(u8, usize)],
        cost: impl Fn(usize) -> f64,
    ) -> CombineTree {
        let rack_of = |site: SiteId| self.writes.shared.sites.get(site).map(|site| site.rack());
        let terms = trees::terms(self.record, terms, cost, rack_of);
        let rack = rack_of(site).unwrap_or_else(|| RackId::of_unknown(site));
        match self.record.members.is_empty() {
            true => CombineTree::new(&terms, site, &rack),
            // All chunks of a local group are made in its racks, so the downlinks of those racks bound a repair.
            false => CombineTree::quickest(&terms, site, &rack, self.record.chunk_len, SLICE_LEN),
        }
    }

    /// Lets the site at the root of a tree make a chunk of this generation, the sum that the tree adds up. The
    /// chunk's location already has the expected checksum.
    pub(super) async fn make(
        &self,
        index: usize,
        generation: Generation,
        tree: &CombineTree,
    ) -> Result<(), SiteError> {
        let chunk = ChunkId { stripe: self.stripe, index: index as u8, generation };
        let file =
            AssembledFile { chunk, crc32c: self.record.locations[index].crc32c, len: self.record.chunk_len };
        self.make_as(file, tree, &trees::files_of(self.stripe, self.record)).await
    }

    /// Lets the site at the root of a tree make a file out of `files`, which maps the tree's numbers to files with
    /// their lengths in bytes.
    pub(super) async fn make_as(
        &self,
        file: AssembledFile,
        tree: &CombineTree,
        files: Files<'_>,
    ) -> Result<(), SiteError> {
        let AssembledFile { chunk, crc32c, len } = file;
        let combination = trees::combination(tree, files, &(0..len), self.priority);
        // Every sum sent to the same site takes its time.
        let sums = tree.loads().into_iter().map(|(_, chunks)| chunks).max().unwrap_or(1);
        let request = AssembleRequest { chunk, crc32c, combination, windows: Vec::new() };
        self.ask(tree.site, request, u64::from(sums) * u64::from(len)).await
    }

    /// Lets the site of a file make a new version of it that differs in the windows only.
    pub(super) async fn amend(
        &self,
        file: AssembledFile,
        old: LocatedFile,
        windows: Vec<Window>,
    ) -> Result<(), SiteError> {
        let AssembledFile { chunk, crc32c, len } = file;
        let combination = CombineRequest {
            offset: 0,
            len,
            slice_len: SLICE_LEN,
            local: vec![LocalTerm { by: 1, chunk: old.chunk, len: old.len }],
            upstream: Vec::new(),
            priority: self.priority,
        };
        let sent_bytes = windows.iter().map(bytes_sent_for).sum::<u64>() + u64::from(len);
        self.ask(old.site, AssembleRequest { chunk, crc32c, combination, windows }, sent_bytes).await
    }

    /// Asks a site to make a chunk, for which `sent_bytes` bytes arrive at one site.
    async fn ask(&self, site: SiteId, request: AssembleRequest, sent_bytes: u64) -> Result<(), SiteError> {
        let site = self.writes.shared.sites.required(site)?;
        let options = &self.writes.shared.options;
        let sending_time = Duration::from_secs(sent_bytes * self.together as u64 / SLOWEST);
        let deadline = options.read_deadline + options.write_deadline + sending_time;
        let stored = self.writes.shared.runtime.timeout(deadline, site.assemble(request)).await;
        stored.unwrap_or(Err(SiteError::Deadline)).map(drop)
    }

    /// Adds up the first `len` bytes of the sum of these (coefficient, chunk index) in this process, slice by slice.
    /// For when sites cannot, because they do not reach each other, or do not know one that has just joined. A chunk
    /// that is read to its end is compared with its checksum in the record.
    ///
    /// # Errors
    /// The chunks that cannot be used, each with its error.
    pub(super) async fn sum_locally(
        &self,
        terms: &[(u8, usize)],
        len: u32,
    ) -> Result<Bytes, Vec<(usize, SiteError)>> {
        let mut sum = BytesMut::zeroed(len as usize);
        let mut checksums = vec![0; terms.len()];
        for start in (0..len).step_by(SLICE_LEN as usize) {
            let mut bad = Vec::new();
            for (&(coefficient, index), crc32c) in terms.iter().zip(&mut checksums) {
                // Past its end a chunk counts as zeros.
                let end = len_of(self.record, index).min(len).min(start + SLICE_LEN);
                if end <= start {
                    continue;
                }
                match self.read(index, start, end - start).await {
                    Ok(slice) => {
                        accumulate(coefficient, &slice, &mut sum[start as usize..end as usize]);
                        *crc32c = crc32c_append(*crc32c, &slice);
                        bad.extend(self.mismatch(index, end, *crc32c).map(|error| (index, error)));
                    }
                    Err(error) => bad.push((index, error)),
                }
            }
            if !bad.is_empty() {
                return Err(bad);
            }
        }
        Ok(sum.freeze())
    }

    /// Returns an error if the bytes of a chunk up to `end`, which have this checksum, are all of it and not what the
    /// record describes.
    fn mismatch(&self, index: usize, end: u32, crc32c: u32) -> Option<SiteError> {
        let is_other = end == len_of(self.record, index) && crc32c != self.record.locations[index].crc32c;
        is_other.then(|| SiteError::Corrupt {
            chunk: file_of(self.stripe, self.record, index),
            reason: "it is not what was encoded".to_owned(),
        })
    }

    /// Reads a range of a chunk.
    pub(super) async fn read(&self, index: usize, offset: u32, len: u32) -> Result<Bytes, SiteError> {
        let site = SiteId(self.record.locations[index].site);
        let range = ChunkRange { chunk: file_of(self.stripe, self.record, index), offset, len };
        let shared = &self.writes.shared;
        shared.sites.read_range(site, range, self.priority, shared.options.read_deadline).await
    }
}
