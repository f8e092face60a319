//! A transaction as one transaction of etcd.
//!
//! | part | content |
//! |--|--|
//! | compare | the layout's version; that the metadata was not moved; the expected state of the transaction's own row; its preconditions |
//! | success | its writes, and its own row: *committed* |
//! | failure | the same rows, read at the same revision, which show what did not hold |
//!
//! A request has at most 103 compares and as many operations in either list (etcd's limit is 128), and 1 MiB of keys
//! and values plus the preconditions' keys once more (the limit is 1.5 MiB).
//!
//! Unknown outcomes: an attempt without an answer may commit at any later time, even after another attempt was refused.
//! So a later attempt *voids* it before it reports a *conflict*: it writes the transaction's own row, which every
//! earlier attempt compares, so none of them can commit any more. From then on attempts compare the row's new revision,
//! so that only they can commit.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_runtime::Instant;
use tonic::Code;

use super::EtcdStore;
use super::layout::{COMMITTED, LAYOUT_VERSION, VOID, revision};
use super::members::Failure;
use super::wire::{
    Answer, Compare, KeyValue, KvClient, RequestOp, TxnRequest, TxnResponse, delete_op, exists, found,
    get_op, has_revision, has_value, put_op,
};
use crate::store::{Commit, MetaError, Precondition, Revision, Transaction, TxId, Write};
use crate::{keys, migration};

/// Maximum number of remembered transactions whose outcome was reported as unknown.
const MAX_UNRESOLVED: usize = 1 << 16;

/// Transactions that an attempt of this process may still commit.
#[derive(Debug, Default)]
pub(super) struct UnresolvedTransactions(Mutex<VecDeque<TxId>>);

impl UnresolvedTransactions {
    fn contains(&self, id: TxId) -> bool {
        let ids = self.0.lock();
        !ids.is_empty() && ids.contains(&id)
    }

    fn insert(&self, id: TxId) {
        let mut ids = self.0.lock();
        if !ids.contains(&id) {
            ids.push_back(id);
        }
        if ids.len() > MAX_UNRESOLVED {
            ids.pop_front();
        }
    }

    fn remove(&self, id: TxId) {
        self.0.lock().retain(|unresolved| *unresolved != id);
    }
}

/// A transaction in progress.
struct Submission<'t> {
    tx: &'t Transaction,
    /// Revision of the transaction's own row that allows it to commit; 0 if it must not exist.
    own_row: i64,
    /// Why an earlier attempt, of this or an earlier submission, may still commit.
    unclear: Option<String>,
    deadline: Instant,
    attempts: u32,
}

/// The result of one attempt.
enum AttemptResult {
    Committed(Revision),
    Conflict {
        failed: usize,
    },
    /// Earlier attempts were voided by the row of this revision.
    Voided(i64),
    /// The lease for the transaction's own row has ended.
    NoLease,
}

impl EtcdStore {
    pub(super) async fn submit(&self, tx: &Transaction) -> Result<Commit, MetaError> {
        tx.check_limits()?;
        let before = self.unresolved.contains(tx.id);
        let unclear = before.then(|| "an earlier submission was not answered".to_owned());
        let deadline = self.members.deadline();
        let mut submission = Submission { tx, own_row: 0, unclear, deadline, attempts: 0 };
        let outcome = self.resolve(&mut submission).await;
        match &outcome {
            Err(MetaError::UnknownOutcome(_)) => self.unresolved.insert(tx.id),
            _ if before => self.unresolved.remove(tx.id),
            _ => {}
        }
        outcome
    }

    async fn resolve(&self, submission: &mut Submission<'_>) -> Result<Commit, MetaError> {
        loop {
            match self.attempt(submission).await {
                Ok(AttemptResult::Committed(revision)) => return Ok(Commit::Done(revision)),
                Ok(AttemptResult::Conflict { failed }) if submission.unclear.is_none() => {
                    return Ok(Commit::Conflict { failed });
                }
                Ok(AttemptResult::Conflict { failed }) => match self.void(submission).await {
                    Ok(None) => return Ok(Commit::Conflict { failed }),
                    Ok(Some(revision)) => return Ok(Commit::Done(revision)),
                    Err(failure) => submission.failed(self, failure).await?,
                },
                Ok(AttemptResult::Voided(row)) => submission.own_row = row,
                Ok(AttemptResult::NoLease) => {}
                Err(failure) => submission.failed(self, failure).await?,
            }
        }
    }

