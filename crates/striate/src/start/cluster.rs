//! A running store: sites, metadata, client and keys over a set of directories.
//!
//! The roster decides who belongs; the rows of the metadata follow it ([`Cluster::open`], `follow_roster`), so a
//! crash between the two is put right at the next start. Changes of members (replacing a disk, admitting one,
//! raising the tolerance) happen one at a time, each in the order: new directory, then every other roster, then
//! metadata, then the client's set of sites.

mod background;
mod members;
mod memory;
mod neighbours;
mod report;
mod shared;
mod upgrade;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use striate_cache::{Cache, CacheSettings, Keeper};
use striate_client::{Client, ClientOptions};
use striate_commands::admin::find::STATE_FOLDER;
use striate_commands::failure::{Failure, Outcome};
use striate_control::{Optimiser, Rebalancer, SiteStatistics, Upkeep, UpkeepOptions};
use striate_core::{ClusterId, Formats, InForce, Profile, RackId, SiteId};
use striate_meta::embedded::{DiskId, EmbeddedStore, Layout, MetaDirectory, Options};
use striate_meta::{Commit, MetaError, MetaStore, Transaction, TxId, keys, records};
use striate_origin::Origins;
use striate_runtime::{Instant, JoinHandle, Runtime};
use striate_s3::{Credentials, KeyStore, SealingKey};
use striate_site::{CacheOptions, CacheStore, LocalSite, QueueLimits, Site, SiteIdentity, StoreStatus};
use striate_stripe::{OWN_MEMORY, StripeOptions};

use super::directories::{Found, inspect};
use super::lock::{DirectoryLock, LOCK_FILE};
use super::plan::{OpenPlan, StartPlan};
use super::roster::{Member, RequiredFormats, Roster};
use super::sealing::{self, SealingBytes};
use super::site::{DiskSite, meta_folder, rack_of};
use crate::resident::ResidentMemory;
use shared::Followed;

/// What a start is told besides its directories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The default profile of a new cluster; none chooses by the number of directories.
    pub profile: Option<Profile>,
    /// The region.
    pub region: String,
    /// A key that is accepted besides those in the metadata.
    pub given_key: Option<Credentials>,
    /// Memory, acknowledgement, read policy, and what is kept of sampled requests.
    pub stripes: StripeOptions,
    /// What it does by itself to stay whole, where it is the process that does.
    pub upkeep: UpkeepOptions,
    /// What it caches in memory.
    pub caching: Caching,
}

/// What a process caches in memory, and where.
#[derive(Clone, Debug, Default)]
pub struct Caching {
    /// A memory site in this process.
    pub memory: Option<CacheOptions>,
    /// What is written is cached too.
    pub fills_writes: bool,
    /// KiB of a split; 0: blocks are not cut.
    pub split_kib: Option<u32>,
    /// MiB a second of blocks of which lost splits are written again.
    pub refill_mib: Option<u32>,
    /// Who else may vouch for origins: a PEM file.
    pub origin_ca: Option<PathBuf>,
}

impl Caching {
    /// How the gateway of the process uses the tier.
    fn settings(&self) -> CacheSettings {
        let usual = CacheSettings::default();
        let fill_bytes = self.memory.map_or(usual.fill_bytes, |memory| memory.on_the_way_bytes as usize / 2);
        let split_bytes = match self.split_kib {
            None => usual.split_bytes,
            Some(0) => u64::MAX,
            Some(kib) => u64::from(kib) << 10,
        };
        let refill_bytes_per_s = self.refill_mib.map_or(usual.refill_bytes_per_s, |mib| u64::from(mib) << 20);
        CacheSettings { fill_bytes, fills_writes: self.fills_writes, split_bytes, refill_bytes_per_s }
    }

    fn origins(&self, client: &Client, cache: &Cache, keys: &Arc<KeyStore>) -> Outcome<Origins> {
        Origins::new(client.clone(), cache.clone(), keys.clone(), self.origin_ca.as_deref())
            .map_err(|error| Failure::refused(format!("--origin-ca: {error}")))
    }
}

