//! The formats of records and chunks, and which of them a store writes.
//!
//! Every release reads all formats of the releases before it. The formats that are *written* are decided for the whole
//! store: the formats *in force* are in the cluster's row, and an operator raises them once every process reads the
//! newer ones (`striate admin upgrade finalize`; the gate is `striate_control::upgrade`). Until then nothing is written
//! that the previous release cannot read, so the cluster can be downgraded; afterwards older programs refuse to start.
//!
//! To add a format, add a row to [`RECORDS`] or [`CHUNKS`] and check [`FormatsInForce`] before writing it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::chunk::{GRANULE_LEN, SMALL_GRANULE_LEN};

/// A format, with the release that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Format number, from 1 without gaps.
    pub number: u32,
    /// The first release that reads it.
    pub release: &'static str,
    /// What the format adds, for operators.
    pub brings: &'static str,
}

/// The formats of the metadata's records that this program reads, in ascending order.
pub const RECORDS: &[Format] = &[
    Format { number: 1, release: "0.1.0", brings: "the first records" },
    Format {
        number: 2,
        release: "0.2.0",
        brings: "content versions of chunks, stripes of more than 4 GiB, open changes of stripes",
    },
    Format { number: 3, release: "0.2.0", brings: "small objects packed into shared partitions" },
    Format { number: 4, release: "0.2.0", brings: "copies of partitions that are read often" },
    Format {
        number: 5,
        release: "0.5.0",
        brings: "buckets of S3 stores elsewhere, and buckets in memory only",
    },
    Format {
        number: 6,
        release: "0.5.0",
        brings: "wide stripes of cold partitions, and profiles of storage classes",
    },
];

/// First record format in which objects may be packed.
pub const PACKED: u32 = 3;

/// First record format in which partitions may have copies.
pub const COPIES: u32 = 4;

/// First record format in which buckets may be in another S3 store or in memory only.
pub const NOT_ON_DISKS: u32 = 5;

/// First record format in which partitions may be members of wide stripes.
pub const WIDE: u32 = 6;

/// The formats of chunks and their segments on sites that this program reads, in ascending order.
pub const CHUNKS: &[Format] = &[
    Format { number: 1, release: "0.1.0", brings: "the first segments" },
    Format {
        number: 2,
        release: "0.2.0",
        brings: "small granules: a small range of a chunk costs one small read of the disk",
    },
];

/// A record format and a chunk format: the newest that a program reads, or those in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Formats {
    /// Number of the record format.
    pub records: u32,
    /// Number of the chunk format.
    pub chunks: u32,
}

impl Formats {
    /// The formats of release 0.1.0, assumed for any process that reports none.
    pub const OLDEST: Self = Self { records: 1, chunks: 1 };
    /// The newest formats that this program reads.
    pub const NEWEST: Self = Self { records: newest(RECORDS), chunks: newest(CHUNKS) };

    /// Decodes the numbers in rows and messages, where 0 means 1: releases before 0.2.0 do not write them.
    pub fn from_numbers(records: u32, chunks: u32) -> Self {
        Self { records: records.max(1), chunks: chunks.max(1) }
    }

    /// Returns whether a program that reads up to these formats also reads `other`.
    pub fn covers(self, other: Self) -> bool {
        self.records >= other.records && self.chunks >= other.chunks
    }

    /// Bytes of the granules whose checksums accompany a chunk to its site.
    pub fn granule_len(self) -> usize {
        if self.chunks < 2 { GRANULE_LEN } else { SMALL_GRANULE_LEN }
    }

    /// Returns the newest formats that both read.
    pub fn common(self, other: Self) -> Self {
        Self { records: self.records.min(other.records), chunks: self.chunks.min(other.chunks) }
    }

    /// Returns the first release that reads these formats, as far as this program knows.
    pub fn release(self) -> &'static str {
        let find_format =
            |table: &[Format], number| table.iter().find(|format| format.number == number).copied();
        let (records, chunks) = (find_format(RECORDS, self.records), find_format(CHUNKS, self.chunks));
        let newest = [records, chunks].into_iter().flatten().max_by_key(|format| parts(format.release));
        match newest {
            Some(format) if Self::NEWEST.covers(self) => format.release,
            _ => "a newer release",
        }
    }

    /// Returns what raising the formats from `self` to `other` adds, for operators.
    pub fn brings(self, other: Self) -> Vec<&'static str> {
        let between = |table: &'static [Format], from, to| {
            table
                .iter()
                .filter(move |format| (from + 1..=to).contains(&format.number))
                .map(|format| format.brings)
        };
        between(RECORDS, self.records, other.records)
            .chain(between(CHUNKS, self.chunks, other.chunks))
            .collect()
    }
}

