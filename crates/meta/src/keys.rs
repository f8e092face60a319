//! The key space: which row stands under which key.
//!
//! ```text
//! c                                       Cluster
//! b/<bucket>                              Bucket
//! o/<bucket>\0<key>                       Object: the current version
//! v/<bucket>\0<key>\0<version>            Object: versions that are not current
//! k/<segment id:16><number:4>             Block, for objects of many blocks
//! s/<stripe:16>                           Stripe
//! p                                       ClosedSites: no set is written with these any more
//! p/<site:4><placement:8>                 Placement: sets of sites in use; with site 0 the set's own row
//! r/<placement:8><stripe:16>              (empty) the reverse index
//! d/<stripe:16>                           (empty) stripes in debt
//! q/<stripe:16>                           (empty) stripes with open entries: their chunks are being changed
//! y/<stripe:16>                           (empty) packed stripes of which chunks have copies
//! h/<stripe:16>                           (empty) packed stripes that are to be looked at: something in them may be dead
//! j/<bucket>\0<key>                       Fence: writes to an object of an origin
//! n/<site:4>                              Site
//! i/<writer:8><first sequence:8>          Intent
//! m/<segment id:16>                       PendingSegment
//! g/<stripe or segment id:16><tx:16>      Garbage; where objects were packed, under the stripe that has them now
//! u/<bucket>\0<key>\0<upload id:16>       Upload
//! t/<upload id:16><number:4>              UploadPart
//! x/<upload id:16><tx:16>                 AbandonedParts
//! a/<access key>                          AccessKey
//! l                                       Leader
//! f/<role>/<name>                         Process: what a running process reads
//! w/repair                                RepairWork
//! w/scrub                                 ScrubWork
//! w/movement                              MovementWork
//! w/packing                               PackingWork
//! w/copies                                CopiesWork
//! w/packing/<bucket>                      PackedBucket
//! z                                       Migration: this metadata is moved to or from another engine
//! ```
//!
//! Numbers are big-endian, so that keys sort as numbers do. Bucket names and object keys hold no NUL
//! (`client` refuses it), so `\0` ends them and keys sort as S3 lists them. The reverse index has one row
//! for a stripe, under the set of sites that holds it, instead of one for each chunk: a site's stripes are
//! found through the placements that contain the site.

use bytes::{BufMut, Bytes, BytesMut};
use striate_core::{SiteId, StripeId};

fn build(prefix: &[u8], parts: &[&[u8]]) -> Bytes {
    let len = prefix.len() + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut key = BytesMut::with_capacity(len);
    key.put_slice(prefix);
    parts.iter().for_each(|part| key.put_slice(part));
    key.freeze()
}

/// The cluster's own row.
pub fn cluster() -> Bytes {
    Bytes::from_static(b"c")
}

/// The mark of a migration ([`crate::migration`]).
pub fn migration() -> Bytes {
    Bytes::from_static(b"z")
}

/// Who does what must happen in one place.
pub fn leader() -> Bytes {
    Bytes::from_static(b"l")
}

/// A running process.
pub fn process(role: &str, name: &str) -> Bytes {
    build(b"f/", &[role.as_bytes(), b"/", name.as_bytes()])
}

/// Prefix of all running processes.
pub const PROCESSES: &[u8] = b"f/";

/// How far the repair service has come.
pub fn repair_work() -> Bytes {
    Bytes::from_static(b"w/repair")
}

/// How far the scrub has come.
pub fn scrub_work() -> Bytes {
    Bytes::from_static(b"w/scrub")
}

/// What is moved, and what for.
pub fn movement_work() -> Bytes {
    Bytes::from_static(b"w/movement")
}

/// What is packed, over all buckets.
pub fn packing_work() -> Bytes {
    Bytes::from_static(b"w/packing")
}

/// Which process packs by hand.
pub fn packing_turn() -> Bytes {
    Bytes::from_static(b"w/packing-turn")
}

/// What copies of partitions there are.
pub fn copies_work() -> Bytes {
    Bytes::from_static(b"w/copies")
}

/// What is packed of a bucket.
pub fn packed_bucket(name: &str) -> Bytes {
    build(PACKED_BUCKETS, &[name.as_bytes()])
}

/// Prefix of what is packed of each bucket; the rest of the key is the bucket's name.
pub const PACKED_BUCKETS: &[u8] = b"w/packing/";

/// A bucket.
pub fn bucket(name: &str) -> Bytes {
    build(b"b/", &[name.as_bytes()])
}

/// Prefix of all buckets.
pub const BUCKETS: &[u8] = b"b/";

