//! Names of cached blocks, which follow from their content.
//!
//! The blocks of this store are immutable, and the names of their stripes are never reused (design.md §10.5). So the
//! name of a block's stripe identifies its bytes. For an extent, its place in a stripe and the content version that it
//! was written with do.
//!
//! The name of a block that is in memory only is in its row. It declares all splits of the block to be data, so that
//! sites do not evict its parities first.

use striate_core::{StripeId, cached};
use striate_splitmix::hash;
use striate_stripe::{StoredBytes, StripeError};

/// Returns the name of a block or extent that is cut into `splits` data splits.
///
/// # Errors
/// [`StripeError::Inconsistent`] if the row that names it is malformed.
pub(crate) fn name(stored: &StoredBytes, splits: usize) -> Result<StripeId, StripeError> {
    if let StoredBytes::Memory(block) = stored {
        return Ok(match &block.placed {
            Some(_) => StripeId(block.content),
            None => cached::name(block.content, splits),
        });
    }
    let stripe = stored.stripe()?;
    let place = match stored {
        StoredBytes::Block(_) | StoredBytes::Memory(_) => [0; 4],
        StoredBytes::Extent(extent) => {
            let index = u64::from(extent.index) + 1;
            [index, extent.offset.into(), extent.len.into(), extent.content_version.into()]
        }
    };
    let parts = [(stripe.0 >> 64) as u64, stripe.0 as u64].into_iter().chain(place);
    let mix = |seed: u64| parts.clone().fold(seed, |mixed, part| hash(mixed ^ part));
    Ok(cached::name(u128::from(mix(1)) << 64 | u128::from(mix(2)), splits))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;
    use striate_meta::records::{Block, Extent};

    use super::*;

    #[test]
    fn every_field_changes_the_name() {
        let stripe = |number: u64| Bytes::copy_from_slice(&StripeId::new(3, number).to_bytes());
        let block = |number| StoredBytes::from(Block { stripe: stripe(number), len: 5, ..Block::default() });
        let extent = |index, offset, len, content_version| {
            StoredBytes::from(Extent {
                stripe: stripe(1),
                index,
                offset,
                len,
                content_version,
                ..Extent::default()
            })
        };
        let all = [
            block(1),
            block(2),
            extent(0, 0, 5, 1),
            extent(1, 0, 5, 1),
            extent(0, 5, 5, 1),
            extent(0, 0, 6, 1),
            extent(0, 0, 5, 2),
        ];
        let names: BTreeSet<StripeId> =
            all.iter().flat_map(|of| [1, 4].map(|splits| name(of, splits).unwrap())).collect();
        assert_eq!(names.len(), 2 * all.len());
        assert_eq!(name(&all[0], 4).unwrap(), name(&block(1), 4).unwrap());
    }
}
