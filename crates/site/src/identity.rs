//! The identity file of a directory: which disk it is on, and which site that is.
//!
//! ```text
//! DIR/.striate/identity.json
//! { "format": 1, "cluster": "<32 hexadecimal digits>", "site": 3, "disk": "<32 hexadecimal digits>",
//!   "rack": "…", "created": <seconds since 1970> }
//! ```
//!
//! It is written once, when the directory is admitted, atomically (temporary file, sync, rename, sync of the
//! directory). At start, [`Identity::check`] refuses whatever would mix data up: a directory of another cluster, a
//! swapped disk, a missing mount, a format of a newer version.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use striate_core::{ClusterId, RackId, SiteId};

use crate::filesystem::{self, FileSystem};

/// The newest on-disk format that this program reads and writes.
pub const DISK_FORMAT: u32 = 1;

/// Identity of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteIdentity {
    /// Cluster of the site.
    pub cluster: ClusterId,
    /// Number of the site.
    pub site: SiteId,
    /// Failure domain of the site.
    pub rack: RackId,
}

/// Identifies a disk for its whole life: 16 random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskId(pub u128);

impl From<DiskId> for String {
    fn from(id: DiskId) -> Self {
        format!("{:032x}", id.0)
    }
}

impl TryFrom<String> for DiskId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = (text.len() == 32).then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| format!("{text:?} is not a disk id (32 hexadecimal digits)"))
    }
}

/// The content of an identity file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of everything below `.striate`.
    pub format: u32,
    /// The cluster that the disk belongs to.
    pub cluster: ClusterId,
    /// The site on the disk.
    pub site: SiteId,
    /// Identifier of the disk itself.
    pub disk: DiskId,
    /// Failure domain of the site.
    pub rack: RackId,
    /// Seconds since the Unix epoch when the disk was admitted; informational.
    pub created: u64,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory has no identity file and no Striate data: it is blank or new, or its disk is not mounted.
    #[error(
        "{} is blank: it has no .striate/identity.json. If its disk should hold data, check that it is mounted; if it \
         is a new disk, admit it with `striate disk replace {}`", .0.display(), .0.display()
    )]
    Blank(PathBuf),
    /// The directory itself is missing.
    #[error("{} does not exist; create it, or mount its disk", .0.display())]
    Missing(PathBuf),
    /// The directory holds chunks or metadata, but no identity file.
    #[error(
        "{} holds Striate data but no .striate/identity.json; restore that file, or admit the disk again with \
         `striate disk replace {}`", .0.display(), .0.display()
    )]
    Lost(PathBuf),
    /// The identity file cannot be parsed.
    #[error("{} is damaged ({reason}); restore it, or admit the disk again with `striate disk replace`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The identity file was written by a newer version.
    #[error(
        "{} has format version {found}, this program knows up to {DISK_FORMAT}; start the version that wrote it, or a \
         newer one", .path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
    },
    /// The directory belongs to another cluster.
    #[error(
        "{} belongs to cluster {found}, not to {expected}; give this server its own directories, or empty that one if \
         its data is no longer wanted", .directory.display()
    )]
    OtherCluster {
        /// The directory.
        directory: PathBuf,
        /// Cluster of the directory.
        found: ClusterId,
        /// Cluster of this server.
        expected: ClusterId,
    },
    /// The directory holds the disk of another site of the same cluster.
    #[error(
        "{} holds the disk of site {found}, where that of site {expected} should be; swap the disks back, or give the \
         directories in the order of their disks", .directory.display()
    )]
    Swapped {
        /// The directory.
        directory: PathBuf,
        /// Site found.
        found: SiteId,
        /// Site expected.
        expected: SiteId,
    },
    /// The site is right, but the disk is not: it is a copy, or a disk that was replaced long ago.
    #[error(
        "{} is an old disk of site {site} that has since been replaced; remove it, or admit it again with `striate disk \
         replace {}`", .directory.display(), .directory.display()
    )]
    Replaced {
        /// The directory.
        directory: PathBuf,
        /// The site.
        site: SiteId,
    },
    /// A call to the file system failed.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// Action that failed.
        action: &'static str,
        /// Path that the action was applied to.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Returns the directory of Striate's files: `root/.striate`.
pub(crate) fn striate_directory(root: &Path) -> PathBuf {
    root.join(".striate")
}

/// Returns the path of a directory's identity file.
pub fn identity_path(root: &Path) -> PathBuf {
    striate_directory(root).join("identity.json")
}

/// Just the version, which every format has.
#[derive(Deserialize)]
struct FormatVersion {
    format: u32,
}

impl Identity {
    /// Writes the identity durably and atomically, and creates the directory if it is missing.
    pub fn write(&self, fs: &dyn FileSystem, root: &Path) -> Result<(), IdentityError> {
        let path = identity_path(root);
        let io = |source| IdentityError::Io { action: "write", path: path.clone(), source };
        fs.create_directories(&striate_directory(root)).map_err(io)?;
        let mut content = serde_json::to_vec_pretty(self).map_err(|error| io(error.into()))?;
        content.push(b'\n');
        filesystem::write_atomically(fs, &path, &content).map_err(io)
    }

