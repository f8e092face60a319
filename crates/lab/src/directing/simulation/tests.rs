//! The model against results that follow without it.

use super::*;
use crate::directing::{FITS, PARTITIONS, requests};

const A3: FittedLoad = FITS[2];

fn run(table: Table, policy: &str, requests: &[Request], warm_up_s: f64) -> RunSummary {
    let policy = striate_baselines::read_policy(policy).unwrap();
    run_of(table, Director::Published(policy), requests, warm_up_s, None)
}

fn run_of(
    table: Table,
    director: Director,
    requests: &[Request],
    warm_up_s: f64,
    copies: Option<&HotCopies>,
) -> RunSummary {
    let run = Run { fit: &A3, table, director, probe_s: PROBE_S, warm_up_s, seed: 1, slow: None, copies };
    super::run(&run, requests)
}

/// A lone request takes a decision, its probes, two messages and one task.
#[test]
fn an_idle_cluster_takes_what_a_decision_probes_messages_and_a_task_take() {
    let lonely: Vec<Request> = (0..40)
        .map(|number| Request {
            at: f64::from(number) * 9.7,
            partition: number as usize * 41,
            bytes: 100_000,
        })
        .collect();
    for (table, policy, probes) in [
        (Table::One, "normal(2s)", 0.0),
        (Table::One, "lmlf-lazy", 0.0),
        (Table::One, "lmlf-pw2", 4.0),
        (Table::Two, "llf-pw2", 7.0),
        (Table::Two, "lmlf", 9.0),
    ] {
        let seen = run(table, policy, &lonely, 0.0);
        let expected = DECISION_S + probes * PROBE_S + 2.0 * MESSAGE_S + A3.mean_service_s(table);
        for time in [seen.requests.min, seen.requests.max] {
            assert!((time - expected).abs() < 1e-9, "{policy}: {time}, not {expected}");
        }
        assert_eq!((seen.tasks_per_request, seen.timed_out), (1.0, 0.0), "{policy}");
    }
}

/// Ten requests at once for one object: they wait at its node, or are read from the local group.
#[test]
fn tasks_are_served_one_after_the_other() {
    let request = Request { at: 5.0, partition: 7, bytes: 100_000 };
    let service = A3.mean_service_s(Table::One);
    let seen = run(Table::One, "normal(2s)", &[request; 10], 0.0);
    assert!((seen.tasks.max - 10.0 * service).abs() < 2.0 * DECISION_S * 10.0, "{seen:?}");
    assert!((seen.tasks.min - service).abs() < 1e-9, "{seen:?}");
    let around = run(Table::One, "llf-pw2", &[request; 10], 0.0);
    assert!(around.tasks.max < 0.8 * seen.tasks.max && around.tasks_per_request > 1.0, "{around:?}");
}

/// Tables 1 and 2: each of three front ends probes 90 nodes every second or every four; other policies probe for each
/// request.
#[test]
fn probes_a_second_are_the_papers() {
    for table in [Table::One, Table::Two] {
        let requests = requests::draw(&A3, table, 100.0, 3);
        let counted = requests.iter().filter(|request| request.at >= 12.0).count() as f64;
        let per_s = counted / (requests.last().unwrap().at - 12.0);
        for (policy, expected) in [
            ("normal(2s)", 0.0),
            ("lmlf-lazy", 270.0),
            ("opt-lazy", 67.5),
            ("lmlf-pw2", if table == Table::One { 4.0 } else { 7.0 } * per_s),
            ("lmlf", if table == Table::One { 10.0 } else { 9.0 } * per_s),
        ] {
            let probes = run(table, policy, &requests, 12.0).requests.probes_per_s;
            assert!((probes - expected).abs() <= 0.03 * expected, "{policy}: {probes}, not {expected}");
        }
    }
}

/// Behind a read of 10 MB, which takes a second, a small one is read from other nodes once it has timed out.
#[test]
fn what_takes_longer_than_the_time_out_is_read_from_others_too() {
    let placed = place(&Table::One.code(), 1);
    let site = |partition: usize| placed[partition / 6][partition % 6];
    let shares_one_site = |partition: &usize| {
        let shared = placed[partition / 6].iter().filter(|site| placed[1].contains(site)).count();
        partition / 6 != 1 && site(*partition) == site(7) && shared == 1
    };
    let behind = (0..PARTITIONS).find(shares_one_site).expect("there are many");
    let requests = [
        Request { at: 5.0, partition: 7, bytes: 10_000_000 },
        Request { at: 5.1, partition: behind, bytes: 100_000 },
    ];
    let taken = |policy: &str| run(Table::One, policy, &requests, 5.05).requests.mean;
    let service = A3.mean_service_s(Table::One);
    assert!((taken("normal(2s)") - 0.93).abs() < 0.01, "{}", taken("normal(2s)"));
    let expected = DECISION_S + 0.3 + 2.0 * MESSAGE_S + service;
    assert!((taken("normal(300ms)") - expected).abs() < 1e-9, "{}", taken("normal(300ms)"));
    let seen = run(Table::One, "normal(300ms)", &requests, 5.05);
    assert_eq!((seen.timed_out, seen.tasks_per_request), (1.0, 4.0));
}

