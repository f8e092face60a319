//! `striate-lab reality`: runs the lab's workload on site processes with modelled media, and compares both.

use std::time::Duration;

use striate_core::Profile;
use striate_runtime::Runtime;

use super::busy_loops::BusyLoops;
use super::processors::Usage;
use super::site_processes::{Media, SiteProcesses};
use super::write_file;
use crate::args::RealityArgs;
use crate::calibration::Calibration;
use crate::failure::{Failure, Outcome};
use crate::latency::Latencies;
use crate::reality::outcome::{self, Outcome as Compared, Processors};
use crate::reality::path_cost::{self, PathCost};
use crate::reality::{CASES, Setting, prepare, run_lab, run_real};

const BLOCK_LEN: u32 = 100_000;

/// Runs every case on both sides and writes `reality.json` and `reality.html`.
///
/// # Errors
/// If a process does not start, a run fails, or the report cannot be written. A disagreement between the two sides is
/// reported but is not an error.
pub async fn run(runtime: &Runtime, args: &RealityArgs) -> Outcome {
    let awake = BusyLoops::start().map_err(|error| {
        Failure::failed(format!("chrt (util-linux), which keeps the processors awake: {error}"))
    })?;
    let mut outcomes = Vec::new();
    for (name, calibration, profile, policy) in CASES {
        let is_of_calibration = args.calibration.as_deref().is_none_or(|only| only == calibration);
        if !is_of_calibration || !(args.case.is_empty() || args.case.iter().any(|case| case == name)) {
            continue;
        }
        let profile: Profile = profile.parse().map_err(Failure::failed)?;
        let setting = Setting {
            way: measure_way(runtime, BLOCK_LEN / profile.code.data_count() as u32, args).await?,
            calibration: Calibration::named(calibration).expect("the cases name calibrations"),
            profile,
            policy: striate_baselines::read_policy(policy).map_err(Failure::failed)?,
            sites: args.sites,
            clients: args.clients,
            blocks: args.blocks,
            block_len: BLOCK_LEN,
            warm_up: Duration::from_secs_f64(args.length / 10.0),
            length: Duration::from_secs_f64(args.length),
        };
        let compared = compare(runtime, name, setting, args, &awake).await?;
        println!("{}", line(&compared));
        outcomes.push(compared);
    }
    if outcomes.is_empty() {
        return Err(Failure::refused(
            "there is no such case; there are R, EC, EC+LB and default of P, and EC of D",
        ));
    }
    let json = serde_json::to_string_pretty(&outcomes).map_err(Failure::failed)?;
    write_file(&args.out.join("reality.json"), &json)?;
    write_file(&args.out.join("reality.html"), &outcome::html(&outcomes))
}

/// Measures the network path to sites like those of the runs, without modelled media.
async fn measure_way(runtime: &Runtime, chunk_len: u32, args: &RealityArgs) -> Outcome<PathCost> {
    let processes =
        SiteProcesses::start(runtime, args.sites, Media::Directories, args.dir.as_deref()).await?;
    let sites = processes.connect(runtime)?;
    path_cost::measure(runtime, &sites, chunk_len).await.map_err(Failure::failed)
}

async fn compare(
    runtime: &Runtime,
    name: &str,
    setting: Setting,
    args: &RealityArgs,
    awake: &BusyLoops,
) -> Outcome<Compared> {
    let (mut real, mut usage) = (Vec::new(), Usage::default());
    for seed in args.seed..args.seed + u64::from(args.rounds) {
        let media = Media::Modelled(setting.calibration.name, seed);
        let sites = SiteProcesses::start(runtime, setting.sites, media, args.dir.as_deref()).await?;
        let prepared =
            prepare(runtime, &setting, seed, sites.connect(runtime)?).await.map_err(Failure::failed)?;
        let before = Usage::read(&sites.pids(), &awake.pids())?;
        real.push(run_real(runtime, &setting, seed, &prepared).await.map_err(Failure::failed)?);
        usage = usage + (Usage::read(&sites.pids(), &awake.pids())? - before);
    }
    let seeds = args.seed..args.seed + u64::from(args.lab_seeds);
    let of_lab = setting.clone();
    let lab = runtime.run_blocking(move || {
        seeds.map(|seed| run_lab(&of_lab, seed)).collect::<Result<Vec<_>, _>>().map_err(Failure::failed)
    });
    let lab = lab.await?;
    let operations = real.iter().map(|run: &Latencies| run.summary().count).sum::<u64>();
    // Includes the operations of the warm-up, a tenth as many.
    let processors = Processors {
        count: usage.processors,
        own_share: usage.own_share(),
        other_share: usage.other_share(),
        own_ms_per_operation: 1e3 * usage.own_s / (1.1 * operations.max(1) as f64),
    };
    Ok(Compared::of(name, &setting, &real, &lab, processors))
}

fn line(compared: &Compared) -> String {
    format!(
        "{} on {} (a round trip of {:.2} ms and {:.0} MB/s between processes): mean {} ms on processes, {} in the lab ({:+.1}%); p99 {} and {} ({:+.1}%); {} and {} requests; \
         processors: {:.0}% ours, {:.0}% others'; {}",
        compared.name,
        compared.calibration,
        compared.way.round_trip_ms,
        compared.way.card_bytes_per_s / 1e6,
        compared.real_mean_ms,
        compared.lab_mean_ms,
        100.0 * compared.mean_error,
        compared.real_p99_ms,
        compared.lab_p99_ms,
        100.0 * compared.p99_error,
        compared.real.count,
        compared.lab.count,
        100.0 * compared.processors.own_share,
        100.0 * compared.processors.other_share,
        if compared.agrees() { "they agree" } else { "they do not agree" },
    )
}
