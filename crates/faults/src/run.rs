//! One seed: clients, services and faults run together; then the faults stop, and everything must become whole again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use striate_control::{collect_orphans, heal, verify};
use striate_core::{ChunkId, SiteId};
use striate_plan::ReadPolicy;
use striate_runtime::run_in_virtual_time;
use striate_virtual_network::Digest;

use super::cluster::Cluster;
use super::coverage::Table;
use super::gateway::Gateway;
use super::injector::Injector;
use super::invariants::{self, Invariant, SurveyedStripe, Violations};
use super::mutation::Mutation;
use super::operation::{Kind, LONGEST};
use super::settling::settle;
use super::shape::Shape;
use super::wide::Sealing;
use super::worker::{OutcomeCounts, Shared, work};

/// Clients per gateway.
const CLIENTS: usize = 2;
/// Wall-clock time at the start.
const WALL_START: Duration = Duration::from_secs(1_700_000_000);
/// In one seed of this many, an operator verifies and heals alongside the services.
const BY_HAND_EVERY: u64 = 3;
/// Interval between checks whether the losses are repaired.
const AUDIT_EVERY: Duration = Duration::from_secs(2);
/// Maximum time that a run continues after an invariant was found broken.
const GIVE_UP_AFTER: Duration = Duration::from_secs(120);

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Seed of all randomness.
    pub seed: u64,
    /// Minimum number of operations.
    pub operations: u64,
    /// Number of faults.
    pub faults: u64,
    /// Planted defect.
    pub mutation: Mutation,
    /// Prints every operation and fault.
    pub verbose: bool,
}

