//! Messages between commands and server over the admin socket.
//!
//! | request | answer |
//! |--|--|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/buckets`, `POST /v1/buckets`, `GET`, `POST` ([`SetBucket`]) or `DELETE /v1/buckets/NAME` | [`BucketInfo`] |
//! | `GET /v1/keys`, `POST /v1/keys`, `POST /v1/keys/NAME/rotate`, `POST /v1/keys/NAME/revoke` | [`KeySummary`], [`NewKey`] |
//! | `GET /v1/profile`, `POST /v1/profile` ([`ChooseProfile`]) | [`ProfileState`] |
//! | `POST /v1/disks/replace` ([`DiskPath`]) | [`ReplaceOutcome`] |
//! | `POST /v1/disks/add`, `/v1/disks/resume`, `/v1/disks/remove` ([`DiskPath`]) | [`DiskOutcome`] |
//! | `POST /v1/disks/drain` ([`DrainDisk`]) | lines of [`Line`], the report a [`DiskOutcome`] |
//! | `POST /v1/explain` ([`Explain`]) | [`Explanation`] |
//! | `GET /v1/upgrade`, `POST /v1/upgrade/finalize` | [`FormatsState`] |
//! | `GET /v1/packing`, `GET /v1/packing/NAME` | [`PackingStatus`] |
//! | `POST /v1/packing/run` ([`PackNow`]), `POST /v1/packing/undo/NAME` | lines of [`Line`] |
//! | `POST /v1/heal`, `POST /v1/verify`, `POST /v1/verify/remove-orphans` | lines of [`Line`] |
//! | `GET /v1/unreadable` | lines of JSON: bucket and key of each object, then a report |
//! | `GET /v1/meta`, `POST /v1/meta` | rows as JSON lines, see `striate::admin` |
//!
//! A reply with a status other than 200 carries [`Refusal`].

mod cache;
mod losses;
mod packing;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use striate_client::{ColdChange, ReadExplanation, SettingChange};
use striate_core::{ClusterId, Formats, LoadReport, Packing, Profile, StorageClass};

pub use self::cache::{CacheState, FailingOriginState, MemorySiteState, OriginState, ServedState};
pub use self::losses::{LossState, ProfileLosses};
pub use self::packing::{
    CopiesState, PackFigures, PackNow, PackedBucket, PackingState, PackingStatus, SealedState, SealedTotals,
};

/// Beginning of the warning about buckets' cold data; the name of one of them follows.
pub const COLD_DATA_OF: &str = "cold data of ";

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Cause and remedy.
    pub error: String,
}

/// The state of a whole store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Cluster of the store.
    pub cluster: ClusterId,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// URL of the S3 endpoint for programs on this machine.
    pub endpoint: String,
    /// Default profile.
    pub profile: Profile,
    /// Placement of the default profile's chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementState>,
    /// What may still be lost; `None` if that is not known now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<LossState>,
    /// Sites, without retired ones.
    pub sites: Vec<SiteState>,
    /// Metadata mirrors.
    pub mirrors: Vec<MirrorState>,
    /// Stripes in debt; counting stops at [`DEBT_COUNT_LIMIT`].
    pub debt_stripes: u64,
    /// Progress of repair; `None` if no process has started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairState>,
    /// Moves of chunks; `None` if no process has started them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movement: Option<MovementState>,
    /// Progress of the scrub; `None` if no process has started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubState>,
    /// State of packing; `None` if no process has started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<PackingState>,
    /// Cold data of all buckets; `None` if nothing is cold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<SealedTotals>,
    /// Copies of the most-read partitions; `None` if no process has started them.
    #[serde(default)]
    pub copies: Option<CopiesState>,
    /// State of the memory tier; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheState>,
    /// Requests to other S3 stores; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origins: Option<OriginState>,
    /// Formats in force, and the processes that block newer ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<FormatsState>,
    /// Warnings for the operator, as text; empty if nothing is wrong.
    pub warnings: Vec<String>,
    /// What an operator may want to know although nothing is wrong. All is well if this is empty too.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Capacity of all sites; file systems that several share are counted once.
    pub capacity: Capacity,
}

