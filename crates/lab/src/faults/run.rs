//! One seed: clients, services and faults; then the faults stop, and everything must be whole again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use striate_client::ReadRange;
use striate_control::{GarbageCollector, HealReport, collect_abandoned, collect_orphans, heal, verify};
use striate_plan::ReadPolicy;
use striate_runtime::run_in_virtual_time;

use super::cluster::{Cluster, Shape};
use super::coverage::Table;
use super::gateway::{self, Gateway};
use super::injector::Injector;
use super::invariants::{self, Broken, Condition, Invariant, Surveyed};
use super::mutation::Mutation;
use super::operation::{Kind, Operation};
use super::orphans;
use super::site::flip_chunk;
use super::worker::{Answered, KEYS, Shared, key, work};
use crate::history::{Outcome, Violation};
use crate::trace::Digest;

/// Clients of each gateway.
const CLIENTS: usize = 2;
/// The wall clock at the beginning.
const WALL_START: Duration = Duration::from_secs(1_700_000_000);
/// One of so many seeds ends with losses of exactly r chunks of every stripe, and then of more.
const LOSSES_EVERY: u64 = 4;
/// By when everything is whole after the last fault (I13).
const WHOLE_WITHIN: Duration = Duration::from_secs(600);

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Where all randomness comes from.
    pub seed: u64,
    /// Operations, at least.
    pub operations: u64,
    /// Faults.
    pub faults: u64,
    /// What is planted.
    pub mutation: Mutation,
    /// Whether to print every operation and fault.
    pub verbose: bool,
}

impl RunOptions {
    /// A run of the usual size.
    pub fn new(seed: u64) -> Self {
        Self { seed, operations: 500, faults: 16, mutation: Mutation::None, verbose: false }
    }
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The first invariant that was found broken, and how.
    pub broken: Option<(Invariant, String)>,
    /// Which operation met which fault.
    pub table: Table,
    /// Operations begun.
    pub operations: u64,
    /// How they ended.
    pub answered: Answered,
    /// Faults injected.
    pub faults: u64,
    /// The hash of all events.
    pub digest: Digest,
    /// How long it took in virtual time.
    pub virtual_time: Duration,
}

/// How the gateways of a seed's run choose chunks: half of the seeds by the server's default policy, a quarter by the
/// client's, and a quarter by another one.
fn read_policy(seed: u64) -> ReadPolicy {
    const OTHERS: [ReadPolicy; 6] = [
        ReadPolicy::Random,
        ReadPolicy::LateBinding { extra_reads: 1, cancel: true },
        ReadPolicy::LateBinding { extra_reads: 1, cancel: false },
        ReadPolicy::LeastLoaded,
        ReadPolicy::CostModel { extra_reads: 0 },
        ReadPolicy::Published { extra_reads: 1 },
    ];
    // The shape goes through the seeds' last two bits.
    match seed / 4 % 4 {
        0 | 1 => ReadPolicy::Adaptive,
        2 => ReadPolicy::Normal,
        _ => OTHERS[(seed / 16) as usize % OTHERS.len()],
    }
}

/// Runs a seed.
pub fn run(options: RunOptions) -> Report {
    run_in_virtual_time(options.seed, WALL_START, move |runtime| async move {
        let broken = Arc::new(Broken::default());
        let shape = Shape::ALL[(options.seed % Shape::ALL.len() as u64) as usize];
        let policy = read_policy(options.seed);
        let cluster = Cluster::start(runtime, shape, policy, options.mutation, Arc::clone(&broken)).await;
        let cluster =
            cluster.unwrap_or_else(|error| panic!("a cluster without faults does not start: {error}"));
        let shared = Arc::new(Shared::new(cluster, options.operations, options.verbose));
        let faults = under_faults(&shared, options).await;
        settle(&shared, options).await;
        Report {
            broken: broken.first(),
            table: shared.cluster.coverage.table(),
            operations: shared.begun.load(std::sync::atomic::Ordering::Relaxed),
            answered: *shared.answered.lock(),
            faults,
            digest: shared.cluster.trace.digest(),
            virtual_time: shared.cluster.runtime.uptime(),
        }
    })
}

/// The first part: everything at the same time. Answers how many faults there were.
async fn under_faults(shared: &Arc<Shared>, options: RunOptions) -> u64 {
    let cluster = &shared.cluster;
    let runtime = &cluster.runtime;
    let (services, gateways) = cluster.gateways.split_last().expect("there are gateways");
    let mut clients = Vec::new();
    for gateway in gateways {
        for _ in 0..CLIENTS {
            clients.push(runtime.spawn(work(Arc::clone(shared), Arc::clone(gateway))));
        }
    }
    let background = [
        runtime.spawn(keep_healing(Arc::clone(shared), Arc::clone(services))),
        runtime.spawn(keep_collecting(Arc::clone(shared), Arc::clone(services))),
    ];
    let injector = Injector::new(Arc::clone(shared));
    let injecting = runtime.spawn(Arc::clone(&injector).run(options.faults, options.operations));
    for client in clients {
        client.await.expect("a client does not panic");
    }
    injecting.await.expect("the injector does not panic");
    for task in background {
        task.abort();
        let _ = task.await;
    }
    injector.injected()
}

