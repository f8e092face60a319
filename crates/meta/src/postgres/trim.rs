//! Removes what is no longer needed: ended leases and watches, changes that every watcher has seen, and outcomes that
//! no retry will ask for.
//!
//! Any process does it from time to time, beside its commits. Two processes may run any of the statements at once.

use std::sync::Arc;
use std::time::Duration;

use super::connections::Server;
use crate::store::MetaError;

/// Interval at which a committing process trims.
pub(super) const EVERY: Duration = Duration::from_secs(30);

/// Minimum time for which outcomes are remembered; the maximum is twice as long.
const REMEMBERED_MINUTES: i64 = 15;

/// Maximum number of rows removed by one statement.
const AT_ONCE: i64 = 10_000;

pub(super) async fn run(server: Arc<Server>) {
    if let Err(error) = trim(&server).await {
        tracing::debug!(%error, "what is no longer needed stays in PostgreSQL for now");
    }
}

pub(super) async fn trim(server: &Server) -> Result<(), MetaError> {
    execute(server, "DELETE FROM $S.leases WHERE ends <= clock_timestamp()").await?;
    execute(server, "DELETE FROM $S.watches WHERE ends <= clock_timestamp()").await?;
    // A watch that starts at this moment starts at the revision of `state` or later.
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
