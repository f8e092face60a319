//! Packing and repacking: objects read back at every instant, a change of a row wins over its packing, and space is
//! reclaimed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use striate_client::{
    ClientError, CopyRequest, GetRequest, ObjectAttributes, ObjectStream, ReadOrder, ReadRange,
    WriteCondition,
};
use striate_control::{
    GarbageCollector, PackOptions, PackReport, RepackOutcome, collect_abandoned, heal, liveness, pack_bucket,
    repack_marked, verify,
};
use striate_core::Profile;
use striate_meta::records::{Extent, Object, Stripe, object::Body};
use striate_meta::{ScanRange, keys};
use striate_site::Site;
use striate_stripe::{Packer, stripe_id};

use crate::cluster::{BUCKET, Cluster, content, go_on, one_shot};

pub const OBJECTS: usize = 60;

/// Packs all small objects at once, into small partitions.
pub fn options() -> PackOptions {
    PackOptions {
        settled_after: Duration::ZERO,
        patience: Duration::ZERO,
        partition_len: 64 << 10,
        pace: 1.0,
        ..PackOptions::default()
    }
}

pub fn len(key: usize) -> usize {
    5_000 + 37 * key
}

/// A cluster with small objects, and their packer.
pub struct Packing {
    pub cluster: Cluster,
    packer: Packer,
    /// Default profile of the store.
    default: Profile,
}

impl Packing {
    pub async fn start(profile: &str) -> Self {
        let cluster = Cluster::start(10, profile).await;
        for key in 0..OBJECTS {
            cluster.put(&name(key), &content(key, len(key))).await.unwrap();
        }
        let packer = cluster.client.stripes().packer();
        Self { cluster, packer, default: profile.parse().unwrap() }
    }

    pub async fn pack(&self) -> PackReport {
        self.pack_with(&options()).await
    }

    async fn pack_with(&self, options: &PackOptions) -> PackReport {
        let stripes = self.cluster.client.stripes();
        pack_bucket(stripes, &self.packer, BUCKET, &self.default, options).await.unwrap()
    }

    pub async fn repack(&self) -> Vec<RepackOutcome> {
        let done = repack_marked(self.cluster.client.stripes(), &self.packer, &options()).await.unwrap();
        done.into_iter().map(|(_, what)| what).collect()
    }

    pub async fn extent(&self, key: usize) -> Option<Extent> {
        let row = self.cluster.meta.get(&keys::object(BUCKET, &name(key))).await.unwrap()?;
        match row.record::<Object>().unwrap().body {
            Some(Body::Extent(extent)) => Some(extent),
            _ => None,
        }
    }

    pub async fn rows(&self, prefix: &[u8]) -> usize {
        self.cluster.meta.scan(ScanRange::prefix(prefix), 10_000).await.unwrap().len()
    }

    pub async fn assert_reads(&self, keys: impl IntoIterator<Item = usize>) {
        for key in keys {
            let read = self.cluster.get(&name(key)).await.unwrap();
            assert_eq!(read, content(key, len(key)), "object {key}");
        }
    }

    /// Removes the garbage whose grace is over.
    pub async fn collect(&self) {
        let (stripes, mut collector) = (self.cluster.client.stripes(), GarbageCollector::default());
        for _ in 0..4 {
            collector.round(stripes).await.unwrap();
            stripes.runtime().sleep(stripes.options().garbage_grace).await;
        }
        collector.round(stripes).await.unwrap();
        assert_eq!(self.rows(keys::GARBAGE).await, 0);
    }

    /// Returns the packed groups by the keys of their rows.
    async fn groups(&self) -> BTreeMap<Bytes, Stripe> {
        let rows = self.cluster.meta.scan(ScanRange::prefix(keys::STRIPES), 10_000).await.unwrap();
        let groups = rows.into_iter().map(|row| (row.key.clone(), row.record::<Stripe>().unwrap()));
        groups.filter(|(_, stripe)| stripe.packed_objects > 0).collect()
    }

