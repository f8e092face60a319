//! What commands and server say to each other over the admin socket.
//!
//! | request | answer |
//! |--|--|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/buckets`, `POST /v1/buckets`, `GET`, `POST` ([`SetBucket`]) or `DELETE /v1/buckets/NAME` | [`BucketInfo`] |
//! | `GET /v1/keys`, `POST /v1/keys`, `POST /v1/keys/NAME/rotate`, `POST /v1/keys/NAME/revoke` | [`KeyShown`], [`NewKey`] |
//! | `POST /v1/disks/replace` | [`Replaced`] |
//! | `POST /v1/explain` ([`Explain`]) | [`Explained`] |
//! | `GET /v1/upgrade`, `POST /v1/upgrade/finalize` | [`FormatsState`] |
//! | `GET /v1/packing`, `GET /v1/packing/NAME` | [`PackingStatus`] |
//! | `POST /v1/packing/run` ([`PackNow`]), `POST /v1/packing/undo/NAME` | lines of [`Line`] |
//! | `POST /v1/heal`, `POST /v1/verify`, `POST /v1/verify/remove-orphans` | lines of [`Line`] |
//! | `GET /v1/meta`, `POST /v1/meta` | rows as JSON lines, see `striate::admin` |
//!
//! An answer with another status than 200 carries [`Refusal`].

mod cache;
mod packing;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use striate_client::ReadExplained;
use striate_core::{ClusterId, Formats, LoadReport, Packing, Profile, StorageClass};

pub use self::cache::{CacheState, MemorySiteState, OriginState, ServedState};
pub use self::packing::{
    CopiesState, PackFigures, PackNow, PackedBucket, PackingState, PackingStatus, SealedState,
};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The cause and the way out.
    pub error: String,
}

/// The state of a whole store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// The S3 endpoint, as programs on this machine reach it.
    pub endpoint: String,
    /// The default profile.
    pub profile: Profile,
    /// Where the default profile's chunks may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementState>,
    /// The sites, retired ones left out.
    pub sites: Vec<SiteState>,
    /// The metadata mirrors.
    pub mirrors: Vec<MirrorState>,
    /// Stripes in debt; counting stops at [`DEBT_COUNT_LIMIT`].
    pub debt_stripes: u64,
    /// How far repair is; none where nobody has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairState>,
    /// What is moved; none where nobody has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movement: Option<MovementState>,
    /// How far the scrub is; none where nobody has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubState>,
    /// What is packed; none where nobody has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<PackingState>,
    /// Copies of what is read most. None of what is known as long as nobody has begun.
    #[serde(default)]
    pub copies: Option<CopiesState>,
    /// What is cached in memory; none where there is no memory tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheState>,
    /// What was asked of other S3 stores; none where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origins: Option<OriginState>,
    /// The formats in force, and what holds newer ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<FormatsState>,
    /// What an operator should know, in words. Empty: all is well.
    pub warnings: Vec<String>,
    /// Sizes over all sites; file systems that several share are counted once.
    pub capacity: Capacity,
}

/// Where the default profile's chunks may be ([`striate_plan::PlacementRule`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementState {
    /// Racks with sites.
    pub racks: usize,
    /// Chunks of a stripe that one rack may hold.
    pub chunks_in_a_rack: usize,
    /// Nothing that is stored under this rule is lost with a rack.
    pub tolerates_rack_loss: bool,
}

/// The formats in force, and what holds newer ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatsState {
    /// What is written.
    pub in_force: Formats,
    /// What finalizing an upgrade puts in force; the same if there is nothing newer.
    pub target: Formats,
    /// Programs before this release refuse the store then.
    pub needs_release: String,
    /// What the newer formats bring.
    pub brings: Vec<String>,
    /// Who keeps them from being put in force, and why.
    pub holding: Vec<String>,
    /// All processes that are known.
    pub readers: Vec<ReaderState>,
}

impl FormatsState {
    /// True if there is nothing to put in force.
    pub fn is_finalized(&self) -> bool {
        self.in_force.covers(self.target)
    }
}

/// A process, and what it reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderState {
    /// What it is.
    pub who: String,
    /// Its version; empty if it does not say.
    pub program: String,
    /// The newest formats that it reads; none if it does not answer.
    pub reads: Option<Formats>,
}

/// How far debt is counted for a status.
pub const DEBT_COUNT_LIMIT: u64 = 100_000;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Of all file systems.
    pub total_bytes: u64,
    /// That can still be written.
    pub free_bytes: u64,
    /// Chunks' payload.
    pub payload_bytes: u64,
    /// Chunks on the disks, with headers and dead records.
    pub disk_bytes: u64,
    /// Chunks.
    pub chunks: u64,
}

impl Status {
    /// Leaves out what is not for everybody who may see numbers: the names of objects and of volatile buckets.
    pub fn hide_names(&mut self) {
        self.cache.iter_mut().for_each(|cache| cache.volatile_buckets.clear());
        self.movement
            .iter_mut()
            .flat_map(|movement| &mut movement.hottest)
            .for_each(|block| block.object = None);
    }
}

