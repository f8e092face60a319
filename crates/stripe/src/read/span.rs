//! The bytes that a row names, and the pieces they are read as.
//!
//! In the split layout, the data chunks laid end to end are the *block*. A whole block is one piece of all data
//! chunks. A part of a block is at most three pieces: the tail of its first chunk, the whole chunks between, and the
//! head of its last chunk.
//!
//! A packed object is an *extent*: columns of one data chunk. So is each part of it. It is one piece that wants that
//! chunk alone.
//!
//! A block that this store has at most in memory has no stripe of its own. It is read like a cached block
//! ([`super::cached`]), without a durable copy to fall back to.

use std::ops::Range;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use striate_codec::ChunkSet;
use striate_core::{SiteId, StripeId, cached};
use striate_meta::records::{self, Block, Extent, Stripe};

use crate::error::StripeError;
use crate::table::{OpenedStripe, id16, inconsistent, stripe_id};

/// Stored bytes, as a row names them.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredBytes {
    /// All of a split stripe's data.
    Block(Block),
    /// Columns of one data chunk of a packed stripe.
    Extent(Extent),
    /// A block that this store has at most in the memory tier.
    Memory(MemoryBlock),
}

/// A block without a stripe of its own, of an object at an origin or in memory only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// Hash of the content, which is the block's name.
    pub content: u128,
    /// Length in bytes.
    pub len: u32,
    /// CRC-32C of the block, if its writer knew it.
    pub crc32c: Option<u32>,
    /// Locations of its splits; `None` if they follow from the name, as for cached blocks.
    pub placed: Option<SplitSites>,
}

/// Locations of a block's splits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitSites {
    /// Number of data splits.
    pub splits: usize,
    /// Site of each split, parities last.
    pub sites: Vec<SiteId>,
}

impl TryFrom<&records::MemoryBlock> for MemoryBlock {
    type Error = StripeError;

    fn try_from(record: &records::MemoryBlock) -> Result<Self, StripeError> {
        let content = u128::from_be_bytes(id16(&record.content, "a block in memory")?);
        let placed = SplitSites {
            splits: (record.splits as usize).clamp(1, cached::MOST_SPLITS),
            sites: record.sites.iter().copied().map(SiteId).collect(),
        };
        Ok(Self { content, len: record.len, crc32c: Some(record.crc32c), placed: Some(placed) })
    }
}

impl From<&MemoryBlock> for records::MemoryBlock {
    fn from(block: &MemoryBlock) -> Self {
        let placed = block.placed.as_ref();
        Self {
            content: Bytes::copy_from_slice(&block.content.to_be_bytes()),
            len: block.len,
            crc32c: block.crc32c.unwrap_or_default(),
            splits: placed.map_or(1, |placed| placed.splits as u32),
            sites: placed.into_iter().flat_map(|placed| &placed.sites).map(|site| site.0).collect(),
        }
    }
}

impl StoredBytes {
    /// Length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Self::Block(block) => block.len,
            Self::Extent(extent) => extent.len,
            Self::Memory(block) => block.len,
        }
    }

    /// Whether there are no bytes, which no program writes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// CRC-32C of the bytes, if known.
    pub fn crc32c(&self) -> Option<u32> {
        match self {
            Self::Block(block) => Some(block.crc32c),
            Self::Extent(extent) => Some(extent.crc32c),
            Self::Memory(block) => block.crc32c,
        }
    }

    /// Whether a stripe's record is new enough: its chunks have these bytes, and not those before an update.
    pub(super) fn is_in(&self, stripe: &Stripe) -> bool {
        let Self::Extent(extent) = self else { return true };
        let location = stripe.locations.get(extent.index as usize);
        location.is_none_or(|location| location.content_version >= extent.content_version)
    }

    /// Returns the stripe that has the bytes.
    ///
    /// # Errors
    /// [`StripeError::Inconsistent`] for a malformed name; [`StripeError::NotInMemory`] if there is no stripe.
    pub fn stripe(&self) -> Result<StripeId, StripeError> {
        match self {
            Self::Block(block) => stripe_id(&block.stripe),
            Self::Extent(extent) => stripe_id(&extent.stripe),
            Self::Memory(_) => Err(StripeError::NotInMemory),
        }
    }
}

impl From<Block> for StoredBytes {
    fn from(block: Block) -> Self {
        Self::Block(block)
    }
}

impl From<Extent> for StoredBytes {
    fn from(extent: Extent) -> Self {
        Self::Extent(extent)
    }
}

impl From<MemoryBlock> for StoredBytes {
    fn from(block: MemoryBlock) -> Self {
        Self::Memory(block)
    }
}

/// A range of stored bytes to read.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Bytes that a row names.
    pub of: StoredBytes,
    /// Range wanted of them.
    pub range: Range<u32>,
}

/// The pieces of a span.
pub(super) type Pieces = SmallVec<[PieceShape; 3]>;

/// Shape of a piece of a stripe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PieceShape {
    /// Range of bytes, the same in every chunk.
    pub(super) columns: Range<u32>,
    /// The data chunks whose columns are wanted.
    pub(super) wanted: ChunkSet,
}

