//! Simulated directories that can lose power at any operation.
//!
//! A [`Machine`] has some disks. Every change of a disk (write, truncation, fsync, creation, rename, removal, directory
//! sync) is one numbered operation, and the power can be made to fail at any number. Part of what was not synced is
//! then lost: every unsynced write of a file survives completely, not at all, or in some of its 512-byte sectors; every
//! unsynced change of a directory survives or not; all independently, drawn from the machine's seed. That is more than
//! a file system that orders its journal would lose (Pillai et al., “All File Systems Are Not Created Equal”, OSDI
//! 2014, §2). Handles from before a power cut stay dead.
//!
//! Disks can also fill up, fail, be wiped and suffer flipped bits. A machine can be cloned with all its state, so that
//! a test can try several futures of one state. What it does not do: it has no clock; a disk is as fast as memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::volume::{DiskId, MetaDirectory, Storage, Volume};

/// Size in bytes of the units that survive a power cut or are lost.
const SECTOR: usize = 512;

/// Size in bytes of the pages in which space is counted; holes take none.
const PAGE: u64 = 4096;

/// A machine: some disks and their power supply. Clones share it; see [`Machine::fork`].
#[derive(Clone, Debug)]
pub struct Machine {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Debug)]
struct State {
    rng: SmallRng,
    operations: u64,
    power_fails_at: Option<u64>,
    off: bool,
    /// Number of starts, by which handles of earlier ones are recognised.
    boot: u64,
    disks: Vec<Disk>,
}

/// A defect of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every read fails.
    Reads,
    /// Every write fails.
    Writes,
    /// Every fsync fails; written data may or may not be durable.
    Syncs,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    files: Vec<FileData>,
    /// Names as programs see them.
    entries: BTreeMap<String, usize>,
    /// Names as they are on the medium.
    durable_entries: BTreeMap<String, usize>,
    /// Changes of names since the last sync of the directory.
    pending_entries: Vec<(String, Option<usize>)>,
    capacity: Option<u64>,
    fault: Option<Fault>,
    /// Number of times that another directory replaced this one.
    mounted: u64,
}

