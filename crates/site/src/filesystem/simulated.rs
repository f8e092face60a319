//! A file system in memory that crashes and fails on command, in every way that a real one may.
//!
//! It keeps every write, truncation and name twice: as the running program sees it, and as it is on the medium, with
//! the changes since the last sync in between. A power cut keeps any part of those changes, torn at sectors of 512
//! bytes, in any order, and any part of the unsynced names. A failed sync drops what it failed to write although the
//! program still sees it, as on Linux. All draws come from one seed.
//!
//! It follows Pebble's crash-clone file system; the faults are those of reliability.md. It does not model
//! permissions, links, or time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::{DIRECT_ALIGNMENT, Directory, File, FileId, FileSystem, Lock, Space};

/// Length of a sector in bytes: the medium writes a sector whole or not at all.
const SECTOR_LEN: u64 = 512;

const DEVICE: u64 = 7;

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Creating a file.
    Create,
    /// Opening a file or a directory, listing, locking, and asking for free space.
    Open,
    /// Examining which file a name or a descriptor leads to: stat.
    Identify,
    /// Reading by any call.
    Read,
    /// Writing; a failed write leaves a part of its bytes.
    Write,
    /// Syncing a file.
    Sync,
    /// Truncating or extending a file.
    SetLen,
    /// Renaming.
    Rename,
    /// Removing a name.
    Unlink,
    /// Syncing a directory.
    SyncDirectory,
}

impl Call {
    fn changes_something(self) -> bool {
        !matches!(self, Call::Open | Call::Identify | Call::Read)
    }
}

/// An injected failure of calls.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Kind of call.
    pub call: Call,
    /// Number of such calls that succeed first.
    pub after: u64,
    /// Number of calls that then fail.
    pub count: u64,
    /// The `errno` of the failure: 5 is EIO, 24 EMFILE, 28 ENOSPC.
    pub errno: i32,
}

/// Number and size of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Read calls, each of which is one read of the disk where nothing is cached.
    pub calls: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

/// A file system in memory that crashes and fails on command. Clones share the same files.
#[derive(Clone, Debug)]
pub struct SimulatedFileSystem {
    world: Arc<Mutex<World>>,
}

#[derive(Debug)]
struct World {
    random: u64,
    nodes: BTreeMap<u64, Node>,
    next_inode: u64,
    /// Files by path, as the program sees them, to their inodes.
    names: BTreeMap<PathBuf, u64>,
    directories: BTreeSet<PathBuf>,
    /// Files by path, as the medium has them.
    durable_names: BTreeMap<PathBuf, u64>,
    /// Changes of names since the last sync of their directory.
    pending_names: Vec<NameChange>,
    locked: BTreeSet<PathBuf>,
    capacity: u64,
    faults: Vec<Fault>,
    /// Number of mutating calls so far.
    changes: u64,
    reads: Reads,
    dies_at: Option<u64>,
    is_dead: bool,
    /// Runs in the middle of the next sync.
    interruption: Option<Interruption>,
}

/// What another thread does during a sync.
struct Interruption(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interruption")
    }
}

/// A hung sync; see [`SimulatedFileSystem::hold_next_sync`].
#[derive(Debug)]
pub struct HeldSync {
    has_begun: oneshot::Receiver<()>,
    _release: std::sync::mpsc::Sender<()>,
}

impl HeldSync {
    /// Completes when the sync has begun.
    pub async fn begun(&mut self) {
        // An error means that the file system is gone.
        let _ = (&mut self.has_begun).await;
    }
}

#[derive(Debug, Default)]
struct Node {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<ContentChange>,
}

