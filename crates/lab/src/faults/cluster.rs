//! All machines on one network.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rand::Rng;
use rand::rngs::SmallRng;
use striate_client::{ClientError, ClientOptions, CreateBucket};
use striate_core::{ClusterId, Profile, RackId, SiteId};
use striate_meta::{Commit, MetaStore, Transaction, TxId, keys, records};
use striate_plan::ReadPolicy;
use striate_runtime::Runtime;
use striate_site::{Site, SiteDirectory, SiteIdentity};

use super::coverage::Coverage;
use super::engine::EngineMachine;
use super::gateway::Gateway;
use super::invariants::{Broken, GuardedSite};
use super::ledger::Ledger;
use super::mutation::Mutation;
use super::operation::BUCKET;
use super::site::SiteMachine;
use crate::network::{DistantSite, Machine, Network, NetworkModel};
use crate::trace::Trace;

/// What a cluster is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its profile.
    pub profile: &'static str,
    /// Its sites, each in a rack of its own.
    pub sites: u32,
    /// Its gateways.
    pub gateways: u32,
}

impl Shape {
    /// Those that seeds draw from.
    pub const ALL: [Self; 4] = [
        Self { profile: "rs(4,2)", sites: 6, gateways: 3 },
        Self { profile: "rs(2,2)", sites: 6, gateways: 3 },
        Self { profile: "replica(3)", sites: 5, gateways: 3 },
        Self { profile: "rs(4,2)", sites: 8, gateways: 2 },
    ];
}

/// A cluster under test.
#[derive(Debug)]
pub struct Cluster {
    /// Clock and randomness.
    pub runtime: Runtime,
    /// Its event log.
    pub trace: Trace,
    /// Its network.
    pub network: Network,
    /// Its metadata.
    pub engine: Arc<EngineMachine>,
    /// Its gateways; the last one runs the services beside the data path.
    pub gateways: Vec<Arc<Gateway>>,
    /// What was tried.
    pub coverage: Coverage,
    /// What was taken from it.
    pub ledger: Ledger,
    /// Invariants that were found broken.
    pub broken: Arc<Broken>,
    /// What is planted in it.
    pub mutation: Mutation,
    shape: Shape,
    read_policy: ReadPolicy,
    sites: RwLock<Vec<Arc<SiteMachine>>>,
    rng: Mutex<SmallRng>,
    next_site: Mutex<u32>,
}

/// The sites as one of them sees the others.
#[derive(Debug)]
struct Neighbours {
    cluster: Weak<Cluster>,
    here: Machine,
}

impl SiteDirectory for Neighbours {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        let cluster = self.cluster.upgrade()?;
        let there = cluster.site(site)?;
        Some(cluster.site_from(self.here, &there))
    }
}

/// The machine of the metadata; sites and gateways count from 1.
const ENGINE: Machine = Machine { number: 0, rack: 0 };
/// Machines of gateways count from here.
const FIRST_GATEWAY: u32 = 1_000;

impl Cluster {
    /// A running cluster with an empty bucket.
    ///
    /// # Errors
    /// When a machine cannot be started.
    pub async fn start(
        runtime: Runtime,
        shape: Shape,
        read_policy: ReadPolicy,
        mutation: Mutation,
        broken: Arc<Broken>,
    ) -> Result<Arc<Self>, String> {
        let trace = Trace::new(runtime.clone());
        let model = NetworkModel {
            round_trip: Duration::from_micros(200),
            card_bytes_per_s: None,
            uplink_bytes_per_s: None,
            loss: 0.0,
            reply_timeout: Duration::from_secs(2),
        };
        let network = Network::new(runtime.clone(), trace.clone(), model);
        let engine = EngineMachine::create(runtime.clone(), trace.clone(), mutation).await;
        let engine = Arc::new(engine.map_err(|error| error.to_string())?);
        engine.start().await.map_err(|error| error.to_string())?;
        let gateway = |number| {
            Arc::new(Gateway::new(Machine { number: FIRST_GATEWAY + number, rack: FIRST_GATEWAY + number }))
        };
        let cluster = Arc::new(Self {
            rng: Mutex::new(runtime.rng()),
            gateways: (0..=shape.gateways).map(gateway).collect(),
            coverage: Coverage::default(),
            ledger: Ledger::new(runtime.clone()),
            sites: RwLock::default(),
            next_site: Mutex::new(1),
            runtime,
            trace,
            network,
            engine,
            broken,
            mutation,
            shape,
            read_policy,
        });
        for number in 1..=shape.sites {
            let site = cluster.new_site(Machine { number, rack: number });
            site.start()?;
            cluster.register(site.id(), records::site::State::Active).await?;
            cluster.sites.write().push(site);
        }
        for gateway in &cluster.gateways {
            gateway.start(&cluster).await;
        }
        cluster.make_bucket().await.map_err(|error| error.to_string())?;
        Ok(cluster)
    }

    async fn make_bucket(&self) -> Result<(), ClientError> {
        let client = self.gateways[0].client().expect("it was started");
        client.create_bucket(CreateBucket { name: BUCKET.to_owned(), ..CreateBucket::default() }).await?;
        Ok(())
    }