#[derive(Clone, Debug, Default)]
struct FileData {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
    pages: BTreeSet<u64>,
    locked: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl Machine {
    /// Creates a machine with blank disks.
    pub fn new(seed: u64, disks: usize) -> Self {
        let state = State {
            rng: SmallRng::seed_from_u64(seed),
            operations: 0,
            power_fails_at: None,
            off: false,
            boot: 0,
            disks: vec![Disk::default(); disks],
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns another machine in the same state.
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state.lock().clone())) }
    }

    /// Returns a handle of the disk with this number, to give to a store.
    pub fn directory(&self, disk: usize) -> MetaDirectory {
        let (boot, mounted) = {
            let state = self.state.lock();
            (state.boot, state.disks[disk].mounted)
        };
        let volume = SimulatedVolume { machine: self.clone(), disk, boot, mounted };
        MetaDirectory { disk_id: Self::disk_id(disk), volume: Arc::new(volume) }
    }

    /// Returns handles of all disks.
    pub fn directories(&self) -> Vec<MetaDirectory> {
        let disks = self.state.lock().disks.len();
        (0..disks).map(|disk| self.directory(disk)).collect()
    }

    /// Returns the identity of a disk.
    pub fn disk_id(disk: usize) -> DiskId {
        DiskId((disk as u128 + 1).to_be_bytes())
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Makes the power fail at the operation with this number.
    pub fn fail_power_at(&self, operation: u64) {
        self.state.lock().power_fails_at = Some(operation);
    }

    /// Returns true if the power has failed.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.state.lock().off = true;
    }

    /// Cuts the power unless it has failed already, loses part of what was not synced, and starts again.
    pub fn restart(&self) {
        let state = &mut *self.state.lock();
        for disk in &mut state.disks {
            disk.lose_power(&mut state.rng);
        }
        state.off = false;
        state.power_fails_at = None;
        state.boot += 1;
    }

    /// Replaces a disk by a blank one. Handles notice.
    pub fn wipe(&self, disk: usize) {
        let disk = &mut self.state.lock().disks[disk];
        *disk = Disk { mounted: disk.mounted + 1, ..Disk::default() };
    }

    /// Limits the bytes on a disk; `None` removes the limit.
    pub fn set_capacity(&self, disk: usize, capacity: Option<u64>) {
        self.state.lock().disks[disk].capacity = capacity;
    }

    /// Returns the bytes used on a disk.
    pub fn used_bytes(&self, disk: usize) -> u64 {
        self.state.lock().disks[disk].used()
    }

    /// Makes a disk fail, or work again.
    pub fn set_fault(&self, disk: usize, fault: Option<Fault>) {
        self.state.lock().disks[disk].fault = fault;
    }

    /// Replaces every occurrence of `from` on a disk by `to`, as flipped bits would.
    pub fn corrupt(&self, disk: usize, from: &[u8], to: &[u8]) -> usize {
        assert_eq!(from.len(), to.len());
        let mut replaced = 0;
        for file in &mut self.state.lock().disks[disk].files {
            for bytes in [&mut file.current, &mut file.durable] {
                let mut position = 0;
                while let Some(found) = find(&bytes[position..], from) {
                    position += found;
                    bytes[position..position + to.len()].copy_from_slice(to);
                    replaced += 1;
                }
            }
        }
        replaced
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

impl State {
    /// Counts an operation. Returns false if the power fails during it.
    fn operate(&mut self) -> bool {
        self.operations += 1;
        self.off |= self.power_fails_at.is_some_and(|at| self.operations >= at);
        !self.off
    }
}

impl Disk {
    fn used(&self) -> u64 {
        self.entries.values().map(|&file| self.files[file].pages.len() as u64 * PAGE).sum()
    }

    fn free(&self) -> u64 {
        self.capacity.map_or(1 << 40, |capacity| capacity.saturating_sub(self.used()))
    }

    fn set_entry(&mut self, name: &str, file: Option<usize>) {
        match file {
            Some(file) => self.entries.insert(name.to_owned(), file),
            None => self.entries.remove(name),
        };
        self.pending_entries.push((name.to_owned(), file));
    }

    fn sync_directory(&mut self) {
        self.pending_entries.clear();
        self.durable_entries = self.entries.clone();
    }

    fn new_file(&mut self) -> usize {
        self.files.push(FileData::default());
        self.files.len() - 1
    }

    fn write(&mut self, file: usize, offset: u64, data: &[u8]) -> io::Result<()> {
        let pages = offset / PAGE..(offset + data.len() as u64).div_ceil(PAGE);
        let new = pages.clone().filter(|page| !self.files[file].pages.contains(page)).count() as u64;
        if new * PAGE > self.free() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        let file = &mut self.files[file];
        file.pages.extend(pages);
        file.change(Change::Write(offset, data.to_vec()));
        Ok(())
    }

    fn lose_power(&mut self, rng: &mut SmallRng) {
        for (name, file) in std::mem::take(&mut self.pending_entries) {
            if rng.random() {
                match file {
                    Some(file) => self.durable_entries.insert(name, file),
                    None => self.durable_entries.remove(&name),
                };
            }
        }
        self.entries = self.durable_entries.clone();
        for file in &mut self.files {
            file.lose_power(rng);
        }
    }
}

impl FileData {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    fn lose_power(&mut self, rng: &mut SmallRng) {
        for change in std::mem::take(&mut self.pending) {
            match (rng.random_range(0..4), change) {
                (0, _) => {}
                (1, Change::Write(offset, data)) => {
                    for (number, sector) in data.chunks(SECTOR).enumerate() {
                        if rng.random() {
                            let offset = offset + (number * SECTOR) as u64;
                            Change::Write(offset, sector.to_vec()).apply(&mut self.durable);
                        }
                    }
                }
                (_, change) => change.apply(&mut self.durable),
            }
        }
        self.current = self.durable.clone();
        self.locked = false;
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(len) => bytes.resize(*len as usize, 0),
            Self::Write(offset, data) => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(data);
            }
        }
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn no_such_file() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "there is no such file")
}

#[derive(Clone, Debug)]
struct SimulatedVolume {
    machine: Machine,
    disk: usize,
    boot: u64,
    mounted: u64,
}

impl SimulatedVolume {
    /// Returns the machine if it is on and this handle belongs to its current run and disk.
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.machine.state.lock();
        if state.off || state.boot != self.boot {
            return Err(power_is_off());
        }
        match state.disks[self.disk].mounted == self.mounted {
            true => Ok(state),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "the simulated disk was replaced")),
        }
    }

    /// Runs a change that takes effect only if the power holds.
    fn operate<T>(&self, change: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state()?;
        if !state.operate() {
            return Err(power_is_off());
        }
        let disk = &mut state.disks[self.disk];
        match disk.fault {
            Some(Fault::Writes) => Err(io::Error::other("the simulated disk fails")),
            _ => change(disk),
        }
    }

    /// Runs a change that may take effect, in part, if the power fails during it.
    fn operate_torn(&self, change: impl FnOnce(&mut Disk) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state()?;
        let on = state.operate();
        let disk = &mut state.disks[self.disk];
        if disk.fault == Some(Fault::Writes) {
            return Err(io::Error::other("the simulated disk fails"));
        }
        change(disk)?;
        if on { Ok(()) } else { Err(power_is_off()) }
    }
}

