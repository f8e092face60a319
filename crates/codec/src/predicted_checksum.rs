//! Checksums of parities that do not exist yet, predicted from eight checksums of each data chunk.
//!
//! CRC-32C is affine over XOR: crc(a + b) = crc(a) + crc(b) + crc(0), where 0 is as many zero bytes. And multiplication in
//! GF(2^8) is linear over the bits of the coefficient: αD is the sum of 2^b·D over the bits b of α. Hence
//!
//! ```text
//! crc(Σ αⱼDⱼ) = crc(0) + Σⱼ Σ_{b ∈ αⱼ} (crc(2^b·Dⱼ) + crc(0))
//! ```
//!
//! A site computes the eight checksums crc(2^b·D) of a chunk in one local pass ([`MultipleChecksums::of`]) and reports
//! 32 bytes. From those of all data chunks follow the checksum of every parity, of every partial sum, and those after
//! an update ([`predict_checksum`], [`ChecksumChange`]). With the chunks at hand, one product of each suffices
//! ([`SumChecksum`]).

use crate::checksum::{crc32c, crc32c_append, crc32c_combine};
use crate::encode::check_count;
use crate::error::CodecError;
use crate::kernel::{Coefficients, Kernel, Stores};
use crate::partial_sum::accumulate;

/// Bytes that are multiplied at a time: the seven products stay in the L1 cache until their checksums are taken.
const SLICE_BYTES: usize = 4096;

/// Bytes that are multiplied at a time for a single product: part and product stay in the cache.
const PRODUCT_BYTES: usize = 32 << 10;

/// The factors whose products are computed: 2^1 to 2^7.
const FACTORS: [u8; 7] = [2, 4, 8, 16, 32, 64, 128];

/// The CRC-32C of 2^b · chunk for b = 0 to 7. The first is that of the chunk itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultipleChecksums(pub [u32; 8]);

impl MultipleChecksums {
    /// Computes the checksums of a chunk in one pass over it.
    pub fn of(chunk: &[u8]) -> MultipleChecksums {
        let mut checksums = ChecksumMultiples::default();
        checksums.append(chunk);
        checksums.finish()
    }

    /// Returns the checksums of `len` zero bytes.
    pub fn of_zeros(len: u64) -> MultipleChecksums {
        MultipleChecksums([crc32c_of_zeros(len); 8])
    }

    /// Returns the checksums of the chunk followed by `count` zero bytes.
    pub fn followed_by_zeros(self, count: u64) -> MultipleChecksums {
        let of_zeros = crc32c_of_zeros(count);
        MultipleChecksums(self.0.map(|checksum| crc32c_combine(checksum, of_zeros, count)))
    }
}

/// Computes [`MultipleChecksums`] of a chunk that arrives in pieces.
#[derive(Debug, Clone)]
pub struct ChecksumMultiples {
    so_far: [u32; 8],
    factors: Coefficients,
    products: Vec<u8>,
}

impl Default for ChecksumMultiples {
    /// The checksums of no bytes.
    fn default() -> ChecksumMultiples {
        ChecksumMultiples {
            so_far: [0; 8],
            factors: Coefficients::from_rows(FACTORS.len(), 1, &FACTORS),
            products: vec![0; FACTORS.len() * SLICE_BYTES],
        }
    }
}

impl ChecksumMultiples {
    /// Adds the next bytes of the chunk, any number.
    pub fn append(&mut self, bytes: &[u8]) {
        let [of_bytes, of_products @ ..] = &mut self.so_far;
        for slice in bytes.chunks(SLICE_BYTES) {
            let products =
                self.products.chunks_exact_mut(SLICE_BYTES).map(|product| &mut product[..slice.len()]);
            let mut products: Vec<&mut [u8]> = products.collect();
            Kernel::best().dot(&self.factors, &[slice], &mut products, Stores::Cached);
            *of_bytes = crc32c_append(*of_bytes, slice);
            for (checksum, product) in of_products.iter_mut().zip(&products) {
                *checksum = crc32c_append(*checksum, product);
            }
        }
    }

    /// Returns the checksums of all bytes added.
    pub fn finish(self) -> MultipleChecksums {
        MultipleChecksums(self.so_far)
    }
}

/// Predicts the CRC-32C of Σ coefficient · chunk. `row` holds the coefficients, such as [`crate::Code::row`] of a
/// parity, and `chunks` their checksums, each of `len` bytes.
///
/// # Errors
/// [`CodecError::ChunkCount`] if there are not as many checksums as coefficients.
pub fn predict_checksum(row: &[u8], chunks: &[MultipleChecksums], len: u64) -> Result<u32, CodecError> {
    check_count("checksums", row.len(), chunks.len())?;
    let of_zeros = crc32c_of_zeros(len);
    let terms =
        row.iter().zip(chunks).map(|(&coefficient, chunk)| linear_checksum(coefficient, chunk, of_zeros));
    Ok(terms.fold(of_zeros, |sum, term| sum ^ term))
}

