//! Updates of wide stripes' data chunks on real sites in racks (ECWide, FAST'21, §4.3 and experiment B.2): a client
//! reads a range of a chunk and writes other bytes, and the local and global parities follow.
//!
//! | method | bytes across racks, in ranges |
//! |--|--|
//! | the client reads the parities' ranges too, and writes all | 2, and 2 for each parity |
//! | each parity is sent the difference | 2, and 1 for each parity |
//! | the first global parity is sent it, and the others follow in their rack | 2, 1, and 1 for the local parity |
//! | the local parity is in the rack of its group that is updated most | none for it in that rack |
//!
//! The local parity costs nothing if it is in the rack of the updated chunk. Sites make the new chunks: new
//! generations, computed from the old ones and from *windows* that are sent, as in the store's own updates of wide
//! stripes' members. A site stores only a chunk with the checksum that follows from the update, whatever the method.
//!
//! Racks are assigned by the geometry; each stripe begins in a different rack. The client has its own rack. A local
//! parity that moves swaps places with the least updated data chunk of the target rack.
//!
//! This module neither starts processes nor limits what links carry. It does not move chunks either: they are written
//! where they would be after the moves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use striate_codec::Code;
use striate_core::{ChunkId, FencingEpoch, Generation, StripeId};
use striate_plan::WideGeometry;
use striate_runtime::Runtime;
use striate_site::{DeleteRequest, Site, SiteError};

use crate::contents::WRITER;
use crate::data_updates::{DataChunk, UpdateMethod};
use crate::rack_repair::{RackRepairError, write_chunks};

mod step;
mod workload;

use step::Step;
use workload::places;
pub use workload::{Change, Load, WAYS, changes};

/// Cost of an update.
#[derive(Clone, Copy, Debug)]
pub struct UpdateCost {
    /// Time from the client's read to the last site's reply.
    pub took: Duration,
    /// Chunk bytes that have crossed racks.
    pub crossed: u64,
}

/// File of a chunk.
#[derive(Clone, Copy, Debug)]
struct File {
    chunk: ChunkId,
    /// Index of the site, from 0.
    site: usize,
    crc32c: u32,
}

/// Stripes on sites, placed for one method.
pub struct RackUpdate {
    runtime: Runtime,
    code: Code,
    geometry: WideGeometry,
    sites: Vec<Arc<dyn Site>>,
    load: Load,
    method: UpdateMethod,
    /// Site of each chunk of each stripe.
    places: Vec<Vec<usize>>,
    files: HashMap<(usize, usize), File>,
    rng: SmallRng,
}

/// Returns the number of racks of a stripe, and of sites in each.
///
/// # Errors
/// [`RackRepairError::Unfit`] if the code is not wide.
pub fn shape(code: &Code) -> Result<(usize, usize), RackRepairError> {
    let geometry = geometry(code)?;
    Ok((geometry.z(), geometry.c()))
}

fn geometry(code: &Code) -> Result<WideGeometry, RackRepairError> {
    WideGeometry::new(code.spec()).map_err(|error| RackRepairError::Unfit(error.to_string()))
}

impl RackUpdate {
    /// Writes the chunks that `changes` need. The first c sites are those of rack 0.
    ///
    /// # Errors
    /// If the code is not wide, there are too few sites, or a site does not accept a chunk.
    pub async fn prepare(
        runtime: &Runtime,
        code: &Code,
        sites: Vec<Arc<dyn Site>>,
        load: Load,
        method: UpdateMethod,
        changes: &[Change],
    ) -> Result<Self, RackRepairError> {
        let geometry = geometry(code)?;
        if sites.len() < geometry.z() * geometry.c() {
            return Err(RackRepairError::Unfit(format!("{} sites are too few", sites.len())));
        }
        let places = places(&geometry, &load, method);
        let rng = SmallRng::seed_from_u64(load.seed);
        let (runtime, code, files) = (runtime.clone(), code.clone(), HashMap::new());
        let mut trial = Self { runtime, code, geometry, sites, load, method, places, files, rng };
        for stripe in 0..load.stripes {
            trial.write(stripe, changes).await?;
        }
        Ok(trial)
    }

    /// Writes the updated chunks of one stripe, and the parities that follow.
    async fn write(&mut self, stripe: usize, changes: &[Change]) -> Result<(), RackRepairError> {
        let of_stripe = changes
            .iter()
            .map(|change| change.data)
            .filter(|data| data.stripe == stripe)
            .map(|data| data.chunk);
        let mut needed: Vec<usize> =
            of_stripe.clone().chain(of_stripe.flat_map(|chunk| self.parities(chunk))).collect();
        needed.sort_unstable();
        needed.dedup();
        let stripe_sites: Vec<Arc<dyn Site>> =
            self.places[stripe].iter().map(|&site| Arc::clone(&self.sites[site])).collect();
        let id = self.id(stripe);
        let checksums =
            write_chunks(&self.runtime, id, &self.code, &stripe_sites, &needed, self.load.chunk_len).await?;
        for index in needed {
            let chunk = ChunkId { stripe: id, index: index as u8, generation: Generation(1) };
            let file = File { chunk, site: self.places[stripe][index], crc32c: checksums[index] };
            self.files.insert((stripe, index), file);
        }
        Ok(())
    }

    fn id(&self, stripe: usize) -> StripeId {
        let of_way = WAYS.iter().position(|(_, method)| *method == self.method).unwrap_or_default();
        StripeId::new(WRITER, (of_way * self.load.stripes + stripe) as u64)
    }

