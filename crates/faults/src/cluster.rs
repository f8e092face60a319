//! A cluster under test: all machines on one network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rand::Rng;
use rand::rngs::SmallRng;
use striate_client::{ClientError, ClientOptions, CreateBucket};
use striate_codec::Code;
use striate_control::{Members, MembersError, SiteAnnouncement};
use striate_core::{ClusterId, Formats, FormatsInForce, Profile, RackId, SiteId};
use striate_meta::records::site::State;
use striate_meta::{Commit, MetaStore, Row, Transaction, TxId, keys, records};
use striate_plan::{PlacementRule, ReadPolicy};
use striate_runtime::Runtime;
use striate_site::{Site, SiteDirectory, SiteIdentity};
use striate_stripe::StripeOptions;
use striate_virtual_network::{DistantSite, Machine, Network, NetworkModel, Trace};

use super::coverage::Coverage;
use super::dead_space::PackedPlaces;
use super::engine::EngineMachine;
use super::gateway::Gateway;
use super::guard::Guard;
use super::invariants::{self, Violations};
use super::ledger::Ledger;
use super::memory::MemoryTier;
use super::mutation::Mutation;
use super::operation::BUCKET;
use super::services::ControlProcess;
use super::shape::Shape;
use super::site::{CAPACITY, SMALL_CAPACITY, SiteMachine};

/// A cluster under test.
#[derive(Debug)]
pub struct Cluster {
    /// Clock and randomness.
    pub runtime: Runtime,
    /// Event log of the run.
    pub trace: Trace,
    /// Network between the machines.
    pub network: Network,
    /// Machine of the metadata engine.
    pub engine: Arc<EngineMachine>,
    /// Gateways.
    pub gateways: Vec<Arc<Gateway>>,
    /// Control processes, of which one leads.
    pub controls: Vec<Arc<ControlProcess>>,
    /// Combinations of operations and faults that occurred.
    pub coverage: Coverage,
    /// Chunks that the injector destroyed.
    pub ledger: Arc<Ledger>,
    /// Broken invariants found so far.
    pub broken: Arc<Violations>,
    /// Places of packed objects.
    pub packed: PackedPlaces,
    /// Planted defect.
    pub mutation: Mutation,
    /// Memory sites, if the cluster has any.
    pub memory: Option<MemoryTier>,
    shape: Shape,
    code: Code,
    /// Profiles and codes, by their texts in records.
    profiles: Mutex<BTreeMap<String, (Profile, Code)>>,
    read_policy: ReadPolicy,
    sites: RwLock<Vec<Arc<SiteMachine>>>,
    rng: Mutex<SmallRng>,
    next_machine: Mutex<u32>,
    moves_chunks: AtomicBool,
    /// Number of the machine with a small disk, if there is one; machines count from 1.
    small_disk: u32,
}

/// The other sites, as seen from one site's machine.
#[derive(Debug)]
struct PeerSites {
    cluster: Weak<Cluster>,
    here: Machine,
}

impl SiteDirectory for PeerSites {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        let distant_site = self.cluster.upgrade()?.site_from(self.here, site)?;
        Some(Arc::new(distant_site))
    }
}

/// Cluster id.
const CLUSTER: ClusterId = ClusterId(1);
/// Machine of the metadata. Machines of sites count from 1.
const ENGINE: Machine = Machine { number: 0, rack: 0 };
/// Number of the first gateway's machine.
const FIRST_GATEWAY: u32 = 1_000;
/// Number of the first control process's machine.
const FIRST_CONTROL: u32 = 2_000;
/// Number of control processes.
const CONTROLS: u32 = 2;
/// Network between the machines.
const NETWORK: NetworkModel = NetworkModel {
    round_trip: Duration::from_micros(200),
    card_bytes_per_s: None,
    uplink_bytes_per_s: None,
    loss: 0.0,
    reply_timeout: Duration::from_secs(2),
};

fn rack_name(machine: Machine) -> String {
    format!("rack-{}", machine.rack)
}

