//! Leases, on the server's clock.
//!
//! All processes use the server's clock; their own do not matter. If it steps, leases end early or late, which is safe
//! either way: a lease is always checked in the transaction that depends on it. An ended lease stays ended, whatever
//! the clock does: a process that finds it ended removes its row before it reports this.

use std::time::Duration;

use super::connections::Server;
use crate::store::{Lease, LeaseId, MetaError};

/// Removes a lease that has ended; `$1` is its id.
const REMOVE_ENDED: &str = "DELETE FROM $S.leases WHERE id = $1 AND ends <= clock_timestamp()";

pub(super) async fn grant(server: &Server, ttl: Duration) -> Result<Lease, MetaError> {
    let sql = &server.sql(
        "INSERT INTO $S.leases (id, ttl_ms, ends) \
         VALUES ($1, $2, clock_timestamp() + $3::float8 * interval '1 millisecond')",
    );
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    let granted = server
        .with(|connection| async move {
            // Each attempt draws a new id: an insert whose answer was lost leaves a lease that expires.
            let id = (server.runtime.random_u64() >> 1).max(1);
            let statement = connection.prepare_cached(sql).await?;
            connection.execute(&statement, &[&id.cast_signed(), &ttl_ms, &(ttl_ms as f64)]).await?;
            Ok(id)
        })
        .await?;
    Ok(Lease { id: LeaseId(granted), ttl })
}

pub(super) async fn keep_alive(server: &Server, lease: LeaseId) -> Result<bool, MetaError> {
    let Ok(id) = i64::try_from(lease.0) else { return Ok(false) };
    let remove = &server.sql(REMOVE_ENDED);
    let renew = &server.sql(
        "UPDATE $S.leases SET ends = clock_timestamp() + ttl_ms::float8 * interval '1 millisecond' \
         WHERE id = $1",
    );
    let renewed = server
        .with(|connection| async move {
            let remove = connection.prepare_cached(remove).await?;
            let renew = connection.prepare_cached(renew).await?;
            connection.execute(&remove, &[&id]).await?;
            connection.execute(&renew, &[&id]).await
        })
        .await?;
    Ok(renewed > 0)
}

pub(super) async fn is_alive(server: &Server, lease: LeaseId) -> Result<bool, MetaError> {
    let Ok(id) = i64::try_from(lease.0) else { return Ok(false) };
    let remove = &server.sql(REMOVE_ENDED);
    let look = &server.sql("SELECT id FROM $S.leases WHERE id = $1");
    let found = server
        .with(|connection| async move {
            let remove = connection.prepare_cached(remove).await?;
            let look = connection.prepare_cached(look).await?;
            connection.execute(&remove, &[&id]).await?;
            connection.query_opt(&look, &[&id]).await
        })
        .await?;
    Ok(found.is_some())
}

pub(super) async fn revoke(server: &Server, lease: LeaseId) -> Result<(), MetaError> {
    let Ok(id) = i64::try_from(lease.0) else { return Ok(()) };
    let sql = &server.sql("DELETE FROM $S.leases WHERE id = $1");
    server
        .with(|connection| async move {
            let statement = connection.prepare_cached(sql).await?;
            connection.execute(&statement, &[&id]).await
        })
        .await?;
    Ok(())
}
