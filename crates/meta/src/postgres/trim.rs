//! Forgetting what is no longer needed: ended leases and watches, changes that every watcher has seen, and
//! outcomes that nobody will ask for any more.
//!
//! Any process does it, now and then, beside its commits. Every statement is harmless when it is run by two
//! at once.

use std::sync::Arc;
use std::time::Duration;

use super::connections::Server;
use crate::store::MetaError;

/// How often a process that commits trims.
pub(super) const EVERY: Duration = Duration::from_secs(30);

/// Outcomes are remembered for so long at least, and for twice as long at most.
const REMEMBERED_MINUTES: i64 = 15;

/// Rows removed by one statement.
const AT_ONCE: i64 = 10_000;

pub(super) async fn run(server: Arc<Server>) {
    if let Err(error) = trim(&server).await {
        tracing::debug!(%error, "what is no longer needed stays in PostgreSQL for now");
    }
}

pub(super) async fn trim(server: &Server) -> Result<(), MetaError> {
    execute(server, "DELETE FROM $S.leases WHERE ends <= clock_timestamp()").await?;
    execute(server, "DELETE FROM $S.watches WHERE ends <= clock_timestamp()").await?;
    // A watch that begins at this moment begins at the revision of `state` or later.
    let seen = "DELETE FROM $S.changes WHERE revision <= COALESCE(\
                (SELECT min(seen) FROM $S.watches), (SELECT revision FROM $S.state WHERE id = 1))";
    execute(server, seen).await?;
    let outcomes = format!(
        "DELETE FROM $S.outcomes WHERE revision <= \
         LEAST((SELECT trim_below FROM $S.state WHERE id = 1), \
               (SELECT min(revision) FROM $S.outcomes) + {AT_ONCE})"
    );
    while execute(server, &outcomes).await? > 0 {}
    let turn = format!(
        "UPDATE $S.state SET trim_below = revision, trim_at = clock_timestamp() \
         WHERE id = 1 AND trim_at < clock_timestamp() - {REMEMBERED_MINUTES} * interval '1 minute'"
    );
    execute(server, &turn).await?;
    Ok(())
}

async fn execute(server: &Server, sql: &str) -> Result<u64, MetaError> {
    let sql = &server.sql(sql);
    server.with(|connection| async move { connection.execute(sql, &[]).await }).await
}
