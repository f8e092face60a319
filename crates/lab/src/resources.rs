//! EC-Store's Table III: the resources of the statistics, the chunk read optimizer and the chunk mover (§VI-C5).
//!
//! The paper has 1,000,000 blocks of 1 MB. A run of the same workload in virtual time with the default read policy
//! gives the numbers of requests and chunks per second. A mover in that run, as published, gives the number of
//! candidates it evaluates for each chunk it moves. The co-access statistics observe the same workload's requests
//! until their interval has been replaced twice. All of this is deterministic. The processor cost of requests and
//! candidates is measured in *real* time, on the current machine.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;
use striate_client::ClientError;
use striate_core::StripeId;
use striate_plan::movement::Objective;
use striate_plan::{Adaptive, CoAccess, CoAccessLimits, ReadPolicy};
use striate_runtime::{Runtime, run_in_virtual_time};
use striate_site::protocol::frame::LOAD_LEN;
use striate_stripe::StripeOptions;

use crate::calibration::Calibration;
use crate::costs;
use crate::drive::{DriveOptions, RunMeasurements, drive};
use crate::experiment::report::STYLE;
use crate::experiment::svg::escape;
use crate::movement::{Movement, MovementOptions, MovementTotals};
use crate::program::commit;
use crate::workload::{EcStoreScans, Objects, Operation, Workload};
use crate::world::{World, WorldOptions};

/// Number of closed-loop clients, as in the paper.
const CLIENTS: u32 = 100;

/// Chunks per second that the mover moves in the run, so that it has moved some by the end. The published rate is
/// one.
const MOVES_PER_S: f64 = 200.0;

/// Size of the measured setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Number of blocks.
    pub blocks: u32,
    /// Block length, in bytes.
    pub block_len: u32,
    /// Length of the run, in virtual time.
    pub length: Duration,
}

impl Setting {
    /// The paper's blocks, with enough requests to determine their rate within a few percent.
    pub const PAPER: Self = Self { blocks: 1_000_000, block_len: 1_000_000, length: Duration::from_secs(2) };
}

/// RunMeasurements resources. Everything except the processor times is the same in every run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resources {
    /// Commit of the program.
    pub commit: String,
    /// Number of blocks.
    pub blocks: u32,
    /// Block length, in bytes.
    pub block_len: u32,
    /// Number of client services, each with its own statistics and planner.
    pub services: u32,
    /// Requests per second of virtual time, over all services.
    pub requests_per_s: f64,
    /// Chunks requested per second of virtual time.
    pub chunks_per_s: f64,
    /// Bytes of chunks read per second of virtual time.
    pub chunk_bytes_per_s: f64,
    /// Chunks requested per request.
    pub chunks_per_request: f64,
    /// Memory of one service's statistics under the paper's Zipf starts, in bytes.
    pub statistics_bytes: usize,
    /// Memory of one service's statistics under uniform starts, the paper's worst case, in bytes.
    pub statistics_uniform_bytes: usize,
    /// Share of the requests that the statistics observe.
    pub sampled: f64,
    /// Real processor time of this machine to observe one request, in nanoseconds.
    pub observe_ns: f64,
    /// Real processor time of this machine to plan one request, in nanoseconds.
    pub plan_ns: f64,
    /// Candidate moves evaluated per moved chunk.
    pub evaluated_per_move: f64,
    /// Bytes moved per second at the published rate of one chunk per second.
    pub mover_bytes_per_s: f64,
    /// Maximum memory that a search for moves looks at, in bytes.
    pub mover_bytes: u64,
    /// Real processor time of this machine to evaluate a candidate move, in nanoseconds.
    pub move_ns: f64,
}

/// One cell of the table: a resource of a component, in the paper and here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Memory, processor, network or storage.
    pub resource: &'static str,
    /// The paper's component.
    pub component: &'static str,
    /// The paper's value.
    pub paper: &'static str,
    /// Our value.
    pub ours: String,
}

