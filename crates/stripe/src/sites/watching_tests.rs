//! Watching of sites, over real site queues and in virtual time.

use std::future::Future;

use async_trait::async_trait;
use striate_core::{ChunkId, ChunkRange, ClusterId, LoadReport, RackId, SiteId};
use striate_runtime::{JoinHandle, run_in_virtual_time};
use striate_site::transport_conformance::{GatedStore, chunk};
use striate_site::{
    AssembleRequest, ChunkInfo, ChunkPage, CombineRequest, DeleteRequest, LoadStream, LocalSite, Priority,
    QueueLimits, ReadReply, ReadRequest, ReadStream, Site, SiteError, SiteIdentity, SiteStatus, SliceStream,
    WriteRequest,
};
use tokio::sync::watch;

use super::super::Sites;
use super::*;

/// A site as if behind a network, whose process other clients use too.
#[derive(Debug)]
struct FarSite {
    runtime: Runtime,
    store: Arc<GatedStore>,
    /// Current process of the site; each starts with an empty queue.
    process: Mutex<LocalSite>,
    /// Number of restarts: streams of earlier processes have ended.
    life: watch::Sender<u32>,
    /// Whether the site is too old to push.
    is_old: bool,
    watched: AtomicU64,
}

impl FarSite {
    fn new(runtime: &Runtime, is_old: bool) -> Arc<Self> {
        let store = Arc::new(GatedStore::default());
        store.hold(chunk(1));
        let process = Mutex::new(Self::start(runtime, &store));
        let (life, _) = watch::channel(0);
        let watched = AtomicU64::new(0);
        Arc::new(Self { runtime: runtime.clone(), store, process, life, is_old, watched })
    }

    fn start(runtime: &Runtime, store: &Arc<GatedStore>) -> LocalSite {
        let identity = SiteIdentity { cluster: ClusterId(1), site: SiteId(1), rack: RackId("r".into()) };
        LocalSite::new(runtime.clone(), identity, Arc::clone(store) as _, QueueLimits::default())
    }

    fn restart(&self) {
        *self.process.lock() = Self::start(&self.runtime, &self.store);
        self.life.send_modify(|life| *life += 1);
    }

    fn process(&self) -> LocalSite {
        self.process.lock().clone()
    }

    /// Starts reads of another client that do not end.
    fn load(&self, reads: usize) -> Vec<JoinHandle<Vec<ReadReply>>> {
        let read = |_| {
            let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 10 }];
            let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
            self.runtime.spawn(self.process().read(request).collect())
        };
        (0..reads).map(read).collect()
    }
}

#[async_trait]
impl Site for FarSite {
    fn id(&self) -> SiteId {
        self.process().id()
    }

    fn rack(&self) -> RackId {
        self.process().rack()
    }

    /// No request was sent.
    fn last_load(&self) -> LoadReport {
        LoadReport::default()
    }

    fn read(&self, request: ReadRequest) -> ReadStream {
        self.process().read(request)
    }

    async fn write(&self, request: WriteRequest) -> Result<LoadReport, SiteError> {
        self.process().write(request).await
    }

    async fn delete(&self, request: DeleteRequest) -> Result<LoadReport, SiteError> {
        self.process().delete(request).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.process().list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        self.process().verify(chunk).await
    }

    fn combine(&self, request: CombineRequest) -> SliceStream {
        self.process().combine(request)
    }

    async fn assemble(&self, request: AssembleRequest) -> Result<LoadReport, SiteError> {
        self.process().assemble(request).await
    }

    async fn status(&self) -> Result<SiteStatus, SiteError> {
        self.process().status().await
    }

    fn watch(&self) -> LoadStream {
        self.watched.fetch_add(1, Ordering::Relaxed);
        if self.is_old {
            return futures::stream::iter([Err(SiteError::Unavailable("unimplemented".into()))]).boxed();
        }
        let mut life = self.life.subscribe();
        let ended = async move { drop(life.changed().await) };
        self.process().watch().take_until(Box::pin(ended)).boxed()
    }
}

/// Longer than a message takes.
const MOMENT: Duration = Duration::from_millis(1);

