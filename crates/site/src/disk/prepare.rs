//! Prepares a chunk for writing: chooses its form and computes its checksums.
//!
//! This happens on the caller's side of the writer, which then has nothing to compute.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use striate_core::ChunkId;

use super::Shared;
use super::form::{Form, PageMaker, make_pages};
use super::record::{ChunkRecord, FORMAT_VERSION};
use super::writer::Change;
use crate::api::SiteError;
use crate::granule;
use crate::store::{ChunkDraft, HeldResources};

impl Shared {
    /// Returns the newest record format that may be written.
    pub(super) fn version_in_force(&self) -> u8 {
        self.options.formats.get().chunks.min(u32::from(FORMAT_VERSION)) as u8
    }

    /// Returns the form in which a chunk is written now.
    fn form_for(&self, len: usize) -> Form {
        match self.version_in_force() {
            ..2 => Form::Coarse,
            _ if len > self.options.paged_from => Form::Paged,
            _ => Form::Fine,
        }
    }

    /// Returns a chunk's record, which has no sequence yet, and what follows its header. `given_crcs` are the checksums
    /// that came with the payload.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        chunk: ChunkId,
        payload: Bytes,
        given_crcs: Option<Arc<[u32]>>,
    ) -> Result<(ChunkRecord, Bytes), SiteError> {
        let form = self.form_for(payload.len());
        if form == Form::Paged {
            let shared = Arc::clone(self);
            let page = move || shared.page(chunk, &payload, given_crcs.as_deref());
            return self.runtime.run_blocking(page).await;
        }
        let granules = granule::check_write(&payload, given_crcs, form.granule_len())?;
        let len = payload.len() as u32;
        let crc32c = granule::payload_crc(&granules, len, form.granule_len());
        Ok((ChunkRecord::new(chunk, form, len, crc32c, &granules), payload))
    }

    /// Returns the record of a paged chunk, and its pages.
    fn page(
        &self,
        chunk: ChunkId,
        payload: &[u8],
        given_crcs: Option<&[u32]>,
    ) -> Result<(ChunkRecord, Bytes), SiteError> {
        granule::check_len(payload)?;
        let len = payload.len() as u32;
        let given_crc = given_crcs.map(|crcs| granule::payload_crc_of(crcs, len)).transpose()?;
        let (pages, crc32c) = make_pages(chunk, payload, self.runtime.buffers());
        if given_crc.is_some_and(|given| given != crc32c) {
            return Err(granule::damaged());
        }
        Ok((ChunkRecord::new(chunk, Form::Paged, len, crc32c, &[]), pages))
    }
}

/// A chunk whose pages are built while it arrives.
pub(super) struct PagedDraft {
    shared: Arc<Shared>,
    chunk: ChunkId,
    len: u32,
    maker: PageMaker,
}

impl PagedDraft {
    /// Begins a paged chunk. `None` if the chunk is not paged: then it is written straight
    /// from where it lies in memory.
    pub(super) fn begin(shared: &Arc<Shared>, chunk: ChunkId, len: u32) -> Option<Self> {
        let maker = || PageMaker::new(chunk, len, shared.runtime.buffers());
        let is_paged = shared.form_for(len as usize) == Form::Paged;
        is_paged.then(|| Self { shared: Arc::clone(shared), chunk, len, maker: maker() })
    }
}

#[async_trait]
impl ChunkDraft for PagedDraft {
    fn append(&mut self, bytes: &[u8]) {
        self.maker.append(bytes);
    }

    async fn store(self: Box<Self>, held: HeldResources) -> Result<(), SiteError> {
        let Self { shared, chunk, len, maker } = *self;
        let (stored, crc32c) = maker.finish();
        let record = ChunkRecord::new(chunk, Form::Paged, len, crc32c, &[]);
        shared.change(Change::Write { record, stored }, held).await
    }
}
