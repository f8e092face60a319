//! The repair of one chunk of a wide stripe on real sites (ECWide, FAST'21, experiment A.1).
//!
//! The part of a stripe of real code words that the repair may read is written to sites in racks, as a scheme places
//! it. One of its chunks is then lost again and again. The store's own repair rebuilds it in its rack, on a spare
//! site; the lost chunk's old site becomes the spare for the next repetition.
//!
//! - [`apart`]: the unavoidable parts of a repair, measured separately.
//! - [`layout`]: the rack of each chunk.
//! - [`node`]: all chunks of one site are lost, and repaired together.
//!
//! This module neither starts processes nor limits what links carry.

pub mod apart;
pub mod layout;
pub mod node;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rand::RngCore;
use striate_codec::{Code, CodecError, MultipleChecksums, accumulate, gf256, predict_checksum};
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::repair_stripe;
use striate_core::{ChunkId, FencingEpoch, Formats, FormatsInForce, Generation, Profile, SiteId, StripeId};
use striate_meta::records::{Location, Stripe};
use striate_meta::{MemoryStore, MetaError, MetaStore, Transaction, TxId, keys, records};
use striate_runtime::Runtime;
use striate_site::{DeleteRequest, Priority, Site, SiteError, WriteRequest};
use striate_stripe::{StripeError, StripeOptions, Stripes};

use crate::contents::WRITER;

/// Maximum number of concurrent chunk writes. Four neighbours often share a rack, and so its link.
const WRITES_IN_FLIGHT: usize = 16;

/// Reasons why a trial ended early.
#[derive(Debug, thiserror::Error)]
pub enum RackRepairError {
    /// The code cannot be built.
    #[error(transparent)]
    Code(#[from] CodecError),
    /// A site failed a request.
    #[error("site {site}: {reason}")]
    Site {
        /// The site.
        site: SiteId,
        /// Error of the site.
        reason: SiteError,
    },
    /// The record could not be written.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The stripe service failed.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// The chunk was not repaired.
    #[error("not repaired: {0}")]
    NotRepaired(String),
    /// The request does not fit the code or the racks.
    #[error("{0}")]
    Unfit(String),
}

/// A stripe on real sites. Site i + 1 has chunk i, and the last site is the spare.
pub struct RackRepair {
    runtime: Runtime,
    code: Code,
    stripes: Stripes,
    stripe: StripeId,
    sites: Vec<Arc<dyn Site>>,
    chunk_len: u32,
    /// Checksums of all chunks.
    checksums: Vec<u32>,
    /// Index of the lost chunk.
    lost: usize,
    /// The lost chunk's current site and its next one.
    places: [SiteId; 2],
    generation: Generation,
}

impl RackRepair {
    /// Writes a stripe with chunks of `chunk_len` bytes to sites numbered from 1. The spare site is in the rack of
    /// chunk `lost`.
    ///
    /// # Errors
    /// If the code cannot be built, or a site or the metadata store does not accept a write.
    pub async fn prepare(
        runtime: &Runtime,
        profile: Profile,
        sites: Vec<Arc<dyn Site>>,
        lost: usize,
        chunk_len: u32,
    ) -> Result<Self, RackRepairError> {
        let code = profile.code.build()?;
        assert_eq!(sites.len(), code.n() + 1, "a site for each chunk, and a spare one");
        let stripe = StripeId::new(WRITER, 0);
        let needed = needed(&code, lost);
        let checksums = write_chunks(runtime, stripe, &code, &sites, &needed, chunk_len).await?;
        let places = (1..=code.n() as u32).map(SiteId).collect();
        let written = [WrittenStripe { id: stripe, places, checksums }];
        let stripes = open(runtime, profile, &code, sites.clone(), &written, chunk_len).await?;
        let [WrittenStripe { checksums, .. }] = written;
        Ok(Self {
            runtime: runtime.clone(),
            code,
            stripes,
            stripe,
            places: [SiteId(lost as u32 + 1), SiteId(sites.len() as u32)],
            sites,
            chunk_len,
            checksums,
            lost,
            generation: Generation(1),
        })
    }

    /// Loses the chunk and has it repaired; returns the time taken.
    ///
    /// # Errors
    /// If the chunk was not repaired, or the result is not the lost chunk.
    pub async fn repeat(&mut self) -> Result<Duration, RackRepairError> {
        self.lose().await?;
        let took = self.repair().await?;
        self.verify().await?;
        Ok(took)
    }

    /// Loses the chunk.
    ///
    /// # Errors
    /// If its site does not delete it.
    pub async fn lose(&self) -> Result<(), RackRepairError> {
        self.delete(self.places[0]).await
    }

    /// Has the lost chunk repaired; returns the time taken.
    ///
    /// # Errors
    /// If the chunk was not repaired.
    pub async fn repair(&mut self) -> Result<Duration, RackRepairError> {
        let [from, to] = self.places;
        let absent = AbsentSites { gone: BTreeSet::from([from]), ..AbsentSites::default() };
        let began = self.runtime.now();
        let repaired =
            repair_stripe(&self.stripes, self.stripe, &absent, &RepairPace::unlimited(), false).await?;
        let took = self.runtime.now() - began;
        if repaired.chunks != 1 || !repaired.is_whole() {
            return Err(RackRepairError::NotRepaired(format!("{repaired:?}")));
        }
        self.places = [to, from];
        Ok(took)
    }

