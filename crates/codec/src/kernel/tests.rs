//! Every kernel of this processor against the tables, at odd lengths and alignments.

use proptest::prelude::*;

use super::{Coefficients, Kernel, Stores};
use crate::gf256;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Overwrite(Stores),
    Accumulate,
}

fn any_how() -> impl Strategy<Value = How> {
    prop_oneof![
        Just(How::Overwrite(Stores::Cached)),
        Just(How::Overwrite(Stores::Streaming)),
        Just(How::Accumulate)
    ]
}

/// Runs `kernel` on inputs and outputs that start at `misalignment` + their index past a 64-byte boundary or so.
/// Compares with the definition, and checks that the bytes around the outputs are unchanged.
fn check(kernel: &Kernel, rows: usize, columns: usize, len: usize, misalignment: usize, seed: u64, how: How) {
    let mut matrix = bytes(seed, rows * columns);
    if seed.is_multiple_of(3) {
        matrix[..columns].fill(1);
    }
    let coefficients = Coefficients::from_rows(rows, columns, &matrix);
    let start = |index: usize| misalignment + index;
    let inputs: Vec<Vec<u8>> = (0..columns).map(|i| bytes(seed + 1 + i as u64, start(i) + len)).collect();
    let inputs: Vec<&[u8]> = inputs.iter().enumerate().map(|(i, input)| &input[start(i)..]).collect();
    let before: Vec<Vec<u8>> = (0..rows).map(|i| bytes(!seed - i as u64, start(i) + len + 70)).collect();
    let mut after = before.clone();
    let mut outputs: Vec<&mut [u8]> =
        after.iter_mut().enumerate().map(|(i, output)| &mut output[start(i)..start(i) + len]).collect();
    match how {
        How::Accumulate => kernel.dot_accumulate(&coefficients, &inputs, &mut outputs),
        How::Overwrite(stores) => kernel.dot(&coefficients, &inputs, &mut outputs, stores),
    }
    for row in 0..rows {
        let mut expected = before[row].clone();
        let sum = &mut expected[start(row)..start(row) + len];
        if how != How::Accumulate {
            sum.fill(0);
        }
        for (column, input) in inputs.iter().enumerate() {
            gf256::accumulate_reference(matrix[row * columns + column], input, sum);
        }
        assert_eq!(expected, after[row], "{}: row {row} of {rows}×{columns}, {len} bytes", kernel.name());
    }
}

proptest! {
    #[test]
    fn every_kernel_equals_the_tables(
        rows in 1usize..12, columns in 1usize..40, len in 0usize..700, misalignment in 0usize..65, seed: u32,
        how in any_how()
    ) {
        for kernel in Kernel::available() {
            check(kernel, rows, columns, len, misalignment, u64::from(seed), how);
        }
    }

    #[test]
    fn every_kernel_equals_the_tables_over_many_strips(
        rows in 1usize..10, columns in 1usize..35, len in 8000usize..20_000, misalignment in 0usize..65, seed: u32,
        how in any_how()
    ) {
        // The reference is slow: keep its work even.
        let len = len / (1 + rows * columns / 40);
        for kernel in Kernel::available() {
            check(kernel, rows, columns, len, misalignment, u64::from(seed), how);
        }
    }
}

#[test]
fn every_kernel_knows_every_product() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for coefficient in 0..=255 {
            let mut products = [0u8; 256];
            kernel.dot(
                &Coefficients::from_rows(1, 1, &[coefficient]),
                &[&all],
                &mut [&mut products],
                Stores::Cached,
            );
            for x in 0..=255u8 {
                assert_eq!(products[usize::from(x)], gf256::mul(coefficient, x), "{}", kernel.name());
            }
        }
    }
}

#[test]
fn no_inputs_sum_up_to_zero() {
    let mut output = [7u8; 100];
    for kernel in Kernel::available() {
        kernel.dot(&Coefficients::from_rows(1, 0, &[]), &[], &mut [&mut output], Stores::Cached);
        assert_eq!(output, [0; 100]);
    }
}

#[test]
fn the_kernels_come_fastest_first_and_end_with_the_portable_one() {
    let names: Vec<&str> = Kernel::available().iter().map(Kernel::name).collect();
    println!("kernels of this processor: {}", names.join(", "));
    if cfg!(target_arch = "aarch64") {
        assert_eq!(names, ["neon", "portable"]);
    }
    assert_eq!(names.last(), Some(&"portable"));
    assert_eq!(Kernel::best().name(), names[0]);
}