    /// Submits the transaction once.
    async fn attempt(&self, submission: &Submission<'_>) -> Result<AttemptResult, Failure> {
        let lease = self.outcome_lease.take(&self.members).await.map_err(not_sent)?;
        match self.txn(self.request(submission, lease)).await {
            Ok(answer) if answer.succeeded => Ok(AttemptResult::Committed(checked(answer.revision())?)),
            Ok(answer) => self.why_not(submission, &answer),
            Err(failure) if failure.is_refused_with(Code::NotFound) => {
                self.outcome_lease.ended(lease).await;
                Ok(AttemptResult::NoLease)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Voids all earlier attempts, or returns the revision with which one of them committed.
    async fn void(&self, submission: &Submission<'_>) -> Result<Option<Revision>, Failure> {
        let lease = self.outcome_lease.take(&self.members).await?;
        let own = self.keys.transaction(submission.tx.id);
        let request = TxnRequest {
            compare: vec![has_revision(own.clone(), submission.own_row)],
            success: vec![put_op(own.clone(), Bytes::from_static(VOID), lease)],
            failure: vec![get_op(own)],
        };
        let answer = self.txn(request).await?;
        match answer.responses.first().and_then(found) {
            Some(row) if !answer.succeeded && row.value == COMMITTED => Ok(Some(checked(row.mod_revision)?)),
            // Voided now, or by an earlier attempt whose answer was lost.
            _ => Ok(None),
        }
    }

    async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let call = |channel, request| async move {
            KvClient::new(channel).max_decoding_message_size(usize::MAX).txn(request).await
        };
        self.members.attempt(request, call).await
    }

    fn request(&self, submission: &Submission<'_>, lease: i64) -> TxnRequest {
        let Submission { tx, own_row, .. } = submission;
        let own = self.keys.transaction(tx.id);
        let (version, moved) = (self.keys.version(), self.keys.row(&keys::migration()));
        let mut compare = vec![has_value(version.clone(), LAYOUT_VERSION.into())];
        compare.push(has_revision(own.clone(), *own_row));
        if !tx.writes_migration() {
            compare.push(has_revision(moved.clone(), 0));
        }
        compare.extend(tx.preconditions.iter().map(|precondition| self.compare(precondition)));
        let mut success: Vec<RequestOp> = tx.writes.iter().map(|write| self.write(write)).collect();
        success.push(put_op(own.clone(), Bytes::from_static(COMMITTED), lease));
        let mut failure = vec![get_op(own), get_op(version), get_op(moved)];
        failure.extend(tx.preconditions.iter().map(|precondition| get_op(self.key_of(precondition))));
        TxnRequest { compare, success, failure }
    }

    fn key_of(&self, precondition: &Precondition) -> Bytes {
        match precondition {
            Precondition::Absent(key) | Precondition::Exists(key) | Precondition::Version(key, _) => {
                self.keys.row(key)
            }
            Precondition::LeaseAlive(lease) => self.keys.lease(*lease),
        }
    }

    fn compare(&self, precondition: &Precondition) -> Compare {
        let key = self.key_of(precondition);
        match precondition {
            Precondition::Absent(_) => has_revision(key, 0),
            Precondition::Exists(_) | Precondition::LeaseAlive(_) => exists(key),
            Precondition::Version(_, version) => has_revision(key, of_etcd(*version)),
        }
    }

    fn write(&self, write: &Write) -> RequestOp {
        match write {
            Write::Put(key, value) => put_op(self.keys.row(key), value.clone(), 0),
            Write::Delete(key) => delete_op(self.keys.row(key)),
        }
    }

    /// Finds the reason of a failure in the rows that the failure part read.
    fn why_not(&self, submission: &Submission<'_>, answer: &TxnResponse) -> Result<AttemptResult, Failure> {
        let mut rows = answer.responses.iter().map(found);
        let (own, version, moved) = (rows.next().flatten(), rows.next().flatten(), rows.next().flatten());
        if let Some(row) = own.filter(|row| row.value == COMMITTED) {
            return Ok(AttemptResult::Committed(checked(row.mod_revision)?));
        }
        if version.is_none_or(|row| row.value != LAYOUT_VERSION) {
            return Err(Failure::Fenced(MetaError::Corrupt(super::open::newer(version))));
        }
        if let Some(row) = moved.filter(|_| !submission.tx.writes_migration()) {
            return Err(Failure::Fenced(MetaError::Moved(migration::describe(&row.value))));
        }
        let mod_revision = |row: Option<&KeyValue>| row.map_or(0, |row| row.mod_revision);
        let own_row = mod_revision(own);
        if own_row != submission.own_row {
            return Ok(AttemptResult::Voided(own_row));
        }
        let holds = |precondition: &Precondition, now: i64| match precondition {
            Precondition::Absent(_) => now == 0,
            Precondition::Exists(_) | Precondition::LeaseAlive(_) => now > 0,
            Precondition::Version(_, version) => now == of_etcd(*version),
        };
        let mut checks = submission.tx.preconditions.iter().zip(rows);
        match checks.position(|(precondition, row)| !holds(precondition, mod_revision(row))) {
            Some(failed) => Ok(AttemptResult::Conflict { failed }),
            None => Err(Failure::Unclear("etcd refuses a transaction whose preconditions hold".to_owned())),
        }
    }
}

impl Submission<'_> {
    /// Records a failed attempt and waits for the next one.
    ///
    /// # Errors
    /// If there is no next attempt.
    async fn failed(&mut self, store: &EtcdStore, failure: Failure) -> Result<(), MetaError> {
        self.attempts += 1;
        let again = match &failure {
            Failure::Unclear(reason) => {
                self.unclear = Some(reason.clone());
                true
            }
            Failure::NotSent(_) => true,
            Failure::Refused(status) => status.code() == Code::Unauthenticated && self.attempts == 1,
            Failure::Fenced(_) => false,
        };
        if again && store.members.pause(self.attempts, self.deadline).await {
            return Ok(());
        }
        Err(match (&self.unclear, failure) {
            (Some(reason), failure) => {
                MetaError::UnknownOutcome(format!("{reason}; then {}", failure.into_error()))
            }
            (None, failure) => failure.into_error(),
        })
    }
}

/// Converts the failure of a step before a transaction: the transaction was not sent.
fn not_sent(failure: Failure) -> Failure {
    match failure {
        Failure::Unclear(reason) => Failure::NotSent(reason),
        failure => failure,
    }
}

/// Converts a version to etcd's type. No row ever has revision -1.
fn of_etcd(version: Revision) -> i64 {
    i64::try_from(version.0).ok().filter(|revision| *revision > 0).unwrap_or(-1)
}

fn checked(of_etcd: i64) -> Result<Revision, Failure> {
    revision(of_etcd).map_err(Failure::Fenced)
}
