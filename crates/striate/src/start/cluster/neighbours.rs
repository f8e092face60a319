//! How the sites of this process find each other, to combine parts from other sites (design.md §4.2).

use std::fmt;
use std::sync::{Arc, Weak};

use striate_core::SiteId;
use striate_site::{Site, SiteDirectory};

use super::{Cluster, Inner};
use crate::start::site::DiskSite;

impl SiteDirectory for Inner {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        Some(self.state.lock().live.get(&site)?.site.site())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("profile", &self.services.client.default_profile())
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Gives a site the directory of the others. The site holds it weakly, because it holds the site.
    pub(super) fn introduce(&self, site: &DiskSite) {
        let neighbours: Weak<Inner> = Arc::downgrade(&self.inner);
        site.set_directory(neighbours);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::TryStreamExt;
    use striate_core::{ChunkId, Generation, StripeId};
    use striate_runtime::Runtime;
    use striate_site::{CombineRequest, CombineSource, LocalTerm, Priority, WriteRequest};

    use striate_control::UpkeepOptions;
    use striate_stripe::StripeOptions;

    use super::*;
    use crate::start::cluster::{Caching, Settings};
    use crate::start::prepare::PreparedStart;

    async fn open(root: &std::path::Path) -> Cluster {
        let paths: Vec<_> = (1..=3).map(|number| root.join(number.to_string())).collect();
        paths.iter().for_each(|path| std::fs::create_dir_all(path).unwrap());
        let arguments: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let prepared = PreparedStart::new(&Runtime::real(), &arguments).await.unwrap();
        let settings = Settings {
            profile: None,
            region: "us-east-1".to_owned(),
            given_key: None,
            stripes: StripeOptions::default(),
            caching: Caching::default(),
            upkeep: UpkeepOptions::by_hand(),
        };
        Cluster::open(Runtime::real(), prepared, settings).await.expect("opened").cluster
    }

    fn chunk(number: u32) -> ChunkId {
        ChunkId { stripe: StripeId::new(1, 1), index: number as u8, generation: Generation(1) }
    }

    async fn write(site: &dyn Site, number: u32) {
        let payload = Bytes::from(vec![1 << number; 1000]);
        let (granule_crcs, priority) = (None, Priority::Foreground);
        let request = WriteRequest { chunk: chunk(number), payload, granule_crcs, priority };
        site.write(request).await.expect("written");
    }

    fn sum(number: u32, upstream: Vec<CombineSource>) -> CombineRequest {
        let local = vec![LocalTerm { by: 1, chunk: chunk(number), len: 1000 }];
        CombineRequest { offset: 0, len: 1000, slice_len: 4096, local, upstream, priority: Priority::Repair }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sites_of_one_process_add_up_each_others_chunks_also_one_that_came_later() {
        let root = tempfile::tempdir().unwrap();
        let cluster = open(root.path()).await;
        let lost = root.path().join("3");
        std::fs::remove_dir_all(&lost).unwrap();
        std::fs::create_dir(&lost).unwrap();
        let later = cluster.replace(&lost).await.expect("replaced").new.0;
        let site = |number| cluster.inner.site(SiteId(number)).expect("it is here");
        for number in [1, 2, later] {
            write(&*site(number), number).await;
        }
        let upstream = |number| CombineSource { site: SiteId(number), request: sum(number, Vec::new()) };
        for (first, others) in [(1, [2, later]), (later, [1, 2])] {
            let slices = site(first).combine(sum(first, others.map(upstream).into()));
            let slices: Vec<Bytes> = slices.try_collect().await.expect("all of them are found");
            assert_eq!(slices.concat(), vec![1 << 1 | 1 << 2 | 1 << later; 1000]);
        }
        cluster.close().await;
    }
}