    pub fn chunks(&self) -> usize {
        self.cluster.sites.iter().map(|site| site.chunks.lock().len()).sum()
    }
}

pub fn name(key: usize) -> String {
    format!("folder/object{key:03}")
}

#[tokio::test(start_paused = true)]
async fn packed_objects_read_back_in_every_way_and_their_old_stripes_become_garbage() {
    for profile in ["rs(4,2)", "lrc(4,2,2)"] {
        let packing = Packing::start(profile).await;
        let report = packing.pack().await;
        assert_eq!((report.overtaken, report.unreadable), (0, 0), "{report:?}");
        assert!(report.groups >= 1 && report.objects > 30, "{report:?}");
        assert_eq!(
            packing.rows(keys::MARKS).await,
            0,
            "all entries live: the marks went with the reservations"
        );
        assert_eq!(packing.rows(keys::INTENTS).await, 1, "the range of the puts");
        packing.assert_reads(0..OBJECTS).await;
        packing.collect().await;
        packing.assert_reads(0..OBJECTS).await;
        let split = OBJECTS as u64 - report.objects;
        assert_eq!(
            packing.rows(keys::STRIPES).await as u64,
            report.groups + split,
            "what fills no group stays as it is"
        );
        let verified = verify(packing.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");

        let client = &packing.cluster.client;
        for (first, last) in [(0, 0), (100, 4_321), (4_999, u64::MAX)] {
            let range = ReadRange::Bytes { first, last: Some(last) };
            let request = GetRequest { range, ..get(7) };
            let mut read = client.get(request).await.unwrap();
            let mut bytes = Vec::new();
            while let Some(piece) = read.body.next().await {
                bytes.extend_from_slice(&piece.unwrap());
            }
            let end = (last as usize).saturating_add(1).min(len(7));
            assert_eq!(bytes, content(7, len(7))[first as usize..end]);
        }
        let copy = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: name(3),
            bucket: BUCKET.to_owned(),
            key: "copy".to_owned(),
            ..CopyRequest::default()
        };
        client.copy(copy).await.unwrap();
        assert_eq!(packing.cluster.get("copy").await.unwrap(), content(3, len(3)));
        let mut parts = client.read_many((0..OBJECTS).map(get).collect(), ReadOrder::Requests);
        let mut many = vec![Vec::new(); OBJECTS];
        while let Some((position, part)) = parts.next().await {
            part.unwrap().pieces.iter().for_each(|piece| many[position].extend_from_slice(piece));
        }
        for (key, read) in many.into_iter().enumerate() {
            assert_eq!(read, content(key, len(key)));
        }
    }
}

fn get(key: usize) -> GetRequest {
    GetRequest { bucket: BUCKET.to_owned(), key: name(key), ..GetRequest::default() }
}

/// No object loses protection that a client asked for.
#[tokio::test(start_paused = true)]
async fn objects_with_a_profile_of_their_own_that_bears_more_are_not_packed() {
    let packing = Packing::start("rs(4,2)").await;
    let of_own = [(0, "rs(4,4)"), (1, "replica(3)"), (2, "rs(3,1)")];
    for (key, profile) in of_own {
        let body = one_shot(&content(key, len(key)));
        packing.cluster.put_as(&name(key), body, Some(profile)).await.unwrap();
    }
    assert!(packing.pack().await.objects > 0);
    let is_packed = async |key: usize| packing.extent(key).await.is_some();
    assert!(!is_packed(0).await && !is_packed(1).await);
    assert!(is_packed(2).await && is_packed(3).await);
    packing.assert_reads(0..OBJECTS).await;
}