/// The placement of the default profile's chunks ([`striate_plan::PlacementRule`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementState {
    /// Number of racks with sites.
    pub racks: usize,
    /// Maximum number of chunks of a stripe in one rack.
    pub chunks_in_a_rack: usize,
    /// Whether data stored under this rule survives the loss of a rack.
    pub tolerates_rack_loss: bool,
}

/// The default profile and others, with what they survive and cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileState {
    /// The default profile first, then others that the sites have places for.
    pub choices: Vec<ProfileLosses>,
}

/// A default profile to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChooseProfile {
    /// The profile.
    pub profile: Profile,
}

/// The formats in force, and the processes that block newer ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatsState {
    /// Formats that are written.
    pub in_force: Formats,
    /// Formats that finalizing an upgrade puts in force; equal to `in_force` if there are no newer ones.
    pub target: Formats,
    /// First release that can use the store once `target` is in force; older programs refuse it.
    pub needs_release: String,
    /// Descriptions of the newer formats' features.
    pub brings: Vec<String>,
    /// Processes that block the newer formats, each with the reason.
    pub holding: Vec<String>,
    /// All known processes.
    pub readers: Vec<ReaderState>,
}

impl FormatsState {
    /// Returns true if there is nothing to put in force.
    pub fn is_finalized(&self) -> bool {
        self.in_force.covers(self.target)
    }
}

/// A process, and the formats that it reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderState {
    /// Kind and name of the process.
    pub who: String,
    /// Version of the process; empty if unknown.
    pub program: String,
    /// Newest formats that the process reads; `None` if it does not answer.
    pub reads: Option<Formats>,
}

/// Maximum number of stripes in debt that a status counts.
pub const DEBT_COUNT_LIMIT: u64 = 100_000;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Size of all file systems.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Payload of the chunks.
    pub payload_bytes: u64,
    /// Bytes of chunks on the disks, with headers and dead records.
    pub disk_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl Status {
    /// Removes the names of objects and buckets, which not all who may read the figures may see.
    pub fn hide_names(&mut self) {
        self.cache.iter_mut().for_each(|cache| cache.volatile_buckets.clear());
        self.origins
            .iter_mut()
            .flat_map(|origins| &mut origins.failing)
            .for_each(|origin| origin.bucket.clear());
        self.movement
            .iter_mut()
            .flat_map(|movement| &mut movement.hottest)
            .for_each(|block| block.object = None);
        let of_cold_data = self.warnings.iter_mut().filter(|warning| warning.starts_with(COLD_DATA_OF));
        of_cold_data.for_each(|warning| *warning = format!("{COLD_DATA_OF}a bucket is not well sealed"));
    }
}

/// The progress of repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairState {
    /// Whether automatic repair is off, so that only `striate heal` repairs.
    pub off: bool,
    /// Stripes known to be incomplete.
    pub stripes_left: u64,
    /// Incomplete stripes that wait for a site.
    pub waiting: u64,
    /// Chunks rebuilt since the process started.
    pub chunks: u64,
    /// Bytes rebuilt since the process started.
    pub bytes: u64,
    /// Current repair rate in bytes per second.
    pub bytes_per_s: u64,
    /// Estimated seconds until full redundancy, excluding stripes that wait for a site; `None` if unknown.
    pub seconds_left: Option<u64>,
    /// Sites that do not answer, or whose disks failed.
    pub silent: Vec<SilentState>,
}

/// A site that does not answer, or whose disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentState {
    /// Number of the site.
    pub site: u32,
    /// Seconds until its chunks are rebuilt elsewhere; 0 if they already are.
    pub rebuilt_after_s: u64,
}

