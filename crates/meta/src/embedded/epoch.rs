//! Which mirrors are in sync: the metadata part of every directory's identity (design.md §10.9).
//!
//! Every directory of the cluster, even one without a mirror, holds a file `meta.epoch` of two lines:
//!
//! ```text
//! {"version":1,"cluster":"<32 hex>","disk":"<32 hex>","epoch":7,"run":3,"in_sync":["<32 hex>",…]}
//! crc32c:<8 hex, of the first line without its newline>
//! ```
//!
//! The record with the greatest (epoch, run) is in force. To eject a mirror, the engine records a greater epoch with a
//! smaller in-sync set in every reachable directory, before it acknowledges anything that the mirror lacks. To start,
//! n − r directories must be readable: each record in force was written to at least min(r+1, n−r) directories, so
//! while n > 2r one of those n − r holds it, and a stale mirror cannot pass for a current one. (With n ≤ 2r, e.g. two
//! directories that mirror each other, the loss of the newest half and the return of the oldest cannot be told from a
//! start after a failure; they are more than r failures.) `run` counts the engine's starts and orders records of equal
//! epoch that two runs wrote to different directories.
//!
//! Crash argument: the file is replaced by a rename after its bytes are durable, so a crash leaves the old record or
//! the new one; the checksum catches the rest. A crash between two directories leaves the new record in some of them.
//! Whether it is found or not, every acknowledged transaction is on all mirrors of both in-sync sets, because nothing
//! is acknowledged while the set changes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use striate_core::ClusterId;

use super::volume::{DiskId, MetaDirectory, Volume};
use crate::store::MetaError;

/// Name of the file.
pub const EPOCH_FILE: &str = "meta.epoch";

/// Name of the file that holds the record before the current one, whose place on the disk the next one takes.
pub const LAST_EPOCH_FILE: &str = "meta.epoch.tmp";

/// Newest version of the file that this program understands.
const VERSION: u32 = 1;

/// Epoch that [`super::EmbeddedStore::create`] records; nothing was acknowledged under it.
pub(super) const FIRST_EPOCH: u64 = 1;

/// The in-sync set at one point of the cluster's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// Cluster of the directory.
    pub cluster: ClusterId,
    /// Number of the epoch, which grows with every change of the set and every start.
    pub epoch: u64,
    /// Run of the engine that wrote the record.
    pub run: u32,
    /// The directories whose mirrors hold everything that was acknowledged.
    pub in_sync: BTreeSet<DiskId>,
}

/// Why the record in a directory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochError {
    /// A newer program wrote it.
    #[error("{place}: {}", self.reason())]
    Newer {
        /// Path of the file.
        place: String,
        /// Version of the file.
        version: u32,
    },
    /// It was copied from another directory.
    #[error("{place} {}", self.reason())]
    OtherDirectory {
        /// Path of the file.
        place: String,
        /// Directory that the record was written for.
        written_for: DiskId,
        /// Directory that holds it.
        disk: DiskId,
    },
    /// Its bytes are damaged.
    #[error("{place}: {reason}")]
    Damaged {
        /// Path of the file.
        place: String,
        /// What is wrong with them.
        reason: String,
    },
    /// It cannot be read.
    #[error("{place}: {reason}")]
    Unreadable {
        /// Path of the file.
        place: String,
        /// Reason given by the operating system.
        reason: String,
    },
}

impl EpochError {
    /// Returns why, without the path.
    pub fn reason(&self) -> String {
        match self {
            Self::Newer { version, .. } => {
                format!("it has version {version}, this program knows {VERSION}; start a newer striate")
            }
            Self::OtherDirectory { written_for, disk, .. } => {
                format!(
                    "was written for directory {written_for}, not {disk}: it was copied from another disk"
                )
            }
            Self::Damaged { reason, .. } => format!("it is damaged: {reason}"),
            Self::Unreadable { reason, .. } => reason.clone(),
        }
    }
}

impl From<EpochError> for MetaError {
    fn from(error: EpochError) -> Self {
        match error {
            EpochError::Unreadable { .. } => Self::Unavailable(error.to_string()),
            _ => Self::Corrupt(error.to_string()),
        }
    }
}

/// Why a file's bytes are no record that this program reads.
#[derive(Debug, PartialEq, Eq)]
enum DecodeError {
    Newer(u32),
    Damaged(String),
}

impl From<&str> for DecodeError {
    fn from(reason: &str) -> Self {
        Self::Damaged(reason.to_owned())
    }
}

