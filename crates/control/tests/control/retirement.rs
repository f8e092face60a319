//! Retired sites: retired only when nothing is on them, whatever is written meanwhile, and never to come back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::join;
use striate_client::{ClientError, PutBody};
use striate_control::{Members, MembersError, MoveOutcome, Rebalancer, heal, move_chunk};
use striate_core::{Formats, SiteId};
use striate_meta::records::{self, site::State};
use striate_meta::{MetaStore, Row, ScanRange, keys};
use striate_plan::movement::ChunkMove;
use striate_stripe::own_locations;

use crate::cluster::{Cluster, content, go_on, one_shot, put_request};
use crate::dying::{Death, DyingStore, Stall, dying_client};

const OBJECTS: usize = 12;

/// Starts a cluster with objects in folders of their own, each on six of eight sites, with all formats in force.
async fn filled() -> Cluster {
    let cluster = Cluster::start(8, "rs(4,2)").await;
    cluster.finalize().await;
    for key in 0..OBJECTS {
        cluster.put(&object(key), &content(key, 6_000)).await.unwrap();
    }
    cluster
}

fn object(key: usize) -> String {
    format!("folder{key}/object")
}

fn members<'a>(cluster: &'a Cluster, meta: &'a dyn MetaStore) -> Members<'a> {
    Members::new(&cluster.runtime, meta)
}

async fn retire(cluster: &Cluster, site: SiteId, answers: bool) -> Result<(), String> {
    let retired = members(cluster, cluster.meta.as_ref()).retire(site, answers).await;
    retired.map_err(|error| error.to_string())
}

async fn state(cluster: &Cluster, site: SiteId) -> State {
    let row = cluster.meta.get(&keys::site(site)).await.unwrap().unwrap();
    row.record::<records::Site>().unwrap().state()
}

/// Counts the stripes with a chunk on the site, by their records.
async fn on(meta: &dyn MetaStore, site: SiteId) -> usize {
    let rows = meta.scan(ScanRange::prefix(keys::STRIPES), usize::MAX).await.unwrap();
    let has_chunk = |row: &Row| own_locations(&row.record().unwrap()).any(|(_, at)| at.site == site.0);
    rows.iter().filter(|row| has_chunk(row)).count()
}

async fn drain(cluster: &Cluster, site: SiteId) {
    members(cluster, cluster.meta.as_ref()).set_draining(site, true).await.unwrap();
    cluster.client.stripes().set_draining(site, true);
    let rebalancer = Rebalancer::default();
    while on(cluster.meta.as_ref(), site).await > 0 {
        rebalancer.run_pass(cluster.client.stripes()).await.unwrap();
    }
}

async fn assert_reads(cluster: &Cluster) {
    for key in 0..OBJECTS {
        assert_eq!(cluster.get(&object(key)).await.unwrap(), content(key, 6_000), "{}", object(key));
    }
}

