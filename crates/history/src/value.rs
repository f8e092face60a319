//! Values that can be recognised by their bytes.
//!
//! Bytes 8i to 8i+7 of a value are its id and i, mixed by an invertible function (the finaliser of SplitMix64, Steele,
//! Lea and Flood, OOPSLA'14). So any aligned eight bytes determine the id, all others must agree, and no two values
//! share eight bytes at the same offset.

use bytes::Bytes;

/// SplitMix64's increment: 2⁶⁴ divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD: usize = 8;

/// The bytes of an object, by name: `len` bytes that are generated from `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// Unique id within a history.
    pub id: u64,
    /// Length in bytes. Values shorter than [`Value::MIN_LEN`] cannot be recognised.
    pub len: u64,
}

impl Value {
    /// The minimum length in bytes of a value that can be recognised by its bytes.
    pub const MIN_LEN: u64 = WORD as u64;

    /// Returns all bytes.
    pub fn bytes(self) -> Bytes {
        self.range(0, self.len as usize)
    }

    /// Returns the `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is past the end of the value.
    pub fn range(self, offset: u64, len: usize) -> Bytes {
        assert!(offset + len as u64 <= self.len, "{offset}+{len} is past the end of {self}");
        generate(self.id, offset, len).into()
    }

    /// Returns the value with these bytes, if there is one.
    pub fn recognise(bytes: &[u8]) -> Option<Self> {
        let id = Self::recognise_range(0, bytes)?;
        Some(Self { id, len: bytes.len() as u64 })
    }

    /// Returns the id of the value that has these bytes from `offset` on. `None` means that no value has, or that the
    /// range contains no eight bytes at a multiple of eight; then only [`Value::holds`] can decide.
    pub fn recognise_range(offset: u64, bytes: &[u8]) -> Option<u64> {
        let skip = (WORD as u64 - offset % WORD as u64) % WORD as u64;
        let word = bytes.get(skip as usize..)?.first_chunk::<WORD>()?;
        let index = (offset + skip) / WORD as u64;
        let id = unmix(u64::from_le_bytes(*word)).wrapping_sub(GAMMA.wrapping_mul(index + 1));
        (generate(id, offset, bytes.len()) == bytes).then_some(id)
    }

    /// Whether the value has these bytes from `offset` on.
    pub fn holds(self, offset: u64, bytes: &[u8]) -> bool {
        let inside = offset + bytes.len() as u64 <= self.len;
        inside && generate(self.id, offset, bytes.len()) == bytes
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "value {} ({} bytes)", self.id, self.len)
    }
}

fn generate(id: u64, offset: u64, len: usize) -> Vec<u8> {
    let (first, skip) = (offset / WORD as u64, offset as usize % WORD);
    let mut bytes = Vec::with_capacity(skip + len + WORD);
    for index in (first..).take((skip + len).div_ceil(WORD)) {
        bytes.extend_from_slice(&mix(id.wrapping_add(GAMMA.wrapping_mul(index + 1))).to_le_bytes());
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The inverse of [`mix`]: the factors' inverses modulo 2⁶⁴, and the shifts undone.
fn unmix(word: u64) -> u64 {
    let word = (word ^ word >> 31 ^ word >> 62).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let word = (word ^ word >> 27 ^ word >> 54).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ word >> 30 ^ word >> 60
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_is_recognised_by_its_bytes(id: u64, len in 8_u64..200) {
            let value = Value { id, len };
            prop_assert_eq!(Value::recognise(&value.bytes()), Some(value));
        }

        #[test]
        fn a_range_tells_whose_it_is(id: u64, offset in 0_u64..100, len in 0_usize..60) {
            let value = Value { id, len: 200 };
            let bytes = value.range(offset, len);
            prop_assert!(value.holds(offset, &bytes));
            prop_assert_eq!(&bytes[..], &value.bytes()[offset as usize..][..len]);
            if len >= 15 {
                prop_assert_eq!(Value::recognise_range(offset, &bytes), Some(id));
            }
        }

        #[test]
        fn one_changed_byte_is_another_value_or_none(id: u64, len in 16_u64..100, at: usize, flip in 1_u8..) {
            let value = Value { id, len };
            let mut bytes = value.bytes().to_vec();
            bytes[at % len as usize] ^= flip;
            prop_assert!(!value.holds(0, &bytes));
            prop_assert_eq!(Value::recognise(&bytes), None);
        }

        #[test]
        fn bytes_from_another_offset_are_not_the_value(id: u64, offset in 1_u64..64) {
            let value = Value { id, len: 200 };
            prop_assert_ne!(Value::recognise_range(0, &value.range(offset, 100)), Some(id));
        }
    }
}