impl PieceShape {
    /// All data chunks of a stripe.
    pub(super) fn whole(stripe: &OpenedStripe) -> Self {
        Self { columns: 0..stripe.record.chunk_len, wanted: ChunkSet::first(stripe.code.k()) }
    }
}

impl Span {
    /// Creates a span of all bytes that a row names.
    pub fn whole(stored: impl Into<StoredBytes>) -> Self {
        let stored = stored.into();
        Self { range: 0..stored.len(), of: stored }
    }

    /// Whether the span covers all of the bytes.
    pub fn is_whole(&self) -> bool {
        self.range == (0..self.of.len())
    }

    /// Returns the pieces of the span, in the order of their bytes.
    ///
    /// # Errors
    /// [`StripeError::Inconsistent`] for an extent that is not inside its stripe.
    pub(super) fn pieces(&self, stripe: &OpenedStripe) -> Result<Pieces, StripeError> {
        if self.range.is_empty() {
            return Ok(Pieces::new());
        }
        match &self.of {
            // The cached form of an extent is a block of its own.
            StoredBytes::Extent(_) if stripe.is_cached() => Ok(self.of_block(stripe)),
            StoredBytes::Block(_) | StoredBytes::Memory(_) => Ok(self.of_block(stripe)),
            StoredBytes::Extent(extent) => self.of_extent(extent, stripe).map(|piece| smallvec![piece]),
        }
    }

    fn of_extent(&self, extent: &Extent, stripe: &OpenedStripe) -> Result<PieceShape, StripeError> {
        let (k, chunk_len) = (stripe.code.k(), stripe.record.chunk_len);
        let is_inside = extent.offset.checked_add(extent.len).is_some_and(|end| end <= chunk_len);
        if !is_inside || extent.index as usize >= k {
            let Extent { index, offset, len, .. } = extent;
            let reason =
                format!("a row names {len} bytes at {offset} of chunk {index}, of {k} of {chunk_len} bytes");
            return Err(inconsistent(stripe.id, reason));
        }
        let columns = extent.offset + self.range.start..extent.offset + self.range.end;
        Ok(PieceShape { columns, wanted: [extent.index as usize].into_iter().collect() })
    }

    fn of_block(&self, stripe: &OpenedStripe) -> Pieces {
        let (k, len) = (stripe.code.k(), stripe.record.chunk_len);
        let piece = |columns: Range<u32>, chunks: Range<u32>| PieceShape {
            columns,
            wanted: chunks.map(|chunk| chunk as usize).collect(),
        };
        if self.is_whole() {
            return smallvec![PieceShape::whole(stripe)];
        }
        if k == 1 {
            return smallvec![piece(self.range.clone(), 0..1)];
        }
        let (first, last) = (self.range.start / len, (self.range.end - 1) / len);
        let (from, to) = (self.range.start - first * len, self.range.end - last * len);
        if first == last {
            return smallvec![piece(from..to, first..first + 1)];
        }
        let (mut pieces, mut middle) = (Pieces::new(), first..last + 1);
        if from > 0 {
            pieces.push(piece(from..len, first..first + 1));
            middle.start += 1;
        }
        if to < len {
            middle.end -= 1;
        }
        if !middle.is_empty() {
            pieces.push(piece(0..len, middle));
        }
        if to < len {
            pieces.push(piece(0..to, last..last + 1));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use striate_core::StripeId;
    use striate_meta::{Revision, Row};

    use super::*;

    fn stripe(code: &str, chunk_len: u32) -> OpenedStripe {
        let row = Row { key: "key".into(), value: "".into(), version: Revision(1) };
        let record = Stripe { chunk_len, ..Stripe::default() };
        OpenedStripe {
            id: StripeId(1),
            row,
            record,
            profile: code.parse().expect("a profile"),
            code: code.parse().expect("a code"),
        }
    }

    proptest! {
        /// Laid end to end, the wanted columns of the wanted chunks are the range, whatever it is.
        #[test]
        fn pieces_laid_end_to_end_are_the_range(
            code in prop::sample::select(vec!["rs(4,2)", "rs(1,2)", "lrc(6,2,2)"]),
            len in 1u32..200, from in 0u32..200, to in 0u32..200,
        ) {
            let (from, to) = (from.min(len), to.min(len));
            let opened = stripe(code, len.div_ceil(code.parse::<striate_codec::Code>().unwrap().k() as u32));
            let block = Block { len, ..Block::default() };
            let span = Span { of: block.into(), range: from.min(to)..from.max(to) };
            let chunk_len = opened.record.chunk_len;
            let bytes = span.pieces(&opened).unwrap().into_iter().flat_map(|piece| {
                let chunks: Vec<usize> = piece.wanted.iter().collect();
                chunks.into_iter().flat_map(move |chunk| {
                    piece.columns.clone().map(move |column| chunk as u32 * chunk_len + column)
                })
            });
            // A whole block's last chunk is padded.
            let bytes: Vec<u32> = bytes.filter(|&byte| byte < len).collect();
            prop_assert_eq!(bytes, span.range.clone().collect::<Vec<_>>());
            prop_assert!(span.pieces(&opened).unwrap().len() <= 3);
        }
    }
}
