//! Changes of wide stripes' data chunks on real sites in racks (ECWide, FAST'21, §4.3 and experiment B.2): a client reads a range of a
//! chunk and writes other bytes, and the local parity and the global ones follow.
//!
//! | way | bytes across racks, in ranges |
//! |--|--|
//! | the client reads the parities' ranges too, and writes all | 2, and 2 for each parity |
//! | each parity is sent the difference | 2, and 1 for each parity |
//! | the first global parity is, and the others follow it in their rack | 2, 1, and 1 for the local parity |
//! | the local parity is in the rack of its group that is changed most | none for it in that rack |
//!
//! The local one costs nothing where it is in the rack of the chunk that is changed. Sites make the new chunks: new generations out of
//! the old ones and of what is sent in *windows*, as the store itself changes members of wide stripes. A site stores only what has the
//! checksum that follows from the change, whichever way it came about.
//!
//! Racks lie as the geometry says; each stripe begins in another. The client is in a rack of its own.
//! A local parity that moves changes places with the data chunk of that rack that is changed least.
//! What it does not do: start processes, limit what links carry, or move chunks: they are written where they would be afterwards.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::try_join_all;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use striate_codec::{ChecksumChange, Code, MultipleChecksums, accumulate, gf256};
use striate_core::{ChunkId, ChunkRange, FencingEpoch, Generation, RackId, StripeId};
use striate_plan::WideGeometry;
use striate_runtime::Runtime;
use striate_site::{
    AssembleRequest, CombineRequest, CombineSource, DeleteRequest, LocalTerm, Priority, ReadRequest, Site,
    SiteError, Window,
};
use striate_stripe::SLICE_LEN;
use striate_workload::keys::{KeyDistribution, Keys};

use crate::contents::WRITER;
use crate::rack_repair::layout::{Scheme, racks_of};
use crate::rack_repair::{RackRepairError, write_chunks};

/// So many changes for each that is made show which rack of a group is changed most.
const OBSERVED: usize = 100;

/// How the parities follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// The client reads and writes the parities.
    pub by_client: bool,
    /// Global parities follow the first of them, in their rack.
    pub inner_global: bool,
    /// Local parities are in the racks that are changed most.
    pub inner_local: bool,
}

const fn way(name: &'static str, by_client: bool, inner_global: bool, inner_local: bool) -> Way {
    Way { name, by_client, inner_global, inner_local }
}

/// All ways.
pub const WAYS: [Way; 5] = [
    way("rewrite", true, false, false),
    way("deltas", false, false, false),
    way("global", false, true, false),
    way("local", false, false, true),
    way("both", false, true, true),
];

/// A change of a range of data chunk `chunk` of stripe `stripe`.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    stripe: usize,
    /// Counted from 0.
    pub chunk: usize,
    offset: u32,
}

/// What is changed.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Bytes of a range.
    pub range_len: u32,
    /// Stripes.
    pub stripes: usize,
    /// Changes of each way.
    pub changes: usize,
    /// What they are drawn from.
    pub seed: u64,
}

/// What a change took.
#[derive(Clone, Copy, Debug)]
pub struct Changed {
    /// From the client's read to the last site's answer.
    pub took: Duration,
    /// Bytes of chunks that have crossed racks.
    pub crossed: u64,
}

/// A chunk's file.
#[derive(Clone, Copy, Debug)]
struct File {
    chunk: ChunkId,
    /// Counted from 0.
    site: usize,
    crc32c: u32,
}

/// Stripes on sites, as one way has them.
pub struct RackUpdate {
    runtime: Runtime,
    code: Code,
    geometry: WideGeometry,
    sites: Vec<Arc<dyn Site>>,
    load: Load,
    way: Way,
    /// The site of each chunk of each stripe.
    places: Vec<Vec<usize>>,
    files: HashMap<(usize, usize), File>,
    rng: SmallRng,
}

