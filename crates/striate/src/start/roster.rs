//! The roster: the members of a cluster, recorded in every directory.
//!
//! The metadata engine must know how many directories there are and how many may be lost before it can be opened
//! (design.md §10.9), and a refusal must name what is missing while the metadata cannot be read. So every directory
//! holds a file `.striate/cluster` of two lines:
//!
//! ```text
//! {"version":1,"generation":7,"cluster":"<32 hex>","disk":"<32 hex>","tolerance":2,"next_site":8,"members":[…]}
//! crc32c:<8 hex, of the first line without its newline>
//! ```
//!
//! Once formats newer than release 0.1 are in force (docs/src/formats.md), the version is 2, which programs of 0.1
//! refuse, and the line also has `"formats":{"records":2,"chunks":1,"needs":"0.2.0"}`: a program that does not read
//! these formats refuses to start.
//!
//! The roster with the greatest generation is in force. `disk` is the directory's own identity; `next_site` counts site
//! numbers, which are never reused.
//!
//! Crash argument: the file is replaced by a rename after its bytes are durable, so a crash leaves the old roster or
//! the new one. A change writes the new generation to every reachable directory, the new member's first. Whichever
//! generation is found after a crash is a complete description, and [`super::cluster`] makes the metadata's rows follow
//! it at every start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use striate_codec::crc32c;
use striate_commands::admin::find::STATE_FOLDER;
use striate_core::{ClusterId, Formats, NeedsNewerProgram, SiteId};
use striate_meta::embedded::DiskId;
use striate_meta::records;

/// Newest version of the file that this program understands.
const VERSION: u32 = 2;
/// Version of a file that names no formats: those of release 0.1 are in force.
const WITHOUT_FORMATS: u32 = 1;
/// Name of the file in [`STATE_FOLDER`].
pub const ROSTER_FILE: &str = "cluster";

/// A directory that belongs to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Identity of the directory, whatever its path.
    pub disk: DiskId,
    /// Site on the directory.
    pub site: SiteId,
    /// Path at which it was last seen.
    pub path: PathBuf,
}

/// The members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// Generation of the roster, which grows with every change.
    pub generation: u64,
    /// Cluster of the members.
    pub cluster: ClusterId,
    /// r: number of directories that may be lost, which is the largest tolerance of any profile in use.
    pub tolerance: usize,
    /// Number of the next new site.
    pub next_site: u32,
    /// Members in ascending order of their sites.
    pub members: Vec<Member>,
    /// Formats that a program must read to start here.
    pub formats: RequiredFormats,
}

/// The formats that a program must read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredFormats {
    /// Formats in force.
    pub in_force: Formats,
    /// First release that reads them; empty for formats of release 0.1.
    pub needs: String,
}

impl RequiredFormats {
    /// Returns the formats of a new store.
    pub fn newest() -> Self {
        Self { in_force: Formats::NEWEST, needs: Formats::NEWEST.release().to_owned() }
    }
}

impl From<&records::Cluster> for RequiredFormats {
    fn from(row: &records::Cluster) -> Self {
        Self { in_force: row.formats(), needs: row.needs_release.clone() }
    }
}

/// Why a roster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// A newer program wrote it.
    #[error(
        "it was written by a newer version of striate (format {0}, this program knows {VERSION}); start that version"
    )]
    Newer(u32),
    /// The store has formats in force that this program does not read.
    #[error(transparent)]
    NeedsNewer(#[from] NeedsNewerProgram),
    /// Its bytes are damaged.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

#[derive(Serialize, Deserialize)]
struct Line {
    version: u32,
    generation: u64,
    cluster: ClusterId,
    disk: String,
    tolerance: usize,
    next_site: u32,
    members: Vec<MemberLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    formats: Option<FormatsLine>,
}

#[derive(Serialize, Deserialize)]
struct FormatsLine {
    records: u32,
    chunks: u32,
    needs: String,
}

#[derive(Serialize, Deserialize)]
struct MemberLine {
    disk: String,
    site: u32,
    path: PathBuf,
}

impl Roster {
    /// Returns the member with this identity.
    pub fn member(&self, disk: DiskId) -> Option<&Member> {
        self.members.iter().find(|member| member.disk == disk)
    }

    /// Returns the roster after one more change.
    pub fn changed(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next.generation = self.generation + 1;
        next.members.sort_by_key(|member| member.site);
        next
    }

    /// Returns the number of members that must be present for a start: the newest metadata is then among them.
    pub fn needed(&self) -> usize {
        self.members.len().saturating_sub(self.tolerance).max(1)
    }

    fn encode(&self, disk: DiskId) -> Vec<u8> {
        let member = |member: &Member| MemberLine {
            disk: member.disk.to_string(),
            site: member.site.0,
            path: member.path.clone(),
        };
        let RequiredFormats { in_force, needs } = &self.formats;
        let formats = (*in_force != Formats::OLDEST).then(|| FormatsLine {
            records: in_force.records,
            chunks: in_force.chunks,
            needs: needs.clone(),
        });
        let line = Line {
            version: if formats.is_some() { VERSION } else { WITHOUT_FORMATS },
            generation: self.generation,
            cluster: self.cluster,
            disk: disk.to_string(),
            tolerance: self.tolerance,
            next_site: self.next_site,
            members: self.members.iter().map(member).collect(),
            formats,
        };
        let line = serde_json::to_string(&line).expect("strings and numbers are JSON");
        format!("{line}\ncrc32c:{:08x}\n", crc32c(line.as_bytes())).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<(Self, DiskId), RosterError> {
        let damaged = |reason: &str| RosterError::Damaged(reason.to_owned());
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
        let (line, checksum) = text.split_once('\n').ok_or_else(|| damaged("it is cut short"))?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        if let Ok(Version { version }) = serde_json::from_str(line)
            && version > VERSION
        {
            return Err(RosterError::Newer(version));
        }
        if checksum != format!("crc32c:{:08x}\n", crc32c(line.as_bytes())) {
            return Err(damaged("its checksum is wrong"));
        }
        let line: Line = serde_json::from_str(line).map_err(|error| damaged(&error.to_string()))?;
        let member = |member: MemberLine| {
            Some(Member { disk: parse_disk(&member.disk)?, site: SiteId(member.site), path: member.path })
        };
        let members: Option<Vec<_>> = line.members.into_iter().map(member).collect();
        let formats = line.formats.map_or_else(RequiredFormats::default, |formats| RequiredFormats {
            in_force: Formats::from_numbers(formats.records, formats.chunks),
            needs: formats.needs,
        });
        formats.in_force.check_readable(&formats.needs)?;
        let roster = Self {
            generation: line.generation,
            cluster: line.cluster,
            tolerance: line.tolerance,
            next_site: line.next_site,
            members: members.ok_or_else(|| damaged("a member has no identity"))?,
            formats,
        };
        Ok((roster, parse_disk(&line.disk).ok_or_else(|| damaged("it has no identity"))?))
    }

    /// Reads the roster in a directory and the directory's own identity; `None` if it has no roster.
    ///
    /// # Errors
    /// If the roster cannot be used.
    pub fn read(directory: &Path) -> Result<Option<(Self, DiskId)>, RosterError> {
        match fs::read(directory.join(STATE_FOLDER).join(ROSTER_FILE)) {
            Ok(bytes) => Self::decode(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RosterError::Unreadable(error.to_string())),
        }
    }

    /// Writes the roster into the directory of `disk`, durably.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn write(&self, directory: &Path, disk: DiskId) -> io::Result<()> {
        replace_file(&directory.join(STATE_FOLDER), ROSTER_FILE, &self.encode(disk), 0o600)
    }
}

/// Replaces a small file's bytes in `folder`, durably and atomically. It does not create the folder, which only the
/// lock does: otherwise a late write could recreate it in a wiped directory.
///
/// # Errors
/// If the folder does not exist or cannot be written.
pub fn replace_file(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let fresh = folder.join(format!("{name}.tmp"));
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, folder.join(name))?;
    File::open(folder)?.sync_all()
}