impl Cluster {
    /// Starts a cluster with an empty bucket.
    ///
    /// # Errors
    /// If a machine cannot be started.
    pub async fn start(
        runtime: Runtime,
        shape: Shape,
        read_policy: ReadPolicy,
        mutation: Mutation,
        broken: Arc<Violations>,
    ) -> Result<Arc<Self>, String> {
        let trace = Trace::new(runtime.clone());
        let network = Network::new(runtime.clone(), trace.clone(), NETWORK);
        let engine = EngineMachine::create(runtime.clone(), trace.clone(), mutation).await;
        let engine = Arc::new(engine.map_err(|error| error.to_string())?);
        engine.start().await.map_err(|error| error.to_string())?;
        let place = |number| Machine { number, rack: number };
        let gateway = |number| Arc::new(Gateway::new(place(FIRST_GATEWAY + number)));
        let control = |number| Arc::new(ControlProcess::new(place(FIRST_CONTROL + number)));
        let cluster = Arc::new(Self {
            rng: Mutex::new(runtime.rng()),
            gateways: (0..shape.gateways).map(gateway).collect(),
            controls: (0..CONTROLS).map(control).collect(),
            coverage: Coverage::new(shape.family),
            ledger: Arc::new(Ledger::new(runtime.clone())),
            sites: RwLock::default(),
            next_machine: Mutex::new(1),
            moves_chunks: AtomicBool::new(true),
            small_disk: (runtime.random_u64() % 2) as u32,
            memory: shape.has_memory.then(|| MemoryTier::start(&runtime, CLUSTER, mutation)),
            runtime,
            trace,
            network,
            engine,
            broken,
            packed: PackedPlaces::default(),
            mutation,
            code: shape.profile.parse().expect("shapes have codes that exist"),
            profiles: Mutex::default(),
            shape,
            read_policy,
        });
        invariants::watch_commits(&cluster);
        cluster.begin().await?;
        Ok(cluster)
    }

    /// Founds the cluster, and starts its sites, gateways and control processes.
    async fn begin(self: &Arc<Self>) -> Result<(), String> {
        self.found().await.map_err(|error| error.to_string())?;
        for _ in 0..self.shape.sites {
            self.join_site().await?;
        }
        for gateway in &self.gateways {
            gateway.start(self).await;
        }
        self.make_bucket().await.map_err(|error| error.to_string())?;
        for control in &self.controls {
            control.start(self);
        }
        Ok(())
    }

    /// Writes the cluster's row.
    async fn found(&self) -> Result<(), MembersError> {
        let members = Members::new(&self.runtime, &*self.engine);
        members.found(CLUSTER, Some(self.profile()), "").await.map(drop)
    }

    async fn make_bucket(&self) -> Result<(), ClientError> {
        let client = self.gateways[0].client().expect("it was started");
        client.create_bucket(CreateBucket { name: BUCKET.to_owned(), ..CreateBucket::default() }).await?;
        Ok(())
    }

    /// Adds a new site on its own machine, in a rack given by the shape.
    ///
    /// # Errors
    /// If the metadata cannot be written or the site does not start.
    pub async fn join_site(self: &Arc<Self>) -> Result<Arc<SiteMachine>, String> {
        let number = {
            let mut next = self.next_machine.lock();
            *next += 1;
            *next - 1
        };
        let capacity = if number == self.small_disk { SMALL_CAPACITY } else { CAPACITY };
        let machine = Machine { number, rack: self.shape.rack_of(number) };
        let site = self.admit(machine, capacity).await?;
        self.sites.write().push(Arc::clone(&site));
        Ok(site)
    }

    /// Admits a site with a blank disk on this machine, and starts it.
    async fn admit(self: &Arc<Self>, machine: Machine, capacity: u64) -> Result<Arc<SiteMachine>, String> {
        let rack = RackId(rack_name(machine));
        let disk = self.runtime.random_u128();
        let announcement = SiteAnnouncement {
            peer: format!("site-{}", machine.number),
            disk: disk.to_be_bytes(),
            site: None,
            address: format!("machine-{}", machine.number),
            rack: rack.to_string(),
            capacity_bytes: capacity,
        };
        let members = Members::new(&self.runtime, &*self.engine);
        let site = members.register(&announcement).await.map_err(|error| error.to_string())?;
        let identity = SiteIdentity { cluster: CLUSTER, site, rack };
        let guard = Guard::new(site, &self.engine, &self.ledger, &self.broken);
        let (runtime, trace) = (self.runtime.clone(), self.trace.clone());
        let new =
            Arc::new(SiteMachine::new(runtime, trace, machine, identity, self.mutation, guard, capacity));
        new.introduce(Arc::new(PeerSites { cluster: Arc::downgrade(self), here: machine }));
        new.start()?;
        Ok(new)
    }

