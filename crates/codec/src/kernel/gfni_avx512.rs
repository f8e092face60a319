//! Kernel for GFNI and AVX-512, 64 bytes at a time: Galois-field affine transformations on AVX-512 registers.
//!
//! A product with a constant is one `vgf2p8affineqb`, of which a core executes one per clock. Everything else is
//! arranged around that: row 0 of a code is all ones and needs none, two products and the sum are added by one
//! three-way XOR (`vpternlogq`), and 2 × 64 bytes of up to 8 outputs are summed in registers over all inputs of the
//! block before they are stored.

use std::arch::x86_64::{
    __m512i, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use super::prefetch::{prefetch, share};
use super::{Block, MAX_UPCOMING};

/// Bytes per register.
const WIDTH: usize = 64;
/// The truth table of a ⊕ b ⊕ c.
const XOR3: i32 = 0x96;

/// # Safety
/// The processor has GFNI, AVX512F and AVX512BW, and the block's pointers are as [`Block`] says.
pub(super) unsafe fn run(block: &Block) {
    macro_rules! with_rows {
        ($($rows:literal)*) => {
            match (block.outputs.len(), block.first_row_is_ones) {
                $(
                    // SAFETY: the caller's promises are passed on.
                    ($rows, true) => unsafe { rows::<$rows, true>(block) },
                    // SAFETY: the caller's promises are passed on.
                    ($rows, false) => unsafe { rows::<$rows, false>(block) },
                )*
                (rows, _) => unreachable!("a block has 1 to 8 outputs, not {rows}"),
            }
        };
    }
    with_rows!(1 2 3 4 5 6 7 8);
}

/// `ONES`: the coefficients of the first row are all one.
///
/// # Safety
/// As [`run`]; the block has `ROWS` outputs.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn rows<const ROWS: usize, const ONES: bool>(block: &Block) {
    assert_eq!(block.outputs.len(), ROWS);
    let stride = block.coefficients.rows();
    // The matrices of input j in this block are matrices[j·stride..][..ROWS].
    let matrices = &block.coefficients.bit_matrices()[block.first_column * stride + block.first_row..];
    assert!(matrices.len() >= (block.inputs.len() - 1) * stride + ROWS);
    let matrices = matrices.as_ptr();
    let mut offset = 0;
    // SAFETY: offset + 2·WIDTH ≤ len in each step, and the matrices reach as far as just asserted.
    unsafe {
        while offset + 2 * WIDTH <= block.len {
            pair_of_registers::<ROWS, ONES>(block, matrices, stride, offset);
            offset += 2 * WIDTH;
        }
    }
    while offset < block.len {
        let bytes = WIDTH.min(block.len - offset);
        // SAFETY: offset + bytes ≤ len, 1 ≤ bytes ≤ WIDTH, and the matrices reach as far as asserted above.
        unsafe { masked_register::<ROWS>(block, matrices, stride, offset, bytes) };
        offset += bytes;
    }
}

