//! The cost of the path between processes on this machine, which the lab's network takes over when the two are
//! compared.
//!
//! It is measured before any comparison, on sites whose media take no time: a chunk of one site, and a chunk of each
//! site at once. The extra time per additional site is a chunk's passage over a network card of the lab, where
//! replies to a client pass one after the other. The rest of a request's time is the round trip. Both include
//! processors (shared by all sites and clients), sockets and the site protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::try_join_all;
use serde::Serialize;
use striate_core::{ChunkId, ChunkRange, Generation, StripeId};
use striate_runtime::Runtime;
use striate_site::{Priority, ReadRequest, Site, WriteRequest};

use super::RealityError;

/// Number of requests of each kind; their medians count.
const ROUNDS: usize = 300;
/// Pause between two requests, so that each starts on an idle machine, as most do in the compared runs.
const PAUSE: Duration = Duration::from_millis(4);

/// Cost of the path in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PathCost {
    /// Round trip of a request and its reply, without their bytes, in milliseconds.
    pub round_trip_ms: f64,
    /// Bandwidth of the sender's and of the receiver's card, in bytes per second.
    pub card_bytes_per_s: f64,
}

impl PathCost {
    /// Derives the cost from the times in seconds to read a chunk of `len` bytes from one site, and from each of
    /// `sites` at once. A chunk passes two cards, and several chunks pass the client's card one after the other.
    fn of(len: u32, sites: usize, one_s: f64, all_s: f64) -> Self {
        let chunk_s = (all_s - one_s) / (sites.max(2) - 1) as f64;
        let chunk_s = chunk_s.clamp(f64::MIN_POSITIVE, one_s / 2.0);
        Self { round_trip_ms: 1e3 * (one_s - 2.0 * chunk_s), card_bytes_per_s: f64::from(len) / chunk_s }
    }
}

/// Measures the path to `sites` with chunks of `len` bytes, which stay there.
///
/// # Errors
/// On the first chunk that a site does not accept or return.
pub async fn measure(runtime: &Runtime, sites: &[Arc<dyn Site>], len: u32) -> Result<PathCost, RealityError> {
    for site in sites {
        let (payload, priority) = (Bytes::from(vec![7; len as usize]), Priority::Foreground);
        let request = WriteRequest { chunk: CHUNK, payload, granule_crcs: None, priority };
        site.write(request).await.map_err(|error| failed(site, &error))?;
    }
    let (mut one_s, mut all_s) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let site = round % sites.len();
        one_s.push(time(runtime, &sites[site..=site], len).await?);
        all_s.push(time(runtime, sites, len).await?);
    }
    Ok(PathCost::of(len, sites.len(), median(one_s), median(all_s)))
}

/// A chunk of a writer that has no blocks in the lab.
const CHUNK: ChunkId = ChunkId { stripe: StripeId(0), index: 0, generation: Generation(0) };

fn failed(site: &Arc<dyn Site>, error: &dyn std::fmt::Display) -> RealityError {
    RealityError::Way { site: site.id(), reason: error.to_string() }
}

/// Returns the seconds until the last of `sites` has replied.
async fn time(runtime: &Runtime, sites: &[Arc<dyn Site>], len: u32) -> Result<f64, RealityError> {
    runtime.sleep_until_exactly(runtime.now() + PAUSE).await;
    let began = runtime.now();
    let reads = sites.iter().map(async |site| {
        let ranges = vec![ChunkRange { chunk: CHUNK, offset: 0, len }];
        let mut replies = site.read(ReadRequest { ranges, priority: Priority::Foreground, deadline: None });
        while let Some(reply) = replies.next().await {
            reply.result.map_err(|error| failed(site, &error))?;
        }
        Ok::<_, RealityError>(())
    });
    try_join_all(reads).await?;
    Ok((runtime.now() - began).as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_gives_back_the_times_that_it_was_made_of() {
        // 0.3 ms round trip, 0.1 ms for a chunk at each card.
        let way = PathCost::of(50_000, 8, 0.5e-3, 1.2e-3);
        assert!((way.round_trip_ms - 0.3).abs() < 1e-9, "{way:?}");
        assert!((way.card_bytes_per_s - 500e6).abs() < 1.0, "{way:?}");
        let shared = PathCost::of(50_000, 8, 1e-4, 9e-3);
        assert!(shared.round_trip_ms.abs() < 1e-9 && shared.card_bytes_per_s == 1e9, "{shared:?}");
    }
}