    /// Retires a site for good, as a server does when its disk was replaced.
    async fn retire(&self, site: &SiteMachine) -> Result<(), String> {
        let (site, rack) = (site.id(), rack_name(site.machine));
        let state = State::Retired.into();
        let record = records::Site { id: site.0, state, rack, ..records::Site::default() };
        let mut tx = Transaction::new(TxId(u128::from(self.runtime.random_u64())));
        tx.put(keys::site(site), records::encode(&record));
        match self.engine.commit(tx).await {
            Ok(Commit::Done(_)) => Ok(()),
            other => Err(format!("the row of site {site} was not written: {other:?}")),
        }
    }

    /// Returns the cluster's profile.
    pub fn profile(&self) -> Profile {
        self.shape.profile.parse().expect("shapes have profiles that exist")
    }

    /// Returns the wide profile that cold partitions are sealed into, if any.
    pub fn wide_profile(&self) -> Option<Profile> {
        self.shape.wide.map(|text| text.parse().expect("shapes have profiles that exist"))
    }

    /// Returns a stripe's profile and code.
    pub fn profile_of(&self, record: &records::Stripe) -> (Profile, Code) {
        let parse = || {
            let profile: Profile = record.profile.parse().expect("records have profiles that exist");
            (profile, profile.code.build().expect("records have codes that exist"))
        };
        self.profiles.lock().entry(record.profile.clone()).or_insert_with(parse).clone()
    }

    /// Returns the placement rule of a stripe's chunks.
    pub fn rule_of(&self, record: &records::Stripe) -> PlacementRule {
        let (profile, code) = self.profile_of(record);
        PlacementRule::new(&profile, &code, self.racks())
    }

    /// Returns the options of gateways.
    pub fn client_options(&self) -> ClientOptions {
        ClientOptions {
            profile: self.profile(),
            block_len: self.shape.block_len,
            min_part_len: 4 << 10,
            stripes: StripeOptions {
                formats: FormatsInForce::new(Formats::NEWEST),
                write_surplus: super::mutation::write_surplus(self.mutation),
                durability_rule: super::mutation::durability_rule(self.mutation),
                write_deadline: Duration::from_secs(1),
                read_deadline: Duration::from_secs(1),
                hedge_after: Duration::from_millis(50),
                garbage_grace: Duration::from_secs(10),
                placement_known_for: Duration::from_secs(2),
                read_policy: self.read_policy.clone(),
                sampling: 1.0,
                ..StripeOptions::default()
            },
            ..ClientOptions::default()
        }
    }

    /// Returns the number of sites at the start.
    pub fn first_sites(&self) -> usize {
        self.shape.sites as usize
    }

    /// Returns true if a draining site can be emptied: the other sites have a place for all chunks of a stripe,
    /// within the limit of each rack. While the metadata cannot be read, assumes that one site drains.
    pub fn can_empty(&self) -> bool {
        let sites = self.sites();
        let draining =
            self.draining().unwrap_or_else(|| sites.iter().take(1).map(|site| site.id()).collect());
        let mut in_racks: BTreeMap<u32, usize> = BTreeMap::new();
        for site in sites.iter().filter(|site| !draining.contains(&site.id())) {
            *in_racks.entry(site.machine.rack).or_default() += 1;
        }
        let limit = self.rack_limit();
        let has_room = in_racks.values().map(|&sites| sites.min(limit)).sum::<usize>() >= self.code.n();
        has_room && in_racks.values().all(|&sites| sites > self.taken_in_rack())
    }

    /// With wide stripes a chunk stays in its rack. Returns the number of the rack's sites that may hold other chunks
    /// of its two stripes.
    fn taken_in_rack(&self) -> usize {
        let Some(wide) = self.wide_profile() else { return 0 };
        (wide.code.tolerance() - 1) + (self.rack_limit() - 1)
    }

    /// Returns the profile's code.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Returns the number of racks that have sites.
    fn racks(&self) -> usize {
        self.sites().iter().map(|site| site.machine.rack).collect::<BTreeSet<u32>>().len()
    }

    /// Returns the maximum number of chunks of a narrow stripe in one rack.
    pub fn rack_limit(&self) -> usize {
        PlacementRule::new(&self.profile(), &self.code, self.racks()).rack_limit()
    }

    /// Returns how many disks may lose chunks at the same time, whatever running writes leave out: acknowledged data
    /// decodes after this many further losses.
    pub fn bearable(&self) -> usize {
        StripeOptions::default().write_surplus.min(self.code.tolerance())
    }

