//! The report of a store's state: status, capacity, warnings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join3;
use striate_commands::admin::messages::{
    COLD_DATA_OF, Capacity, DEBT_COUNT_LIMIT, FailingOriginState, FormatsState, LossState, MirrorState,
    PackingState, PlacementState, RepairState, SealedTotals, SiteState, Status,
};
use striate_control::{Gate, Members};
use striate_core::SiteId;
use striate_meta::embedded::MirrorStatus;
use striate_meta::{MetaError, RowPages, ScanRange, keys};
use striate_site::{Site, SiteStatus, StoreStatus};
use striate_stripe::SiteView;

use super::health::LOOK_TIMEOUT;
use super::work::Work;
use super::{Cluster, State};

/// Status of each site in another process, or the reason why it is unknown.
pub(super) type RemoteAnswers = BTreeMap<SiteId, Result<SiteStatus, String>>;

/// Time for what a status tells from the metadata, if a disk hangs.
const HURRIED: Duration = Duration::from_millis(300);
/// The same, if none does.
const UNHURRIED: Duration = Duration::from_secs(20);
/// Rows per scan.
const PAGE: usize = 1_000;

/// The part of a status that is in the metadata.
#[derive(Default)]
struct Told {
    debt_stripes: u64,
    work: Work,
    losses: Option<LossState>,
    sealed: Option<SealedTotals>,
    formats: Option<FormatsState>,
    /// Warnings about buckets' cold data, by bucket.
    unsuited: BTreeMap<String, Vec<String>>,
    volatile_buckets: usize,
    warnings: Vec<String>,
}

