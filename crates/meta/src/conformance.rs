//! The conformance suite of metadata engines: functions that run against an engine.
//!
//! [`run_all`] takes a factory of empty stores and panics with the name of the rule that an engine breaks.
//! [`run_shared`] does the same for engines that several processes share. [`model`] compares an engine with an ordered
//! map over any sequence of operations, which property tests draw. The same rules hold for the memory engine, the
//! embedded engine and engines in other processes (design.md §7).
//!
//! What it does not do: each engine tests its own durability and faults, because these tests need its disks.

mod concurrency;
mod leases;
pub mod model;
mod reads;
mod shared;
mod transactions;
mod watches;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use striate_runtime::Runtime;

use crate::store::{Commit, MetaStore, Revision, Row, Transaction, TxId};

/// A store under test.
pub type Store = Arc<dyn MetaStore>;

/// Makes an empty store.
pub type Factory<'a> = &'a dyn Fn() -> Pin<Box<dyn Future<Output = Store> + Send>>;

/// Runs the whole suite; every rule gets a store of its own.
///
/// # Panics
/// If the engine breaks a rule.
pub async fn run_all(runtime: &Runtime, factory: Factory<'_>) {
    transactions::all_preconditions_hold_or_nothing_is_written(factory().await).await;
    transactions::the_first_failed_precondition_is_named(factory().await).await;
    transactions::versions_are_revisions_and_only_grow(factory().await).await;
    transactions::a_row_that_was_removed_and_came_back_has_another_version(factory().await).await;
    transactions::the_same_id_is_applied_once(factory().await).await;
    transactions::limits_are_refused_and_their_bounds_accepted(factory().await).await;
    reads::acknowledged_writes_are_read(factory().await).await;
    reads::scans_go_both_ways_and_stop_at_the_limit(factory().await).await;
    reads::any_bytes_are_keys_and_values(factory().await).await;
    reads::inverted_and_empty_ranges_hold_nothing(factory().await).await;
    reads::a_long_scan_is_in_order_and_complete(factory().await).await;
    transactions::the_mark_of_a_migration_refuses_all_others(factory().await).await;
    concurrency::increments_lose_nothing(runtime, factory().await).await;
    concurrency::a_scan_and_a_get_many_see_one_state(runtime, factory().await).await;
    concurrency::of_many_that_create_a_row_one_wins(runtime, factory().await).await;
    concurrency::write_skew_is_prevented(runtime, factory().await).await;
    leases::a_lease_ends_unless_it_is_kept_alive(runtime, factory().await).await;
    leases::a_lease_guards_a_transaction(runtime, factory().await).await;
    leases::lease_ids_are_never_the_same(factory().await).await;
    watches::events_come_in_commit_order(factory().await).await;
    watches::a_watcher_that_lags_misses_nothing_without_being_told(factory().await).await;
}

/// Makes two handles of one empty store, as two processes would hold them.
pub type PairFactory<'a> = &'a dyn Fn() -> Pin<Box<dyn Future<Output = (Store, Store)> + Send>>;

/// Runs the rules of an engine that several processes share.
///
/// # Panics
/// If the engine breaks a rule.
pub async fn run_shared(runtime: &Runtime, factory: PairFactory<'_>) {
    shared::what_one_commits_the_other_reads_at_once(factory().await).await;
    shared::one_id_is_applied_once_by_both(factory().await).await;
    shared::increments_of_both_lose_nothing(runtime, factory().await).await;
    shared::of_both_that_create_rows_one_wins_each(runtime, factory().await).await;
    shared::leases_are_one_for_both(factory().await).await;
    shared::a_watch_sees_the_commits_of_both_in_order(runtime, factory().await).await;
}

/// Returns a transaction id that no other transaction of this process has.
pub fn fresh_id() -> TxId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    TxId(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | 0x7e57 << 96)
}

/// Returns an empty transaction with a [`fresh_id`].
fn transaction() -> Transaction {
    Transaction::new(fresh_id())
}

/// Sets one row without preconditions.
async fn put(store: &Store, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Revision {
    let mut tx = transaction();
    tx.put(key, value);
    done(store.commit(tx).await.expect("an unconditional put commits"))
}

/// Removes one row without preconditions.
async fn delete(store: &Store, key: impl Into<Bytes>) -> Revision {
    let mut tx = transaction();
    tx.delete(key);
    done(store.commit(tx).await.expect("an unconditional delete commits"))
}

/// Returns the revision of a commit that must not conflict.
fn done(commit: Commit) -> Revision {
    match commit {
        Commit::Done(revision) => revision,
        Commit::Conflict { failed } => panic!("precondition {failed} failed where it holds"),
    }
}

async fn get(store: &Store, key: &[u8]) -> Option<Row> {
    store.get(key).await.expect("a get is answered")
}

fn keys(rows: &[Row]) -> Vec<&[u8]> {
    rows.iter().map(|row| &row.key[..]).collect()
}
