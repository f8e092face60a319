//! The status of a store's memory tier.

use std::sync::atomic::Ordering;

use futures::future::join_all;
use striate_cache::{ReadOutcome, longest_fetched};
use striate_commands::admin::messages::{
    CacheState, FailingOriginState, MemorySiteState, OriginState, ServedState,
};
use striate_core::{Profile, SiteId, Tier};
use striate_meta::records;
use striate_origin::FailingOrigin;
use striate_site::{BlockKeeper, CacheView};

use super::Cluster;
use super::health::LOOK_TIMEOUT;

/// Maximum number of buckets searched for volatile ones, which a status names.
const BUCKETS_LOOKED_AT: usize = 1_000;

impl Cluster {
    /// Returns the state of the memory tier; `None` if there is none.
    pub(super) async fn cache_state(&self) -> Option<CacheState> {
        let sites = match &self.inner.services.memory {
            Some(keeper) => vec![site_state(None, &records::Site::default(), Some(keeper.view()))],
            None => self.remote_memory_sites().await,
        };
        if sites.is_empty() {
            return None;
        }
        let counts = self.inner.services.cache.counts();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let served = |outcome: ReadOutcome| {
            let (reads, bytes) = counts.reads(outcome);
            ServedState { how: outcome.name().to_owned(), reads, bytes }
        };
        Some(CacheState {
            sites,
            reads: ReadOutcome::ALL.map(served).into(),
            cached_bytes: count(&counts.cached_bytes),
            fills: count(&counts.fills),
            filled_bytes: count(&counts.filled_bytes),
            given_up: count(&counts.given_up),
            parities: count(&counts.parities),
            unanswered: count(&counts.unanswered),
            deleted: count(&counts.deleted),
            overwritten: count(&counts.overwritten),
            volatile_buckets: self.volatile_buckets().await,
        })
    }

    /// Returns the volatile buckets among the first ones: their objects are in memory only. Empty if the metadata
    /// cannot be read, which is reported elsewhere.
    pub(super) async fn volatile_buckets(&self) -> Vec<String> {
        let buckets =
            self.inner.services.client.list_buckets("", BUCKETS_LOOKED_AT).await.unwrap_or_default();
        buckets.into_iter().filter(is_volatile).map(|bucket| bucket.name).collect()
    }

    /// Returns the counts of requests to other S3 stores, and those that do not answer; `None` if there were no
    /// requests.
    pub(super) fn origin_state(&self) -> Option<OriginState> {
        let origins = &self.inner.services.origins;
        let counts = origins.counts();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let state = OriginState {
            requests: count(&counts.requests),
            failures: count(&counts.failures),
            bytes: count(&counts.bytes),
            revalidations: count(&counts.revalidations),
            changes: count(&counts.changes),
            fenced: count(&counts.fenced),
            passed_by: count(&counts.passed_by),
            cached_writes: count(&counts.cached_writes),
            uncached_writes: count(&counts.uncached_writes),
            failing: origins.failing().into_iter().map(failing_state).collect(),
        };
        (state != OriginState::default()).then_some(state)
    }

    /// Warns of blocks of buckets in front of other stores that are too long for this process to cache when it reads
    /// them.
    pub(crate) fn too_long_to_cache(&self, block_len: u64) -> Option<String> {
        too_long(block_len, self.inner.services.client.stripes().budget().total())
    }

    /// Asks each memory site in other processes for its status.
    async fn remote_memory_sites(&self) -> Vec<MemorySiteState> {
        let (rows, sites) = {
            let state = self.inner.state.lock();
            let Some(followed) = &state.followed else { return Vec::new() };
            (followed.memory_rows.clone(), followed.memory_sites.all())
        };
        let ask = |row: records::Site| {
            let site = sites.iter().find(|site| site.id() == SiteId(row.id)).cloned();
            async move {
                let status = match site {
                    Some(site) => self.inner.runtime.timeout(LOOK_TIMEOUT, site.status()).await.ok(),
                    None => None,
                };
                let view = status.and_then(Result::ok).and_then(|status| status.cache);
                site_state(Some(row.id), &row, view)
            }
        };
        join_all(rows.into_iter().map(ask)).await
    }
}

fn is_volatile(bucket: &records::Bucket) -> bool {
    let is_in_memory = |profile: Profile| profile.tier == Tier::Memory;
    bucket.origin.is_none() && bucket.profile.parse().is_ok_and(is_in_memory)
}

fn too_long(block_len: u64, body_memory: usize) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let longest = longest_fetched(body_memory) as u64;
    (block_len > longest).then(|| {
        format!(
            "blocks of {} MiB (--cache-block-mib) of a bucket in front of another store are not cached when they are read: a \
             block may take a quarter of --body-memory-mib ({}); start with --body-memory-mib {} or more, or make the bucket \
             with --cache-block-mib {} or less",
            block_len / MIB,
            body_memory as u64 / MIB,
            4 * block_len / MIB,
            longest / MIB
        )
    })
}

fn failing_state(origin: FailingOrigin) -> FailingOriginState {
    FailingOriginState {
        bucket: origin.bucket,
        endpoint: origin.endpoint,
        requests: origin.requests,
        since_s: origin.since.as_secs(),
        last_s_ago: origin.last.as_secs(),
        reason: origin.reason,
    }
}

fn site_state(site: Option<u32>, row: &records::Site, view: Option<CacheView>) -> MemorySiteState {
    let state = if view.is_some() { "ok" } else { "missing" };
    let view = view.unwrap_or_default();
    MemorySiteState {
        site,
        rack: row.rack.clone(),
        address: row.address.clone(),
        state: state.to_owned(),
        bound_bytes: view.bound_bytes.max(row.capacity_bytes),
        charged_bytes: view.charged_bytes,
        splits: view.chunks,
        data_bytes: view.data_bytes,
        parity_bytes: view.parity_bytes,
        other_bytes: view.other_bytes,
        blocks_by_parities: view.blocks_by_parities.into(),
        hits: view.hits,
        read_bytes: view.read_bytes,
        misses: view.misses,
        evicted_data: view.evicted_data,
        evicted_parities: view.evicted_parities,
        deleted: view.deleted,
        refused: view.refused,
        damaged: view.damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_no_read_caches_are_warned_of_with_both_settings() {
        let warning = too_long(64 << 20, 64 << 20).unwrap();
        for part in
            ["--body-memory-mib (64)", "--body-memory-mib 256 or more", "--cache-block-mib 16 or less"]
        {
            assert!(warning.contains(part), "{part:?} is not in {warning}");
        }
        assert_eq!((too_long(16 << 20, 64 << 20), too_long(0, 64 << 20)), (None, None));
    }
}
