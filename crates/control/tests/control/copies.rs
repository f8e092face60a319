//! Copies of partitions: reads use them when the chunk's site is loaded or gone. They survive repair and moves, never
//! count as redundancy, and go with the chunks they are copies of.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::join;
use striate_client::{Client, WriteCondition};
use striate_control::{
    CopyOutcome, HotCopies, HotCopiesOptions, Members, MoveOutcome, drop_copies, heal, make_copy, move_chunk,
    verify,
};
use striate_core::{ChunkId, Formats, FormatsInForce, Generation, SiteId};
use striate_meta::records::{CopiesWork, PackingFigures, PackingWork, Stripe};
use striate_meta::{keys, records};
use striate_plan::movement::ChunkMove;
use striate_plan::{Partition, PartitionReads};
use striate_site::Site;
use striate_stripe::stripe_id;

use crate::cluster::{BUCKET, BreakableSite, Cluster, go_on, options};
use crate::dying::{DyingStore, Stall, dying_client};
use crate::packing::{OBJECTS, Packing, name};

/// Opens a client that reads adaptively, by the sites' queues.
async fn adaptive_client(cluster: &Cluster) -> Client {
    let mut options = options("rs(4,2)");
    options.stripes.read_policy = "adaptive".parse().unwrap();
    options.stripes.formats = FormatsInForce::new(Formats::NEWEST);
    let sites = cluster.sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
    Client::open(cluster.runtime.clone(), cluster.meta.clone(), sites, options).await.unwrap()
}

struct Copied {
    packing: Packing,
    /// The partition that holds the first object.
    partition: Partition,
    /// A site without a chunk of its stripe.
    to: SiteId,
}

impl Copied {
    async fn start() -> Self {
        let mut packing = Packing::start("rs(4,2)").await;
        packing.pack().await;
        packing.collect().await;
        packing.cluster.client = adaptive_client(&packing.cluster).await;
        let extent = packing.extent(0).await.unwrap();
        let partition = (stripe_id(&extent.stripe).unwrap(), extent.index as u8);
        let mut this = Self { packing, partition, to: SiteId(0) };
        this.to = this.free_sites().await[0];
        let made = make_copy(this.packing.cluster.client.stripes(), partition, this.to).await.unwrap();
        assert!(matches!(made, CopyOutcome::Made { .. }), "{made:?}");
        this
    }

    async fn record(&self) -> Stripe {
        let row = self.packing.cluster.meta.get(&keys::stripe(self.partition.0)).await.unwrap();
        row.unwrap().record().unwrap()
    }

    async fn free_sites(&self) -> Vec<SiteId> {
        let record = self.record().await;
        let holds = |site: SiteId| {
            record.locations.iter().any(|at| at.site == site.0)
                || record.copies.iter().any(|copy| copy.site == site.0)
        };
        self.packing.cluster.sites.iter().map(|site| site.id()).filter(|&site| !holds(site)).collect()
    }

    fn site(&self, id: SiteId) -> &BreakableSite {
        self.packing.cluster.sites.iter().find(|site| site.id() == id).unwrap()
    }

    /// Returns the copy's file.
    async fn file(&self) -> ChunkId {
        let copy = self.record().await.copies[0];
        ChunkId { stripe: self.partition.0, index: self.partition.1, generation: Generation(copy.generation) }
    }

    async fn home(&self) -> SiteId {
        SiteId(self.record().await.locations[usize::from(self.partition.1)].site)
    }

