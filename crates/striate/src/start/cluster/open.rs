//! Opens a store over a set of directories; the first start creates it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use striate_cache::{Cache, Keeper};
use striate_client::{Client, ClientOptions};
use striate_commands::admin::find::STATE_FOLDER;
use striate_commands::failure::{Failure, Outcome};
use striate_core::{ClusterId, Formats, FormatsInForce, Profile, RackId, SiteId};
use striate_meta::embedded::{DiskId, EmbeddedStore, Layout, MetaDirectory, Options};
use striate_meta::{Commit, MetaStore, Transaction, keys, records};
use striate_runtime::Runtime;
use striate_s3::{KeyStore, SealingKey};
use striate_site::{CacheOptions, CacheStore, LocalSite, QueueLimits, SiteIdentity};
use striate_stripe::{OWN_MEMORY, StripeOptions};

use super::settings::refuse_memory;
use super::{Cluster, LiveMember, Services, Settings, State};
use crate::resident::ResidentMemory;
use crate::start::directories::{DirectoryContents, inspect};
use crate::start::lock::{DirectoryLock, LOCK_FILE};
use crate::start::plan::{OpenPlan, StartPlan};
use crate::start::prepare::PreparedStart;
use crate::start::roster::{Member, RequiredFormats, Roster};
use crate::start::sealing::{self, SealingBytes};
use crate::start::site::{DiskSite, meta_folder};

/// A store that was opened.
pub struct OpenedCluster {
    /// The store itself.
    pub cluster: Cluster,
    /// True if this start created the cluster.
    pub is_new: bool,
}

impl Cluster {
    /// Executes a prepared start.
    ///
    /// # Errors
    /// If a directory is in use or cannot be written, or if the metadata cannot be opened. The message names the
    /// remedy. Settings that cannot be used are refused before anything is written.
    pub async fn open(runtime: Runtime, start: PreparedStart, settings: Settings) -> Outcome<OpenedCluster> {
        settings.check(&runtime)?;
        let is_new = matches!(start.plan, StartPlan::First { .. });
        let (plan, locks) = lock_directories(&runtime, start, &settings)?;
        let members: Vec<Member> = plan.present.iter().chain(&plan.unfinished).cloned().collect();
        let paths: Vec<&Path> = members.iter().map(|member| member.path.as_path()).collect();
        let sealing = sealing_key(&runtime, &plan, &paths)?;
        write_rosters(&plan.roster, &members);
        // The row may be ahead of the rosters, which follow it, but never behind them.
        let formats = FormatsInForce::new(plan.roster.formats.in_force);
        let live = open_sites(&runtime, plan.roster.cluster, members, locks, &formats).await;
        let meta = open_metadata(&runtime, &plan.roster, &live).await?;
        let row = cluster_row(&runtime, &meta, &plan.roster, &settings, is_new).await?;
        let state = State {
            roster: plan.roster,
            live,
            compared: BTreeSet::new(),
            missing: plan.missing,
            ignored: plan.ignored,
            followed: None,
        };
        let (upkeep, stale) = (settings.upkeep, meta.stale_mirrors().to_vec());
        let services = open_services(&runtime, meta, &row, &state, &formats, sealing, settings).await?;
        let cluster = Self::assemble(runtime, services, state, upkeep);
        for live in cluster.inner.state.lock().live.values() {
            cluster.introduce(&live.site);
        }
        cluster.follow_roster().await.map_err(Failure::failed)?;
        cluster.resume_leaving().await?;
        cluster.require_formats((&row).into()).await?;
        formats.raise(row.formats());
        for path in plan.admit {
            cluster.admit(&path).await?;
        }
        for mirror in stale {
            cluster.warn(format!(
                "the metadata in {mirror} is an old copy: it lacks what was stored after it was made. If a newer one exists, \
                 stop the server and bring that back"
            ));
        }
        cluster.warn_of_foreign_sealing_key().await?;
        Ok(OpenedCluster { cluster, is_new })
    }

    /// Warns if the sealing key does not open the secrets of access keys.
    pub(super) async fn warn_of_foreign_sealing_key(&self) -> Outcome {
        if let Some(key) = self.inner.services.keys.unopenable().await.map_err(Failure::failed)? {
            self.warn(format!(
                "{} is not the key with which the secrets of access keys were sealed: {key} cannot be used. Stop this \
                 process and bring the right key back",
                sealing::SEALING_FILE
            ));
        }
        Ok(())
    }
}

