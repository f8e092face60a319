//! The modelled medium: the time that a disk takes for each request.
//!
//! A request costs a lognormal time at its first chunk, and each chunk costs its bytes over the bandwidth of the
//! worker that serves it. All of it is multiplied in a *slow episode* of the site, and for the few requests that are
//! slow on their own. [`crate::store::ModelledStore`] waits for these times in virtual time, [`DelayedStore`] on a
//! real clock over a real store, so that the lab can be compared with processes whose media are the same.
//!
//! It does not limit how much is served at once. That is the task of the queue in front of the store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_core::{ChunkId, ChunkRange, FencingEpoch};
use striate_runtime::{Instant, Runtime};
use striate_site::{ChunkInfo, ChunkPage, ChunkStore, SiteError, StoreStatus};

use crate::calibration::{Episodes, SiteModel};
use crate::draws::{exponential, lognormal};

/// Draws service times for one site.
#[derive(Debug)]
pub struct Medium {
    model: SiteModel,
    rng: SmallRng,
    episode_start: Instant,
}

impl Medium {
    /// Creates a medium that starts at `now`, with its own randomness.
    pub fn new(model: SiteModel, mut rng: SmallRng, now: Instant) -> Self {
        let episode_start = now + gap(&mut rng, model.episodes);
        Self { model, rng, episode_start }
    }

    /// Draws the time to serve `bytes` from `now` on. `is_first` marks a request's first chunk, which pays for the
    /// request.
    pub fn service_time(&mut self, now: Instant, bytes: u64, is_first: bool) -> Duration {
        let model = self.model;
        let mut seconds = bytes as f64 / model.bandwidth_bytes_per_s;
        if is_first {
            let factor = match model.request_sigma {
                0.0 => 1.0,
                sigma => lognormal(&mut self.rng, sigma),
            };
            seconds += model.request_ms / 1e3 * factor;
            if self.rng.random::<f64>() < model.slow_share {
                seconds *= model.slow_factor;
            }
        }
        if self.is_slow(now) {
            seconds *= model.episodes.factor;
        }
        Duration::from_secs_f64(seconds)
    }

    fn is_slow(&mut self, now: Instant) -> bool {
        let episodes = self.model.episodes;
        let length = Duration::from_secs_f64(episodes.length_s);
        while now >= self.episode_start + length {
            self.episode_start += length + gap(&mut self.rng, episodes);
        }
        now >= self.episode_start
    }
}

/// Draws the time until the next slow episode.
fn gap(rng: &mut SmallRng, episodes: Episodes) -> Duration {
    Duration::from_secs_f64(exponential(rng, episodes.gap_s))
}

/// A real store that is as slow as a modelled medium, for experiments in which many sites share one disk.
///
/// The store's own work counts towards the modelled time, and only the rest is waited for. Nothing bypasses the
/// model: `try_read` always returns `None`.
#[derive(Debug)]
pub struct DelayedStore {
    runtime: Runtime,
    store: Arc<dyn ChunkStore>,
    medium: Mutex<Medium>,
}

impl DelayedStore {
    /// Puts `store` on a medium whose draws depend on `seed`.
    pub fn new(runtime: Runtime, store: Arc<dyn ChunkStore>, model: SiteModel, seed: u64) -> Self {
        let medium = Medium::new(model, SmallRng::seed_from_u64(seed), runtime.now());
        Self { runtime, store, medium: Mutex::new(medium) }
    }

    /// Reads the range, by `try_read` if possible; the time is part of the medium's.
    async fn read_now(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        match self.store.try_read(range) {
            Some(read) => read,
            None => self.store.read(range).await,
        }
    }

    async fn delayed<T>(&self, bytes: u64, is_first: bool, work: impl Future<Output = T>) -> T {
        let began = self.runtime.now();
        let ends = began + self.medium.lock().service_time(began, bytes, is_first);
        let output = work.await;
        self.runtime.sleep_until_exactly(ends).await;
        output
    }
}

#[async_trait]
impl ChunkStore for DelayedStore {
    async fn write(
        &self,
        chunk: ChunkId,
        payload: Bytes,
        granule_crcs: Option<Arc<[u32]>>,
    ) -> Result<(), SiteError> {
        let bytes = payload.len() as u64;
        self.delayed(bytes, true, self.store.write(chunk, payload, granule_crcs)).await
    }

