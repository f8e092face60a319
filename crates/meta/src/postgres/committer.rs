//! Gathers waiting transactions and commits them as one transaction of the server.
//!
//! A group takes two round trips: the first locks the row of `state` and reads what the group depends on, the second
//! writes and commits. The lock excludes all other groups, so no statement ever conflicts on PostgreSQL; where a server
//! reports a conflict nevertheless (YugabyteDB, CockroachDB), the group is retried.
//!
//! Unknown outcomes: when the answer to a commit is lost, the group is submitted again on another connection. That
//! waits for the lock, which the first connection holds as long as it may still commit, and then finds the outcome in
//! `outcomes`. So no transaction commits after a conflict was reported for it.

use std::sync::Arc;

use bytes::Bytes;
use deadpool_postgres::Object;
use striate_runtime::Instant;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Statement};

use super::connections::{Failure, Server, describe, discard};
use super::group::{Group, State, keys_of, leases_of};
use super::{schema, trim};
use crate::store::{Commit, LeaseId, MetaError, Revision, Transaction, TxId};

/// Maximum number of transactions in one group.
const GROUP_TRANSACTIONS: usize = 256;

/// Approximate maximum of bytes of keys and values in one group.
const GROUP_BYTES: usize = 4 << 20;

/// Maximum number of waiting requests; beyond it, senders wait.
const WAITING_REQUESTS: usize = 4096;

/// A transaction, and the channel for its reply.
pub(super) struct Request {
    transaction: Transaction,
    reply: oneshot::Sender<Result<Commit, MetaError>>,
}

/// Hands a transaction to the committer and waits for its reply.
pub(super) async fn submit(
    requests: &mpsc::Sender<Request>,
    transaction: Transaction,
) -> Result<Commit, MetaError> {
    transaction.check_limits()?;
    let (reply, replied) = oneshot::channel();
    let ended = |_| MetaError::Unavailable("the metadata store was closed".to_owned());
    requests.send(Request { transaction, reply }).await.map_err(ended)?;
    replied
        .await
        .map_err(|_| MetaError::UnknownOutcome("the committer ended while it committed".to_owned()))?
}

/// Starts the committer, which ends when the last sender is dropped.
pub(super) fn start(server: Arc<Server>) -> mpsc::Sender<Request> {
    let (requests, waiting) = mpsc::channel(WAITING_REQUESTS);
    server.runtime.clone().spawn(async move { Committer::new(server, waiting).run().await });
    requests
}

struct Committer {
    server: Arc<Server>,
    waiting: mpsc::Receiver<Request>,
    /// Time of the next trim.
    trim: Instant,
}

impl Committer {
    fn new(server: Arc<Server>, waiting: mpsc::Receiver<Request>) -> Self {
        let trim = server.runtime.now() + trim::EVERY;
        Self { server, waiting, trim }
    }

    async fn run(mut self) {
        while let Some(first) = self.waiting.recv().await {
            let group = self.gather(first);
            let (transactions, replies): (Vec<_>, Vec<_>) =
                group.into_iter().map(|request| (request.transaction, request.reply)).unzip();
            let answers = self.commit(&transactions).await;
            for (reply, answer) in replies.into_iter().zip(answers) {
                // The caller may have gone.
                let _ = reply.send(answer);
            }
            if self.server.runtime.now() >= self.trim {
                self.trim = self.server.runtime.now() + trim::EVERY;
                self.server.runtime.spawn(trim::run(self.server.clone()));
            }
        }
    }

    /// Returns `first` and the transactions that wait now, up to a group's limits.
    fn gather(&mut self, first: Request) -> Vec<Request> {
        let size = |request: &Request| request.transaction.size();
        let (mut bytes, mut group) = (size(&first), vec![first]);
        while group.len() < GROUP_TRANSACTIONS && bytes < GROUP_BYTES {
            let Ok(request) = self.waiting.try_recv() else { break };
            bytes += size(&request);
            group.push(request);
        }
        group
    }

    /// Commits a group, and returns the reply to each transaction.
    async fn commit(&self, transactions: &[Transaction]) -> Vec<Result<Commit, MetaError>> {
        let deadline = self.server.deadline();
        let (mut attempts, mut unclear) = (0, None);
        loop {
            let failure = match self.attempt(transactions).await {
                Ok(answers) => return answers,
                Err(failure) => failure,
            };
            attempts += 1;
            let again = match &failure {
                Failure::Unclear(reason) => {
                    unclear = Some(reason.clone());
                    true
                }
                Failure::Nothing(_) => true,
                Failure::Refused(_) => false,
            };
            if again && self.server.pause(attempts, deadline).await {
                continue;
            }
            let error = match unclear {
                Some(reason) => MetaError::UnknownOutcome(format!("{reason}; then {}", failure.into_error())),
                None => failure.into_error(),
            };
            return transactions.iter().map(|_| Err(error.clone())).collect();
        }
    }

