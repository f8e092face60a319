//! Large objects grow cold: the data chunks of their stripes become members in place, whatever their lengths.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use striate_client::{
    CompleteUpload, CompletedPart, CreateBucket, CreateUpload, GetRequest, ObjectAttributes, PutRequest,
    ReadRange, UploadPartRequest, WriteCondition,
};
use striate_control::{SealOptions, SealReport, seal_bucket, verify};
use striate_core::{Layout, SiteId};
use striate_meta::records::Stripe;
use striate_meta::{ScanRange, keys};
use striate_site::Site;
use striate_stripe::{ChunkChoice, Packer, file_of, is_hole, wide_of};

use crate::cluster::{Cluster, OneShot, content, go_on, leave_all};
use crate::sealed::WIDE;

const BUCKET: &str = "large";
const BLOCK: usize = 1 << 20;

struct Large {
    cluster: Cluster,
    packer: Packer,
    objects: BTreeMap<String, Vec<u8>>,
}

impl Large {
    /// Starts a cluster with one-block objects of different lengths, objects of several blocks, one of a segment of
    /// blocks, and one in parts.
    async fn start() -> Self {
        let cluster = Cluster::start(30, "rs(4,2)").await;
        cluster.spread_over_racks(6);
        let bucket = CreateBucket {
            name: BUCKET.to_owned(),
            block_len: Some(BLOCK as u32),
            ..CreateBucket::default()
        };
        cluster.client.create_bucket(bucket).await.unwrap();
        let packer = cluster.client.stripes().packer();
        let mut this = Self { cluster, packer, objects: BTreeMap::new() };
        for number in 0..16 {
            this.put(&format!("one/{number:02}"), content(number, 300_000 + 1_777 * number)).await;
        }
        this.put("some", content(20, 3 * BLOCK + 500_000)).await;
        this.put("many", content(21, 9 * BLOCK + 17)).await;
        this.upload("parts", &[content(22, 5 * BLOCK), content(23, 5 * BLOCK), content(24, 400_001)]).await;
        this
    }

    async fn put(&mut self, key: &str, bytes: Vec<u8>) {
        let request = PutRequest {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            attributes: ObjectAttributes::default(),
            condition: WriteCondition::default(),
            profile: None,
            content_len: None,
            digests: Default::default(),
            body: Box::new(OneShot(Some(Ok(Bytes::copy_from_slice(&bytes))))),
        };
        self.cluster.client.put(request).await.unwrap();
        self.objects.insert(key.to_owned(), bytes);
    }

    async fn upload(&mut self, key: &str, parts: &[Vec<u8>]) {
        let (bucket, client) = (BUCKET.to_owned(), &self.cluster.client);
        let create = CreateUpload { bucket: bucket.clone(), key: key.to_owned(), ..CreateUpload::default() };
        let upload = client.create_upload(create).await.unwrap().id;
        let mut completed = Vec::new();
        for (number, bytes) in (1..).zip(parts) {
            let part = UploadPartRequest {
                bucket: bucket.clone(),
                key: key.to_owned(),
                upload: upload.clone(),
                number,
                content_len: None,
                digests: Default::default(),
                body: Box::new(OneShot(Some(Ok(Bytes::copy_from_slice(bytes))))),
            };
            client.upload_part(part).await.unwrap();
            completed.push(CompletedPart { number, etag: String::new(), checksums: Vec::new() });
        }
        let end = CompleteUpload {
            bucket,
            key: key.to_owned(),
            upload,
            parts: completed,
            ..CompleteUpload::default()
        };
        client.complete_upload(end).await.unwrap();
        self.objects.insert(key.to_owned(), parts.concat());
    }

