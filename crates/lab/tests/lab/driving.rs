//! How clients drive a world.

use std::sync::Arc;
use std::time::Duration;

use striate_client::ClientError;
use striate_lab::calibration::Calibration;
use striate_lab::drive::{DriveOptions, RunMeasurements, drive};
use striate_lab::objects::BUCKET;
use striate_lab::workload::trace::{self, ReplayOptions};
use striate_lab::workload::{EcStoreScans, Kind, Pages, Workload, Ycsb, YcsbWorkload};
use striate_lab::world::{World, WorldOptions};
use striate_runtime::run_in_virtual_time;
use striate_site::ChunkStore;

const LENGTH: Duration = Duration::from_secs(2);

fn small(calibration: Calibration) -> WorldOptions {
    let policy = striate_baselines::read_policy("random").unwrap();
    let base = WorldOptions::ec_store(calibration, "rs(2,2)".parse().unwrap(), 200, policy);
    WorldOptions { sites: 6, clients: 6, ..base }
}

fn run_open(rate_per_s: f64) -> RunMeasurements {
    run_in_virtual_time(3, Duration::ZERO, move |runtime| async move {
        let world = Arc::new(World::build(runtime, &small(Calibration::D)).await.unwrap());
        let options = DriveOptions {
            clients: 0,
            rate_per_s: Some(rate_per_s),
            length: LENGTH,
            operations: None,
            interval: LENGTH / 4,
            client_work: Duration::ZERO,
        };
        drive(&world, options, EcStoreScans::warm_up(200)).await
    })
}

/// A scan costs the six sites about 6 × 4 ms and 1 MB at 150 MB/s: 100 per second are a fair load, 400 are too many.
#[test]
fn an_open_loop_keeps_its_rate_and_counts_from_when_operations_were_due() {
    let mean_of = |(sum, count): (f64, u64)| sum / count as f64;
    let (fair, too_many) = (run_open(100.0), run_open(400.0));
    for (measured, expected) in [(&fair, 200.0), (&too_many, 800.0f64)] {
        let count = measured.latencies.summary().count as f64;
        // Four standard deviations of a Poisson count.
        assert!((count - expected).abs() < 4.0 * expected.sqrt(), "{count} of {expected}");
    }
    // The median, because one slow episode of half a second would decide the mean.
    assert!(fair.latencies.summary().percentile(50.0) < 50.0, "{:?}", fair.latencies.summary());
    // Operations that become due while the sites are behind wait for all earlier ones.
    let growth = mean_of(too_many.over_time[3]) / mean_of(too_many.over_time[0]);
    assert!(growth > 2.0, "{growth}");
}

#[test]
fn a_closed_loop_has_as_many_operations_under_way_as_clients() {
    let measured = run_in_virtual_time(4, Duration::ZERO, |runtime| async move {
        let world = Arc::new(World::build(runtime, &small(Calibration::A)).await.unwrap());
        let options = DriveOptions {
            clients: 10,
            rate_per_s: None,
            length: LENGTH,
            operations: None,
            interval: LENGTH,
            client_work: Duration::from_millis(1),
        };
        drive(&world, options, EcStoreScans::measured(200, 1.0)).await
    });
    // The request rate is constant over time.
    let last =
        measured.last_site_bytes.iter().sum::<u64>() as f64 / measured.site_bytes.iter().sum::<u64>() as f64;
    assert!((0.2..0.3).contains(&last), "{last} of the bytes in the last quarter");
    assert!(measured.last_imbalance().is_some_and(|last| last > 0.0));
    // Little's law over the sending time; operations in flight at its end were answered a little later.
    let summary = measured.latencies.summary();
    let busy_s = summary.count as f64 * summary.mean_ms / 1e3;
    let expected = 10.0 * LENGTH.as_secs_f64();
    assert!(busy_s >= expected && busy_s < expected + 10.0 * summary.percentile(100.0) / 1e3, "{busy_s}");
}

