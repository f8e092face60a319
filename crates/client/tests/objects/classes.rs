//! Storage classes with profiles of their own: how objects are written, and what copies do.

use std::time::Duration;

use striate_client::{
    BucketChange, ClassSetting, ClientError, ClientOptions, ColdSetting, CompleteUpload, CompletedPart,
    CopyRequest, CreateBucket, CreateUpload, SettingChange, UploadPartRequest,
};
use striate_core::formats::WIDE;
use striate_core::{Formats, FormatsInForce, Packing, Profile, StorageClass};
use striate_meta::records::{ClassProfile, Object, Origin, Stripe};
use striate_meta::{ScanRange, keys};
use striate_runtime::Runtime;
use striate_stripe::StripeOptions;

use crate::cluster::{BUCKET, Cluster, Frames, get, in_virtual_time, noise, options, put};
use crate::invariants;

const RRS: &str = "REDUCED_REDUNDANCY";
const IA: &str = "STANDARD_IA";

fn setting(class: StorageClass, profile: &str) -> ClassSetting {
    let profile = (!profile.is_empty()).then(|| profile.parse().unwrap());
    ClassSetting { class, profile, without_spare_rack: true }
}

/// Opens a store with a bucket of rs(4,2), whose reduced redundancy is rs(3,1) and whose infrequent access is sealed
/// as wide(42,15,4).
async fn open(runtime: Runtime) -> Cluster {
    let meta = std::sync::Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
    let formats = FormatsInForce::new(Formats::NEWEST);
    let options = options();
    let stripes = StripeOptions { formats, ..options.stripes.clone() };
    let cluster = Cluster::open_with(runtime, meta, ClientOptions { stripes, ..options }).await;
    let reduced = setting(StorageClass::ReducedRedundancy, "rs(3,1)");
    cluster.client.set_classes(BUCKET, &[reduced]).await.unwrap();
    // Set directly, since the racks of this cluster have no room for it.
    let wide = ClassProfile { class: IA.to_owned(), profile: "wide(42,15,4)".to_owned() };
    cluster.client.update_bucket(BUCKET, |bucket| bucket.classes.push(wide.clone())).await.unwrap();
    cluster
}

async fn write(cluster: &Cluster, key: &str, class: &str, profile: Option<&str>) -> Vec<u8> {
    let bytes = noise(3_500, key.len() as u64);
    let mut request = put(key, &bytes);
    request.attributes.storage_class = class.to_owned();
    request.profile = profile.map(|text| text.parse().unwrap());
    cluster.client.put(request).await.unwrap();
    bytes
}

/// Returns the object's record, and the profiles of its stripes' records.
async fn profiles(cluster: &Cluster, key: &str) -> (Object, Vec<String>) {
    let row = cluster.meta.get(&keys::object(BUCKET, key)).await.unwrap().unwrap();
    let object: Object = row.record().unwrap();
    let Some(striate_meta::records::object::Body::Blocks(list)) = &object.body else {
        panic!("{key} has no blocks")
    };
    let mut profiles = Vec::new();
    for block in &list.blocks {
        let id = striate_core::StripeId::from_bytes(block.stripe.as_ref().try_into().unwrap());
        let stripe: Stripe = cluster.meta.get(&keys::stripe(id)).await.unwrap().unwrap().record().unwrap();
        profiles.push(stripe.profile);
    }
    profiles.dedup();
    (object, profiles)
}

async fn assert_profile(cluster: &Cluster, key: &str, expected: &str) {
    let (object, of_stripes) = profiles(cluster, key).await;
    assert_eq!((object.profile.as_str(), of_stripes), (expected, vec![expected.to_owned()]), "{key}");
}

fn copy(source: &str, key: &str, class: Option<&str>) -> CopyRequest {
    CopyRequest {
        source_bucket: BUCKET.to_owned(),
        source_key: source.to_owned(),
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        storage_class: class.map(str::to_owned),
        ..CopyRequest::default()
    }
}

#[test]
fn an_object_is_written_under_the_requests_profile_or_the_classs_or_the_buckets() {
    in_virtual_time(31, async |runtime| {
        let cluster = open(runtime).await;
        for (key, class, profile, expected) in [
            ("plain", "", None, "rs(4,2)"),
            ("reduced", RRS, None, "rs(3,1)"),
            ("own", RRS, Some("rs(2,1)"), "rs(2,1)"),
            ("unnamed", "ONEZONE_IA", None, "rs(4,2)"),
            // A wide profile applies only when the object is sealed.
            ("cold", IA, None, "rs(4,2)"),
        ] {
            let bytes = write(&cluster, key, class, profile).await;
            assert_profile(&cluster, key, expected).await;
            assert_eq!(cluster.read(key).await.unwrap(), bytes);
            let info = cluster.client.head(get(BUCKET, key)).await.unwrap().0;
            assert_eq!(info.attributes.storage_class, class);
        }
        // A class without a profile is written like the others.
        cluster.client.set_classes(BUCKET, &[setting(StorageClass::ReducedRedundancy, "")]).await.unwrap();
        write(&cluster, "later", RRS, None).await;
        assert_profile(&cluster, "later", "rs(4,2)").await;
        assert_eq!(cluster.client.bucket(BUCKET).await.unwrap().classes.len(), 1);
        invariants::check(&cluster).await;
    });
}