impl Cluster {
    /// Returns the state of the whole store, within two seconds if a disk hangs.
    pub async fn status(&self, endpoint: &str) -> Status {
        let ((sites, answers, engine), mirrors, cache) =
            join3(self.look(), self.mirror_states(), self.cache_state()).await;
        // What hangs is named above; the rest must not wait for it.
        let patience = match sites.iter().any(|site| site.state == "hanging") {
            true => HURRIED,
            false => UNHURRIED,
        };
        let told = match engine {
            Ok(()) => self.inner.runtime.timeout(patience, self.told_by_metadata(&sites, &answers)).await,
            Err(reason) => Ok(Err(reason)),
        };
        let told = told.unwrap_or_else(|_| Err("it is slow".to_owned()));
        let unread = told.as_ref().err().map(|reason| format!("the metadata cannot be read: {reason}"));
        let mut told = told.unwrap_or_default();
        let mut warnings: Vec<String> = unread.into_iter().collect();
        let thing = striate_commands::operate::losses::thing(&sites);
        warnings.extend(told.losses.iter().flat_map(|losses| losses.warnings(thing)));
        warnings.extend(self.warnings(&sites, &mirrors, told.debt_stripes, told.work.repair.as_ref()));
        warnings.append(&mut told.warnings);
        warnings.extend(self.bucket_warnings(&told, cache.is_some()));
        let total = match answers.is_empty() {
            true => self.capacity(),
            false => total_capacity(answers.values().flatten().map(|status| status.store.clone())),
        };
        warnings.extend(striate_listen::descriptors::shortage());
        warnings.extend(self.inner.audit.get().and_then(|audit| audit.trouble()));
        warnings.extend(self.inner.found_at_start.lock().iter().cloned());
        let Work { repair, movement, scrub, packing, copies } = told.work;
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: self.id(),
            uptime_s: (self.inner.runtime.now() - self.inner.started).as_secs(),
            endpoint: endpoint.to_owned(),
            profile: self.profile(),
            placement: self.placement_state(),
            capacity: total,
            notes: told.losses.iter().flat_map(|losses| losses.notes(thing)).collect(),
            losses: told.losses,
            sites,
            mirrors,
            debt_stripes: told.debt_stripes,
            repair,
            movement,
            scrub,
            packing,
            sealed: told.sealed,
            copies,
            cache,
            origins: self.origin_state(),
            formats: told.formats,
            warnings,
        }
    }

    /// Reads the part of the status that is in the metadata.
    async fn told_by_metadata(&self, sites: &[SiteState], answers: &RemoteAnswers) -> Result<Told, String> {
        let told = async {
            let debt_stripes = self.count_debt().await?;
            let work = self.work().await?;
            let stripes = self.inner.services.client.stripes();
            let mut warnings: Vec<String> =
                work.packing.as_ref().and_then(unreleasable).into_iter().collect();
            warnings.extend(self.drain_warnings().await);
            warnings.extend(self.absent_processes().await?);
            Ok::<_, MetaError>(Told {
                losses: Some(self.losses(sites, debt_stripes, work.repair.as_ref()).await?),
                debt_stripes,
                work,
                sealed: self.sealed_totals().await?,
                formats: self.formats_seen(answers).await.ok(),
                unsuited: striate_control::cold_warnings(stripes).await.unwrap_or_default(),
                volatile_buckets: self.volatile_buckets().await.len(),
                warnings,
            })
        };
        told.await.map_err(|error| error.to_string())
    }

    /// Returns the warnings about processes of a cluster that do not run any more.
    async fn absent_processes(&self) -> Result<Vec<String>, MetaError> {
        if self.inner.services.embedded.is_some() {
            return Ok(Vec::new());
        }
        let (runtime, meta) = (&self.inner.runtime, &self.inner.services.meta);
        Gate::new(runtime, &**meta).absent().await
    }

    /// Returns the warnings about buckets. Metadata that cannot be read is reported elsewhere.
    fn bucket_warnings(&self, told: &Told, has_memory_sites: bool) -> Vec<String> {
        let homeless = if has_memory_sites { 0 } else { told.volatile_buckets };
        let failing = self.origin_state().unwrap_or_default().failing;
        let longest_block = self.inner.services.origins.longest_block();
        unsuitable(&told.unsuited)
            .into_iter()
            .chain(without_memory(homeless))
            .chain(unanswered(&failing))
            .chain(self.too_long_to_cache(longest_block))
            .collect()
    }

    /// Returns the warnings about drains that may not end. Metadata that cannot be read is reported elsewhere.
    async fn drain_warnings(&self) -> Vec<String> {
        let meta = self.inner.services.client.stripes().meta();
        let found = Members::new(&self.inner.runtime, &**meta).drain_warnings().await;
        found.unwrap_or_default().into_values().collect()
    }

    /// Returns the effect of the default profile's placement rule on the existing racks.
    fn placement_state(&self) -> Option<PlacementState> {
        let stripes = self.inner.services.client.stripes();
        let rule = stripes.placement_rule(&self.profile()).ok()?;
        let (chunks_in_a_rack, tolerates_rack_loss) = (rule.rack_limit(), rule.tolerates_rack_loss());
        Some(PlacementState { racks: stripes.rack_count(), chunks_in_a_rack, tolerates_rack_loss })
    }

    /// Returns the capacity of this process's sites; a file system that several share is counted once.
    pub fn capacity(&self) -> Capacity {
        let state = self.inner.state.lock();
        total_capacity(state.live.values().map(super::LiveMember::store_status))
    }

    /// Counts the stripes in debt, up to a limit.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub async fn count_debt(&self) -> Result<u64, MetaError> {
        let mut pages = RowPages::new(ScanRange::prefix(keys::DEBTS), PAGE);
        let mut count = 0;
        while count < DEBT_COUNT_LIMIT
            && let Some(page) = pages.next(&*self.inner.services.meta).await?
        {
            count += page.len() as u64;
        }
        Ok(count)
    }

    /// Returns the metadata mirrors: those in sync, and those ejected from directories that still belong to the
    /// cluster.
    pub async fn mirror_states(&self) -> Vec<MirrorState> {
        let Some(embedded) = &self.inner.services.embedded else { return Vec::new() };
        // The engine looks between two groups of commits, and a group may wait for a disk.
        let looked = self.inner.runtime.timeout(LOOK_TIMEOUT, embedded.mirrors()).await;
        let mirrors = match looked {
            Ok(mirrors) => mirrors.unwrap_or_default(),
            Err(_) => embedded.last_known_mirrors(),
        };
        let roster = self.inner.state.lock().roster.clone();
        let belongs = |mirror: &MirrorStatus| mirror.in_sync || roster.member(mirror.disk_id).is_some();
        let state = |mirror: MirrorStatus| {
            let trouble = match mirror.file_bytes {
                None => Some("its disk does not answer".to_owned()),
                Some(0) if mirror.in_sync => Some("its directory vanished".to_owned()),
                Some(_) => mirror.last_error,
            };
            MirrorState {
                directory: mirror.path.into(),
                in_sync: mirror.in_sync && trouble.is_none(),
                reason: trouble,
                bytes: mirror.file_bytes.unwrap_or(0),
            }
        };
        mirrors.into_iter().filter(belongs).map(state).collect()
    }

    /// Asks each site in other processes for its status, with a timeout.
    pub(super) async fn ask_remote_sites(&self, timeout: Duration) -> RemoteAnswers {
        let remote = {
            let state = self.inner.state.lock();
            state.followed.as_ref().map(|followed| followed.sites.all()).unwrap_or_default()
        };
        let ask = |site: Arc<dyn Site>| async move {
            let reply = self.inner.runtime.timeout(timeout, site.status()).await;
            let answer = match reply {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(_) => Err("it does not answer".to_owned()),
            };
            (site.id(), answer)
        };
        futures::future::join_all(remote.into_iter().map(ask)).await.into_iter().collect()
    }

    pub(super) fn site_states(&self, answers: &RemoteAnswers) -> Vec<SiteState> {
        let views: BTreeMap<SiteId, SiteView> = self
            .inner
            .services
            .client
            .stripes()
            .sites()
            .into_iter()
            .map(|view| (view.site.id(), view))
            .collect();
        let state = self.inner.state.lock();
        let describe = |record: &striate_meta::records::Site| {
            let site = SiteId(record.id);
            let view = views.get(&site);
            let (condition, reason) = match (answers.get(&site), state.live.get(&site)) {
                (Some(Ok(status)), _) => condition(view, &status.store),
                (Some(Err(reason)), _) => ("missing", Some(reason.clone())),
                (None, Some(_)) if state.compared.contains(&site) => {
                    ("suspect", Some("it is back; its chunks are compared with the metadata".to_owned()))
                }
                (None, Some(live)) if live.is_there() => condition(view, &live.store_status()),
                (None, Some(_)) => ("missing", Some(replace_hint("it vanished", &record.address))),
                (None, None) => ("missing", Some(not_at_the_start(&state, site, &record.address))),
            };
            let load = view.map(|view| view.site.last_load()).unwrap_or_default();
            let capacity = match answers.get(&site) {
                Some(answer) => total_capacity(answer.iter().map(|status| status.store.clone())),
                None => {
                    total_capacity(state.live.get(&site).into_iter().map(super::LiveMember::store_status))
                }
            };
            SiteState {
                site: record.id,
                rack: record.rack.clone(),
                address: record.address.clone(),
                process: record.peer.clone(),
                state: condition.to_owned(),
                reason,
                capacity,
                load,
            }
        };
        state.site_rows().iter().map(describe).collect()
    }

    fn warnings(
        &self,
        sites: &[SiteState],
        mirrors: &[MirrorState],
        debt: u64,
        repair: Option<&RepairState>,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        for site in sites.iter().filter(|site| site.state != "ok") {
            let reason = site.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            warnings.push(format!("site {} on {} is {}{reason}", site.site, site.address, site.state));
        }
        warnings.extend(self.fullness_warnings(sites));
        let in_sync = mirrors.iter().filter(|mirror| mirror.in_sync).count();
        let mirror_count = super::layout(&self.inner.state.lock().roster).mirrors();
        if in_sync < mirror_count && self.inner.services.embedded.is_some() {
            warnings.push(format!("{in_sync} of {mirror_count} metadata mirrors are in sync"));
        }
        warnings.extend(in_debt(debt, repair));
        if self.profile().code.tolerance() == 0 {
            warnings.push("there is no redundancy: losing a disk loses what is on it".to_owned());
        }
        let state = self.inner.state.lock();
        for path in &state.ignored {
            warnings
                .push(format!("{} is blank and was not admitted while a disk is missing", path.display()));
        }
        warnings
    }

    /// Returns the groups of directories that share a file system, for a warning at the start.
    pub fn shared_file_systems(&self) -> Vec<Vec<String>> {
        let mut by_medium: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for live in self.inner.state.lock().live.values() {
            let path = live.member.path.display().to_string();
            by_medium.entry(live.store_status().medium).or_default().push(path);
        }
        by_medium.into_values().filter(|paths| paths.len() > 1).collect()
    }
}