/// Repairs from time to time, as an operator or a service does.
async fn keep_healing(shared: Arc<Shared>, gateway: Arc<Gateway>) {
    let cluster = &shared.cluster;
    loop {
        let pause = cluster.draw_time(Duration::from_secs(1), Duration::from_secs(5));
        cluster.runtime.sleep(pause).await;
        let Some(running) = gateway.running() else { continue };
        cluster.coverage.begin(Kind::Heal);
        let (client, examine) = (running.client.clone(), cluster.ledger.has_victims());
        let task = running.run(async move {
            if examine {
                verify(&client, |_| ControlFlow::Continue(())).await?;
            }
            heal(&client, |_| ControlFlow::Continue(())).await
        });
        let healed = cluster.runtime.timeout(super::operation::LONGEST, task).await;
        cluster.coverage.end(Kind::Heal);
        if healed.is_err() {
            cluster.broken.report(Invariant::I12, "a heal has not ended in time");
        }
        if shared.verbose {
            eprintln!("{:?} heal: {healed:?}", cluster.runtime.uptime());
        }
        note_repaired(cluster);
    }
}

/// Tells the ledger when everything that was taken was made good.
fn note_repaired(cluster: &Cluster) {
    if cluster.ledger.has_victims()
        && cluster.ledger.is_settled()
        && invariants::survey(cluster).is_some_and(|stripes| stripes.iter().all(Surveyed::is_whole))
    {
        cluster.ledger.made_good();
    }
}

/// Collects garbage and what dead writers left.
async fn keep_collecting(shared: Arc<Shared>, gateway: Arc<Gateway>) {
    let cluster = &shared.cluster;
    let mut garbage = GarbageCollector::default();
    loop {
        let pause = cluster.draw_time(Duration::from_millis(500), Duration::from_secs(3));
        cluster.runtime.sleep(pause).await;
        let Some(running) = gateway.running() else { continue };
        cluster.coverage.begin(Kind::Collect);
        let (client, mut of_round) = (running.client.clone(), std::mem::take(&mut garbage));
        let task = running.run(async move {
            // All fail while the metadata does, and go on later.
            let _ = of_round.round(&client).await;
            let _ = collect_abandoned(&client).await;
            let _ = collect_orphans(&client).await;
            of_round
        });
        let ended = cluster.runtime.timeout(super::operation::LONGEST, task).await;
        cluster.coverage.end(Kind::Collect);
        match ended {
            Ok(Some(of_round)) => garbage = of_round,
            // A killed process remembers nothing of what it has seen.
            Ok(None) => {}
            Err(_) => cluster.broken.report(Invariant::I12, "a collection has not ended in time"),
        }
    }
}

/// The second part: no faults any more.
async fn settle(shared: &Arc<Shared>, options: RunOptions) {
    let cluster = &shared.cluster;
    for gateway in &cluster.gateways {
        gateway.kill();
    }
    cluster.runtime.sleep(super::ledger::MESSAGES_ARRIVE).await;
    let gateway = gateway::start_another(cluster).await;
    if !make_whole(cluster, &gateway).await {
        return;
    }
    read_all(shared, &gateway, "after everything was made whole").await;
    check_history(shared);
    orphans::collect_all(cluster, &gateway).await;
    if (options.seed / LOSSES_EVERY + options.seed).is_multiple_of(LOSSES_EVERY) {
        lose_chunks(shared, &gateway).await;
    }
}

/// I13: full redundancy returns within a bound, and I7 holds then without exceptions.
async fn make_whole(cluster: &Cluster, gateway: &Gateway) -> bool {
    let client = gateway.client().expect("it was started");
    let deadline = cluster.runtime.now() + WHOLE_WITHIN;
    loop {
        let verified = verify(&client, |_| ControlFlow::Continue(())).await;
        let healed = heal(&client, |_| ControlFlow::Continue(())).await;
        let whole = matches!(&healed, Ok(report) if report.is_whole());
        let stripes = invariants::survey(cluster);
        if whole && stripes.as_ref().is_some_and(|stripes| stripes.iter().all(Surveyed::is_whole)) {
            return true;
        }
        if cluster.runtime.now() > deadline {
            let left = stripes.unwrap_or_default().into_iter().find(|stripe| !stripe.is_whole());
            let left = left.map(|stripe| format!("stripe {}: {:?}", stripe.id, stripe.chunks));
            let what = format!(
                "not whole {WHOLE_WITHIN:?} after the last fault: {healed:?}, {verified:?}, {left:?}"
            );
            cluster.broken.report(Invariant::I13, what);
            return false;
        }
        cluster.runtime.sleep(Duration::from_secs(1)).await;
    }
}