/// Writes to an object of an origin.
pub fn fence(bucket: &str, key: &str) -> Bytes {
    build(FENCES, &[bucket.as_bytes(), b"\0", key.as_bytes()])
}

/// Prefix of all fences.
pub const FENCES: &[u8] = b"j/";

/// The current version of an object.
pub fn object(bucket: &str, key: &str) -> Bytes {
    build(b"o/", &[bucket.as_bytes(), b"\0", key.as_bytes()])
}

/// Prefix of a bucket's objects; the rest of the key is the object's key.
pub fn objects(bucket: &str) -> Bytes {
    build(b"o/", &[bucket.as_bytes(), b"\0"])
}

/// The bucket of an object's row key.
pub fn bucket_of(key: &[u8]) -> Option<&str> {
    let name = key.strip_prefix(b"o/")?.split(|&byte| byte == 0).next()?;
    std::str::from_utf8(name).ok()
}

/// A version that is not current.
pub fn version(bucket: &str, key: &str, version: &[u8; 16]) -> Bytes {
    build(b"v/", &[bucket.as_bytes(), b"\0", key.as_bytes(), b"\0", version])
}

/// A block of a segment.
pub fn block(segment: &[u8; 16], number: u32) -> Bytes {
    build(b"k/", &[segment, &number.to_be_bytes()])
}

/// Prefix of a segment's blocks.
pub fn blocks(segment: &[u8; 16]) -> Bytes {
    build(b"k/", &[segment])
}

/// A stripe whose chunks are being changed.
pub fn change(stripe: StripeId) -> Bytes {
    build(b"q/", &[&stripe.to_bytes()])
}

/// Prefix of all stripes whose chunks are being changed.
pub const CHANGES: &[u8] = b"q/";

/// A stripe of which chunks have copies.
pub fn copies(stripe: StripeId) -> Bytes {
    build(b"y/", &[&stripe.to_bytes()])
}

/// Prefix of all stripes of which chunks have copies.
pub const COPIES: &[u8] = b"y/";

/// The mark of a packed stripe: something in it may be dead. Put blindly, so that nobody conflicts over it.
pub fn mark(stripe: StripeId) -> Bytes {
    build(b"h/", &[&stripe.to_bytes()])
}

/// Prefix of all marks.
pub const MARKS: &[u8] = b"h/";

/// A stripe.
pub fn stripe(stripe: StripeId) -> Bytes {
    build(b"s/", &[&stripe.to_bytes()])
}

/// Prefix of all stripes.
pub const STRIPES: &[u8] = b"s/";

/// The stripe that a key made by [`stripe`], [`debt`] or [`mark`] names.
pub fn stripe_of(key: &[u8]) -> Option<StripeId> {
    Some(StripeId::from_bytes(key.get(2..)?.try_into().ok()?))
}

/// The number of a set of sites: a 64-bit FNV-1a hash of the sorted site numbers.
pub fn placement_of(sites: impl IntoIterator<Item = SiteId>) -> u64 {
    let mut sorted: Vec<u32> = sites.into_iter().map(|site| site.0).collect();
    sorted.sort_unstable();
    let bytes = sorted.into_iter().flat_map(u32::to_be_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Prefix of all sets of sites.
pub const PLACEMENTS: &[u8] = b"p/";

/// A set of sites, under one of its sites.
pub fn placement(site: SiteId, placement: u64) -> Bytes {
    build(b"p/", &[&site.0.to_be_bytes(), &placement.to_be_bytes()])
}

/// The own row of a set of sites: as long as it is there stripes may be named under the set.
pub fn set(placement: u64) -> Bytes {
    self::placement(SiteId(0), placement)
}

/// Sites that no set is written with any more.
pub fn closed() -> Bytes {
    Bytes::from_static(b"p")
}

/// Prefix of the sets of sites that contain `site`.
pub fn placements(site: SiteId) -> Bytes {
    build(b"p/", &[&site.0.to_be_bytes()])
}

/// The placement that a key made by [`placement`] names.
pub fn placement_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(6..)?.try_into().ok()?))
}

/// A stripe in the reverse index.
pub fn reverse(placement: u64, stripe: StripeId) -> Bytes {
    build(b"r/", &[&placement.to_be_bytes(), &stripe.to_bytes()])
}

/// Prefix of the reverse index.
pub const REVERSES: &[u8] = b"r/";

/// Prefix of a placement's stripes.
pub fn reverses(placement: u64) -> Bytes {
    build(b"r/", &[&placement.to_be_bytes()])
}

