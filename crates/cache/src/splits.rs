//! Splits of a block: how it is cut, encoded and written to memory sites.

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use striate_codec::Code;
use striate_core::{SiteId, StripeId, cached};
use striate_runtime::{Buffer, BufferPool};
use striate_site::{Priority, SiteError, WriteRequest};
use striate_stripe::StripeError;

use crate::cache::Inner;
use crate::known_blocks::code;

/// Length in bytes of a split of a block of `len` bytes. The last split is padded.
pub(crate) fn split_len(len: u32, splits: usize) -> u32 {
    len.div_ceil(splits as u32)
}

/// Cuts a block given in pieces into its data splits. A split that lies inside one piece is not copied.
pub(crate) fn cut(pieces: &[Bytes], len: u32, splits: usize) -> Vec<Bytes> {
    let split_len = split_len(len, splits) as usize;
    let mut rest: Vec<Bytes> = pieces.iter().rev().filter(|piece| !piece.is_empty()).cloned().collect();
    (0..splits).map(|_| take(&mut rest, split_len)).collect()
}

/// Takes the next `len` bytes off the reversed list `rest`, with zeros past its end.
fn take(rest: &mut Vec<Bytes>, len: usize) -> Bytes {
    if let Some(next) = rest.last_mut()
        && next.len() >= len
    {
        let split = next.split_to(len);
        if next.is_empty() {
            rest.pop();
        }
        return split;
    }
    let mut split = BytesMut::with_capacity(len);
    while split.len() < len
        && let Some(mut next) = rest.pop()
    {
        let part = next.split_to(next.len().min(len - split.len()));
        split.extend_from_slice(&part);
        if !next.is_empty() {
            rest.push(next);
        }
    }
    split.resize(len, 0);
    split.freeze()
}

/// Returns the parities `from` and following of data splits.
///
/// # Errors
/// If the splits do not fit the code.
pub(crate) fn encode(
    code: &Code,
    splits: &[Bytes],
    from: usize,
    buffers: &BufferPool,
) -> Result<Vec<Bytes>, StripeError> {
    if code.k() == 1 {
        return Ok((from..code.parity_count()).map(|_| splits[0].clone()).collect());
    }
    let len = splits.first().map_or(0, Bytes::len);
    let mut parities: Vec<Buffer> = (0..code.parity_count()).map(|_| buffers.take(len)).collect();
    let data: Vec<&[u8]> = splits.iter().map(|split| &split[..]).collect();
    let mut outputs: Vec<&mut [u8]> = parities.iter_mut().map(|parity| &mut parity[..]).collect();
    let encoded = code.encode(&data, &mut outputs);
    encoded.map_err(|error| StripeError::InvalidArgument(error.to_string()))?;
    Ok(parities.into_iter().skip(from).map(Buffer::freeze).collect())
}

impl Inner {
    /// Returns the data splits of a block, followed by its parities.
    ///
    /// # Errors
    /// If no such code exists.
    pub(crate) fn split_and_encode(
        &self,
        pieces: &[Bytes],
        len: u32,
        (splits, parities): (usize, usize),
    ) -> Result<Vec<Bytes>, StripeError> {
        let mut all = cut(pieces, len, splits);
        if parities > 0 {
            let code = self.known_blocks.code(code(splits, parities))?;
            all.extend(encode(&code, &all, 0, self.runtime.buffers())?);
        }
        Ok(all)
    }

    /// Writes the splits `first` and following to their sites, and returns each result.
    pub(crate) async fn write_splits(
        &self,
        name: StripeId,
        first: usize,
        splits: Vec<Bytes>,
        places: &[SiteId],
        priority: Priority,
    ) -> Vec<Result<(), SiteError>> {
        let write = |(index, payload): (usize, Bytes)| {
            let at = places.get(index).and_then(|site| self.site(*site));
            async move {
                let unknown = || SiteError::Unavailable("its memory site is gone".to_owned());
                let chunk = cached::chunk(name, index);
                let request = WriteRequest { chunk, payload, granule_crcs: None, priority };
                at.ok_or_else(unknown)?.write(request).await.map(drop)
            }
        };
        debug_assert!(first + splits.len() <= cached::MOST_SPLITS);
        join_all((first..).zip(splits).map(write)).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn splits_laid_end_to_end_are_the_block(
            lens in prop::collection::vec(0usize..50, 1..6), splits in 1usize..11,
        ) {
            let block: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|byte| byte as u8 + 1).collect();
            prop_assume!(!block.is_empty());
            let mut rest = Bytes::from(block.clone());
            let pieces: Vec<Bytes> = lens.iter().map(|len| rest.split_to(*len)).collect();
            let cut = cut(&pieces, block.len() as u32, splits);
            let len = split_len(block.len() as u32, splits) as usize;
            prop_assert!(cut.len() == splits && cut.iter().all(|split| split.len() == len));
            let mut whole = cut.concat();
            prop_assert!(whole[block.len()..].iter().all(|byte| *byte == 0));
            whole.truncate(block.len());
            prop_assert_eq!(whole, block);
        }
    }

    #[test]
    fn a_split_inside_a_piece_is_not_copied() {
        let piece = Bytes::from(vec![7; 400]);
        let cut = cut(&[piece.slice(..200), piece.slice(200..)], 400, 4);
        assert!(
            cut.iter().enumerate().all(|(number, split)| split.as_ptr() == piece[number * 100..].as_ptr())
        );
    }

    #[test]
    fn the_parities_that_are_missing_are_those_of_all() {
        let code: Code = "rs(4,3)".parse().unwrap();
        let splits: Vec<Bytes> = (0..4).map(|split| Bytes::from(vec![split + 1; 64])).collect();
        let buffers = BufferPool::new(1 << 20);
        let all = encode(&code, &splits, 0, &buffers).unwrap();
        assert_eq!(encode(&code, &splits, 1, &buffers).unwrap(), all[1..]);
        let copies: Code = "replica(3)".parse().unwrap();
        assert_eq!(
            encode(&copies, &splits[..1], 0, &buffers).unwrap(),
            [splits[0].clone(), splits[0].clone()]
        );
    }
}
