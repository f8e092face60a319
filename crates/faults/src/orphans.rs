//! Orphans: once the faults have stopped, the collectors must remove everything that nothing names.
//!
//! A put, a repair or a move that ended halfway leaves chunks that no stripe record names; damage brings deleted
//! chunks back; overwrites and deletes leave rows of garbage. An operator's orphan scan finds the first, and the
//! collectors of the leading process remove all of it once their grace periods and the leases of dead writers have
//! ended. Then every chunk on every site is one that a committed stripe names there, under this generation. No row
//! refers to garbage, unfinished segments or dead writers (design.md §4.5, §10.3). No change is in progress, and
//! every wide stripe is complete.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use striate_control::collect_orphans;
use striate_core::{ChunkId, SiteId};
use striate_meta::records::{Garbage, GarbageChunk, Intent, Stripe};
use striate_meta::{LeaseId, MetaStore, keys};
use striate_site::ChunkStore;

use super::cluster::Cluster;
use super::dead_space;
use super::gateway::Gateway;
use super::invariants::{self, Invariant};

/// Deadline after the last fault: leases and grace periods, one after the other and several times over.
const COLLECTED_WITHIN: Duration = Duration::from_secs(240);
/// Maximum number of leftovers named in a report.
const SHOWN: usize = 10;
/// Interval between orphan scans.
const ROUND: Duration = Duration::from_secs(5);

/// Scans for orphans until the collectors have left nothing; reports a violation if the deadline passes.
pub async fn collect_all(cluster: &Cluster, gateway: &Gateway) {
    let client = gateway.client().expect("it was started");
    let deadline = cluster.runtime.now() + COLLECTED_WITHIN;
    loop {
        let found = collect_orphans(client.stripes()).await;
        let mut remains = remains(cluster).await;
        if remains.as_ref().is_some_and(Vec::is_empty) {
            remains = dead_space::unaccounted(cluster, &client).await;
        }
        if remains.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        if cluster.runtime.now() > deadline {
            let count = remains.as_ref().map_or(0, Vec::len);
            let some: Vec<String> = remains.into_iter().flatten().take(SHOWN).collect();
            let what = format!(
                "{count} left {COLLECTED_WITHIN:?} after the last fault, the first of them: {some:?}; {found:?}"
            );
            return cluster.broken.report(Invariant::Orphans, what);
        }
        cluster.runtime.sleep(ROUND).await;
    }
}

/// Describes what the collectors have yet to remove; `None` if the metadata cannot be read now.
async fn remains(cluster: &Cluster) -> Option<Vec<String>> {
    let mut remains = rows_left(cluster).await?;
    let stripes: BTreeMap<_, _> = invariants::committed(cluster)?.into_iter().collect();
    for site in cluster.sites() {
        let chunks = site.store()?.list(None, usize::MAX).now_or_never()?.ok()?.chunks;
        let unnamed = chunks.into_iter().map(|info| info.chunk).filter(|&chunk| {
            !stripes.get(&chunk.stripe).is_some_and(|record| names(record, chunk, site.id()))
        });
        remains.extend(unnamed.map(|chunk| {
            let record = stripes.get(&chunk.stripe);
            let now = record.map(|record| &record.locations[usize::from(chunk.index)]);
            format!("chunk {chunk} on site {}, which is now {now:?}", site.id())
        }));
    }
    Some(remains)
}

fn names(record: &Stripe, chunk: ChunkId, site: SiteId) -> bool {
    invariants::names(record, &GarbageChunk::of(chunk, site))
}

/// Returns the rows that the collectors have yet to consume.
async fn rows_left(cluster: &Cluster) -> Option<Vec<String>> {
    let mut remains = Vec::new();
    for (name, prefix) in [
        ("garbage", keys::GARBAGE),
        ("abandoned parts", keys::ABANDONED),
        ("pending", keys::PENDING),
        ("marks", keys::MARKS),
        ("changes", keys::CHANGES),
    ] {
        for row in cluster.engine.peek_all(prefix)? {
            let garbage = row.record::<Garbage>().ok().filter(|_| prefix == keys::GARBAGE);
            let contents = garbage.map(|garbage| (garbage.chunks, garbage.segment));
            remains.push(format!("a row of {name}, {}, {contents:?}", row.key.escape_ascii()));
        }
    }
    for row in cluster.engine.peek_all(keys::INTENTS)? {
        let intent: Intent = row.record().ok()?;
        if !cluster.engine.is_alive(LeaseId(intent.lease)).await.ok()? {
            remains.push(format!("the intent of writer {}, which is gone", intent.writer));
        }
    }
    Some(remains)
}