#[tokio::test(start_paused = true)]
async fn a_site_is_drained_and_then_retired() {
    let (cluster, site) = (filled().await, SiteId(1));
    let refused = retire(&cluster, site, true).await.unwrap_err();
    assert!(refused.contains("striate admin site drain 1"), "{refused}");
    members(&cluster, cluster.meta.as_ref()).set_draining(site, true).await.unwrap();
    let refused = retire(&cluster, site, true).await.unwrap_err();
    let stripes = on(cluster.meta.as_ref(), site).await;
    assert!(refused.contains(&format!("chunks of {stripes} stripes; what it has moves")), "{refused}");
    assert_eq!(state(&cluster, site).await, State::Draining);

    drain(&cluster, site).await;
    retire(&cluster, site, true).await.unwrap();
    assert_eq!(state(&cluster, site).await, State::Retired);
    retire(&cluster, site, true).await.expect("an operator may say it twice");
    assert_reads(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_site_is_rebuilt_and_then_retired() {
    let (mut cluster, site) = (filled().await, SiteId(1));
    cluster.lose(0);
    let refused = retire(&cluster, site, false).await.unwrap_err();
    assert!(refused.contains("striate heal"), "{refused}");
    heal(cluster.client.stripes(), go_on).await.unwrap();
    retire(&cluster, site, false).await.unwrap();
    assert_eq!(state(&cluster, site).await, State::Retired);
    assert_reads(&cluster).await;
}

/// A body that ends on a signal, with a first block that is written before.
struct Slow {
    first: Option<Bytes>,
    end: Option<oneshot::Receiver<()>>,
}

#[async_trait]
impl PutBody for Slow {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        self.end.take()?.await.expect("it ends");
        None
    }
}

/// Each put has a block on six of eight sites before the site is drained, and commits after the site was retired.
#[tokio::test(start_paused = true)]
async fn puts_that_have_a_chunk_on_a_retired_site_are_sent_back_and_others_are_not() {
    let (cluster, site) = (filled().await, SiteId(1));
    let chunks = || cluster.sites[0].chunks.lock().len();
    let before = chunks();
    let (ends, puts): (Vec<_>, Vec<_>) = (0..10)
        .map(|key| {
            let (end, ended) = oneshot::channel();
            let first = Bytes::from(content(key, (4 << 20) + 1_000));
            let body = Slow { first: Some(first), end: Some(ended) };
            let name = format!("slow{key}/object");
            let cluster = &cluster;
            (end, async move { cluster.put_body(&name, Box::new(body)).await })
        })
        .unzip();
    let retiring = async {
        cluster.runtime.sleep(Duration::from_secs(1)).await;
        let written = chunks() - before;
        drain(&cluster, site).await;
        retire(&cluster, site, true).await.unwrap();
        ends.into_iter().for_each(|end| end.send(()).unwrap());
        written
    };
    let (outcomes, written) = join(futures::future::join_all(puts), retiring).await;
    let refused: Vec<String> = outcomes.into_iter().filter_map(|put| Some(put.err()?.to_string())).collect();
    assert!(refused.iter().all(|reason| reason.contains("being retired")), "{refused:?}");
    assert!((1..10).contains(&written), "{written} of the blocks have a chunk on the site");
    assert_eq!((refused.len(), on(cluster.meta.as_ref(), site).await), (written, 0));
    // The clients send them again.
    for key in 0..10 {
        cluster.put(&format!("slow{key}/object"), &content(key, 5 << 20)).await.unwrap();
    }
    assert_reads(&cluster).await;
}

/// A move to a blank site stalls before it names the chunk there, while the site is retired.
#[tokio::test(start_paused = true)]
async fn a_move_to_a_site_that_is_retired_meanwhile_names_nothing_there() {
    // It stalls before it writes the rows of the set; before the swap; and before the swap if it has cached the set.
    for (stops_at, is_known) in [(1, false), (2, false), (1, true)] {
        let (mut cluster, site) = (filled().await, SiteId(9));
        cluster.add(9).await;
        let store = DyingStore::new(Arc::clone(&cluster.meta));
        let mover = dying_client(&cluster, &store).await;
        let (stripe, record) = cluster.stripes().await.remove(0);
        let from = SiteId(record.locations[0].site);
        if is_known {
            let others = record.locations[1..].iter().map(|at| SiteId(at.site));
            let sites: Vec<SiteId> = std::iter::once(site).chain(others).collect();
            mover.stripes().ensure_placement(&sites).await.unwrap();
        }
        let (go_on, until) = oneshot::channel();
        *store.stall.lock() = Some(Stall { commits: stops_at, until });
        let retiring = async {
            cluster.runtime.sleep(Duration::from_secs(1)).await;
            assert!(store.stall.lock().is_none(), "it stands still");
            retire(&cluster, site, false).await.unwrap();
            go_on.send(()).unwrap();
        };
        let wanted = ChunkMove { stripe, index: 0, from, to: site };
        let (moved, ()) = join(move_chunk(mover.stripes(), &wanted), retiring).await;
        assert!(!matches!(moved, Ok(MoveOutcome::Moved { .. })), "{stops_at} {is_known}: {moved:?}");
        assert_eq!(on(cluster.meta.as_ref(), site).await, 0, "{stops_at} {is_known}");
        assert_reads(&cluster).await;
    }
}

/// The put commits between the check of what is on the site and the mark that closes it.
#[tokio::test(start_paused = true)]
async fn a_put_that_is_committed_just_before_keeps_the_site() {
    let mut cluster = filled().await;
    cluster.add(9).await;
    let site = SiteId(9);
    let store = DyingStore::new(Arc::clone(&cluster.meta));
    let (client, meta) = (cluster.client.clone(), Arc::clone(&cluster.meta));
    let happens = Box::pin(async move {
        for key in 0.. {
            client
                .put(put_request(&format!("late{key}/object"), one_shot(&content(key, 6_000))))
                .await
                .unwrap();
            if on(meta.as_ref(), site).await > 0 {
                return;
            }
        }
    });
    *store.after_get.lock() = Some((keys::closed(), happens));
    let refused = members(&cluster, store.as_ref()).retire(site, false).await.unwrap_err().to_string();
    assert!(refused.contains("site 9 still has a chunk of one stripe"), "{refused}");
    assert_eq!(state(&cluster, site).await, State::Active);
    let closed = cluster.meta.get(&keys::closed()).await.unwrap().unwrap();
    assert_eq!(closed.record::<records::ClosedSites>().unwrap().sites, [], "it is open again");
}

/// Two processes retire a site; one finishes between the other's read of its row and the mark that closes it.
#[tokio::test(start_paused = true)]
async fn a_site_that_somebody_else_has_retired_meanwhile_stays_closed() {
    let mut cluster = filled().await;
    cluster.add(9).await;
    let site = SiteId(9);
    let store = DyingStore::new(Arc::clone(&cluster.meta));
    let (runtime, meta) = (cluster.runtime.clone(), Arc::clone(&cluster.meta));
    let happens = Box::pin(async move {
        Members::new(&runtime, meta.as_ref()).retire(site, false).await.unwrap();
    });
    *store.after_get.lock() = Some((keys::site(site), happens));
    let refused = members(&cluster, store.as_ref()).retire(site, false).await;
    assert!(matches!(refused, Err(MembersError::Conflict)), "{refused:?}");
    assert_eq!(state(&cluster, site).await, State::Retired);
    let sites: Vec<SiteId> = (4..10).map(SiteId).collect();
    assert!(cluster.client.stripes().ensure_placement(&sites).await.is_err(), "it is closed");
}

/// The process that retires the site dies at any of its steps: afterwards the site is retired, or is as it was.
#[tokio::test(start_paused = true)]
async fn a_site_is_open_again_when_whoever_closed_it_has_died() {
    for (commits, is_made) in (0..3).flat_map(|commits| [(commits, false), (commits, true)]) {
        let mut cluster = filled().await;
        cluster.add(9).await;
        let site = SiteId(9);
        let store = DyingStore::new(Arc::clone(&cluster.meta));
        let sites: Vec<SiteId> = (4..10).map(SiteId).collect();
        dying_client(&cluster, &store).await.stripes().ensure_placement(&sites).await.unwrap();

        *store.death.lock() = Some(Death { commits, is_made });
        let dying = members(&cluster, store.as_ref());
        let retiring = cluster.runtime.timeout(Duration::from_secs(1), dying.retire(site, false)).await;
        assert!(retiring.is_err(), "it dies");
        let is_retired = (commits, is_made) == (2, true);
        assert_eq!(state(&cluster, site).await == State::Retired, is_retired, "{commits} {is_made}");
        let stripes = cluster.client.stripes();
        if is_made {
            let written = stripes.ensure_placement(&sites).await;
            assert!(written.is_err(), "it is closed: {commits}");
        }
        cluster.runtime.sleep(Duration::from_secs(61)).await;
        assert_eq!(stripes.ensure_placement(&sites).await.is_err(), is_retired, "{commits} {is_made}");
        retire(&cluster, site, false).await.unwrap();
        assert_reads(&cluster).await;
    }
}

/// A gateway of release 0.1 writes: no report names the lease of its intents.
#[tokio::test(start_paused = true)]
async fn no_site_is_retired_while_programs_run_that_do_not_look_whether_it_is() {
    let mut cluster = Cluster::start_with(8, "rs(4,2)", Formats::OLDEST).await;
    cluster.put("object", &content(1, 6_000)).await.unwrap();
    cluster.add(9).await;
    let refused = retire(&cluster, SiteId(9), false).await.unwrap_err();
    assert!(refused.contains("the process with writer number"), "{refused}");
}