    /// Returns the metadata store as seen from a machine.
    pub fn metadata_from(&self, here: Machine) -> Arc<dyn MetaStore> {
        let engine: Arc<dyn MetaStore> = self.engine.clone();
        Arc::new(striate_virtual_network::DistantMeta::new(self.network.clone(), here, ENGINE, engine))
    }

    /// Returns a site as seen from a machine; `None` if there is currently no site with this number.
    pub fn site_from(&self, here: Machine, site: SiteId) -> Option<DistantSite> {
        let site = self.site(site)?;
        Some(DistantSite::new(self.network.clone(), here, site.machine, site))
    }

    /// Reads a site's state from the metadata, bypassing the network. `None` if the metadata cannot be read now or
    /// does not know the site.
    pub fn member_state(&self, site: SiteId) -> Option<State> {
        let row = self.engine.peek(&keys::site(site))??;
        Some(row.record::<records::Site>().ok()?.state())
    }

    /// Returns the draining sites; `None` if the metadata cannot be read now.
    pub fn draining(&self) -> Option<Vec<SiteId>> {
        let rows = self.engine.peek_all(keys::SITES)?;
        let rows = rows.iter().filter_map(|row: &Row| row.record::<records::Site>().ok());
        Some(rows.filter(|row| row.state() == State::Draining).map(|row| SiteId(row.id)).collect())
    }

    /// Starts or stops draining a site.
    ///
    /// # Errors
    /// If the metadata cannot be written.
    pub async fn set_draining(&self, site: SiteId, draining: bool) -> Result<(), MembersError> {
        Members::new(&self.runtime, &*self.engine).set_draining(site, draining).await
    }

    /// Returns the machines of all member sites.
    pub fn sites(&self) -> Vec<Arc<SiteMachine>> {
        self.sites.read().clone()
    }

    /// Returns the machine of a member site.
    pub fn site(&self, site: SiteId) -> Option<Arc<SiteMachine>> {
        self.sites.read().iter().find(|machine| machine.id() == site).cloned()
    }

    /// Returns the metadata's machine.
    pub fn engine_machine(&self) -> Machine {
        ENGINE
    }

    /// Returns all machines on the network.
    pub fn machines(&self) -> Vec<Machine> {
        let sites = self.sites.read();
        let gateways = self.gateways.iter().map(|gateway| gateway.machine);
        let controls = self.controls.iter().map(|control| control.machine);
        let sites = sites.iter().map(|site| site.machine);
        let memory = self.memory.iter().flat_map(|tier| &tier.machines).map(|site| site.machine);
        [ENGINE].into_iter().chain(sites).chain(gateways).chain(controls).chain(memory).collect()
    }

    /// Returns true while chunks are moved for faster reads and at random, which is until the faults end.
    pub fn moves_chunks(&self) -> bool {
        self.moves_chunks.load(Ordering::Relaxed)
    }

    /// Ends these moves. From now on chunks move only where they must.
    pub fn end_moves(&self) {
        self.moves_chunks.store(false, Ordering::Relaxed);
    }

    /// Returns the leading process, or one of those that believe they lead.
    pub fn leader(&self) -> Option<Arc<ControlProcess>> {
        self.controls.iter().find(|control| control.leads()).cloned()
    }

    /// Fault: a site's disk is lost and replaced by a blank one, which becomes another site by the rules of `striate
    /// disk replace`. Returns false if the new site cannot be admitted.
    pub async fn replace_site(self: &Arc<Self>, old: &Arc<SiteMachine>) -> bool {
        let Ok(new) = self.admit(old.machine, CAPACITY).await else { return false };
        self.sites.write().push(new);
        self.remove_site(old).await;
        true
    }

    /// Removes a site for good.
    pub async fn remove_site(&self, old: &SiteMachine) {
        old.crash(super::site::Crash::PowerCut);
        self.sites.write().retain(|site| site.id() != old.id());
        // The engine may be down now, but repair needs the row.
        while self.retire(old).await.is_err() {
            self.runtime.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Draws a number below `end`.
    pub fn draw(&self, end: u64) -> u64 {
        self.rng.lock().random_range(0..end)
    }

    /// Draws a duration between `from` and `to`.
    pub fn draw_time(&self, from: Duration, to: Duration) -> Duration {
        from + (to - from).mul_f64(self.rng.lock().random())
    }

    /// Draws an element; `None` if there is none.
    pub fn choose<T: Clone>(&self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        Some(from[self.draw(from.len() as u64) as usize].clone())
    }
}