/// Warns of stripes in debt, if there are any.
fn in_debt(debt: u64, repair: Option<&RepairState>) -> Option<String> {
    match repair {
        _ if debt == 0 => None,
        Some(repair) if !repair.off && repair.waiting > 0 => Some(format!(
            "{debt} stripes are in debt; {} stripes wait for a site that takes chunks or that returns",
            repair.waiting
        )),
        Some(repair) if !repair.off => Some(format!("{debt} stripes are in debt; they are repaired now")),
        _ => Some(format!("{debt} stripes are in debt; run `striate heal`")),
    }
}

/// Warns that packed groups cannot be released, if there are any.
fn unreleasable(packing: &PackingState) -> Option<String> {
    (packing.unreadable_groups > 0).then(|| {
        format!(
            "{} packed groups cannot be released: too many chunks of directories are lost (stripe {}); bring lost disks \
             back",
            packing.unreadable_groups,
            packing.unreadable_stripes.join(", ")
        )
    })
}

/// Warns of buckets whose racks do not suit cold data, or in which sealing makes it less durable, if there are any. The
/// warning names the remedy.
fn unsuitable(buckets: &BTreeMap<String, Vec<String>>) -> Option<String> {
    let (name, warnings) = buckets.iter().next()?;
    let others = match buckets.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let more = if buckets.len() + warnings.len() > 2 { "; `striate pack status` says more" } else { "" };
    Some(format!("{COLD_DATA_OF}{name}{others}: {}{more}", warnings.first()?))
}

