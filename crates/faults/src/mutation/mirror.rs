//! A planted defect of the metadata engine's start, below it: a stale mirror is mistaken for the newest.

use std::io;
use std::sync::Arc;

use striate_codec::crc32c;
use striate_meta::embedded::{DiskId, EPOCH_FILE, EpochRecord, MIRROR_FILE, MetaDirectory, Storage, Volume};

/// Makes all directories claim that the in-sync set consists of one stale mirror. Returns them unchanged if every
/// mirror is in sync.
pub(super) fn favour_the_stale(directories: Vec<MetaDirectory>) -> Vec<MetaDirectory> {
    let records = directories.iter().filter_map(|directory| EpochRecord::read(directory).ok().flatten());
    let Some(newest) = records.max_by_key(|record| (record.epoch, record.run)) else { return directories };
    let is_stale = |directory: &&MetaDirectory| {
        let has_mirror = directory.volume.file_len(MIRROR_FILE).is_ok_and(|len| len > 0);
        has_mirror && !newest.in_sync.contains(&directory.disk_id)
    };
    let Some(stale) = directories.iter().find(is_stale).map(|directory| directory.disk_id) else {
        return directories;
    };
    let lie = |directory: MetaDirectory| {
        let volume = Arc::new(LyingVolume { volume: directory.volume, stale });
        MetaDirectory { disk_id: directory.disk_id, volume }
    };
    directories.into_iter().map(lie).collect()
}

/// A directory whose epoch names the wrong mirror.
#[derive(Debug)]
struct LyingVolume {
    volume: Arc<dyn Volume>,
    stale: DiskId,
}

impl LyingVolume {
    /// Returns the epoch file with another in-sync set.
    fn change(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let line = std::str::from_utf8(bytes).ok()?.lines().next()?;
        let mut record: serde_json::Value = serde_json::from_str(line).ok()?;
        record["in_sync"] = serde_json::json!([self.stale.to_string()]);
        let line = record.to_string();
        Some(format!("{line}\ncrc32c:{:08x}\n", crc32c(line.as_bytes())).into_bytes())
    }
}

impl Volume for LyingVolume {
    fn name(&self) -> String {
        self.volume.name()
    }

    fn read_file(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let bytes = self.volume.read_file(name)?;
        match name {
            EPOCH_FILE => Ok(bytes.map(|bytes| self.change(&bytes).unwrap_or(bytes))),
            _ => Ok(bytes),
        }
    }

    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.volume.replace_file(name, bytes)
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.volume.remove_file(name)
    }

    fn open_storage(&self, name: &str, create: bool) -> io::Result<Arc<dyn Storage>> {
        self.volume.open_storage(name, create)
    }

    fn verify(&self) -> io::Result<()> {
        self.volume.verify()
    }

    fn file_len(&self, name: &str) -> io::Result<u64> {
        self.volume.file_len(name)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.volume.free_bytes()
    }

    fn reserve(&self, name: &str, len: u64) -> io::Result<()> {
        self.volume.reserve(name, len)
    }
}