/// How far repair is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairState {
    /// It is switched off: `striate heal` repairs.
    pub off: bool,
    /// Stripes that are not whole, as far as is known.
    pub stripes_left: u64,
    /// Of these, those that wait for a site.
    pub waiting: u64,
    /// Chunks rebuilt since it began.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes rebuilt in a second, of late.
    pub bytes_per_s: u64,
    /// Seconds until everything is whole that waits for no site; none while that cannot be told.
    pub seconds_left: Option<u64>,
    /// Sites that do not answer, or whose disk failed.
    pub silent: Vec<SilentState>,
}

/// A site that does not answer, or whose disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentState {
    /// Its number.
    pub site: u32,
    /// Seconds until its chunks are rebuilt elsewhere; 0: they are.
    pub rebuilt_after_s: u64,
}

/// What is moved, how evenly the sites are loaded, and what is asked for most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MovementState {
    /// To empty sites and to level how full they are.
    pub levelling: MovesState,
    /// For the readers' sake.
    pub optimising: MovesState,
    /// Sites that have something to give.
    pub givers: Vec<GiverState>,
    /// Seconds until they have given it; none while that cannot be told.
    pub seconds_left: Option<u64>,
    /// λ over the mean of the sites' loads, oldest first, whenever it has changed.
    pub imbalance: Vec<ImbalanceSample>,
    /// The blocks that are asked for most, the hottest first.
    pub hottest: Vec<HotBlockState>,
}

/// Moves of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MovesState {
    /// Nobody moves for this.
    pub off: bool,
    /// Chunks moved since the process began that moves.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks moved in a second, of late.
    pub chunks_per_s: f64,
    /// Bytes moved in a second, of late.
    pub bytes_per_s: u64,
}

/// A site that has something to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiverState {
    /// Its number.
    pub site: u32,
    /// What it has to give.
    pub bytes: u64,
}

/// How evenly the sites were loaded at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImbalanceSample {
    /// When.
    pub unix_ms: u64,
    /// How much more than the mean the most loaded site bore, in percent.
    pub percent: f64,
}

/// A block that many requests ask for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotBlockState {
    /// Its stripe.
    pub stripe: String,
    /// Of a hundred requests so many ask for it.
    pub percent: f64,
    /// An object that has it, as `bucket/key`; none where that is not known or not to be told.
    pub object: Option<String>,
}

/// How far the scrub is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubState {
    /// Its cycle, from 1.
    pub cycle: u64,
    /// What this cycle has found until now.
    pub now: ScrubCounts,
    /// Chunks on all sites.
    pub total_chunks: u64,
    /// Seconds until the cycle ends.
    pub seconds_left: u64,
    /// What the last whole cycle has found.
    pub last: Option<ScrubCounts>,
}

/// What a scrub has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubCounts {
    /// Good chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks damaged or missing; they are in debt.
    pub damaged: u64,
    /// Chunks on sites that did not answer.
    pub unknown: u64,
    /// Chunks that nothing names; known at a cycle's end.
    pub orphans: u64,
    /// Chunks that the metadata has never heard of; known at a cycle's end.
    pub unexplained: u64,
}

/// One site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteState {
    /// Its number.
    pub site: u32,
    /// Its failure domain.
    pub rack: String,
    /// Its directory or address.
    pub address: String,
    /// `ok`, `draining`, `suspect`, `missing`.
    pub state: String,
    /// Why it is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its sizes.
    pub capacity: Capacity,
    /// Its load.
    pub load: LoadReport,
}

/// One metadata mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorState {
    /// Its directory.
    pub directory: PathBuf,
    /// It holds everything that was acknowledged.
    pub in_sync: bool,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// A bucket to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewBucket {
    /// Its name.
    pub name: String,
    /// Its profile; none is the store's default.
    pub profile: Option<Profile>,
    /// Its largest block in bytes; none is the store's default.
    pub block_len: Option<u32>,
    /// Neighbouring blocks that go to the same sites; none is the store's default.
    #[serde(default)]
    pub group_len: Option<u32>,
    /// Whether it is packed; none: as its profile or the store says.
    #[serde(default)]
    pub packing: Option<Packing>,
    /// Where its objects are, if not here.
    #[serde(default)]
    pub origin: Option<NewOrigin>,
    /// What becomes of what is cold; none: nothing.
    #[serde(default)]
    pub cold: Option<ColdBucket>,
    /// Storage classes with profiles of their own.
    #[serde(default)]
    pub classes: Vec<ClassOfBucket>,
}

/// What profile a storage class has in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassOfBucket {
    /// The class.
    pub class: StorageClass,
    /// Its profile; none: it has none of its own any more.
    pub profile: Option<Profile>,
    /// A wide one may ask for all racks that there are.
    #[serde(default)]
    pub without_spare_rack: bool,
}

