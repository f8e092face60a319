//! The tables of a cluster, in its own schema.
//!
//! ```text
//! state     id = 1 | format | revision | trim_below, trim_at      one row, locked by every commit
//! rows      key | value | version
//! outcomes  id | revision                                         what became of recent transactions
//! leases    id | ttl_ms | ends
//! watches   id | prefix | seen | ends                             who watches what, in any process
//! changes   revision, key | value                                 what watchers have yet to see
//! ```
//!
//! Keys are `bytea`, which sorts as unsigned bytes everywhere. `format` is the version of all tables; every commit
//! reads it under the lock, which also fences processes whose program is too old.

use deadpool_postgres::Object;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::connections::Server;
use crate::store::MetaError;

/// Version of the tables.
pub(super) const FORMAT: i32 = 1;

const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS $S;
CREATE TABLE IF NOT EXISTS $S.rows (
    key bytea NOT NULL, value bytea NOT NULL, version bigint NOT NULL, PRIMARY KEY (key$ASC));
CREATE TABLE IF NOT EXISTS $S.outcomes (id bytea PRIMARY KEY, revision bigint NOT NULL);
CREATE INDEX IF NOT EXISTS outcomes_revision ON $S.outcomes (revision ASC);
CREATE TABLE IF NOT EXISTS $S.leases (id bigint PRIMARY KEY, ttl_ms bigint NOT NULL, ends timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS $S.watches (
    id bigint PRIMARY KEY, prefix bytea NOT NULL, seen bigint NOT NULL, ends timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS $S.changes (
    revision bigint NOT NULL, key bytea NOT NULL, value bytea, PRIMARY KEY (revision$ASC, key$ASC));
CREATE TABLE IF NOT EXISTS $S.state (
    id int PRIMARY KEY, format int NOT NULL, revision bigint NOT NULL,
    trim_below bigint NOT NULL, trim_at timestamptz NOT NULL);
INSERT INTO $S.state (id, format, revision, trim_below, trim_at)
    VALUES (1, $FORMAT, 0, 0, now()) ON CONFLICT (id) DO NOTHING";

/// Attempts to create the tables before giving up: two processes that create them at once hinder each other.
const ATTEMPTS: u32 = 5;

/// Creates the cluster's tables, or checks that their format is known.
///
/// # Errors
/// [`MetaError::Corrupt`] for a newer format.
pub(super) async fn make_or_check(server: &Server) -> Result<(), MetaError> {
    for _ in 0..ATTEMPTS {
        if let Some(format) =
            server.with(|connection| async move { format(server, &connection).await }).await?
        {
            return check(format);
        }
        server.with(|connection| async move { make(server, &connection).await }).await?;
    }
    Err(MetaError::Unavailable("PostgreSQL: the tables cannot be made".to_owned()))
}

pub(super) fn check(format: i32) -> Result<(), MetaError> {
    match format == FORMAT {
        true => Ok(()),
        false => Err(MetaError::Corrupt(format!(
            "the metadata in PostgreSQL have format {format}, this program knows {FORMAT}; use a newer striate"
        ))),
    }
}

/// Returns the format of the tables; `None` if they do not exist.
async fn format(server: &Server, connection: &Object) -> Result<Option<i32>, Error> {
    let found = connection.query_opt(&server.sql("SELECT format FROM $S.state WHERE id = 1"), &[]).await;
    match found {
        Ok(row) => Ok(row.map(|row| row.get(0))),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_missing(error: &Error) -> bool {
    let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    error.code().is_some_and(|code| missing.contains(code))
}

async fn make(server: &Server, connection: &Object) -> Result<(), Error> {
    let version: String = connection.query_one("SELECT version()", &[]).await?.get(0);
    // Without it, YugabyteDB would hash the keys and could not scan them in order.
    let order = if version.contains("-YB-") { " ASC" } else { "" };
    let tables = server.sql(TABLES).replace("$ASC", order).replace("$FORMAT", &FORMAT.to_string());
    match connection.batch_execute(&tables).await {
        Err(error) if is_race(&error) => Ok(()),
        result => result,
    }
}

/// Returns true if another process created the same tables at this moment.
fn is_race(error: &Error) -> bool {
    let races = [
        SqlState::UNIQUE_VIOLATION,
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_SCHEMA,
        SqlState::DUPLICATE_OBJECT,
    ];
    error.code().is_some_and(|code| races.contains(code))
}