impl From<String> for DecodeError {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    version: u32,
    cluster: ClusterId,
    disk: String,
    epoch: u64,
    run: u32,
    in_sync: Vec<String>,
}

impl EpochRecord {
    /// Returns the file's bytes in the directory `disk`.
    pub(super) fn encode(&self, disk: DiskId) -> Vec<u8> {
        let line = Line {
            version: VERSION,
            cluster: self.cluster,
            disk: disk.to_string(),
            epoch: self.epoch,
            run: self.run,
            in_sync: self.in_sync.iter().map(DiskId::to_string).collect(),
        };
        let line = serde_json::to_string(&line).expect("strings and numbers are JSON");
        format!("{line}\ncrc32c:{:08x}\n", striate_codec::crc32c(line.as_bytes())).into_bytes()
    }

    /// Returns the record in a file's bytes, and the directory it was written for.
    fn decode(bytes: &[u8]) -> Result<(Self, DiskId), DecodeError> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
        let (line, checksum) = text.split_once('\n').ok_or("it is cut short")?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        if let Ok(Version { version }) = serde_json::from_str(line)
            && version > VERSION
        {
            return Err(DecodeError::Newer(version));
        }
        if checksum.trim_end() != format!("crc32c:{:08x}", striate_codec::crc32c(line.as_bytes())) {
            return Err(DecodeError::Damaged("its checksum is wrong".to_owned()));
        }
        let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let in_sync = line.in_sync.iter().map(|disk| parse_disk(disk)).collect::<Result<_, _>>()?;
        let record = Self { cluster: line.cluster, epoch: line.epoch, run: line.run, in_sync };
        Ok((record, parse_disk(&line.disk)?))
    }

    /// Reads the record in `directory`; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn read(directory: &MetaDirectory) -> Result<Option<Self>, EpochError> {
        let place = format!("{}/{EPOCH_FILE}", directory.volume.name());
        let bytes = match directory.volume.read_file(EPOCH_FILE) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) => return Err(EpochError::Unreadable { place, reason: error.to_string() }),
        };
        let (record, written_for) = Self::decode(&bytes).map_err(|error| match error {
            DecodeError::Newer(version) => EpochError::Newer { place: place.clone(), version },
            DecodeError::Damaged(reason) => EpochError::Damaged { place: place.clone(), reason },
        })?;
        match written_for == directory.disk_id {
            true => Ok(Some(record)),
            false => Err(EpochError::OtherDirectory { place, written_for, disk: directory.disk_id }),
        }
    }

    /// Returns the cluster and the directory that the record in `volume` was written for, whichever they are; `None` if
    /// it has no readable record.
    pub fn owner(volume: &dyn Volume) -> Option<(ClusterId, DiskId)> {
        let bytes = volume.read_file(EPOCH_FILE).ok()??;
        let (record, disk) = Self::decode(&bytes).ok()?;
        Some((record.cluster, disk))
    }

    /// Returns the order of records: the greatest is in force.
    pub(super) fn age(&self) -> (u64, u32) {
        (self.epoch, self.run)
    }
}

fn parse_disk(text: &str) -> Result<DiskId, String> {
    let number = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.map(|number| DiskId(number.to_be_bytes())).ok_or_else(|| format!("{text:?} is no directory's id"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> EpochRecord {
        let in_sync = [DiskId([1; 16]), DiskId([0xab; 16])].into();
        EpochRecord { cluster: ClusterId(77), epoch: 12, run: 3, in_sync }
    }

    #[test]
    fn records_survive_their_file() {
        let disk = DiskId([9; 16]);
        assert_eq!(EpochRecord::decode(&record().encode(disk)), Ok((record(), disk)));
    }

    #[test]
    fn newer_versions_are_refused_by_name() {
        let bytes = String::from_utf8(record().encode(DiskId([9; 16]))).unwrap();
        let newer = bytes.replace("\"version\":1", "\"version\":2");
        assert_eq!(EpochRecord::decode(newer.as_bytes()), Err(DecodeError::Newer(2)));
        let refused = EpochError::Newer { place: String::new(), version: 2 };
        assert!(refused.reason().contains("newer striate"));
    }

    proptest! {
        #[test]
        fn damage_is_noticed(position: prop::sample::Index, bit in 0..8_u32, cut: bool) {
            let mut bytes = record().encode(DiskId([9; 16]));
            let position = position.index(bytes.len() - 1);
            match cut {
                true => bytes.truncate(position),
                false => bytes[position] ^= 1 << bit,
            }
            let decoded = EpochRecord::decode(&bytes);
            prop_assert!(decoded.is_err(), "{:?}", decoded);
        }
    }
}
