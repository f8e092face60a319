//! The key space: the key of each kind of row.
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
//! Numbers are big-endian, so keys sort as numbers do. Bucket names and object keys contain no NUL (`client` refuses
//! it), so `\0` ends them and keys sort as S3 lists them. The reverse index has one row per stripe, under the set of
//! sites that holds it, instead of one per chunk: a site's stripes are found through the placements that contain the
//! site.

use bytes::{BufMut, Bytes, BytesMut};
use striate_core::{SiteId, StripeId};

fn build(prefix: &[u8], parts: &[&[u8]]) -> Bytes {
    let len = prefix.len() + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut key = BytesMut::with_capacity(len);
    key.put_slice(prefix);
    parts.iter().for_each(|part| key.put_slice(part));
    key.freeze()
}

/// Key of the cluster's own row.
pub fn cluster() -> Bytes {
    Bytes::from_static(b"c")
}

/// Key of the mark of a migration ([`crate::migration`]).
pub fn migration() -> Bytes {
    Bytes::from_static(b"z")
}

/// Key of the leader's row: the process that does the work which must happen in one place.
pub fn leader() -> Bytes {
    Bytes::from_static(b"l")
}

/// Key of a running process.
pub fn process(role: &str, name: &str) -> Bytes {
    build(b"f/", &[role.as_bytes(), b"/", name.as_bytes()])
}

/// Prefix of all running processes.
pub const PROCESSES: &[u8] = b"f/";

/// Key of the repair service's progress.
pub fn repair_work() -> Bytes {
    Bytes::from_static(b"w/repair")
}

/// Key of the scrub's progress.
pub fn scrub_work() -> Bytes {
    Bytes::from_static(b"w/scrub")
}

/// Key of the current movements and their reasons.
pub fn movement_work() -> Bytes {
    Bytes::from_static(b"w/movement")
}

/// Key of the packing totals over all buckets.
pub fn packing_work() -> Bytes {
    Bytes::from_static(b"w/packing")
}

/// Key of the turn of manual packing: the process that runs it.
pub fn packing_turn() -> Bytes {
    Bytes::from_static(b"w/packing-turn")
}

/// Key of the list of partition copies.
pub fn copies_work() -> Bytes {
    Bytes::from_static(b"w/copies")
}

/// Key of the packing figures of a bucket.
pub fn packed_bucket(name: &str) -> Bytes {
    build(PACKED_BUCKETS, &[name.as_bytes()])
}

/// Prefix of the packing figures of all buckets; the rest of the key is the bucket's name.
pub const PACKED_BUCKETS: &[u8] = b"w/packing/";

/// Key of a bucket.
pub fn bucket(name: &str) -> Bytes {
    build(b"b/", &[name.as_bytes()])
}

/// Prefix of all buckets.
pub const BUCKETS: &[u8] = b"b/";

/// Key of the fence of an object of an origin, which records writes to it.
pub fn fence(bucket: &str, key: &str) -> Bytes {
    build(FENCES, &[bucket.as_bytes(), b"\0", key.as_bytes()])
}

/// Prefix of all fences.
pub const FENCES: &[u8] = b"j/";

/// Key of the current version of an object.
pub fn object(bucket: &str, key: &str) -> Bytes {
    build(b"o/", &[bucket.as_bytes(), b"\0", key.as_bytes()])
}

/// Prefix of the objects of all buckets.
pub const OBJECTS: &[u8] = b"o/";

/// Prefix of a bucket's objects; the rest of the key is the object's key.
pub fn objects(bucket: &str) -> Bytes {
    build(b"o/", &[bucket.as_bytes(), b"\0"])
}

/// Returns the bucket of an object's row key.
pub fn bucket_of(key: &[u8]) -> Option<&str> {
    let name = key.strip_prefix(b"o/")?.split(|&byte| byte == 0).next()?;
    std::str::from_utf8(name).ok()
}

/// Key of a version that is not current.
pub fn version(bucket: &str, key: &str, version: &[u8; 16]) -> Bytes {
    build(b"v/", &[bucket.as_bytes(), b"\0", key.as_bytes(), b"\0", version])
}

/// Key of a block of a segment.
pub fn block(segment: &[u8; 16], number: u32) -> Bytes {
    build(b"k/", &[segment, &number.to_be_bytes()])
}

/// Prefix of a segment's blocks.
pub fn blocks(segment: &[u8; 16]) -> Bytes {
    build(b"k/", &[segment])
}

/// Key of a stripe whose chunks are being changed.
pub fn change(stripe: StripeId) -> Bytes {
    build(b"q/", &[&stripe.to_bytes()])
}

/// Prefix of all stripes whose chunks are being changed.
pub const CHANGES: &[u8] = b"q/";

/// Key of a stripe of which chunks have copies.
pub fn copies(stripe: StripeId) -> Bytes {
    build(b"y/", &[&stripe.to_bytes()])
}

/// Prefix of all stripes of which chunks have copies.
pub const COPIES: &[u8] = b"y/";

/// Key of a packed stripe's mark: something in it may be dead. It is put without preconditions, so that it causes no
/// conflicts.
pub fn mark(stripe: StripeId) -> Bytes {
    build(b"h/", &[&stripe.to_bytes()])
}

/// Prefix of all marks.
pub const MARKS: &[u8] = b"h/";

/// Key of a stripe.
pub fn stripe(stripe: StripeId) -> Bytes {
    build(b"s/", &[&stripe.to_bytes()])
}

