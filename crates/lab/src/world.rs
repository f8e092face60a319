//! A cluster in virtual time: machines with a site each, clients on some of them, one metadata store.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use striate_client::{Client, ClientError, ClientOptions, CreateBucket};
use striate_core::{ClusterId, Formats, Profile, RackId, SiteId};
use striate_meta::records::Block;
use striate_meta::store::limits;
use striate_meta::{MemoryStore, MetaStore, Transaction, TxId, keys, records};
use striate_plan::{Candidate, Grouping, PlacementRule, ReadPolicy};
use striate_runtime::Runtime;
use striate_site::{LocalSite, QueueLimits, Site, SiteDirectory, SiteIdentity};
use striate_stripe::StripeOptions;
use striate_virtual_network::site::SILENCE;
use striate_virtual_network::{DistantMeta, DistantSite, Machine, Network, NetworkModel, Trace};

use crate::calibration::Calibration;
use crate::contents::GeneratedStripes;
use crate::movement::MovementOptions;
use crate::objects::{BUCKET, Changes};
use crate::store::ModelledStore;

/// Parameters of a world.
#[derive(Clone, Debug, PartialEq)]
pub struct WorldOptions {
    /// Constants of sites and network.
    pub calibration: Calibration,
    /// Number of sites, one per machine.
    pub sites: u32,
    /// Number of racks, over which the machines are spread evenly.
    pub racks: u32,
    /// Number of machines, from the first, that also run a client service.
    pub clients: u32,
    /// Code of the blocks.
    pub profile: Profile,
    /// Maximum block length in bytes; k divides it.
    pub block_len: u32,
    /// Number of objects, of one such block each, that exist from the start.
    pub blocks: u32,
    /// Number of neighbouring blocks that go to the same sites; 1 puts each block on random sites.
    pub group_len: usize,
    /// Policy by which clients choose chunks.
    pub policy: ReadPolicy,
    /// Interval at which the published policy asks all sites for their load.
    pub probe_interval: Duration,
    /// Options of the mover, if there is one: [`Movement::start`](crate::movement::Movement::start).
    pub movement: Option<MovementOptions>,
    /// Bandwidth of each machine's network card, in bytes per second; `None`: never the bottleneck.
    pub card_bytes_per_s: Option<f64>,
    /// Bandwidth of each rack's uplink, in bytes per second; `None`: never the bottleneck.
    pub uplink_bytes_per_s: Option<f64>,
    /// Share of messages that are lost.
    pub loss: f64,
}

