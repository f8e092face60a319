//! Storage classes: each is packed separately and sealed into wide stripes of its own profile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use striate_client::{
    ClassSetting, CopyRequest, CreateBucket, ExpectedDigests, ObjectAttributes, PutRequest, WriteCondition,
};
use striate_control::{
    PackReport, SealOptions, SealReport, cold_of, cold_warnings, pack_bucket, repack_marked, seal_bucket,
    verify,
};
use striate_core::{StorageClass, StripeId};
use striate_meta::records::{Bucket, Object, Stripe, object::Body};
use striate_meta::{ScanRange, keys};
use striate_stripe::{Packer, is_hole, stripe_id, wide_of};

use crate::cluster::{BUCKET, Cluster, OneShot, content, go_on, leave_all};
use crate::packing;
use crate::sealed::{WIDE, len};

const IA: StorageClass = StorageClass::StandardIa;
const ARCHIVE: StorageClass = StorageClass::GlacierIr;
/// A profile with a geometry other than that of [`WIDE`], which fits the same racks.
const OTHER_WIDE: &str = "wide(8,4,3)";
const COUNT: usize = 220;

struct Classes {
    cluster: Cluster,
    packer: Packer,
    objects: BTreeMap<String, Vec<u8>>,
}

impl Classes {
    /// Starts an empty cluster of six racks of five sites.
    async fn start() -> Self {
        let cluster = Cluster::start(30, "rs(4,2)").await;
        cluster.spread_over_racks(6);
        let packer = cluster.client.stripes().packer();
        Self { cluster, packer, objects: BTreeMap::new() }
    }

    async fn put(&mut self, key: &str, class: StorageClass, bytes: Vec<u8>) {
        let request = PutRequest {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            attributes: ObjectAttributes { storage_class: class.to_string(), ..ObjectAttributes::default() },
            condition: WriteCondition::default(),
            profile: None,
            content_len: None,
            digests: ExpectedDigests::default(),
            body: Box::new(OneShot(Some(Ok(Bytes::copy_from_slice(&bytes))))),
        };
        self.cluster.client.put(request).await.unwrap();
        self.objects.insert(key.to_owned(), bytes);
    }

    /// Puts small objects whose neighbours by key are of other classes.
    async fn put_small(&mut self, class: StorageClass, count: usize) {
        for number in 0..count {
            self.put(&format!("{number:03}/{class}"), class, content(number, len(number))).await;
        }
    }

    async fn pack(&self) -> PackReport {
        let default = "rs(4,2)".parse().unwrap();
        let stripes = self.cluster.client.stripes();
        pack_bucket(stripes, &self.packer, BUCKET, &default, &packing::options()).await.unwrap()
    }

    async fn set_classes(&self, settings: &[(StorageClass, &str)]) {
        let setting = |&(class, profile): &(StorageClass, &str)| ClassSetting {
            class,
            profile: Some(profile.parse().unwrap()),
            without_spare_rack: false,
        };
        let settings: Vec<_> = settings.iter().map(setting).collect();
        self.cluster.client.set_classes(BUCKET, &settings).await.unwrap();
    }

    /// Seals with the bucket's own settings.
    async fn seal(&self) -> SealReport {
        let bucket: Bucket = self.cluster.client.bucket(BUCKET).await.unwrap();
        let options = cold_of(self.cluster.client.stripes(), &bucket).unwrap().unwrap();
        self.seal_with(&options).await
    }

    async fn seal_with(&self, options: &SealOptions) -> SealReport {
        let stripes = self.cluster.client.stripes();
        seal_bucket(stripes, &self.packer, BUCKET, options, &mut go_on).await.unwrap()
    }

    async fn rows(&self) -> Vec<(String, Object)> {
        let prefix = keys::objects(BUCKET);
        let rows = self.cluster.meta.scan(ScanRange::prefix(&prefix), 10_000).await.unwrap();
        let key = |key: &[u8]| String::from_utf8(key[prefix.len()..].to_vec()).unwrap();
        rows.iter().map(|row| (key(&row.key), row.record().unwrap())).collect()
    }

    /// Returns the classes of the objects in each stripe.
    async fn classes(&self) -> BTreeMap<StripeId, BTreeSet<StorageClass>> {
        let mut classes: BTreeMap<StripeId, BTreeSet<StorageClass>> = BTreeMap::new();
        for (_, object) in self.rows().await {
            let stripes = match &object.body {
                Some(Body::Extent(extent)) => vec![extent.stripe.clone()],
                Some(Body::Blocks(list)) => list.blocks.iter().map(|block| block.stripe.clone()).collect(),
                _ => Vec::new(),
            };
            for stripe in stripes {
                classes.entry(stripe_id(&stripe).unwrap()).or_default().insert(object.class());
            }
        }
        classes
    }

