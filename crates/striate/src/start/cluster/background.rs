//! Background work of a running store: keeping stripes and mirrors complete, watching directories.

use std::time::Duration;

use striate_client::ClientError;
use striate_control::keep_following_copies;
use striate_control::movement::{AccessSource, MovementJournal};
use striate_core::{Profile, Tier};
use striate_meta::embedded::{EmbeddedStore, MirrorEvent};
use striate_meta::records::Bucket;
use tokio::sync::broadcast::error::RecvError;

use super::Cluster;

/// Poll interval of the directories.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Interval between checks of the metadata mirrors, which find failures while there are no writes.
const CHECK_MIRRORS_EVERY: Duration = Duration::from_secs(1);
/// Time from a start to the first scrub of the metadata mirrors.
const FIRST_SCRUB_AFTER: Duration = Duration::from_secs(5 * 60);
/// Interval between scrubs of the metadata mirrors, each of which reads every row.
const SCRUB_EVERY: Duration = Duration::from_secs(6 * 60 * 60);
/// Poll interval of the buckets' profiles.
const PROFILES_EVERY: Duration = Duration::from_secs(10);
/// Pause before mirrors are restored again after a failure.
const MIRROR_RETRY: Duration = Duration::from_secs(15);

impl Cluster {
    /// Starts the background work, which ends with [`Cluster::close`].
    pub fn start_background(&self) {
        let runtime = &self.inner.runtime;
        let stripes = || self.inner.services.client.stripes().past_cache();
        let statistics = self.inner.statistics.clone();
        let source = AccessSource::Own(stripes());
        let mut tasks = vec![
            runtime.spawn(statistics.clone().run(stripes())),
            runtime.spawn(self.inner.services.origins.clone().run()),
        ];
        match &self.inner.services.embedded {
            // No other process works on this metadata, so the work of a cluster's leading control process is done here.
            Some(embedded) => tasks.extend([
                runtime.spawn(self.inner.upkeep.clone().run(stripes(), source.clone())),
                runtime.spawn(self.inner.rebalancer.clone().run(stripes())),
                runtime.spawn(self.journal(source.clone()).run(stripes())),
                runtime.spawn(self.inner.optimiser.clone().run(stripes(), source, statistics)),
                runtime.spawn(self.clone().keep_mirrors(embedded.clone())),
                runtime.spawn(self.clone().check_mirrors(embedded.clone())),
                runtime.spawn(self.clone().scrub_metadata(embedded.clone())),
                runtime.spawn(self.clone().watch_directories()),
                runtime.spawn(self.clone().watch_profiles()),
                runtime.spawn(self.clone().watch_fullness()),
                runtime.spawn(self.clone().take_disks_back()),
            ]),
            None => tasks.extend([
                runtime.spawn(self.clone().follow_sites()),
                runtime.spawn(keep_following_copies(stripes())),
            ]),
        }
        self.inner.tasks.lock().extend(tasks);
    }

    /// Returns the journal of this process's movers, which every process shows; `source` supplies the most requested
    /// blocks.
    pub fn journal(&self, source: AccessSource) -> MovementJournal {
        let inner = &self.inner;
        MovementJournal::new(&inner.rebalancer, &inner.optimiser, &inner.statistics, source)
    }