    /// Tries to commit a group once.
    async fn attempt(&self, transactions: &[Transaction]) -> Result<Vec<Result<Commit, MetaError>>, Failure> {
        let connection = self.server.connection().await?;
        match self.attempt_on(&connection, transactions).await {
            Ok(answers) => Ok(answers),
            Err(failure) => {
                discard(connection);
                Err(failure)
            }
        }
    }

    async fn attempt_on(
        &self,
        connection: &Object,
        transactions: &[Transaction],
    ) -> Result<Vec<Result<Commit, MetaError>>, Failure> {
        let patience = self.server.timeout;
        let elapsed = || format!("no answer within {patience:?}");
        let begun = self.server.runtime.timeout(patience, self.begin(connection, transactions)).await;
        let (state, format) = match begun {
            Ok(Ok(state)) => state,
            Ok(Err(error)) => return Err(Failure::harmless(error)),
            Err(_) => return Err(Failure::Nothing(elapsed())),
        };
        schema::check(format).map_err(Failure::Refused)?;
        let (group, answers) = Group::draft(state, transactions);
        match self.server.runtime.timeout(patience, self.finish(connection, &group)).await {
            Ok(Ok(())) => Ok(answers),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Unclear(elapsed())),
        }
    }

    /// Starts the server's transaction, locks the state, and reads what the group depends on.
    async fn begin(&self, connection: &Object, transactions: &[Transaction]) -> Result<(State, i32), Error> {
        let sql = |sql: &str| self.server.sql(sql);
        let lock = sql("SELECT revision, format FROM $S.state WHERE id = 1 FOR UPDATE");
        let rows =
            sql("SELECT key, version, CASE WHEN key = $2 THEN value END FROM $S.rows WHERE key = ANY($1)");
        let outcomes = sql("SELECT id, revision FROM $S.outcomes WHERE id = ANY($1)");
        let watched = sql("SELECT prefix FROM $S.watches");
        let (lock, rows) =
            tokio::try_join!(connection.prepare_cached(&lock), connection.prepare_cached(&rows))?;
        let (outcomes, watched) =
            tokio::try_join!(connection.prepare_cached(&outcomes), connection.prepare_cached(&watched))?;

        let keys = keys_of(transactions);
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mark = crate::keys::migration();
        let ids: Vec<Vec<u8>> = transactions.iter().map(|tx| tx.id.0.to_be_bytes().to_vec()).collect();
        let (mark, none): (&[u8], [&(dyn ToSql + Sync); 0]) = (&mark, []);
        // The statements are sent together and executed in order: each statement after the lock sees everything
        // committed before the lock was granted.
        let (_, locked, rows, outcomes, watched) = tokio::try_join!(
            connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            connection.query_one(&lock, &none),
            async { connection.query(&rows, &[&keys, &mark]).await },
            async { connection.query(&outcomes, &[&ids]).await },
            connection.query(&watched, &none),
        )?;
        let mut state = State { revision: of_server(locked.get(0)), ..State::default() };
        for row in &rows {
            let key = Bytes::copy_from_slice(row.get(0));
            if let Some(mark) = row.get::<_, Option<&[u8]>>(2) {
                state.mark = Some(Bytes::copy_from_slice(mark));
            }
            state.versions.insert(key, of_server(row.get(1)));
        }
        for row in &outcomes {
            let id = row.get::<_, &[u8]>(0).try_into().map(u128::from_be_bytes).unwrap_or_default();
            state.outcomes.insert(TxId(id), of_server(row.get(1)));
        }
        state.watched = watched.iter().map(|row| Bytes::copy_from_slice(row.get(0))).collect();
        self.find_leases(connection, transactions, &mut state).await?;
        Ok((state, locked.get(1)))
    }

    /// Finds which of the leases that the group depends on are alive; they stay alive until it has committed.
    async fn find_leases(
        &self,
        connection: &Object,
        transactions: &[Transaction],
        state: &mut State,
    ) -> Result<(), Error> {
        let ids: Vec<i64> =
            leases_of(transactions).into_iter().filter_map(|lease| lease.0.try_into().ok()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let remove =
            &self.server.sql("DELETE FROM $S.leases WHERE id = ANY($1) AND ends <= clock_timestamp()");
        let find = self.server.sql("SELECT id FROM $S.leases WHERE id = ANY($1) ORDER BY id FOR UPDATE");
        let (remove, find) =
            tokio::try_join!(connection.prepare_cached(remove), connection.prepare_cached(&find))?;
        let parameters: [&(dyn ToSql + Sync); 1] = [&ids];
        let (_, alive) =
            tokio::try_join!(connection.execute(&remove, &parameters), connection.query(&find, &parameters))?;
        state.leases = alive.iter().map(|row| LeaseId(row.get::<_, i64>(0).cast_unsigned())).collect();
        Ok(())
    }

    /// Writes the group's changes, and commits.
    async fn finish(&self, connection: &Object, group: &Group) -> Result<(), Failure> {
        let statements = Statements::prepare(&self.server, connection).await.map_err(Failure::harmless)?;
        let columns = Columns::of(group);
        // COMMIT is sent after the writes without waiting for them; if one of them fails, it rolls back.
        let commit = connection.batch_execute("COMMIT");
        let (written, committed) =
            futures::future::join(columns.write(connection, &statements), commit).await;
        match (written, committed) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(error), _) if error.as_db_error().is_some() => Err(Failure::harmless(error)),
            (_, Err(error)) if is_aborted(&error) => Err(Failure::harmless(error)),
            (Err(error), _) | (_, Err(error)) => Err(Failure::Unclear(describe(&error))),
        }
    }
}

