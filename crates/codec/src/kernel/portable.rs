//! The kernel for every processor: one table lookup per byte and coefficient. Safe code except for the pointers.

use super::Block;
use crate::gf256::TABLES;

/// `PRODUCTS[c][x]` is c · x.
static PRODUCTS: [[u8; 256]; 256] = build_products();

const fn build_products() -> [[u8; 256]; 256] {
    let mut products = [[0u8; 256]; 256];
    let mut a = 1;
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            products[a][b] = TABLES.0[TABLES.1[a] as usize + TABLES.1[b] as usize];
            b += 1;
        }
        a += 1;
    }
    products
}

/// # Safety
/// The block's pointers are as [`Block`] says.
pub(super) unsafe fn run(block: &Block) {
    // SAFETY: the caller's promise; 0 ≤ len.
    unsafe { run_from(block, 0) };
}

/// Processes the block's bytes from `offset` on. Other kernels use it for their last few bytes.
///
/// # Safety
/// The block's pointers are as [`Block`] says, and `offset` ≤ len.
pub(super) unsafe fn run_from(block: &Block, offset: usize) {
    let len = block.len - offset;
    for (row, output) in block.outputs.iter().enumerate() {
        // SAFETY: an output is valid for writes of offset + len bytes and overlaps no input and no other output.
        let output = unsafe { std::slice::from_raw_parts_mut(output.add(offset), len) };
        if !block.accumulate {
            output.fill(0);
        }
        for (column, input) in block.inputs.iter().enumerate() {
            // SAFETY: an input is valid for reads of offset + len bytes, and no output overlaps it.
            let input = unsafe { std::slice::from_raw_parts(input.add(offset), len) };
            let coefficient = block.coefficients.get(block.first_row + row, block.first_column + column);
            add_product(coefficient, input, output);
        }
    }
}

fn add_product(coefficient: u8, input: &[u8], output: &mut [u8]) {
    if coefficient == 1 {
        output.iter_mut().zip(input).for_each(|(sum, x)| *sum ^= x);
    } else {
        let products = &PRODUCTS[usize::from(coefficient)];
        output.iter_mut().zip(input).for_each(|(sum, x)| *sum ^= products[usize::from(*x)]);
    }
}