    /// Restores missing metadata mirrors at the start and after every ejection.
    async fn keep_mirrors(self, embedded: EmbeddedStore) {
        let mut events = embedded.events();
        loop {
            match self.restore_mirrors().await {
                Ok(0) => {}
                Ok(added) => tracing::info!(mirrors = added, "metadata mirrored again"),
                Err(error) => {
                    tracing::warn!(%error, "metadata mirrors were not restored; will try again");
                    self.inner.runtime.sleep(MIRROR_RETRY).await;
                    continue;
                }
            }
            match events.recv().await {
                Ok(MirrorEvent::Ejected { disk_id, reason }) => {
                    tracing::error!(disk = %disk_id, reason, "a metadata mirror was ejected");
                }
                Ok(MirrorEvent::Added { .. }) | Err(RecvError::Lagged(_)) => {}
                Ok(MirrorEvent::Down { reason }) => {
                    tracing::error!(reason, "the metadata is down; fix the cause and restart the server");
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Finds mirrors that vanish or hang while there are no writes; the engine ejects them. Logs each cause once.
    async fn check_mirrors(self, embedded: EmbeddedStore) {
        let mut said = None;
        loop {
            self.inner.runtime.sleep(CHECK_MIRRORS_EVERY).await;
            let error = embedded.check_mirrors().await.err().map(|error| error.to_string());
            if error.is_some() && error != said {
                tracing::error!(error, "the metadata mirrors could not be checked");
            }
            said = error;
        }
    }

    /// Finds damage in mirrors that serve no reads; the engine ejects them.
    async fn scrub_metadata(self, embedded: EmbeddedStore) {
        let mut pause = FIRST_SCRUB_AFTER;
        loop {
            self.inner.runtime.sleep(pause).await;
            pause = SCRUB_EVERY;
            match embedded.scrub().await {
                Ok(rows) => tracing::info!(rows, "the metadata was read in every mirror"),
                Err(error) => tracing::error!(%error, "the metadata could not be read in every mirror"),
            }
        }
    }

    /// Logs once when a directory is lost, and once when it is back.
    async fn watch_directories(self) {
        let mut lost = std::collections::BTreeSet::new();
        loop {
            self.inner.runtime.sleep(WATCH_EVERY).await;
            let now = self.directories_in_trouble();
            for (path, reason) in &now {
                if !lost.contains(path) {
                    tracing::error!(
                        directory = path,
                        reason,
                        "a disk is away or fails; it is taken back as soon as it works. If it is lost, put an empty one in its \
                         place and run `striate disk replace {path}`"
                    );
                }
            }
            lost = now.into_iter().map(|(path, _)| path).collect();
        }
    }

    /// Makes the metadata survive as many losses as the most tolerant bucket, because S3 clients can also create
    /// buckets with a profile.
    async fn watch_profiles(self) {
        loop {
            self.inner.runtime.sleep(PROFILES_EVERY).await;
            match self.most_tolerant_bucket().await {
                Ok(Some(profile)) => {
                    if let Err(error) = self.support(&profile).await {
                        tracing::warn!(%profile, %error, "the metadata is mirrored less than a bucket's profile asks for");
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "the profiles of buckets cannot be read; will try again")
                }
            }
        }
    }

    async fn most_tolerant_bucket(&self) -> Result<Option<Profile>, ClientError> {
        let buckets = self.inner.services.client.list_buckets("", usize::MAX).await?;
        Ok(most_tolerant_on_disks(&buckets))
    }

    /// Returns the directories of live members that have vanished or fail, with the reason.
    fn directories_in_trouble(&self) -> Vec<(String, String)> {
        let trouble = |live: &super::LiveMember| {
            let status = live.store_status();
            let reason = status.suspect.or_else(|| status.vanished.map(|_| "it vanished".to_owned()))?;
            Some((live.member.path.display().to_string(), reason))
        };
        self.inner.state.lock().live.values().filter_map(trouble).collect()
    }
}

/// Returns the most tolerant profile of the buckets whose objects are on this store's disks; of several, the first.
fn most_tolerant_on_disks(buckets: &[Bucket]) -> Option<Profile> {
    let here = buckets.iter().rev().filter(|bucket| bucket.origin.is_none());
    let profiles = here.filter_map(|bucket| bucket.profile.parse::<Profile>().ok());
    profiles.filter(|profile| profile.tier == Tier::Disk).max_by_key(|profile| profile.code.tolerance())
}

#[cfg(test)]
mod tests {
    use striate_meta::records::Origin;

    use super::*;

    #[test]
    fn buckets_in_memory_and_elsewhere_do_not_hide_the_most_tolerant_one_on_disks() {
        let bucket = |profile: &str, origin: Option<Origin>| Bucket {
            profile: profile.to_owned(),
            origin,
            ..Bucket::default()
        };
        let elsewhere = bucket("rs(4,4)", Some(Origin::default()));
        let buckets = [bucket("", None), bucket("cache rs(4,6)", None), elsewhere, bucket("rs(4,3)", None)];
        assert_eq!(most_tolerant_on_disks(&buckets), "rs(4,3)".parse().ok());
        assert_eq!(most_tolerant_on_disks(&buckets[..3]), None);
    }
}