/// The placement under which a key made by [`reverse`] names a stripe.
pub fn reverse_placement(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(2..10)?.try_into().ok()?))
}

/// The stripe that a key made by [`reverse`] names.
pub fn reverse_stripe(key: &[u8]) -> Option<StripeId> {
    Some(StripeId::from_bytes(key.get(10..)?.try_into().ok()?))
}

/// A stripe in debt.
pub fn debt(stripe: StripeId) -> Bytes {
    build(b"d/", &[&stripe.to_bytes()])
}

/// Prefix of all debt.
pub const DEBTS: &[u8] = b"d/";

/// A site.
pub fn site(site: SiteId) -> Bytes {
    build(b"n/", &[&site.0.to_be_bytes()])
}

/// Prefix of all sites.
pub const SITES: &[u8] = b"n/";

/// A site of the memory tier. Programs that know no such tier look at [`SITES`] only.
pub fn memory_site(site: SiteId) -> Bytes {
    build(b"e/", &[&site.0.to_be_bytes()])
}

/// Prefix of all sites of the memory tier.
pub const MEMORY_SITES: &[u8] = b"e/";

/// A writer's reservation of stripe names.
pub fn intent(writer: u64, first_sequence: u64) -> Bytes {
    build(b"i/", &[&writer.to_be_bytes(), &first_sequence.to_be_bytes()])
}

/// Prefix of all intents.
pub const INTENTS: &[u8] = b"i/";

/// A segment that belongs to no object or part yet.
pub fn pending(segment: &[u8; 16]) -> Bytes {
    build(b"m/", &[segment])
}

/// Prefix of all pending segments.
pub const PENDING: &[u8] = b"m/";

/// What nothing names any more; `tx` makes rows of one stripe or segment distinct.
pub fn garbage(stripe_or_segment: &[u8; 16], tx: u128) -> Bytes {
    build(b"g/", &[stripe_or_segment, &tx.to_be_bytes()])
}

/// Prefix of the garbage of one stripe or segment.
pub fn garbage_of(stripe_or_segment: &[u8; 16]) -> Bytes {
    build(b"g/", &[stripe_or_segment])
}

/// Prefix of all garbage.
pub const GARBAGE: &[u8] = b"g/";

/// A multipart upload.
pub fn upload(bucket: &str, key: &str, id: &[u8; 16]) -> Bytes {
    build(b"u/", &[bucket.as_bytes(), b"\0", key.as_bytes(), b"\0", id])
}

/// Prefix of a bucket's uploads.
pub fn uploads(bucket: &str) -> Bytes {
    build(b"u/", &[bucket.as_bytes(), b"\0"])
}

/// A part of an upload.
pub fn part(upload: &[u8; 16], number: u32) -> Bytes {
    build(b"t/", &[upload, &number.to_be_bytes()])
}

/// Prefix of an upload's parts.
pub fn parts(upload: &[u8; 16]) -> Bytes {
    build(b"t/", &[upload])
}

/// Parts of an upload that are to be taken down; `tx` makes rows of one upload distinct.
pub fn abandoned(upload: &[u8; 16], tx: u128) -> Bytes {
    build(b"x/", &[upload, &tx.to_be_bytes()])
}

/// Prefix of all abandoned parts.
pub const ABANDONED: &[u8] = b"x/";

/// An access key.
pub fn access_key(name: &str) -> Bytes {
    build(b"a/", &[name.as_bytes()])
}

/// Prefix of all access keys.
pub const ACCESS_KEYS: &[u8] = b"a/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_keys_name_their_stripe() {
        let id = StripeId::new(7, 9);
        assert_eq!(stripe_of(&stripe(id)), Some(id));
        assert_eq!(stripe_of(&debt(id)), Some(id));
        assert_eq!(reverse_stripe(&reverse(3, id)), Some(id));
        assert_eq!(placement_number(&placement(SiteId(4), 99)), Some(99));
    }

    #[test]
    fn a_placement_is_a_set() {
        let of = |sites: &[u32]| placement_of(sites.iter().copied().map(SiteId));
        assert_eq!(of(&[1, 2, 3]), of(&[3, 1, 2]));
        assert_ne!(of(&[1, 2, 3]), of(&[1, 2, 4]));
    }

    #[test]
    fn objects_of_one_bucket_never_sort_among_those_of_another() {
        assert!(object("a", "\u{10ffff}") < objects("a-b") || objects("a-b") < objects("a"));
        assert!(
            object("ab", "x").starts_with(&objects("ab")) && !object("ab", "x").starts_with(&objects("a"))
        );
    }
}
