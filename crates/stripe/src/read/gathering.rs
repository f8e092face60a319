//! A block of a query while its chunks arrive.

use bytes::Bytes;
use striate_codec::crc32c_append;
use striate_core::SiteId;
use striate_meta::records::Block;
use striate_plan::{QueryBlock, ReadPolicy};
use striate_runtime::{Buffer, BufferPool};

use crate::table::OpenedStripe;

/// A block while its chunks arrive.
pub(super) struct Gathering {
    pub(super) stripe: OpenedStripe,
    sites: Vec<SiteId>,
    /// Whole chunks that came, with their indices.
    got: Vec<(usize, Bytes)>,
    /// Chunks that were asked for.
    pub(super) asked: Vec<usize>,
    /// Of those, the ones that came or are still expected in time.
    pub(super) awaited: Vec<usize>,
    /// What came determines it.
    pub(super) complete: bool,
    /// Its bytes were given on.
    pub(super) is_handed_out: bool,
}

impl Gathering {
    /// Nothing was asked for yet.
    pub(super) fn new(stripe: OpenedStripe) -> Self {
        let sites = stripe.record.locations.iter().map(|location| SiteId(location.site)).collect();
        let got = Vec::with_capacity(stripe.code.k());
        Self {
            stripe,
            sites,
            got,
            asked: Vec::new(),
            awaited: Vec::new(),
            complete: false,
            is_handed_out: false,
        }
    }

    /// Whether nothing must be decoded.
    pub(super) fn has_data(&self) -> bool {
        let k = self.stripe.code.k();
        k == 1 || (0..k).all(|index| self.got.iter().any(|(got, _)| *got == index))
    }

    /// Bytes of the chunks that a policy asks for.
    pub(super) fn bytes_in_memory(&self, policy: ReadPolicy) -> usize {
        let code = &self.stripe.code;
        (code.k() + policy.extra_reads()).min(code.n()) * self.stripe.record.chunk_len as usize
    }

    /// What a plan for the rest of it starts from.
    pub(super) fn for_plan(&self) -> QueryBlock<'_> {
        QueryBlock {
            code: &self.stripe.code,
            sites: &self.sites,
            chunk_len: self.stripe.record.chunk_len,
            asked: &self.asked,
            awaited: &self.awaited,
        }
    }

    /// What came and is still expected in time does not complete it.
    pub(super) fn is_short(&self) -> bool {
        !self.complete && !self.stripe.code.is_sufficient(&self.awaited)
    }

    /// With the chunks that were not asked for, on sites where they can be had, it can be completed.
    pub(super) fn can_be_completed(&self, can_be_had: impl Fn(SiteId) -> bool) -> bool {
        let mut all = self.awaited.clone();
        let others = (0..self.sites.len()).filter(|index| !self.asked.contains(index));
        all.extend(others.filter(|&index| self.sites[index].0 != 0 && can_be_had(self.sites[index])));
        self.stripe.code.is_sufficient(&all)
    }

    /// Whether a chunk came.
    pub(super) fn has(&self, index: usize) -> bool {
        self.got.iter().any(|(got, _)| *got == index)
    }

    /// Takes a chunk that came; true if the block became complete by it. One that comes again counts once.
    pub(super) fn take(&mut self, index: usize, bytes: Bytes) -> bool {
        if self.complete || self.has(index) || bytes.len() != self.stripe.record.chunk_len as usize {
            return false;
        }
        self.got.push((index, bytes));
        if !self.awaited.contains(&index) {
            self.awaited.push(index);
        }
        let indices: Vec<usize> = self.got.iter().map(|(index, _)| *index).collect();
        self.complete = self.stripe.code.is_sufficient(&indices);
        self.complete
    }

    /// The block's bytes: the data chunks that came and the others decoded from all. `None` when decoding
    /// fails or its result does not match the block's checksum.
    pub(super) fn assemble(&mut self, block: &Block, buffers: &BufferPool) -> Option<Vec<Bytes>> {
        // With k = 1 every chunk is the block.
        let wanted = if self.stripe.code.k() == 1 { 0..0 } else { 0..self.stripe.code.k() };
        let missing: Vec<usize> =
            wanted.filter(|wanted| self.got.iter().all(|(index, _)| index != wanted)).collect();
        if !missing.is_empty() {
            let decoded = self.decode(&missing, buffers)?;
            self.got.extend(missing.iter().copied().zip(decoded));
        }
        self.got.sort_unstable_by_key(|(index, _)| *index);
        let mut left = block.len as usize;
        let mut pieces = Vec::with_capacity(self.stripe.code.k());
        for (_, bytes) in std::mem::take(&mut self.got).into_iter().take(self.stripe.code.k()) {
            let len = left.min(bytes.len());
            pieces.push(bytes.slice(..len));
            left -= len;
        }
        if missing.is_empty() {
            return Some(pieces);
        }
        let crc = pieces.iter().fold(0, |crc, piece| crc32c_append(crc, piece));
        if crc != block.crc32c {
            tracing::warn!(stripe = %self.stripe.id, "a decoded block does not match its checksum");
            return None;
        }
        Some(pieces)
    }

    /// The chunks `missing`, computed from those that came.
    fn decode(&self, missing: &[usize], buffers: &BufferPool) -> Option<Vec<Bytes>> {
        let available: Vec<usize> = self.got.iter().map(|(index, _)| *index).collect();
        let plan = self.stripe.code.decode_plan(&available, missing).ok()?;
        let came = |index: &usize| self.got.iter().find(|(got, _)| got == index).map(|(_, bytes)| &bytes[..]);
        let inputs: Option<Vec<&[u8]>> = plan.sources().iter().map(came).collect();
        let chunk_len = self.stripe.record.chunk_len as usize;
        let mut outputs: Vec<Buffer> = missing.iter().map(|_| buffers.take(chunk_len)).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
        plan.apply(&inputs?, &mut refs).ok()?;
        Some(outputs.into_iter().map(Buffer::freeze).collect())
    }
}