fn run_ycsb(workload: YcsbWorkload) -> (RunMeasurements, String) {
    run_in_virtual_time(5, Duration::ZERO, move |runtime| async move {
        let world = Arc::new(World::build(runtime, &small(Calibration::A)).await.unwrap());
        let options = DriveOptions {
            clients: 8,
            rate_per_s: None,
            length: LENGTH,
            operations: None,
            interval: LENGTH,
            client_work: Duration::ZERO,
        };
        let measured = drive(&world, options, Ycsb::new(workload, 200)).await;
        // n chunks of each write are on the sites, whether or not a later write replaced it.
        let written = measured.by_kind.iter().filter(|(kind, _)| **kind != Kind::Read);
        let written: u64 = written.map(|(_, latencies)| latencies.summary().count).sum();
        let chunks: u64 = world.machines.iter().map(|machine| machine.store.status().chunks).sum();
        assert!(chunks >= 4 * written, "{chunks} chunks of {written} writes");
        (measured, world.trace.digest().to_string())
    })
}

#[test]
fn the_writes_of_ycsb_go_the_way_of_the_store_and_are_read_back() {
    for (workload, kind, share) in [
        (YcsbWorkload::A, Kind::Update, 0.5),
        (YcsbWorkload::B, Kind::Update, 0.05),
        (YcsbWorkload::D, Kind::Insert, 0.05),
        (YcsbWorkload::F, Kind::ReadModifyWrite, 0.5),
    ] {
        let (measured, trace) = run_ycsb(workload);
        assert_eq!((measured.failed, &measured.first_failure), (0, &None), "{workload:?}");
        let count = |kind| measured.by_kind.get(&kind).map_or(0, |latencies| latencies.summary().count);
        let all = measured.latencies.summary().count;
        let writes = count(kind);
        assert_eq!(writes + count(Kind::Read), all, "{workload:?} has no other kinds");
        let deviation = (all as f64 * share * (1.0 - share)).sqrt();
        assert!(
            (writes as f64 - all as f64 * share).abs() < 4.0 * deviation,
            "{workload:?}: {writes} of {all}"
        );
        let mean = |kind| measured.by_kind[&kind].summary().mean_ms;
        assert!(kind != Kind::ReadModifyWrite || mean(kind) > mean(Kind::Read), "it reads too");
        assert!(measured.breakdown.write > Duration::ZERO);
        assert_eq!(trace, run_ycsb(workload).1, "{workload:?}: the same seed twice");
    }
}

#[test]
fn what_was_deleted_is_not_read_and_what_was_written_is() {
    run_in_virtual_time(5, Duration::ZERO, |runtime| async move {
        let world = World::build(runtime, &small(Calibration::A)).await.unwrap();
        let client = &world.clients[0];
        assert_eq!(world.read_objects(client, &[3, 4]).await.unwrap().1, 200_000);
        world.write_object(client, 4, "four".to_owned(), 250_000).await.unwrap();
        assert_eq!(world.read_objects(client, &[3, 4]).await.unwrap().1, 350_000);
        for object in [3, 4] {
            world.delete_object(client, object).await.unwrap();
            let error = world.read_objects(client, &[object]).await.unwrap_err();
            assert!(matches!(error, ClientError::NoSuchKey(_)), "{error}");
        }
        assert!(client.blocks_of(BUCKET, "four").await.is_err());
    });
}