impl WorldOptions {
    /// The EC-Store paper's cluster: 32 machines with site and client service, in one rack, and blocks of
    /// 100 KB.
    pub fn ec_store(calibration: Calibration, profile: Profile, blocks: u32, policy: ReadPolicy) -> Self {
        Self {
            calibration,
            sites: 32,
            racks: 1,
            clients: 32,
            profile,
            block_len: 100_000,
            blocks,
            group_len: 1,
            policy,
            probe_interval: Duration::from_secs(5),
            movement: None,
            card_bytes_per_s: None,
            uplink_bytes_per_s: None,
            loss: 0.0,
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct World {
    /// Clock and randomness.
    pub runtime: Runtime,
    /// Event log.
    pub trace: Trace,
    /// Network between the machines.
    pub network: Network,
    /// The metadata engine itself.
    pub engine: Arc<MemoryStore>,
    /// Blocks that exist from the start.
    pub stripes: Arc<GeneratedStripes>,
    /// Number of the first block of each object, followed by the number of all blocks.
    first_blocks: Vec<u32>,
    /// Objects that have changed since the start.
    pub(crate) changes: Changes,
    /// Machines with sites, by number.
    pub machines: Vec<SiteMachine>,
    /// Client services, on the first machines.
    pub clients: Vec<Client>,
    /// Read policy of the clients.
    pub policy: ReadPolicy,
    _directories: Vec<Arc<Directory>>,
}

/// A machine with a site.
#[derive(Debug)]
pub struct SiteMachine {
    /// Place in the network.
    pub machine: Machine,
    /// The machine's site.
    pub site: LocalSite,
    /// The machine's disk.
    pub store: Arc<ModelledStore>,
}

/// The other sites, as seen from one site.
#[derive(Debug)]
struct Directory(HashMap<SiteId, Arc<dyn Site>>);

impl SiteDirectory for Directory {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.0.get(&site).cloned()
    }
}

impl World {
    /// Builds the cluster and its objects, each of one block.
    ///
    /// # Errors
    /// If the profile has no code, or a client cannot register.
    pub async fn build(runtime: Runtime, options: &WorldOptions) -> Result<Self, ClientError> {
        let sizes = std::iter::repeat_n(u64::from(options.block_len), options.blocks as usize);
        Self::build_of(runtime, options, sizes).await
    }

    /// Builds the cluster with objects of these sizes in bytes, instead of those in the options. An object is cut
    /// into blocks of [`WorldOptions::block_len`], the last of which may be shorter. Blocks are placed in groups of
    /// [`WorldOptions::group_len`].
    ///
    /// # Errors
    /// As [`World::build`].
    pub async fn build_of(
        runtime: Runtime,
        options: &WorldOptions,
        sizes: impl IntoIterator<Item = u64>,
    ) -> Result<Self, ClientError> {
        let trace = Trace::new(runtime.clone());
        let network = Network::new(runtime.clone(), trace.clone(), options.network());
        let (stripes, first_blocks) = generate(&runtime, options, sizes)?;
        let stripes = Arc::new(stripes);
        let engine = Arc::new(MemoryStore::new(runtime.clone()));
        load_metadata(&runtime, &engine, &stripes).await?;
        let machines: Vec<_> = (0..options.sites)
            .map(|number| site_machine(&runtime, &trace, options, &stripes, number))
            .collect();
        let directories =
            machines.iter().map(|machine| directory(&network, machine.machine, &machines)).collect();
        let mut world = Self {
            runtime,
            trace,
            network,
            engine,
            stripes,
            first_blocks,
            changes: Changes::default(),
            machines,
            clients: Vec::new(),
            policy: options.policy.clone(),
            _directories: directories,
        };
        for directory in world._directories.iter().zip(&world.machines) {
            let weak: Weak<dyn SiteDirectory> = Arc::downgrade(directory.0) as Weak<dyn SiteDirectory>;
            directory.1.site.set_directory(weak);
        }
        world.start_clients(options).await?;
        Ok(world)
    }

    /// Starts the client services and makes the bucket of the objects.
    async fn start_clients(&mut self, options: &WorldOptions) -> Result<(), ClientError> {
        for number in 0..options.clients {
            let here = self.machines[number as usize].machine;
            let client = self.client(here, options.client_options()).await?;
            self.clients.push(client);
        }
        if let Some(client) = self.clients.first() {
            let bucket = CreateBucket { name: BUCKET.to_owned(), ..CreateBucket::default() };
            client.create_bucket(bucket).await?;
        }
        Ok(())
    }

    /// Iterates over the initial blocks of an object.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn blocks_of(&self, object: u64) -> impl Iterator<Item = Block> + '_ {
        let at = object as usize;
        (self.first_blocks[at]..self.first_blocks[at + 1]).map(|block| self.stripes.block(block as usize))
    }

    /// Returns the bytes that each site has sent to others, for repairs and moves.
    pub fn sent_between_sites(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| self.network.summed_bytes(machine.machine)).collect()
    }

    /// Returns the machine of the metadata store: a separate one, in the first rack.
    pub fn metadata_machine(&self) -> Machine {
        Machine { number: self.machines.len() as u32, rack: 0 }
    }

    /// Returns the machine from which chunks are moved: a separate one.
    pub fn placement_machine(&self) -> Machine {
        Machine { number: self.machines.len() as u32 + 1, rack: 0 }
    }

    /// Opens a client service on `here`.
    ///
    /// # Errors
    /// If it cannot register.
    pub async fn client(&self, here: Machine, options: ClientOptions) -> Result<Client, ClientError> {
        let engine: Arc<dyn MetaStore> = self.engine.clone();
        let meta = DistantMeta::new(self.network.clone(), here, self.metadata_machine(), engine);
        let sites = distant_sites(&self.network, here, &self.machines);
        Client::open(self.runtime.clone(), Arc::new(meta), sites, options).await
    }
}

impl WorldOptions {
    fn network(&self) -> NetworkModel {
        NetworkModel {
            round_trip: Duration::from_secs_f64(self.calibration.round_trip_ms / 1e3),
            card_bytes_per_s: self.card_bytes_per_s,
            uplink_bytes_per_s: self.uplink_bytes_per_s,
            loss: self.loss,
            reply_timeout: SILENCE,
        }
    }

    /// Returns the options of a client service. It hedges only when a site counts as failed, so that a policy is
    /// measured alone.
    pub fn client_options(&self) -> ClientOptions {
        let defaults = StripeOptions::default();
        let stripes = StripeOptions {
            read_policy: self.policy.clone(),
            probe_interval: Some(self.probe_interval),
            // The papers' clients look up block locations for every request.
            known_stripes: 0,
            // Without a mover, statistics are unused.
            sampling: self.movement.map_or(0.0, |movement| movement.sampling),
            co_access: self.movement.map_or(defaults.co_access, |movement| movement.limits_of(self.clients)),
            hedge_after: defaults.read_deadline,
            ..defaults
        };
        ClientOptions {
            profile: self.profile,
            block_len: self.block_len,
            // Nothing is inline: an object has blocks, whatever its size.
            mirrors: usize::from(u16::MAX),
            stripes,
            ..ClientOptions::default()
        }
    }
}

