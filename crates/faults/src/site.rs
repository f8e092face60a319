//! A machine with a site: the real chunk store on a simulated file system, behind the real queue.
//!
//! The machine crashes in two ways. When its process is killed, everything that it wrote is still visible afterwards.
//! When its power is cut, any part of the unsynced data is lost. Both can happen in the middle of a call to the file
//! system. Callers that wait for an answer then learn that the connection broke, but not what became of the request.
//!
//! A disk request takes a few milliseconds, and the disk can be made slow or hang. Processing itself takes no time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_core::{ChunkId, ChunkRange, FencingEpoch, Formats, FormatsInForce, LoadReport, RackId, SiteId};
use striate_runtime::{Process, Runtime};
use striate_site::filesystem::{FileSystem, SimulatedFileSystem};
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, ChunkStore, CombineRequest, DeleteRequest, DiskStore,
    DiskStoreOptions, LoadStream, LocalSite, QueueLimits, ReadReply, ReadRequest, ReadStream, Site,
    SiteDirectory, SiteError, SiteIdentity, SiteStatus, SliceStream, StoreStatus, WriteRequest,
};
use striate_virtual_network::{Event, Machine, Trace};

use super::guard::Guard;
use super::mutation::{self, Mutation};

/// Disk size in bytes, unless it is reduced.
pub const CAPACITY: u64 = 1 << 30;
/// Size of a small disk in bytes. It fills up, so levelling constantly moves chunks off it.
pub const SMALL_CAPACITY: u64 = 2 << 20;
/// Sector size of a disk, in bytes.
pub const SECTOR: usize = 512;
/// Mean time of a request.
const SERVICE: Duration = Duration::from_millis(2);
/// Slowdown factor of a slow disk.
const SLOWNESS: u32 = 100;
/// Maximum delay of a replayed message.
pub const REPLAYED_WITHIN: Duration = Duration::from_secs(4);
/// Poll interval of a hung request.
const HUNG_LOOK: Duration = Duration::from_millis(20);
/// Interval between steps of the store's own upkeep.
const UPKEEP: Duration = Duration::from_secs(1);

/// How a machine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed; the machine keeps running.
    Kill,
    /// The power is cut.
    PowerCut,
}

/// A machine with a site.
#[derive(Debug)]
pub struct SiteMachine {
    /// Place in the network.
    pub machine: Machine,
    /// Identity of the site.
    pub identity: SiteIdentity,
    runtime: Runtime,
    trace: Trace,
    mutation: Mutation,
    guard: Guard,
    capacity: u64,
    state: Arc<Mutex<State>>,
    disk: Arc<Mutex<Disk>>,
    neighbours: OnceLock<Arc<dyn SiteDirectory>>,
}

#[derive(Debug)]
struct State {
    fs: SimulatedFileSystem,
    running: Option<RunningSite>,
    /// Where segments were damaged since the last start.
    holes: BTreeMap<PathBuf, usize>,
    /// True while calls to the file system fail.
    fails: bool,
    /// Draws which writes and deletes are replayed; `None` while none is.
    replays: Option<SmallRng>,
}

/// The site's process.
#[derive(Clone, Debug)]
struct RunningSite {
    site: LocalSite,
    store: Arc<DiskStore>,
    process: Process,
}

/// Current behaviour of the disk.
#[derive(Debug)]
struct Disk {
    rng: SmallRng,
    hung: bool,
    slow: bool,
}

/// Small segments, so that a short run rolls and compacts them. Until their first restart, sites with odd numbers
/// write chunk format 1, so that chunks of both formats exist. Some chunks are long enough to be paged.
fn options(site: SiteId, is_first_start: bool) -> DiskStoreOptions {
    let is_old = is_first_start && site.0 % 2 == 1;
    DiskStoreOptions {
        formats: FormatsInForce::new(if is_old { Formats::OLDEST } else { Formats::NEWEST }),
        paged_from: 16 << 10,
        segment_len: Some(96 << 10),
        reserve_bytes: Some(64 << 10),
        compact_step_bytes: 32 << 10,
        direct_bytes: 24 << 10,
        open_files: 8,
        snapshot_after_bytes: 256 << 10,
        ..DiskStoreOptions::default()
    }
}

impl SiteMachine {
    /// Creates a stopped machine with an empty disk.
    pub fn new(
        runtime: Runtime,
        trace: Trace,
        machine: Machine,
        identity: SiteIdentity,
        mutation: Mutation,
        guard: Guard,
        capacity: u64,
    ) -> Self {
        let fs = SimulatedFileSystem::new(runtime.random_u64(), capacity);
        let disk = Disk { rng: runtime.rng(), hung: false, slow: false };
        let state = State { fs, running: None, holes: BTreeMap::new(), fails: false, replays: None };
        let state = Arc::new(Mutex::new(state));
        let (disk, neighbours) = (Arc::new(Mutex::new(disk)), OnceLock::new());
        Self { machine, identity, runtime, trace, mutation, guard, capacity, state, disk, neighbours }
    }