/// Locks the directories that are not members yet; the first start creates them. Returns the plan for the cluster's
/// members, and their locks in its order.
fn lock_directories(
    runtime: &Runtime,
    PreparedStart { plan, mut locks }: PreparedStart,
    settings: &Settings,
) -> Outcome<(OpenPlan, Vec<DirectoryLock>)> {
    match plan {
        StartPlan::First { paths } => begin_first(runtime, &paths, settings),
        StartPlan::Open(plan) => {
            let members = plan.present.iter().chain(&plan.unfinished);
            let mut lock_one =
                |member: &Member| locks.remove(&member.path).map_or_else(|| lock(&member.path), Ok);
            let locks = members.map(&mut lock_one).collect::<Outcome<Vec<_>>>()?;
            Ok((plan, locks))
        }
    }
}

/// Opens the sites in the members' directories. Logs those that cannot be used.
async fn open_sites(
    runtime: &Runtime,
    cluster: ClusterId,
    members: Vec<Member>,
    locks: Vec<DirectoryLock>,
    formats: &FormatsInForce,
) -> BTreeMap<SiteId, LiveMember> {
    let mut live = BTreeMap::new();
    for (member, lock) in members.into_iter().zip(locks) {
        match DiskSite::open(runtime, cluster, &member, formats).await {
            Ok(site) => drop(live.insert(member.site, LiveMember { member, site, lock })),
            Err(reason) => {
                tracing::error!(directory = %member.path.display(), %reason, "a directory cannot be used");
            }
        }
    }
    live
}

/// Opens what serves requests, over the store's sites and its metadata.
async fn open_services(
    runtime: &Runtime,
    meta: EmbeddedStore,
    row: &records::Cluster,
    state: &State,
    formats: &FormatsInForce,
    sealing: SealingBytes,
    settings: Settings,
) -> Outcome<Services> {
    let profile = row.profile.parse().map_err(Failure::failed)?;
    let store: Arc<dyn MetaStore> = Arc::new(meta.clone());
    let keys = KeyStore::new(runtime.clone(), store.clone(), SealingKey::new(&sealing), settings.given_key);
    let keys = Arc::new(keys.map_err(Failure::refused)?);
    let options = ClientOptions {
        profile,
        mirrors: layout(&state.roster).mirrors(),
        stripes: StripeOptions { formats: formats.clone(), ..settings.stripes },
        ..ClientOptions::default()
    };
    let client = Client::open(runtime.clone(), store.clone(), state.sites(), options).await;
    let client = client.map_err(Failure::failed)?;
    let cache = Cache::new(client.stripes(), settings.caching.settings());
    let cluster = state.roster.cluster;
    let memory = settings.caching.memory.map(|options| memory_site(runtime, &cache, cluster, options));
    let origins = settings.caching.origins(&client, &cache, &keys)?;
    Ok(Services {
        meta: store,
        embedded: Some(meta),
        client,
        cache,
        origins,
        memory: memory.transpose()?,
        keys,
        sealing,
    })
}