/// The moves of chunks, the balance of the sites' load, and the hottest blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MovementState {
    /// Moves that empty sites and balance how full they are.
    pub levelling: MovesState,
    /// Moves that speed up reads.
    pub optimising: MovesState,
    /// Sites that must give up chunks.
    pub givers: Vec<GiverState>,
    /// Estimated seconds until the givers are done; `None` if unknown.
    pub seconds_left: Option<u64>,
    /// Load imbalance λ of the sites, oldest first, with a sample for each change.
    pub imbalance: Vec<ImbalanceSample>,
    /// Most requested blocks, the hottest first.
    pub hottest: Vec<HotBlockState>,
}

/// Moves of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MovesState {
    /// Whether no process makes these moves.
    pub off: bool,
    /// Chunks moved since the moving process started.
    pub chunks: u64,
    /// Bytes moved since the moving process started.
    pub bytes: u64,
    /// Current rate in chunks per second.
    pub chunks_per_s: f64,
    /// Current rate in bytes per second.
    pub bytes_per_s: u64,
}

/// A site that must give up chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiverState {
    /// Number of the site.
    pub site: u32,
    /// Bytes that it must give up.
    pub bytes: u64,
}

/// The load imbalance of the sites at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImbalanceSample {
    /// Time in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Load of the most loaded site above the mean, in percent of the mean.
    pub percent: f64,
}

/// A frequently requested block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotBlockState {
    /// Stripe of the block.
    pub stripe: String,
    /// Percentage of requests that ask for the block.
    pub percent: f64,
    /// An object that contains the block, as `bucket/key`; `None` if it is unknown or must not be shown.
    pub object: Option<String>,
}

/// The progress of the scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubState {
    /// Number of the cycle, from 1.
    pub cycle: u64,
    /// Results of this cycle so far.
    pub now: ScrubCounts,
    /// Number of chunks on all sites.
    pub total_chunks: u64,
    /// Estimated seconds until the cycle ends.
    pub seconds_left: u64,
    /// Results of the last complete cycle.
    pub last: Option<ScrubCounts>,
}

/// The results of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubCounts {
    /// Number of good chunks.
    pub chunks: u64,
    /// Bytes of good chunks.
    pub bytes: u64,
    /// Number of damaged or missing chunks, which are now in debt.
    pub damaged: u64,
    /// Number of chunks on sites that did not answer.
    pub unknown: u64,
    /// Number of chunks that nothing names; known at the end of a cycle.
    pub orphans: u64,
    /// Number of chunks of which the metadata has no trace; known at the end of a cycle.
    pub unexplained: u64,
}

/// One site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteState {
    /// Number of the site.
    pub site: u32,
    /// Failure domain of the site.
    pub rack: String,
    /// Directory or address of the site.
    pub address: String,
    /// Name in the certificate of the process that serves it, in a cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// `ok`, `draining`, `suspect`, `hanging`, `missing`.
    pub state: String,
    /// Reason why it is not `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Capacity of the site.
    pub capacity: Capacity,
    /// Load of the site.
    pub load: LoadReport,
}

/// One metadata mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorState {
    /// Directory of the mirror.
    pub directory: PathBuf,
    /// Whether it holds everything that was acknowledged.
    pub in_sync: bool,
    /// Problem of the mirror, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes of the mirror on the disk.
    pub bytes: u64,
}

/// A bucket to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewBucket {
    /// Name of the bucket.
    pub name: String,
    /// Profile of the bucket; `None` for the store's default.
    pub profile: Option<Profile>,
    /// Maximum length of a block in bytes; `None` for the store's default.
    pub block_len: Option<u32>,
    /// Number of neighbouring blocks that go to the same sites; `None` for the store's default.
    #[serde(default)]
    pub group_len: Option<u32>,
    /// Packing of the bucket; `None` if its profile or the store decides.
    #[serde(default)]
    pub packing: Option<Packing>,
    /// Origin of the bucket, if its objects are elsewhere.
    #[serde(default)]
    pub origin: Option<NewOrigin>,
    /// Sealing of cold data; `None` for no sealing.
    #[serde(default)]
    pub cold: Option<ColdBucket>,
    /// Storage classes with profiles of their own.
    #[serde(default)]
    pub classes: Vec<ClassOfBucket>,
}

