//! A million blocks that need no memory, with real code words.
//!
//! All data chunks are multiples, in GF(2⁸), of one base pattern: data chunk i of stripe s is a(s,i)·P, with the
//! scalar a derived from the names. A code is linear, so a parity is the pattern times the same combination of the
//! scalars. Every chunk is thus one of 256 precomputed strings, or a prefix of one. Encode and decode work on it as
//! on any bytes, and block checksums need little reading. A chunk in the wrong place is detected unless its scalar
//! happens to be the right one (1 in 255).

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use striate_codec::{Code, accumulate, crc32c, crc32c_append, crc32c_combine, gf256};
use striate_core::{ChunkId, ChunkRange, Generation, SiteId, StripeId};
use striate_meta::records::{Block, Location, Stripe};
use striate_site::{ChunkInfo, SiteError};

/// Writer in the names of generated stripes; no real writer's number gets that high.
pub const WRITER: u64 = u64::MAX;

/// Stripes of one code and size that exist without being stored, and the places of their chunks.
#[derive(Debug)]
pub struct GeneratedStripes {
    code: Code,
    profile: String,
    /// Maximum chunk length, in bytes.
    chunk_len: u32,
    /// Chunk length of each stripe, in bytes.
    chunk_lens: Vec<u32>,
    /// The n sites of each stripe, one stripe after the other.
    sites: Vec<u32>,
    /// Chunks and bytes on each site.
    stored: BTreeMap<u32, (u64, u64)>,
    /// Every multiple of the pattern.
    multiples: Vec<PatternMultiple>,
    /// Coefficients of each chunk over the data chunks.
    rows: Vec<Vec<u8>>,
}

/// A multiple of the pattern, and checksums of its prefixes.
#[derive(Debug)]
struct PatternMultiple {
    bytes: Bytes,
    /// Checksum of all bytes.
    crc32c: u32,
    /// Checksums of the first 0, 1, 2 … times [`CHECKPOINT`] bytes.
    prefix_crc32c: Vec<u32>,
}

/// Interval between a multiple's recorded checksums, in bytes.
const CHECKPOINT: usize = 4_096;

impl PatternMultiple {
    fn new(scalar: u8, pattern: &[u8]) -> Self {
        let mut bytes = vec![0; pattern.len()];
        accumulate(scalar, pattern, &mut bytes);
        let mut prefix_crc32c = vec![0];
        for piece in bytes.chunks_exact(CHECKPOINT) {
            let before = prefix_crc32c[prefix_crc32c.len() - 1];
            prefix_crc32c.push(crc32c_append(before, piece));
        }
        Self { crc32c: crc32c(&bytes), prefix_crc32c, bytes: bytes.into() }
    }

    /// Returns the checksum of the first `len` bytes.
    fn crc32c_of(&self, len: u32) -> u32 {
        let len = len as usize;
        if len == self.bytes.len() {
            return self.crc32c;
        }
        let noted = len / CHECKPOINT;
        let rest = &self.bytes[noted * CHECKPOINT..len];
        crc32c_append(self.prefix_crc32c[noted], rest)
    }
}

impl GeneratedStripes {
    /// Creates an empty set of stripes for blocks of at most `block_len` bytes, which the code's k must divide.
    ///
    /// # Panics
    /// If k does not divide the length.
    pub fn new(profile: &str, code: Code, block_len: u32) -> Self {
        let chunk_len = block_len / code.k() as u32;
        assert_eq!(chunk_len * code.k() as u32, block_len, "{profile} cuts a block into equal chunks");
        let mut pattern = vec![0; chunk_len as usize];
        SmallRng::seed_from_u64(0x5eed).fill_bytes(&mut pattern);
        let multiples = (0..=255).map(|scalar| PatternMultiple::new(scalar, &pattern)).collect();
        let rows = (0..code.n()).map(|chunk| code.row(chunk)).collect();
        let (chunk_lens, sites, stored) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { code, profile: profile.to_owned(), chunk_len, chunk_lens, sites, stored, multiples, rows }
    }