/// Prefix of all stripes.
pub const STRIPES: &[u8] = b"s/";

/// Returns the stripe that a key made by [`stripe`], [`debt`] or [`mark`] names.
pub fn stripe_of(key: &[u8]) -> Option<StripeId> {
    Some(StripeId::from_bytes(key.get(2..)?.try_into().ok()?))
}

/// Returns the number of a set of sites: a 64-bit FNV-1a hash of the sorted site numbers.
pub fn placement_of(sites: impl IntoIterator<Item = SiteId>) -> u64 {
    let mut sorted: Vec<u32> = sites.into_iter().map(|site| site.0).collect();
    sorted.sort_unstable();
    let bytes = sorted.into_iter().flat_map(u32::to_be_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Prefix of all sets of sites.
pub const PLACEMENTS: &[u8] = b"p/";

/// Key of a set of sites, under one of its sites.
pub fn placement(site: SiteId, placement: u64) -> Bytes {
    build(b"p/", &[&site.0.to_be_bytes(), &placement.to_be_bytes()])
}

/// Key of a set's own row: while it exists, stripes may be recorded under the set.
pub fn set(placement: u64) -> Bytes {
    self::placement(SiteId(0), placement)
}

/// Key of the list of sites with which no set is written any more.
pub fn closed() -> Bytes {
    Bytes::from_static(b"p")
}

/// Prefix of the sets of sites that contain `site`.
pub fn placements(site: SiteId) -> Bytes {
    build(b"p/", &[&site.0.to_be_bytes()])
}

/// Returns the placement that a key made by [`placement`] names.
pub fn placement_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(6..)?.try_into().ok()?))
}

/// Key of a stripe in the reverse index.
pub fn reverse(placement: u64, stripe: StripeId) -> Bytes {
    build(b"r/", &[&placement.to_be_bytes(), &stripe.to_bytes()])
}

/// Prefix of the reverse index.
pub const REVERSES: &[u8] = b"r/";

/// Prefix of a placement's stripes.
pub fn reverses(placement: u64) -> Bytes {
    build(b"r/", &[&placement.to_be_bytes()])
}

/// Returns the placement under which a key made by [`reverse`] names a stripe.
pub fn reverse_placement(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(2..10)?.try_into().ok()?))
}

/// Returns the stripe that a key made by [`reverse`] names.
pub fn reverse_stripe(key: &[u8]) -> Option<StripeId> {
    Some(StripeId::from_bytes(key.get(10..)?.try_into().ok()?))
}

/// Key of a stripe in debt.
pub fn debt(stripe: StripeId) -> Bytes {
    build(b"d/", &[&stripe.to_bytes()])
}

/// Prefix of all debt.
pub const DEBTS: &[u8] = b"d/";

/// Key of a site.
pub fn site(site: SiteId) -> Bytes {
    build(b"n/", &[&site.0.to_be_bytes()])
}

/// Prefix of all sites.
pub const SITES: &[u8] = b"n/";

/// Key of a site of the memory tier. Programs that do not know this tier only read [`SITES`].
pub fn memory_site(site: SiteId) -> Bytes {
    build(b"e/", &[&site.0.to_be_bytes()])
}

/// Prefix of all sites of the memory tier.
pub const MEMORY_SITES: &[u8] = b"e/";

/// Key of a writer's reservation of stripe names.
pub fn intent(writer: u64, first_sequence: u64) -> Bytes {
    build(b"i/", &[&writer.to_be_bytes(), &first_sequence.to_be_bytes()])
}

/// Prefix of all intents.
pub const INTENTS: &[u8] = b"i/";

/// Key of a segment that belongs to no object or part yet.
pub fn pending(segment: &[u8; 16]) -> Bytes {
    build(b"m/", &[segment])
}

/// Prefix of all pending segments.
pub const PENDING: &[u8] = b"m/";

/// Key of stripes or segments that nothing names any more; `tx` makes rows of one stripe or segment distinct.
pub fn garbage(stripe_or_segment: &[u8; 16], tx: u128) -> Bytes {
    build(b"g/", &[stripe_or_segment, &tx.to_be_bytes()])
}

/// Prefix of the garbage of one stripe or segment.
pub fn garbage_of(stripe_or_segment: &[u8; 16]) -> Bytes {
    build(b"g/", &[stripe_or_segment])
}

/// Prefix of all garbage.
pub const GARBAGE: &[u8] = b"g/";

/// Key of a multipart upload.
pub fn upload(bucket: &str, key: &str, id: &[u8; 16]) -> Bytes {
    build(b"u/", &[bucket.as_bytes(), b"\0", key.as_bytes(), b"\0", id])
}

/// Prefix of a bucket's uploads.
pub fn uploads(bucket: &str) -> Bytes {
    build(b"u/", &[bucket.as_bytes(), b"\0"])
}

/// Key of a part of an upload.
pub fn part(upload: &[u8; 16], number: u32) -> Bytes {
    build(b"t/", &[upload, &number.to_be_bytes()])
}

/// Prefix of an upload's parts.
pub fn parts(upload: &[u8; 16]) -> Bytes {
    build(b"t/", &[upload])
}

/// Key of parts of an upload that are to be removed; `tx` makes rows of one upload distinct.
pub fn abandoned(upload: &[u8; 16], tx: u128) -> Bytes {
    build(b"x/", &[upload, &tx.to_be_bytes()])
}

/// Prefix of all abandoned parts.
pub const ABANDONED: &[u8] = b"x/";

/// Key of an access key.
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