/// A running store. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    started: Instant,
    meta: Arc<dyn MetaStore>,
    /// The same, where it is the embedded one.
    embedded: Option<EmbeddedStore>,
    client: Client,
    cache: Cache,
    origins: Origins,
    /// What knows of the memory site of this process.
    memory: Option<Arc<Keeper>>,
    keys: Arc<KeyStore>,
    sealing: SealingBytes,
    state: Mutex<State>,
    /// Held while members change, so that there is one change at a time.
    changing: tokio::sync::Mutex<()>,
    /// Held while mirrors are restored: the engine adds one at a time.
    restoring: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    statistics: SiteStatistics,
    upkeep: Upkeep,
    rebalancer: Rebalancer,
    optimiser: Optimiser,
}

/// Who is here.
struct State {
    roster: Roster,
    live: BTreeMap<SiteId, Live>,
    /// Blank directories that were named at the start and left alone.
    ignored: Vec<PathBuf>,
    /// Sites in other processes, in place of those on directories.
    followed: Option<Followed>,
}

/// A member that is here.
struct Live {
    member: Member,
    site: DiskSite,
    lock: DirectoryLock,
}

impl Live {
    /// Why its site takes no more writes, if so.
    fn suspect(&self) -> Option<String> {
        self.site.status().suspect
    }

    /// The state of its chunk store.
    fn store_status(&self) -> StoreStatus {
        self.site.status()
    }
}

/// What the first start made.
pub struct Opened {
    /// The store.
    pub cluster: Cluster,
    /// The first access key, if one was made now.
    pub first_key: Option<Credentials>,
    /// True when the cluster was made now.
    pub is_new: bool,
}