    /// Adds a stripe for a block of `len` bytes, rounded up to a multiple of k, on these n sites; returns its name.
    ///
    /// # Panics
    /// Unless there are n sites and `len` is from 1 to the maximum block length.
    pub fn add(&mut self, sites: &[SiteId], len: u32) -> StripeId {
        assert_eq!(sites.len(), self.code.n(), "a stripe has n sites");
        let chunk_len = len.div_ceil(self.code.k() as u32);
        assert!((1..=self.chunk_len).contains(&chunk_len), "a block of {len} bytes");
        let sequence = self.len() as u64;
        self.chunk_lens.push(chunk_len);
        for site in sites {
            self.sites.push(site.0);
            let (chunks, bytes) = self.stored.entry(site.0).or_default();
            *chunks += 1;
            *bytes += u64::from(chunk_len);
        }
        StripeId::new(WRITER, sequence)
    }

    /// Returns the number of stripes.
    pub fn len(&self) -> usize {
        self.chunk_lens.len()
    }

    /// Returns true if there are no stripes.
    pub fn is_empty(&self) -> bool {
        self.chunk_lens.is_empty()
    }

    /// Returns the chunk length of a stripe in bytes, if the stripe is generated.
    pub fn chunk_len(&self, stripe: StripeId) -> Option<u32> {
        let is_ours = stripe.writer() == WRITER;
        self.chunk_lens.get(stripe.sequence() as usize).copied().filter(|_| is_ours)
    }

    /// Returns the block of stripe `sequence`, as an object's record would name it.
    pub fn block(&self, sequence: usize) -> Block {
        let stripe = StripeId::new(WRITER, sequence as u64);
        let chunk_len = self.chunk_lens[sequence];
        let crcs = (0..self.code.k()).map(|index| self.multiple(sequence as u64, index).crc32c_of(chunk_len));
        let crc32c = crcs.fold(0, |crc, next| crc32c_combine(crc, next, u64::from(chunk_len)));
        let len = chunk_len * self.code.k() as u32;
        Block { stripe: Bytes::copy_from_slice(&stripe.to_bytes()), len, crc32c }
    }

    /// Returns the record of stripe `sequence`.
    pub fn record(&self, sequence: usize) -> Stripe {
        let chunk_len = self.chunk_lens[sequence];
        let location = |(index, site): (usize, &u32)| Location {
            site: *site,
            generation: 1,
            crc32c: self.multiple(sequence as u64, index).crc32c_of(chunk_len),
            ..Location::default()
        };
        Stripe {
            profile: self.profile.clone(),
            chunk_len,
            locations: self.sites_of(sequence).iter().enumerate().map(location).collect(),
            generation: 1,
            len: u64::from(chunk_len) * self.code.k() as u64,
            ..Stripe::default()
        }
    }

    /// Returns the bytes of a range, if the chunk is generated and on `site`.
    ///
    /// # Errors
    /// As a chunk store: missing, or a range past the end.
    pub fn read(&self, site: SiteId, range: ChunkRange) -> Result<Bytes, SiteError> {
        let ChunkId { stripe, index, .. } = range.chunk;
        let (sequence, index) = (stripe.sequence(), usize::from(index));
        let chunk_len = self.chunk_len(stripe).ok_or(SiteError::Missing(range.chunk))?;
        if !self.has(site, range.chunk) {
            return Err(SiteError::Missing(range.chunk));
        }
        let end = u64::from(range.offset) + u64::from(range.len);
        if end > u64::from(chunk_len) {
            return Err(SiteError::BadRequest(format!("a range to {end} of {chunk_len} bytes")));
        }
        Ok(self.multiple(sequence, index).bytes.slice(range.offset as usize..end as usize))
    }

    /// Returns the number of chunks on a site, and their bytes.
    pub fn stored_at(&self, site: SiteId) -> (u64, u64) {
        self.stored.get(&site.0).copied().unwrap_or_default()
    }

    /// Returns true if this is one of the chunks on `site`.
    pub fn has(&self, site: SiteId, chunk: ChunkId) -> bool {
        let is_known = self.chunk_len(chunk.stripe).is_some() && chunk.generation.0 == 1;
        is_known
            && self.sites_of(chunk.stripe.sequence() as usize).get(usize::from(chunk.index)) == Some(&site.0)
    }