/// Racks of a stripe, and sites in each.
///
/// # Errors
/// [`RackRepairError::Unfit`] where the code is not wide.
pub fn shape(code: &Code) -> Result<(usize, usize), RackRepairError> {
    let geometry = geometry(code)?;
    Ok((geometry.z(), geometry.c()))
}

fn geometry(code: &Code) -> Result<WideGeometry, RackRepairError> {
    WideGeometry::new(code.spec()).map_err(|error| RackRepairError::Unfit(error.to_string()))
}

/// The changes that are made. All ways have the same ones.
///
/// # Errors
/// [`RackRepairError::Unfit`] where a range is longer than a chunk.
pub fn changes(code: &Code, load: &Load) -> Result<Vec<Change>, RackRepairError> {
    if load.range_len > load.chunk_len || load.stripes == 0 {
        return Err(RackRepairError::Unfit(
            "a range is longer than a chunk, or there is no stripe".to_owned(),
        ));
    }
    Ok(drawn(code.k(), load).take(load.changes).collect())
}

fn drawn(k: usize, load: &Load) -> impl Iterator<Item = Change> + use<> {
    let keys = KeyDistribution::ScrambledZipf { exponent: 0.99 };
    let keys = Keys::new(keys, (load.stripes * k) as u64);
    let mut rng = SmallRng::seed_from_u64(load.seed);
    let ranges = load.chunk_len / load.range_len;
    let range_len = load.range_len;
    std::iter::repeat_with(move || {
        let key = keys.draw(&mut rng) as usize;
        Change { stripe: key / k, chunk: key % k, offset: rng.random_range(0..ranges) * range_len }
    })
}

impl RackUpdate {
    /// Writes the chunks that `changes` need to sites, the c of rack 0 first.
    ///
    /// # Errors
    /// When the code is not wide, sites are too few, or one does not take a chunk.
    pub async fn prepare(
        runtime: &Runtime,
        code: &Code,
        sites: Vec<Arc<dyn Site>>,
        load: Load,
        way: Way,
        changes: &[Change],
    ) -> Result<Self, RackRepairError> {
        let geometry = geometry(code)?;
        if sites.len() < geometry.z() * geometry.c() {
            return Err(RackRepairError::Unfit(format!("{} sites are too few", sites.len())));
        }
        let places = places(&geometry, &load, way)?;
        let rng = SmallRng::seed_from_u64(load.seed);
        let (runtime, code, files) = (runtime.clone(), code.clone(), HashMap::new());
        let mut trial = Self { runtime, code, geometry, sites, load, way, places, files, rng };
        for stripe in 0..load.stripes {
            trial.write(stripe, changes).await?;
        }
        Ok(trial)
    }

    /// The chunks of one stripe that are changed, and the parities that follow.
    async fn write(&mut self, stripe: usize, changes: &[Change]) -> Result<(), RackRepairError> {
        let of_stripe = changes.iter().filter(|change| change.stripe == stripe).map(|change| change.chunk);
        let mut needed: Vec<usize> =
            of_stripe.clone().chain(of_stripe.flat_map(|chunk| self.parities(chunk))).collect();
        needed.sort_unstable();
        needed.dedup();
        let there: Vec<Arc<dyn Site>> =
            self.places[stripe].iter().map(|&site| Arc::clone(&self.sites[site])).collect();
        let id = self.id(stripe);
        let checksums =
            write_chunks(&self.runtime, id, &self.code, &there, &needed, self.load.chunk_len).await?;
        for index in needed {
            let chunk = ChunkId { stripe: id, index: index as u8, generation: Generation(1) };
            let file = File { chunk, site: self.places[stripe][index], crc32c: checksums[index] };
            self.files.insert((stripe, index), file);
        }
        Ok(())
    }

    fn id(&self, stripe: usize) -> StripeId {
        let of_way = WAYS.iter().position(|way| *way == self.way).unwrap_or_default();
        StripeId::new(WRITER, (of_way * self.load.stripes + stripe) as u64)
    }

    /// The parities that a data chunk is a term of: the local one first.
    fn parities(&self, chunk: usize) -> Vec<usize> {
        let group = self.code.local_group_of(chunk).expect("data chunks of a wide code are in groups");
        std::iter::once(self.geometry.local_parity(group)).chain(self.geometry.global_parities()).collect()
    }