fn parse_disk(text: &str) -> Option<DiskId> {
    let number = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.map(|number| DiskId(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn roster() -> Roster {
        let member = |number: u8| Member {
            disk: DiskId([number; 16]),
            site: SiteId(u32::from(number)),
            path: format!("/data/disk {number}").into(),
        };
        Roster {
            generation: 3,
            cluster: ClusterId(7),
            tolerance: 1,
            next_site: 4,
            members: (1..=3).map(member).collect(),
            formats: RequiredFormats::default(),
        }
    }

    fn with_formats(in_force: Formats, needs: &str) -> Roster {
        Roster { formats: RequiredFormats { in_force, needs: needs.to_owned() }, ..roster() }
    }

    #[test]
    fn release_0_1_reads_a_roster_until_newer_formats_are_in_force() {
        let first_line = |roster: Roster| {
            String::from_utf8(roster.encode(DiskId([1; 16]))).unwrap().lines().next().unwrap().to_owned()
        };
        let old = first_line(roster());
        assert!(old.starts_with("{\"version\":1,") && !old.contains("formats"), "{old}");
        let newer = with_formats(Formats { records: 2, chunks: 1 }, "0.2.0");
        assert!(first_line(newer.clone()).starts_with("{\"version\":2,"));
        let disk = DiskId([1; 16]);
        assert_eq!(Roster::decode(&newer.encode(disk)), Ok((newer, disk)));
    }

    #[test]
    fn a_program_that_does_not_read_the_formats_names_the_release_that_does() {
        let next = Formats { records: Formats::NEWEST.records + 1, ..Formats::NEWEST };
        let error = Roster::decode(&with_formats(next, "7.8.9").encode(DiskId([1; 16]))).unwrap_err();
        assert!(error.to_string().contains("start striate 7.8.9 or newer"), "{error}");
    }

    #[test]
    fn rosters_survive_their_files_and_replace_each_other() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Roster::read(directory.path()), Ok(None));
        let disk = DiskId([2; 16]);
        assert!(roster().write(directory.path(), disk).is_err());
        assert!(!directory.path().join(STATE_FOLDER).exists(), "a wiped directory stays as it is");
        fs::create_dir(directory.path().join(STATE_FOLDER)).unwrap();
        roster().write(directory.path(), disk).unwrap();
        let next = roster().changed(|roster| roster.tolerance = 2);
        next.write(directory.path(), disk).unwrap();
        assert_eq!(Roster::read(directory.path()), Ok(Some((next.clone(), disk))));
        assert_eq!((next.generation, next.needed()), (4, 1));
    }

    #[test]
    fn newer_formats_are_refused_by_name() {
        let bytes = String::from_utf8(roster().encode(DiskId([1; 16]))).unwrap();
        let newer = bytes.replace("\"version\":1", "\"version\":3");
        let error = Roster::decode(newer.as_bytes()).unwrap_err();
        assert_eq!(error, RosterError::Newer(3));
        assert!(error.to_string().contains("start that version"));
    }

    proptest! {
        #[test]
        fn damage_is_noticed(position: prop::sample::Index, bit in 0..8_u32, cut: bool) {
            let mut bytes = roster().encode(DiskId([1; 16]));
            let position = position.index(bytes.len());
            match cut {
                true => bytes.truncate(position),
                false => bytes[position] ^= 1 << bit,
            }
            prop_assert!(Roster::decode(&bytes).is_err());
        }
    }
}