/// The profile of a storage class in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassOfBucket {
    /// Storage class.
    pub class: StorageClass,
    /// Profile of the class; `None` removes it.
    pub profile: Option<Profile>,
    /// Whether a wide profile may need all existing racks.
    #[serde(default)]
    pub without_spare_rack: bool,
}

/// The wide stripes into which a bucket's cold partitions are sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdBucket {
    /// Wide profile.
    pub profile: Profile,
    /// Seconds without a change after which an object is cold.
    pub after_s: u64,
    /// Whether the profile may need all existing racks.
    #[serde(default)]
    pub without_spare_rack: bool,
}

/// An origin of a bucket to create: a bucket of another S3 store. Its secret is sent over the admin socket, and sealed
/// by the server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOrigin {
    /// URL of the other store.
    pub endpoint: String,
    /// Name of the bucket there.
    pub bucket: String,
    /// Region of the bucket.
    pub region: String,
    /// Access key for requests; empty if requests are not signed.
    pub access_key: String,
    /// Secret of the access key.
    pub secret: String,
    /// Milliseconds for which cached facts about an object are used without revalidation.
    pub ttl_ms: u64,
    /// Length of a block in memory, in bytes.
    pub block_len: u32,
}

impl fmt::Debug for NewOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, bucket, access_key, .. } = self;
        let shown = [("endpoint", endpoint), ("bucket", bucket), ("access_key", access_key)];
        shown
            .iter()
            .fold(&mut f.debug_struct("NewOrigin"), |f, (name, value)| f.field(name, value))
            .finish_non_exhaustive()
    }
}

/// The origin of an existing bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// URL of the other store.
    pub endpoint: String,
    /// Name of the bucket there.
    pub bucket: String,
    /// Access key for requests; empty if requests are not signed.
    pub access_key: String,
    /// Milliseconds for which cached facts about an object are used without revalidation.
    pub ttl_ms: u64,
    /// Length of a block in memory, in bytes.
    pub block_len: u32,
}

/// A change of a bucket: all that it names is changed, or nothing. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetBucket {
    /// Packing of the bucket; without a setting its profile or the store decides.
    #[serde(default)]
    pub packing: Option<SettingChange<Packing>>,
    /// Sealing of cold data; without a setting none is sealed.
    #[serde(default)]
    pub cold: Option<SettingChange<ColdChange>>,
    /// Profiles of storage classes; classes not named stay as they are.
    #[serde(default)]
    pub classes: Vec<ClassOfBucket>,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketInfo {
    /// Name of the bucket.
    pub name: String,
    /// Profile of the bucket.
    pub profile: String,
    /// Whether the bucket follows the store's default profile.
    pub default_profile: bool,
    /// Time of creation in milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// Access key of the owner.
    pub owner: String,
    /// Maximum length of a block in bytes; 0 for the store's default.
    pub block_len: u32,
    /// Number of neighbouring blocks that go to the same sites; 0 for the store's default.
    pub group_len: u32,
    /// Packing setting of the bucket itself; `None` if its profile or the store decides.
    #[serde(default)]
    pub packing: Option<String>,
    /// Whether its objects are in memory only.
    #[serde(default)]
    pub volatile: bool,
    /// Origin of the bucket, if its objects are elsewhere.
    #[serde(default)]
    pub origin: Option<OriginInfo>,
    /// Sealing of cold data; `None` for no sealing.
    #[serde(default)]
    pub cold: Option<ColdBucket>,
    /// Storage classes with profiles of their own.
    #[serde(default)]
    pub classes: Vec<ClassOfBucket>,
    /// Cases in which sealing makes its data less durable, or nothing of it is cached when it is read, as text.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Objects whose read to explain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explain {
    /// Bucket and key of each.
    pub objects: Vec<(String, String)>,
    /// Read policy; `None` for the server's own.
    pub policy: Option<String>,
}