#[test]
fn one_seed_gives_one_outcome() {
    let requests = requests::draw(&A3, Table::Two, 30.0, 5);
    for policy in ["lmlf-pw2", "opt-lazy"] {
        assert_eq!(run(Table::Two, policy, &requests, 1.0), run(Table::Two, policy, &requests, 1.0));
    }
}

/// For a lone request, the default asks for the chunk itself, and takes a decision, two messages and a task. All 8
/// front ends are notified once, as they expect the task's end.
#[test]
fn the_default_takes_no_time_to_ask_for_queues() {
    let lonely: Vec<Request> = (0..40)
        .map(|number| Request { at: f64::from(number), partition: number as usize * 41, bytes: 100_000 })
        .collect();
    for table in [Table::One, Table::Two] {
        let seen = run_of(table, Director::Store(StoreDefault::default()), &lonely, 0.0, None);
        let expected = DECISION_S + 2.0 * MESSAGE_S + A3.mean_service_s(table);
        assert!((seen.requests.min - expected).abs() < 1e-9 && (seen.requests.max - expected).abs() < 1e-9);
        assert!((seen.pushes_per_s * 39.0 - 40.0 * 8.0).abs() < 1e-6, "{}", seen.pushes_per_s);
        assert_eq!((seen.requests.probes_per_s, seen.tasks_per_request), (0.0, 1.0));
    }
}

/// Ten requests in a burst for one object: the front ends' own running reads and the nodes' pushes spread them.
/// Copies of the partition spread them further, and fewer tasks are needed.
#[test]
fn the_default_spreads_a_burst_and_copies_take_their_share() {
    let burst: Vec<Request> = (0..10)
        .map(|number| Request { at: 5.0 + 0.002 * f64::from(number), partition: 7, bytes: 100_000 })
        .collect();
    let store = |every: Option<f64>| {
        let pushes = every.map_or(Pushes::OnChange, Pushes::Every);
        Director::Store(StoreDefault { pushes, ..StoreDefault::default() })
    };
    let normal = run(Table::Two, "normal(2s)", &burst, 0.0);
    let fresh = run_of(Table::Two, store(None), &burst, 0.0, None);
    let stale = run_of(Table::Two, store(Some(10.0)), &burst, 0.0, None);
    assert!(fresh.requests.mean < 0.8 * normal.requests.mean, "{fresh:?} beside {normal:?}");
    assert!(stale.requests.mean > 1.05 * fresh.requests.mean, "{stale:?} beside {fresh:?}");
    let code = Table::Two.code();
    let copies = HotCopies::place(&code, &place(&code, 1), &burst, 3);
    let copied = run_of(Table::Two, store(None), &burst, 0.0, Some(&copies));
    assert!(copied.requests.mean < fresh.requests.mean, "{copied:?} beside {fresh:?}");
    assert!(copied.tasks_per_request < fresh.tasks_per_request, "{copied:?} beside {fresh:?}");
}

/// Every node is five times slower for a thirtieth of the time.
#[test]
fn slow_episodes_lengthen_tasks() {
    let requests: Vec<Request> = (0..4_000)
        .map(|number| Request {
            at: f64::from(number) * 0.03,
            partition: number as usize * 7 % 2_004,
            bytes: 100_000,
        })
        .collect();
    let mean = |slow| {
        let director = Director::Store(StoreDefault::default());
        let run = Run {
            fit: &A3,
            table: Table::One,
            director,
            probe_s: 0.0,
            warm_up_s: 0.0,
            seed: 1,
            slow,
            copies: None,
        };
        super::run(&run, &requests).tasks.mean
    };
    let (usual, slow) = (mean(None), mean(Some(SlowEpisodes::USUAL)));
    assert!((1.08..1.25).contains(&(slow / usual)), "{slow} beside {usual}");
}
