//! The names of cached blocks: by what they hold, so that a block that is replaced is another one.
//!
//! A cached block is coded by itself into k data splits and some parities (EC-Cache §4). Its name says k, so that whoever keeps a
//! split knows which kind it is, and so that blocks that were split otherwise are others.

use crate::chunk::ChunkId;
use crate::id::StripeId;

/// Most data splits of a cached block.
pub const MOST_SPLITS: usize = 255;

/// The name of a cached block of which `content` is a hash, and that has `splits` data splits.
///
/// # Panics
/// If `splits` is none or more than [`MOST_SPLITS`].
pub fn name(content: u128, splits: usize) -> StripeId {
    assert!((1..=MOST_SPLITS).contains(&splits), "{splits} splits");
    StripeId(content & !0xFF | splits as u128)
}

/// Of how many data splits the block is of which a name stands.
pub fn splits(name: StripeId) -> usize {
    (name.0 & 0xFF) as usize
}

/// Whether a split is a parity.
pub fn is_parity(split: ChunkId) -> bool {
    usize::from(split.index) >= splits(split.stripe)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::Generation;

    proptest! {
        #[test]
        fn a_name_tells_its_splits_and_which_are_parities(content: u128, count in 1..=MOST_SPLITS, index: u8) {
            let stripe = name(content, count);
            prop_assert_eq!(splits(stripe), count);
            prop_assert_eq!(stripe.0 >> 8, content >> 8);
            let split = ChunkId { stripe, index, generation: Generation(0) };
            prop_assert_eq!(is_parity(split), usize::from(index) >= count);
        }
    }
}
