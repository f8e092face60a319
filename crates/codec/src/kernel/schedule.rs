//! Cuts a dot product into blocks.
//!
//! Reading a stripe of 128 data chunks as 128 streams at once is slow: the hardware prefetchers follow fewer streams,
//! and the caches have fewer ways than these have lines with equal low address bits, so memory is read at a fraction of
//! its speed (the drop that ECWide §5 measures for wide stripes). Instead the chunks are taken in strips of
//! [`STRIP_BYTES`], and within a strip in groups of 16 inputs: the sums of the strip stay in the L1 cache from group to
//! group, and while one group is multiplied the next is prefetched. Memory then sees the same access pattern as with 16
//! data chunks, whatever k is.
//!
//! With at most 16 inputs there is one group, and the hardware prefetchers keep up with it. A short prefetch distance
//! in each stream, in one strip from end to end, is then fastest. The measurements are in
//! `docs/decisions/codec-kernels.md`.
//!
//! [`Stores::Streaming`] applies to a single group only. For sums that are read again, stores around the caches cost
//! three times what they save, and with more than 16 inputs there is little to save.

use std::ops::Range;

use super::{Block, Coefficients, GROUP_COLUMNS, Kernel, LINE_BYTES, MAX_ROWS, MAX_UPCOMING, Stores};
use crate::checksum::GranuleChecksums;

/// Bytes of each chunk that are processed at a time: a page, the range of a hardware prefetcher. At this size 8 outputs
/// fill an L1 cache of 32 KiB, and two thirds of one of 48 KiB.
const STRIP_BYTES: usize = 4096;

/// Bytes of each chunk that are processed at a time when checksums are taken, which are slow to start.
const CHECKSUM_STRIP_BYTES: usize = 8192;

/// Prefetch distance in bytes for a single group of inputs.
const AHEAD_BYTES: usize = 512;

/// Maximum number of inputs and outputs, together, for which streaming stores gain anything: with (16,4) they lose a
/// third.
const STREAMING_CHUNKS: usize = 16;

/// Whether to overwrite the outputs, and how to write them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Overwrite(Stores),
    Accumulate,
}

/// Computes outputs_i = Σ_j c_ij · inputs_j, or += in [`Mode::Accumulate`]. With `checksums`, also takes the checksums
/// of inputs and then outputs, of each strip while it is still in the L1 or L2 cache.
pub(super) fn dot(
    kernel: &Kernel,
    coefficients: &Coefficients,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
    mode: Mode,
    mut checksums: Option<&mut GranuleChecksums>,
) {
    assert_eq!(coefficients.rows(), outputs.len(), "one output for each row of coefficients");
    assert_eq!(coefficients.columns(), inputs.len(), "one input for each column of coefficients");
    let Some(len) = outputs.first().map(|output| output.len()) else { return };
    assert!(outputs.iter().all(|output| output.len() == len), "outputs of one length");
    assert!(inputs.iter().all(|input| input.len() == len), "inputs as long as the outputs");
    if inputs.is_empty() {
        if mode != Mode::Accumulate {
            outputs.iter_mut().for_each(|output| output.fill(0));
        }
        return;
    }
    let outputs: Vec<*mut u8> = outputs.iter_mut().map(|output| output.as_mut_ptr()).collect();
    let stream = mode == Mode::Overwrite(Stores::Streaming)
        && kernel.streams
        && checksums.is_none()
        && inputs.len() + outputs.len() <= STREAMING_CHUNKS
        && outputs.iter().all(|output| output.addr().is_multiple_of(LINE_BYTES));
    let call =
        Call { kernel, coefficients, inputs, outputs, len, stream, accumulate: mode == Mode::Accumulate };
    let mut offset = 0;
    while offset < len {
        let strip = match &checksums {
            Some(checksums) => CHECKSUM_STRIP_BYTES.min(checksums.granule_rest(offset)),
            // A single block never returns to its sums.
            None if inputs.len() <= GROUP_COLUMNS && call.outputs.len() <= kernel.max_rows => len,
            None => STRIP_BYTES,
        };
        let strip = offset..len.min(offset + strip);
        call.strip(&strip, checksums.as_deref_mut());
        offset = strip.end;
    }
    if stream {
        finish_streaming();
    }
}

/// Streaming stores are weakly ordered: a thread that learns that the bytes are written must see them.
fn finish_streaming() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

