//! Linear erasure codes over GF(2^8).
//!
//! A [`Code`] is a generator matrix: Reed–Solomon, Azure-LRC and replication are constructors of one type (design.md
//! §4, idea 1). A stripe is n chunks of equal length. The first k are the data, and each of the others is a linear
//! combination of them, byte by byte. This crate encodes ([`Code::encode`], [`Code::encode_and_checksum`]), decodes
//! ([`Code::decode_plan`]), says which further losses a part of a stripe survives ([`Code::survives`]), finds repair
//! equations ([`Code::cheapest_repair`]), evaluates them piecewise ([`accumulate`]) and computes checksums
//! ([`crc32c`]), including those of parities that do not exist yet ([`predict_checksum`]).
//!
//! The bytes go through kernels written with `std::arch` ([`Kernel`]). The best one for the processor is chosen once
//! per process.
//!
//! This crate has no I/O, no clock, no threads, no randomness and no async. Every function depends on its arguments
//! alone. It does not cut objects into chunks or pad them; all chunks of one call have the same length, any length.
//!
//! ```
//! use striate_codec::Code;
//!
//! let code: Code = "rs(4,2)".parse()?;
//! let data: Vec<Vec<u8>> = (0..4u8).map(|chunk| vec![chunk; 1000]).collect();
//! let mut parity = vec![vec![0u8; 1000]; 2];
//! code.encode(&slices(&data), &mut slices_mut(&mut parity))?;
//!
//! // Chunks 1 and 3 are lost.
//! let plan = code.decode_plan(&[0, 2, 4, 5], &[1, 3])?;
//! let stripe: Vec<&[u8]> = slices(&data).into_iter().chain(slices(&parity)).collect();
//! let inputs: Vec<&[u8]> = plan.sources().iter().map(|chunk| stripe[*chunk]).collect();
//! let mut decoded = vec![vec![0u8; 1000]; 2];
//! plan.apply(&inputs, &mut slices_mut(&mut decoded))?;
//! assert_eq!(decoded, [data[1].clone(), data[3].clone()]);
//!
//! fn slices(chunks: &[Vec<u8>]) -> Vec<&[u8]> {
//!     chunks.iter().map(|chunk| chunk.as_slice()).collect()
//! }
//! fn slices_mut(chunks: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
//!     chunks.iter_mut().map(|chunk| chunk.as_mut_slice()).collect()
//! }
//! # Ok::<(), striate_codec::CodecError>(())
//! ```

pub mod gf256;
pub mod lrc;

mod checksum;
mod chunk_set;
mod code;
mod decode;
mod encode;
mod error;
mod kernel;
mod losses;
mod lrc_points;
mod partial_sum;
mod predicted_checksum;
mod repair;
mod spec;
mod wide_spec;

pub use checksum::{GranuleChecksums, crc32c, crc32c_append, crc32c_combine};
pub use chunk_set::{ChunkSet, MAX_CHUNKS};
pub use code::Code;
pub use decode::DecodePlan;
pub use error::CodecError;
pub use kernel::{Coefficients, Kernel, Stores};
pub use partial_sum::accumulate;
pub use predicted_checksum::{
    ChecksumChange, ChecksumMultiples, MultipleChecksums, SumChecksum, predict_checksum,
};
pub use repair::RepairEquation;
pub use spec::CodeSpec;