/// Into which wide stripes a bucket's cold partitions are sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdBucket {
    /// A wide profile.
    pub profile: Profile,
    /// Objects that were not changed for so long are cold, in seconds.
    pub after_s: u64,
    /// It may ask for all racks that there are.
    #[serde(default)]
    pub without_spare_rack: bool,
}

/// A bucket of an S3 store elsewhere, for a bucket to be made. Its secret goes with it, over the admin socket, and is sealed there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOrigin {
    /// The store's URL.
    pub endpoint: String,
    /// The bucket there.
    pub bucket: String,
    /// Its region.
    pub region: String,
    /// Who asks; empty where requests are not signed.
    pub access_key: String,
    /// The secret.
    pub secret: String,
    /// For so long what is known of an object is used without asking, in milliseconds.
    pub ttl_ms: u64,
    /// Bytes of a block in memory.
    pub block_len: u32,
}

/// The same of a bucket that there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// The store's URL.
    pub endpoint: String,
    /// The bucket there.
    pub bucket: String,
    /// Who asks; empty where requests are not signed.
    pub access_key: String,
    /// For so long what is known of an object is used without asking, in milliseconds.
    pub ttl_ms: u64,
    /// Bytes of a block in memory.
    pub block_len: u32,
}

/// A change of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBucket {
    /// Whether it is packed; none: as its profile or the store says.
    pub packing: Option<Packing>,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// Its name.
    pub name: String,
    /// Its profile.
    pub profile: String,
    /// True when it follows the store's default.
    pub default_profile: bool,
    /// When it was made, since the Unix epoch, in milliseconds.
    pub created_unix_ms: u64,
    /// The access key of its owner.
    pub owner: String,
    /// Its largest block in bytes; 0 is the store's default.
    pub block_len: u32,
    /// Neighbouring blocks that go to the same sites; 0 is the store's default.
    pub group_len: u32,
    /// What it says itself of packing; none: as its profile or the store says.
    #[serde(default)]
    pub packing: Option<String>,
    /// True when its objects are in memory only.
    #[serde(default)]
    pub volatile: bool,
    /// Where its objects are, if not here.
    #[serde(default)]
    pub origin: Option<OriginInfo>,
    /// What becomes of what is cold; none: nothing.
    #[serde(default)]
    pub cold: Option<ColdBucket>,
    /// Storage classes with profiles of their own.
    #[serde(default)]
    pub classes: Vec<ClassOfBucket>,
    /// Where sealing makes its data less durable, in words.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Objects whose read is to be explained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explain {
    /// Bucket and key of each.
    pub objects: Vec<(String, String)>,
    /// The read policy; none is the server's own.
    pub policy: Option<String>,
}

/// How objects would be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Those of this store, in one query.
    #[serde(flatten)]
    pub read: ReadExplained,
    /// Those of other S3 stores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<ElsewhereExplained>,
}

/// An object of another S3 store, as the gateway that answers knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElsewhereExplained {
    /// Its bucket here.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// The other store, and the bucket there.
    pub origin: String,
    /// What would happen, in words.
    pub would: String,
    /// What is known of it; none where nothing is.
    pub etag: Option<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Since when it is known, in milliseconds.
    pub known_for_ms: u64,
    /// For so long it is used.
    pub ttl_ms: u64,
    /// Its blocks,
    pub blocks: u64,
    /// and those that are in memory as far as this gateway knows.
    pub blocks_in_memory: u64,
}

/// A disk to be admitted in the place of a lost one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceDisk {
    /// The lost disk's path, absolute.
    pub path: PathBuf,
}

/// What a replacement did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The site that was given up.
    pub old_site: u32,
    /// The site that took its place.
    pub new_site: u32,
    /// Further things to know, in words.
    pub notes: Vec<String>,
}

/// An access key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyShown {
    /// The access key.
    pub access_key: String,
    /// What it is for.
    pub description: String,
    /// Since the Unix epoch, in milliseconds; 0 for the key given at the start.
    pub created_unix_ms: u64,
    /// It is accepted no more.
    pub revoked: bool,
    /// It was given at the start, by the environment or `--dev`.
    pub is_static: bool,
}

/// A key to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeKey {
    /// What it is for.
    pub description: String,
}

/// A key that gets a new secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateKey {
    /// Seconds for which the old secret is still accepted.
    pub grace_s: u64,
}

/// A key and its secret: shown once.
#[derive(Clone, Serialize, Deserialize)]
pub struct NewKey {
    /// The access key.
    pub access_key: String,
    /// The secret.
    pub secret: String,
}

/// One line of the answer of a long operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// How far it has come.
    Progress(serde_json::Value),
    /// It has ended; the last line.
    Report(serde_json::Value),
    /// It has failed; the last line.
    Failed(String),
}
