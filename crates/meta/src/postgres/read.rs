//! Gets and scans: single statements, each of which sees one committed state.

use std::collections::HashMap;

use bytes::Bytes;

use super::connections::Server;
use crate::store::{MetaError, Revision, Row, ScanRange};

/// Converts a row of `(key, value, version)`.
fn row_of(row: &tokio_postgres::Row) -> Row {
    let (key, value): (&[u8], &[u8]) = (row.get(0), row.get(1));
    let version = Revision(row.get::<_, i64>(2).cast_unsigned());
    Row { key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value), version }
}

pub(super) async fn row(server: &Server, key: &[u8]) -> Result<Option<Row>, MetaError> {
    let sql = &server.sql("SELECT key, value, version FROM $S.rows WHERE key = $1");
    let found = server
        .with(|connection| async move {
            let statement = connection.prepare_cached(sql).await?;
            connection.query_opt(&statement, &[&key]).await
        })
        .await?;
    Ok(found.as_ref().map(row_of))
}

pub(super) async fn rows(server: &Server, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let sql = &server.sql("SELECT key, value, version FROM $S.rows WHERE key = ANY($1)");
    let key_bytes: &Vec<&[u8]> = &keys.iter().map(|key| &key[..]).collect();
    let found = server
        .with(|connection| async move {
            let statement = connection.prepare_cached(sql).await?;
            connection.query(&statement, &[key_bytes]).await
        })
        .await?;
    let found: HashMap<Bytes, Row> = found.iter().map(row_of).map(|row| (row.key.clone(), row)).collect();
    Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
}

pub(super) async fn scan(
    server: &Server,
    range: &ScanRange,
    limit: usize,
    back: bool,
) -> Result<Vec<Row>, MetaError> {
    let below = if range.end.is_empty() { "" } else { "AND key < $3 " };
    let order = if back { "DESC" } else { "ASC" };
    let sql = &server.sql(&format!(
        "SELECT key, value, version FROM $S.rows WHERE key >= $1 {below}ORDER BY key {order} LIMIT $2"
    ));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let (start, end) = (&range.start[..], &range.end[..]);
    let found = server
        .with(|connection| async move {
            let statement = connection.prepare_cached(sql).await?;
            match range.end.is_empty() {
                true => connection.query(&statement, &[&start, &limit]).await,
                false => connection.query(&statement, &[&start, &limit, &end]).await,
            }
        })
        .await?;
    Ok(found.iter().map(row_of).collect())
}