/// Measures a setting. `clock` is the machine's real clock.
///
/// # Errors
/// If the world cannot be built.
pub fn measure(setting: Setting, clock: &Runtime) -> Result<Resources, ClientError> {
    let counted = count(setting)?;
    let observe_s = observe_s(clock, EcStoreScans::measured(u64::from(setting.blocks), 1.0));
    let plan_ns =
        costs::plan_ns_per_chunk(clock, &ReadPolicy::new(Adaptive::default())) * counted.chunks_per_request;
    let move_ns = costs::move_ns(clock, Objective::published());
    Ok(Resources { observe_ns: 1e9 * observe_s, plan_ns, move_ns, ..counted })
}

/// Measures everything that does not depend on the machine; processor times are 0.
fn count(setting: Setting) -> Result<Resources, ClientError> {
    let options = world_options(setting);
    let services = options.clients;
    let (measured, moved) = run_workload(setting, options)?;
    let requests = measured.latencies.summary().count as f64;
    let (seconds, chunks) = (setting.length.as_secs_f64(), measured.chunks as f64);
    let blocks = u64::from(setting.blocks);
    Ok(Resources {
        commit: commit().to_owned(),
        blocks: setting.blocks,
        block_len: setting.block_len,
        services,
        requests_per_s: requests / seconds,
        chunks_per_s: chunks / seconds,
        chunk_bytes_per_s: measured.site_bytes.iter().sum::<u64>() as f64 / seconds,
        chunks_per_request: chunks / requests,
        statistics_bytes: memory_bytes(EcStoreScans::measured(blocks, 1.0)),
        statistics_uniform_bytes: memory_bytes(EcStoreScans::warm_up(blocks)),
        sampled: StripeOptions::default().sampling,
        observe_ns: 0.0,
        plan_ns: 0.0,
        evaluated_per_move: moved.evaluated as f64 / moved.chunks.max(1) as f64,
        mover_bytes_per_s: moved.bytes as f64 / moved.chunks.max(1) as f64,
        mover_bytes: moved.state_bytes,
        move_ns: 0.0,
    })
}

/// Returns the paper's world, with a mover that is fast enough to move chunks during the run.
fn world_options(setting: Setting) -> WorldOptions {
    let profile = "rs(2,2)".parse().expect("a profile");
    WorldOptions {
        block_len: setting.block_len,
        movement: Some(MovementOptions::published().scaled(MOVES_PER_S)),
        ..WorldOptions::ec_store(
            Calibration::P,
            profile,
            setting.blocks,
            ReadPolicy::new(Adaptive::default()),
        )
    }
}

/// Runs the paper's workload in virtual time. Returns what the clients measured and what the mover did.
fn run_workload(
    setting: Setting,
    options: WorldOptions,
) -> Result<(RunMeasurements, MovementTotals), ClientError> {
    run_in_virtual_time(1, Duration::ZERO, move |runtime| async move {
        let world = Arc::new(World::build(runtime, &options).await?);
        let movement =
            Movement::start(&world, &options, MovementOptions::published().scaled(MOVES_PER_S)).await?;
        let drive_options = DriveOptions {
            clients: CLIENTS,
            rate_per_s: None,
            length: setting.length,
            operations: None,
            interval: setting.length,
            client_work: Duration::from_secs_f64(options.calibration.client_work_ms / 1e3),
        };
        let scans = EcStoreScans::measured(u64::from(setting.blocks), 1.0);
        let measured = drive(&world, drive_options, scans).await;
        Ok((measured, movement.moved()))
    })
}

/// Returns the memory of the statistics after the sampled requests of a workload.
fn memory_bytes(workload: EcStoreScans) -> usize {
    let mut statistics = CoAccess::default();
    intervals(workload).into_iter().flatten().for_each(|request| statistics.observe(request));
    statistics.totals().memory_bytes
}

/// Draws the sampled requests of three whole intervals of the statistics.
fn intervals(mut workload: EcStoreScans) -> Vec<Vec<Vec<StripeId>>> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut interval =
        || (0..CoAccessLimits::default().requests).map(|_| blocks(workload.next(&mut rng))).collect();
    (0..3).map(|_| interval()).collect()
}

