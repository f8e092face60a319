//! Encoding: the parities of a stripe, alone or together with the checksums of all its chunks.

use crate::checksum::GranuleChecksums;
use crate::code::Code;
use crate::error::CodecError;
use crate::kernel::{Kernel, Stores};

impl Code {
    /// Computes the n−k parities from the k data chunks. All chunks have the same length in bytes, any length.
    /// Overwrites the parities.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CodecError> {
        self.encode_with(Kernel::best(), Stores::Cached, data, parity)
    }

    /// [`Code::encode`] on a given kernel, with given stores.
    pub fn encode_with(
        &self,
        kernel: &Kernel,
        stores: Stores,
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
    ) -> Result<(), CodecError> {
        self.check_stripe(data, parity)?;
        kernel.dot(&self.0.encoder, data, parity, stores);
        Ok(())
    }

    /// Computes the parities and, in the same pass over memory, the plain CRC-32C of every granule of `granule_len`
    /// bytes of all n chunks.
    ///
    /// # Panics
    /// If `granule_len` is zero.
    pub fn encode_and_checksum(
        &self,
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
        granule_len: usize,
    ) -> Result<GranuleChecksums, CodecError> {
        let len = self.check_stripe(data, parity)?;
        let mut checksums = GranuleChecksums::new(self.n(), len, granule_len);
        if parity.is_empty() {
            for (chunk, bytes) in data.iter().enumerate() {
                checksums.append_all(chunk, bytes);
            }
        } else {
            Kernel::best().dot_and_checksum(&self.0.encoder, data, parity, &mut checksums);
        }
        Ok(checksums)
    }

    /// Checks the shape of k data chunks and n−k parities, and returns their common length.
    fn check_stripe(&self, data: &[&[u8]], parity: &[&mut [u8]]) -> Result<usize, CodecError> {
        check_count("data", self.k(), data.len())?;
        check_count("parity", self.parity_count(), parity.len())?;
        let len = data[0].len();
        check_lengths(len, data.iter().map(|chunk| chunk.len()))?;
        check_lengths(len, parity.iter().map(|chunk| chunk.len()))?;
        Ok(len)
    }
}

pub(crate) fn check_count(what: &'static str, expected: usize, actual: usize) -> Result<(), CodecError> {
    if expected == actual { Ok(()) } else { Err(CodecError::ChunkCount { what, expected, actual }) }
}

pub(crate) fn check_lengths(expected: usize, lengths: impl Iterator<Item = usize>) -> Result<(), CodecError> {
    for actual in lengths {
        if actual != expected {
            return Err(CodecError::ChunkLength { expected, actual });
        }
    }
    Ok(())
}
