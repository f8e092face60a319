//! The policies of Hu et al. (SoCC'17) on the engine: what they probe, what they request, and that the bytes are
//! right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use striate_core::{ChunkId, ClusterId, LoadReport, RackId, SiteId};
use striate_meta::MemoryStore as MemoryMeta;
use striate_meta::records::Block;
use striate_runtime::{Runtime, run_in_virtual_time};
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, LocalSite, MemoryStore,
    QueueLimits, ReadRequest, ReadStream, Site, SiteError, SiteIdentity, SiteStatus, SliceStream,
    WriteRequest,
};
use striate_stripe::{Neighbours, ReadStats, Span, StripeOptions, Stripes};

const CHUNK_LEN: usize = 10_000;
/// Bytes of a read (D).
const LEN: u32 = 2_000;

/// A site that counts its probes, reports a queue set by the test, and may hang.
#[derive(Debug)]
struct ProbedSite {
    site: LocalSite,
    runtime: Runtime,
    probes: AtomicU64,
    queue_bytes: AtomicU64,
    hangs: AtomicBool,
}

impl ProbedSite {
    /// Reports busy workers when a queue is set.
    fn load(&self, load: LoadReport) -> LoadReport {
        let queue_bytes = self.queue_bytes.load(Ordering::Relaxed);
        let queue_requests = if queue_bytes > 0 { load.workers } else { load.queue_requests };
        LoadReport { queue_bytes, queue_requests, ..load }
    }

    async fn wait(runtime: Runtime, hangs: bool) {
        if hangs {
            runtime.sleep(Duration::from_secs(3_600)).await;
        }
    }
}

#[async_trait]
impl Site for ProbedSite {
    fn id(&self) -> SiteId {
        self.site.id()
    }

    fn rack(&self) -> RackId {
        self.site.rack()
    }

    fn last_load(&self) -> LoadReport {
        self.load(self.site.last_load())
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        let (site, waiting) =
            (self.site.clone(), Self::wait(self.runtime.clone(), self.hangs.load(Ordering::Relaxed)));
        Box::pin(async move { waiting.map(|()| site.read(request)).await }.flatten_stream())
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.site.write(request).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.site.delete(request).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.site.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.site.verify(chunk).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        self.site.combine(request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.site.assemble(request).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        Self::wait(self.runtime.clone(), self.hangs.load(Ordering::Relaxed)).await;
        let status = self.site.status().await?;
        Ok(SiteStatus { load: self.load(status.load), ..status })
    }
}

/// One stripe on twelve sites.
struct Cluster {
    runtime: Runtime,
    stripes: Stripes,
    sites: Vec<Arc<ProbedSite>>,
    block: Block,
    data: Bytes,
    /// The site of each chunk.
    placed: Vec<SiteId>,
}

impl Cluster {
    async fn open(runtime: Runtime, policy: &str, profile: &str) -> Self {
        let site = |number: u32| {
            let rack = RackId(format!("rack-{number}"));
            let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(number), rack };
            let store = Arc::new(MemoryStore::new(1 << 40));
            Arc::new(ProbedSite {
                site: LocalSite::new(runtime.clone(), identity, store, QueueLimits::default()),
                runtime: runtime.clone(),
                probes: AtomicU64::new(0),
                queue_bytes: AtomicU64::new(0),
                hangs: AtomicBool::new(false),
            })
        };
        let sites: Vec<Arc<ProbedSite>> = (1..=12).map(site).collect();
        let meta = Arc::new(MemoryMeta::new(runtime.clone()));
        let read_policy = striate_baselines::read_policy(policy).expect("a policy");
        let options = StripeOptions { read_policy, ..StripeOptions::default() };
        let all = sites.iter().map(|site| site.clone() as Arc<dyn Site>).collect();
        let stripes = Stripes::open(runtime.clone(), meta.clone(), all, options).await.unwrap();
        let data: Bytes = (0..6 * CHUNK_LEN).map(|at| (at * at / 7 % 251) as u8).collect();
        let mut put = stripes.begin_put();
        let neighbours = Neighbours::new("bucket", "key", 1);
        let stored = put.write_block(data.clone(), &profile.parse().unwrap(), &neighbours).await.unwrap();
        let mut tx = stripes.transaction();
        put.name_blocks(&mut tx, std::slice::from_ref(&stored));
        put.committing();
        stripes.meta().commit(tx).await.unwrap();
        put.committed();
        let block = stored.block;
        let opened = stripes.find(striate_stripe::stripe_id(&block.stripe).unwrap()).await.unwrap().unwrap();
        let placed = opened.record.locations.iter().map(|location| SiteId(location.site)).collect();
        Self { runtime, stripes, sites, block, data, placed }
    }