/// Warns of volatile buckets where there are no memory sites, without their names, which not everybody may see.
fn without_memory(volatile_buckets: usize) -> Option<String> {
    let take = match volatile_buckets {
        0 => return None,
        1 => "a volatile bucket takes".to_owned(),
        buckets => format!("{buckets} volatile buckets take"),
    };
    Some(format!(
        "{take} no objects: there are no memory sites; start `striate server --cache-mib` or `striate site --memory-mib`"
    ))
}

/// Warns of each store that does not answer as an origin, without the names of buckets, which not everybody may see.
fn unanswered(failing: &[FailingOriginState]) -> Vec<String> {
    let mut latest: BTreeMap<&str, &FailingOriginState> = BTreeMap::new();
    for origin in failing {
        let known = latest.entry(&origin.endpoint).or_insert(origin);
        if origin.last_s_ago < known.last_s_ago {
            *known = origin;
        }
    }
    let warning =
        |FailingOriginState { endpoint, requests, since_s, last_s_ago, reason, .. }: &FailingOriginState| {
            format!(
                "the origin {endpoint} does not answer: the last {requests} requests to it failed, the first {since_s} s ago \
             and the last {last_s_ago} s ago: {reason}; see that it runs and that this machine reaches it. Until it answers \
             a request, only reads of what is in memory succeed"
            )
        };
    latest.into_values().map(warning).collect()
}

/// Says why the start went on without a site.
fn not_at_the_start(state: &State, site: SiteId, path: &str) -> String {
    let missing = state.missing.iter().find(|missing| missing.member.site == site);
    match missing.map(|missing| (&missing.found, missing.excluded)) {
        Some((found, Some(way_out))) => {
            format!("excluded at the start, and left as it is: {found}; {way_out}")
        }
        _ => replace_hint("not found at the start", path),
    }
}

fn replace_hint(what: &str, path: &str) -> String {
    format!(
        "{what}; mount it again and it is taken back. If it is lost: an empty directory there, and `striate disk replace {path}`"
    )
}