#[test]
fn parts_of_an_upload_are_written_under_the_profile_of_its_class() {
    in_virtual_time(32, async |runtime| {
        let cluster = open(runtime).await;
        let mut create =
            CreateUpload { bucket: BUCKET.to_owned(), key: "parts".to_owned(), ..CreateUpload::default() };
        create.attributes.storage_class = RRS.to_owned();
        let upload = cluster.client.create_upload(create).await.unwrap().id;
        let bytes = noise(4_200, 5);
        let part = UploadPartRequest {
            bucket: BUCKET.to_owned(),
            key: "parts".to_owned(),
            upload: upload.clone(),
            number: 1,
            content_len: None,
            digests: Default::default(),
            body: Frames::whole(&bytes),
        };
        cluster.client.upload_part(part).await.unwrap();
        let end = CompleteUpload {
            bucket: BUCKET.to_owned(),
            key: "parts".to_owned(),
            upload,
            parts: vec![CompletedPart { number: 1, etag: String::new(), checksums: Vec::new() }],
            ..CompleteUpload::default()
        };
        let info = cluster.client.complete_upload(end).await.unwrap();
        assert_eq!(info.profile.map(|of: Profile| of.to_string()).as_deref(), Some("rs(3,1)"));
        assert_eq!(cluster.read("parts").await.unwrap(), bytes);
        let rows = cluster.meta.scan(ScanRange::prefix(keys::STRIPES), 100).await.unwrap();
        assert!(rows.len() >= 5);
        assert!(rows.iter().all(|row| row.record::<Stripe>().unwrap().profile == "rs(3,1)"));
        invariants::check(&cluster).await;
    });
}

#[test]
fn a_copy_onto_itself_re_encodes_only_where_the_code_differs() {
    in_virtual_time(33, async |runtime| {
        let cluster = open(runtime).await;
        let bytes = write(&cluster, "key", "", None).await;
        // Entering or leaving a class with its own code recodes. For a wide class or one without a profile, only the
        // row changes.
        for (class, expected, is_recoded) in [
            (Some(IA), "rs(4,2)", false),
            (Some("ONEZONE_IA"), "rs(4,2)", false),
            (Some(RRS), "rs(3,1)", true),
            (Some(RRS), "rs(3,1)", false),
            (Some(IA), "rs(4,2)", true),
            (Some(RRS), "rs(3,1)", true),
            (Some("STANDARD"), "rs(4,2)", true),
        ] {
            let before = profiles(&cluster, "key").await.0;
            let info = cluster.client.copy(copy("key", "key", class)).await.unwrap();
            let after = profiles(&cluster, "key").await.0;
            assert_eq!(before.body != after.body, is_recoded, "to {class:?}");
            assert_ne!(before.version, after.version);
            assert_eq!(info.attributes.storage_class, class.unwrap_or_default());
            assert_eq!((&before.etag, before.size), (&after.etag, after.size));
            assert_profile(&cluster, "key", expected).await;
            assert_eq!(cluster.read("key").await.unwrap(), bytes);
        }
        // New metadata names the class too.
        let mut replacing = copy("key", "key", None);
        let mut attributes = cluster.client.head(get(BUCKET, "key")).await.unwrap().0.attributes;
        attributes.storage_class = RRS.to_owned();
        attributes.content_type = "text/x".to_owned();
        replacing.attributes = Some(attributes);
        let info = cluster.client.copy(replacing).await.unwrap();
        assert_eq!(info.attributes.content_type, "text/x");
        assert_profile(&cluster, "key", "rs(3,1)").await;
        // A copy to another key has the code of its own class.
        cluster.client.copy(copy("key", "other", None)).await.unwrap();
        assert_profile(&cluster, "other", "rs(4,2)").await;
        cluster.client.copy(copy("other", "third", Some(RRS))).await.unwrap();
        assert_profile(&cluster, "third", "rs(3,1)").await;
        invariants::check(&cluster).await;
    });
}

/// The copy has read the old bytes when newer ones are written: it must not bring the old ones back.
#[test]
fn a_copy_that_re_encodes_never_overwrites_a_newer_version() {
    in_virtual_time(34, async |runtime| {
        let cluster = open(runtime.clone()).await;
        for round in 0..40u64 {
            cluster.put("key", &noise(60_000, round)).await.unwrap();
            let newer = noise(2_000, 900 + round);
            let overwrite = async {
                for _ in 0..round * 3 {
                    tokio::task::yield_now().await;
                }
                cluster.put("key", &newer).await.unwrap()
            };
            let (copied, _) =
                futures::future::join(cluster.client.copy(copy("key", "key", Some(RRS))), overwrite).await;
            copied.unwrap();
            assert!(cluster.read("key").await.unwrap() == newer, "round {round}");
        }
        invariants::check(&cluster).await;
    });
}