/// Returns the real seconds to observe a request, in the fastest interval.
fn observe_s(clock: &Runtime, workload: EcStoreScans) -> f64 {
    let mut statistics = CoAccess::default();
    let times = intervals(workload).into_iter().map(|interval| {
        let (began, requests) = (clock.uptime(), interval.len());
        interval.into_iter().for_each(|request| statistics.observe(request));
        (clock.uptime() - began).as_secs_f64() / requests as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn blocks(operation: Operation) -> Vec<StripeId> {
    match operation {
        Operation::Read(Objects::Run { first, count }) => {
            (first..first + count).map(|block| StripeId::new(1, block)).collect()
        }
        _ => Vec::new(),
    }
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

impl Resources {
    /// Returns the table's cells, with the paper's beside ours.
    pub fn rows(&self) -> Vec<Row> {
        let row = |resource, component, paper, ours| Row { resource, component, paper, ours };
        let no_plans = "scratch space of one query; no plan is kept".to_owned();
        let own_plans = "none: every service plans for itself".to_owned();
        vec![
            row(MEMORY, STATISTICS, "2.8 GB", self.memory_of_statistics()),
            row(MEMORY, OPTIMIZER, "10.5 MB", no_plans),
            row(MEMORY, MOVER, "80 MB", self.memory_of_mover()),
            row(PROCESSOR, STATISTICS, "< 0.5%", self.processor_of_statistics()),
            row(PROCESSOR, OPTIMIZER, "0.5%", self.processor_of_optimizer()),
            row(PROCESSOR, MOVER, "15%", self.processor_of_mover()),
            row(NETWORK, STATISTICS, "20 KB/s", self.network_of_statistics()),
            row(NETWORK, OPTIMIZER, "< 1 KB/s", own_plans),
            row(NETWORK, MOVER, "500 KB/s", self.network_of_mover()),
            row(STORAGE, "all together", "0.3% of the space for data (§VI-C5)", self.storage()),
        ]
    }

    fn memory_of_statistics(&self) -> String {
        format!(
            "{:.1} MiB a service ({:.1} MiB with uniform starts), {:.0} MiB on all {}",
            mib(self.statistics_bytes as f64),
            mib(self.statistics_uniform_bytes as f64),
            mib(self.bytes_of_all_services() as f64),
            self.services
        )
    }

    fn memory_of_mover(&self) -> String {
        format!("{:.2} MiB for a search, and the chunk on its way", mib(self.mover_bytes as f64))
    }

    fn processor_of_statistics(&self) -> String {
        format!(
            "{:.2} µs a sampled request, 1 of {:.0}: {}",
            self.observe_ns / 1e3,
            1.0 / self.sampled,
            self.share_of_core(self.observe_ns, self.sampled)
        )
    }

    fn processor_of_optimizer(&self) -> String {
        format!("{:.1} µs a request: {}", self.plan_ns / 1e3, self.share_of_core(self.plan_ns, 1.0))
    }

    fn processor_of_mover(&self) -> String {
        format!(
            "{:.3}% of one core: {:.2} µs for each of {:.0} candidates a second",
            self.move_ns * self.evaluated_per_move / 1e7,
            self.move_ns / 1e3,
            self.evaluated_per_move
        )
    }

    fn network_of_statistics(&self) -> String {
        let reports = self.chunks_per_s * LOAD_LEN as f64;
        format!(
            "{:.0} KB/s of load reports on replies: {:.4}% of the bytes read ({LOAD_LEN} bytes a chunk)",
            reports / 1e3,
            100.0 * reports / self.chunk_bytes_per_s
        )
    }

    fn network_of_mover(&self) -> String {
        format!(
            "{:.0} KB/s, read and written: {:.5}% of the bytes read",
            self.mover_bytes_per_s / 1e3,
            100.0 * self.mover_bytes_per_s / self.chunk_bytes_per_s
        )
    }

    fn storage(&self) -> String {
        let stored = 2.0 * f64::from(self.blocks) * f64::from(self.block_len);
        let share = 100.0 * self.bytes_of_all_services() as f64 / stored;
        format!("none on disks; the memory is {share:.4}%")
    }

    /// Returns the memory of all services' statistics, in bytes.
    fn bytes_of_all_services(&self) -> usize {
        self.services as usize * self.statistics_bytes
    }

    /// Describes the processor time of a service that spends `ns` on a share of its requests.
    fn share_of_core(&self, ns: f64, share: f64) -> String {
        let per_s = self.requests_per_s / f64::from(self.services) * share;
        format!("{:.3}% of one core of each of {} services", ns * per_s / 1e7, self.services)
    }

    fn setting(&self) -> String {
        format!(
            "{} blocks of {} bytes, RS(2,2), {} client services, {CLIENTS} clients, calibration P, commit {}: {:.0} \
             requests and {:.0} chunks a second. Rates are of virtual time and memory is counted, so both are the same at \
             every run. Processor times are real, of the machine that this ran on, the fastest of several rounds.",
            self.blocks, self.block_len, self.services, self.commit, self.requests_per_s, self.chunks_per_s
        )
    }

    /// Renders the table as text.
    pub fn text(&self) -> String {
        let mut text = format!("EC-Store, Table III. {}\n", self.setting());
        for Row { resource, component, paper, ours } in self.rows() {
            let _ = writeln!(text, "{resource:<10}{component:<22}paper {paper:<36}lab {ours}");
        }
        text
    }

    /// Renders the table as an HTML page.
    pub fn html(&self) -> String {
        let title = "EC-Store, Table III: physical resources";
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{STYLE}</style></head><body><h1>{title}</h1><p>{}</p>\
             <table><tr><th>resource</th><th>component</th><th>paper</th><th>lab</th></tr>",
            escape(&self.setting())
        );
        for Row { resource, component, paper, ours } in self.rows() {
            let (paper, ours) = (escape(paper), escape(&ours));
            let _ = write!(
                page,
                "<tr><td>{resource}</td><td>{component}</td><td>{paper}</td><td>{ours}</td></tr>"
            );
        }
        page + "</table></body></html>\n"
    }
}

const MEMORY: &str = "memory";
const PROCESSOR: &str = "processor";
const NETWORK: &str = "network";
const STORAGE: &str = "storage";
const STATISTICS: &str = "statistics";
const OPTIMIZER: &str = "chunk read optimizer";
const MOVER: &str = "chunk mover";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_cell_of_the_papers_and_is_the_same_but_for_processor_times() {
        let small = Setting { blocks: 2_000, block_len: 20_000, length: Duration::from_millis(200) };
        let found = count(small).unwrap();
        // The free slots of a hash table depend on its random seed.
        let again = count(small).unwrap();
        assert!(found.statistics_bytes.abs_diff(again.statistics_bytes) < found.statistics_bytes / 1_000);
        let (statistics_bytes, mover_bytes) = (found.statistics_bytes, found.mover_bytes);
        assert_eq!(found, Resources { statistics_bytes, mover_bytes, ..again });
        assert!(found.evaluated_per_move > 1.0 && found.mover_bytes_per_s == 10_000.0, "{found:?}");
        assert!((1 << 10..1 << 24).contains(&found.mover_bytes), "{found:?}");

        let rows = found.rows();
        for resource in [MEMORY, PROCESSOR, NETWORK] {
            for component in [STATISTICS, OPTIMIZER, MOVER] {
                let cells = rows.iter().filter(|row| (row.resource, row.component) == (resource, component));
                assert_eq!(cells.count(), 1, "{resource} of {component}");
            }
        }
        assert!(found.requests_per_s > 100.0 && found.chunks_per_request > 2.0, "{found:?}");
        // One report is attached to every chunk's reply: 52 bytes for 10,000 of payload; the share is higher only
        // because of chunks that were not needed.
        let reports_share = found.chunks_per_s * LOAD_LEN as f64 / found.chunk_bytes_per_s;
        assert!((0.0052..0.0080).contains(&reports_share), "{reports_share}");
        assert!((1 << 20..16 << 20).contains(&found.statistics_bytes), "{found:?}");
        assert!(found.html().contains("candidates a second"));
    }
}