#[derive(Clone, Debug)]
enum ContentChange {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

/// Removes one name and adds another, atomically.
#[derive(Clone, Debug)]
struct NameChange {
    remove: Option<PathBuf>,
    add: Option<(PathBuf, u64)>,
}

impl SimulatedFileSystem {
    /// Creates an empty file system with room for `capacity` bytes.
    pub fn new(seed: u64, capacity: u64) -> Self {
        let world = World {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            nodes: BTreeMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            directories: BTreeSet::from([PathBuf::from("/")]),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            locked: BTreeSet::new(),
            capacity,
            faults: Vec::new(),
            changes: 0,
            reads: Reads::default(),
            dies_at: None,
            is_dead: false,
            interruption: None,
        };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// Returns the number of mutating calls so far, including failed ones.
    pub fn changes(&self) -> u64 {
        self.world.lock().changes
    }

    /// Returns the reads of files so far.
    pub fn reads(&self) -> Reads {
        self.world.lock().reads
    }

    /// Makes the program die in its `change`-th mutating call: that call takes effect in part or not at all, and it and
    /// all later ones fail.
    pub fn die_at(&self, change: u64) {
        self.world.lock().dies_at = Some(change);
    }

    /// Runs `interruption` just before the next sync of a file takes effect, as if another thread ran while
    /// this one waits for the medium.
    pub fn before_next_sync(&self, interruption: Box<dyn FnOnce() + Send>) {
        self.world.lock().interruption = Some(Interruption(interruption));
    }

    /// Makes the next sync of a file hang until the returned value is dropped. It blocks the calling thread.
    pub fn hold_next_sync(&self) -> HeldSync {
        let (begun, has_begun) = oneshot::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        self.before_next_sync(Box::new(move || {
            // Errors mean that nothing waits for the one, and that the sender of the other was dropped.
            let _ = begun.send(());
            let _ = released.recv();
        }));
        HeldSync { has_begun, _release: release }
    }

    /// Returns whether the program has died.
    pub fn is_dead(&self) -> bool {
        self.world.lock().is_dead
    }

    /// Makes some calls fail from now on.
    pub fn inject(&self, fault: Fault) {
        self.world.lock().faults.push(fault);
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.world.lock().faults.clear();
    }

    /// Sets the size of the medium in bytes.
    pub fn set_capacity(&self, capacity: u64) {
        self.world.lock().capacity = capacity;
    }

    /// Changes a file's bytes on the medium behind the program's back. Returns false if there is no such file.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut world = self.world.lock();
        let Some(inode) = world.names.get(path).copied() else { return false };
        let node = world.node(inode);
        change(&mut node.seen);
        node.durable = node.seen.clone();
        node.pending.clear();
        true
    }

    /// Returns the paths of all files.
    pub fn files(&self) -> Vec<PathBuf> {
        self.world.lock().names.keys().cloned().collect()
    }

    /// Returns the files after the program was killed while the machine kept running: everything written is visible,
    /// but not yet synced. The old file system stays dead.
    pub fn after_kill(&self) -> Self {
        let mut world = self.world.lock();
        world.is_dead = true;
        let mut next = world.successor();
        next.nodes = std::mem::take(&mut world.nodes);
        next.names = std::mem::take(&mut world.names);
        next.durable_names = std::mem::take(&mut world.durable_names);
        next.pending_names = std::mem::take(&mut world.pending_names);
        Self { world: Arc::new(Mutex::new(next)) }
    }

    /// Returns the files after a power cut, with a random part of what was not synced. The old file system stays dead.
    pub fn after_power_cut(&self) -> Self {
        let mut world = self.world.lock();
        world.is_dead = true;
        let mut next = world.successor();
        let keep = next.draw_share();
        let mut names = std::mem::take(&mut world.durable_names);
        for change in std::mem::take(&mut world.pending_names) {
            if next.chance(keep) {
                change.apply(&mut names);
            }
        }
        for inode in names.values() {
            let mut node = world.nodes.remove(inode).unwrap_or_default();
            let keep = next.draw_share();
            for change in std::mem::take(&mut node.pending) {
                for part in change.torn() {
                    if next.chance(keep) {
                        part.apply(&mut node.durable);
                    }
                }
            }
            next.nodes.insert(*inode, Node { seen: node.durable.clone(), ..node });
        }
        next.names = names.clone();
        next.durable_names = names;
        Self { world: Arc::new(Mutex::new(next)) }
    }

    fn read(&self, len: usize) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.call(Call::Read)?;
        world.reads.calls += 1;
        world.reads.bytes += len as u64;
        Ok(world)
    }

    fn call(&self, call: Call) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.world.lock();
        world.enter(call)?;
        Ok(world)
    }
}