/// Tags acknowledged while the bytes are copied are kept.
#[test]
fn a_copy_that_re_encodes_keeps_newer_tags() {
    in_virtual_time(36, async |runtime| {
        let cluster = open(runtime.clone()).await;
        for round in 0..40u64 {
            cluster.put("key", &noise(60_000, round)).await.unwrap();
            let tags = std::collections::BTreeMap::from([("round".to_owned(), round.to_string())]);
            let tag = async {
                for _ in 0..round * 3 {
                    tokio::task::yield_now().await;
                }
                cluster.client.set_object_tags(BUCKET, "key", tags.clone()).await.unwrap();
            };
            let (copied, ()) =
                futures::future::join(cluster.client.copy(copy("key", "key", Some(RRS))), tag).await;
            copied.unwrap();
            assert_eq!(cluster.client.object_tags(BUCKET, "key").await.unwrap(), tags, "round {round}");
        }
        invariants::check(&cluster).await;
    });
}

#[test]
fn profiles_of_classes_that_do_not_fit_are_refused() {
    in_virtual_time(35, async |runtime| {
        let cluster = open(runtime.clone()).await;
        let spare =
            |class, profile: &str| ClassSetting { without_spare_rack: false, ..setting(class, profile) };
        let standard = StorageClass::Standard;
        for (settings, reason) in [
            (vec![setting(standard, "rs(6,2)")], "STANDARD: rs(6,2) needs 8 sites, there are 6"),
            (vec![setting(standard, "packed rs(4,2)")], "leave the word out"),
            (vec![setting(standard, "cache rs(4,2)")], "in memory only"),
            (vec![setting(standard, "rs(2,1)"), setting(standard, "rs(3,1)")], "named twice"),
            (vec![spare(StorageClass::GlacierIr, "wide(128,27,4)")], "GLACIER_IR: "),
        ] {
            let error = cluster.client.set_classes(BUCKET, &settings).await.unwrap_err();
            assert!(matches!(error, ClientError::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
            let request = CreateBucket { name: "new".to_owned(), classes: settings, ..Default::default() };
            let error = cluster.client.create_bucket(request).await.unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }

        let old = Cluster::open(runtime).await;
        assert!(old.client.stripes().formats().records < WIDE);
        let error = old.client.set_classes(BUCKET, &[setting(standard, "rs(2,1)")]).await.unwrap_err();
        assert!(error.to_string().contains("finalize"), "{error}");
    });
}

#[test]
fn of_several_settings_all_are_changed_or_none() {
    in_virtual_time(37, async |runtime| {
        let cluster = open(runtime).await;
        let before = cluster.client.bucket(BUCKET).await.unwrap();
        let change = |profile: &str| BucketChange {
            packing: Some(SettingChange::Set(Packing::Off)),
            classes: vec![setting(StorageClass::OnezoneIa, profile)],
            ..BucketChange::default()
        };
        let error = cluster.client.change_bucket(BUCKET, change("rs(6,2)")).await.unwrap_err();
        assert!(error.to_string().contains("needs 8 sites"), "{error}");
        assert_eq!(cluster.client.bucket(BUCKET).await.unwrap(), before);
        cluster.client.change_bucket(BUCKET, change("rs(2,1)")).await.unwrap();
        let after = cluster.client.bucket(BUCKET).await.unwrap();
        assert_eq!((after.packing.as_str(), after.classes.len()), ("off", before.classes.len() + 1));
    });
}

#[test]
fn settings_for_objects_on_disks_are_refused_where_objects_are_elsewhere() {
    in_virtual_time(36, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let profile = Some("cache rs(2,1)".parse().unwrap());
        let volatile = CreateBucket { name: "volatile".to_owned(), profile, ..CreateBucket::default() };
        let origin = Some(Origin::default());
        let remote = CreateBucket { name: "remote".to_owned(), origin, ..CreateBucket::default() };
        for (bucket, place) in [(volatile, "in memory only"), (remote, "in another store")] {
            let name = bucket.name.clone();
            client.create_bucket(bucket).await.unwrap();
            let profile = "wide(42,15,4)".parse().unwrap();
            let cold = ColdSetting { profile, after: Duration::ZERO, without_spare_rack: true };
            for outcome in [
                client.set_packing(&name, Some(Packing::Auto)).await.map(drop),
                client.stop_packing(&name).await.map(drop),
                client.set_cold(&name, Some(cold)).await,
                client.set_classes(&name, &[setting(StorageClass::Standard, "rs(2,1)")]).await,
            ] {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains(place) && error.contains("on the store's disks"), "{error}");
            }
            assert_eq!(client.set_packing(&name, Some(Packing::Off)).await.unwrap(), "", "nothing was set");
        }
    });
}