fn run<F>(is_old: bool, main: impl FnOnce(Runtime, Arc<FarSite>, Sites) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    run_in_virtual_time(1, Duration::ZERO, |runtime| {
        let site = FarSite::new(&runtime, is_old);
        let sites = Sites::new(runtime.clone(), vec![site.clone() as Arc<dyn Site>]);
        main(runtime, site, sites)
    });
}

fn requests(sites: &Sites) -> f64 {
    sites.snapshot().queue(SiteId(1)).expect("it answers").requests()
}

#[test]
fn a_queue_that_others_make_is_known_of_a_site_that_was_never_asked() {
    run(false, |runtime, site, sites| async move {
        let _before = site.load(3);
        sites.watch();
        runtime.sleep(MOMENT).await;
        assert_eq!(requests(&sites), 3.0);
        let _more = site.load(2);
        runtime.sleep(MOMENT).await;
        assert_eq!(requests(&sites), 5.0);
        runtime.sleep(INTEREST / 2).await;
        assert_eq!(
            (requests(&sites), sites.pushes()),
            (5.0, PushView { received: 2, sites: 1 }),
            "unchanged"
        );
    });
}

#[test]
fn a_process_that_does_not_read_watches_nobody() {
    run(false, |runtime, site, sites| async move {
        let load = |expected| assert_eq!(sites.pushes().sites, expected);
        runtime.sleep(INTEREST).await;
        assert_eq!((sites.pushes(), site.watched.load(Ordering::Relaxed)), (PushView::default(), 0));
        sites.watch();
        runtime.sleep(MOMENT).await;
        load(1);
        runtime.sleep(INTEREST + 2 * LOOK).await;
        load(0);
        let received = sites.pushes().received;
        let _load = site.load(4);
        runtime.sleep(LOOK).await;
        assert_eq!((sites.pushes().received, requests(&sites)), (received, 0.0));
        sites.watch();
        runtime.sleep(MOMENT).await;
        assert_eq!((sites.pushes().sites, requests(&sites)), (1, 4.0));
    });
}

#[test]
fn a_site_that_is_restarted_is_watched_again() {
    run(false, |runtime, site, sites| async move {
        let _load = site.load(6);
        sites.watch();
        runtime.sleep(MOMENT).await;
        assert_eq!(requests(&sites), 6.0);
        site.restart();
        runtime.sleep(MOMENT).await;
        assert_eq!(sites.pushes().sites, 0, "its queue grows old");
        let _load = site.load(2);
        for _ in 0..3 {
            sites.watch();
            runtime.sleep(LOOK).await;
        }
        assert_eq!((requests(&sites), sites.pushes().sites), (2.0, 1));
        assert_eq!(site.watched.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_site_that_does_not_answer_reads_is_not_watched_until_it_does() {
    run(false, |runtime, site, sites| async move {
        sites.watch();
        runtime.sleep(MOMENT).await;
        sites.note_failure(SiteId(1), &SiteError::Deadline);
        let _load = site.load(1);
        runtime.sleep(MOMENT).await;
        assert_eq!(sites.pushes().sites, 0);
        for _ in 0..30 {
            sites.watch();
            runtime.sleep(LOOK / 10).await;
        }
        assert_eq!((requests(&sites), sites.pushes().sites), (1.0, 1), "a probe has found it well");
    });
}

#[test]
fn a_site_that_pushes_nothing_is_asked_ever_more_seldom_and_lives_on_replies() {
    run(true, |runtime, site, sites| async move {
        for _ in 0..6_000 {
            sites.watch();
            runtime.sleep(LOOK / 10).await;
        }
        let asked = site.watched.load(Ordering::Relaxed);
        assert!((8..16).contains(&asked), "{asked} times in ten minutes");
        let (reply, now) =
            (LoadReport { sequence: 1, queue_requests: 3, ..LoadReport::default() }, runtime.now());
        let snapshot = sites.snapshot();
        let (_, mut in_flight, _) = snapshot.ask(SiteId(1), 10).expect("it answers");
        in_flight.hear(10, &reply, now);
        assert!(!in_flight.entry.health.load.is_pushed());
        assert_eq!(in_flight.entry.health.load.queue(now, &in_flight.usual.queue).requests(), 3.0);
    });
}
