//! `striate-lab packed-reality`: packed objects read from site processes with modelled media, by three policies.

use std::time::Duration;

use serde::Serialize;
use striate_plan::ReadPolicy;
use striate_runtime::Runtime;

use super::busy_loops::BusyLoops;
use super::site_processes::{Media, SiteProcesses};
use crate::args::PackedRealityArgs;
use crate::calibration::Calibration;
use crate::failure::{Failure, Outcome};
use crate::latency::Latencies;
use crate::reality::packed::{PackedObjects, PackedSetting, PackedStore};

/// The policies, by their texts, in the expected order of their means.
const POLICIES: [&str; 3] = ["normal(2s)", "lmlf-pw2", "adaptive"];

/// Results of a policy in one round.
#[derive(Clone, Debug, Serialize)]
struct PolicyRun {
    policy: &'static str,
    seed: u64,
    requests: u64,
    rate_per_s: f64,
    mean_ms: f64,
    p99_ms: f64,
}

/// Runs all rounds.
///
/// # Errors
/// If a process does not start or a read fails.
pub(super) async fn run(runtime: &Runtime, args: &PackedRealityArgs) -> Outcome {
    let calibration = Calibration::named(&args.calibration).ok_or_else(|| {
        Failure::refused(format!("{} is no calibration; there are P, A and D", args.calibration))
    })?;
    let setting = PackedSetting {
        calibration,
        profile: args.profile.parse().map_err(Failure::refused)?,
        sites: args.sites,
        load: args.load,
        warm_up: Duration::from_secs_f64(args.length / 5.0),
        length: Duration::from_secs_f64(args.length),
    };
    let _awake = BusyLoops::start().map_err(|error| {
        Failure::failed(format!("chrt (util-linux), which keeps the processors awake: {error}"))
    })?;
    let mut shown = Vec::new();
    for round in 0..args.rounds {
        shown.extend(run_round(runtime, args, &setting, round).await?);
    }
    match args.json {
        true => println!("{}", serde_json::to_string(&shown).map_err(Failure::failed)?),
        false => shown.iter().for_each(|shown| println!("{}", line(shown))),
    }
    Ok(())
}

/// Runs all policies on one set of sites; their order changes from round to round.
async fn run_round(
    runtime: &Runtime,
    args: &PackedRealityArgs,
    setting: &PackedSetting,
    round: u32,
) -> Outcome<Vec<PolicyRun>> {
    let seed = args.seed + u64::from(round);
    let media = Media::Modelled(setting.calibration.name, seed);
    let processes = SiteProcesses::start(runtime, setting.sites, media, args.dir.as_deref()).await?;
    let objects = PackedObjects::draw(setting, seed).map_err(Failure::failed)?;
    let rate_per_s = objects.rate_per_s(setting);
    let sites = processes.connect(runtime)?;
    let store = PackedStore::prepare(runtime, objects, &sites).await.map_err(Failure::failed)?;
    let mut shown = Vec::new();
    for place in 0..POLICIES.len() {
        let text = POLICIES[(place + round as usize) % POLICIES.len()];
        let policy: ReadPolicy = striate_baselines::read_policy(text).map_err(Failure::failed)?;
        let connections =
            (0..args.gateways).map(|_| processes.connect(runtime)).collect::<Result<Vec<_>, _>>()?;
        let latencies: Latencies =
            store.run(runtime, setting, &policy, connections, seed).await.map_err(Failure::failed)?;
        let summary = latencies.summary();
        shown.push(PolicyRun {
            policy: text,
            seed,
            requests: summary.count,
            rate_per_s,
            mean_ms: summary.mean_ms,
            p99_ms: latencies.at_percentile_ms(99.0),
        });
    }
    Ok(shown)
}

fn line(shown: &PolicyRun) -> String {
    format!(
        "{:<10} mean {:.2} ms, p99 {:.1} ms, {} requests at {:.0} a second, seed {}",
        shown.policy, shown.mean_ms, shown.p99_ms, shown.requests, shown.rate_per_s, shown.seed
    )
}