/// # Safety
/// As [`rows`]; offset + 2·WIDTH ≤ len; matrices[j·stride + row] is readable for every input j and row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn pair_of_registers<const ROWS: usize, const ONES: bool>(
    block: &Block,
    matrices: *const u64,
    stride: usize,
    offset: usize,
) {
    // SAFETY: all loads and stores are of 2·WIDTH bytes at `offset` of inputs and outputs, which the caller promises
    // are within `len`; matrices are read where the caller promises they are readable; streaming stores are requested
    // only for outputs aligned to 64 bytes, and `offset` is a multiple of that.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
        if block.accumulate {
            for (sum, output) in sums.iter_mut().zip(block.outputs) {
                *sum = load_pair(output.add(offset));
            }
        }
        let mut column = 0;
        while column + 2 <= block.inputs.len() {
            prefetch::<2>(share(block.upcoming, column, 2), offset);
            let a = load_pair(block.inputs[column].add(offset));
            let b = load_pair(block.inputs[column + 1].add(offset));
            let matrices_a = matrices.add(column * stride);
            let matrices_b = matrices.add((column + 1) * stride);
            for (row, sum) in sums.iter_mut().enumerate() {
                if ONES && row == 0 {
                    for half in 0..2 {
                        sum[half] = _mm512_ternarylogic_epi64::<XOR3>(sum[half], a[half], b[half]);
                    }
                } else {
                    let (times_a, times_b) = (broadcast(matrices_a.add(row)), broadcast(matrices_b.add(row)));
                    for half in 0..2 {
                        let product_a = _mm512_gf2p8affine_epi64_epi8::<0>(a[half], times_a);
                        let product_b = _mm512_gf2p8affine_epi64_epi8::<0>(b[half], times_b);
                        sum[half] = _mm512_ternarylogic_epi64::<XOR3>(sum[half], product_a, product_b);
                    }
                }
            }
            column += 2;
        }
        prefetch::<2>(share(block.upcoming, column, MAX_UPCOMING), offset);
        if column < block.inputs.len() {
            let a = load_pair(block.inputs[column].add(offset));
            let matrices_a = matrices.add(column * stride);
            for (row, sum) in sums.iter_mut().enumerate() {
                for half in 0..2 {
                    let product = if ONES && row == 0 {
                        a[half]
                    } else {
                        _mm512_gf2p8affine_epi64_epi8::<0>(a[half], broadcast(matrices_a.add(row)))
                    };
                    sum[half] = _mm512_xor_si512(sum[half], product);
                }
            }
        }
        for (sum, output) in sums.iter().zip(block.outputs) {
            let output = output.add(offset).cast::<__m512i>();
            if block.stream {
                _mm512_stream_si512(output, sum[0]);
                _mm512_stream_si512(output.add(1), sum[1]);
            } else {
                _mm512_storeu_si512(output, sum[0]);
                _mm512_storeu_si512(output.add(1), sum[1]);
            }
        }
    }
}

/// Processes the last bytes of a block: one register, of which only `bytes` bytes exist in memory.
///
/// # Safety
/// As [`rows`]; offset + bytes ≤ len, 1 ≤ bytes ≤ WIDTH; matrices[j·stride + row] is readable for every input and row.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn masked_register<const ROWS: usize>(
    block: &Block,
    matrices: *const u64,
    stride: usize,
    offset: usize,
    bytes: usize,
) {
    let mask = u64::MAX >> (WIDTH - bytes);
    // SAFETY: masked loads and stores touch only the first `bytes` bytes at `offset`, which the caller promises are
    // within `len`; matrices are read where the caller promises they are readable.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); ROWS];
        if block.accumulate {
            for (sum, output) in sums.iter_mut().zip(block.outputs) {
                *sum = _mm512_maskz_loadu_epi8(mask, output.add(offset).cast());
            }
        }
        for (column, input) in block.inputs.iter().enumerate() {
            let a = _mm512_maskz_loadu_epi8(mask, input.add(offset).cast());
            for (row, sum) in sums.iter_mut().enumerate() {
                let times = broadcast(matrices.add(column * stride + row));
                *sum = _mm512_xor_si512(*sum, _mm512_gf2p8affine_epi64_epi8::<0>(a, times));
            }
        }
        for (sum, output) in sums.iter().zip(block.outputs) {
            _mm512_mask_storeu_epi8(output.add(offset).cast(), mask, *sum);
        }
    }
}

/// # Safety
/// `pointer` is valid for reads of 2·WIDTH bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_pair(pointer: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe { [_mm512_loadu_si512(pointer.cast()), _mm512_loadu_si512(pointer.add(WIDTH).cast())] }
}

/// # Safety
/// `matrix` is valid for reads.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast(matrix: *const u64) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_set1_epi64(unsafe { *matrix }.cast_signed())
}
