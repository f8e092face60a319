//! Chunks: what sites store, and how a chunk or a range of one is named.

use std::fmt;

use crate::id::{Generation, StripeId};

/// Bytes of a granule in chunk format 1. A granule is the unit in which a chunk is checksummed and verified; the last
/// granule of a chunk may be shorter.
pub const GRANULE_LEN: usize = 64 * 1024;

/// Bytes of a granule in chunk format 2.
pub const SMALL_GRANULE_LEN: usize = 4 * 1024;

/// The full name of a chunk. Chunks are immutable, and a name never stands for two different contents, so a stale
/// location can only miss, never return wrong bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The stripe it belongs to.
    pub stripe: StripeId,
    /// Its position in the code word, below the code's n (n ≤ 256).
    pub index: u8,
    /// Number of the placement that wrote it.
    pub generation: Generation,
}

/// A range of bytes of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    /// The chunk that is read.
    pub chunk: ChunkId,
    /// Offset of the first byte.
    pub offset: u32,
    /// Number of bytes. A range that passes the chunk's end is an error, never a short read.
    pub len: u32,
}

impl ChunkId {
    /// Bytes that [`ChunkId::to_bytes`] returns.
    pub const ENCODED_LEN: usize = 21;

    /// Encodes as stripe (16 bytes, big-endian), index (1), generation (4, big-endian). The bytes sort as the tuple
    /// does.
    pub fn to_bytes(self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..16].copy_from_slice(&self.stripe.to_bytes());
        bytes[16] = self.index;
        bytes[17..].copy_from_slice(&self.generation.0.to_be_bytes());
        bytes
    }

    /// Decodes the bytes of [`ChunkId::to_bytes`]; `None` for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::ENCODED_LEN] = bytes.try_into().ok()?;
        Some(Self {
            stripe: StripeId::from_bytes(bytes[..16].try_into().ok()?),
            index: bytes[16],
            generation: Generation(u32::from_be_bytes(bytes[17..].try_into().ok()?)),
        })
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.stripe, self.index, self.generation.0)
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunk_ids_survive_their_bytes(stripe: u128, index: u8, generation: u32) {
            let id = ChunkId { stripe: StripeId(stripe), index, generation: Generation(generation) };
            prop_assert_eq!(ChunkId::from_bytes(&id.to_bytes()), Some(id));
        }
    }
}