impl Default for Formats {
    fn default() -> Self {
        Self::OLDEST
    }
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "records {}, chunks {}", self.records, self.chunks)
    }
}

const fn newest(table: &[Format]) -> u32 {
    table[table.len() - 1].number
}

/// The numbers of a release, for comparison.
fn parts(release: &str) -> Vec<u32> {
    release.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// The formats in force, as this process knows them. Cheap to clone; all clones change together.
///
/// A process may learn of a raise late. Until then it writes the older formats, which every process reads.
#[derive(Clone, Debug)]
pub struct FormatsInForce(Arc<AtomicU64>);

impl FormatsInForce {
    /// Starts with `formats` in force.
    pub fn new(formats: Formats) -> Self {
        Self(Arc::new(AtomicU64::new(pack(formats))))
    }

    /// Returns the formats in force.
    pub fn get(&self) -> Formats {
        let packed = self.0.load(Ordering::Acquire);
        Formats { records: (packed >> 32) as u32, chunks: packed as u32 }
    }

    /// Records that `formats` are in force. Formats never go back: older values are ignored.
    pub fn raise(&self, formats: Formats) {
        let higher = |packed: u64| {
            let now = Formats { records: (packed >> 32) as u32, chunks: packed as u32 };
            let next =
                Formats { records: now.records.max(formats.records), chunks: now.chunks.max(formats.chunks) };
            Some(pack(next))
        };
        // This never fails: `higher` always returns a value.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, higher);
    }
}

impl Default for FormatsInForce {
    fn default() -> Self {
        Self::new(Formats::OLDEST)
    }
}

fn pack(formats: Formats) -> u64 {
    u64::from(formats.records) << 32 | u64::from(formats.chunks)
}

/// The store's formats are newer than this program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store has {in_force} in force, this program (striate {}) reads up to {}: start striate {needs} or newer",
    env!("CARGO_PKG_VERSION"), Formats::NEWEST
)]
pub struct NeedsNewerProgram {
    /// The formats in force.
    pub in_force: Formats,
    /// The first release that reads them, as recorded by the process that raised them.
    pub needs: String,
}

impl Formats {
    /// Checks that this program may serve a store with `self` in force. `needs` is the release recorded with them, or
    /// empty if none was recorded.
    ///
    /// # Errors
    /// [`NeedsNewerProgram`] if the store's formats are newer than this program's.
    pub fn check_readable(self, needs: &str) -> Result<(), NeedsNewerProgram> {
        if Self::NEWEST.covers(self) {
            return Ok(());
        }
        let needs = if needs.is_empty() { self.release() } else { needs };
        Err(NeedsNewerProgram { in_force: self, needs: needs.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_count_from_one_without_gaps_in_the_order_of_releases() {
        for table in [RECORDS, CHUNKS] {
            for (index, format) in table.iter().enumerate() {
                assert_eq!(format.number as usize, index + 1);
            }
            assert!(table.is_sorted_by_key(|format| parts(format.release)));
        }
        let own = parts(env!("CARGO_PKG_VERSION"));
        let newest = parts(Formats::NEWEST.release());
        assert!(
            newest <= own || newest[..2] == [own[0], own[1] + 1],
            "a format of a release that is far away"
        );
    }

    #[test]
    fn a_program_serves_what_it_reads_and_names_the_release_for_the_rest() {
        assert_eq!(Formats::from_numbers(0, 0), Formats::OLDEST);
        assert_eq!(Formats::NEWEST.check_readable(""), Ok(()));
        assert_eq!(Formats::OLDEST.check_readable(""), Ok(()));
        let next = Formats { records: Formats::NEWEST.records + 1, ..Formats::NEWEST };
        let error = next.check_readable("7.8.9").unwrap_err().to_string();
        assert!(error.contains("striate 7.8.9 or newer"), "{error}");
        assert!(next.check_readable("").unwrap_err().to_string().contains("a newer release"));
        let chunks = Formats { chunks: Formats::NEWEST.chunks + 1, ..Formats::OLDEST };
        assert!(chunks.check_readable("").is_err());
        assert_eq!(Formats { records: 1, chunks: 2 }.release(), "0.2.0");
        assert_eq!(Formats::OLDEST.release(), "0.1.0");
        assert_eq!(Formats { records: 2, chunks: 1 }.release(), "0.2.0");
    }

    #[test]
    fn formats_in_force_never_fall() {
        let in_force = FormatsInForce::default();
        let seen = in_force.clone();
        in_force.raise(Formats { records: 3, chunks: 2 });
        in_force.raise(Formats { records: 2, chunks: 4 });
        assert_eq!(seen.get(), Formats { records: 3, chunks: 4 });
    }
}
