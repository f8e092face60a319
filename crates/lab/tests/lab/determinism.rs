//! I14: the same seed gives the same trace, a different seed a different one.

use std::sync::Arc;
use std::time::Duration;

use striate_lab::calibration::Calibration;
use striate_lab::drive::{DriveOptions, drive};
use striate_lab::workload::EcStoreScans;
use striate_lab::world::{World, WorldOptions};
use striate_runtime::run_in_virtual_time;
use striate_virtual_network::Digest;

/// Half a second of a loaded cluster in three racks, with lost messages, a crash, a one-way cut and a
/// partition.
fn scenario(seed: u64, policy: &str, profile: &str) -> Digest {
    let policy = striate_baselines::read_policy(policy).unwrap();
    let base = WorldOptions::ec_store(Calibration::P, profile.parse().unwrap(), 2_000, policy);
    let options = WorldOptions {
        sites: 12,
        racks: 3,
        clients: 6,
        card_bytes_per_s: Some(1.25e9),
        uplink_bytes_per_s: Some(2.5e9),
        loss: 0.001,
        ..base
    };
    run_in_virtual_time(seed, Duration::from_secs(1_700_000_000), move |runtime| async move {
        let world = Arc::new(World::build(runtime.clone(), &options).await.unwrap());
        let of_faults = Arc::clone(&world);
        let faults = runtime.spawn(async move {
            let (runtime, machines) = (&of_faults.runtime, &of_faults.machines);
            runtime.sleep(Duration::from_millis(100)).await;
            machines[7].store.crash();
            of_faults.network.cut(machines[8].machine, machines[0].machine);
            runtime.sleep(Duration::from_millis(100)).await;
            machines[7].store.restart();
            let places: Vec<_> = machines.iter().map(|machine| machine.machine).collect();
            of_faults.network.partition(&places[..2], &places[9..]);
            runtime.sleep(Duration::from_millis(100)).await;
            of_faults.network.mend();
        });
        let options = DriveOptions {
            clients: 20,
            rate_per_s: None,
            length: Duration::from_millis(500),
            operations: None,
            interval: Duration::from_millis(100),
            client_work: Duration::from_millis(1),
        };
        let measured = drive(&world, options, EcStoreScans::measured(2_000, 1.0)).await;
        faults.await.unwrap();
        let answered = measured.latencies.summary().count;
        assert!(
            answered > 50 && measured.planned_again > 0,
            "{answered} answered, {} read alone, {} failed: {:?}",
            measured.planned_again,
            measured.failed,
            measured.first_failure
        );
        world.trace.digest()
    })
}

#[test]
fn one_seed_gives_one_trace_and_another_seed_another() {
    for (policy, profile) in [
        ("random", "rs(4,2)"),
        ("late-binding(1)", "rs(2,2)"),
        ("late-binding(1,keep)", "rs(2,2)"),
        ("least-loaded", "replica(3)"),
        ("cost-model", "rs(2,2)"),
    ] {
        let block_fits = |seed| scenario(seed, policy, profile);
        let first = block_fits(7);
        assert!(first.events > 1_000, "{first}");
        assert_eq!(first, block_fits(7), "{policy} over {profile}: seed 7 twice");
        assert_ne!(first.hash, block_fits(8).hash, "{policy} over {profile}: seeds 7 and 8");
    }
}
