//! Power cuts at every operation of the embedded engine, on simulated disks.
//!
//! After each cut the store is opened again, sometimes with r disks wiped. Every acknowledged transaction must be
//! present, and every other one completely or not at all, the same on every mirror.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::in_virtual_time;
use futures::future::join_all;
use proptest::prelude::*;
use striate_core::ClusterId;
use striate_meta::embedded::simulated::{Fault, Machine};
use striate_meta::embedded::{EmbeddedStore, Layout, Options};
use striate_meta::{Commit, MetaError, MetaStore, Precondition, Row, ScanRange, Transaction, TxId};
use striate_runtime::Runtime;

const OPTIONS: Options =
    Options { cache_bytes: 8 << 20, deadline: Duration::from_secs(10), min_free_bytes: 0, reserve_bytes: 0 };

fn layout(total_directories: usize, tolerance: usize) -> Layout {
    Layout { cluster: ClusterId(7), total_directories, tolerance }
}

/// The outcome of each of the workload's transactions, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Unknown,
    NeverTried,
}

struct Workload {
    /// Sizes of the rounds; the transactions of a round are submitted at once.
    rounds: Vec<usize>,
    value_len: usize,
    /// Round before which the first disk fails, and after which mirrors are restored.
    disk_fails_at: Option<usize>,
}

/// Returns transaction `number`, which writes three rows and removes those written by the transaction three before it.
fn transaction(number: usize, value_len: usize) -> Transaction {
    let mut tx = Transaction::new(TxId(number as u128 + 1));
    for part in ["a", "m", "z"] {
        tx.put(format!("{part}/{number}"), vec![number as u8; value_len]);
        if let Some(removed) = number.checked_sub(3) {
            tx.delete(format!("{part}/{removed}"));
        }
    }
    tx.require(Precondition::Absent(format!("a/{number}").into()));
    tx
}

async fn open(machine: &Machine, runtime: &Runtime, layout: Layout) -> Result<EmbeddedStore, MetaError> {
    EmbeddedStore::open_or_create(runtime, OPTIONS, layout, &machine.directories()).await
}

impl Workload {
    fn count(&self) -> usize {
        self.rounds.iter().sum()
    }

    /// Runs until the end or the power cut.
    async fn run(&self, machine: &Machine, runtime: &Runtime, layout: Layout) -> Vec<Fate> {
        let mut fates = vec![Fate::NeverTried; self.count()];
        let Ok(store) = open(machine, runtime, layout).await else { return fates };
        let mut first = 0;
        for (number, &round) in self.rounds.iter().enumerate() {
            if self.disk_fails_at == Some(number) {
                machine.set_fault(0, Some(Fault::Writes));
            }
            let numbers = first..first + round;
            first += round;
            let commits = numbers.clone().map(|number| store.commit(transaction(number, self.value_len)));
            let outcomes = join_all(commits).await;
            for (number, outcome) in numbers.zip(outcomes) {
                fates[number] = match outcome {
                    Ok(Commit::Done(_)) => Fate::Acknowledged,
                    Ok(conflict) => panic!("transaction {number} cannot have {conflict:?}"),
                    Err(_) => Fate::Unknown,
                };
            }
            if self.disk_fails_at == Some(number) {
                // This fails if the power does.
                let _ = store.restore_mirrors().await;
            }
        }
        store.close().await;
        fates
    }
}

/// Returns the number of transactions that the rows show, which must be a prefix of the workload.
fn applied(rows: &[Row], workload: &Workload) -> usize {
    let key = |row: &Row| String::from_utf8_lossy(&row.key).into_owned();
    let numbers: Vec<usize> =
        rows.iter().filter_map(|row| key(row).strip_prefix("a/")?.parse().ok()).collect();
    let count = numbers.iter().max().map_or(0, |last| last + 1);
    let mut expected = Vec::new();
    for part in ["a", "m", "z"] {
        expected.extend((count.saturating_sub(3)..count).map(|number| format!("{part}/{number}")));
    }
    expected.sort();
    assert_eq!(rows.iter().map(key).collect::<Vec<_>>(), expected, "transactions are all or nothing");
    for row in rows {
        let number: usize = key(row)[2..].parse().unwrap();
        assert_eq!(row.value, vec![number as u8; workload.value_len]);
    }
    count
}