impl Volume for SimulatedVolume {
    fn name(&self) -> String {
        format!("simulated disk {}", self.disk)
    }

    fn read_file(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let state = self.state()?;
        let disk = &state.disks[self.disk];
        if disk.fault == Some(Fault::Reads) {
            return Err(io::Error::other("the simulated disk fails"));
        }
        Ok(disk.entries.get(name).map(|&file| disk.files[file].current.clone()))
    }

    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let file = self.operate(|disk| {
            let file = disk.new_file();
            disk.set_entry(&temporary, Some(file));
            Ok(file)
        })?;
        self.operate_torn(|disk| disk.write(file, 0, bytes))?;
        self.operate(|disk| {
            disk.files[file].sync();
            Ok(())
        })?;
        self.operate_torn(|disk| {
            disk.set_entry(&temporary, None);
            disk.set_entry(name, Some(file));
            Ok(())
        })?;
        self.operate(|disk| {
            disk.sync_directory();
            Ok(())
        })
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        if !self.state()?.disks[self.disk].entries.contains_key(name) {
            return Ok(());
        }
        self.operate_torn(|disk| {
            disk.set_entry(name, None);
            Ok(())
        })?;
        self.operate(|disk| {
            disk.sync_directory();
            Ok(())
        })
    }

    fn open_storage(&self, name: &str, create: bool) -> io::Result<Arc<dyn Storage>> {
        let found = self.state()?.disks[self.disk].entries.get(name).copied();
        let file = match (found, create) {
            (Some(_), true) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists")),
            (None, false) => return Err(no_such_file()),
            (Some(file), false) => file,
            (None, true) => self.operate(|disk| {
                let file = disk.new_file();
                disk.set_entry(name, Some(file));
                disk.sync_directory();
                Ok(file)
            })?,
        };
        let locked = &mut self.state()?.disks[self.disk].files[file].locked;
        if std::mem::replace(locked, true) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the file is in use"));
        }
        Ok(Arc::new(SimulatedFile { volume: self.clone(), name: name.to_owned(), file }))
    }

    fn verify(&self) -> io::Result<()> {
        self.state().map(drop)
    }

    fn file_len(&self, name: &str) -> io::Result<u64> {
        let state = self.state()?;
        let disk = &state.disks[self.disk];
        let file = *disk.entries.get(name).ok_or_else(no_such_file)?;
        Ok(disk.files[file].current.len() as u64)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.state()?.disks[self.disk].free())
    }

    fn reserve(&self, name: &str, len: u64) -> io::Result<()> {
        self.operate(|disk| {
            let file = disk.new_file();
            disk.set_entry(name, Some(file));
            disk.write(file, 0, &vec![0; len as usize])
        })
    }
}

#[derive(Debug)]
struct SimulatedFile {
    volume: SimulatedVolume,
    name: String,
    file: usize,
}

impl Storage for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.volume.state()?.disks[self.volume.disk].files[self.file].current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.volume.state()?;
        let disk = &state.disks[self.volume.disk];
        if disk.fault == Some(Fault::Reads) {
            return Err(io::Error::other("the simulated disk fails"));
        }
        let start = offset as usize;
        let bytes = disk.files[self.file].current.get(start..start + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.volume.operate_torn(|disk| disk.write(self.file, offset, data))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.volume.operate_torn(|disk| {
            disk.files[self.file].change(Change::Length(len));
            disk.files[self.file].pages.retain(|page| page * PAGE < len);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.volume.operate(|disk| {
            if disk.fault == Some(Fault::Syncs) {
                return Err(io::Error::other("the simulated disk fails to sync"));
            }
            disk.files[self.file].sync();
            Ok(())
        })
    }

    fn verify(&self) -> io::Result<()> {
        let state = self.volume.state()?;
        match state.disks[self.volume.disk].entries.get(&self.name) {
            Some(&file) if file == self.file => Ok(()),
            _ => Err(no_such_file()),
        }
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.volume.state()?.disks[self.volume.disk].files[self.file].pages.len() as u64 * PAGE)
    }

    fn release(&self) -> io::Result<()> {
        self.volume.state()?.disks[self.volume.disk].files[self.file].locked = false;
        Ok(())
    }
}
