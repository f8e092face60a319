//! What is packed, and what is to be.

use serde::{Deserialize, Serialize};

/// What is packed, over all buckets, and what the service that packs has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingState {
    /// What the store is told: `off`, `auto`, or the longest partition.
    pub setting: String,
    /// Seconds for which an object must not have changed before it is packed.
    pub settled_after_s: u64,
    /// The sums over all buckets.
    pub figures: PackFigures,
    /// How long ago they were counted; none where they were not.
    pub counted_s_ago: Option<u64>,
    /// Groups that the service has written since it began.
    pub groups_written: u64,
    /// Objects that it has packed.
    pub objects_packed: u64,
    /// Bytes of these.
    pub bytes_packed: u64,
    /// Bytes packed in a second, of late.
    pub bytes_per_s: u64,
    /// Groups whose space it has given back.
    pub groups_released: u64,
    /// Groups that it cannot release: too many chunks of a directory are lost.
    pub unreadable_groups: u64,
    /// The stripes of some of them.
    pub unreadable_stripes: Vec<String>,
}

/// Copies of the partitions that are read most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesState {
    /// How many there are.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that they may take.
    pub budget_bytes: u64,
    /// Copies made since the service began.
    pub made: u64,
    /// Copies dropped.
    pub dropped: u64,
}

/// How much is packed, lives, is dead and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackFigures {
    /// Objects in packed groups.
    pub live_objects: u64,
    /// Bytes of these.
    pub live_bytes: u64,
    /// Objects in packed groups that were overwritten or deleted since.
    pub dead_objects: u64,
    /// Bytes of these.
    pub dead_bytes: u64,
    /// Small objects with a stripe of their own, which packing would take.
    pub waiting_objects: u64,
    /// Bytes of these.
    pub waiting_bytes: u64,
    /// Of these, objects that have settled.
    pub settled_objects: u64,
    /// Bytes of these.
    pub settled_bytes: u64,
    /// Packed groups.
    pub groups: u64,
    /// Bytes of their partitions, without parities.
    pub packed_bytes: u64,
}

/// What is packed, bucket by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingStatus {
    /// Over all buckets; none where nobody has begun.
    pub packing: Option<PackingState>,
    /// The buckets, in the order of their names.
    pub buckets: Vec<PackedBucket>,
}

/// What is packed of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedBucket {
    /// Its name.
    pub bucket: String,
    /// Bytes of the partitions into which it is packed, as far as the packer's memory allows; none where it is not.
    pub partition_len: Option<u32>,
    /// Bytes that fill a group of these partitions.
    pub group_bytes: Option<u64>,
    /// Why it is not packed.
    pub reason: Option<String>,
    /// What was counted.
    pub figures: PackFigures,
    /// How long ago.
    pub counted_s_ago: u64,
    /// What is cold, and sealed; none where nothing is to be.
    #[serde(default)]
    pub sealed: Option<SealedState>,
}

/// What is to be packed at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackNow {
    /// This bucket alone.
    pub bucket: Option<String>,
    /// Also what has not settled, and what fills no group of the usual size.
    pub now: bool,
    /// Then seal what is cold, where buckets say into what.
    #[serde(default)]
    pub cold: bool,
}

/// What is cold of a bucket, and sealed into wide stripes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedState {
    /// The profile of its wide stripes.
    pub profile: String,
    /// Packed stripes that are cold.
    pub cold_stripes: u64,
    /// Of these, stripes of which all partitions are in wide stripes,
    pub sealed_stripes: u64,
    /// and some of them.
    pub half_sealed: u64,
    /// Cold partitions that wait for others.
    pub waiting: u64,
    /// Why they wait.
    pub held_up: Option<String>,
    /// Cold stripes that are too short to be sealed: of small objects that are not packed, and the last ones of large objects.
    pub not_packed: u64,
    /// Bytes that live in them.
    pub not_packed_bytes: u64,
    /// What racks lack for the profile, and where sealing makes data less durable, in words.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Local parities that went to the racks that change most, at all looks until now.
    #[serde(default)]
    pub swapped: u64,
}