impl RunOptions {
    /// Creates a run of the usual size.
    pub fn new(seed: u64) -> Self {
        Self { seed, operations: 500, faults: 20, mutation: Mutation::None, verbose: false }
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Shape of the cluster.
    pub shape: Shape,
    /// First broken invariant, and how it was broken.
    pub broken: Option<(Invariant, String)>,
    /// Operations and faults that met.
    pub table: Table,
    /// Number of operations begun.
    pub operations: u64,
    /// Number of operations by how they ended.
    pub answered: OutcomeCounts,
    /// Number of faults injected.
    pub faults: u64,
    /// Counts of what happened to wide stripes.
    pub sealing: Sealing,
    /// Hash of all events.
    pub digest: Digest,
    /// Duration in virtual time.
    pub virtual_time: Duration,
}

/// Returns the read policy of a seed's gateways: the server's default policy for half of the seeds, the client's for
/// a quarter, and other policies for the rest.
fn read_policy(seed: u64) -> ReadPolicy {
    const OTHERS: [&str; 6] =
        ["random", "late-binding(1)", "late-binding(1,keep)", "least-loaded", "cost-model", "published(1)"];
    let text = match seed / 4 % 4 {
        0 | 1 => "adaptive",
        2 => "normal",
        _ => OTHERS[(seed / 16) as usize % OTHERS.len()],
    };
    striate_baselines::read_policy(text).expect("a policy")
}

/// Runs a seed.
pub fn run(options: RunOptions) -> Report {
    run_in_virtual_time(options.seed, WALL_START, move |runtime| async move {
        let broken = Arc::new(Violations::default());
        let shape = Shape::of(options.seed);
        let policy = read_policy(options.seed);
        let cluster = Cluster::start(runtime, shape, policy, options.mutation, Arc::clone(&broken)).await;
        let cluster =
            cluster.unwrap_or_else(|error| panic!("a cluster without faults does not start: {error}"));
        let shared = Arc::new(Shared::new(cluster, options.operations, options.verbose));
        let injector = Injector::new(Arc::clone(&shared));
        tokio::select! {
            biased;
            () = give_up(&shared.cluster) => {}
            () = async {
                under_faults(&shared, &injector, options).await;
                settle(&shared, options.seed).await;
            } => {}
        }
        shared.cluster.controls.iter().for_each(|control| control.kill());
        Report {
            shape,
            broken: broken.first(),
            table: shared.cluster.coverage.table(),
            operations: shared.begun.load(std::sync::atomic::Ordering::Relaxed),
            answered: *shared.answered.lock(),
            faults: injector.injected(),
            sealing: shared.cluster.broken.sealing(),
            digest: shared.cluster.trace.digest(),
            virtual_time: shared.cluster.runtime.uptime(),
        }
    })
}

/// Ends the run some time after an invariant was found broken, since a broken cluster may wait forever.
async fn give_up(cluster: &Cluster) {
    while cluster.broken.first().is_none() {
        cluster.runtime.sleep(AUDIT_EVERY).await;
    }
    cluster.runtime.sleep(GIVE_UP_AFTER).await;
}

/// First phase: everything runs at the same time.
async fn under_faults(shared: &Arc<Shared>, injector: &Arc<Injector>, options: RunOptions) {
    let cluster = &shared.cluster;
    let runtime = &cluster.runtime;
    shared.fill(&cluster.gateways[0]).await;
    let mut clients = Vec::new();
    for gateway in &cluster.gateways {
        for _ in 0..CLIENTS {
            clients.push(runtime.spawn(work(Arc::clone(shared), Arc::clone(gateway))));
        }
    }
    let mut background = vec![runtime.spawn(keep_auditing(Arc::clone(shared)))];
    if options.seed.is_multiple_of(BY_HAND_EVERY) {
        let gateway = Arc::clone(&cluster.gateways[0]);
        background.push(runtime.spawn(keep_healing(Arc::clone(shared), gateway)));
    }
    let injecting = runtime.spawn(Arc::clone(injector).run(options.faults, options.operations));
    for client in clients {
        client.await.expect("a client does not panic");
    }
    injecting.await.expect("the injector does not panic");
    for task in background {
        task.abort();
        let _ = task.await;
    }
}

/// Runs an operator's commands: verifies what may be damaged, heals, and collects orphans.
async fn keep_healing(shared: Arc<Shared>, gateway: Arc<Gateway>) {
    let cluster = &shared.cluster;
    loop {
        let pause = cluster.draw_time(Duration::from_secs(1), Duration::from_secs(8));
        cluster.runtime.sleep(pause).await;
        let Some(running) = gateway.running() else { continue };
        cluster.coverage.begin(Kind::Heal);
        let (client, examine) = (running.client.clone(), cluster.ledger.has_victims());
        let task = running.run(async move {
            if examine {
                verify(client.stripes(), |_| ControlFlow::Continue(())).await?;
            }
            collect_orphans(client.stripes()).await?;
            heal(client.stripes(), |_| ControlFlow::Continue(())).await
        });
        let healed = cluster.runtime.timeout(LONGEST, task).await;
        cluster.coverage.end(Kind::Heal);
        if healed.is_err() {
            cluster.broken.report(Invariant::I12, "a heal has not ended in time");
        }
        if shared.verbose {
            eprintln!("{:?} heal: {healed:?}", cluster.runtime.uptime());
        }
    }
}

/// Returns the destroyed chunks that are still damaged. Copies, and chunks of dead stripes, protect nothing, so no
/// service repairs them before they are removed. What a site has that is down now is not known.
fn still_damaged(cluster: &Cluster) -> BTreeSet<(ChunkId, SiteId)> {
    let sites = cluster.sites();
    let damaged: BTreeMap<SiteId, _> = sites.iter().map(|site| (site.id(), site.damaged_chunks())).collect();
    let remains = |(chunk, site): &(ChunkId, SiteId)| {
        damaged.get(site).is_some_and(|of| of.as_ref().is_none_or(|of| of.contains(chunk)))
    };
    cluster.ledger.taken().into_iter().filter(remains).collect()
}

/// Clears the ledger when all losses are repaired and no running change can name a destroyed chunk.
async fn keep_auditing(shared: Arc<Shared>) {
    let cluster = &shared.cluster;
    loop {
        cluster.runtime.sleep(AUDIT_EVERY).await;
        if !cluster.ledger.has_victims() || !cluster.ledger.is_settled() {
            continue;
        }
        let Some(stripes) = invariants::survey(cluster) else { continue };
        if stripes.iter().all(SurveyedStripe::is_whole)
            && !invariants::may_name_what_was_taken(cluster, &stripes)
        {
            cluster.ledger.made_good(&still_damaged(cluster));
        }
    }
}
