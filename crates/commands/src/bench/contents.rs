//! The contents of objects: a function of key and seed, so that every process can check what any other wrote.
//!
//! All contents come from one pool of random bytes, from an offset that depends on the key, and wrap around at the
//! pool's end. They do not compress, and cost no computation.

use bytes::{Bytes, BytesMut};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// Size of the pool in bytes.
const POOL_LEN: usize = 32 << 20;
/// Upper bound of the offset at which contents start, so that contents of up to the remaining length are contiguous.
const START_BELOW: u64 = 16 << 20;

/// The contents of all objects. Cheap to clone.
#[derive(Clone)]
pub struct Contents {
    pool: Bytes,
    seed: u64,
}

/// A check of bytes as they arrive.
pub struct Check<'a> {
    contents: &'a Contents,
    start: usize,
    checked_len: u64,
}

impl Contents {
    /// Creates the contents for this seed.
    pub fn new(seed: u64) -> Self {
        let mut pool = vec![0; POOL_LEN];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut pool);
        Self { pool: pool.into(), seed }
    }

    /// Returns the first `len` bytes of a key's contents.
    pub fn body(&self, key: &str, len: u64) -> Bytes {
        let (start, mut rest) = (self.start(key), len as usize);
        if start + rest <= POOL_LEN {
            return self.pool.slice(start..start + rest);
        }
        let mut body = BytesMut::with_capacity(rest);
        let mut at = start;
        while rest > 0 {
            let piece = rest.min(POOL_LEN - at);
            body.extend_from_slice(&self.pool[at..at + piece]);
            (at, rest) = (0, rest - piece);
        }
        body.freeze()
    }

    /// Creates a check of a key's contents, from byte `from` on.
    pub fn check(&self, key: &str, from: u64) -> Check<'_> {
        Check { contents: self, start: self.start(key), checked_len: from }
    }

    /// Returns the offset at which a key's contents start in the pool (FNV-1a).
    fn start(&self, key: &str) -> usize {
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325 ^ self.seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        ((hash ^ hash >> 32) % START_BELOW) as usize
    }
}

impl Check<'_> {
    /// Compares the bytes that come next.
    ///
    /// # Errors
    /// If they differ: the offset in the object of the first byte of the piece that differs.
    pub fn next(&mut self, mut bytes: &[u8]) -> Result<(), u64> {
        while !bytes.is_empty() {
            let at = (self.start as u64 + self.checked_len) as usize % POOL_LEN;
            let (piece, rest) = bytes.split_at(bytes.len().min(POOL_LEN - at));
            if *piece != self.contents.pool[at..at + piece.len()] {
                return Err(self.checked_len);
            }
            self.checked_len += piece.len() as u64;
            bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_pass_their_check_in_any_pieces_and_no_others_do() {
        let (contents, elsewhere) = (Contents::new(1), Contents::new(1));
        for len in [0, 1, 100_000, POOL_LEN as u64 * 2 + 5] {
            let body = contents.body("a", len);
            assert_eq!(body.len() as u64, len);
            for from in [0, len / 3] {
                let mut check = elsewhere.check("a", from);
                assert!(body[from as usize..].chunks(70_001).all(|piece| check.next(piece) == Ok(())));
                assert_eq!(check.checked_len, len);
            }
        }
        let body = contents.body("a", 1_000);
        assert!(
            contents.check("b", 0).next(&body).is_err()
                && Contents::new(2).check("a", 0).next(&body).is_err()
        );
        let mut damaged = body.to_vec();
        damaged[700] ^= 1;
        let mut check = contents.check("a", 0);
        assert_eq!(check.next(&damaged[..600]), Ok(()));
        assert_eq!(check.next(&damaged[600..]), Err(600));
    }
}