    async fn delete(&self, at: SiteId) -> Result<(), RackRepairError> {
        let request = DeleteRequest { chunks: vec![self.chunk()], epoch: FencingEpoch::NONE };
        let deleted = self.site(at).delete(request).await;
        deleted.map(drop).map_err(|reason| RackRepairError::Site { site: at, reason })
    }

    /// Reads the repaired chunk from its medium, at the place named by its record.
    ///
    /// # Errors
    /// If it does not exist there, or is not the lost chunk.
    pub async fn verify(&mut self) -> Result<(), RackRepairError> {
        let gone = || RackRepairError::NotRepaired("the stripe is gone".to_owned());
        let stripe = self.stripes.find(self.stripe).await?.ok_or_else(gone)?;
        let location = &stripe.record.locations[self.lost];
        let at = self.places[0];
        if location.site != at.0 {
            return Err(RackRepairError::NotRepaired(format!("it is on site {}, not {at}", location.site)));
        }
        self.generation = Generation(location.generation);
        let info = self.site(at).verify(self.chunk()).await;
        let info = info.map_err(|reason| RackRepairError::Site { site: at, reason })?;
        match info.crc32c == self.checksums[self.lost] {
            true => Ok(()),
            false => Err(RackRepairError::NotRepaired("another chunk was made".to_owned())),
        }
    }

    fn chunk(&self) -> ChunkId {
        ChunkId { stripe: self.stripe, index: self.lost as u8, generation: self.generation }
    }

    fn site(&self, site: SiteId) -> &Arc<dyn Site> {
        &self.sites[site.0 as usize - 1]
    }
}

/// A stripe on its sites.
struct WrittenStripe {
    id: StripeId,
    /// Site of each of the n chunks, and the chunk's checksum.
    places: Vec<SiteId>,
    checksums: Vec<u32>,
}

/// Opens the stripe service over these stripes and an in-memory metadata store.
async fn open(
    runtime: &Runtime,
    profile: Profile,
    code: &Code,
    sites: Vec<Arc<dyn Site>>,
    written: &[WrittenStripe],
    chunk_len: u32,
) -> Result<Stripes, RackRepairError> {
    let engine = Arc::new(MemoryStore::new(runtime.clone()));
    let mut tx = Transaction::new(TxId(u128::from(runtime.random_u64())));
    for WrittenStripe { id, places, checksums } in written {
        let location = |(site, &crc32c): (&SiteId, &u32)| Location {
            site: site.0,
            generation: 1,
            crc32c,
            ..Location::default()
        };
        let record = Stripe {
            profile: profile.to_string(),
            chunk_len,
            locations: places.iter().zip(checksums).map(location).collect(),
            generation: 1,
            len: u64::from(chunk_len) * code.k() as u64,
            ..Stripe::default()
        };
        tx.put(keys::stripe(*id), records::encode(&record));
    }
    engine.commit(tx).await?;
    let options = StripeOptions { formats: FormatsInForce::new(Formats::NEWEST), ..StripeOptions::default() };
    Ok(Stripes::open(runtime.clone(), engine, sites, options).await?)
}

/// Returns the chunks that a repair of this one may read, and the chunk itself: its local group, or all chunks if it
/// has none.
fn needed(code: &Code, lost: usize) -> Vec<usize> {
    let group = code.local_group_of(lost);
    (0..code.n()).filter(|&chunk| group.is_none() || code.local_group_of(chunk) == group).collect()
}

/// Writes some chunks of a stripe, chunk i to the i-th site; returns the checksums of all chunks. Data chunks are
/// multiples of one pattern of random bytes, so each parity is one too, and only few chunks are in memory at a time.
pub(crate) async fn write_chunks(
    runtime: &Runtime,
    stripe: StripeId,
    code: &Code,
    sites: &[Arc<dyn Site>],
    which: &[usize],
    chunk_len: u32,
) -> Result<Vec<u32>, RackRepairError> {
    let mut rng = runtime.rng();
    let mut pattern = vec![0; chunk_len as usize];
    rng.fill_bytes(&mut pattern);
    let scalars = scalars(code, &mut rng);
    let write = async |&index: &usize| {
        let mut payload = vec![0; pattern.len()];
        accumulate(scalars[index], &pattern, &mut payload);
        let chunk = ChunkId { stripe, index: index as u8, generation: Generation(1) };
        let payload = Bytes::from(payload);
        let request = WriteRequest { chunk, payload, granule_crcs: None, priority: Priority::Foreground };
        let site = &sites[index];
        let written = site.write(request).await;
        written.map(drop).map_err(|reason| RackRepairError::Site { site: site.id(), reason })
    };
    let writes = futures::stream::iter(which).map(write).buffered(WRITES_IN_FLIGHT);
    writes.try_collect::<Vec<()>>().await?;
    let of_pattern = MultipleChecksums::of(&pattern);
    let checksum = |&scalar: &u8| predict_checksum(&[scalar], &[of_pattern], chunk_len.into());
    Ok(scalars.iter().map(checksum).collect::<Result<_, _>>()?)
}

/// Returns each chunk's multiple of the pattern.
fn scalars(code: &Code, rng: &mut impl RngCore) -> Vec<u8> {
    let mut data = vec![0; code.k()];
    rng.fill_bytes(&mut data);
    let of_data = |(&by, &scalar): (&u8, &u8)| gf256::mul(by, scalar);
    let of_chunk = |chunk: usize| code.row(chunk).iter().zip(&data).map(of_data).fold(0, |sum, of| sum ^ of);
    (0..code.n()).map(of_chunk).collect()
}