impl World {
    fn successor(&mut self) -> World {
        World {
            random: self.draw() | 1,
            nodes: BTreeMap::new(),
            next_inode: self.next_inode,
            names: BTreeMap::new(),
            directories: self.directories.clone(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            locked: BTreeSet::new(),
            capacity: self.capacity,
            faults: Vec::new(),
            changes: 0,
            reads: Reads::default(),
            dies_at: None,
            interruption: None,
            is_dead: false,
        }
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    /// Draws the share of changes that survive, in thousandths: none, all, or in between.
    fn draw_share(&mut self) -> u64 {
        match self.draw() % 4 {
            0 => 0,
            1 => 1000,
            _ => self.draw() % 1001,
        }
    }

    fn chance(&mut self, permille: u64) -> bool {
        self.draw() % 1000 < permille
    }

    fn node(&mut self, inode: u64) -> &mut Node {
        self.nodes.entry(inode).or_default()
    }

    /// Fails if the program is dead, dies in this call, or a fault is due.
    fn enter(&mut self, call: Call) -> io::Result<()> {
        if self.is_dead {
            return Err(io::Error::other("the program is dead"));
        }
        if call.changes_something() {
            self.changes += 1;
            if self.dies_at.is_some_and(|change| self.changes >= change) {
                self.is_dead = true;
                return Err(io::Error::other("the program dies here"));
            }
        }
        for fault in self.faults.iter_mut().filter(|fault| fault.call == call) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.count > 0 {
                fault.count -= 1;
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        self.names.values().filter_map(|inode| self.nodes.get(inode)).map(|node| node.seen.len() as u64).sum()
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }

    fn change_content(&mut self, inode: u64, change: ContentChange) {
        let node = self.node(inode);
        change.apply(&mut node.seen);
        node.pending.push(change);
    }

    fn write(&mut self, inode: u64, offset: u64, bytes: Vec<u8>) -> io::Result<()> {
        let grows = (offset + bytes.len() as u64).saturating_sub(self.node(inode).seen.len() as u64);
        let room = self.capacity.saturating_sub(self.used());
        if grows > room {
            // The file system writes as much as fits.
            let fits = bytes.len() - ((grows - room) as usize).min(bytes.len());
            self.change_content(inode, ContentChange::Write { offset, bytes: bytes[..fits].to_vec() });
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.change_content(inode, ContentChange::Write { offset, bytes });
        Ok(())
    }

    /// Lets some pending changes reach the medium; the rest never will, but stays visible.
    fn fail_sync(&mut self, inode: u64) {
        let keep = self.draw_share();
        for change in std::mem::take(&mut self.node(inode).pending) {
            for part in change.torn() {
                if self.chance(keep) {
                    part.apply(&mut self.node(inode).durable);
                }
            }
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        if let Some(path) = &self.remove {
            names.remove(path);
        }
        if let Some((path, inode)) = &self.add {
            names.insert(path.clone(), *inode);
        }
    }

    fn concerns(&self, directory: &Path) -> bool {
        let added = self.add.as_ref().map(|(path, _)| path);
        added.into_iter().chain(&self.remove).any(|path| path.parent() == Some(directory))
    }
}

impl ContentChange {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            ContentChange::SetLen(len) => content.resize(*len as usize, 0),
            ContentChange::Write { bytes, .. } if bytes.is_empty() => {}
            ContentChange::Write { offset, bytes } => {
                let start = *offset as usize;
                let end = start + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[start..end].copy_from_slice(bytes);
            }
        }
    }

    /// Splits the change into parts that reach the medium independently.
    fn torn(self) -> Vec<ContentChange> {
        let ContentChange::Write { mut offset, bytes } = self else { return vec![self] };
        let mut parts = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let len = ((SECTOR_LEN - offset % SECTOR_LEN) as usize).min(rest.len());
            parts.push(ContentChange::Write { offset, bytes: rest[..len].to_vec() });
            offset += len as u64;
            rest = &rest[len..];
        }
        parts
    }
}

/// A range of a file's content, to which changes of the whole file can be applied.
struct View {
    start: usize,
    /// Maximum length of the range.
    len: usize,
    /// The bytes that the file has in the range.
    bytes: Vec<u8>,
    file_len: usize,
}

impl View {
    fn of(content: &[u8], start: usize, len: usize) -> Self {
        Self { start, len, bytes: part(content, start as u64, len), file_len: content.len() }
    }

    /// Same as [`ContentChange::apply`] on the whole content.
    fn apply(&mut self, change: &ContentChange) {
        match change {
            ContentChange::SetLen(len) => self.set_file_len(*len as usize),
            ContentChange::Write { bytes, .. } if bytes.is_empty() => {}
            ContentChange::Write { offset, bytes } => {
                let (first, end) = (*offset as usize, *offset as usize + bytes.len());
                self.set_file_len(self.file_len.max(end));
                let (from, to) = (first.max(self.start), end.min(self.start + self.bytes.len()));
                if from < to {
                    self.bytes[from - self.start..to - self.start]
                        .copy_from_slice(&bytes[from - first..to - first]);
                }
            }
        }
    }

    fn set_file_len(&mut self, file_len: usize) {
        self.bytes.resize(file_len.saturating_sub(self.start).min(self.len), 0);
        self.file_len = file_len;
    }
}

impl FileSystem for SimulatedFileSystem {
    fn create_directories(&self, path: &Path) -> io::Result<()> {
        // Directories are durable at once: the store creates them before it acknowledges anything.
        let mut world = self.call(Call::Open)?;
        world.directories.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut world = self.call(Call::Create)?;
        if world.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !path.parent().is_some_and(|parent| world.directories.contains(parent)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inode = world.next_inode;
        world.next_inode += 1;
        world.nodes.insert(inode, Node::default());
        world.change_name(NameChange { remove: None, add: Some((path.to_owned(), inode)) });
        Ok(Arc::new(SimulatedFile { fs: self.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let world = self.call(Call::Open)?;
        let inode = *world.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile { fs: self.clone(), inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.call(Call::Rename)?;
        let inode = *world.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        world.change_name(NameChange { remove: Some(from.to_owned()), add: Some((to.to_owned(), inode)) });
        Ok(())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut world = self.call(Call::Unlink)?;
        if !world.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        world.change_name(NameChange { remove: Some(path.to_owned()), add: None });
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let world = self.call(Call::Open)?;
        if !world.directories.contains(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let paths = world.names.keys().chain(&world.directories);
        let children = paths.filter(|path| path.parent() == Some(directory));
        Ok(children.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn open_directory(&self, directory: &Path) -> io::Result<Box<dyn Directory>> {
        drop(self.call(Call::Open)?);
        Ok(Box::new(SimulatedDirectory { fs: self.clone(), path: directory.to_owned() }))
    }

    fn identify(&self, path: &Path) -> io::Result<FileId> {
        let world = self.call(Call::Identify)?;
        let inode = *world.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(FileId { device: DEVICE, inode })
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let world = self.call(Call::Open)?;
        let available = world.capacity.saturating_sub(world.used());
        Ok(Space { capacity: world.capacity, available, medium: DEVICE })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut world = self.call(Call::Open)?;
        if !world.locked.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if !world.names.contains_key(path) {
            let inode = world.next_inode;
            world.next_inode += 1;
            world.nodes.insert(inode, Node::default());
            world.change_name(NameChange { remove: None, add: Some((path.to_owned(), inode)) });
        }
        Ok(Box::new(SimulatedLock { fs: self.clone(), path: path.to_owned() }))
    }
}

#[derive(Debug)]
struct SimulatedDirectory {
    fs: SimulatedFileSystem,
    path: PathBuf,
}

impl Directory for SimulatedDirectory {
    fn sync(&self) -> io::Result<()> {
        let mut world = self.fs.call(Call::SyncDirectory)?;
        for change in std::mem::take(&mut world.pending_names) {
            match change.concerns(&self.path) {
                true => change.apply(&mut world.durable_names),
                false => world.pending_names.push(change),
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct SimulatedLock {
    fs: SimulatedFileSystem,
    path: PathBuf,
}

impl Lock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.fs.world.lock().locked.remove(&self.path);
    }
}

#[derive(Debug)]
struct SimulatedFile {
    fs: SimulatedFileSystem,
    inode: u64,
}

fn part(content: &[u8], offset: u64, len: usize) -> Vec<u8> {
    let start = (offset as usize).min(content.len());
    content[start..content.len().min(start + len)].to_vec()
}

impl File for SimulatedFile {
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let mut world = self.fs.world.lock();
        let was_dead = world.is_dead;
        match world.enter(Call::Write) {
            Ok(()) => world.write(self.inode, offset, bytes),
            Err(error) => {
                // A failed or interrupted write has written a part of its bytes.
                if !was_dead {
                    let written = world.draw() as usize % (bytes.len() + 1);
                    let _ = world.write(self.inode, offset, bytes[..written].to_vec());
                }
                Err(error)
            }
        }
    }

    fn write_direct_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let is_aligned = |number: usize| number.is_multiple_of(DIRECT_ALIGNMENT);
        let fits = |part: &IoSlice<'_>| is_aligned(part.len()) && is_aligned(part.as_ptr().addr());
        if !is_aligned(offset as usize) || !parts.iter().all(fits) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The data reaches the device's cache, which a power cut empties as well.
        self.write_all_at(parts, offset)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut world = self.fs.read(len)?;
        Ok(part(&world.node(self.inode).seen, offset, len))
    }

    fn read_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.read_at(offset, buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn read_cached_into(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        Ok(self.read_into(offset, buffer)? == buffer.len())
    }

    fn read_medium_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut world = self.fs.read(len)?;
        // A direct read first writes dirty pages out, without making them durable.
        let node = world.node(self.inode);
        let mut view = View::of(&node.durable, offset as usize, len);
        node.pending.iter().for_each(|change| view.apply(change));
        Ok(view.bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let interruption = self.fs.world.lock().interruption.take();
        if let Some(Interruption(happens)) = interruption {
            happens();
        }
        let mut world = self.fs.world.lock();
        if let Err(error) = world.enter(Call::Sync) {
            // A program that dies in a sync loses nothing that the machine still has in memory.
            if !world.is_dead {
                world.fail_sync(self.inode);
            }
            return Err(error);
        }
        let node = world.node(self.inode);
        for change in std::mem::take(&mut node.pending) {
            change.apply(&mut node.durable);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.fs.call(Call::SetLen)?;
        world.change_content(self.inode, ContentChange::SetLen(len));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let mut world = self.fs.call(Call::Read)?;
        Ok(world.node(self.inode).seen.len() as u64)
    }

    fn id(&self) -> io::Result<FileId> {
        drop(self.fs.call(Call::Identify)?);
        Ok(FileId { device: DEVICE, inode: self.inode })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_view_is_changed_as_the_whole_is(
            content in vec(any::<u8>(), 0..40),
            changes in vec((any::<bool>(), 0_u64..60, vec(any::<u8>(), 0..30)), 0..8),
            start in 0_usize..60,
            len in 0_usize..60,
        ) {
            let (mut whole, mut view) = (content.clone(), View::of(&content, start, len));
            for (is_write, at, bytes) in changes {
                let change = match is_write {
                    true => ContentChange::Write { offset: at, bytes },
                    false => ContentChange::SetLen(at),
                };
                change.apply(&mut whole);
                view.apply(&change);
                prop_assert_eq!(&view.bytes, &part(&whole, start as u64, len));
            }
        }
    }

    fn write(file: &Arc<dyn File>, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(&mut [IoSlice::new(bytes)], offset)
    }

    /// Returns the contents of a file after power cuts, with one unsynced write behind a synced one.
    fn outcomes(sync_name: bool) -> BTreeSet<Option<Vec<u8>>> {
        let path = Path::new("/file");
        (0..200)
            .map(|seed| {
                let fs = SimulatedFileSystem::new(seed, 1 << 20);
                let file = fs.create(path).expect("created");
                write(&file, &[1; 512], 0).expect("written");
                file.sync().expect("synced");
                if sync_name {
                    fs.sync_directory(Path::new("/")).expect("synced");
                }
                write(&file, &[2; 1024], 512).expect("written");
                let after = fs.after_power_cut();
                let file = after.open(path).ok()?;
                Some(file.read_at(0, 4096).expect("read"))
            })
            .collect()
    }

    #[test]
    fn a_power_cut_keeps_what_is_synced_and_any_sectors_of_the_rest() {
        let outcomes = outcomes(true);
        assert!(outcomes.iter().all(|content| content.as_ref().is_some_and(|c| c[..512] == [1; 512])));
        let [one, zero, two] = [[1; 512], [0; 512], [2; 512]];
        for expected in [vec![one], vec![one, two], vec![one, zero, two], vec![one, two, two]] {
            assert!(outcomes.contains(&Some(expected.concat())));
        }
    }

    #[test]
    fn an_unsynced_name_may_be_lost() {
        assert!(outcomes(false).contains(&None));
    }

    #[test]
    fn a_failed_sync_forgets_what_the_program_still_sees() {
        let lost = (0..50).any(|seed| {
            let fs = SimulatedFileSystem::new(seed, 1 << 20);
            let file = fs.create(Path::new("/file")).expect("created");
            fs.sync_directory(Path::new("/")).expect("synced");
            write(&file, &[1; 512], 0).expect("written");
            fs.inject(Fault { call: Call::Sync, after: 0, count: 1, errno: 5 });
            file.sync().expect_err("the fault");
            file.sync().expect("a second sync says that all is well");
            assert_eq!(file.read_at(0, 512).expect("read"), [1; 512]);
            let after = fs.after_power_cut().open(Path::new("/file")).expect("opened");
            after.read_at(0, 512).expect("read").is_empty()
        });
        assert!(lost);
    }
}
