//! CRC-32C of chunks in granules, and how checksums of pieces combine.
//!
//! A chunk's bytes are checksummed in granules (64 KiB by default at the sites), so that a range read verifies only the
//! granules that it touches. The granule checksums here are plain CRC-32C, of the bytes alone. CRCs are linear, so
//! [`crc32c_combine`] derives from them, without reading the bytes again, both the checksum of the whole chunk and a
//! checksum *seeded* with an identity: `crc32c_combine(crc32c(identity), granule, granule_len)` is the CRC-32C of the
//! identity followed by the granule (design.md §10.12).

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected, as in iSCSI and S3) of `data`.
#[inline]
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// Returns the CRC-32C of the bytes with checksum `crc` followed by `data`. `crc32c_append(0, data)` is `crc32c(data)`.
#[inline]
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(data);
    digest.finalize() as u32
}

/// Returns the CRC-32C of A‖B, given those of A and B, and B's length in bytes. Takes some tens of nanoseconds.
pub fn crc32c_combine(crc_a: u32, crc_b: u32, len_b: u64) -> u32 {
    let mut shifted = crc_a;
    let mut rest = len_b;
    let mut digit_index = 0;
    while rest != 0 {
        let digit = (rest & 15) as usize;
        if digit != 0 {
            shifted = mul_mod_p(shifted, POWERS[digit_index][digit]);
        }
        rest >>= 4;
        digit_index += 1;
    }
    shifted ^ crc_b
}

/// Castagnoli's polynomial, bit-reflected: bit 31 is the coefficient of x^0.
const REFLECTED_POLYNOMIAL: u32 = 0x82F6_3B78;

/// `POWERS[i][d]` is x^(8·d·16^i) mod P: appending d·16^i zero bytes multiplies a CRC by it.
static POWERS: [[u32; 16]; 16] = build_powers();

const fn build_powers() -> [[u32; 16]; 16] {
    let mut powers = [[0u32; 16]; 16];
    // x^8, reflected.
    let mut unit = 1u32 << (31 - 8);
    let mut i = 0;
    while i < 16 {
        powers[i][0] = 1 << 31;
        let mut d = 1;
        while d < 16 {
            powers[i][d] = mul_mod_p(powers[i][d - 1], unit);
            d += 1;
        }
        unit = mul_mod_p(powers[i][15], unit);
        i += 1;
    }
    powers
}

/// The product of two polynomials modulo P, all bit-reflected. Branch-free: 32 steps.
const fn mul_mod_p(a: u32, b: u32) -> u32 {
    let mut product = 0u32;
    let mut shifted = b;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= shifted & ((a >> bit) & 1).wrapping_neg();
        shifted = (shifted >> 1) ^ (REFLECTED_POLYNOMIAL & (shifted & 1).wrapping_neg());
    }
    product
}

/// The plain CRC-32C of every granule of every chunk of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GranuleChecksums {
    granule_len: usize,
    chunk_len: usize,
    granules_per_chunk: usize,
    values: Vec<u32>,
}

impl GranuleChecksums {
    /// All zeros: correct for empty granules, and the initial value for appending.
    ///
    /// # Panics
    /// If `granule_len` is zero.
    pub(crate) fn new(chunks: usize, chunk_len: usize, granule_len: usize) -> GranuleChecksums {
        assert!(granule_len > 0, "a granule has at least one byte");
        let granules_per_chunk = chunk_len.div_ceil(granule_len);
        GranuleChecksums {
            granule_len,
            chunk_len,
            granules_per_chunk,
            values: vec![0; chunks * granules_per_chunk],
        }
    }

    /// Adds all bytes of a chunk.
    pub(crate) fn append_all(&mut self, chunk: usize, bytes: &[u8]) {
        for (granule, bytes) in bytes.chunks(self.granule_len).enumerate() {
            self.append(chunk, granule * self.granule_len, bytes);
        }
    }

    /// Number of bytes from `offset` to the end of its granule.
    pub(crate) fn granule_rest(&self, offset: usize) -> usize {
        self.granule_len - offset % self.granule_len
    }

    /// Adds the next bytes of a chunk, which lie at `offset` and within one granule.
    pub(crate) fn append(&mut self, chunk: usize, offset: usize, bytes: &[u8]) {
        let slot = &mut self.values[chunk * self.granules_per_chunk + offset / self.granule_len];
        *slot =
            if offset.is_multiple_of(self.granule_len) { crc32c(bytes) } else { crc32c_append(*slot, bytes) };
    }

    /// Granule length in bytes. The last granule of a chunk may be shorter.
    pub fn granule_len(&self) -> usize {
        self.granule_len
    }

    /// Number of chunks: the stripe's n.
    pub fn chunk_count(&self) -> usize {
        self.values.len().checked_div(self.granules_per_chunk).unwrap_or(0)
    }

    /// The checksums of chunk `chunk`'s granules, in order. Empty for chunks of no bytes.
    ///
    /// # Panics
    /// If the chunk has bytes and is not in the stripe.
    pub fn granules(&self, chunk: usize) -> &[u32] {
        &self.values[chunk * self.granules_per_chunk..(chunk + 1) * self.granules_per_chunk]
    }

    /// The CRC-32C of the whole chunk, combined from its granules.
    pub fn chunk_checksum(&self, chunk: usize) -> u32 {
        let mut rest = self.chunk_len;
        self.granules(chunk).iter().fold(0, |crc, granule| {
            let len = rest.min(self.granule_len);
            rest -= len;
            crc32c_combine(crc, *granule, len as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bitwise_crc32c(data: &[u8]) -> u32 {
        let mut state = !0u32;
        for byte in data {
            state ^= u32::from(*byte);
            for _ in 0..8 {
                state = (state >> 1) ^ (REFLECTED_POLYNOMIAL & (state & 1).wrapping_neg());
            }
        }
        !state
    }

    #[test]
    fn the_standard_check_value_comes_out() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    proptest! {
        #[test]
        fn checksums_equal_the_bitwise_definition(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert_eq!(crc32c(&data), bitwise_crc32c(&data));
        }

        #[test]
        fn combining_and_appending_equal_the_checksum_of_the_whole(
            data in proptest::collection::vec(any::<u8>(), 0..5000), cut in any::<proptest::sample::Index>()) {
            let (a, b) = data.split_at(cut.index(data.len() + 1));
            prop_assert_eq!(crc32c_combine(crc32c(a), crc32c(b), b.len() as u64), crc32c(&data));
            prop_assert_eq!(crc32c_append(crc32c(a), b), crc32c(&data));
        }

        #[test]
        fn combining_is_associative_at_any_length(a: u32, b: u32, c: u32, len_b in 0u64..1 << 62, len_c in 0u64..1 << 62) {
            prop_assert_eq!(
                crc32c_combine(crc32c_combine(a, b, len_b), c, len_c),
                crc32c_combine(a, crc32c_combine(b, c, len_c), len_b + len_c)
            );
        }
    }
}