    async fn read(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.delayed(u64::from(range.len), false, self.read_now(range)).await
    }

    async fn read_first(&self, range: ChunkRange) -> Result<Bytes, SiteError> {
        self.delayed(u64::from(range.len), true, self.read_now(range)).await
    }

    fn try_read(&self, _range: ChunkRange) -> Option<Result<Bytes, SiteError>> {
        None
    }

    async fn delete(&self, chunks: &[ChunkId], epoch: FencingEpoch) -> Result<(), SiteError> {
        self.delayed(0, true, self.store.delete(chunks, epoch)).await
    }

    async fn list(&self, from: Option<ChunkId>, limit: usize) -> Result<ChunkPage, SiteError> {
        self.store.list(from, limit).await
    }

    async fn verify(&self, chunk: ChunkId) -> Result<ChunkInfo, SiteError> {
        let info = self.store.verify(chunk).await?;
        Ok(self.delayed(u64::from(info.len), true, std::future::ready(info)).await)
    }

    fn status(&self) -> StoreStatus {
        self.store.status()
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;
    use striate_site::MemoryStore;
    use striate_site::conformance::{self, StoreUnderTest};

    use super::*;
    use crate::calibration::Calibration;

    /// The mean service time follows from the constants: the request's mean, the bytes, the slow requests and the
    /// share of time in episodes.
    #[test]
    fn service_times_have_the_declared_mean() {
        for calibration in Calibration::ALL {
            let model = calibration.site;
            let mean = run_in_virtual_time(5, Duration::ZERO, |runtime| async move {
                let mut medium = Medium::new(model, runtime.rng(), runtime.now());
                let mut total = 0.0;
                for _ in 0..400_000 {
                    total += medium.service_time(runtime.now(), 50_000, true).as_secs_f64();
                    runtime.sleep(Duration::from_millis(20)).await;
                }
                total / 400_000.0
            });
            let one = model.request_ms / 1e3 + 50_000.0 / model.bandwidth_bytes_per_s;
            let slow = 1.0 + model.slow_share * (model.slow_factor - 1.0);
            let Episodes { factor, length_s, gap_s } = model.episodes;
            let expected = one * slow * (1.0 + (factor - 1.0) * length_s / (length_s + gap_s));
            let error = (mean / expected - 1.0).abs();
            // Standard error of the mean: about 0.5% for P, mostly from its episodes.
            assert!(error < 0.02, "{}: {mean} seen, {expected} expected", calibration.name);
        }
    }

    struct Delayed(Arc<DelayedStore>, Arc<MemoryStore>);

    #[async_trait]
    impl StoreUnderTest for Delayed {
        async fn open(&mut self) -> Arc<dyn ChunkStore> {
            self.0.clone()
        }

        async fn damage(&mut self, chunk: ChunkId) {
            assert!(self.1.corrupt(chunk, 0));
        }
    }

    #[test]
    fn a_delayed_store_conforms_and_takes_the_mediums_time() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let model = Calibration::D.site;
            let store = || {
                let memory = Arc::new(MemoryStore::new(1 << 40));
                let delayed = DelayedStore::new(runtime.clone(), memory.clone(), model, 7);
                Box::new(Delayed(Arc::new(delayed), memory)) as Box<dyn StoreUnderTest>
            };
            conformance::run(store).await;

            let began = runtime.now();
            let delayed = DelayedStore::new(runtime.clone(), Arc::new(MemoryStore::new(1 << 40)), model, 7);
            let mut same = Medium::new(model, SmallRng::seed_from_u64(7), began);
            let chunk = ChunkId {
                stripe: striate_core::StripeId::new(1, 1),
                index: 0,
                generation: striate_core::Generation(1),
            };
            let mut expected = Duration::ZERO;
            delayed.write(chunk, Bytes::from(vec![1; 30_000]), None).await.unwrap();
            expected += same.service_time(began, 30_000, true);
            let range = ChunkRange { chunk, offset: 0, len: 20_000 };
            delayed.read_first(range).await.unwrap();
            expected += same.service_time(began + expected, 20_000, true);
            delayed.read(range).await.unwrap();
            expected += same.service_time(began + expected, 20_000, false);
            assert_eq!(runtime.now() - began, expected);
        });
    }
}
