//! Kernel for NEON, 16 bytes at a time: products are looked up by `tbl` in two 16-entry tables, one for each half of a
//! byte (Plank, Greenan and Miller, FAST'13).

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};

use super::Block;
use super::coefficients::NIBBLE_TABLES;

/// Maximum number of outputs per block.
pub(super) const ROWS: usize = 4;
/// Bytes per register.
const WIDTH: usize = 16;

/// # Safety
/// The processor has NEON, and the block's pointers are as [`Block`] says.
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
#[target_feature(enable = "neon")]
unsafe fn rows<const ROWS: usize>(block: &Block) {
    assert_eq!(block.outputs.len(), ROWS);
    let stride = block.coefficients.rows();
    // The coefficients of input j in this block are coefficients[j·stride..][..ROWS].
    let coefficients = &block.coefficients.bytes()[block.first_column * stride + block.first_row..];
    assert!(coefficients.len() >= (block.inputs.len() - 1) * stride + ROWS);
    let low_half = vdupq_n_u8(0x0F);
    let mut offset = 0;
    while offset + 2 * WIDTH <= block.len {
        // SAFETY: all loads and stores are of 2·WIDTH bytes at `offset` of inputs and outputs, within `len`; the
        // coefficients reach as far as just asserted.
        unsafe {
            let mut sums = [[vdupq_n_u8(0); 2]; ROWS];
            if block.accumulate {
                for (sum, output) in sums.iter_mut().zip(block.outputs) {
                    *sum = load_pair(output.add(offset));
                }
            }
            // Half a cache line per step; prefetching a line twice does no harm.
            for pointer in block.upcoming {
                prefetch(pointer.wrapping_add(offset));
            }
            for (column, input) in block.inputs.iter().enumerate() {
                let x = load_pair(input.add(offset));
                let low = x.map(|x| vandq_u8(x, low_half));
                let high = x.map(|x| vshrq_n_u8::<4>(x));
                for row in 0..ROWS {
                    if block.first_row_is_ones && row == 0 {
                        sums[0] = [veorq_u8(sums[0][0], x[0]), veorq_u8(sums[0][1], x[1])];
                        continue;
                    }
                    let (table_low, table_high) = tables(*coefficients.get_unchecked(column * stride + row));
                    for half in 0..2 {
                        let product =
                            veorq_u8(vqtbl1q_u8(table_low, low[half]), vqtbl1q_u8(table_high, high[half]));
                        sums[row][half] = veorq_u8(sums[row][half], product);
                    }
                }
            }
            for (sum, output) in sums.iter().zip(block.outputs) {
                vst1q_u8(output.add(offset), sum[0]);
                vst1q_u8(output.add(offset + WIDTH), sum[1]);
            }
        }
        offset += 2 * WIDTH;
    }
    // SAFETY: offset ≤ len, and the caller's promises are passed on.
    unsafe { super::portable::run_from(block, offset) };
}

/// Prefetches the cache line at `pointer`, which need not be valid.
#[inline]
fn prefetch(pointer: *const u8) {
    // SAFETY: the instruction is a hint: it reads nothing into registers, writes nothing, and cannot fault.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) pointer, options(nostack, preserves_flags, readonly));
    }
}

/// The products of a coefficient with the low and the high halves of bytes.
#[inline]
#[target_feature(enable = "neon")]
fn tables(coefficient: u8) -> (uint8x16_t, uint8x16_t) {
    let table = NIBBLE_TABLES[usize::from(coefficient)].0.as_ptr();
    // SAFETY: a table has 32 bytes.
    unsafe { (vld1q_u8(table), vld1q_u8(table.add(WIDTH))) }
}

/// # Safety
/// `pointer` is valid for reads of 2·WIDTH bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_pair(pointer: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { [vld1q_u8(pointer), vld1q_u8(pointer.add(WIDTH))] }
}
