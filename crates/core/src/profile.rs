//! Profiles: which code, in which layout, on which tier.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use striate_codec::{Code, CodecError};

/// The parameters of a code, as users write them. [`CodeSpec::build`] makes the generator matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeSpec {
    /// `replica(n)`: n full copies. `none` is `replica(1)`.
    Replica {
        /// Number of copies.
        copies: usize,
    },
    /// `rs(k,r)`: Reed–Solomon, any k of k+r chunks suffice.
    Rs {
        /// Data chunks k.
        data: usize,
        /// Parity chunks r.
        parity: usize,
    },
    /// `lrc(k,l,g)`: Azure's local reconstruction code.
    Lrc {
        /// Data chunks k.
        data: usize,
        /// Local groups l, one local parity each.
        local: usize,
        /// Global parities g.
        global: usize,
    },
}

/// How a block becomes chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// One block is one stripe, cut into k data chunks (self-coding, EC-Store and EC-Cache).
    #[default]
    Split,
    /// Objects are appended to partitions; k partitions and their parities form a stripe (SoCC'17).
    Packed,
}

/// Where chunks live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Durable sites.
    #[default]
    Disk,
    /// Memory sites in front of an origin (EC-Cache).
    Memory,
}

/// A code, a layout and a tier. Written like `rs(4,2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Profile {
    /// The code.
    pub code: CodeSpec,
    /// The layout.
    pub layout: Layout,
    /// The tier.
    pub tier: Tier,
}

/// Why a text is not a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a profile: {reason}; write rs(4,2), lrc(6,2,2), replica(3) or none")]
pub struct ProfileError {
    text: String,
    reason: String,
}

impl CodeSpec {
    /// The code's generator matrix.
    ///
    /// # Errors
    /// When the parameters do not describe a code (see the constructors of [`Code`]).
    pub fn build(self) -> Result<Code, CodecError> {
        match self {
            Self::Replica { copies } => Code::replica(copies),
            Self::Rs { data, parity } => Code::rs(data, parity),
            Self::Lrc { data, local, global } => Code::lrc(data, local, global),
        }
    }

    /// Chunks of a stripe, n.
    pub fn chunk_count(self) -> usize {
        match self {
            Self::Replica { copies } => copies,
            Self::Rs { data, parity } => data + parity,
            Self::Lrc { data, local, global } => data + local + global,
        }
    }

    /// Data chunks of a stripe, k.
    pub fn data_count(self) -> usize {
        match self {
            Self::Replica { .. } => 1,
            Self::Rs { data, .. } | Self::Lrc { data, .. } => data,
        }
    }

    /// How many arbitrary chunks may be lost: n−1 copies, r parities, or g+1 for an LRC.
    pub fn tolerance(self) -> usize {
        match self {
            Self::Replica { copies } => copies.saturating_sub(1),
            Self::Rs { parity, .. } => parity,
            Self::Lrc { global, .. } => global + 1,
        }
    }
}

impl Profile {
    /// The profile of a cluster that was given `directories` directories and no other wish.
    ///
    /// | directories | profile | may lose | stored per byte |
    /// |--|--|--|--|
    /// | 1 | `none` | 0 | 1.00 |
    /// | 2 | `replica(2)` | 1 | 2.00 |
    /// | 3 | `rs(2,1)` | 1 | 1.50 |
    /// | 4 | `rs(2,2)` | 2 | 2.00 |
    /// | 5 to 7 | `rs(n−2,2)` | 2 | 1.67 to 1.40 |
    /// | 8 to 11 | `rs(n−3,3)` | 3 | 1.60 to 1.38 |
    /// | 12 to 14 | `rs(n−4,4)` | 4 | 1.50 to 1.40 |
    /// | more | `rs(10,4)` | 4 | 1.40 |
    pub fn for_directories(directories: usize) -> Self {
        let rs = |parity| CodeSpec::Rs { data: directories - parity, parity };
        let code = match directories {
            0 | 1 => CodeSpec::Replica { copies: 1 },
            2 => CodeSpec::Replica { copies: 2 },
            3 => rs(1),
            4..=7 => rs(2),
            8..=11 => rs(3),
            12..=14 => rs(4),
            _ => CodeSpec::Rs { data: 10, parity: 4 },
        };
        Self { code, layout: Layout::Split, tier: Tier::Disk }
    }
}

impl fmt::Display for CodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica { copies: 1 } => f.write_str("none"),
            Self::Replica { copies } => write!(f, "replica({copies})"),
            Self::Rs { data, parity } => write!(f, "rs({data},{parity})"),
            Self::Lrc { data, local, global } => write!(f, "lrc({data},{local},{global})"),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let fail = |reason: &str| ProfileError { text: text.to_owned(), reason: reason.to_owned() };
        let code = parse_code(text.trim()).map_err(|reason| fail(&reason))?;
        code.build().map_err(|error| fail(&error.to_string()))?;
        Ok(Self { code, layout: Layout::Split, tier: Tier::Disk })
    }
}

fn parse_code(text: &str) -> Result<CodeSpec, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(CodeSpec::Replica { copies: 1 });
    }
    let (name, rest) = text.split_once('(').ok_or("it has no parameters")?;
    let list = rest.strip_suffix(')').ok_or("the closing bracket is missing")?;
    let numbers = list
        .split(',')
        .map(|number| number.trim().parse::<usize>().map_err(|_| format!("{number:?} is not a number")))
        .collect::<Result<Vec<_>, _>>()?;
    match (name.trim().to_ascii_lowercase().as_str(), numbers.as_slice()) {
        ("replica", &[copies]) => Ok(CodeSpec::Replica { copies }),
        ("rs", &[data, parity]) => Ok(CodeSpec::Rs { data, parity }),
        ("lrc", &[data, local, global]) => Ok(CodeSpec::Lrc { data, local, global }),
        ("replica" | "rs" | "lrc", _) => Err("the number of parameters is wrong".to_owned()),
        (other, _) => Err(format!("there is no code named {other:?}")),
    }
}

impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

impl TryFrom<String> for Profile {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_profile_uses_at_most_the_directories_it_has_and_survives_its_text() {
        for directories in 1..40 {
            let profile = Profile::for_directories(directories);
            assert!(profile.code.chunk_count() <= directories.max(1));
            assert_eq!(profile.to_string().parse(), Ok(profile));
            assert_eq!(profile.code.build().unwrap().n(), profile.code.chunk_count());
        }
    }

    #[test]
    fn the_documented_table_holds() {
        let table = [(1, "none"), (2, "replica(2)"), (3, "rs(2,1)"), (4, "rs(2,2)"), (6, "rs(4,2)")];
        for (directories, text) in
            table.into_iter().chain([(8, "rs(5,3)"), (12, "rs(8,4)"), (30, "rs(10,4)")])
        {
            assert_eq!(Profile::for_directories(directories).to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_text_the_reason_and_the_way_out() {
        for text in ["", "rs", "rs(4,2", "rs(4)", "rs(a,2)", "raid(5)", "rs(0,2)", "rs(250,10)"] {
            let error = text.parse::<Profile>().unwrap_err().to_string();
            assert!(error.contains("write rs(4,2)") && error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