    /// Iterates over the chunks on a site in order, starting at `from`.
    pub fn chunks_of(&self, site: SiteId, from: Option<ChunkId>) -> impl Iterator<Item = ChunkInfo> {
        let first = match from {
            Some(from) if from.stripe.writer() == WRITER => from.stripe.sequence(),
            _ => 0,
        };
        let of_stripe = move |sequence: u64| {
            let here =
                self.sites_of(sequence as usize).iter().enumerate().filter(move |(_, at)| **at == site.0);
            here.map(move |(index, _)| {
                let stripe = StripeId::new(WRITER, sequence);
                let chunk = ChunkId { stripe, index: index as u8, generation: Generation(1) };
                let len = self.chunk_lens[sequence as usize];
                ChunkInfo { chunk, len, crc32c: self.multiple(sequence, index).crc32c_of(len) }
            })
        };
        let chunks = (first..self.len() as u64).flat_map(of_stripe);
        chunks.filter(move |info| from.is_none_or(|from| info.chunk >= from))
    }

    fn sites_of(&self, sequence: usize) -> &[u32] {
        &self.sites[sequence * self.code.n()..][..self.code.n()]
    }

    /// Returns the multiple of which the chunk is a prefix.
    fn multiple(&self, sequence: u64, index: usize) -> &PatternMultiple {
        let products =
            self.rows[index].iter().enumerate().map(|(data, &g)| gf256::mul(g, scalar(sequence, data)));
        let scalar = products.fold(0, |sum, product| sum ^ product);
        &self.multiples[usize::from(scalar)]
    }
}

/// Returns the scalar of a data chunk: 1 to 255.
fn scalar(sequence: u64, data_index: usize) -> u8 {
    let hash = (sequence << 8 | data_index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u8 % 255 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For any length, the chunks equal the codec's encoding of the block, and the block has its recorded checksum.
    #[test]
    fn generated_chunks_are_code_words_with_the_recorded_checksums() {
        for profile in ["rs(2,2)", "rs(4,2)", "lrc(6,2,2)", "replica(3)"] {
            let code: Code = profile.parse().unwrap();
            let sites: Vec<SiteId> = (1..=code.n() as u32).map(SiteId).collect();
            let mut stripes = GeneratedStripes::new(profile, code.clone(), 60_000);
            let lens = [60_000, 1, 24_576, 59_999, 24_577, 3];
            lens.iter().for_each(|&len| assert_eq!(stripes.add(&sites, len).writer(), WRITER));
            for (sequence, len) in lens.into_iter().enumerate() {
                let record = stripes.record(sequence);
                assert!((u64::from(len)..u64::from(len) + code.k() as u64).contains(&record.len));
                let chunk = |index: usize| {
                    let stripe = StripeId::new(WRITER, sequence as u64);
                    let chunk = ChunkId { stripe, index: index as u8, generation: Generation(1) };
                    let range = ChunkRange { chunk, offset: 0, len: record.chunk_len };
                    stripes.read(SiteId(record.locations[index].site), range).unwrap()
                };
                let chunks: Vec<Bytes> = (0..code.n()).map(chunk).collect();
                let data: Vec<&[u8]> = chunks[..code.k()].iter().map(|chunk| &chunk[..]).collect();
                let mut parity = vec![vec![0; record.chunk_len as usize]; code.parity_count()];
                code.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())
                    .unwrap();
                assert_eq!(parity, chunks[code.k()..]);
                for (chunk, location) in chunks.iter().zip(&record.locations) {
                    assert_eq!(crc32c(chunk), location.crc32c);
                }
                assert_eq!(crc32c(&data.concat()), stripes.block(sequence).crc32c);
            }
            let (first, fourth) = (stripes.block(0), stripes.block(3));
            assert_ne!(first.crc32c, fourth.crc32c);
        }
    }

    #[test]
    fn a_site_has_only_its_own_chunks() {
        let mut stripes = GeneratedStripes::new("rs(2,2)", "rs(2,2)".parse().unwrap(), 100);
        let stripe = stripes.add(&[4, 3, 2, 1].map(SiteId), 100);
        let range = |index, generation, len| {
            let chunk = ChunkId { stripe, index, generation: Generation(generation) };
            ChunkRange { chunk, offset: 0, len }
        };
        assert!(stripes.read(SiteId(3), range(1, 1, 50)).is_ok());
        for (site, range) in [(4, range(1, 1, 50)), (3, range(1, 2, 50)), (3, range(9, 1, 50))] {
            assert_eq!(stripes.read(SiteId(site), range), Err(SiteError::Missing(range.chunk)));
        }
        assert!(matches!(stripes.read(SiteId(3), range(1, 1, 51)), Err(SiteError::BadRequest(_))));
    }
}
