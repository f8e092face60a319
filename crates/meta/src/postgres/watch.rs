//! Watches: changes of watched keys are logged, and watchers read the log.
//!
//! A watch is a row of `watches`, inserted under the lock of `state`, so every later commit sees it and logs the
//! changes of its keys. The watcher polls the log for revisions that it has not seen: commits become visible in the
//! order of their revisions, so none can appear behind it. In the same statement, each poll checks that the watch is
//! still registered. A process that was stopped until its watch expired has missed changes, and the watch ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deadpool_postgres::Object;
use tokio::sync::mpsc;
use tokio_postgres::Error;

use super::connections::Server;
use crate::store::{MetaError, Revision, Watch, WatchEvent, prefix_end};
use crate::watch::WATCH_BUFFER_EVENTS;

/// Poll interval of the log. Polling works on every server that speaks the protocol.
const POLL: Duration = Duration::from_millis(100);

/// Seconds after which a watch that was not renewed ends.
const TTL_S: i64 = 60;

/// Number of polls between renewals of a watch.
const RENEW_POLLS: u32 = 100;

/// Maximum number of changes per read; more than one transaction can make.
const PAGE_CHANGES: i64 = WATCH_BUFFER_EVENTS as i64;

pub(super) async fn start(server: &Arc<Server>, prefix: &[u8]) -> Result<Watch, MetaError> {
    let id = (server.runtime.random_u64() >> 1).cast_signed();
    let seen =
        server.with(|connection| async move { register(server, &connection, id, prefix).await }).await?;
    let (events, watch) = mpsc::channel(WATCH_BUFFER_EVENTS);
    let prefix = Bytes::copy_from_slice(prefix);
    let follow = ActiveWatch { server: server.clone(), id, start: prefix, seen, events };
    server.runtime.spawn(follow.run());
    Ok(watch)
}

/// Registers a watch and returns the revision after which it starts.
async fn register(server: &Server, connection: &Object, id: i64, prefix: &[u8]) -> Result<i64, Error> {
    connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let lock = server.sql("SELECT revision FROM $S.state WHERE id = 1 FOR UPDATE");
    let seen: i64 = connection.query_one(&lock, &[]).await?.get(0);
    let insert = server.sql(&format!(
        "INSERT INTO $S.watches (id, prefix, seen, ends) \
         VALUES ($1, $2, $3, clock_timestamp() + {TTL_S} * interval '1 second') \
         ON CONFLICT (id) DO UPDATE SET seen = excluded.seen"
    ));
    connection.execute(&insert, &[&id, &prefix, &seen]).await?;
    connection.batch_execute("COMMIT").await?;
    Ok(seen)
}

/// A watch in progress.
struct ActiveWatch {
    server: Arc<Server>,
    id: i64,
    start: Bytes,
    /// Last revision that was delivered or skipped.
    seen: i64,
    events: mpsc::Sender<WatchEvent>,
}

/// The watch has ended for good.
struct WatchEnded;

impl ActiveWatch {
    async fn run(mut self) {
        let watcher = self.events.clone();
        tokio::select! {
            WatchEnded = self.follow() => {}
            () = watcher.closed() => {}
        }
        let (server, id) = (&self.server, self.id);
        let sql = &server.sql("DELETE FROM $S.watches WHERE id = $1");
        let removed = server.with(|connection| async move { connection.execute(sql, &[&id]).await }).await;
        if let Err(error) = removed {
            tracing::debug!(%error, "a watch that has ended stays in PostgreSQL until it expires");
        }
    }

    async fn follow(&mut self) -> WatchEnded {
        let mut polls = 0_u32;
        loop {
            match self.poll().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(WatchEnded) => return WatchEnded,
            }
            polls += 1;
            if polls.is_multiple_of(RENEW_POLLS) && self.renew().await.is_err() {
                return WatchEnded;
            }
            self.server.runtime.sleep(POLL).await;
        }
    }

    /// Delivers new changes. Returns true if there may be more.
    async fn poll(&mut self) -> Result<bool, WatchEnded> {
        let end = prefix_end(&self.start);
        let below = if end.is_empty() { "" } else { "AND c.key < $5 " };
        let sql = &self.server.sql(&format!(
            "SELECT c.revision, c.key, c.value FROM $S.watches w \
             LEFT JOIN $S.changes c ON c.revision > $2 AND c.key >= $3 {below}\
             WHERE w.id = $1 ORDER BY c.revision, c.key LIMIT $4"
        ));
        let (id, seen, start, end) = (self.id, self.seen, &self.start[..], &end[..]);
        let found = self.server.with(|connection| async move {
            let statement = connection.prepare_cached(sql).await?;
            match end.is_empty() {
                true => connection.query(&statement, &[&id, &seen, &start, &PAGE_CHANGES]).await,
                false => connection.query(&statement, &[&id, &seen, &start, &PAGE_CHANGES, &end]).await,
            }
        });
        let Ok(rows) = found.await else { return Ok(false) };
        if rows.is_empty() {
            return Err(WatchEnded);
        }
        // A full page may end within a revision, the rest of which must not be skipped.
        let full = rows.len() as i64 == PAGE_CHANGES;
        let last: Option<i64> = rows.last().and_then(|row| row.get(0));
        for row in &rows {
            // The watch exists, and nothing has changed.
            let Some(revision) = row.get::<_, Option<i64>>(0) else { return Ok(false) };
            if full && Some(revision) == last {
                break;
            }
            let key = Bytes::copy_from_slice(row.get(1));
            let value = row.get::<_, Option<&[u8]>>(2).map(Bytes::copy_from_slice);
            let event = WatchEvent { key, value, revision: Revision(revision.cast_unsigned()) };
            // The log keeps later changes until there is room, as long as the watch is renewed.
            self.events.send(event).await.map_err(|_| WatchEnded)?;
            self.seen = revision;
        }
        Ok(full)
    }

    async fn renew(&self) -> Result<(), WatchEnded> {
        let sql = &self.server.sql(&format!(
            "UPDATE $S.watches SET seen = $2, ends = clock_timestamp() + {TTL_S} * interval '1 second' \
             WHERE id = $1"
        ));
        let (id, seen) = (self.id, self.seen);
        match self.server.with(|connection| async move { connection.execute(sql, &[&id, &seen]).await }).await
        {
            Ok(0) => Err(WatchEnded),
            // The server is unavailable; the next poll shows whether the watch survived.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