impl Cluster {
    /// Does what `plan` says.
    ///
    /// # Errors
    /// When a directory is in use, cannot be written, or the metadata cannot be opened; each with the way out.
    pub async fn open(runtime: Runtime, plan: StartPlan, settings: Settings) -> Outcome<Opened> {
        let is_new = matches!(plan, StartPlan::First { .. });
        let (plan, mut locks) = match plan {
            StartPlan::First { paths } => begin_first(&runtime, &paths, &settings)?,
            StartPlan::Open(plan) => {
                let members = plan.present.iter().chain(&plan.unfinished);
                let locks = members.map(|member| lock(&member.path)).collect::<Outcome<Vec<_>>>()?;
                (plan, locks)
            }
        };
        let members: Vec<Member> = plan.present.iter().chain(&plan.unfinished).cloned().collect();
        let paths: Vec<&Path> = members.iter().map(|member| member.path.as_path()).collect();
        let sealing = sealing_key(&runtime, &plan, &paths)?;
        write_rosters(&plan.roster, &members);
        // The row may say more than the rosters, which follow it; never less.
        let formats = InForce::new(plan.roster.formats.in_force);
        let mut live = BTreeMap::new();
        for (member, lock) in members.into_iter().zip(locks.drain(..)) {
            match DiskSite::open(&runtime, plan.roster.cluster, &member, &formats).await {
                Ok(site) => drop(live.insert(member.site, Live { member, site, lock })),
                Err(reason) => {
                    tracing::error!(directory = %member.path.display(), %reason, "a directory cannot be used");
                }
            }
        }
        let meta = open_metadata(&runtime, &plan.roster, &live).await?;
        let row = cluster_row(&runtime, &meta, &plan.roster, &settings, is_new).await?;
        let profile = row.profile.parse().map_err(Failure::failed)?;
        let keys = KeyStore::new(
            runtime.clone(),
            Arc::new(meta.clone()),
            SealingKey::new(&sealing),
            settings.given_key.clone(),
        );
        let keys = Arc::new(keys.map_err(Failure::refused)?);
        let cluster = plan.roster.cluster;
        let state = State { roster: plan.roster, live, ignored: plan.ignored, followed: None };
        let options = ClientOptions {
            profile,
            mirrors: layout(&state.roster).mirrors(),
            stripes: StripeOptions { formats: formats.clone(), ..settings.stripes },
            ..ClientOptions::default()
        };
        let client = Client::open(runtime.clone(), Arc::new(meta.clone()), state.sites(), options).await;
        let client = client.map_err(Failure::failed)?;
        let cache = Cache::new(client.stripes(), settings.caching.settings());
        let memory = settings.caching.memory.map(|options| memory_site(&runtime, &cache, cluster, options));
        let origins = settings.caching.origins(&client, &cache, &keys)?;
        let inner = Inner {
            started: runtime.now(),
            runtime,
            meta: Arc::new(meta.clone()),
            embedded: Some(meta),
            client,
            cache,
            origins,
            memory: memory.transpose()?,
            keys,
            sealing,
            state: Mutex::new(state),
            changing: tokio::sync::Mutex::new(()),
            restoring: tokio::sync::Mutex::new(()),
            tasks: Mutex::default(),
            statistics: SiteStatistics::default(),
            upkeep: Upkeep::new(settings.upkeep),
            rebalancer: Rebalancer::default(),
            optimiser: Optimiser::paused(),
        };
        let cluster = Self { inner: Arc::new(inner) };
        for live in cluster.inner.state.lock().live.values() {
            cluster.introduce(&live.site);
        }
        cluster.follow_roster().await.map_err(Failure::failed)?;
        cluster.require_formats((&row).into()).await?;
        formats.raise(row.formats());
        for path in plan.admit {
            cluster.admit(&path).await?;
        }
        let first_key = cluster.first_key(settings.given_key.is_some()).await?;
        Ok(Opened { cluster, first_key, is_new })
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// The client service.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The memory tier, as this process sees it.
    pub fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// Buckets whose objects are in other stores.
    pub fn origins(&self) -> &Origins {
        &self.inner.origins
    }

    /// What is known of the sites' load; filled while the background work runs.
    pub fn statistics(&self) -> &SiteStatistics {
        &self.inner.statistics
    }

    /// What keeps it whole, if this process does.
    pub fn upkeep(&self) -> &Upkeep {
        &self.inner.upkeep
    }

    /// What drains sites and levels how full they are.
    pub fn rebalancer(&self) -> &Rebalancer {
        &self.inner.rebalancer
    }

    /// What moves chunks to where reads of them cost less; paused until somebody says otherwise.
    pub fn optimiser(&self) -> &Optimiser {
        &self.inner.optimiser
    }

    /// The access keys.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.inner.keys
    }