    /// Reads D bytes of a data chunk, and compares them.
    async fn read(&self, index: usize) -> ReadStats {
        let start = (index * CHUNK_LEN) as u32 + 17;
        let span = Span { of: self.block.clone().into(), range: start..start + LEN };
        let read = self.stripes.read_spans(&[span]).await.unwrap();
        assert_eq!(read.blocks[0].concat(), self.data[start as usize..(start + LEN) as usize]);
        read.stats
    }

    fn site_of(&self, chunk: usize) -> &ProbedSite {
        self.sites.iter().find(|site| site.id() == self.placed[chunk]).expect("it is one of them")
    }

    /// Returns the probes that sites have received since the last call.
    fn probes(&self) -> u64 {
        self.sites.iter().map(|site| site.probes.swap(0, Ordering::Relaxed)).sum()
    }
}

fn on_cluster<F>(policy: &str, profile: &str, test: impl FnOnce(Cluster) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (policy, profile) = (policy.to_owned(), profile.to_owned());
    run_in_virtual_time(3, Duration::ZERO, |runtime| async move {
        test(Cluster::open(runtime, &policy, &profile).await).await;
    });
}

/// Hu et al. §2.5: 9 and 7 probes per request with the (6,3) RS code; 10 and 4 with the (6,2,2) LRC.
#[test]
fn probes_before_a_read_are_messages_to_sites_and_are_counted() {
    for (policy, profile, each) in [
        ("llf", "rs(6,3)", 9),
        ("lmlf", "rs(6,3)", 9),
        ("llf-pw2", "rs(6,3)", 7),
        ("lmlf-pw2", "rs(6,3)", 7),
        ("lmlf", "lrc(6,2,2)", 10),
        ("llf-pw2", "lrc(6,2,2)", 4),
        ("lmlf-pw2", "lrc(6,2,2)", 4),
        ("normal(2s)", "rs(6,3)", 0),
        ("adaptive", "rs(6,3)", 0),
    ] {
        on_cluster(policy, profile, move |cluster| async move {
            for read in 1..=5 {
                let stats = cluster.read(read % 6).await;
                assert_eq!((stats.probes as u64, cluster.probes()), (each, each), "{profile}");
                let counted = cluster.stripes.read_measures().probes.load(Ordering::Relaxed);
                assert_eq!(counted, read as u64 * each, "{profile}");
            }
        });
    }
}

#[test]
fn what_sites_tell_decides_which_chunks_are_asked_for() {
    for policy in ["llf", "lmlf", "llf-pw2", "lmlf-pw2"] {
        for (profile, degraded) in [("rs(6,3)", 6), ("lrc(6,2,2)", 3)] {
            on_cluster(policy, profile, move |cluster| async move {
                let stats = cluster.read(2).await;
                assert_eq!((stats.chunks, stats.decoded_bytes), (1, 0), "{profile}: idle");
                cluster.site_of(2).queue_bytes.store(1 << 20, Ordering::Relaxed);
                let stats = cluster.read(2).await;
                assert_eq!((stats.chunks, stats.decoded_bytes), (degraded, u64::from(LEN)), "{profile}");
                assert_eq!((stats.hedged_chunks, stats.planned_again), (0, 0), "{profile}: at once");
                assert_eq!(cluster.read(3).await.chunks, 1, "{profile}: another chunk's site");
            });
        }
    }
}

/// LMLF Lazy probes the 12 sites at 0 s, 1 s, … and Opt Lazy at 0 s, 4 s, …, however many reads there are.
#[test]
fn lazy_policies_probe_all_sites_at_their_times_only() {
    for (policy, refreshes) in [("lmlf-lazy", 10), ("opt-lazy", 3)] {
        on_cluster(policy, "rs(6,3)", move |cluster| async move {
            for _ in 0..95 {
                cluster.runtime.sleep(Duration::from_millis(100)).await;
                assert_eq!(cluster.read(1).await.probes, 0);
            }
            assert_eq!(cluster.probes(), 12 * refreshes);
            let counted = cluster.stripes.read_measures().probes.load(Ordering::Relaxed);
            assert_eq!(counted, 12 * refreshes);
        });
    }
}

#[test]
fn lazy_policies_read_around_what_was_loaded_at_the_last_refresh() {
    for (policy, period) in [("lmlf-lazy", 1_000), ("opt-lazy", 4_000)] {
        on_cluster(policy, "lrc(6,2,2)", move |cluster| async move {
            let period = Duration::from_millis(period);
            cluster.site_of(2).queue_bytes.store(1 << 20, Ordering::Relaxed);
            assert_eq!(cluster.read(2).await.chunks, 1, "the table is of before");
            cluster.runtime.sleep(period + period / 2).await;
            cluster.site_of(2).queue_bytes.store(0, Ordering::Relaxed);
            assert_eq!(cluster.read(2).await.chunks, 3, "the table is still of before");
            cluster.runtime.sleep(period).await;
            let mut normal = 0;
            for _ in 0..40 {
                normal += usize::from(cluster.read(2).await.chunks == 1);
            }
            assert!(normal >= 20, "Opt Lazy draws three of four, LMLF Lazy reads all normally: {normal}");
        });
    }
}