fn distant_sites(network: &Network, here: Machine, machines: &[SiteMachine]) -> Vec<Arc<dyn Site>> {
    let distant = |machine: &SiteMachine| {
        let site: Arc<dyn Site> = Arc::new(machine.site.clone());
        Arc::new(DistantSite::new(network.clone(), here, machine.machine, site)) as Arc<dyn Site>
    };
    machines.iter().map(distant).collect()
}

fn directory(network: &Network, here: Machine, machines: &[SiteMachine]) -> Arc<Directory> {
    let sites = distant_sites(network, here, machines);
    Arc::new(Directory(sites.into_iter().map(|site| (site.id(), site)).collect()))
}

fn rack(options: &WorldOptions, number: u32) -> u32 {
    number % options.racks.max(1)
}

fn site_machine(
    runtime: &Runtime,
    trace: &Trace,
    options: &WorldOptions,
    stripes: &Arc<GeneratedStripes>,
    number: u32,
) -> SiteMachine {
    let machine = Machine { number, rack: rack(options, number) };
    let identity = SiteIdentity {
        cluster: ClusterId(1),
        site: SiteId(number + 1),
        rack: RackId(format!("rack-{}", machine.rack)),
    };
    let model = options.calibration.site;
    let (runtime, trace) = (runtime.clone(), trace.clone());
    let store =
        ModelledStore::new(runtime.clone(), trace, identity.site, model, Arc::clone(stripes), 1 << 40);
    let store = Arc::new(store);
    // Closed-loop clients bound the queue themselves; their requests must not be refused.
    let limits = QueueLimits { requests: 1 << 16, bytes: 1 << 40, workers: model.workers };
    SiteMachine { machine, site: LocalSite::new(runtime, identity, store.clone(), limits), store }
}

/// Cuts every object into blocks and places these with the real placement. Returns the blocks, and the number of each
/// object's first block followed by the number of all blocks.
fn generate(
    runtime: &Runtime,
    options: &WorldOptions,
    sizes: impl IntoIterator<Item = u64>,
) -> Result<(GeneratedStripes, Vec<u32>), ClientError> {
    let invalid = |error: &dyn Display| ClientError::InvalidArgument(error.to_string());
    options.profile.check_supported(Formats::NEWEST).map_err(|error| invalid(&error))?;
    let code = options.profile.code.build().map_err(|error| invalid(&error))?;
    let candidate = |number| Candidate {
        site: SiteId(number + 1),
        rack: RackId(format!("rack-{}", rack(options, number))),
        free_bytes: 1 << 40,
        queue_requests: 0,
    };
    let candidates: Vec<_> = (0..options.sites).map(candidate).collect();
    let n = code.n();
    let rule = PlacementRule::new(&options.profile, &code, options.racks as usize);
    let mut stripes = GeneratedStripes::new(&options.profile.to_string(), code, options.block_len);
    let mut rng = runtime.rng();
    let mut grouping = Grouping::default();
    let mut first_blocks = vec![0];
    for size in sizes {
        let mut rest = size;
        while rest > 0 {
            let len = rest.min(u64::from(options.block_len));
            rest -= len;
            let mut sites = match options.group_len {
                0 | 1 => rule.draw_sites(&mut rng, &candidates, n),
                group_len => grouping.place((), group_len, &candidates, &rule, &mut rng),
            };
            sites.truncate(n);
            if sites.len() < n {
                let reason =
                    format!("{} sites in {} racks do not take {n} chunks", options.sites, options.racks);
                return Err(ClientError::InvalidArgument(reason));
            }
            stripes.add(&sites, len as u32);
        }
        first_blocks.push(stripes.len() as u32);
    }
    Ok((stripes, first_blocks))
}

/// Writes the stripes' rows into the engine, as the client's commits would have.
pub(crate) async fn load_metadata(
    runtime: &Runtime,
    engine: &MemoryStore,
    stripes: &GeneratedStripes,
) -> Result<(), ClientError> {
    let batch = limits::MAX_OPERATIONS;
    for first in (0..stripes.len()).step_by(batch) {
        let mut tx = Transaction::new(TxId(u128::from(runtime.random_u64())));
        for sequence in first..stripes.len().min(first + batch) {
            let block = stripes.block(sequence);
            let id = block.stripe.as_ref().try_into().expect("a stripe's name has 16 bytes");
            let key = keys::stripe(striate_core::StripeId::from_bytes(id));
            tx.put(key, records::encode(&stripes.record(sequence)));
        }
        engine.commit(tx).await?;
    }
    Ok(())
}