    async fn assert_clean(&self) {
        let verified = verify(self.packing.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_read_when_the_chunks_site_is_loaded_and_the_chunk_when_the_copy_is_gone() {
    let copied = Copied::start().await;
    let (home, copy) = (copied.site(copied.home().await), copied.site(copied.to));
    home.queue(40);
    let read = |of: &BreakableSite| of.read_bytes.load(Ordering::Relaxed);
    // The first reads learn of the queue.
    copied.packing.assert_reads([0, 0]).await;
    let (of_home, of_copy) = (read(home), read(copy));
    copied.packing.assert_reads([0]).await;
    assert_eq!(read(home), of_home);
    assert!(read(copy) > of_copy);
    let file = copied.file().await;
    copy.chunks.lock().remove(&file).unwrap();
    copied.packing.assert_reads([0]).await;
    assert_eq!(copied.packing.rows(keys::DEBTS).await, 0, "a lost copy is no debt");
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_copy_costs_a_read_nothing_but_time_and_is_dropped_by_who_verifies() {
    let copied = Copied::start().await;
    copied.site(copied.home().await).queue(40);
    let file = copied.file().await;
    copied.site(copied.to).corrupt(file);
    copied.packing.assert_reads([0, 0, 0]).await;
    copied.assert_clean().await;
    assert!(copied.record().await.copies.is_empty());
    assert_eq!(copied.packing.rows(keys::COPIES).await, 0);
    copied.packing.collect().await;
    assert!(!copied.site(copied.to).chunks.lock().contains_key(&file));
}

#[tokio::test(start_paused = true)]
async fn one_copy_a_partition_and_none_beside_a_chunk_of_its_stripe() {
    let copied = Copied::start().await;
    let stripes = copied.packing.cluster.client.stripes();
    let (stripe, chunk) = copied.partition;
    let (home, free) = (copied.home().await, copied.free_sites().await[0]);
    for (partition, to) in [((stripe, chunk), free), ((stripe, (chunk + 1) % 4), home), ((stripe, 4), free)] {
        assert_eq!(make_copy(stripes, partition, to).await.unwrap(), CopyOutcome::Outdated);
    }
    *copied.site(free).full.lock() = true;
    let refused = make_copy(stripes, (stripe, (chunk + 1) % 4), free).await.unwrap();
    assert!(matches!(refused, CopyOutcome::Refused(_)), "{refused:?}");
    assert_eq!(copied.packing.rows(keys::CHANGES).await, 0, "the entry is cancelled");
}

#[tokio::test(start_paused = true)]
async fn repair_and_moves_pass_copies_by_and_a_move_may_go_where_one_is() {
    let mut copied = Copied::start().await;
    let (stripe, chunk) = copied.partition;
    let wanted = ChunkMove {
        stripe,
        index: chunk.into(),
        from: copied.home().await,
        to: copied.free_sites().await[0],
    };
    let stripes = copied.packing.cluster.client.stripes().clone();
    let moved = move_chunk(&stripes, &wanted).await.unwrap();
    assert!(matches!(moved, MoveOutcome::Moved { .. }), "{moved:?}");
    assert_eq!(copied.record().await.copies.len(), 1);
    let to_copy = ChunkMove { from: wanted.to, to: copied.to, ..wanted };
    let moved = move_chunk(&stripes, &to_copy).await.unwrap();
    assert!(matches!(moved, MoveOutcome::Moved { .. }), "{moved:?}");
    copied.packing.collect().await;
    copied.assert_clean().await;
    let other = copied.record().await.locations[usize::from((chunk + 1) % 4)].site;
    copied.packing.cluster.retire(other as usize - 1).await;
    let report = heal(&stripes, go_on).await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    let record = copied.record().await;
    assert_eq!(record.copies.len(), 1);
    copied.packing.assert_reads(0..OBJECTS).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_takes_copies_with_it() {
    let copied = Copied::start().await;
    for key in 0..OBJECTS {
        let client = &copied.packing.cluster.client;
        client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    copied.packing.repack().await;
    copied.packing.collect().await;
    assert_eq!((copied.packing.chunks(), copied.packing.rows(keys::COPIES).await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_copier_that_dies_at_any_moment_leaves_nothing() {
    for moment in 0..12 {
        let copied = Copied::start().await;
        let stripes = copied.packing.cluster.client.stripes().clone();
        assert_eq!(drop_copies(&stripes, copied.partition.0, copied.partition.1).await.unwrap(), 1);
        let set_lag = |ms| {
            let lag = Duration::from_millis(ms);
            copied.packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = lag);
        };
        set_lag(20);
        let making = make_copy(&stripes, copied.partition, copied.to);
        let died = stripes.runtime().timeout(Duration::from_millis(10 * moment), making).await.is_err();
        set_lag(0);
        // Requests in flight when it died may arrive late.
        stripes.runtime().sleep(Duration::from_secs(1)).await;
        copied.packing.collect().await;
        copied.assert_clean().await;
        assert_eq!(copied.packing.rows(keys::CHANGES).await, 0, "moment {moment}, died {died}");
        copied.packing.assert_reads(0..OBJECTS).await;
    }
}

/// Writes the figures that the packing service would have counted.
async fn count_packed(packing: &Packing, partition_bytes: u64) {
    let figures = Some(PackingFigures { partition_bytes, ..PackingFigures::default() });
    let mut tx = packing.cluster.client.stripes().transaction();
    tx.put(keys::packing_work(), records::encode(&PackingWork { figures, ..PackingWork::default() }));
    packing.cluster.meta.commit(tx).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_service_copies_what_is_hot_within_its_budget_and_drops_what_has_cooled() {
    let copied = Copied::start().await;
    let stripes = copied.packing.cluster.client.stripes();
    let (stripe, chunk) = copied.partition;
    let len = u64::from(copied.record().await.chunk_len);
    count_packed(&copied.packing, 20 * len).await;
    let service = HotCopies::new(HotCopiesOptions { share: 0.1 });
    let reads = |chunk: u8, count| PartitionReads { partition: (stripe, chunk % 4), count };
    let hottest = [reads(chunk + 1, 900), reads(chunk + 2, 800), reads(chunk, 300)];
    service.run_pass(stripes, &hottest, true).await.unwrap();
    let mut copies: Vec<u8> = copied.record().await.copies.iter().map(|copy| copy.index as u8).collect();
    copies.sort_unstable();
    let mut wanted = vec![(chunk + 1) % 4, (chunk + 2) % 4];
    wanted.sort_unstable();
    assert_eq!(copies, wanted);
    let work: CopiesWork =
        copied.packing.cluster.meta.get(&keys::copies_work()).await.unwrap().unwrap().record().unwrap();
    assert_eq!((work.copies, work.bytes, work.budget_bytes), (2, 2 * len, 2 * len));
    assert_eq!((work.made, work.dropped, work.share_ppm), (2, 1, 100_000));
    service.run_pass(stripes, &[], false).await.unwrap();
    assert_eq!(copied.record().await.copies.len(), 2, "it may know of few reads as yet");
    service.run_pass(stripes, &[], true).await.unwrap();
    assert!(copied.record().await.copies.is_empty());
    copied.packing.collect().await;
    copied.assert_clean().await;
}

/// A copy is in no set of sites. It still keeps its site from being retired, and none is made on a retired one.
#[tokio::test(start_paused = true)]
async fn a_site_with_nothing_but_a_copy_is_not_retired_and_gets_none_afterwards() {
    let mut copied = Copied::start().await;
    let (id, index) = copied.partition;
    copied.packing.cluster.finalize().await;
    copied.packing.cluster.add(40).await;
    let (cluster, site) = (&copied.packing.cluster, SiteId(40));
    let members = Members::new(&cluster.runtime, cluster.meta.as_ref());
    drop_copies(cluster.client.stripes(), id, index).await.unwrap();
    let made = make_copy(cluster.client.stripes(), copied.partition, site).await.unwrap();
    assert!(matches!(made, CopyOutcome::Made { .. }), "{made:?}");
    let refused = members.retire(site, false).await.unwrap_err().to_string();
    assert!(refused.contains("site 40 still has copies of what is read often"), "{refused}");
    drop_copies(cluster.client.stripes(), id, index).await.unwrap();

    // A copy has been made, and is about to be named.
    let store = DyingStore::new(Arc::clone(&cluster.meta));
    let copier = dying_client(cluster, &store).await;
    let (go_on, until) = oneshot::channel();
    *store.stall.lock() = Some(Stall { commits: 2, until });
    let retiring = async {
        cluster.runtime.sleep(Duration::from_secs(1)).await;
        assert!(store.stall.lock().is_none(), "it stands still");
        members.retire(site, false).await.unwrap();
        go_on.send(()).unwrap();
    };
    let (made, ()) = join(make_copy(copier.stripes(), copied.partition, site), retiring).await;
    assert!(!matches!(made, Ok(CopyOutcome::Made { .. })), "{made:?}");
    assert_eq!(copied.record().await.copies, []);
}
