//! The model against what can be said without it.

use super::*;
use crate::directing::{FITS, requests};

const A3: Fit = FITS[2];

fn run(table: Table, policy: &str, requests: &[Request], warm_up_s: f64) -> Seen {
    let policy = striate_baselines::read_policy(policy).unwrap();
    super::run(&Run { fit: &A3, table, policy, probe_s: PROBE_S, warm_up_s, seed: 1 }, requests)
}

/// Alone, a request takes a decision, its probes, two messages and one task.
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

/// Two at once for one object: the second waits at its node, or is read from the local group.
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

/// Tables 1 and 2: each of three front ends probes 90 nodes every second or every four; others probe for each request.
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

/// Behind a read of 10 MB, which takes a second, a small one is read from others as soon as it has timed out.
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

#[test]
fn every_node_has_as_many_chunks_on_distinct_nodes() {
    for table in [Table::One, Table::Two] {
        let (code, mut counts) = (table.code(), vec![0; NODES]);
        let placed = place(&code, 4);
        assert_eq!(placed.len(), 334);
        for sites in &placed {
            let distinct: std::collections::BTreeSet<_> = sites.iter().collect();
            assert_eq!((sites.len(), distinct.len()), (code.n(), code.n()));
            sites.iter().for_each(|site| counts[site.0 as usize - 1] += 1);
        }
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    }
}