/// Creates a memory site in this process, which is the whole tier.
fn memory_site(
    runtime: &Runtime,
    cache: &Cache,
    cluster: ClusterId,
    options: CacheOptions,
) -> Outcome<Arc<Keeper>> {
    let process = Arc::new(ResidentMemory::new(runtime.clone()));
    let store = CacheStore::within_process(options, process).map_err(refuse_memory)?;
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

/// Returns a random identity for a directory.
pub(super) fn new_disk(runtime: &Runtime) -> DiskId {
    let mut disk = [0; 16];
    runtime.fill_secret(&mut disk);
    DiskId(disk)
}

/// Creates the directories and locks them. Returns the plan for a cluster whose members are all unfinished.
fn begin_first(
    runtime: &Runtime,
    paths: &[PathBuf],
    settings: &Settings,
) -> Outcome<(OpenPlan, Vec<DirectoryLock>)> {
    let profile = first_profile(settings, paths.len())?;
    let locks = paths.iter().map(|path| take_blank(path)).collect::<Outcome<Vec<_>>>()?;
    let roster = first_roster(runtime, paths, profile);
    let plan = OpenPlan {
        present: Vec::new(),
        unfinished: roster.members.clone(),
        roster,
        missing: Vec::new(),
        admit: Vec::new(),
        ignored: Vec::new(),
    };
    Ok((plan, locks))
}

/// Returns the default profile of a new cluster, which must be able to keep objects on this number of sites.
fn first_profile(settings: &Settings, sites: usize) -> Outcome<Profile> {
    let profile = settings.profile.unwrap_or_else(|| Profile::for_directories(sites));
    profile.check_default(Formats::NEWEST).map_err(Failure::refused)?;
    if profile.code.chunk_count() > sites {
        return Err(Failure::refused(format!(
            "the profile {profile} needs {} sites, {sites} are given; choose another with --profile",
            profile.code.chunk_count()
        )));
    }
    Ok(profile)
}

/// Creates a directory and locks it.
fn take_blank(path: &Path) -> Outcome<DirectoryLock> {
    let created = std::fs::create_dir_all(path);
    created.map_err(|error| Failure::refused(format!("{}: {error}; make it yourself", path.display())))?;
    let lock = lock(path)?;
    // Another server may have taken it between the inspection and the lock.
    if inspect(path).map_err(Failure::refused)?.found != DirectoryContents::Blank {
        return Err(Failure::refused(format!("{} was taken by another server just now", path.display())));
    }
    Ok(lock)
}

/// Returns the roster of a new cluster in these directories, which exist.
fn first_roster(runtime: &Runtime, paths: &[PathBuf], profile: Profile) -> Roster {
    let mut random = [0; 16];
    runtime.fill_secret(&mut random);
    let cluster = ClusterId(u128::from_be_bytes(random));
    let member = |(index, path): (usize, &PathBuf)| Member {
        disk: new_disk(runtime),
        site: SiteId(index as u32 + 1),
        path: std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
    };
    let members: Vec<_> = paths.iter().enumerate().map(member).collect();
    Roster {
        generation: 1,
        cluster,
        tolerance: profile.code.tolerance(),
        next_site: members.len() as u32 + 1,
        members,
        formats: RequiredFormats::newest(),
    }
}

/// Returns the sealing key, which every directory holds. Creates it only while nothing can have been sealed.
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

/// Writes the roster wherever it differs. A directory that cannot be written is logged, and stays: the checks of the
/// site and of the metadata decide what it can be used for.
pub(super) fn write_rosters(roster: &Roster, members: &[Member]) {
    for member in members {
        if matches!(Roster::read(&member.path), Ok(Some((stored, _))) if stored == *roster) {
            continue;
        }
        if let Err(error) = roster.write(&member.path, member.disk) {
            tracing::warn!(directory = %member.path.display(), %error, "the roster was not written");
        }
    }
}

pub(in crate::start) fn layout(roster: &Roster) -> Layout {
    Layout {
        cluster: roster.cluster,
        total_directories: roster.members.len(),
        tolerance: roster.tolerance.min(roster.members.len().saturating_sub(1)),
    }
}

/// Returns the directories of the members that are present, in the form that the metadata engine uses.
pub(super) fn meta_directories<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<MetaDirectory> {
    let directory = |Member { path, disk, .. }: &Member| {
        let lock = path.join(STATE_FOLDER).join(LOCK_FILE);
        MetaDirectory::open_with_witness(*disk, meta_folder(path), lock)
    };
    let open = |member: &'a Member| match directory(member) {
        Ok(directory) => Some(directory),
        Err(error) => {
            tracing::warn!(directory = %member.path.display(), %error, "no metadata in this directory");
            None
        }
    };
    members.filter_map(open).collect()
}

async fn open_metadata(
    runtime: &Runtime,
    roster: &Roster,
    live: &BTreeMap<SiteId, LiveMember>,
) -> Outcome<EmbeddedStore> {
    let directories = meta_directories(live.values().map(|live| &live.member));
    let opened =
        EmbeddedStore::open_or_create(runtime, Options::default(), layout(roster), &directories).await;
    opened.map_err(Failure::refused)
}

/// Returns the cluster's row, which the first start creates. A new store has no older programs, so it starts with the
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
    let mut tx = Transaction::with_random_id(runtime);
    tx.require_unchanged(keys::cluster(), None).put(keys::cluster(), records::encode(&record));
    match meta.commit(tx).await.map_err(Failure::failed)? {
        Commit::Done(_) => Ok(record),
        Commit::Conflict { .. } => Err(Failure::failed("the cluster's row appeared by itself; start again")),
    }
}