/// Computes the CRC-32C of a sum Σ coefficient · chunk of chunks of one length that arrive one after the other, without
/// the sum itself and with one product per chunk.
#[derive(Debug, Clone, Copy)]
pub struct SumChecksum {
    sum: u32,
    of_zeros: u32,
}

impl SumChecksum {
    /// The checksum of an empty sum: `len` zeros, the length of each chunk in bytes.
    pub fn new(len: u64) -> SumChecksum {
        let of_zeros = crc32c_of_zeros(len);
        SumChecksum { sum: of_zeros, of_zeros }
    }

    /// Adds `coefficient` times a chunk.
    pub fn add(&mut self, coefficient: u8, chunk: &[u8]) {
        let of_product = match coefficient {
            0 => return,
            1 => crc32c(chunk),
            _ => checksum_of_product(coefficient, chunk),
        };
        self.sum ^= of_product ^ self.of_zeros;
    }

    /// Returns the checksum.
    pub fn get(self) -> u32 {
        self.sum
    }
}

fn checksum_of_product(coefficient: u8, chunk: &[u8]) -> u32 {
    chunk.chunks(PRODUCT_BYTES).fold(0, |so_far, part| {
        let mut product = [0; PRODUCT_BYTES];
        let product = &mut product[..part.len()];
        accumulate(coefficient, part, product);
        crc32c_append(so_far, product)
    })
}

/// How replacing ranges of a chunk changes checksums: its own, and those of sums that contain it as a term. The change
/// follows from the old and the new bytes of the ranges; the rest need not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChecksumChange([u32; 8]);

impl ChecksumChange {
    /// Adds the change of a range. `old` and `new` are the checksums of its products before and after, and `behind` is
    /// the number of bytes behind it. Ranges must not overlap.
    pub fn replace(&mut self, old: &MultipleChecksums, new: &MultipleChecksums, behind: u64) {
        for (change, (old, new)) in self.0.iter_mut().zip(old.0.iter().zip(&new.0)) {
            // The bytes before the range cancel, and those behind it shift.
            *change ^= crc32c_combine(old ^ new, 0, behind);
        }
    }

    /// Returns the change of the chunk followed by `count` zero bytes.
    pub fn followed_by_zeros(self, count: u64) -> ChecksumChange {
        ChecksumChange(self.0.map(|change| crc32c_combine(change, 0, count)))
    }

    /// Returns the new checksum of a sum with checksum `of_sum`, in which the chunk has this coefficient. With 1, also
    /// that of the chunk itself.
    pub fn apply(&self, of_sum: u32, coefficient: u8) -> u32 {
        of_sum ^ linear_checksum(coefficient, &MultipleChecksums(self.0), 0)
    }
}

/// Σ (crc(2^b·D) + crc(0)) over the bits b of `coefficient`: the term's contribution to the checksum of a sum.
fn linear_checksum(coefficient: u8, multiples: &MultipleChecksums, of_zeros: u32) -> u32 {
    let bits = multiples.0.iter().enumerate().filter(|(bit, _)| coefficient >> bit & 1 == 1);
    bits.fold(0, |sum, (_, checksum)| sum ^ checksum ^ of_zeros)
}

