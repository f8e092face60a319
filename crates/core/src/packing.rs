//! The packing setting of a store or a bucket: whether small objects are packed, and how long partitions are.
//!
//! Written as `off`, `auto`, or the longest partition, such as `8MiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a partition unless configured otherwise.
pub const PARTITION_LEN: u32 = 32 << 20;
/// Minimum number of sites for `auto` to pack. A packed object is on one site, and in a smaller store too few others
/// can stand in for it.
pub const FEWEST_SITES: usize = 6;
/// Maximum length of a partition, in MiB.
const MOST_MIB: u32 = 64;

/// Whether small objects are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Packing {
    /// No packing. Objects that are packed already stay packed.
    Off,
    /// Pack into partitions of [`PARTITION_LEN`] where a coding group can be spread over [`FEWEST_SITES`].
    #[default]
    Auto,
    /// Pack into partitions of at most this many bytes, a power of two from 1 to 64 MiB.
    Partitions(u32),
}

/// A text that is not a packing setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither off nor auto nor a power of two from 1MiB to 64MiB")]
pub struct PackingError(String);

impl Packing {
    /// Returns the longest partition in bytes, or `None` if packing is off.
    pub fn partition_len(self) -> Option<u32> {
        match self {
            Self::Off => None,
            Self::Auto => Some(PARTITION_LEN),
            Self::Partitions(len) => Some(len),
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Partitions(len) => write!(f, "{}MiB", len >> 20),
        }
    }
}

impl FromStr for Packing {
    type Err = PackingError;

    fn from_str(text: &str) -> Result<Self, PackingError> {
        match text {
            "off" => return Ok(Self::Off),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let mib = text.strip_suffix("MiB").and_then(|number| number.parse::<u32>().ok());
        let mib = mib.filter(|mib| mib.is_power_of_two() && *mib <= MOST_MIB);
        mib.map(|mib| Self::Partitions(mib << 20)).ok_or_else(|| PackingError(text.to_owned()))
    }
}

impl From<Packing> for String {
    fn from(packing: Packing) -> Self {
        packing.to_string()
    }
}

impl TryFrom<String> for Packing {
    type Error = PackingError;

    fn try_from(text: String) -> Result<Self, PackingError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_parses_back_from_its_text() {
        let lens = (0..=6).map(|power| Packing::Partitions(1 << (20 + power)));
        for packing in [Packing::Off, Packing::Auto].into_iter().chain(lens) {
            assert_eq!(packing.to_string().parse(), Ok(packing));
        }
        assert_eq!("auto".parse::<Packing>().unwrap().partition_len(), Some(32 << 20));
        assert_eq!("8MiB".parse::<Packing>().unwrap().partition_len(), Some(8 << 20));
        assert_eq!("off".parse::<Packing>().unwrap().partition_len(), None);
    }

    #[test]
    fn partitions_are_powers_of_two() {
        for wrong in ["", "on", "3MiB", "128MiB", "0MiB", "8", "8KiB", "-1MiB"] {
            assert!(wrong.parse::<Packing>().unwrap_err().to_string().contains("64MiB"), "{wrong}");
        }
    }
}
