//! Runs an experiment: every policy with every seed, each in a world of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use striate_runtime::{Runtime, run_in_virtual_time};

use super::file::{Experiment, PolicyUnderTest};
use super::results::{PolicyResult, Results, SeedResult};
use crate::drive::{DriveOptions, Measured, drive};
use crate::latency::Latencies;
use crate::workload::EcStoreScans;
use crate::world::{World, WorldOptions};

/// A run that did not end well, with all that is needed to see it again.
#[derive(Debug, thiserror::Error)]
#[error(
    "{experiment}, policy {policy}: {reason}\nseed {seed}, commit {}; see it again with\n  \
     striate lab run --experiment {experiment} --seed {seed} --seeds 1 --scale {scale}",
    super::COMMIT
)]
pub struct RunFailure {
    /// The experiment.
    pub experiment: String,
    /// The policy.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// The scale that it ran at.
    pub scale: f64,
    /// What happened.
    pub reason: String,
}

/// Runs the experiment with the seeds from `first_seed` on, and tells `progress` after each run. `clock` is the
/// machine's real clock.
///
/// # Errors
/// At the first run that fails or panics, or in which an operation failed.
pub fn run(
    experiment: &Experiment,
    first_seed: u64,
    clock: &Runtime,
    mut progress: impl FnMut(&str, &SeedResult),
) -> Result<Results, RunFailure> {
    let mut policies = Vec::new();
    for policy in &experiment.policies {
        let mut all = Latencies::default();
        let mut seeds = Vec::new();
        for seed in first_seed..first_seed + u64::from(experiment.seeds) {
            let failure = |reason| RunFailure {
                experiment: experiment.name.clone(),
                policy: policy.name.clone(),
                seed,
                scale: experiment.scale,
                reason,
            };
            let (latencies, result) = run_seed(experiment, policy, seed, clock).map_err(failure)?;
            all.merge(&latencies);
            progress(&policy.name, &result);
            seeds.push(result);
        }
        policies.push(PolicyResult {
            name: policy.name.clone(),
            profile: policy.profile.to_string(),
            read: policy.read.clone(),
            cdf: PolicyResult::cdf_of(&all),
            seeds,
        });
    }
    Ok(Results::new(experiment, policies))
}

fn run_seed(
    experiment: &Experiment,
    policy: &PolicyUnderTest,
    seed: u64,
    clock: &Runtime,
) -> Result<(Latencies, SeedResult), String> {
    let began = clock.uptime();
    let ran = catch_unwind(AssertUnwindSafe(|| measure(experiment, policy, seed)));
    let (measured, trace) = match ran {
        Ok(result) => result?,
        Err(panic) => return Err(panic_message(panic.as_ref())),
    };
    if let Some(reason) = &measured.first_failure {
        return Err(format!("{} operations failed, the first with: {reason}", measured.failed));
    }
    let [_, length, interval] = experiment.scaled_times();
    let intervals = (length.as_secs_f64() / interval.as_secs_f64()).round() as usize;
    let real_s = (clock.uptime() - began).as_secs_f64();
    let result = SeedResult::new(seed, trace, &measured, intervals, real_s);
    Ok((measured.latencies, result))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("(no message)"))
}

/// The paper's protocol: a uniform warm-up, then the measured phase.
fn measure(
    experiment: &Experiment,
    policy: &PolicyUnderTest,
    seed: u64,
) -> Result<(Measured, String), String> {
    let world_options = WorldOptions {
        calibration: experiment.calibration(),
        sites: experiment.sites,
        racks: experiment.racks,
        clients: experiment.client_services,
        profile: policy.profile,
        block_len: experiment.block_len,
        blocks: experiment.scaled_blocks(),
        policy: policy.read_policy()?,
        card_bytes_per_s: None,
        uplink_bytes_per_s: None,
        loss: 0.0,
    };
    let [warm_up, length, interval] = experiment.scaled_times();
    let options = DriveOptions {
        clients: experiment.clients,
        rate_per_s: None,
        length,
        interval,
        client_work: Duration::from_secs_f64(experiment.calibration().client_work_ms / 1e3),
    };
    let (blocks, exponent) = (u64::from(experiment.scaled_blocks()), experiment.zipf_exponent);
    run_in_virtual_time(seed, Duration::ZERO, move |runtime| async move {
        let world = World::build(runtime, &world_options).await.map_err(|error| error.to_string())?;
        let world = Arc::new(world);
        let warm_up = DriveOptions { length: warm_up, ..options };
        drive(&world, warm_up, || EcStoreScans::warm_up(blocks)).await;
        let measured = drive(&world, options, || EcStoreScans::measured(blocks, exponent)).await;
        Ok((measured, world.trace.digest().to_string()))
    })
}