/// Objects of many sizes, from less than a block to several blocks, are read whole, and all objects of a page at
/// once.
#[test]
fn pages_of_images_of_all_sizes_are_read_whole() {
    let pages = Pages::new(30, 1.0, 0.5, 1);
    let of_world = pages.clone();
    let measured = run_in_virtual_time(6, Duration::ZERO, move |runtime| async move {
        let sizes = (0..of_world.objects()).map(|image| of_world.size(image)).collect::<Vec<_>>();
        assert!(sizes.iter().any(|&size| size > 500_000) && sizes.iter().any(|&size| size % 100_000 > 1));
        let world = World::build_of(runtime, &small(Calibration::P), sizes.iter().copied()).await.unwrap();
        for (object, &size) in sizes.iter().enumerate() {
            let lens: Vec<u64> = world.blocks_of(object as u64).map(|block| u64::from(block.len)).collect();
            // RS(2,2) rounds the last block up to an even length.
            assert_eq!(lens.iter().sum::<u64>(), size.next_multiple_of(2));
            assert!(lens[..lens.len() - 1].iter().all(|&len| len == 100_000));
        }
        let options = DriveOptions {
            clients: 3,
            rate_per_s: None,
            length: LENGTH,
            operations: None,
            interval: LENGTH,
            client_work: Duration::ZERO,
        };
        drive(&Arc::new(world), options, of_world.clone()).await
    });
    let count = measured.latencies.summary().count;
    assert!(measured.failed == 0 && count > 10, "{measured:?}");
    let of_all: u64 = (0..pages.objects()).map(|image| pages.size(image)).sum();
    let mean_page = of_all as f64 / pages.pages() as f64;
    let mean_read = measured.block_bytes as f64 / count as f64;
    assert!((mean_read / mean_page - 1.0).abs() < 0.7, "{mean_read} and {mean_page}");
}

#[test]
fn a_trace_runs_at_its_own_times() {
    let text = "time_s,op,key,size,group\n5,GET,a,150000,1\n5,GET,b,70001,1\n6.5,GET,b,70001,\n";
    let measured = run_in_virtual_time(7, Duration::ZERO, move |runtime| async move {
        let replay = trace::read(text.as_bytes(), ReplayOptions::default()).unwrap();
        let sizes: Vec<u64> = (0..replay.objects()).map(|object| replay.size(object)).collect();
        let world = Arc::new(World::build_of(runtime, &small(Calibration::A), sizes).await.unwrap());
        let began = world.runtime.now();
        let options = DriveOptions {
            clients: 0,
            rate_per_s: None,
            length: LENGTH,
            operations: None,
            interval: LENGTH,
            client_work: Duration::ZERO,
        };
        let measured = drive(&world, options, replay.clone()).await;
        assert!(world.runtime.now() - began >= Duration::from_millis(1_500));
        measured
    });
    assert_eq!((measured.latencies.summary().count, measured.failed), (2, 0));
    assert_eq!(measured.block_bytes, 150_000 + 70_002 + 70_002);
}

/// A site that never answers costs a query the hedge time, not the read deadline of ten seconds.
#[test]
fn a_hung_disk_is_planned_around() {
    for policy in ["normal", "random", "late-binding(1)", "late-binding(1,keep)", "cost-model", "adaptive"] {
        run_in_virtual_time(6, Duration::ZERO, |runtime| async move {
            let hedge_after = Duration::from_millis(250);
            let options = WorldOptions {
                policy: striate_baselines::read_policy(policy).unwrap(),
                ..small(Calibration::A)
            };
            let world = World::build(runtime.clone(), &options).await.unwrap();
            let mut client_options = options.client_options();
            client_options.stripes.hedge_after = hedge_after;
            let client = world.client(world.machines[0].machine, client_options).await.unwrap();
            world.machines[1].store.hang();
            let mut hedged = false;
            for first in (0..200).step_by(20) {
                let blocks: Vec<_> = (first..first + 20).map(|number| world.stripes.block(number)).collect();
                let began = runtime.now();
                let read = client.read_blocks(&blocks).await.unwrap();
                let took = runtime.now() - began;
                assert!(took < Duration::from_secs(2), "{policy}: {took:?}");
                assert_eq!(read.stats.planned_again, 0, "{policy}");
                hedged |= took >= hedge_after;
            }
            assert!(
                hedged || policy.starts_with("late") || policy == "adaptive",
                "{policy}: no query needed the disk that hangs"
            );
        });
    }
}