struct Call<'a> {
    kernel: &'a Kernel,
    coefficients: &'a Coefficients,
    /// Slices of `len` bytes each.
    inputs: &'a [&'a [u8]],
    /// Pointers valid for writes of `len` bytes while the call lasts, disjoint from everything else.
    outputs: Vec<*mut u8>,
    len: usize,
    stream: bool,
    accumulate: bool,
}

impl Call<'_> {
    /// Computes this range of all outputs.
    fn strip(&self, strip: &Range<usize>, mut checksums: Option<&mut GranuleChecksums>) {
        for first_column in (0..self.inputs.len()).step_by(GROUP_COLUMNS) {
            let group = first_column..self.inputs.len().min(first_column + GROUP_COLUMNS);
            self.group(strip, &group);
            if let Some(checksums) = &mut checksums {
                for column in group {
                    checksums.append(column, strip.start, &self.inputs[column][strip.clone()]);
                }
            }
        }
        if let Some(checksums) = checksums {
            assert!(strip.start <= strip.end && strip.end <= self.len);
            for (row, output) in self.outputs.iter().enumerate() {
                // SAFETY: the strip is within the `len` bytes that are valid, initialised by `group`, and not written
                // while this slice lives.
                let sums = unsafe { std::slice::from_raw_parts(output.add(strip.start), strip.len()) };
                checksums.append(self.inputs.len() + row, strip.start, sums);
            }
        }
    }

    /// Adds the products of one group of inputs to one strip of all outputs.
    fn group(&self, strip: &Range<usize>, group: &Range<usize>) {
        assert!(strip.start <= strip.end && strip.end <= self.len);
        let mut inputs = [std::ptr::null(); GROUP_COLUMNS];
        for (pointer, input) in inputs.iter_mut().zip(&self.inputs[group.clone()]) {
            *pointer = input[strip.clone()].as_ptr();
        }
        let (upcoming, upcoming_count) = self.upcoming(strip, group);
        for first_row in (0..self.outputs.len()).step_by(self.kernel.max_rows) {
            let rows = self.kernel.max_rows.min(self.outputs.len() - first_row);
            let mut outputs = [std::ptr::null_mut(); MAX_ROWS];
            for (pointer, output) in outputs.iter_mut().zip(&self.outputs[first_row..first_row + rows]) {
                // SAFETY: the strip starts within the `len` bytes that the pointer is valid for.
                *pointer = unsafe { output.add(strip.start) };
            }
            let block = Block {
                coefficients: self.coefficients,
                first_row,
                first_column: group.start,
                inputs: &inputs[..group.len()],
                upcoming: if first_row == 0 { &upcoming[..upcoming_count] } else { &[] },
                outputs: &outputs[..rows],
                accumulate: self.accumulate || group.start > 0,
                #[cfg(target_arch = "x86_64")]
                stream: self.stream,
                len: strip.len(),
                first_row_is_ones: group.clone().all(|column| self.coefficients.get(first_row, column) == 1),
            };
            // SAFETY: `Kernel::available` lists only kernels whose instructions it has detected. The strip is within
            // the `len` bytes of inputs and outputs; outputs are distinct `&mut` slices, so nothing overlaps. If
            // `stream`, the outputs are aligned to 64 bytes, and so are strips: they are whole except at the end of a
            // granule, and nothing is streamed when granules are checksummed.
            unsafe { (self.kernel.run)(&block) };
        }
    }

    /// The streams to prefetch while a group is processed: the group after it in this strip, or the first group of the
    /// next strip. If there is only one group, its own bytes a little further on, and those of the outputs, which have
    /// to be in the caches before they can be written there.
    fn upcoming(&self, strip: &Range<usize>, group: &Range<usize>) -> ([*const u8; MAX_UPCOMING], usize) {
        let all = self.inputs.len();
        let (next, offset) = if group.end < all {
            (group.end, strip.start)
        } else if group.start > 0 {
            (0, strip.end)
        } else {
            (0, strip.start + AHEAD_BYTES)
        };
        let mut pointers = [std::ptr::null(); MAX_UPCOMING];
        let columns = GROUP_COLUMNS.min(all - next);
        for (pointer, input) in pointers.iter_mut().zip(&self.inputs[next..next + columns]) {
            *pointer = input.as_ptr().wrapping_add(offset);
        }
        if all > GROUP_COLUMNS || self.stream {
            return (pointers, columns);
        }
        let rows = MAX_ROWS.min(self.outputs.len());
        for (pointer, output) in pointers[columns..].iter_mut().zip(&self.outputs[..rows]) {
            *pointer = output.wrapping_add(offset);
        }
        (pointers, columns + rows)
    }
}