    /// The racks of a changed chunk and of the parities that follow it, the local one first. Counted from 0.
    pub fn racks(&self, change: Change) -> Vec<usize> {
        let chunks = std::iter::once(change.chunk).chain(self.parities(change.chunk));
        chunks.map(|chunk| self.places[change.stripe][chunk] / self.geometry.c()).collect()
    }

    /// Makes a change.
    ///
    /// # Errors
    /// When a site does not read or make what it is asked for.
    pub async fn change(&mut self, change: Change) -> Result<Changed, RackRepairError> {
        let mut bytes = vec![0; self.load.range_len as usize];
        self.rng.fill_bytes(&mut bytes);
        let began = self.runtime.now();
        let mut step = Step::new(self, change, bytes.into()).await?;
        match self.way.by_client {
            true => step.by_client().await?,
            false => step.by_sites().await?,
        }
        let (took, crossed, made) = (self.runtime.now() - began, step.crossed, step.made);
        for (index, file) in made {
            let old = self.files.insert((change.stripe, index), file).expect("it was there");
            let request = DeleteRequest { chunks: vec![old.chunk], epoch: FencingEpoch::NONE };
            let deleted = self.sites[old.site].delete(request).await;
            deleted.map_err(|reason| self.failed(old.site, reason))?;
        }
        Ok(Changed { took, crossed })
    }

    fn failed(&self, site: usize, reason: SiteError) -> RackRepairError {
        RackRepairError::Site { site: self.sites[site].id(), reason }
    }
}

/// One change under way.
struct Step<'a> {
    of: &'a RackUpdate,
    at: Change,
    old: Bytes,
    new: Bytes,
    checksums: ChecksumChange,
    /// The new files, by index.
    made: Vec<(usize, File)>,
    crossed: u64,
}

impl<'a> Step<'a> {
    /// The client reads the range that it will replace.
    async fn new(of: &'a RackUpdate, at: Change, new: Bytes) -> Result<Self, RackRepairError> {
        let mut step = Self {
            of,
            at,
            old: Bytes::new(),
            new,
            checksums: ChecksumChange::default(),
            made: Vec::new(),
            crossed: 0,
        };
        step.old = step.read(at.chunk).await?;
        step.crossed += step.len();
        let behind = of.load.chunk_len - at.offset - of.load.range_len;
        let [before, after] = [&step.old, &step.new].map(|bytes| MultipleChecksums::of(bytes));
        step.checksums.replace(&before, &after, behind.into());
        Ok(step)
    }

    fn len(&self) -> u64 {
        self.of.load.range_len.into()
    }

    /// The client writes the chunk, and the parities that it has read.
    async fn by_client(&mut self) -> Result<(), RackRepairError> {
        let parities = self.of.parities(self.at.chunk);
        let read = try_join_all(parities.iter().map(|&parity| self.read(parity))).await?;
        self.crossed += self.len() * parities.len() as u64;
        let mut difference = BytesMut::from(&self.old[..]);
        accumulate(1, &self.new, &mut difference);
        let mut windows = vec![(self.at.chunk, 1, self.written(self.new.clone()))];
        for (&parity, old) in parities.iter().zip(read) {
            let (factor, mut bytes) = (self.factor(parity), BytesMut::from(&old[..]));
            accumulate(factor, &difference, &mut bytes);
            windows.push((parity, factor, self.written(bytes.freeze())));
        }
        self.crossed += self.len() * windows.len() as u64;
        self.made = try_join_all(
            windows.into_iter().map(|(index, factor, window)| self.amend(index, factor, window)),
        )
        .await?;
        Ok(())
    }