    /// Reads the identity.
    ///
    /// # Errors
    /// [`IdentityError::Missing`], [`IdentityError::Blank`] or [`IdentityError::Lost`] if there is no identity file.
    pub fn read(fs: &dyn FileSystem, root: &Path) -> Result<Self, IdentityError> {
        let path = identity_path(root);
        let content = match filesystem::read_whole(fs, &path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Self::absent(fs, root)),
            Err(source) => return Err(IdentityError::Io { action: "read", path, source }),
        };
        let damaged = |error: serde_json::Error| IdentityError::Damaged {
            path: path.clone(),
            reason: error.to_string(),
        };
        let FormatVersion { format } = serde_json::from_slice(&content).map_err(damaged)?;
        if format > DISK_FORMAT {
            return Err(IdentityError::NewerFormat { path, found: format });
        }
        serde_json::from_slice(&content).map_err(damaged)
    }

    fn absent(fs: &dyn FileSystem, root: &Path) -> IdentityError {
        if fs.list(root).is_err() {
            return IdentityError::Missing(root.to_owned());
        }
        match fs.list(&striate_directory(root)) {
            Ok(names) if names.iter().any(|name| name == "chunks" || name == "meta") => {
                IdentityError::Lost(root.to_owned())
            }
            _ => IdentityError::Blank(root.to_owned()),
        }
    }

    /// Checks that a directory's disk is the expected one. `disk` is `None` where it is not known.
    pub fn check(
        &self,
        root: &Path,
        cluster: ClusterId,
        site: SiteId,
        disk: Option<DiskId>,
    ) -> Result<(), IdentityError> {
        let directory = root.to_owned();
        if self.cluster != cluster {
            return Err(IdentityError::OtherCluster { directory, found: self.cluster, expected: cluster });
        }
        if self.site != site {
            return Err(IdentityError::Swapped { directory, found: self.site, expected: site });
        }
        if disk.is_some_and(|disk| disk != self.disk) {
            return Err(IdentityError::Replaced { directory, site });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::RealFileSystem;

    fn identity() -> Identity {
        Identity {
            format: DISK_FORMAT,
            cluster: ClusterId(0xC1),
            site: SiteId(3),
            disk: DiskId(0xD15C),
            rack: RackId("rack-3".into()),
            created: 1_700_000_000,
        }
    }

    #[test]
    fn an_identity_survives_its_file() {
        let root = tempfile::tempdir().expect("a directory");
        identity().write(&RealFileSystem, root.path()).expect("written");
        assert_eq!(Identity::read(&RealFileSystem, root.path()).expect("read"), identity());
        identity().write(&RealFileSystem, root.path()).expect("written again");
        let names = RealFileSystem.list(&striate_directory(root.path())).expect("listed");
        assert_eq!(names, ["identity.json"]);
    }

    #[test]
    fn absence_is_told_apart() {
        let root = tempfile::tempdir().expect("a directory");
        let read = |root: &Path| Identity::read(&RealFileSystem, root).expect_err("there is none");
        assert!(matches!(read(&root.path().join("nowhere")), IdentityError::Missing(_)));
        assert!(matches!(read(root.path()), IdentityError::Blank(_)));
        RealFileSystem.create_directories(&root.path().join(".striate/chunks")).expect("made");
        assert!(matches!(read(root.path()), IdentityError::Lost(_)));
        std::fs::write(identity_path(root.path()), "{").expect("written");
        assert!(matches!(read(root.path()), IdentityError::Damaged { .. }));
    }

    #[test]
    fn a_newer_format_is_refused_even_if_its_fields_are_unknown() {
        let root = tempfile::tempdir().expect("a directory");
        RealFileSystem.create_directories(&striate_directory(root.path())).expect("made");
        std::fs::write(identity_path(root.path()), r#"{"format": 2, "what": []}"#).expect("written");
        let error = Identity::read(&RealFileSystem, root.path()).expect_err("too new");
        assert!(matches!(error, IdentityError::NewerFormat { found: 2, .. }), "{error}");
    }

    #[test]
    fn other_clusters_swapped_and_replaced_disks_are_refused() {
        let (own, root) = (identity(), Path::new("/disk"));
        own.check(root, own.cluster, own.site, Some(own.disk)).expect("its own");
        own.check(root, own.cluster, own.site, None).expect("its own");
        let other = own.check(root, ClusterId(1), own.site, None);
        assert!(matches!(other, Err(IdentityError::OtherCluster { .. })));
        let swapped = own.check(root, own.cluster, SiteId(4), None);
        assert!(matches!(swapped, Err(IdentityError::Swapped { .. })));
        let replaced = own.check(root, own.cluster, own.site, Some(DiskId(1)));
        assert!(matches!(replaced, Err(IdentityError::Replaced { .. })));
    }
}
