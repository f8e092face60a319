//! Names of cached blocks. A name is a hash of the content, so a replaced block gets a new name.
//!
//! A cached block is coded independently into k data splits and some parities (EC-Cache §4). Its name contains k. The
//! keeper of a split can therefore tell data from parity, and a block split another way has another name.

use crate::chunk::ChunkId;
use crate::id::{Generation, StripeId};

/// Maximum number of data splits of a cached block.
pub const MOST_SPLITS: usize = 255;

/// Returns the name of a cached block with `splits` data splits whose content hashes to `content`.
///
/// # Panics
/// If `splits` is 0 or more than [`MOST_SPLITS`].
pub fn name(content: u128, splits: usize) -> StripeId {
    assert!((1..=MOST_SPLITS).contains(&splits), "{splits} splits");
    StripeId(content & !0xFF | splits as u128)
}

/// Returns the number of data splits of the block with this name.
pub fn splits(name: StripeId) -> usize {
    (name.0 & 0xFF) as usize
}

/// Returns the chunk of a split or parity of the block with this name.
pub fn chunk(name: StripeId, index: usize) -> ChunkId {
    ChunkId { stripe: name, index: index as u8, generation: Generation(0) }
}

/// Returns whether a split is a parity.
pub fn is_parity(split: ChunkId) -> bool {
    usize::from(split.index) >= splits(split.stripe)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_tells_its_splits_and_which_are_parities(content: u128, count in 1..=MOST_SPLITS, index: u8) {
            let stripe = name(content, count);
            prop_assert_eq!(splits(stripe), count);
            prop_assert_eq!(stripe.0 >> 8, content >> 8);
            let index = usize::from(index);
            prop_assert_eq!(is_parity(chunk(stripe, index)), index >= count);
        }
    }
}