    fn new_site(self: &Arc<Self>, machine: Machine) -> Arc<SiteMachine> {
        let mut next = self.next_site.lock();
        let site = SiteId(*next);
        *next += 1;
        let rack = RackId(format!("rack-{}", machine.rack));
        let identity = SiteIdentity { cluster: ClusterId(1), site, rack };
        let (runtime, trace) = (self.runtime.clone(), self.trace.clone());
        let site = SiteMachine::new(runtime, trace, machine, identity, self.mutation);
        site.introduce(Arc::new(Neighbours { cluster: Arc::downgrade(self), here: machine }));
        Arc::new(site)
    }

    /// Writes a site's row, as a server does that admits or retires a disk.
    async fn register(&self, site: SiteId, state: records::site::State) -> Result<(), String> {
        let record = records::Site { id: site.0, state: state.into(), ..records::Site::default() };
        let mut tx = Transaction::new(TxId(u128::from(self.runtime.random_u64())));
        tx.put(keys::site(site), records::encode(&record));
        match self.engine.commit(tx).await {
            Ok(Commit::Done(_)) => Ok(()),
            other => Err(format!("the row of site {site} was not written: {other:?}")),
        }
    }

    /// The profile.
    pub fn profile(&self) -> Profile {
        self.shape.profile.parse().expect("shapes have profiles that exist")
    }

    /// How gateways are set up.
    pub fn client_options(&self) -> ClientOptions {
        ClientOptions {
            profile: self.profile(),
            block_len: 16 << 10,
            write_surplus: super::mutation::write_surplus(self.mutation),
            write_deadline: Duration::from_secs(1),
            read_deadline: Duration::from_secs(1),
            hedge_after: Duration::from_millis(50),
            garbage_grace: Duration::from_secs(10),
            min_part_len: 4 << 10,
            read_policy: self.read_policy,
            ..ClientOptions::default()
        }
    }

    /// Chunks of a stripe that may be missing when a write is acknowledged.
    pub fn most_debt(&self) -> usize {
        let profile = self.profile();
        let (n, k) = (profile.code.chunk_count(), profile.code.data_count());
        n - (k + ClientOptions::default().write_surplus).min(n)
    }

    /// The metadata store as a machine sees it.
    pub fn metadata_from(&self, here: Machine) -> Arc<dyn MetaStore> {
        let engine: Arc<dyn MetaStore> = self.engine.clone();
        Arc::new(crate::metadata::DistantMeta::new(self.network.clone(), here, ENGINE, engine))
    }

    /// The sites as a machine sees them.
    pub fn sites_from(&self, here: Machine) -> Vec<Arc<dyn Site>> {
        self.sites.read().iter().map(|site| self.site_from(here, site)).collect()
    }

    fn site_from(&self, here: Machine, site: &Arc<SiteMachine>) -> Arc<dyn Site> {
        let guarded = GuardedSite::new(Arc::clone(site), Arc::clone(&self.engine), Arc::clone(&self.broken));
        Arc::new(DistantSite::new(self.network.clone(), here, site.machine, Arc::new(guarded)))
    }

    /// The members' machines.
    pub fn sites(&self) -> Vec<Arc<SiteMachine>> {
        self.sites.read().clone()
    }

    /// The member with this number.
    pub fn site(&self, site: SiteId) -> Option<Arc<SiteMachine>> {
        self.sites.read().iter().find(|machine| machine.id() == site).cloned()
    }

    /// Every machine's place in the network.
    pub fn machines(&self) -> Vec<Machine> {
        let sites = self.sites.read();
        let gateways = self.gateways.iter().map(|gateway| gateway.machine);
        [ENGINE].into_iter().chain(sites.iter().map(|site| site.machine)).chain(gateways).collect()
    }

    /// Fault: the disk of a site is gone, and a blank one takes its place: another site, by the rules of
    /// `striate disk replace`. False if the metadata could not be told.
    pub async fn replace_site(self: &Arc<Self>, old: &Arc<SiteMachine>) -> bool {
        let new = self.new_site(old.machine);
        if self.register(new.id(), records::site::State::Active).await.is_err() {
            return false;
        }
        old.crash(super::site::Crash::PowerCut);
        if new.start().is_err() {
            return false;
        }
        self.sites.write().retain(|site| site.id() != old.id());
        self.sites.write().push(new);
        // The engine may be down now; whoever repairs needs the row.
        while self.register(old.id(), records::site::State::Retired).await.is_err() {
            self.runtime.sleep(Duration::from_millis(100)).await;
        }
        for gateway in &self.gateways {
            gateway.tell_sites(self);
        }
        true
    }

    /// A random number below `end`.
    pub fn draw(&self, end: u64) -> u64 {
        self.rng.lock().random_range(0..end)
    }

    /// A time between the two.
    pub fn draw_time(&self, from: Duration, to: Duration) -> Duration {
        from + (to - from).mul_f64(self.rng.lock().random())
    }

    /// One of several; `None` of none.
    pub fn choose<T: Clone>(&self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        Some(from[self.draw(from.len() as u64) as usize].clone())
    }
}
