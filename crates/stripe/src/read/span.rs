//! What rows name, and the pieces that it is read as.
//!
//! In the split layout the data chunks laid end to end are the *block*. A whole block is one piece of all data chunks. A part
//! is at most three: the tail of its first chunk, the whole chunks between, and the head of its last one.
//!
//! A packed object is an *extent*: columns of one data chunk, and so is each part of it. One piece wants that chunk alone.
//!
//! A block that this store has in memory at most has no stripe of its own. It is read as cached blocks are ([`super::cached`]), with
//! nothing to fall back to.

use std::ops::Range;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use striate_codec::ChunkSet;
use striate_core::{SiteId, StripeId, cached};
use striate_meta::records::{self, Block, Extent, Stripe};

use crate::error::StripeError;
use crate::table::{OpenedStripe, id16, inconsistent, stripe_id};

/// Bytes of a stripe, as a row names them.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// All of a split stripe's data.
    Block(Block),
    /// Columns of one data chunk of a packed stripe.
    Extent(Extent),
    /// A block that this store has in the memory tier at most.
    Memory(MemoryBlock),
}

/// A block without a stripe of its own: of an object that is kept elsewhere, or in memory only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// A hash of what it holds, which names it.
    pub content: u128,
    /// Bytes.
    pub len: u32,
    /// Its CRC-32C, where its writer knew it.
    pub crc32c: Option<u32>,
    /// Where its splits were put; `None`: where cached blocks are.
    pub placed: Option<Placed>,
}

/// Where the splits of a block are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Data splits.
    pub splits: usize,
    /// The site of each split, parities last.
    pub sites: Vec<SiteId>,
}

impl TryFrom<&records::MemoryBlock> for MemoryBlock {
    type Error = StripeError;

    fn try_from(record: &records::MemoryBlock) -> Result<Self, StripeError> {
        let content = u128::from_be_bytes(id16(&record.content, "a block in memory")?);
        let placed = Placed {
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

impl Stored {
    /// How many they are.
    pub fn len(&self) -> u32 {
        match self {
            Self::Block(block) => block.len,
            Self::Extent(extent) => extent.len,
            Self::Memory(block) => block.len,
        }
    }

    /// Whether there are none, which no program writes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their CRC-32C, where it is known.
    pub fn crc32c(&self) -> Option<u32> {
        match self {
            Self::Block(block) => Some(block.crc32c),
            Self::Extent(extent) => Some(extent.crc32c),
            Self::Memory(block) => block.crc32c,
        }
    }

    /// Whether a stripe's record is new enough: it names chunks that have them, and not what these were before.
    pub(super) fn is_in(&self, stripe: &Stripe) -> bool {
        let Self::Extent(extent) = self else { return true };
        let location = stripe.locations.get(extent.index as usize);
        location.is_none_or(|location| location.content_version >= extent.content_version)
    }

    /// The stripe that has them.
    ///
    /// # Errors
    /// [`StripeError::Inconsistent`] where the name is none; [`StripeError::NotInMemory`] where there is no stripe.
    pub fn stripe(&self) -> Result<StripeId, StripeError> {
        match self {
            Self::Block(block) => stripe_id(&block.stripe),
            Self::Extent(extent) => stripe_id(&extent.stripe),
            Self::Memory(_) => Err(StripeError::NotInMemory),
        }
    }
}

impl From<Block> for Stored {
    fn from(block: Block) -> Self {
        Self::Block(block)
    }
}

impl From<Extent> for Stored {
    fn from(extent: Extent) -> Self {
        Self::Extent(extent)
    }
}

impl From<MemoryBlock> for Stored {
    fn from(block: MemoryBlock) -> Self {
        Self::Memory(block)
    }
}

/// Stored bytes, or a part of them, that are to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The bytes that a row names.
    pub of: Stored,
    /// Those of them that are wanted.
    pub range: Range<u32>,
}

/// The pieces of a span.
pub(super) type Pieces = SmallVec<[PieceShape; 3]>;

/// What a piece is of its stripe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PieceShape {
    /// The same bytes of every chunk.
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
    /// All of what a row names.
    pub fn whole(of: impl Into<Stored>) -> Self {
        let of = of.into();
        Self { range: 0..of.len(), of }
    }

    /// Whether all of it is wanted.
    pub fn is_whole(&self) -> bool {
        self.range == (0..self.of.len())
    }

    /// The pieces, in the order of their bytes.
    ///
    /// # Errors
    /// [`StripeError::Inconsistent`] for an extent that is not inside its stripe.
    pub(super) fn pieces(&self, stripe: &OpenedStripe) -> Result<Pieces, StripeError> {
        if self.range.is_empty() {
            return Ok(Pieces::new());
        }
        match &self.of {
            // The cached form of an extent is a block of its own.
            Stored::Extent(_) if stripe.is_cached() => Ok(self.of_block(stripe)),
            Stored::Block(_) | Stored::Memory(_) => Ok(self.of_block(stripe)),
            Stored::Extent(extent) => self.of_extent(extent, stripe).map(|piece| smallvec![piece]),
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
            let of = stripe(code, len.div_ceil(code.parse::<striate_codec::Code>().unwrap().k() as u32));
            let block = Block { len, ..Block::default() };
            let span = Span { of: block.into(), range: from.min(to)..from.max(to) };
            let chunk_len = of.record.chunk_len;
            let bytes = span.pieces(&of).unwrap().into_iter().flat_map(|piece| {
                let chunks: Vec<usize> = piece.wanted.iter().collect();
                chunks.into_iter().flat_map(move |chunk| {
                    piece.columns.clone().map(move |column| chunk as u32 * chunk_len + column)
                })
            });
            // A whole block's last chunk is padded.
            let bytes: Vec<u32> = bytes.filter(|&byte| byte < len).collect();
            prop_assert_eq!(bytes, span.range.clone().collect::<Vec<_>>());
            prop_assert!(span.pieces(&of).unwrap().len() <= 3);
        }
    }
}