/// The writes of a group, column by column, as the statements take them.
struct Columns<'g> {
    keys: Vec<&'g [u8]>,
    values: Vec<&'g [u8]>,
    versions: Vec<i64>,
    removed: Vec<&'g [u8]>,
    ids: Vec<Vec<u8>>,
    revisions: Vec<i64>,
    changed: Vec<i64>,
    changed_keys: Vec<&'g [u8]>,
    changed_values: Vec<Option<&'g [u8]>>,
    last: i64,
}

impl<'g> Columns<'g> {
    fn of(group: &'g Group) -> Self {
        let put: Vec<_> =
            group.rows.iter().filter_map(|(key, row)| row.as_ref().map(|row| (&key[..], row))).collect();
        let removed = group.rows.iter().filter(|(_, row)| row.is_none());
        Self {
            keys: put.iter().map(|(key, _)| *key).collect(),
            values: put.iter().map(|(_, (value, _))| &value[..]).collect(),
            versions: put.iter().map(|(_, (_, version))| of_ours(*version)).collect(),
            removed: removed.map(|(key, _)| &key[..]).collect(),
            ids: group.outcomes.iter().map(|(id, _)| id.0.to_be_bytes().to_vec()).collect(),
            revisions: group.outcomes.iter().map(|(_, revision)| of_ours(*revision)).collect(),
            changed: group.changes.iter().map(|(revision, ..)| of_ours(*revision)).collect(),
            changed_keys: group.changes.iter().map(|(_, key, _)| &key[..]).collect(),
            changed_values: group.changes.iter().map(|(_, _, value)| value.as_deref()).collect(),
            last: of_ours(group.last),
        }
    }

    async fn write(&self, connection: &Object, statements: &Statements) -> Result<(), Error> {
        let Self { keys, values, versions, removed, ids, revisions, changed, .. } = self;
        let (changed_keys, changed_values) = (&self.changed_keys, &self.changed_values);
        tokio::try_join!(
            write(connection, keys.len(), &statements.put, [keys, values, versions]),
            write(connection, removed.len(), &statements.remove, [removed]),
            write(connection, ids.len(), &statements.outcomes, [ids, revisions]),
            write(connection, changed.len(), &statements.changes, [changed, changed_keys, changed_values]),
            write(connection, ids.len(), &statements.revision, [&self.last]),
        )?;
        Ok(())
    }
}

/// Executes a statement for `rows` rows, unless there are none.
async fn write<const N: usize>(
    connection: &Object,
    rows: usize,
    statement: &Statement,
    parameters: [&(dyn ToSql + Sync); N],
) -> Result<(), Error> {
    if rows > 0 {
        connection.execute(statement, &parameters).await?;
    }
    Ok(())
}

/// Returns true if the server reports that a commit did not happen. Any other error leaves the outcome open, including
/// a shutdown and CockroachDB's "result is ambiguous".
fn is_aborted(error: &Error) -> bool {
    let aborted = ["40001", "40P01", "40000", "25P02"];
    error.code().is_some_and(|code| aborted.contains(&code.code()))
}

struct Statements {
    put: Statement,
    remove: Statement,
    outcomes: Statement,
    changes: Statement,
    revision: Statement,
}

impl Statements {
    async fn prepare(server: &Server, connection: &Object) -> Result<Self, Error> {
        let put = server.sql(
            "INSERT INTO $S.rows (key, value, version) \
             SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) \
             ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version",
        );
        let remove = server.sql("DELETE FROM $S.rows WHERE key = ANY($1)");
        let outcomes = server
            .sql("INSERT INTO $S.outcomes (id, revision) SELECT * FROM unnest($1::bytea[], $2::bigint[])");
        let changes = server.sql(
            "INSERT INTO $S.changes (revision, key, value) \
             SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[])",
        );
        let revision = server.sql("UPDATE $S.state SET revision = $1 WHERE id = 1");
        let (put, remove, outcomes, changes, revision) = tokio::try_join!(
            connection.prepare_cached(&put),
            connection.prepare_cached(&remove),
            connection.prepare_cached(&outcomes),
            connection.prepare_cached(&changes),
            connection.prepare_cached(&revision),
        )?;
        Ok(Self { put, remove, outcomes, changes, revision })
    }
}

/// Converts a revision from the server, which stores it as a signed number. Revisions start at one.
fn of_server(revision: i64) -> Revision {
    Revision(revision.cast_unsigned())
}

fn of_ours(revision: Revision) -> i64 {
    revision.0.cast_signed()
}
