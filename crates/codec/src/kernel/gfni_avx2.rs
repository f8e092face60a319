//! Kernel for GFNI and AVX2, 32 bytes at a time: Galois-field affine transformations on AVX registers, for processors
//! without AVX-512.
//!
//! Like the AVX-512 kernel, with half the width and half the registers: at most 4 outputs at once.

use std::arch::x86_64::{
    __m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::Block;
use super::prefetch::prefetch;

/// Maximum number of outputs per block.
pub(super) const ROWS: usize = 4;
/// Bytes per register.
const WIDTH: usize = 32;

/// # Safety
/// The processor has GFNI and AVX2, and the block's pointers are as [`Block`] says.
pub(super) unsafe fn run(block: &Block) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        match block.outputs.len() {
            1 => rows::<1>(block),
            2 => rows::<2>(block),
            3 => rows::<3>(block),
            4 => rows::<4>(block),
            rows => unreachable!("a block has 1 to 4 outputs, not {rows}"),
        }
    }
}

/// # Safety
/// As [`run`]; the block has `ROWS` outputs.
#[target_feature(enable = "avx2,gfni")]
unsafe fn rows<const ROWS: usize>(block: &Block) {
    assert_eq!(block.outputs.len(), ROWS);
    let stride = block.coefficients.rows();
    // The matrices of input j in this block are matrices[j·stride..][..ROWS].
    let matrices = &block.coefficients.bit_matrices()[block.first_column * stride + block.first_row..];
    assert!(matrices.len() >= (block.inputs.len() - 1) * stride + ROWS);
    let mut offset = 0;
    while offset + 2 * WIDTH <= block.len {
        // SAFETY: all loads and stores are of 2·WIDTH bytes at `offset` of inputs and outputs, within `len`; the
        // matrices reach as far as just asserted.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
            if block.accumulate {
                for (sum, output) in sums.iter_mut().zip(block.outputs) {
                    *sum = load_pair(output.add(offset));
                }
            }
            prefetch::<1>(block.upcoming, offset);
            for (column, input) in block.inputs.iter().enumerate() {
                let x = load_pair(input.add(offset));
                for row in 0..ROWS {
                    if block.first_row_is_ones && row == 0 {
                        sums[0] = [_mm256_xor_si256(sums[0][0], x[0]), _mm256_xor_si256(sums[0][1], x[1])];
                        continue;
                    }
                    let times =
                        _mm256_set1_epi64x(matrices.get_unchecked(column * stride + row).cast_signed());
                    for half in 0..2 {
                        let product = _mm256_gf2p8affine_epi64_epi8::<0>(x[half], times);
                        sums[row][half] = _mm256_xor_si256(sums[row][half], product);
                    }
                }
            }
            for (sum, output) in sums.iter().zip(block.outputs) {
                let output = output.add(offset).cast::<__m256i>();
                _mm256_storeu_si256(output, sum[0]);
                _mm256_storeu_si256(output.add(1), sum[1]);
            }
        }
        offset += 2 * WIDTH;
    }
    // SAFETY: offset ≤ len, and the caller's promises are passed on.
    unsafe { super::portable::run_from(block, offset) };
}

/// # Safety
/// `pointer` is valid for reads of 2·WIDTH bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_pair(pointer: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    unsafe { [_mm256_loadu_si256(pointer.cast()), _mm256_loadu_si256(pointer.add(WIDTH).cast())] }
}