#[tokio::test(start_paused = true)]
async fn a_packed_object_is_read_around_lost_sites_and_healed_with_them() {
    let mut packing = Packing::start("rs(4,2)").await;
    packing.pack().await;
    packing.collect().await;
    for _ in 0..2 {
        packing.cluster.retire(0).await;
    }
    packing.assert_reads(0..OBJECTS).await;
    let report = heal(packing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    packing.assert_reads(0..OBJECTS).await;
}

#[tokio::test(start_paused = true)]
async fn overwriting_or_deleting_a_packed_object_leaves_its_neighbours_alone() {
    let packing = Packing::start("rs(4,2)").await;
    packing.pack().await;
    packing.collect().await;
    let stripe = stripe_id(&packing.extent(1).await.unwrap().stripe).unwrap();
    packing.cluster.put(&name(1), b"another").await.unwrap();
    let client = &packing.cluster.client;
    client.delete(BUCKET, &name(2), WriteCondition::default()).await.unwrap();
    assert!(packing.cluster.get(&name(2)).await.is_err());
    assert_eq!(packing.cluster.get(&name(1)).await.unwrap(), b"another");
    packing.assert_reads(3..OBJECTS).await;
    assert_eq!(packing.rows(keys::MARKS).await, 1);
    let found = liveness(client.stripes(), stripe).await.unwrap().unwrap();
    assert_eq!((found.dead_objects, found.dead_bytes), (2, (len(1) + len(2)) as u64));
    assert_eq!(packing.repack().await, [RepackOutcome::Kept], "it is dense enough");
    assert_eq!(packing.rows(keys::MARKS).await, 0);
    packing.assert_reads(3..OBJECTS).await;
}

#[tokio::test(start_paused = true)]
async fn tags_are_not_lost_and_a_description_keeps_the_extent_alive() {
    let packing = Packing::start("rs(4,2)").await;
    let client = &packing.cluster.client;
    packing.pack().await;
    let before = packing.extent(5).await;
    client.set_object_tags(BUCKET, &name(5), [("a".to_owned(), "b".to_owned())].into()).await.unwrap();
    let describe = CopyRequest {
        source_bucket: BUCKET.to_owned(),
        source_key: name(6),
        bucket: BUCKET.to_owned(),
        key: name(6),
        attributes: Some(ObjectAttributes { content_type: "text/plain".to_owned(), ..Default::default() }),
        ..CopyRequest::default()
    };
    client.copy(describe).await.unwrap();
    assert_eq!(packing.extent(5).await, before);
    for key in 0..OBJECTS {
        if ![5, 6].contains(&key) {
            client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
        }
    }
    packing.repack().await;
    packing.collect().await;
    packing.assert_reads([5, 6]).await;
    assert_eq!(client.head(get(6)).await.unwrap().0.attributes.content_type, "text/plain");
}

#[tokio::test(start_paused = true)]
async fn space_comes_back_when_most_is_deleted_and_all_of_it_when_everything_is() {
    let packing = Packing::start("rs(4,2)").await;
    // Pack into several groups.
    packing
        .pack_with(&PackOptions { partition_len: 16 << 10, smallest_partition: 1 << 10, ..options() })
        .await;
    packing.collect().await;
    let live: Vec<usize> = (0..OBJECTS).filter(|key| key % 5 == 0).collect();
    let client = &packing.cluster.client;
    for key in (0..OBJECTS).filter(|key| key % 5 != 0) {
        client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    let done = packing.repack().await;
    assert!(done.len() > 1 && done.iter().all(|what| *what == RepackOutcome::Released), "{done:?}");
    let mut groups: Vec<_> = Vec::new();
    for &key in &live {
        groups.extend(packing.extent(key).await.map(|extent| extent.stripe));
    }
    assert!(groups.len() > 8, "most were packed");
    groups.dedup();
    assert_eq!(groups.len(), 1, "what lived in several groups is in one");
    packing.assert_reads(live.clone()).await;
    packing.collect().await;
    packing.assert_reads(live.clone()).await;
    let stored: usize = packing.cluster.sites.iter().map(|site| stored_bytes(&site.chunks.lock())).sum();
    let needed = live.iter().map(|&key| len(key)).sum::<usize>() * 6 / 4;
    assert!(stored < needed * 5 / 4, "{stored} bytes for {needed}");
    for key in live {
        client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    packing.repack().await;
    packing.collect().await;
    assert_eq!(
        (packing.chunks(), packing.rows(keys::STRIPES).await, packing.rows(keys::MARKS).await),
        (0, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_lives_is_rewritten_into_partitions_of_the_buckets_own_length() {
    const KEYS: std::ops::Range<usize> = 1_000..1_036;
    const LEN: usize = 250_000;
    let packing = Packing::start("rs(4,2)").await;
    let client = &packing.cluster.client;
    for key in KEYS {
        packing.cluster.put(&name(key), &content(key, LEN)).await.unwrap();
    }
    packing
        .pack_with(&PackOptions { partition_len: 16 << 20, smallest_partition: 1 << 10, ..options() })
        .await;
    for key in KEYS.step_by(3) {
        client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    client.set_packing(BUCKET, Some("1MiB".parse().unwrap())).await.unwrap();
    let before = packing.groups().await;
    assert!(before.values().any(|stripe| stripe.chunk_len > 1 << 20));
    let usual = PackOptions { partition_len: 16 << 20, ..options() };
    repack_marked(client.stripes(), &packing.packer, &usual).await.unwrap();
    let mut after = packing.groups().await;
    after.retain(|key, _| !before.contains_key(key));
    assert!(!after.is_empty(), "what lives was rewritten");
    for stripe in after.values() {
        assert!(stripe.chunk_len <= 1 << 20, "{}", stripe.chunk_len);
    }
    for key in KEYS.filter(|key| !(key - KEYS.start).is_multiple_of(3)) {
        assert_eq!(packing.cluster.get(&name(key)).await.unwrap(), content(key, LEN));
    }
}

/// The remains of three groups fill two, and not three of two thirds of the length each.
#[tokio::test(start_paused = true)]
async fn what_lives_in_worn_groups_fills_whole_groups() {
    const KEYS: usize = 3 * OBJECTS;
    let packing = Packing::start("rs(4,2)").await;
    for key in OBJECTS..KEYS {
        packing.cluster.put(&name(key), &content(key, len(key))).await.unwrap();
    }
    packing.pack().await;
    let before = packing.groups().await;
    for key in (0..KEYS).step_by(3) {
        packing.cluster.client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    packing.repack().await;
    let mut after = packing.groups().await;
    after.retain(|key, _| !before.contains_key(key));
    let is_short = |stripe: &&Stripe| stripe.chunk_len < options().partition_len / 8 * 7;
    let short = after.values().filter(is_short).count();
    let counts = (before.len(), after.len(), short);
    assert!(before.len() >= 5 && after.len() >= 3 && short <= 1, "before, after, short: {counts:?}");
    let live: usize = (0..KEYS).filter(|key| key % 3 > 0).map(len).sum();
    let room: usize = after.values().map(|stripe| 4 * stripe.chunk_len as usize).sum();
    assert!(room < live * 6 / 5, "{live} bytes in {room}");
    let found = packing.repack().await;
    assert!(
        found.iter().all(|what| *what == RepackOutcome::Released),
        "nothing is left in old ones: {found:?}"
    );
    packing.assert_reads((0..KEYS).filter(|key| key % 3 > 0)).await;
}

/// Each source group takes one more mark in the transaction that switches its objects' rows.
#[tokio::test(start_paused = true)]
async fn what_lives_in_many_groups_with_neighbouring_keys_is_rewritten() {
    const ROUNDS: usize = 10;
    const KEYS: usize = 200;
    let packing = Packing::start("rs(4,2)").await;
    let small = PackOptions { partition_len: 32 << 10, smallest_partition: 1 << 10, ..options() };
    for round in 0..ROUNDS {
        for key in (round..KEYS).step_by(ROUNDS) {
            packing.cluster.put(&name(key), &content(key, len(key))).await.unwrap();
        }
        packing.pack_with(&small).await;
    }
    packing.collect().await;
    let lives = |key: &usize| !(key / ROUNDS).is_multiple_of(3);
    for key in (0..KEYS).filter(|key| !lives(key)) {
        packing.cluster.client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    let together = PackOptions { partition_len: 1 << 20, ..options() };
    let client = &packing.cluster.client;
    let done = repack_marked(client.stripes(), &packing.packer, &together).await.unwrap();
    let released = done.iter().filter(|(_, what)| *what == RepackOutcome::Released).count();
    assert!(released >= ROUNDS, "{done:?}");
    packing.assert_reads((0..KEYS).filter(lives)).await;
}

/// A transaction holds 1 MiB, and headers make rows long.
#[tokio::test(start_paused = true)]
async fn objects_with_long_headers_are_packed() {
    let packing = Packing::start("rs(4,2)").await;
    for key in 0..OBJECTS {
        let attributes = ObjectAttributes { cache_control: "x".repeat(30_000), ..Default::default() };
        let describe = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: name(key),
            bucket: BUCKET.to_owned(),
            key: name(key),
            attributes: Some(attributes),
            ..CopyRequest::default()
        };
        packing.cluster.client.copy(describe).await.unwrap();
    }
    let report = packing.pack().await;
    assert!(report.objects > 40, "{report:?}");
    packing.assert_reads(0..OBJECTS).await;
}

/// Packing releases a group's memory before it pauses.
#[tokio::test(start_paused = true)]
async fn packing_holds_no_memory_while_it_pauses() {
    let packing = Packing::start("rs(4,2)").await;
    packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(20));
    let (stripes, runtime) = (packing.cluster.client.stripes(), &packing.cluster.runtime);
    let (began, slow) = (runtime.now(), PackOptions { pace: 0.1, ..options() });
    let (mut looks, mut held) = (0, 0);
    let mut work = std::pin::pin!(packing.pack_with(&slow));
    let report = loop {
        match runtime.timeout(Duration::from_millis(5), &mut work).await {
            Ok(report) => break report,
            Err(_) => {
                looks += 1;
                held += u32::from(stripes.budget().view().taken > 0);
            }
        }
    };
    assert!(report.groups > 0 && held > 0, "{report:?}");
    assert!(held * 5 < looks, "{held} of {looks} looks in {:?}", runtime.now() - began);
}

/// Sites that have just joined do not know each other: the packing process then makes the parities.
#[tokio::test(start_paused = true)]
async fn parities_are_made_by_who_packs_where_sites_cannot() {
    for profile in ["rs(4,2)", "lrc(4,2,2)"] {
        let packing = Packing::start(profile).await;
        packing.cluster.neighbours.forget_all();
        let report = packing.pack().await;
        assert!(report.groups >= 1 && report.objects > 30, "{report:?}");
        packing.collect().await;
        let extent = packing.extent(0).await.expect("it was packed");
        let row = packing.cluster.meta.get(&keys::stripe(stripe_id(&extent.stripe).unwrap())).await.unwrap();
        let locations = row.unwrap().record::<Stripe>().unwrap().locations;
        for lost in &locations[..2] {
            let site = packing.cluster.sites.iter().find(|site| site.id().0 == lost.site).unwrap();
            *site.down.lock() = true;
        }
        packing.assert_reads(0..20).await;
    }
}

fn stored_bytes<K>(chunks: &std::collections::BTreeMap<K, (bytes::Bytes, u32)>) -> usize {
    chunks.values().map(|(payload, _)| payload.len()).sum()
}

/// Sites take a while for each chunk: rows change after their objects were read and before they are switched.
#[tokio::test(start_paused = true)]
async fn a_change_of_an_object_wins_over_its_packing() {
    let packing = Packing::start("rs(4,2)").await;
    let (client, runtime) = (&packing.cluster.client, packing.cluster.client.stripes().runtime().clone());
    let set_lag = |ms| {
        packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(ms));
    };
    set_lag(50);
    let change = async {
        runtime.sleep(Duration::from_millis(320)).await;
        assert_eq!(packing.rows(keys::MARKS).await, 0, "the group's record does not stand yet");
        set_lag(0);
        packing.cluster.put(&name(1), b"another").await.unwrap();
        client.delete(BUCKET, &name(2), WriteCondition::default()).await.unwrap();
        client.set_object_tags(BUCKET, &name(3), [("a".to_owned(), "b".to_owned())].into()).await.unwrap();
        set_lag(50);
    };
    let (report, ()) = tokio::join!(packing.pack(), change);
    assert_eq!(report.overtaken, 2, "a description is no other body: {report:?}");
    set_lag(0);
    assert_eq!(packing.cluster.get(&name(1)).await.unwrap(), b"another");
    assert!(packing.cluster.get(&name(2)).await.is_err());
    assert_eq!(client.object_tags(BUCKET, &name(3)).await.unwrap().len(), 1);
    packing.assert_reads(3..OBJECTS).await;
    assert_eq!(packing.rows(keys::MARKS).await, 1, "two entries were born dead");
    packing.repack().await;
    packing.collect().await;
    packing.assert_reads(3..OBJECTS).await;
}

#[tokio::test(start_paused = true)]
async fn a_packer_that_dies_at_any_moment_loses_nothing_and_leaves_nothing() {
    for moment in 0..24 {
        let packing = Packing::start("rs(4,2)").await;
        let Packing { cluster, packer, default } = packing;
        let stripes = &cluster.client.stripes().clone();
        cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(20));
        let dying = async { pack_bucket(stripes, &packer, BUCKET, &default, &options()).await };
        let died = cluster.runtime.timeout(Duration::from_millis(15 * moment), dying).await.is_err();
        drop(packer);
        cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::ZERO);
        let packer = stripes.packer();
        let packing = Packing { cluster, packer, default };
        packing.assert_reads(0..OBJECTS).await;
        stripes.runtime().sleep(Duration::from_secs(90)).await;
        collect_abandoned(stripes).await.unwrap();
        packing.repack().await;
        packing.pack().await;
        packing.collect().await;
        packing.assert_reads(0..OBJECTS).await;
        assert_eq!(packing.rows(keys::MARKS).await, 0, "moment {moment}, died {died}");
        let verified = verify(stripes, go_on).await.unwrap();
        assert!(
            verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0),
            "moment {moment}: {verified:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_lives_is_rewritten_when_there_are_sites_for_it_and_nothing_is_lost_before() {
    let packing = Packing::start("rs(4,2)").await;
    packing.pack().await;
    packing.collect().await;
    for key in (0..OBJECTS).filter(|key| key % 5 != 0) {
        packing.cluster.client.delete(BUCKET, &name(key), WriteCondition::default()).await.unwrap();
    }
    let set_full = |is_full| packing.cluster.sites[..5].iter().for_each(|site| *site.full.lock() = is_full);
    set_full(true);
    assert_eq!(packing.repack().await, [RepackOutcome::Later]);
    packing.collect().await;
    packing.assert_reads((0..OBJECTS).step_by(5)).await;
    set_full(false);
    assert_eq!(packing.repack().await, [RepackOutcome::Released]);
    packing.assert_reads((0..OBJECTS).step_by(5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_directory_stops_the_release_until_it_is_repaired() {
    let packing = Packing::start("rs(4,2)").await;
    packing.pack().await;
    packing.collect().await;
    let client = &packing.cluster.client;
    let stripe = stripe_id(&packing.extent(0).await.unwrap().stripe).unwrap();
    let row = packing.cluster.meta.get(&keys::stripe(stripe)).await.unwrap().unwrap();
    let record: Stripe = row.record().unwrap();
    client.delete(BUCKET, &name(0), WriteCondition::default()).await.unwrap();
    let holders: Vec<u32> = record.locations.iter().take(3).map(|location| location.site).collect();
    let set_down = |is_down| {
        for site in packing.cluster.sites.iter().filter(|site| holders.contains(&site.id().0)) {
            *site.down.lock() = is_down;
        }
    };
    set_down(true);
    assert_eq!(packing.repack().await, [RepackOutcome::Unreadable]);
    assert_eq!(packing.rows(keys::MARKS).await, 1);
    set_down(false);
    client.stripes().runtime().sleep(Duration::from_secs(5)).await;
    assert_eq!(packing.repack().await, [RepackOutcome::Kept]);
}

/// A site's last report may be old: the site may even be gone.
#[tokio::test(start_paused = true)]
async fn packing_waits_for_others_requests_and_not_for_ever() {
    let packing = Packing::start("rs(4,2)").await;
    packing.cluster.sites[7].queue(9);
    let began = packing.cluster.runtime.now();
    let report = packing.pack().await;
    let waited = packing.cluster.runtime.now() - began;
    assert!(report.groups > 0 && waited >= Duration::from_secs(60), "{report:?} after {waited:?}");
    packing.assert_reads(0..OBJECTS).await;
}

/// A full disk is drained so that there is space again, and a dead one says for ever that it was full.
#[tokio::test(start_paused = true)]
async fn packing_leaves_space_on_sites_that_take_chunks_and_does_not_mind_others() {
    let packing = Packing::start("rs(4,2)").await;
    let full = &packing.cluster.sites[3];
    *full.capacity.lock() = full.used_bytes();
    assert_eq!(packing.pack().await.groups, 0);
    packing.cluster.client.stripes().set_draining(full.id(), true);
    assert!(packing.pack().await.groups > 0);
    packing.assert_reads(0..OBJECTS).await;
}

/// What no row names may be overwritten once the grace has passed.
#[tokio::test(start_paused = true)]
async fn a_read_that_takes_longer_than_the_grace_asks_where_the_object_is_now() {
    let packing = Packing::start("rs(4,2)").await;
    let (client, large) = (&packing.cluster.client, |key: usize| format!("folder/large{key:02}"));
    for key in 0..16 {
        packing.cluster.put(&large(key), &content(key, 150_000)).await.unwrap();
    }
    let options = PackOptions { partition_len: 512 << 10, ..options() };
    packing.pack_with(&options).await;
    // While idle receivers pin much of the memory, reads are small.
    let budget = client.stripes().budget();
    let pinned = budget.total() / 4;
    let _pinned = budget.pin(budget.acquire(pinned).await.unwrap(), pinned);
    let mut begun = Vec::new();
    for key in 0..3 {
        let request = GetRequest { bucket: BUCKET.to_owned(), key: large(key), ..GetRequest::default() };
        let mut body = client.get(request).await.unwrap().body;
        let first = body.next().await.unwrap().unwrap();
        assert!(first.len() < 150_000);
        begun.push((body, first.to_vec()));
    }
    let rest = async |(mut body, mut bytes): (ObjectStream, Vec<u8>)| {
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok::<_, ClientError>(bytes)
    };
    packing.cluster.put(&large(1), &content(99, 150_000)).await.unwrap();
    client.delete(BUCKET, &large(2), WriteCondition::default()).await.unwrap();
    packing.cluster.runtime.sleep(client.stripes().options().garbage_grace).await;
    for gone in begun.drain(1..) {
        assert!(matches!(rest(gone).await, Err(ClientError::Inconsistent { .. })));
    }
    // What has only moved is read on in its new place.
    for key in 3..16 {
        client.delete(BUCKET, &large(key), WriteCondition::default()).await.unwrap();
    }
    let done = repack_marked(client.stripes(), &packing.packer, &options).await.unwrap();
    assert!(done.iter().any(|(_, what)| *what == RepackOutcome::Released), "{done:?}");
    packing.collect().await;
    assert!(rest(begun.remove(0)).await.unwrap() == content(0, 150_000));
}