/// Other sites are asked neither sooner nor, as product policies do, after the usual duration of reads.
#[test]
fn normal_asks_others_at_its_time_out() {
    for (policy, time_out) in [("normal(2s)", 2_000), ("normal(300ms)", 300)] {
        for (profile, degraded) in [("rs(6,3)", 6), ("lrc(6,2,2)", 3)] {
            on_cluster(policy, profile, move |cluster| async move {
                cluster.site_of(4).hangs.store(true, Ordering::Relaxed);
                let began = cluster.runtime.now();
                let stats = cluster.read(4).await;
                let took = cluster.runtime.now() - began;
                let time_out = Duration::from_millis(time_out);
                assert!(took >= time_out && took < time_out + Duration::from_millis(50), "{took:?}");
                assert_eq!((stats.chunks, stats.hedged_chunks), (1 + degraded, degraded), "{profile}");
            });
        }
    }
}

/// A site that does not answer its probe delays the read by the hedge time, and is read around if possible.
#[test]
fn an_unanswered_probe_delays_a_read_and_does_not_stop_it() {
    for profile in ["rs(6,3)", "lrc(6,2,2)"] {
        on_cluster("lmlf", profile, move |cluster| async move {
            cluster.site_of(4).hangs.store(true, Ordering::Relaxed);
            let began = cluster.runtime.now();
            let stats = cluster.read(4).await;
            let took = cluster.runtime.now() - began;
            let hedge_after = cluster.stripes.options().hedge_after;
            assert!(took >= hedge_after && took < hedge_after * 2, "{took:?}");
            assert_eq!(stats.hedged_chunks, 0, "its chunk was not asked for");
        });
    }
}

/// Columns of other chunks that replace an available one count against the budget while they are read. Without memory
/// for them the read is a normal one.
#[test]
fn what_is_read_around_counts_against_the_byte_budget_or_is_read_normally() {
    for policy in ["lmlf", "adaptive"] {
        for (profile, others) in [("rs(6,3)", 6), ("lrc(6,2,2)", 3)] {
            on_cluster(policy, profile, move |cluster| async move {
                cluster.site_of(2).queue_bytes.store(1 << 30, Ordering::Relaxed);
                let budget = cluster.stripes.budget();
                let span = Span { of: cluster.block.clone().into(), range: 0..LEN };
                let read = cluster.stripes.read_spans(&[span]).await.unwrap();
                assert_eq!(budget.view().taken, LEN as usize, "{profile}: what was wanted is held");
                drop(read);
                let needed = others * LEN as usize;
                for (left, chunks) in [(needed, others), (needed - 1, 1)] {
                    let others_have = budget.try_acquire(budget.view().total - left).unwrap();
                    assert_eq!(cluster.read(2).await.chunks, chunks, "{profile}: {left} bytes are left");
                    drop(others_have);
                    assert_eq!(budget.view().taken, 0);
                }
            });
        }
    }
}

/// The default follows the sites' reports: a chunk behind a queue is read around, in a batch and alone, and no other
/// chunk is.
#[test]
fn the_default_reads_around_a_queue() {
    for (profile, others) in [("rs(6,3)", 6), ("lrc(6,2,2)", 3)] {
        on_cluster("adaptive", profile, move |cluster| async move {
            let span = |index: usize| {
                let start = (index * CHUNK_LEN) as u32;
                Span { of: cluster.block.clone().into(), range: start..start + LEN }
            };
            let batch = [0, 2, 4].map(span);
            let read = cluster.stripes.read_spans(&batch).await.unwrap();
            assert_eq!((read.stats.chunks, read.stats.sites), (3, 3), "{profile}: idle");
            cluster.site_of(2).queue_bytes.store(1 << 30, Ordering::Relaxed);
            let read = cluster.stripes.read_spans(&batch).await.unwrap();
            assert_eq!(read.stats.decoded_bytes, u64::from(LEN), "{profile}");
            assert!(read.stats.plan.is_some_and(|plan| plan.lower_bound > 0.0));
            for (index, block) in [0, 2, 4].into_iter().zip(&read.blocks) {
                assert_eq!(block.concat(), cluster.data[index * CHUNK_LEN..][..LEN as usize], "{profile}");
            }
            drop(read);
            let alone = cluster.stripes.read_span(span(2)).await.unwrap();
            assert_eq!(alone.concat(), cluster.data[2 * CHUNK_LEN..][..LEN as usize]);
            assert_eq!(
                (cluster.read(2).await.chunks, cluster.read(3).await.chunks),
                (others, 1),
                "{profile}"
            );
        });
    }
}