/// The CRC-32C of `len` zero bytes: they only shift the register, which starts as all ones and is inverted at the end.
fn crc32c_of_zeros(len: u64) -> u32 {
    crc32c_combine(u32::MAX, u32::MAX, len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Code;
    use crate::gf256;

    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut random = striate_splitmix::SplitMix64::new(seed);
        (0..len).map(|_| random.next() as u8).collect()
    }

    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..200, 4000usize..4200, 1usize..100_000]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn the_eight_checksums_are_those_of_the_products(len in 0usize..10_000, cut in any::<prop::sample::Index>(), seed: u64) {
            let chunk = bytes(seed, len);
            let product = |bit: usize| -> Vec<u8> { chunk.iter().map(|byte| gf256::mul(1 << bit, *byte)).collect() };
            let expected = MultipleChecksums(std::array::from_fn(|bit| crc32c(&product(bit))));
            prop_assert_eq!(MultipleChecksums::of(&chunk), expected);
            let (front, back) = chunk.split_at(cut.index(len + 1));
            let mut pieces = ChecksumMultiples::default();
            pieces.append(front);
            pieces.append(back);
            prop_assert_eq!(pieces.finish(), expected);
        }

        #[test]
        fn zeros_have_the_checksum_that_they_have(len in lengths()) {
            prop_assert_eq!(crc32c_of_zeros(len as u64), crc32c(&vec![0; len]));
            prop_assert_eq!(MultipleChecksums::of_zeros(len as u64), MultipleChecksums::of(&vec![0; len]));
        }

        #[test]
        fn a_chunk_may_be_filled_up_with_zeros(len in lengths(), more in lengths(), seed: u64) {
            let mut chunk = bytes(seed, len);
            let of_chunk = MultipleChecksums::of(&chunk);
            chunk.resize(len + more, 0);
            prop_assert_eq!(of_chunk.followed_by_zeros(more as u64), MultipleChecksums::of(&chunk));
        }

        #[test]
        fn the_checksum_of_any_sum_follows_from_its_terms(row in prop::collection::vec(any::<u8>(), 0..20), len in lengths(), seed: u64) {
            let chunks: Vec<Vec<u8>> = (0..row.len()).map(|chunk| bytes(seed ^ chunk as u64, len)).collect();
            let mut sum = vec![0; len];
            for (coefficient, chunk) in row.iter().zip(&chunks) {
                gf256::accumulate_reference(*coefficient, chunk, &mut sum);
            }
            let of: Vec<MultipleChecksums> = chunks.iter().map(|chunk| MultipleChecksums::of(chunk)).collect();
            prop_assert_eq!(predict_checksum(&row, &of, len as u64), Ok(crc32c(&sum)));
            let mut added = SumChecksum::new(len as u64);
            row.iter().zip(&chunks).for_each(|(coefficient, chunk)| added.add(*coefficient, chunk));
            prop_assert_eq!(added.get(), crc32c(&sum));
        }
    }

    proptest! {
        /// Replaces ranges of a chunk that is shorter than the sum. The new checksums of both follow from the ranges
        /// alone.
        #[test]
        fn what_replaced_ranges_do_to_checksums_follows_from_them_alone(
            len in 1usize..20_000, more in 0usize..300, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            coefficient: u8, seed: u64,
        ) {
            let (mut chunk, mut sum) = (bytes(seed, len), bytes(!seed, len + more));
            gf256::accumulate_reference(coefficient, &chunk, &mut sum[..len]);
            let (own, of_sum) = (crc32c(&chunk), crc32c(&sum));
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
            cuts.sort_unstable();
            let mut change = ChecksumChange::default();
            gf256::accumulate_reference(coefficient, &chunk, &mut sum[..len]);
            for range in cuts.chunks_exact(2).map(|cut| cut[0]..cut[1]) {
                let new = bytes(seed ^ range.start as u64 ^ 7, range.len());
                let old = MultipleChecksums::of(&chunk[range.clone()]);
                change.replace(&old, &MultipleChecksums::of(&new), (len - range.end) as u64);
                chunk[range].copy_from_slice(&new);
            }
            gf256::accumulate_reference(coefficient, &chunk, &mut sum[..len]);
            prop_assert_eq!(change.apply(own, 1), crc32c(&chunk));
            prop_assert_eq!(change.followed_by_zeros(more as u64).apply(of_sum, coefficient), crc32c(&sum));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Encodes and predicts all parities; then changes a chunk and predicts them from the old and the new chunk
        /// alone.
        #[test]
        fn the_checksums_of_all_parities_are_predicted_before_and_after_an_update(
            name in prop::sample::select(vec!["wide(128,27,4)", "rs(128,8)", "lrc(6,2,2)", "rs(1,2)", "wide(7,3,3)"]),
            changed in any::<prop::sample::Index>(), len in lengths(), seed: u64,
        ) {
            let code: Code = name.parse().unwrap();
            let parities = |data: &[Vec<u8>]| {
                let mut parities = vec![vec![0; len]; code.parity_count()];
                let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
                code.encode(&data, &mut parities.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
                parities.iter().map(|parity| crc32c(parity)).collect::<Vec<u32>>()
            };
            let mut data: Vec<Vec<u8>> = (0..code.k()).map(|chunk| bytes(seed ^ chunk as u64, len)).collect();
            let of: Vec<MultipleChecksums> = data.iter().map(|chunk| MultipleChecksums::of(chunk)).collect();
            let rows: Vec<Vec<u8>> = (code.k()..code.n()).map(|parity| code.row(parity)).collect();
            let predicted: Vec<u32> =
                rows.iter().map(|row| predict_checksum(row, &of, len as u64).unwrap()).collect();
            prop_assert_eq!(&predicted, &parities(&data));

            let changed = changed.index(code.k());
            data[changed] = bytes(!seed, len);
            let new = MultipleChecksums::of(&data[changed]);
            let mut change = ChecksumChange::default();
            change.replace(&of[changed], &new, 0);
            let updated: Vec<u32> =
                rows.iter().zip(&predicted).map(|(row, &before)| change.apply(before, row[changed])).collect();
            prop_assert_eq!(updated, parities(&data));
        }
    }

    #[test]
    fn a_coefficient_without_its_checksums_is_refused() {
        let error = predict_checksum(&[1, 2], &[MultipleChecksums([0; 8])], 10).unwrap_err();
        assert_eq!(error, CodecError::ChunkCount { what: "checksums", expected: 2, actual: 1 });
    }
}