    async fn seal(&self) -> SealReport {
        self.seal_with(SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO)).await
    }

    async fn seal_with(&self, options: SealOptions) -> SealReport {
        let stripes = self.cluster.client.stripes();
        seal_bucket(stripes, &self.packer, BUCKET, &options, &mut go_on).await.unwrap()
    }

    async fn get(&self, key: &str, range: Option<std::ops::Range<u64>>) -> Vec<u8> {
        let request = GetRequest {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            range: range.map_or(ReadRange::Whole, |range| ReadRange::Bytes {
                first: range.start,
                last: Some(range.end - 1),
            }),
            ..GetRequest::default()
        };
        let mut body = self.cluster.client.get(request).await.unwrap().body;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece.unwrap_or_else(|error| panic!("{key}: {error}")));
        }
        bytes
    }

    async fn assert_reads(&self) {
        for (key, expected) in &self.objects {
            assert!(self.get(key, None).await == *expected, "{key}");
            let range = 123_456..234_567u64;
            let part = self.get(key, Some(range.clone())).await;
            assert!(part == expected[range.start as usize..range.end as usize], "{key}, a range");
        }
    }

    async fn wide_stripes(&self) -> Vec<(striate_core::StripeId, Stripe)> {
        let stripes = self.cluster.stripes().await;
        stripes.into_iter().filter(|(_, record)| !record.members.is_empty()).collect()
    }

    async fn collect(&self) {
        for _ in 0..3 {
            self.cluster.collect().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn they_are_sealed_and_no_row_of_an_object_a_block_or_a_part_changes() {
    let mut large = Large::start().await;
    let rows = |large: &Large| {
        let meta = large.cluster.meta.clone();
        async move {
            let mut all = Vec::new();
            for prefix in [&keys::objects(BUCKET)[..], b"k/", b"t/"] {
                all.extend(meta.scan(ScanRange::prefix(prefix), 10_000).await.unwrap());
            }
            all
        }
    };
    let before = rows(&large).await;
    assert!(before.len() > large.objects.len() + 9, "blocks and parts have rows: {}", before.len());
    let report = large.seal().await;
    assert!(report.sealed >= 8 && report.given_up == 0, "{report:?}");
    assert_eq!(rows(&large).await, before);
    large.collect().await;
    let wide = large.wide_stripes().await;
    let shorter =
        |record: &Stripe| record.members.iter().filter(|of| (1..record.chunk_len).contains(&of.len)).count();
    assert!(
        wide.iter().map(|(_, record)| shorter(record)).sum::<usize>() > 5,
        "some are shorter than others"
    );
    let dropped = large.cluster.stripes().await.iter().filter(|(_, of)| of.dropped).count();
    assert!(dropped > 10, "{dropped}");
    large.assert_reads().await;

    // Lost chunks are read from the wide stripes, even several of one block, and rebuilt at their own lengths.
    for down in [[3, 14], [7, 22]] {
        let set = |is: bool| down.iter().for_each(|&at: &usize| *large.cluster.sites[at].down.lock() = is);
        set(true);
        large.assert_reads().await;
        set(false);
        large.cluster.runtime.sleep(Duration::from_secs(60)).await;
        large.assert_reads().await;
    }
    for (id, record) in &wide {
        for position in [0, 1, 12].into_iter().filter(|&position| !is_hole(record, position)) {
            let at = &record.locations[position];
            let site = large.cluster.sites.iter().find(|site| site.id() == SiteId(at.site)).unwrap();
            assert!(site.chunks.lock().remove(&file_of(*id, record, position)).is_some());
        }
    }
    large.assert_reads().await;
    let stripes = large.cluster.client.stripes().clone();
    let seen = verify(&stripes, go_on).await.unwrap();
    assert!(seen.progress.damaged > 0, "parities that no read asks for are lost too: {seen:?}");
    let healed = striate_control::heal(&stripes, go_on).await.unwrap();
    assert!(healed.is_whole(), "{healed:?}");
    let verified = verify(&stripes, go_on).await.unwrap();
    assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
    large.assert_reads().await;

    // They are deleted and overwritten like others.
    let keys: Vec<String> = large.objects.keys().cloned().collect();
    large.put("many", content(31, 8 * BLOCK + 5)).await;
    large.put("one/03", content(32, 310_000)).await;
    for key in keys.iter().filter(|key| *key != "many" && *key != "one/03") {
        assert!(large.cluster.client.delete(BUCKET, key, WriteCondition::default()).await.unwrap());
        large.objects.remove(key);
    }
    large.collect().await;
    leave_all(&stripes).await;
    large.collect().await;
    large.assert_reads().await;
    let left = large.cluster.stripes().await;
    assert!(left.iter().all(|(_, record)| record.members.is_empty() && !record.dead), "all have left");
    assert_eq!(left.len(), 10, "the blocks of two objects");
    assert!(left.iter().all(|(_, record)| {
        record.profile.parse::<striate_core::Profile>().unwrap().layout != Layout::Wide
    }));
    let verified = verify(&stripes, go_on).await.unwrap();
    assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_is_sealed_piece_by_piece_and_counted_as_a_whole() {
    let large = Large::start().await;
    let whole = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
    let pieces = SealOptions { together: 1, ..whole.clone() };
    large.collect().await;
    let report = large.seal_with(pieces.clone()).await;
    assert!(report.sealed >= 4 && report.given_up == 0, "{report:?}");
    // The report agrees with the records.
    let (mut cold, mut sealed, mut half_sealed, mut waiting) = (0, 0, 0, 0);
    for (_, record) in large.cluster.stripes().await {
        if record.members.is_empty() && record.chunk_len >= 64 << 10 {
            let open = record.locations[..4].iter().filter(|at| wide_of(at).is_none()).count() as u64;
            cold += 1;
            sealed += u64::from(open == 0);
            half_sealed += u64::from((1..4).contains(&open));
            waiting += open;
        }
    }
    assert_eq!((report.cold_stripes, report.sealed_stripes), (cold, sealed), "{report:?}");
    assert_eq!((report.half_sealed, report.waiting), (half_sealed, waiting), "{report:?}");
    assert_eq!((report.not_packed, report.not_packed_bytes), (1, 17), "the last block of one object");
    assert!(half_sealed > 0 && waiting > 3 * 6, "racks hold more than is kept of them: {report:?}");
    // Partitions that were put off are sealed by the next runs.
    let mut sealed = report.sealed;
    loop {
        let again = large.seal_with(pieces.clone()).await;
        sealed += again.sealed;
        if again.sealed == 0 {
            break;
        }
    }
    assert!(large.seal_with(whole).await.sealed <= 1 && sealed >= 8, "{sealed} were sealed piece by piece");
    large.assert_reads().await;
}

/// Each look makes one wide stripe then, and counts everything.
#[tokio::test(start_paused = true)]
async fn looks_whose_time_is_over_are_gone_on_with_and_count_what_is_left() {
    let large = Large::start().await;
    let whole = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
    let brief = SealOptions { time: Duration::ZERO, ..whole.clone() };
    let mut looks = 0;
    loop {
        let report = large.seal_with(brief.clone()).await;
        let narrow = large.cluster.stripes().await.into_iter().map(|(_, record)| record);
        let cold = narrow.filter(|record| record.members.is_empty() && record.chunk_len >= 64 << 10);
        let open = |record: Stripe| record.locations[..4].iter().filter(|at| wide_of(at).is_none()).count();
        let open: Vec<u64> = cold.map(|record| open(record) as u64).collect();
        let sealed = open.iter().filter(|open| **open == 0).count();
        assert_eq!((report.cold_stripes, report.sealed_stripes), (open.len() as u64, sealed as u64));
        assert_eq!(report.waiting, open.iter().sum::<u64>(), "{report:?}");
        if !report.unfinished {
            assert_eq!(report.sealed, 0);
            break;
        }
        let why = report.held_up.as_deref().unwrap_or_default();
        assert!(report.sealed == 1 && why.ends_with("the next one goes on"), "{report:?}");
        looks += 1;
    }
    assert!(looks >= 8, "{looks}");
    assert_eq!(large.seal_with(whole).await.sealed, 0);
}

/// An object's stripe has chunks in the lost rack and existing chunks in the same local group of a wide stripe: these
/// cannot be computed, and need not be.
#[tokio::test(start_paused = true)]
async fn any_rack_may_be_lost_also_once_it_is_known_to_be() {
    let large = Large::start().await;
    large.seal().await;
    large.collect().await;
    let racks: std::collections::BTreeSet<_> = large.cluster.sites.iter().map(|site| site.rack()).collect();
    for rack in racks {
        let lost = || large.cluster.sites.iter().filter(|site| site.rack() == rack);
        lost().for_each(|site| *site.down.lock() = true);
        // The first reads learn of the loss, the others plan with it.
        for _ in 0..3 {
            large.assert_reads().await;
        }
        lost().for_each(|site| *site.down.lock() = false);
        large.cluster.runtime.sleep(Duration::from_secs(60)).await;
    }
}

/// The chunk on a lost site is computed and the stripe's other data chunks are read, and `explain` says so.
#[tokio::test(start_paused = true)]
async fn what_is_computed_from_wide_stripes_is_explained() {
    let large = Large::start().await;
    large.seal().await;
    large.collect().await;
    let lost = &large.cluster.sites[3];
    *lost.down.lock() = true;
    // The first reads learn of the loss.
    large.assert_reads().await;
    let objects: Vec<(String, String)> =
        large.objects.keys().map(|key| (BUCKET.to_owned(), key.clone())).collect();
    let query = large.cluster.client.explain(&objects, None).await.unwrap().query;
    let (mut computed, mut read) = (0, 0);
    for block in &query.blocks {
        let data = || block.chunks.iter().take(block.data_chunks);
        let of_sealed = data().filter(|chunk| chunk.choice == ChunkChoice::Computed).count();
        computed += of_sealed;
        if of_sealed > 0 {
            assert!(data().all(|chunk| (chunk.site == lost.id().0) != chunk.choice.is_read()), "{block:?}");
            read += block.chunks.iter().filter(|chunk| chunk.choice.is_read()).count();
            let mut parities = block.chunks.iter().skip(block.data_chunks);
            assert!(parities.all(|chunk| chunk.choice == ChunkChoice::Dropped), "{block:?}");
        }
    }
    assert!(computed > 0 && read == 3 * computed, "{computed} of a code with four data chunks, {read} read");
}

/// A read that computes a lost site's chunk asks other sites for the rest. One of them hangs: it counts as late soon,
/// not at its deadline.
#[tokio::test(start_paused = true)]
async fn a_site_that_hangs_while_another_is_lost_is_late_soon() {
    let large = Large::start().await;
    large.seal().await;
    large.collect().await;
    let stripes: BTreeMap<_, _> = large.cluster.stripes().await.into_iter().collect();
    let objects: Vec<(String, String)> =
        large.objects.keys().map(|key| (BUCKET.to_owned(), key.clone())).collect();
    // No wide stripe of a lost chunk has a chunk on the hung site.
    let is_apart = |record: &Stripe, lost: usize, hung: usize| {
        let (wide, _) = wide_of(&record.locations[lost]).unwrap();
        stripes[&wide].locations.iter().all(|at| at.site != record.locations[hung].site)
    };
    let mut tried = 0;
    for (bucket, key) in &objects {
        let asked = [(bucket.clone(), key.clone())];
        let explained = large.cluster.client.explain(&asked, None).await.unwrap();
        let [block] = &explained.query.blocks[..] else { continue };
        let (_, record) = stripes.iter().find(|(id, _)| id.to_string() == block.stripe).unwrap();
        let pairs = (0..4).flat_map(|lost| (0..4).map(move |hung| (lost, hung)));
        let mut pairs = pairs.filter(|(lost, hung)| record.dropped && lost != hung);
        let Some((lost, hung)) = pairs.find(|&(lost, hung)| is_apart(record, lost, hung)) else { continue };
        let site = |chunk: usize| &large.cluster.sites[record.locations[chunk].site as usize - 1];
        *site(lost).down.lock() = true;
        large.get(key, None).await;
        *site(hung).hung.lock() = true;
        let began = large.cluster.runtime.now();
        assert!(large.get(key, None).await == large.objects[key], "{key}");
        let took = large.cluster.runtime.now() - began;
        assert!(took < Duration::from_secs(2), "{key}: {took:?}");
        *site(lost).down.lock() = false;
        *site(hung).hung.lock() = false;
        large.cluster.runtime.sleep(Duration::from_secs(60)).await;
        tried += 1;
    }
    assert!(tried > 0, "no stripe is such");
}