    /// Sets how the site reaches the other sites; call it before the start.
    pub fn introduce(&self, neighbours: Arc<dyn SiteDirectory>) {
        let _ = self.neighbours.set(neighbours);
    }

    /// Returns the site's number.
    pub fn id(&self) -> SiteId {
        self.identity.site
    }

    /// Starts the site from the contents of its disk.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn start(&self) -> Result<(), String> {
        self.trace.record(Event::Fault, u64::from(self.id().0), 2);
        let (runtime, process) = self.runtime.process();
        let fs = self.fs();
        if self.mutation == Mutation::RecoveryStopsAtHole {
            // Such a recovery reads a segment only up to the damage.
            for (path, hole) in std::mem::take(&mut self.state.lock().holes) {
                fs.damage(&path, |bytes| bytes.truncate(hole));
            }
        }
        let file_system: Arc<dyn FileSystem> = mutation::file_system(self.mutation, &fs);
        let options = options(self.id(), fs.files().is_empty());
        let store = DiskStore::open(&runtime, file_system, Path::new("/disk"), options)
            .map_err(|error| format!("site {}: {error}", self.id()))?;
        let store = Arc::new(store);
        let timed =
            TimedStore { runtime: runtime.clone(), disk: Arc::clone(&self.disk), store: Arc::clone(&store) };
        let behind = mutation::chunk_store(self.mutation, Arc::new(timed));
        let behind = self.guard.clone().over(behind, Arc::clone(&store));
        let site = LocalSite::new(runtime.clone(), self.identity.clone(), behind, QueueLimits::default());
        if let Some(neighbours) = self.neighbours.get() {
            site.set_directory(Arc::downgrade(neighbours));
        }
        runtime.spawn(keep_up(runtime.clone(), Arc::clone(&store)));
        self.state.lock().running = Some(RunningSite { site, store, process });
        Ok(())
    }

    /// Fault: the machine dies at this instant. Returns false if it was already dead.
    pub fn crash(&self, crash: Crash) -> bool {
        let mut state = self.state.lock();
        let Some(running) = state.running.take() else { return false };
        self.trace.record(Event::Fault, u64::from(self.id().0), 1);
        running.process.kill();
        state.fs = match crash {
            Crash::Kill => state.fs.after_kill(),
            Crash::PowerCut => state.fs.after_power_cut(),
        };
        drop(state);
        // Its destructor finds a dead file system.
        drop(running);
        true
    }

    /// Returns true if the process runs.
    pub fn is_up(&self) -> bool {
        self.state.lock().running.is_some()
    }

    /// Returns the disk's file system.
    pub fn fs(&self) -> SimulatedFileSystem {
        self.state.lock().fs.clone()
    }

    /// Returns the store, bypassing queue and delays; `None` if the site is down.
    pub fn store(&self) -> Option<Arc<DiskStore>> {
        self.state.lock().running.as_ref().map(|running| Arc::clone(&running.store))
    }

    /// Returns the chunks on the disk that are as they were written, whether or not a committed stripe names them;
    /// `None` if the site is down.
    pub fn whole_chunks(&self) -> Option<BTreeSet<ChunkId>> {
        Some(self.chunks()?.0)
    }

    /// Returns the chunks on the disk that are not as they were written; `None` if the site is down.
    pub fn damaged_chunks(&self) -> Option<BTreeSet<ChunkId>> {
        Some(self.chunks()?.1)
    }

    /// Returns the undamaged and the damaged chunks.
    fn chunks(&self) -> Option<(BTreeSet<ChunkId>, BTreeSet<ChunkId>)> {
        let store = self.store()?;
        let page = store.list(None, usize::MAX).now_or_never()?.ok()?;
        let is_whole = |chunk: &ChunkId| matches!(store.verify(*chunk).now_or_never(), Some(Ok(_)));
        Some(page.chunks.into_iter().map(|stored| stored.chunk).partition(is_whole))
    }

    /// Fault: flips a bit of a file at byte `place`, modulo its length. Returns false if the file is empty.
    pub fn flip(&self, path: &Path, place: u64, bit: u32) -> bool {
        let mut flipped = None;
        self.fs().damage(path, |bytes| {
            if !bytes.is_empty() {
                let place = (place % bytes.len() as u64) as usize;
                bytes[place] ^= 1 << bit;
                flipped = Some(place);
            }
        });
        flipped.is_some_and(|place| self.note_hole(path, place))
    }

    /// Fault: overwrites bytes at one place with those of another. Both places are whole sectors, modulo the length
    /// of their file. Returns false if nothing changes.
    pub fn misdirect(&self, from: (&Path, u64), to: (&Path, u64), len: usize) -> bool {
        let (fs, sectors) = (self.fs(), |bytes: &[u8]| bytes.len().div_ceil(SECTOR).max(1) as u64);
        let mut moved = Vec::new();
        fs.damage(from.0, |bytes| {
            let begin = (from.1 % sectors(bytes)) as usize * SECTOR;
            moved = bytes[begin..bytes.len().min(begin + len)].to_vec();
        });
        let mut changed = None;
        fs.damage(to.0, |bytes| {
            let begin = (to.1 % sectors(bytes)) as usize * SECTOR;
            let over = bytes.len().min(begin + moved.len());
            let overwritten = &mut bytes[begin..over];
            if *overwritten != moved[..overwritten.len()] {
                overwritten.copy_from_slice(&moved[..overwritten.len()]);
                changed = Some(begin);
            }
        });
        changed.is_some_and(|place| self.note_hole(to.0, place))
    }

    fn note_hole(&self, path: &Path, place: usize) -> bool {
        let holes = &mut self.state.lock().holes;
        let first = holes.entry(path.to_owned()).or_insert(place);
        *first = place.min(*first);
        true
    }

    /// Fault: calls to the file system begin or cease to fail.
    pub fn set_failing(&self, fails: bool) {
        self.state.lock().fails = fails;
    }

    /// Returns true if calls to the file system fail now, so that reading it shows nothing about its contents.
    pub fn is_failing(&self) -> bool {
        self.state.lock().fails
    }

    /// Fault: limits the disk to this many bytes in all; `None` restores its capacity.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.fs().set_capacity(bytes.map_or(self.capacity, |bytes| bytes.min(self.capacity)));
    }

    /// Fault: the disk hangs, or works again.
    pub fn set_hung(&self, hung: bool) {
        self.disk.lock().hung = hung;
    }

    /// Fault: the disk is slow, or as fast as before.
    pub fn set_slow(&self, slow: bool) {
        self.disk.lock().slow = slow;
    }

    /// Fault: about half of the writes and deletes arrive a second time, up to [`REPLAYED_WITHIN`] later; or none
    /// does.
    pub fn set_replays(&self, on: bool) {
        self.state.lock().replays = on.then(|| self.runtime.rng());
    }

    /// Repeats a request later, if drawn; its result is dropped.
    fn replay<T, F>(&self, request: impl FnOnce(LocalSite) -> F + Send + 'static)
    where
        F: Future<Output = Result<T, SiteError>> + Send,
    {
        let after = {
            let mut state = self.state.lock();
            let Some(rng) = &mut state.replays else { return };
            if rng.random() {
                return;
            }
            REPLAYED_WITHIN.mul_f64(rng.random())
        };
        let (state, runtime) = (Arc::clone(&self.state), self.runtime.clone());
        self.runtime.spawn(async move {
            runtime.sleep(after).await;
            let running = state.lock().running.clone();
            let Some(RunningSite { site, process, .. }) = running else { return };
            tokio::select! {
                biased;
                () = process.killed() => {}
                _ = request(site) => {}
            }
        });
    }

    fn running(&self) -> Result<RunningSite, SiteError> {
        self.state.lock().running.clone().ok_or_else(broken)
    }

    /// Runs a request at the site; a crash meanwhile breaks the connection.
    async fn ask<T, F>(&self, request: impl FnOnce(LocalSite) -> F) -> Result<T, SiteError>
    where
        F: Future<Output = Result<T, SiteError>>,
    {
        let RunningSite { site, process, .. } = self.running()?;
        tokio::select! {
            biased;
            () = process.killed() => Err(broken()),
            answer = request(site) => answer,
        }
    }
}

