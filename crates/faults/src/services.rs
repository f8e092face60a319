//! A control process: a candidate for the lead, which runs the services beside the data path while it leads, as a
//! control process of a cluster does (`striate control`).
//!
//! Two of them compete for the lease. The winner opens a new client for its term, so that the deletes of a stale
//! leader carry an older epoch. It runs repair, scrub, the collectors, the rebalancer and a mover until the term ends
//! or the process is killed. Waits and cycles are short, so that a run sees many of them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_client::Client;
use striate_control::movement::RebalanceOptions;
use striate_control::{
    Candidacy, Rebalancer, RepairOptions, RepairService, keep_collecting, keep_scrubbing,
    keep_sweeping_placements, move_chunk,
};
use striate_meta::MetaStore;
use striate_plan::movement::ChunkMove;
use striate_runtime::{Process, Runtime};
use striate_virtual_network::Machine;

use super::cluster::Cluster;
use super::copying::keep_copying;
use super::following::{KnownSites, follow};
use super::invariants;
use super::mutation;
use super::operation::Kind;
use super::optimising::keep_optimising;
use super::packing::keep_packing;
use super::sealing::keep_interfering;
use super::steps::{CrashTrap, SteppedMeta, Steps, as_service};

/// Silence after which a site counts as lost.
pub const WAIT: Duration = Duration::from_secs(4);
/// Time in which every chunk is scrubbed once.
const SCRUB_CYCLE: Duration = Duration::from_secs(25);
/// Interval between passes over the leftovers of dead writers.
const COLLECT_EVERY: Duration = Duration::from_secs(3);
/// Short passes at a low rate, so that emptying a site takes a few seconds.
const REBALANCE: RebalanceOptions =
    RebalanceOptions { bytes_per_s: 64 << 10, look_every: Duration::from_secs(2) };
/// Maximum pause between two random moves.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);

/// A control process.
#[derive(Debug)]
pub struct ControlProcess {
    /// Place in the network.
    pub machine: Machine,
    /// Traps that may end its steps.
    pub traps: Arc<CrashTrap>,
    running: Mutex<Option<(Runtime, Process)>>,
    /// Client of the current term, while the process leads or believes it does.
    term: Arc<Mutex<Option<Client>>>,
}

/// Drops the term's client when the term ends, however it ends.
struct Term(Arc<Mutex<Option<Client>>>);

impl Drop for Term {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

impl ControlProcess {
    /// Creates a stopped process.
    pub fn new(machine: Machine) -> Self {
        Self { machine, traps: Arc::default(), running: Mutex::default(), term: Arc::default() }
    }

    /// Starts the process. It leads when it wins the lease.
    pub fn start(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        let (runtime, process) = cluster.runtime.process();
        let name = format!("control-{}", self.machine.number);
        let candidacy = Candidacy::new(runtime.clone(), cluster.metadata_from(self.machine), &name);
        let (control, of_cluster) = (Arc::clone(self), Arc::clone(cluster));
        let (of_term, steps) =
            (runtime.clone(), Steps::new(cluster, Arc::clone(&self.traps), process.clone()));
        runtime.spawn(candidacy.run(move || {
            lead(Arc::clone(&of_cluster), Arc::clone(&control), of_term.clone(), steps.clone())
        }));
        *self.running.lock() = Some((runtime, process));
    }

    /// Fault: the process dies.
    pub fn kill(&self) {
        if let Some((_, process)) = self.running.lock().take() {
            process.kill();
        }
    }

    /// Fault: the process is paused or resumed.
    pub fn set_paused(&self, is_paused: bool) {
        if let Some((_, process)) = &*self.running.lock() {
            process.set_paused(is_paused);
        }
    }

    /// Fault: the process's wall clock jumps ahead by `by_ms` milliseconds, or back.
    pub fn set_clock_ahead(&self, by_ms: i64) {
        if let Some((_, process)) = &*self.running.lock() {
            process.set_clock_ahead(by_ms);
        }
    }

    /// Returns true if the process runs.
    pub fn is_running(&self) -> bool {
        self.running.lock().as_ref().is_some_and(|(_, process)| !process.is_killed())
    }

    /// Returns true if the process leads or believes it does.
    pub fn leads(&self) -> bool {
        self.is_running() && self.term.lock().is_some()
    }
}

/// Runs the services of the leader for one term.
async fn lead(cluster: Arc<Cluster>, control: Arc<ControlProcess>, runtime: Runtime, steps: Steps) {
    let meta = mutation::metadata(
        cluster.mutation,
        cluster.metadata_from(control.machine),
        &cluster,
        control.machine,
        true,
    );
    let meta: Arc<dyn MetaStore> = Arc::new(SteppedMeta::new(meta, steps.clone()));
    let opened = Client::open(runtime.clone(), meta, Vec::new(), cluster.client_options()).await;
    // If this fails, the term ends and a process tries again.
    let Ok(client) = opened else { return };
    let known_sites = KnownSites::new(control.machine, Some(steps));
    if known_sites.follow(&cluster, &client).await.is_err() {
        return;
    }
    *control.term.lock() = Some(client.clone());
    let _term = Term(Arc::clone(&control.term));
    let stripes = client.stripes();
    let repair = RepairService::new(RepairOptions { after: WAIT, ..RepairOptions::default() });
    let rebalancer = Rebalancer::new(REBALANCE);
    futures::join!(
        follow(&cluster, &client, known_sites),
        as_service(Kind::Repair, repair.run(stripes.clone())),
        as_service(Kind::Scrub, keep_scrubbing(stripes.clone(), SCRUB_CYCLE)),
        as_service(Kind::Collect, keep_collecting(stripes.clone(), COLLECT_EVERY)),
        as_service(Kind::Collect, keep_sweeping_placements(stripes.clone())),
        as_service(Kind::Pack, keep_packing(&cluster, &client)),
        as_service(Kind::Seal, keep_interfering(&cluster, &client)),
        as_service(Kind::Rebalance, rebalancer.run(stripes.clone())),
        as_service(Kind::Move, keep_moving(&cluster, &client)),
        as_service(Kind::Optimise, keep_optimising(&cluster, &client)),
        as_service(Kind::Move, keep_copying(&cluster, &client)),
    );
}

/// Makes random moves to random sites until the faults end, like a mover whose plans are stale or wrong.
async fn keep_moving(cluster: &Cluster, client: &Client) {
    while cluster.moves_chunks() {
        cluster.runtime.sleep(cluster.draw_time(Duration::ZERO, LONGEST_PAUSE)).await;
        if let Some(chunk_move) = draw_move(cluster).filter(|_| cluster.moves_chunks()) {
            // It is often refused or out of date, and fails when the store does.
            let _ = move_chunk(client.stripes(), &chunk_move).await;
        }
    }
}

fn draw_move(cluster: &Cluster) -> Option<ChunkMove> {
    let (stripe, record) = cluster.choose(&invariants::committed(cluster)?)?;
    let index = cluster.draw(record.locations.len() as u64) as usize;
    let from = striate_core::SiteId(record.locations[index].site);
    // Moves back and forth between two sites are the reason for generations.
    let sites: Vec<_> = cluster.sites().iter().map(|site| site.id()).collect();
    Some(ChunkMove { stripe, index, from, to: cluster.choose(&sites)? })
}