    /// Returns the parities that depend on a data chunk, the local one first.
    fn parities(&self, chunk: usize) -> Vec<usize> {
        let group = self.code.local_group_of(chunk).expect("data chunks of a wide code are in groups");
        std::iter::once(self.geometry.local_parity(group)).chain(self.geometry.global_parities()).collect()
    }

    /// Returns the racks of an updated chunk and of the parities that follow it, the local one first. Racks are
    /// counted from 0.
    pub fn racks(&self, change: Change) -> Vec<usize> {
        let DataChunk { stripe, chunk } = change.data;
        let chunks = std::iter::once(chunk).chain(self.parities(chunk));
        chunks.map(|chunk| self.places[stripe][chunk] / self.geometry.c()).collect()
    }

    /// Makes an update.
    ///
    /// # Errors
    /// If a site does not read or make a requested chunk.
    pub async fn change(&mut self, change: Change) -> Result<UpdateCost, RackRepairError> {
        let mut bytes = vec![0; self.load.range_len as usize];
        self.rng.fill_bytes(&mut bytes);
        let began = self.runtime.now();
        let mut step = Step::new(self, change, bytes.into()).await?;
        match self.method.reads_parities {
            true => step.by_client().await?,
            false => step.by_sites().await?,
        }
        let (took, crossed, new_files) = (self.runtime.now() - began, step.crossed, step.new_files);
        for (index, file) in new_files {
            let old = self.files.insert((change.data.stripe, index), file).expect("it was there");
            let request = DeleteRequest { chunks: vec![old.chunk], epoch: FencingEpoch::NONE };
            let deleted = self.sites[old.site].delete(request).await;
            deleted.map_err(|reason| self.failed(old.site, reason))?;
        }
        Ok(UpdateCost { took, crossed })
    }

    fn failed(&self, site: usize, reason: SiteError) -> RackRepairError {
        RackRepairError::Site { site: self.sites[site].id(), reason }
    }
}

#[cfg(test)]
mod tests {
    use striate_core::{ClusterId, RackId, SiteId};
    use striate_runtime::run_in_virtual_time;
    use striate_site::{LocalSite, MemoryStore, QueueLimits, SiteDirectory, SiteIdentity};

    use super::*;

    #[derive(Debug)]
    struct All(Vec<Arc<LocalSite>>);

    impl SiteDirectory for All {
        fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
            let site = self.0.get(site.0 as usize - 1)?;
            Some(Arc::clone(site) as Arc<dyn Site>)
        }
    }

    /// Creates `of_rack` sites in each of `racks` racks, which know each other.
    fn sites(runtime: &Runtime, racks: usize, of_rack: usize) -> Arc<All> {
        let site = |number: usize| {
            let (site, rack) = (SiteId(number as u32 + 1), RackId(format!("rack{}", number / of_rack)));
            let identity = SiteIdentity { cluster: ClusterId(1), site, rack };
            let store = Arc::new(MemoryStore::default());
            Arc::new(LocalSite::new(runtime.clone(), identity, store, QueueLimits::default()))
        };
        let all = Arc::new(All((0..racks * of_rack).map(site).collect()));
        let directory: Arc<dyn SiteDirectory> = Arc::clone(&all) as _;
        all.0.iter().for_each(|site| site.set_directory(Arc::downgrade(&directory)));
        all
    }

    /// Sites refuse a parity whose checksum does not follow from the update, so a completed update is correct.
    #[test]
    fn every_way_changes_parities_as_they_must_be_and_sends_the_ranges_that_it_says() {
        let code: Code = "wide(20,5,3)".parse().unwrap();
        let load = Load { chunk_len: 16 << 10, range_len: 4 << 10, stripes: 3, changes: 20, seed: 1 };
        let crossed = run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (racks, of_rack) = shape(&code).unwrap();
            let all = sites(&runtime, racks, of_rack);
            let changes = changes(&code, &load).unwrap();
            let mut crossed = Vec::new();
            for (name, method) in WAYS {
                let sites = all.0.iter().map(|site| Arc::clone(site) as Arc<dyn Site>).collect();
                let mut trial =
                    RackUpdate::prepare(&runtime, &code, sites, load, method, &changes).await.unwrap();
                let mut ranges = 0;
                for &change in &changes {
                    let expected = ranges_across(method, &trial.racks(change));
                    let of_change = trial.change(change).await.unwrap().crossed;
                    assert_eq!(of_change, expected * u64::from(load.range_len), "{name}: {change:?}");
                    ranges += expected;
                }
                crossed.push(ranges);
            }
            crossed
        });
        // A local parity and two global ones; 20 updates, some of them in the rack of the local parity.
        let [rewrite, deltas, global, local, both] = crossed[..] else { panic!("{crossed:?}") };
        assert_eq!(rewrite, 20 * 8);
        assert_eq!((deltas - global, local - both), (20, 20), "one range less for each change");
        assert!(local < deltas, "{local} and {deltas}");
    }

    /// Ranges that an update sends across racks: to the client and back, and those of the parities. `racks` are those
    /// of the data chunk, of the local parity and of the global ones.
    fn ranges_across(method: UpdateMethod, racks: &[usize]) -> u64 {
        let [data, local, globals @ ..] = racks else { panic!("{racks:?}") };
        if method.reads_parities {
            return 2 * racks.len() as u64;
        }
        let of_globals = if method.inner_global { 1 } else { globals.len() };
        (2 + of_globals + usize::from(local != data)) as u64
    }
}
