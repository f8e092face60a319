//! Memory sites, a cache from which the gateways of some seeds read.
//!
//! They are killed and come back empty, and messages to and from them are lost like all others. The gateway of the
//! final checks knows none of them, so it reads from the disks.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use parking_lot::RwLock;
use striate_cache::{Cache, CacheSettings, Keeper};
use striate_client::Client;
use striate_core::{ChunkId, ClusterId, LoadReport, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::cache::LEAST_CACHE_BYTES;
use striate_site::{
    AssembleRequest, CacheOptions, CacheStore, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, Eviction,
    LocalSite, QueueLimits, ReadReply, ReadRequest, ReadStream, Site, SiteError, SiteIdentity, SiteStatus,
    SliceStream, Tend, Tended, WriteRequest,
};
use striate_virtual_network::{DistantSite, Machine, Network};

use super::mutation::{self, Mutation};

/// Number of the first memory site, as a machine and as a site.
const FIRST: u32 = 3_000;
/// Number of memory sites.
const SITES: u32 = 4;
/// Capacity of each memory site in bytes: less than all stored data, so that it must evict.
const HELD_BYTES: u64 = 1 << 20;
/// Blocks of these runs are short, and so are their splits.
const SPLIT_BYTES: u64 = 4 << 10;

/// The memory sites of a run.
#[derive(Debug)]
pub struct MemoryTier {
    /// Machines of the memory sites.
    pub machines: Vec<Arc<MemoryMachine>>,
}

/// A machine with a memory site, which is empty after each start.
#[derive(Debug)]
pub struct MemoryMachine {
    /// Place in the network.
    pub machine: Machine,
    runtime: Runtime,
    mutation: Mutation,
    cluster: ClusterId,
    running: RwLock<Option<Arc<LocalSite>>>,
}

impl MemoryTier {
    /// Starts the memory sites.
    pub fn start(runtime: &Runtime, cluster: ClusterId, mutation: Mutation) -> Self {
        let machine = |number| {
            let number = FIRST + number;
            let machine = Machine { number, rack: number };
            let memory_machine = MemoryMachine {
                machine,
                runtime: runtime.clone(),
                mutation,
                cluster,
                running: RwLock::default(),
            };
            memory_machine.start();
            Arc::new(memory_machine)
        };
        Self { machines: (0..SITES).map(machine).collect() }
    }

    /// Makes the gateway on the machine `here` read from the memory sites.
    pub fn serve(&self, network: &Network, here: Machine, client: &Client) {
        let settings = CacheSettings { split_bytes: SPLIT_BYTES, ..CacheSettings::default() };
        let site = |memory_machine: &Arc<MemoryMachine>| {
            let distant_site =
                DistantSite::new(network.clone(), here, memory_machine.machine, memory_machine.clone());
            (Arc::new(distant_site) as Arc<dyn Site>, HELD_BYTES)
        };
        Cache::new(client.stripes(), settings).set_sites(self.machines.iter().map(site).collect());
    }
}

impl MemoryMachine {
    /// Starts the memory site, empty.
    pub fn start(&self) {
        let options = CacheOptions {
            on_the_way_bytes: LEAST_CACHE_BYTES - HELD_BYTES,
            eviction: if self.machine.number.is_multiple_of(2) { Eviction::Lru } else { Eviction::S3Fifo },
            ..CacheOptions::with_bound(LEAST_CACHE_BYTES)
        };
        let store = Arc::new(CacheStore::new(options).expect("addresses are there"));
        let chunks = mutation::cache_store(self.mutation, store.clone());
        let site = LocalSite::new(self.runtime.clone(), self.identity(), chunks, QueueLimits::default());
        site.set_keeper(Arc::new(Keeper::new(store)));
        *self.running.write() = Some(Arc::new(site));
    }

    /// Fault: the memory site dies and loses its contents.
    pub fn kill(&self) {
        *self.running.write() = None;
    }

    fn identity(&self) -> SiteIdentity {
        let rack = RackId(format!("memory-{}", self.machine.number));
        SiteIdentity { cluster: self.cluster, site: SiteId(self.machine.number), rack }
    }

    fn site(&self) -> Result<Arc<LocalSite>, SiteError> {
        self.running.read().clone().ok_or_else(|| SiteError::Unavailable("it is dead".to_owned()))
    }
}

#[async_trait]
impl Site for MemoryMachine {
    fn id(&self) -> SiteId {
        SiteId(self.machine.number)
    }

    fn rack(&self) -> RackId {
        self.identity().rack
    }

    fn last_load(&self) -> LoadReport {
        self.site().map_or_else(|_| LoadReport::default(), |site| site.last_load())
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        match self.site() {
            Ok(site) => site.read(request),
            Err(error) => {
                let reply =
                    move |item| ReadReply { item, result: Err(error.clone()), load: LoadReport::default() };
                stream::iter((0..request.ranges.len()).map(reply)).boxed()
            }
        }
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.site()?.write(request).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.site()?.delete(request).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.site()?.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.site()?.verify(chunk).await
    }

    async fn has(&self, chunks: Vec<ChunkId>) -> Result<Vec<bool>, SiteError> {
        self.site()?.has(chunks).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        match self.site() {
            Ok(site) => site.combine(request),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.site()?.assemble(request).await
    }

    async fn tend(&self, blocks: Vec<Tend>) -> Result<Vec<Tended>, SiteError> {
        self.site()?.tend(blocks).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.site()?.status().await
    }
}