/// How objects would be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Objects of this store, in one query.
    #[serde(flatten)]
    pub read: ReadExplanation,
    /// Objects of other S3 stores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<RemoteExplanation>,
}

/// An object of another S3 store, as the replying gateway knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteExplanation {
    /// Bucket of the object here.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Other store, and the bucket there.
    pub origin: String,
    /// What a read would do, as text.
    pub would: String,
    /// Cached ETag of the object; `None` if nothing is known of it.
    pub etag: Option<String>,
    /// Size of the object in bytes.
    pub size: u64,
    /// Age of the cached facts in milliseconds.
    pub known_for_ms: u64,
    /// Maximum age of cached facts in milliseconds.
    pub ttl_ms: u64,
    /// Number of blocks of the object.
    pub blocks: u64,
    /// Number of blocks in memory, as far as this gateway knows.
    pub blocks_in_memory: u64,
    /// State in memory of each of the first blocks, as text.
    #[serde(default)]
    pub first_blocks: Vec<String>,
}

/// A disk of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPath {
    /// Absolute path of its directory.
    pub path: PathBuf,
}

/// A disk to drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainDisk {
    /// Absolute path of its directory.
    pub path: PathBuf,
    /// Whether to report progress until it is empty.
    pub wait: bool,
}

/// Progress of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainProgress {
    /// What is still on the disk, as text.
    pub left: String,
}

/// A disk that was added, drained, resumed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskOutcome {
    /// Its site.
    pub site: u32,
    /// Its directory.
    pub path: PathBuf,
    /// Whether nothing that is needed is on it.
    pub is_empty: bool,
}

/// The outcome of a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceOutcome {
    /// Site that was given up.
    pub old_site: u32,
    /// Site that replaced it.
    pub new_site: u32,
    /// Notes for the operator, as text.
    pub notes: Vec<String>,
}

/// An access key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySummary {
    /// Access key.
    pub access_key: String,
    /// Purpose of the key.
    pub description: String,
    /// Time of creation in milliseconds since the Unix epoch; 0 for the key given at the start.
    pub created_unix_ms: u64,
    /// Whether the key is no longer accepted.
    pub revoked: bool,
    /// Whether the key was given at the start, by the environment or `--dev`.
    pub is_static: bool,
}

/// A key to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeKey {
    /// Purpose of the key.
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
    /// Access key.
    pub access_key: String,
    /// Secret of the key.
    pub secret: String,
}

/// One line of the reply of a long operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Progress so far.
    Progress(serde_json::Value),
    /// Report of the finished operation; the last line.
    Report(serde_json::Value),
    /// Reason why the operation failed; the last line.
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_are_those_of_buckets_too() {
        let (bucket, volatile_buckets) = ("hidden".to_owned(), vec!["hidden".to_owned()]);
        let failing = vec![FailingOriginState { bucket, ..FailingOriginState::default() }];
        let status = serde_json::json!({
            "version": "1", "cluster": ClusterId(1), "uptime_s": 1, "endpoint": "", "profile": "rs(4,2)",
            "sites": [], "mirrors": [], "debt_stripes": 0, "capacity": Capacity::default(),
            "warnings": ["full", format!("{COLD_DATA_OF}hidden: add a rack")],
            "cache": CacheState { volatile_buckets, ..CacheState::default() },
            "origins": OriginState { failing, ..OriginState::default() },
        });
        let mut status: Status = serde_json::from_value(status).unwrap();
        assert!(serde_json::to_string(&status).unwrap().contains("hidden"));
        status.hide_names();
        assert!(!serde_json::to_string(&status).unwrap().contains("hidden"));
        assert_eq!(status.warnings, ["full", "cold data of a bucket is not well sealed"]);
    }
}