    /// The metadata.
    pub fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.inner.meta
    }

    /// The embedded metadata engine.
    ///
    /// # Errors
    /// Where the metadata are on an engine of its own.
    pub fn embedded(&self) -> Outcome<&EmbeddedStore> {
        self.inner.embedded.as_ref().ok_or_else(|| {
            Failure::refused(
                "this cluster's metadata are on an engine of its own; use that engine's tools for it",
            )
        })
    }

    /// The cluster's identity.
    pub fn id(&self) -> ClusterId {
        self.inner.state.lock().roster.cluster
    }

    /// The default profile.
    pub fn profile(&self) -> Profile {
        self.inner.client.default_profile()
    }

    /// Directories of members that are here.
    pub fn directories(&self) -> Vec<PathBuf> {
        let state = self.inner.state.lock();
        let there = state.live.values().filter(|live| members::still_there(&live.member));
        there.map(|live| live.member.path.clone()).collect()
    }

    /// Reads every row of the embedded engine's mirrors; answers how many there are, and 0 where the metadata are
    /// on an engine of its own.
    ///
    /// # Errors
    /// When the metadata do not serve.
    pub async fn scrub_metadata_now(&self) -> Result<u64, MetaError> {
        match &self.inner.embedded {
            Some(embedded) => embedded.scrub().await,
            None => Ok(0),
        }
    }

    /// Makes metadata mirrors until there are as many as there should be; answers how many were added.
    ///
    /// # Errors
    /// When the metadata does not serve.
    pub async fn restore_mirrors(&self) -> Result<usize, MetaError> {
        let _one_at_a_time = self.inner.restoring.lock().await;
        match &self.inner.embedded {
            Some(embedded) => Ok(embedded.restore_mirrors().await?.len()),
            None => Ok(0),
        }
    }

    /// Makes an access key when there is none at all.
    async fn first_key(&self, is_given: bool) -> Outcome<Option<Credentials>> {
        if is_given || !self.inner.keys.list().await.map_err(Failure::failed)?.is_empty() {
            return Ok(None);
        }
        self.inner.keys.create("made at the first start").await.map(Some).map_err(Failure::failed)
    }

    /// Stops background work, lets a change of members end, then closes sites and metadata so that the next start
    /// need not recover them.
    pub async fn close(&self) {
        let _no_change = self.inner.changing.lock().await;
        let tasks: Vec<_> = self.inner.tasks.lock().drain(..).collect();
        tasks.iter().for_each(JoinHandle::abort);
        let sites: Vec<_> = self.inner.state.lock().live.values().map(|live| live.site.clone()).collect();
        for site in sites {
            site.close().await;
        }
        if let Some(embedded) = &self.inner.embedded {
            embedded.close().await;
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Makes a memory site in this process, which is the whole tier.
fn memory_site(
    runtime: &Runtime,
    cache: &Cache,
    cluster: ClusterId,
    options: CacheOptions,
) -> Outcome<Arc<Keeper>> {
    let process = Arc::new(ResidentMemory::new(runtime.clone()));
    let store = CacheStore::within_process(options, process)
        .map_err(|error| Failure::refused(format!("--cache-mib: {error}")))?;
    let store = Arc::new(store);
    let keeper = Arc::new(Keeper::new(store.clone()));
    let identity = SiteIdentity { cluster, site: OWN_MEMORY, rack: RackId("memory".to_owned()) };
    let site = LocalSite::new(runtime.clone(), identity, store, QueueLimits::default());
    site.set_keeper(keeper.clone());
    cache.set_sites(vec![(Arc::new(site), options.bound_bytes)]);
    Ok(keeper)
}

fn lock(path: &Path) -> Outcome<DirectoryLock> {
    DirectoryLock::take(path).map_err(Failure::refused)
}

/// A random identity for a directory.
fn new_disk(runtime: &Runtime) -> DiskId {
    let mut disk = [0; 16];
    runtime.fill_secret(&mut disk);
    DiskId(disk)
}

/// Makes the directories and locks them; answers the plan for a cluster whose members are all unfinished.
fn begin_first(
    runtime: &Runtime,
    paths: &[PathBuf],
    settings: &Settings,
) -> Outcome<(OpenPlan, Vec<DirectoryLock>)> {
    let sites = paths.len();
    let profile = settings.profile.unwrap_or_else(|| Profile::for_directories(sites));
    profile.check_default(Formats::NEWEST).map_err(Failure::refused)?;
    if profile.code.chunk_count() > sites {
        return Err(Failure::refused(format!(
            "the profile {profile} needs {} sites, {sites} are given; choose another with --profile",
            profile.code.chunk_count()
        )));
    }
    let mut locks = Vec::new();
    for path in paths {
        let made = std::fs::create_dir_all(path);
        made.map_err(|error| Failure::refused(format!("{}: {error}; make it yourself", path.display())))?;
        locks.push(lock(path)?);
        // Between the look at it and the lock another server may have taken it.
        if inspect(path).map_err(Failure::refused)?.found != Found::Blank {
            return Err(Failure::refused(format!("{} was taken by another server just now", path.display())));
        }
    }
    let mut random = [0; 16];
    runtime.fill_secret(&mut random);
    let cluster = ClusterId(u128::from_be_bytes(random));
    let member = |(index, path): (usize, &PathBuf)| Member {
        disk: new_disk(runtime),
        site: SiteId(index as u32 + 1),
        path: std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
    };
    let members: Vec<_> = paths.iter().enumerate().map(member).collect();
    let roster = Roster {
        generation: 1,
        cluster,
        tolerance: profile.code.tolerance(),
        next_site: members.len() as u32 + 1,
        members: members.clone(),
        formats: RequiredFormats::newest(),
    };
    let plan = OpenPlan {
        roster,
        present: Vec::new(),
        unfinished: members,
        missing: Vec::new(),
        admit: Vec::new(),
        ignored: Vec::new(),
    };
    Ok((plan, locks))
}

/// The sealing key, in every directory. Made only while nobody can have sealed anything.
fn sealing_key(runtime: &Runtime, plan: &OpenPlan, paths: &[&Path]) -> Outcome<SealingBytes> {
    if let Some(key) = sealing::recover(paths).map_err(Failure::refused)? {
        return Ok(key);
    }
    if plan.unfinished.is_empty() {
        return Err(Failure::refused(format!(
            "no directory holds the cluster's sealing key ({}/{}), without which the access keys cannot be opened; \
             restore the file in one directory from a copy",
            STATE_FOLDER,
            sealing::SEALING_FILE
        )));
    }
    let key = sealing::make(runtime);
    for path in paths {
        let written = sealing::write(path, &key);
        written.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    Ok(key)
}

/// Writes the roster wherever another one is. A directory that cannot be written is reported and goes on; the
/// sites' and the metadata's own checks decide what it is good for.
fn write_rosters(roster: &Roster, members: &[Member]) {
    for member in members {
        if matches!(Roster::read(&member.path), Ok(Some((known, _))) if known == *roster) {
            continue;
        }
        if let Err(error) = roster.write(&member.path, member.disk) {
            tracing::warn!(directory = %member.path.display(), %error, "the roster was not written");
        }
    }
}

pub(super) fn layout(roster: &Roster) -> Layout {
    Layout {
        cluster: roster.cluster,
        total_directories: roster.members.len(),
        tolerance: roster.tolerance.min(roster.members.len().saturating_sub(1)),
    }
}

/// The directories of the members that are here, as the metadata engine sees them.
fn meta_directories<'a>(live: impl Iterator<Item = &'a Live>) -> Vec<MetaDirectory> {
    let directory = |live: &Live| {
        let path = &live.member.path;
        let lock = path.join(STATE_FOLDER).join(LOCK_FILE);
        MetaDirectory::open_with_witness(live.member.disk, meta_folder(path), lock)
    };
    let open = |live: &Live| match directory(live) {
        Ok(directory) => Some(directory),
        Err(error) => {
            tracing::warn!(directory = %live.member.path.display(), %error, "no metadata in this directory");
            None
        }
    };
    live.filter_map(open).collect()
}

async fn open_metadata(
    runtime: &Runtime,
    roster: &Roster,
    live: &BTreeMap<SiteId, Live>,
) -> Outcome<EmbeddedStore> {
    let directories = meta_directories(live.values());
    let opened =
        EmbeddedStore::open_or_create(runtime, Options::default(), layout(roster), &directories).await;
    opened.map_err(Failure::refused)
}

/// The cluster's row, which the first start makes. Nobody older has a part in a new store, so that it begins with the
/// newest formats.
async fn cluster_row(
    runtime: &Runtime,
    meta: &EmbeddedStore,
    roster: &Roster,
    settings: &Settings,
    is_new: bool,
) -> Outcome<records::Cluster> {
    if let Some(row) = meta.get(&keys::cluster()).await.map_err(Failure::failed)? {
        let record: records::Cluster = row.record().map_err(Failure::failed)?;
        record.formats().check_readable(&record.needs_release).map_err(Failure::refused)?;
        let profile: Profile = record.profile.parse().map_err(Failure::failed)?;
        if settings.profile.is_some_and(|wish| wish != profile) && !is_new {
            tracing::warn!(
                "--profile is only for the first start; this cluster's default stays {profile} \
                 (`striate bucket create --profile` chooses for a bucket)"
            );
        }
        return Ok(record);
    }
    let profile = settings.profile.unwrap_or_else(|| Profile::for_directories(roster.members.len()));
    let mut record = records::Cluster {
        id: roster.cluster.to_string(),
        created_unix_ms: runtime.wall_time().as_millis() as u64,
        profile: profile.to_string(),
        next_site: roster.next_site,
        region: settings.region.clone(),
        ..records::Cluster::default()
    };
    record.set_formats(roster.formats.in_force);
    let mut tx = transaction(runtime);
    tx.require_unchanged(keys::cluster(), None).put(keys::cluster(), records::encode(&record));
    match meta.commit(tx).await.map_err(Failure::failed)? {
        Commit::Done(_) => Ok(record),
        Commit::Conflict { .. } => Err(Failure::failed("the cluster's row appeared by itself; start again")),
    }
}

fn transaction(runtime: &Runtime) -> Transaction {
    let (high, low) = (runtime.random_u64(), runtime.random_u64());
    Transaction::new(TxId(u128::from(high) << 64 | u128::from(low)))
}

impl Cluster {
    /// Makes the rows of sites follow the roster: members are active, everybody else is retired.
    pub(crate) async fn follow_roster(&self) -> Result<(), MetaError> {
        let (wanted, next_site) = {
            let state = self.inner.state.lock();
            (state.site_rows(), state.roster.next_site)
        };
        let meta = &self.inner.meta;
        for record in &wanted {
            let key = keys::site(SiteId(record.id));
            let row = meta.get(&key).await?;
            let known = row.as_ref().map(|row| row.record::<records::Site>()).transpose()?;
            let state = known.as_ref().map_or(records::site::State::Active as i32, |known| known.state);
            let record = records::Site { state, ..record.clone() };
            if known.as_ref() != Some(&record) {
                self.put_row(key, row.as_ref(), records::encode(&record)).await?;
            }
        }
        for row in meta.scan(striate_meta::ScanRange::prefix(keys::SITES), 4_096).await? {
            let mut record: records::Site = row.record()?;
            let is_member = wanted.iter().any(|wanted| wanted.id == record.id);
            if !is_member && record.state() != records::site::State::Retired {
                record.set_state(records::site::State::Retired);
                self.put_row(row.key.clone(), Some(&row), records::encode(&record)).await?;
            }
        }
        let Some(row) = meta.get(&keys::cluster()).await? else { return Ok(()) };
        let mut record: records::Cluster = row.record()?;
        if record.next_site < next_site {
            record.next_site = next_site;
            self.put_row(keys::cluster(), Some(&row), records::encode(&record)).await?;
        }
        Ok(())
    }

    async fn put_row(
        &self,
        key: bytes::Bytes,
        row: Option<&striate_meta::Row>,
        value: bytes::Bytes,
    ) -> Result<(), MetaError> {
        let mut tx = transaction(&self.inner.runtime);
        tx.require_unchanged(key.clone(), row).put(key, value);
        match self.inner.meta.commit(tx).await? {
            Commit::Done(_) => Ok(()),
            Commit::Conflict { .. } => {
                Err(MetaError::Unavailable("another change came in between; try again".to_owned()))
            }
        }
    }
}

impl State {
    /// The sites that are here.
    fn sites(&self) -> Vec<Arc<dyn Site>> {
        match &self.followed {
            Some(followed) => followed.sites.all(),
            None => self.live.values().map(|live| live.site.site()).collect(),
        }
    }

    /// The rows of the sites that belong to the cluster.
    fn site_rows(&self) -> Vec<records::Site> {
        let local = |member: &Member| records::Site {
            id: member.site.0,
            rack: rack_of(member).0,
            address: member.path.display().to_string(),
            disk: member.disk.0.to_vec().into(),
            ..records::Site::default()
        };
        match &self.followed {
            Some(followed) => followed.rows.clone(),
            None => self.roster.members.iter().map(local).collect(),
        }
    }
}