    /// The client writes the chunk, whose site sends the difference on.
    async fn by_sites(&mut self) -> Result<(), RackRepairError> {
        let data = self.at.chunk;
        let written = self.amend(data, 1, self.written(self.new.clone())).await?;
        self.crossed += self.len();
        self.made.push(written);
        let parities = self.of.parities(data);
        let (direct, following) =
            parities.split_at(if self.of.way.inner_global { 2 } else { parities.len() });
        let sent = try_join_all(direct.iter().map(|&parity| self.follow(parity, data, written.1))).await?;
        self.add(sent);
        if let [_, first] = *direct {
            let first_made = self.made.iter().find(|(index, _)| *index == first).expect("it was made").1;
            let sent =
                try_join_all(following.iter().map(|&parity| self.follow(parity, first, first_made))).await?;
            self.add(sent);
        }
        Ok(())
    }

    fn add(&mut self, sent: Vec<((usize, File), u64)>) {
        for (made, crossed) in sent {
            self.made.push(made);
            self.crossed += crossed;
        }
    }

    /// A parity follows what has changed in another chunk. Answers the bytes that crossed racks, too.
    async fn follow(
        &self,
        parity: usize,
        source: usize,
        made: File,
    ) -> Result<((usize, File), u64), RackRepairError> {
        let (file, old) = (self.file(parity), self.file(source));
        let factor = self.factor(parity);
        let of_source = if source == self.at.chunk { 1 } else { self.factor(source) };
        let by = gf256::div(factor, of_source);
        let len = self.of.load.chunk_len;
        let local = [old, made].map(|file| LocalTerm { by, chunk: file.chunk, len });
        let from = self.request(local.to_vec());
        let to = CombineRequest {
            local: Vec::new(),
            upstream: vec![CombineSource { site: self.of.sites[old.site].id(), request: from.clone() }],
            ..from
        };
        let made = self.amend(parity, factor, Window::Sum(to)).await?;
        let crosses = self.rack(old.site) != self.rack(file.site);
        Ok((made, if crosses { self.len() } else { 0 }))
    }

    fn rack(&self, site: usize) -> RackId {
        self.of.sites[site].rack()
    }

    fn file(&self, index: usize) -> File {
        self.of.files[&(self.at.stripe, index)]
    }

    fn factor(&self, parity: usize) -> u8 {
        self.of.code.coefficient(parity, self.at.chunk)
    }

    fn written(&self, bytes: Bytes) -> Window {
        Window::Bytes { offset: self.at.offset, bytes }
    }

    /// A sum over the changed range.
    fn request(&self, local: Vec<LocalTerm>) -> CombineRequest {
        CombineRequest {
            offset: self.at.offset,
            len: self.of.load.range_len,
            slice_len: SLICE_LEN,
            local,
            upstream: Vec::new(),
            priority: Priority::Foreground,
        }
    }

    async fn read(&self, index: usize) -> Result<Bytes, RackRepairError> {
        let file = self.file(index);
        let ranges =
            vec![ChunkRange { chunk: file.chunk, offset: self.at.offset, len: self.of.load.range_len }];
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        let reply = self.of.sites[file.site].read(request).next().await;
        let unanswered = || SiteError::Unavailable("it ended its answer early".to_owned());
        let bytes = reply.ok_or_else(unanswered).and_then(|reply| reply.result);
        bytes.map_err(|reason| self.of.failed(file.site, reason))
    }

    /// Has a site make the next generation of a chunk.
    async fn amend(
        &self,
        index: usize,
        factor: u8,
        window: Window,
    ) -> Result<(usize, File), RackRepairError> {
        let old = self.file(index);
        let generation = Generation(old.chunk.generation.0 + 1);
        let made = File {
            chunk: ChunkId { generation, ..old.chunk },
            crc32c: self.checksums.apply(old.crc32c, factor),
            ..old
        };
        let len = self.of.load.chunk_len;
        let whole = CombineRequest {
            offset: 0,
            len,
            ..self.request(vec![LocalTerm { by: 1, chunk: old.chunk, len }])
        };
        let request = AssembleRequest {
            chunk: made.chunk,
            crc32c: made.crc32c,
            combination: whole,
            windows: vec![window],
        };
        let stored = self.of.sites[old.site].assemble(request).await;
        stored.map(|_| (index, made)).map_err(|reason| self.of.failed(old.site, reason))
    }
}

