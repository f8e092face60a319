//! Reads, writes and makes the chunks of a stripe that is being changed.

use std::ops::Range;

use bytes::Bytes;
use striate_core::{ChunkId, Generation, RackId, SiteId};
use striate_plan::{CombineTerm, CombineTree};
use striate_site::{SiteError, Window, WriteRequest};

use super::StripeChange;
use crate::table::{OpenedStripe, len_of};
use crate::trees::{SLICE_LEN, combination, files_of};
use crate::write::assembly::{AssembledFile, Assembly};

/// A file in a sum.
#[derive(Clone, Copy, Debug)]
pub(in crate::write) struct LocatedFile {
    pub(in crate::write) chunk: ChunkId,
    /// Length in bytes.
    pub(in crate::write) len: u32,
    pub(in crate::write) site: SiteId,
}

impl StripeChange<'_> {
    /// Reads a range of a chunk from its site.
    pub(in crate::write) async fn read(
        &self,
        index: usize,
        offset: u32,
        len: u32,
    ) -> Result<Bytes, SiteError> {
        self.assembly().read(index, offset, len).await
    }

    /// Reads a whole chunk from its site.
    ///
    /// # Errors
    /// Errors of the site; [`SiteError::Unavailable`] if it is not known, [`SiteError::Deadline`] if it does not
    /// answer in time.
    pub async fn read_chunk(&self, index: usize) -> Result<Bytes, SiteError> {
        self.assembly().read(index, 0, self.len_of(index)).await
    }

    /// Returns the length of a chunk in bytes.
    pub fn len_of(&self, index: usize) -> u32 {
        len_of(&self.record, index)
    }

    /// Writes a chunk under a new generation.
    ///
    /// # Errors
    /// As [`StripeChange::read_chunk`]. The site may still have stored the chunk: see [`StripeChange::note_refusal`].
    pub async fn write_chunk(
        &self,
        index: usize,
        site: SiteId,
        generation: Generation,
        payload: Bytes,
    ) -> Result<(), SiteError> {
        let site = self.writes.shared.sites.required(site)?;
        let chunk = ChunkId { stripe: self.id, index: index as u8, generation };
        let request = WriteRequest { chunk, payload, granule_crcs: None, priority: self.priority };
        let deadline = self.writes.shared.options.write_deadline;
        let written = self.writes.shared.runtime.timeout(deadline, site.write(request)).await;
        written.unwrap_or(Err(SiteError::Deadline)).map(drop)
    }

    /// Plans which site adds up what, so that `site` obtains the sum of these (coefficient, chunk index). `cost`
    /// gives the cost of asking the site of each chunk.
    pub fn combine_tree(
        &self,
        site: SiteId,
        terms: &[(u8, usize)],
        cost: impl Fn(usize) -> f64,
    ) -> CombineTree {
        self.assembly().tree(site, terms, cost)
    }

    /// Lets the site at the root of a tree make a chunk under a new generation, the sum that the tree adds up.
    ///
    /// # Errors
    /// As [`StripeChange::write_chunk`]. [`SiteError::Missing`] and [`SiteError::Corrupt`] name the chunk of the sum
    /// at fault; [`SiteError::BadRequest`] means that the sum does not match the checksum in the record.
    pub async fn assemble_chunk(
        &self,
        index: usize,
        generation: Generation,
        tree: &CombineTree,
    ) -> Result<(), SiteError> {
        self.assembly().make(index, generation, tree).await
    }

    /// Adds up the sum of these (coefficient, chunk index) in this process, slice by slice, so that only the sum is
    /// in memory.
    ///
    /// # Errors
    /// The chunks that cannot be used, each with an error as of [`StripeChange::read_chunk`];
    /// [`SiteError::Corrupt`] also if it is not the chunk that the record describes.
    pub async fn sum_locally(&self, terms: &[(u8, usize)]) -> Result<Bytes, Vec<(usize, SiteError)>> {
        self.assembly().sum_locally(terms, self.record.chunk_len).await
    }

    /// As [`StripeChange::sum_locally`], over the chunks of another stripe.
    ///
    /// # Errors
    /// As [`StripeChange::sum_locally`].
    pub async fn sum_over(
        &self,
        stripe: &OpenedStripe,
        terms: &[(u8, usize)],
    ) -> Result<Bytes, Vec<(usize, SiteError)>> {
        self.assembly_over(stripe).sum_locally(terms, self.record.chunk_len).await
    }

    /// As [`StripeChange::combine_tree`], over the chunks of another stripe.
    pub fn tree_over(
        &self,
        stripe: &OpenedStripe,
        site: SiteId,
        terms: &[(u8, usize)],
        cost: impl Fn(usize) -> f64,
    ) -> CombineTree {
        self.assembly_over(stripe).tree(site, terms, cost)
    }

    /// As [`StripeChange::assemble_chunk`], from chunks of another stripe.
    ///
    /// # Errors
    /// As [`StripeChange::assemble_chunk`].
    pub async fn assemble_from(
        &self,
        stripe: &OpenedStripe,
        index: usize,
        generation: Generation,
        tree: &CombineTree,
    ) -> Result<(), SiteError> {
        let files = files_of(stripe.id, &stripe.record);
        self.assembly().make_as(self.assembled_file(index, generation), tree, &files).await
    }

    /// Lets the site of a chunk make a new generation of it that differs in the windows only. The record has the
    /// expected checksum.
    pub(in crate::write) async fn amend(
        &self,
        index: usize,
        generation: Generation,
        old: LocatedFile,
        windows: Vec<Window>,
    ) -> Result<(), SiteError> {
        self.assembly().amend(self.assembled_file(index, generation), old, windows).await
    }

    /// Creates a window that adds to a chunk at `site` the sum of these (coefficient, file) in these columns.
    pub(in crate::write) fn window(
        &self,
        site: SiteId,
        terms: &[(u8, LocatedFile)],
        columns: &Range<u32>,
    ) -> Window {
        let rack = |site: SiteId| self.rack_of(site).unwrap_or_else(|| RackId::of_unknown(site));
        let term = |(number, &(coefficient, file)): (usize, &(u8, LocatedFile))| CombineTerm {
            chunk: number,
            coefficient,
            site: file.site,
            rack: rack(file.site),
            cost: 0.0,
        };
        let numbered: Vec<CombineTerm> = terms.iter().enumerate().map(term).collect();
        let len = columns.end - columns.start;
        let tree = CombineTree::quickest(&numbered, site, &rack(site), len, SLICE_LEN);
        let files = |number: usize| (terms[number].1.chunk, terms[number].1.len);
        Window::Sum(combination(&tree, &files, columns, self.priority))
    }

    /// Returns the file of a chunk and its site, as the record has them.
    pub(in crate::write) fn file_at(&self, index: usize) -> LocatedFile {
        let site = SiteId(self.record.locations[index].site);
        LocatedFile { chunk: self.chunk(index), len: self.len_of(index), site }
    }

    fn assembled_file(&self, index: usize, generation: Generation) -> AssembledFile {
        let chunk = ChunkId { stripe: self.id, index: index as u8, generation };
        AssembledFile { chunk, crc32c: self.record.locations[index].crc32c, len: self.record.chunk_len }
    }

    fn assembly(&self) -> Assembly<'_> {
        let Self { writes, id, record, priority, together, .. } = self;
        Assembly { writes, stripe: *id, record, priority: *priority, together: *together }
    }

    fn assembly_over<'s>(&'s self, stripe: &'s OpenedStripe) -> Assembly<'s> {
        Assembly { stripe: stripe.id, record: &stripe.record, ..self.assembly() }
    }
}