/// Returns a site's state in one word, and the reason if it is not `ok`.
fn condition(view: Option<&SiteView>, store: &StoreStatus) -> (&'static str, Option<String>) {
    let StoreStatus { suspect, silent, vanished, .. } = store;
    match (vanished, silent, suspect, view) {
        (Some(reason), ..) => ("missing", Some(reason.clone())),
        (None, Some(silence), ..) => {
            ("hanging", Some(format!("its disk has answered nothing for {} s", silence.as_secs().max(1))))
        }
        (None, None, Some(reason), _) => ("suspect", Some(reason.clone())),
        (None, None, None, Some(view)) if view.draining => ("draining", None),
        (None, None, None, Some(view)) if view.readable && view.writable => ("ok", None),
        (None, None, None, _) => ("suspect", Some("it does not answer".to_owned())),
    }
}

/// Returns the sum over stores; stores on one file system share its size and its free space.
fn total_capacity(stores: impl Iterator<Item = StoreStatus>) -> Capacity {
    let mut total = Capacity::default();
    let mut media = BTreeMap::new();
    for store in stores {
        total.payload_bytes += store.payload_bytes;
        total.disk_bytes += store.disk_bytes;
        total.chunks += store.chunks;
        let (capacity, free) = media.entry(store.medium).or_insert((store.capacity_bytes, store.free_bytes));
        *capacity = store.capacity_bytes.max(*capacity);
        *free = store.free_bytes.min(*free);
    }
    for (capacity, free) in media.into_values() {
        total.total_bytes += capacity;
        total.free_bytes += free;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_whose_cold_data_is_not_well_sealed_are_warned_of_in_one_line() {
        let of = |name: &str, warnings: &[&str]| {
            (name.to_owned(), warnings.iter().map(|&warning| warning.to_owned()).collect())
        };
        let line = |buckets: Vec<(String, Vec<String>)>| unsuitable(&BTreeMap::from_iter(buckets));
        assert_eq!(line(Vec::new()), None);
        let all_racks = "wide(42,15,4) uses all 12 racks; add a rack";
        let one = line(vec![of("archive", &[all_racks])]).unwrap();
        assert_eq!(one, format!("cold data of archive: {all_racks}"));
        let more = "; `striate pack status` says more";
        let two = line(vec![of("archive", &[all_racks, "rack1 holds 50.0%"])]).unwrap();
        assert_eq!(two, one.clone() + more);
        let others = line(vec![of("archive", &[all_racks]), of("logs", &[all_racks])]).unwrap();
        assert!(others.contains("archive and 1 more: wide") && others.ends_with(more), "{others}");
    }

    #[test]
    fn a_store_that_does_not_answer_is_warned_of_once_as_it_was_last_asked() {
        let failing = |bucket: &str, endpoint: &str, last_s_ago| FailingOriginState {
            bucket: bucket.to_owned(),
            endpoint: endpoint.to_owned(),
            requests: 3,
            since_s: 60,
            last_s_ago,
            reason: "connection refused".to_owned(),
        };
        let of =
            [failing("secret", "http://a", 9), failing("hidden", "http://a", 4), failing("b", "http://b", 7)];
        let warnings = unanswered(&of);
        let [first, second] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(
            first.contains("http://a") && first.contains("the last 4 s ago: connection refused"),
            "{first}"
        );
        assert!(second.contains("http://b") && second.contains("the first 60 s ago"), "{second}");
        assert!(!first.contains("hidden") && !first.contains("secret"), "{first}");
        assert!(unanswered(&[]).is_empty());
    }

    #[test]
    fn a_shared_file_system_is_counted_once() {
        let store = |medium, capacity_bytes, payload_bytes| StoreStatus {
            medium,
            capacity_bytes,
            free_bytes: capacity_bytes / 2,
            payload_bytes,
            ..StoreStatus::default()
        };
        let total = total_capacity([store(1, 100, 5), store(1, 100, 6), store(2, 50, 7)].into_iter());
        assert_eq!((total.total_bytes, total.free_bytes, total.payload_bytes), (150, 75, 18));
    }
}