/// Checks one state of the disks, and that the store continues from it.
async fn check(
    machine: &Machine,
    runtime: &Runtime,
    layout: Layout,
    workload: &Workload,
    fates: &[Fate],
) -> usize {
    let store = open(machine, runtime, layout).await.expect("enough disks are there");
    let rows = store.scan(ScanRange::prefix(b""), 1_000).await.unwrap();
    let count = applied(&rows, workload);
    for (number, fate) in fates.iter().enumerate() {
        match fate {
            Fate::Acknowledged => assert!(number < count, "transaction {number} of {count} was acknowledged"),
            Fate::NeverTried => assert!(number >= count, "transaction {number} was never submitted"),
            Fate::Unknown => {}
        }
    }
    // Resubmitting everything in order must apply exactly what is missing.
    for number in 0..workload.count() {
        let outcome = store.commit(transaction(number, workload.value_len)).await.unwrap();
        assert!(matches!(outcome, Commit::Done(_)), "{number}: {outcome:?}");
    }
    let rows = store.scan(ScanRange::prefix(b""), 1_000).await.unwrap();
    assert_eq!(applied(&rows, workload), workload.count());
    store.close().await;
    count
}

/// Cuts the power at one operation and checks every choice of lost disks.
async fn cut(seed: u64, at: u64, layout: Layout, workload: &Workload) {
    let runtime = Runtime::deterministic(seed, Duration::ZERO);
    let machine = Machine::new(seed, layout.total_directories);
    machine.fail_power_at(at);
    let fates = workload.run(&machine, &runtime, layout).await;
    machine.restart();

    let intact = check(&machine.fork(), &runtime, layout, workload, &fates).await;
    // Cut the power a second time, while the store levels its mirrors.
    let again = machine.fork();
    again.fail_power_at(again.operations() + 1 + seed % 40);
    let _ = open(&again, &runtime, layout).await;
    again.restart();
    check(&again, &runtime, layout, workload, &fates).await;

    let disks = if layout.tolerance == 0 { 0 } else { layout.total_directories };
    for lost in 0..disks {
        let survivor = machine.fork();
        for number in 0..layout.tolerance {
            survivor.wipe((lost + number) % disks);
        }
        check(&survivor, &runtime, layout, workload, &fates).await;
        // After a start all mirrors are level: every later start shows the same as the first.
        let levelled = machine.fork();
        open(&levelled, &runtime, layout).await.unwrap().close().await;
        levelled.wipe(lost);
        let later = check(&levelled, &runtime, layout, workload, &fates).await;
        assert_eq!(later, intact, "mirrors are level after a start");
    }
}

fn operations_of(layout: Layout, workload: &Workload) -> u64 {
    in_virtual_time(async {
        let (machine, runtime) =
            (Machine::new(0, layout.total_directories), Runtime::deterministic(0, Duration::ZERO));
        let fates = workload.run(&machine, &runtime, layout).await;
        assert!(fates.iter().all(|fate| *fate == Fate::Acknowledged));
        machine.operations()
    })
}

#[test]
fn acknowledged_transactions_survive_a_power_cut_at_every_operation() {
    let workload = Arc::new(Workload { rounds: vec![1, 3, 1, 2], value_len: 20, disk_fails_at: None });
    let layout = layout(3, 1);
    for at in 1..=operations_of(layout, &workload) + 1 {
        in_virtual_time(cut(at, at, layout, &workload));
    }
}

/// A mirror is ejected, another one copied, and the power fails at one operation in between. The failed disk returns
/// with its old contents or blank; its old mirror must never be taken for a current one.
async fn cut_during_ejection(at: u64, layout: Layout, workload: &Workload) {
    let runtime = Runtime::deterministic(at, Duration::ZERO);
    let machine = Machine::new(at, layout.total_directories);
    machine.fail_power_at(at);
    let fates = workload.run(&machine, &runtime, layout).await;
    machine.restart();
    machine.set_fault(0, None);
    let blank = machine.fork();
    blank.wipe(0);
    check(&machine, &runtime, layout, workload, &fates).await;
    check(&blank, &runtime, layout, workload, &fates).await;
}

#[test]
fn acknowledged_transactions_survive_a_power_cut_while_mirrors_are_ejected_and_added() {
    let workload = Workload { rounds: vec![2, 1, 2], value_len: 20, disk_fails_at: Some(1) };
    let layout = layout(3, 1);
    for at in 1..=operations_of(layout, &workload) + 1 {
        in_virtual_time(cut_during_ejection(at, layout, &workload));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn acknowledged_transactions_survive_power_cuts_of_larger_clusters(
        seed: u64,
        at: prop::sample::Index,
        rounds in proptest::collection::vec(1..6_usize, 1..6),
        value_len in prop_oneof![0..50_usize, 3_000..6_000_usize],
        (total, tolerance) in prop_oneof![Just((1, 0)), Just((2, 1)), Just((4, 2)), Just((6, 2))],
    ) {
        let workload = Workload { rounds, value_len, disk_fails_at: None };
        let layout = layout(total, tolerance);
        let at = 1 + at.index(operations_of(layout, &workload) as usize) as u64;
        in_virtual_time(cut(seed, at, layout, &workload));
    }
}