/// Fault: flips a bit, chosen by `draw`, of a chunk's bytes on a site's disk. Returns false if the chunk cannot be
/// read.
pub fn flip_chunk(site: &SiteMachine, chunk: ChunkId, len: u32, draw: u64) -> bool {
    let Some(store) = site.store() else { return false };
    let range = ChunkRange { chunk, offset: 0, len };
    let Some(Ok(payload)) = store.read(range).now_or_never() else { return false };
    let needle = &payload[..payload.len().min(32)];
    let fs = site.fs();
    for path in fs.files().into_iter().filter(|path| is_segment(path)) {
        let mut at = 0;
        loop {
            let mut place = None;
            let flip = |bytes: &mut Vec<u8>| {
                let found = memchr::memmem::find(&bytes[at..], needle);
                place = found.map(|found| at + found + draw as usize % needle.len());
                place.into_iter().for_each(|place| bytes[place] ^= 1);
            };
            fs.damage(&path, flip);
            let Some(place) = place else { break };
            if !matches!(store.verify(chunk).now_or_never(), Some(Ok(_))) {
                return true;
            }
            // These were the bytes of another chunk with the same content, or of a dead copy.
            fs.damage(&path, |bytes| bytes[place] ^= 1);
            at = place + 1;
        }
    }
    false
}