/// The site of each chunk of each stripe: racks as combined locality says, each stripe beginning in another, and local parities where a
/// way has them.
fn places(geometry: &WideGeometry, load: &Load, way: Way) -> Result<Vec<Vec<usize>>, RackRepairError> {
    let rack_of = racks_of(geometry.spec(), Scheme::Combined)
        .map_err(|error| RackRepairError::Unfit(error.to_string()))?;
    let mut used = vec![0; geometry.z()];
    let slots: Vec<(usize, usize)> = rack_of
        .iter()
        .map(|&rack| {
            used[rack] += 1;
            (rack, used[rack] - 1)
        })
        .collect();
    let (counts, rack_of) = (counts(geometry, load), &rack_of);
    let of_stripe = |stripe: usize| {
        let place = |&(rack, slot): &(usize, usize)| (rack + stripe) % geometry.z() * geometry.c() + slot;
        let mut places: Vec<usize> = slots.iter().map(place).collect();
        for group in (0..geometry.groups()).filter(|_| way.inner_local) {
            let count = |chunk: usize| counts.get(&(stripe, chunk)).copied().unwrap_or_default();
            let in_rack =
                |rack: usize| geometry.group_data(group).filter(move |&chunk| rack_of[chunk] == rack);
            let of_group = geometry.group_data(group).map(|chunk| rack_of[chunk]);
            let hottest = of_group.max_by_key(|&rack| in_rack(rack).map(count).sum::<usize>());
            let (local, hottest) = (geometry.local_parity(group), hottest.expect("a group has data"));
            if hottest != rack_of[local] {
                let coldest = in_rack(hottest).min_by_key(|&chunk| count(chunk));
                places.swap(local, coldest.expect("the rack has data"));
            }
        }
        places
    };
    Ok((0..load.stripes).map(of_stripe).collect())
}

/// How often changes before those that are made have hit each chunk of each stripe.
fn counts(geometry: &WideGeometry, load: &Load) -> HashMap<(usize, usize), usize> {
    let before = Load { seed: !load.seed, ..*load };
    let mut counts = HashMap::new();
    for change in drawn(geometry.k(), &before).take(load.changes * OBSERVED) {
        *counts.entry((change.stripe, change.chunk)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use striate_core::{ClusterId, SiteId};
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

    /// So many sites in each of so many racks, which know each other.
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

    /// Sites refuse a parity with another checksum than follows from the change, so that a change that is made is right.
    #[test]
    fn every_way_changes_parities_as_they_must_be_and_sends_the_ranges_that_it_says() {
        let code: Code = "wide(20,5,3)".parse().unwrap();
        let load = Load { chunk_len: 16 << 10, range_len: 4 << 10, stripes: 3, changes: 20, seed: 1 };
        let crossed = run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let (racks, of_rack) = shape(&code).unwrap();
            let all = sites(&runtime, racks, of_rack);
            let changes = changes(&code, &load).unwrap();
            let mut crossed = Vec::new();
            for way in WAYS {
                let sites = all.0.iter().map(|site| Arc::clone(site) as Arc<dyn Site>).collect();
                let mut trial =
                    RackUpdate::prepare(&runtime, &code, sites, load, way, &changes).await.unwrap();
                let mut ranges = 0;
                for &change in &changes {
                    ranges += trial.change(change).await.unwrap().crossed / u64::from(load.range_len);
                }
                crossed.push(ranges);
            }
            crossed
        });
        // A local parity and two global ones; 20 changes, of which some are in the rack of the local parity.
        let [rewrite, deltas, global, local, both] = crossed[..] else { panic!("{crossed:?}") };
        assert_eq!(rewrite, 20 * 8);
        assert!((20 * 4..=20 * 5).contains(&deltas), "{deltas}");
        assert_eq!((deltas - global, local - both), (20, 20), "one range less for each change");
        assert!(local < deltas, "{local} and {deltas}");
    }
}
