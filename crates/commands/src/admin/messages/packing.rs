//! The state of packing, and requests to pack.

use serde::{Deserialize, Serialize};

/// The totals of packing over all buckets, and the work of the packing service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingState {
    /// Setting of the store: `off`, `auto`, or the longest partition.
    pub setting: String,
    /// Seconds without a change after which an object is packed.
    pub settled_after_s: u64,
    /// Totals over all buckets.
    pub figures: PackFigures,
    /// Seconds since the figures were counted; `None` if they were not.
    pub counted_s_ago: Option<u64>,
    /// Groups that the service has written since it started.
    pub groups_written: u64,
    /// Objects that the service has packed.
    pub objects_packed: u64,
    /// Bytes of the objects packed.
    pub bytes_packed: u64,
    /// Current packing rate in bytes per second.
    pub bytes_per_s: u64,
    /// Groups whose space the service has released.
    pub groups_released: u64,
    /// Groups that cannot be released, because too many chunks of a directory are lost.
    pub unreadable_groups: u64,
    /// Stripes of some of the unreadable groups.
    pub unreadable_stripes: Vec<String>,
}

/// Copies of the most-read partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesState {
    /// Number of copies.
    pub copies: u64,
    /// Bytes of the copies.
    pub bytes: u64,
    /// Maximum number of bytes of copies.
    pub budget_bytes: u64,
    /// Copies made since the service started.
    pub made: u64,
    /// Copies dropped since the service started.
    pub dropped: u64,
}

/// Figures of packed, dead and waiting objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackFigures {
    /// Number of live objects in packed groups.
    pub live_objects: u64,
    /// Bytes of live objects in packed groups.
    pub live_bytes: u64,
    /// Number of objects in packed groups that were overwritten or deleted since.
    pub dead_objects: u64,
    /// Bytes of dead objects in packed groups.
    pub dead_bytes: u64,
    /// Number of small objects with their own stripe that packing would take.
    pub waiting_objects: u64,
    /// Bytes of waiting objects.
    pub waiting_bytes: u64,
    /// Number of waiting objects that have settled.
    pub settled_objects: u64,
    /// Bytes of waiting objects that have settled.
    pub settled_bytes: u64,
    /// Number of packed groups.
    pub groups: u64,
    /// Bytes of the packed groups' partitions, without parities.
    pub packed_bytes: u64,
}

/// The packing status, bucket by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingStatus {
    /// Totals over all buckets; `None` if no process has started packing.
    pub packing: Option<PackingState>,
    /// Buckets in the order of their names.
    pub buckets: Vec<PackedBucket>,
}

/// The packing status of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedBucket {
    /// Name of the bucket.
    pub bucket: String,
    /// Length in bytes of the partitions into which it is packed, as far as the packer's memory allows; `None` if it is
    /// not packed.
    pub partition_len: Option<u32>,
    /// Bytes that fill a group of these partitions.
    pub group_bytes: Option<u64>,
    /// Reason why it is not packed.
    pub reason: Option<String>,
    /// Figures of the last count.
    pub figures: PackFigures,
    /// Seconds since the last count.
    pub counted_s_ago: u64,
    /// Cold and sealed data; `None` if nothing is to be sealed.
    #[serde(default)]
    pub sealed: Option<SealedState>,
}

/// A request to pack now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackNow {
    /// Only bucket to pack; `None` for all.
    pub bucket: Option<String>,
    /// Whether to also pack objects that have not settled, and objects that do not fill a group of the usual size.
    pub now: bool,
    /// Whether to then seal cold data, in buckets that have a wide profile.
    #[serde(default)]
    pub cold: bool,
}

/// A bucket's cold data, and the part of it that is sealed into wide stripes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedState {
    /// Profiles that cold data comes under; empty if no more is sealed.
    pub profile: String,
    /// Number of cold packed stripes.
    pub cold_stripes: u64,
    /// Number of cold stripes whose partitions are all in wide stripes.
    pub sealed_stripes: u64,
    /// Number of cold stripes of which only some partitions are in wide stripes.
    pub half_sealed: u64,
    /// Number of cold partitions that wait for others.
    pub waiting: u64,
    /// Reason why they wait.
    pub held_up: Option<String>,
    /// Number of cold stripes too short to be sealed: those of small objects that are not packed, and the last ones of
    /// large objects.
    pub not_packed: u64,
    /// Live bytes in these short stripes.
    pub not_packed_bytes: u64,
    /// Racks that the profile lacks, and cases in which sealing makes data less durable, as text.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Number of local parities moved so far to the racks that change most.
    #[serde(default)]
    pub swapped: u64,
    /// Number of sparse wide stripes emptied so far into others.
    #[serde(default)]
    pub emptied: u64,
}

/// The cold data of all buckets, and the part of it that is sealed into wide stripes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedTotals {
    /// Number of cold stripes.
    pub cold_stripes: u64,
    /// Number of cold stripes whose partitions are all in wide stripes.
    pub sealed_stripes: u64,
    /// Number of cold stripes of which only some partitions are in wide stripes.
    pub half_sealed: u64,
    /// Number of cold partitions that wait for others.
    pub waiting: u64,
    /// Number of buckets in which partitions wait.
    pub waiting_buckets: u64,
    /// Why they wait in the bucket where most of them do.
    pub held_up: Option<String>,
}

impl SealedTotals {
    /// Returns the sum over buckets; `None` if nothing in them is cold.
    pub fn of<'a>(buckets: impl IntoIterator<Item = &'a SealedState>) -> Option<Self> {
        let (mut sum, mut most_waiting) = (Self::default(), 0);
        for bucket in buckets {
            sum.cold_stripes += bucket.cold_stripes;
            sum.sealed_stripes += bucket.sealed_stripes;
            sum.half_sealed += bucket.half_sealed;
            sum.waiting += bucket.waiting;
            sum.waiting_buckets += u64::from(bucket.waiting > 0);
            if bucket.waiting > most_waiting && bucket.held_up.is_some() {
                most_waiting = bucket.waiting;
                sum.held_up.clone_from(&bucket.held_up);
            }
        }
        (sum != Self::default()).then_some(sum)
    }
}