/// Returns true if a file of the chunk store is a segment.
pub fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "seg")
}

fn broken() -> SiteError {
    SiteError::Unavailable("the machine does not answer".to_owned())
}

/// Forwards slices, and reports a broken connection if the process dies before the last one.
fn until_killed(slices: SliceStream, process: Process) -> SliceStream {
    let next = |state: Option<(SliceStream, Process)>| async move {
        let (mut slices, process) = state?;
        tokio::select! {
            biased;
            () = process.killed() => Some((Err(broken()), None)),
            slice = slices.next() => slice.map(|slice| (slice, Some((slices, process)))),
        }
    };
    futures::stream::unfold(Some((slices, process)), next).boxed()
}

/// Runs the store's own upkeep, which a server does in a thread.
async fn keep_up(runtime: Runtime, store: Arc<DiskStore>) {
    for round in 1u32.. {
        runtime.sleep(UPKEEP).await;
        store.compact_step();
        if round.is_multiple_of(8) {
            // A failing disk reports the error to writers.
            let _ = store.checkpoint();
        }
    }
}

#[async_trait]
impl Site for SiteMachine {
    fn id(&self) -> SiteId {
        self.identity.site
    }

    fn rack(&self) -> RackId {
        self.identity.rack.clone()
    }

    fn last_load(&self) -> LoadReport {
        self.running().map(|running| running.site.last_load()).unwrap_or_default()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        match self.running() {
            Ok(RunningSite { site, process, .. }) => {
                let killed = async move { process.killed().await };
                site.read(request).take_until(Box::pin(killed)).boxed()
            }
            Err(error) => {
                let load = LoadReport::default();
                let reply = move |item| ReadReply { item, result: Err(error.clone()), load };
                futures::stream::iter((0..request.ranges.len()).map(reply)).boxed()
            }
        }
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        let again = request.clone();
        self.replay(|site| async move { site.write(again).await });
        self.ask(|site| async move { site.write(request).await }).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        let again = request.clone();
        self.replay(|site| async move { site.delete(again).await });
        self.ask(|site| async move { site.delete(request).await }).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.ask(|site| async move { site.list(from, limit).await }).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.ask(|site| async move { site.verify(chunk).await }).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        match self.running() {
            Ok(RunningSite { site, process, .. }) => until_killed(site.combine(request), process),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        let again = request.clone();
        self.replay(|site| async move { site.assemble(again).await });
        self.ask(|site| async move { site.assemble(request).await }).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.ask(|site| async move { site.status().await }).await
    }

    fn watch(&self) -> LoadStream {
        match self.running() {
            Ok(RunningSite { site, process, .. }) => {
                let killed = async move { process.killed().await };
                site.watch().take_until(Box::pin(killed)).boxed()
            }
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    }
}

/// The real store with the delays of its disk.
#[derive(Debug)]
struct TimedStore {
    runtime: Runtime,
    disk: Arc<Mutex<Disk>>,
    store: Arc<DiskStore>,
}

impl TimedStore {
    /// Waits for as long as a disk request takes.
    async fn wait(&self) {
        let took = {
            let mut disk = self.disk.lock();
            let share: f64 = disk.rng.random();
            let mean = if disk.slow { SERVICE * SLOWNESS } else { SERVICE };
            mean.mul_f64(-(1.0 - share).ln())
        };
        self.runtime.sleep(took).await;
        while self.disk.lock().hung {
            self.runtime.sleep(HUNG_LOOK).await;
        }
    }
}

#[async_trait]
impl ChunkStore for TimedStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        self.wait().await;
        self.store.write(chunk, payload, granule_crcs).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.wait().await;
        self.store.read(range).await
    }

    fn try_read(&self, _range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.wait().await;
        self.store.delete(chunks, epoch).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.wait().await;
        self.store.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.wait().await;
        self.store.verify(chunk).await
    }

    fn status(&self) -> StoreStatus {
        self.store.status()
    }
}