/// I1: every object reads back.
async fn read_all(shared: &Shared, gateway: &Gateway, when: &str) {
    let client = gateway.client().expect("it was started");
    let number = shared.new_client();
    for prefix in ["a/", "c/"] {
        let mut after = String::new();
        loop {
            let list = Operation::List { prefix: prefix.to_owned(), after: after.clone() };
            let answer = list.clone().run(&client).await;
            let [Outcome::Listed { through, .. }] = answer.outcomes.as_slice() else {
                let why = answer.error.unwrap_or_default();
                return shared.cluster.broken.report(Invariant::I1, format!("no listing {when}: {why}"));
            };
            shared.operate(number, gateway, list).await;
            match through {
                Some(last) => after = last.clone(),
                None => break,
            }
        }
    }
    for number_of_key in 0..KEYS {
        let get = Operation::Get { key: key(number_of_key), range: ReadRange::Whole };
        let answer = get.clone().run(&client).await;
        if let Some(error) = answer.error.filter(|_| answer.outcomes == [Outcome::NotApplied]) {
            shared
                .cluster
                .broken
                .report(Invariant::I1, format!("{:?} cannot be read {when}: {error}", key(number_of_key)));
        }
        shared.operate(number, gateway, get).await;
    }
}

/// I2, I3, I4, I5 and I9.
fn check_history(shared: &Shared) {
    if let Err(violation) = shared.history.lock().check() {
        let Violation { invariant, .. } = &violation;
        let named = [Invariant::I2, Invariant::I3, Invariant::I4, Invariant::I5, Invariant::I9];
        let invariant =
            named.into_iter().find(|named| named.to_string() == *invariant).unwrap_or(Invariant::I3);
        shared.cluster.broken.report(invariant, violation.to_string());
    }
}

/// The third part: first exactly r chunks of every stripe are damaged, which everything survives; then more of some,
/// which must be an error, and nothing may be deleted for it.
async fn lose_chunks(shared: &Shared, gateway: &Gateway) {
    let cluster = &shared.cluster;
    let tolerance = cluster.profile().code.tolerance();
    damage(cluster, |_| tolerance);
    read_all(shared, gateway, "with as many chunks of each stripe damaged as may be").await;
    if !make_whole(cluster, gateway).await {
        return;
    }
    let client = gateway.client().expect("it was started");
    let get = |number| Operation::Get { key: key(number), range: ReadRange::Whole };
    let mut present = Vec::new();
    for number in 0..KEYS {
        present.push(get(number).run(&client).await.outcomes != [Outcome::Read(None)]);
    }
    damage(cluster, |stripe| if stripe % 2 == 0 { tolerance + 1 } else { tolerance });
    let Some(damaged) = invariants::survey(cluster) else { return };
    for (number, present) in present.into_iter().enumerate() {
        let answer = get(number).run(&client).await;
        if let Some(broken) = answer.broken {
            cluster.broken.report(Invariant::I2, format!("with too many chunks damaged: {broken}"));
        }
        if present && answer.outcomes == [Outcome::Read(None)] {
            cluster.broken.report(Invariant::I2, format!("{:?} is gone for want of chunks", key(number)));
        }
    }
    let _ = verify(&client, |_| ControlFlow::Continue(())).await;
    let healed = heal(&client, |_| ControlFlow::Continue(())).await;
    check_refused(cluster, &damaged, healed.ok());
}

/// A heal names every stripe that cannot be repaired, and leaves everything that these still have.
fn check_refused(cluster: &Cluster, damaged: &[Surveyed], healed: Option<HealReport>) {
    let tolerance = cluster.profile().code.tolerance();
    let good = |stripe: &Surveyed| stripe.chunks.iter().filter(|chunk| **chunk == Condition::Good).count();
    let Some(after) = invariants::survey(cluster) else { return };
    let is_hopeless = |stripe: &&Surveyed| good(stripe) + tolerance < stripe.chunks.len();
    let hopeless = after.iter().filter(is_hopeless).count();
    let named = healed.as_ref().map_or(0, |report| report.unrepairable as usize);
    if named != hopeless {
        let what = format!("{hopeless} stripes cannot be repaired, heal names {named}: {healed:?}");
        cluster.broken.report(Invariant::I1, what);
    }
    for stripe in damaged.iter().filter(is_hopeless) {
        let now = after.iter().find(|now| now.id == stripe.id);
        if now.is_none_or(|now| good(now) < good(stripe)) {
            let what = format!("stripe {} has lost more for being damaged: {now:?}", stripe.id);
            cluster.broken.report(Invariant::I8, what);
        }
    }
}

/// Flips a bit of so many chunks of every stripe, on sites that the stripe's number draws.
fn damage(cluster: &Cluster, count: impl Fn(usize) -> usize) {
    let Some(stripes) = invariants::survey(cluster) else { return };
    for (number, stripe) in stripes.iter().enumerate() {
        let n = stripe.chunks.len();
        let first = cluster.draw(n as u64) as usize;
        for index in (0..count(number)).map(|step| (first + step) % n) {
            let location = &stripe.record.locations[index];
            let Some(site) = cluster.site(striate_core::SiteId(location.site)) else { continue };
            flip_chunk(&site, stripe.chunk(index), stripe.record.chunk_len, cluster.draw(1 << 40));
        }
    }
}
