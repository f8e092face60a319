//! Identifiers. Each has a type of its own, so that they cannot be confused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The id of a cluster: random, created at the first start and written to every directory's identity file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(pub u128);

/// A storage site. The metadata store numbers sites from 1 when it admits them, and never reuses a number for another
/// disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteId(pub u32);

/// The label of a failure domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RackId(pub String);

/// A stripe: one code word of n chunks.
///
/// The high 64 bits number the writer (a client process with a lease, counted by the metadata store); the low 64 bits
/// are that writer's own sequence. Writers therefore name stripes without coordination, and one intent row can reserve
/// a range of names.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u128);

/// Number of a placement within its stripe. Every write, move or repair of a chunk takes a new one from the stripe
/// record, so a late delete can never hit a newer chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u32);

/// Epoch of a background executor's lease. Sites persist the highest epoch they have seen and refuse older ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FencingEpoch(pub u64);

impl FencingEpoch {
    /// Used without a lease: the deleter wrote these chunks itself, and no record names them or ever will. Sites never
    /// refuse it, and it fences no process.
    pub const NONE: Self = Self(0);
}

impl StripeId {
    /// Returns the name of the `sequence`-th stripe of `writer`.
    pub fn new(writer: u64, sequence: u64) -> Self {
        Self(u128::from(writer) << 64 | u128::from(sequence))
    }

    /// Returns the writer that named this stripe.
    pub fn writer(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Returns the stripe's number in its writer's sequence.
    pub fn sequence(self) -> u64 {
        self.0 as u64
    }

    /// Encodes as big-endian bytes, which sort as the numbers do.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Decodes the bytes of [`StripeId::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl Generation {
    /// Returns the generation after this one.
    ///
    /// # Panics
    /// After 2³² placements of one chunk.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a stripe has fewer than 2^32 placements"))
    }
}

impl fmt::Display for StripeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.writer(), self.sequence())
    }
}

impl fmt::Debug for StripeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for StripeId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (writer, sequence) = text.split_once('-')?;
            let writer = u64::from_str_radix(writer, 16).ok()?;
            Some(Self::new(writer, u64::from_str_radix(sequence, 16).ok()?))
        };
        parse().ok_or_else(|| format!("{text:?} is not a stripe id (writer-sequence in hexadecimal)"))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ClusterId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for ClusterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| format!("{text:?} is not a cluster id (32 hexadecimal digits)"))
    }
}

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl RackId {
    /// Returns a rack of its own for a site whose rack is unknown.
    pub fn of_unknown(site: SiteId) -> Self {
        Self(format!("unknown, of site {site}"))
    }
}

impl fmt::Display for RackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stripe_ids_survive_text_and_bytes_and_sort_by_writer_then_sequence(a: (u64, u64), b: (u64, u64)) {
            let (x, y) = (StripeId::new(a.0, a.1), StripeId::new(b.0, b.1));
            prop_assert_eq!(x.to_string().parse::<StripeId>(), Ok(x));
            prop_assert_eq!(StripeId::from_bytes(x.to_bytes()), x);
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.to_bytes().cmp(&y.to_bytes()), a.cmp(&b));
        }

        #[test]
        fn cluster_ids_survive_text(number: u128) {
            prop_assert_eq!(ClusterId(number).to_string().parse::<ClusterId>(), Ok(ClusterId(number)));
        }
    }
}
