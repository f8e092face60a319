//! The kernels: sums of coefficient · chunk over long byte strings, as fast as the processor allows.
//!
//! Everything that this crate does to chunk bytes is one operation, the *dot product*: outputs_i = Σ_j c_ij · inputs_j.
//! Encoding, decoding, repair, partial sums and deltas differ only in the coefficients. A [`Kernel`] evaluates it for a
//! [`Block`]: at most [`MAX_ROWS`] outputs, at most [`GROUP_COLUMNS`] inputs, one strip of bytes. [`schedule`] cuts a
//! call into blocks so that the sums of a strip stay in the L1 cache and the next inputs are prefetched.
//!
//! The kernel is chosen once per process among those that the processor can run ([`Kernel::available`]). All of them
//! are tested against the tables of [`crate::gf256`].

mod coefficients;
mod portable;
mod schedule;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod gfni_avx2;
#[cfg(target_arch = "x86_64")]
mod gfni_avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod prefetch;

#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use crate::checksum::GranuleChecksums;
pub use coefficients::Coefficients;
use schedule::Mode;

/// Maximum number of outputs in a block: as many as have accumulators in the registers of the widest kernel.
pub(crate) const MAX_ROWS: usize = 8;
/// Maximum number of inputs in a block: more streams outrun the prefetchers and the ways of the L1 cache.
pub(crate) const GROUP_COLUMNS: usize = 16;
/// Maximum number of streams that are prefetched during a block: the inputs of a group, and the outputs.
pub(crate) const MAX_UPCOMING: usize = GROUP_COLUMNS + MAX_ROWS;

/// Bytes per cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// One call of a kernel: `rows` outputs, `columns` inputs, `len` bytes of each.
///
/// The pointers are valid for `len` bytes (inputs for reads, outputs for both), without any alignment.
/// No output overlaps an input or another output.
pub(crate) struct Block<'a> {
    pub(crate) coefficients: &'a Coefficients,
    /// The matrix rows from `first_row` on belong to the outputs, its columns from `first_column` on to the inputs.
    pub(crate) first_row: usize,
    pub(crate) first_column: usize,
    /// At most [`GROUP_COLUMNS`].
    pub(crate) inputs: &'a [*const u8],
    /// Streams that are used next and prefetched meanwhile: at most [`MAX_UPCOMING`] pointers. Prefetching cannot
    /// fault, so these need not be valid.
    pub(crate) upcoming: &'a [*const u8],
    /// At most the kernel's number of rows.
    pub(crate) outputs: &'a [*mut u8],
    pub(crate) len: usize,
    /// Add to the contents of the outputs instead of overwriting them.
    pub(crate) accumulate: bool,
    /// Write around the caches, if the kernel can: the outputs are then aligned to 64 bytes.
    #[cfg(target_arch = "x86_64")]
    pub(crate) stream: bool,
    /// Whether the first row has only ones in these columns, so that it is a plain XOR.
    pub(crate) first_row_is_ones: bool,
}

/// One implementation of the dot product, for one kind of processor.
pub struct Kernel {
    name: &'static str,
    /// Whether `run` honours [`Block::stream`].
    streams: bool,
    /// Maximum number of outputs that `run` takes.
    max_rows: usize,
    /// # Safety
    /// The processor has the instructions, and the block's pointers are as [`Block`] says.
    run: unsafe fn(&Block),
}

impl Kernel {
    /// The kernels that this processor can run, fastest first. The last is always the portable one.
    pub fn available() -> &'static [Kernel] {
        static AVAILABLE: OnceLock<Vec<Kernel>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let mut kernels = Vec::new();
            #[cfg(target_arch = "x86_64")]
            {
                let gfni = is_x86_feature_detected!("gfni");
                let avx2 = is_x86_feature_detected!("avx2");
                let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
                if gfni && avx512 {
                    kernels.push(Kernel {
                        name: "gfni-avx512",
                        streams: true,
                        max_rows: MAX_ROWS,
                        run: gfni_avx512::run,
                    });
                }
                if gfni && avx2 {
                    kernels.push(Kernel {
                        name: "gfni-avx2",
                        streams: false,
                        max_rows: gfni_avx2::ROWS,
                        run: gfni_avx2::run,
                    });
                }
                if avx2 {
                    kernels.push(Kernel {
                        name: "avx2",
                        streams: false,
                        max_rows: avx2::ROWS,
                        run: avx2::run,
                    });
                }
            }
            #[cfg(target_arch = "aarch64")]
            if std::arch::is_aarch64_feature_detected!("neon") {
                kernels.push(Kernel { name: "neon", streams: false, max_rows: neon::ROWS, run: neon::run });
            }
            kernels.push(Kernel { name: "portable", streams: false, max_rows: MAX_ROWS, run: portable::run });
            kernels
        })
    }

    /// The fastest kernel of this processor.
    pub fn best() -> &'static Kernel {
        &Kernel::available()[0]
    }

    /// The instructions that the kernel uses, for logs and benchmarks.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Computes outputs_i = Σ_j c_ij · inputs_j.
    ///
    /// # Panics
    /// If the numbers of inputs and outputs are not those of the matrix, or lengths differ.
    pub fn dot(
        &self,
        coefficients: &Coefficients,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        stores: Stores,
    ) {
        schedule::dot(self, coefficients, inputs, outputs, Mode::Overwrite(stores), None);
    }

    /// [`Kernel::dot`] together with the checksums of all inputs, numbered first, and of all outputs, in one pass.
    pub(crate) fn dot_and_checksum(
        &self,
        coefficients: &Coefficients,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        checksums: &mut GranuleChecksums,
    ) {
        schedule::dot(self, coefficients, inputs, outputs, Mode::Overwrite(Stores::Cached), Some(checksums));
    }

    /// Computes outputs_i += Σ_j c_ij · inputs_j.
    ///
    /// # Panics
    /// If the numbers of inputs and outputs are not those of the matrix, or lengths differ.
    pub fn dot_accumulate(&self, coefficients: &Coefficients, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        schedule::dot(self, coefficients, inputs, outputs, Mode::Accumulate, None);
    }
}

/// How results are written. The bytes are the same; only the time differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stores {
    /// Into the caches: right if the results are used soon, for instance sent. The simple functions do this.
    #[default]
    Cached,
    /// Around the caches: right for bulk work from memory to memory whose results are not used soon. Saves reading each
    /// target line before it is overwritten, some 15–25% of the time of (10,4) if the data come from DRAM as well. If
    /// data and results fit in the caches, it costs as much. Honoured by the AVX-512 kernel, for at most 16 inputs and
    /// outputs together, and outputs that are aligned to 64 bytes; otherwise the same as [`Stores::Cached`].
    Streaming,
}