    async fn wide_stripes(&self) -> Vec<Stripe> {
        let all = self.cluster.stripes().await;
        all.into_iter().map(|(_, record)| record).filter(|record| !record.members.is_empty()).collect()
    }

    /// Returns the classes in the wide stripes of a profile.
    async fn classes_in(&self, profile: &str) -> BTreeSet<StorageClass> {
        let classes = self.classes().await;
        let wide = self.wide_stripes().await;
        let members = wide.iter().filter(|record| record.profile == profile).flat_map(|of| &of.members);
        let stripes = members.filter(|of| !of.stripe.is_empty()).map(|of| stripe_id(&of.stripe).unwrap());
        stripes.flat_map(|id| classes.get(&id).cloned().unwrap_or_default()).collect()
    }

    async fn holes(&self) -> usize {
        let wide = self.wide_stripes().await;
        let of = |record: &Stripe| (0..record.members.len()).filter(|&at| is_hole(record, at)).count();
        wide.iter().map(of).sum()
    }

    async fn copy_to(&self, key: &str, class: StorageClass) {
        let copy = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: key.to_owned(),
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            storage_class: Some(class.to_string()),
            ..CopyRequest::default()
        };
        self.cluster.client.copy(copy).await.unwrap();
    }

    async fn body(&self, key: &str) -> Option<Body> {
        let row = self.cluster.meta.get(&keys::object(BUCKET, key)).await.unwrap().unwrap();
        row.record::<Object>().unwrap().body
    }

    async fn assert_whole(&self) {
        for _ in 0..3 {
            self.cluster.collect().await;
        }
        for (key, bytes) in &self.objects {
            assert!(self.cluster.get(key).await.unwrap() == *bytes, "{key}");
        }
        let verified = verify(self.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_of_different_classes_share_no_group_and_have_the_profiles_of_their_classes() {
    let mut classes = Classes::start().await;
    let reduced = StorageClass::ReducedRedundancy;
    classes.set_classes(&[(reduced, "rs(6,2)"), (StorageClass::OnezoneIa, "replica(2)"), (IA, WIDE)]).await;
    for class in [StorageClass::Standard, IA, reduced, StorageClass::OnezoneIa] {
        classes.put_small(class, 90).await;
    }
    let report = classes.pack().await;
    assert!(report.groups >= 6 && report.objects > 150, "{report:?}");
    let mut packed: BTreeMap<StorageClass, usize> = BTreeMap::new();
    for (key, object) in classes.rows().await {
        let own = match object.class() {
            class if class == reduced => "rs(6,2)",
            StorageClass::OnezoneIa => "replica(2)",
            _ => "rs(4,2)",
        };
        if matches!(object.body, Some(Body::Extent(_))) {
            *packed.entry(object.class()).or_default() += 1;
            assert_eq!(object.profile, format!("packed {own}"), "{key}");
        } else {
            assert_eq!(object.profile, own, "{key}");
        }
    }
    assert_eq!(packed.keys().copied().collect::<Vec<_>>(), [StorageClass::Standard, reduced, IA]);
    assert!(packed.values().all(|count| *count > 40), "{packed:?}");
    assert!(classes.classes().await.values().all(|of| of.len() == 1));
    classes.assert_whole().await;

    // When some of them die, the rest is rewritten class by class.
    let keys: Vec<String> = classes.objects.keys().cloned().collect();
    for key in keys.iter().filter(|key| key.as_bytes()[2] % 2 == 0) {
        assert!(classes.cluster.client.delete(BUCKET, key, WriteCondition::default()).await.unwrap());
        classes.objects.remove(key);
    }
    repack_marked(classes.cluster.client.stripes(), &classes.packer, &packing::options()).await.unwrap();
    assert!(classes.classes().await.values().all(|of| of.len() == 1));
    classes.assert_whole().await;
}

/// Objects whose class changes stay where they are; they are separated when worn groups are rewritten.
#[tokio::test(start_paused = true)]
async fn objects_of_one_group_that_have_come_to_differ_part_when_it_is_rewritten() {
    let mut classes = Classes::start().await;
    classes.put_small(StorageClass::Standard, 120).await;
    classes.pack().await;
    let keys: Vec<String> = classes.objects.keys().cloned().collect();
    for (number, key) in keys.iter().enumerate() {
        if number % 2 == 0 {
            classes.copy_to(key, IA).await;
        }
        if number % 3 == 0 {
            assert!(classes.cluster.client.delete(BUCKET, key, WriteCondition::default()).await.unwrap());
            classes.objects.remove(key);
        }
    }
    assert!(classes.classes().await.values().any(|of| of.len() == 2));
    let options = packing::options();
    repack_marked(classes.cluster.client.stripes(), &classes.packer, &options).await.unwrap();
    assert!(classes.classes().await.values().all(|of| of.len() == 1), "{:?}", classes.classes().await);
    classes.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn a_class_is_sealed_at_once_into_its_own_profile_and_the_rest_when_it_is_cold() {
    let mut classes = Classes::start().await;
    classes.set_classes(&[(IA, WIDE), (ARCHIVE, OTHER_WIDE)]).await;
    for class in [StorageClass::Standard, IA, ARCHIVE] {
        classes.put_small(class, COUNT).await;
        // Large objects too, by their blocks.
        for number in 0..12 {
            classes.put(&format!("large/{class}/{number}"), class, content(number, 400_000 + number)).await;
        }
    }
    classes.pack().await;
    let report = classes.seal().await;
    assert!(report.sealed >= 6 && report.given_up == 0, "{report:?}");
    assert_eq!(classes.classes_in(WIDE).await, BTreeSet::from([IA]));
    assert_eq!(classes.classes_in(OTHER_WIDE).await, BTreeSet::from([ARCHIVE]));
    classes.assert_whole().await;

    // The others follow the cold profile, which here is also that of a class.
    let bucket: Bucket = classes.cluster.client.bucket(BUCKET).await.unwrap();
    let of_classes = cold_of(classes.cluster.client.stripes(), &bucket).unwrap().unwrap();
    let month = Duration::from_secs(30 * 86_400);
    let options = SealOptions { cold_profile: Some(WIDE.parse().unwrap()), cold_after: month, ..of_classes };
    assert_eq!(classes.seal_with(&options).await.sealed, 0, "they are not cold yet");
    classes.cluster.runtime.sleep(month).await;
    let report = classes.seal_with(&options).await;
    assert!(report.sealed >= 2, "{report:?}");
    assert_eq!(classes.classes_in(WIDE).await, BTreeSet::from([StorageClass::Standard, IA]));
    assert_eq!(classes.classes_in(OTHER_WIDE).await, BTreeSet::from([ARCHIVE]));
    classes.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_onto_itself_makes_an_object_cold_when_all_of_its_stripe_are_of_the_class() {
    let mut classes = Classes::start().await;
    classes.set_classes(&[(IA, WIDE)]).await;
    classes.put_small(StorageClass::Standard, COUNT).await;
    classes.pack().await;
    assert_eq!(classes.seal().await.cold_stripes, 0);
    let bodies = |rows: Vec<(String, Object)>| rows.into_iter().map(|(key, of)| (key, of.body)).collect();
    let before: Vec<_> = bodies(classes.rows().await);
    let keys: Vec<String> = classes.objects.keys().cloned().collect();
    let in_every_stripe = |number: usize| number.is_multiple_of(5);
    for (number, key) in keys.iter().enumerate() {
        if !in_every_stripe(number) {
            classes.copy_to(key, IA).await;
        }
    }
    let report = classes.seal().await;
    assert_eq!((report.sealed, report.cold_stripes), (0, 0), "objects differ: {report:?}");
    for (number, key) in keys.iter().enumerate() {
        if in_every_stripe(number) {
            classes.copy_to(key, IA).await;
        }
    }
    let report = classes.seal().await;
    assert!(report.sealed >= 2, "{report:?}");
    let after: Vec<_> = bodies(classes.rows().await);
    assert!(before == after, "only the rows' descriptions have changed");
    classes.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn sealed_objects_that_are_copied_to_another_class_are_sealed_again_under_its_profile() {
    let mut classes = Classes::start().await;
    classes.set_classes(&[(IA, WIDE), (ARCHIVE, OTHER_WIDE)]).await;
    classes.put_small(IA, COUNT).await;
    for number in 0..12 {
        classes.put(&format!("large/{number}"), IA, content(number, 400_000 + number)).await;
    }
    classes.pack().await;
    assert!(classes.seal().await.sealed >= 2);
    let sealed_under = async |classes: &Classes, profile: &str| {
        let wide = classes.wide_stripes().await;
        let of = wide
            .iter()
            .filter(|record| record.profile == profile)
            .map(|record| (0..record.members.len()).filter(|&at| !is_hole(record, at)).count());
        of.sum::<usize>()
    };
    let before = sealed_under(&classes, WIDE).await;
    let names: Vec<String> = classes.objects.keys().cloned().collect();
    for key in &names {
        classes.copy_to(key, ARCHIVE).await;
        // A second copy finds nothing to re-encode.
        let body = classes.body(key).await;
        classes.copy_to(key, ARCHIVE).await;
        assert!(classes.body(key).await == body, "{key}");
    }
    classes.pack().await;
    repack_marked(classes.cluster.client.stripes(), &classes.packer, &packing::options()).await.unwrap();
    leave_all(classes.cluster.client.stripes()).await;
    let report = classes.seal().await;
    assert!(report.sealed >= 2, "{report:?}");
    assert!(sealed_under(&classes, OTHER_WIDE).await > before / 2);
    assert_eq!(classes.classes_in(WIDE).await, BTreeSet::new(), "nothing that lives is under the old one");

    // A copy to a class without a profile is neither sealed nor due for sealing.
    let key = &names[0];
    classes.copy_to(key, StorageClass::Standard).await;
    let stripe = classes.classes().await.into_iter().find(|(_, of)| of.contains(&StorageClass::Standard));
    let (id, _) = stripe.unwrap();
    let record: Stripe =
        classes.cluster.meta.get(&keys::stripe(id)).await.unwrap().unwrap().record().unwrap();
    assert!(record.locations.iter().all(|at| wide_of(at).is_none()));
    classes.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn vacant_places_are_for_partitions_of_the_same_profile() {
    let mut classes = Classes::start().await;
    classes.set_classes(&[(IA, WIDE), (ARCHIVE, OTHER_WIDE)]).await;
    classes.put_small(IA, COUNT).await;
    classes.pack().await;
    assert!(classes.seal().await.sealed >= 2);
    let keys: Vec<String> = classes.objects.keys().cloned().collect();
    for key in &keys[..COUNT / 2] {
        assert!(classes.cluster.client.delete(BUCKET, key, WriteCondition::default()).await.unwrap());
        classes.objects.remove(key);
    }
    let stripes = classes.cluster.client.stripes();
    repack_marked(stripes, &classes.packer, &packing::options()).await.unwrap();
    leave_all(stripes).await;
    // Waiting partitions of the class take some places.
    classes.seal().await;
    let holes = classes.holes().await;
    assert!(holes > 0);

    classes.put_small(ARCHIVE, COUNT).await;
    classes.pack().await;
    let report = classes.seal().await;
    assert!(report.sealed > 0 && report.replaced == 0, "{report:?}");
    assert_eq!(classes.classes_in(WIDE).await, BTreeSet::from([IA]));
    let wide_of_ia = classes.wide_stripes().await.into_iter().filter(|record| record.profile == WIDE);
    assert_eq!(
        wide_of_ia.map(|of| (0..10).filter(|&at| is_hole(&of, at)).count()).sum::<usize>(),
        holes,
        "no other class has filled them"
    );

    classes.put_small(IA, COUNT / 2).await;
    classes.pack().await;
    let report = classes.seal().await;
    assert!(report.replaced > 0, "{report:?}");
    assert_eq!(classes.classes_in(WIDE).await, BTreeSet::from([IA]));
    classes.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_bucket_says_of_its_classes_is_what_is_sealed() {
    let classes = Classes::start().await;
    let stripes = classes.cluster.client.stripes();
    let nothing = classes.cluster.client.bucket(BUCKET).await.unwrap();
    assert_eq!(cold_of(stripes, &nothing).unwrap(), None);
    let wide = |class, profile: &str| ClassSetting {
        class,
        profile: Some(profile.parse().unwrap()),
        without_spare_rack: false,
    };
    let request = CreateBucket {
        name: "archive".to_owned(),
        classes: vec![wide(ARCHIVE, OTHER_WIDE), wide(StorageClass::ReducedRedundancy, "rs(6,2)")],
        ..CreateBucket::default()
    };
    let bucket = classes.cluster.client.create_bucket(request).await.unwrap();
    let options = cold_of(stripes, &bucket).unwrap().unwrap();
    assert_eq!(options.cold_profile, None);
    assert_eq!(options.classes, BTreeMap::from([(ARCHIVE, OTHER_WIDE.parse().unwrap())]));
}

/// A cluster may lose racks after a bucket got its profile. The warning comes before the first survey, and later
/// repeats the last survey's.
#[tokio::test(start_paused = true)]
async fn buckets_whose_cold_data_the_racks_do_not_suit_are_named() {
    let mut classes = Classes::start().await;
    let warnings = async |classes: &Classes| cold_warnings(classes.cluster.client.stripes()).await.unwrap();
    classes.cluster.spread_over_racks(5);
    assert!(warnings(&classes).await.is_empty(), "no bucket has a wide profile");
    classes.cluster.spread_over_racks(6);
    classes.set_classes(&[(IA, WIDE)]).await;
    assert!(warnings(&classes).await.is_empty());
    classes.cluster.spread_over_racks(5);
    let found = warnings(&classes).await;
    assert!(found.len() == 1 && found[BUCKET][0].contains("uses all 5 racks"), "{found:?}");
    classes.put_small(IA, 4).await;
    assert_eq!(classes.seal().await.warnings, found[BUCKET]);
    assert_eq!(warnings(&classes).await, found);
    classes.cluster.spread_over_racks(6);
    classes.seal().await;
    assert!(warnings(&classes).await.is_empty(), "there is a spare rack again");
}
