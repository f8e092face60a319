//! Warnings about wide profiles that do not suit the racks, or that survive fewer losses than the profiles they
//! replace.

use std::time::Duration;

use striate_client::{BucketChange, ClassSetting, ClientError, ColdChange, ColdSetting, SettingChange};
use striate_control::{SealOptions, cold_warnings, durability_warnings, seal_bucket};
use striate_core::{RackId, StorageClass};
use striate_meta::records::{Bucket, ClassProfile, Cold};

use crate::cluster::{BUCKET, Cluster, go_on};
use crate::pack_service::set_profile;
use crate::sealed::WIDE;

/// Starts a cluster with racks of these sizes.
async fn racks_of(sizes: &[u32], profile: &str) -> Cluster {
    let cluster = Cluster::start(sizes.iter().sum(), profile).await;
    regroup(&cluster, sizes);
    cluster
}

/// Regroups the sites into racks of other sizes.
fn regroup(cluster: &Cluster, sizes: &[u32]) {
    let racks = (1..).zip(sizes).flat_map(|(rack, &size)| std::iter::repeat_n(rack, size as usize));
    for (site, rack) in cluster.sites.iter().zip(racks) {
        *site.rack.lock() = RackId(format!("rack{rack}"));
    }
}

fn cold(profile: &str, without_spare_rack: bool) -> ColdSetting {
    ColdSetting { profile: profile.parse().unwrap(), after: Duration::ZERO, without_spare_rack }
}

/// Five racks have enough sites for a wide stripe, and one has a single site.
#[tokio::test(start_paused = true)]
async fn a_rack_that_is_too_small_does_not_count() {
    let cluster = racks_of(&[4, 4, 4, 4, 4, 1], "rs(4,2)").await;
    let refused = cluster.client.set_cold(BUCKET, Some(cold(WIDE, false))).await.unwrap_err().to_string();
    for part in [
        "5 + 1 = 6 racks, there are 5 with 4 sites or more, and 1 with fewer",
        "What fits: wide(",
        "with --allow-no-spare-rack it takes all 5 racks",
    ] {
        assert!(refused.contains(part), "{part:?} of {refused}");
    }
    cluster.client.set_cold(BUCKET, Some(cold(WIDE, true))).await.unwrap();
    // Four racks are too few, even without a spare one.
    regroup(&cluster, &[4, 4, 4, 4, 3, 2]);
    let refused = cluster.client.set_cold(BUCKET, Some(cold(WIDE, true))).await.unwrap_err().to_string();
    let part = "fill 5 racks at 3 a rack, there are 4 with 4 sites or more";
    assert!(refused.contains(part) && !refused.contains("--allow-no-spare-rack"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn the_time_and_the_profile_of_cold_data_change_each_alone() {
    let cluster = racks_of(&[4; 6], "rs(4,2)").await;
    let change = async |profile: Option<&str>, after_s: Option<u64>| {
        let profile = profile.map(|text| text.parse().unwrap());
        let cold = ColdChange { profile, after_s, without_spare_rack: false };
        let change = BucketChange { cold: Some(SettingChange::Set(cold)), ..BucketChange::default() };
        cluster.client.change_bucket(BUCKET, change).await?;
        let cold = cluster.client.bucket(BUCKET).await?.cold.unwrap();
        assert_eq!(cold.profile, WIDE);
        Ok::<u64, ClientError>(cold.after_s)
    };
    let refused = change(None, Some(60)).await.unwrap_err().to_string();
    assert!(refused.contains("give it one with --cold-profile"), "{refused}");
    assert_eq!(change(Some(WIDE), None).await.unwrap(), 30 * 86_400);
    assert_eq!(change(None, Some(60)).await.unwrap(), 60);
    assert_eq!(change(Some(WIDE), None).await.unwrap(), 60);
    // The time alone does not depend on the racks.
    regroup(&cluster, &[4, 4, 4, 4, 7, 1]);
    assert_eq!(change(None, Some(90)).await.unwrap(), 90);
}

/// Its parities would find no places.
#[tokio::test(start_paused = true)]
async fn a_wide_profile_that_ignores_racks_is_refused() {
    let cluster = racks_of(&[4; 6], "rs(4,2)").await;
    let flat = format!("{WIDE} spread flat");
    let refused = cluster.client.set_cold(BUCKET, Some(cold(&flat, true))).await.unwrap_err().to_string();
    assert!(refused.contains("its local groups lie in whole racks"), "{refused}");
    let class = ClassSetting {
        class: StorageClass::StandardIa,
        profile: Some(flat.parse().unwrap()),
        without_spare_rack: true,
    };
    let refused = cluster.client.set_classes(BUCKET, &[class]).await.unwrap_err().to_string();
    assert!(refused.contains("STANDARD_IA: ") && refused.contains("whole racks"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_spare_rack_that_shrinks_is_warned_of() {
    let cluster = racks_of(&[4, 4, 4, 4, 4, 4], "rs(4,2)").await;
    cluster.client.set_cold(BUCKET, Some(cold(WIDE, false))).await.unwrap();
    let warnings = async || cold_warnings(cluster.client.stripes()).await.unwrap();
    assert!(warnings().await.is_empty());
    regroup(&cluster, &[5, 5, 5, 4, 4, 1]);
    let found = warnings().await;
    assert!(found[BUCKET][0].contains("uses all 5 racks that have 4 sites or more"), "{found:?}");
    regroup(&cluster, &[6, 5, 4, 4, 3, 2]);
    let found = warnings().await;
    assert!(found[BUCKET][0].contains("needs 6 racks with 4 sites or more, and there are 4"), "{found:?}");
}

/// The narrow code survives three losses, and the wide code two.
#[tokio::test(start_paused = true)]
async fn sealing_that_makes_data_less_durable_is_warned_of_before_and_after_a_look() {
    let cluster = racks_of(&[3; 8], "rs(6,3)").await;
    set_profile(&cluster, "rs(6,3)").await;
    let stripes = cluster.client.stripes();
    let warnings = async || cold_warnings(stripes).await.unwrap().remove(BUCKET);
    cluster.client.set_cold(BUCKET, Some(cold("wide(10,5,2)", false))).await.unwrap();
    let expected = "wide(10,5,2) survives 2 losses and rs(6,3) 3: ";
    let before = warnings().await.unwrap();
    assert!(before.len() == 1 && before[0].starts_with(expected), "{before:?}");
    let options = SealOptions::new("wide(10,5,2)".parse().unwrap(), Duration::ZERO);
    let packer = stripes.packer();
    let report = seal_bucket(stripes, &packer, BUCKET, &options, &mut go_on).await.unwrap();
    assert_eq!((report.warnings, warnings().await), (before.clone(), Some(before)));
    packer.close().await;
}

#[tokio::test(start_paused = true)]
async fn each_wide_profile_is_compared_with_those_that_it_replaces() {
    let cluster = Cluster::start(6, "rs(4,2)").await;
    let (strong, weak) = ("wide(42,15,4)", "wide(42,15,2)");
    let (ia, reduced) = ("STANDARD_IA", "REDUCED_REDUNDANCY");
    for (profile, cold, classes, expected) in [
        ("", weak, vec![], vec![]),
        ("rs(6,3)", strong, vec![], vec![]),
        ("rs(6,3)", weak, vec![], vec![(weak, "rs(6,3)")]),
        ("replica(4)", weak, vec![], vec![(weak, "replica(4)")]),
        ("rs(6,3)", "", vec![], vec![]),
        // Objects written under a class's own profile follow the cold one.
        ("", weak, vec![(reduced, "rs(4,1)"), (ia, "rs(6,5)")], vec![(weak, "rs(6,5)")]),
        // A class's wide profile replaces the bucket's profile, and no other class's.
        ("", strong, vec![(reduced, "rs(6,3)"), (ia, weak)], vec![]),
        ("rs(6,3)", strong, vec![(reduced, "rs(6,4)"), (ia, weak)], vec![(weak, "rs(6,3)")]),
    ] {
        let class = |&(class, profile): &(&str, &str)| ClassProfile {
            class: class.to_owned(),
            profile: profile.to_owned(),
        };
        let bucket = Bucket {
            profile: profile.to_owned(),
            cold: (!cold.is_empty()).then(|| Cold { profile: cold.to_owned(), after_s: 0 }),
            classes: classes.iter().map(class).collect(),
            ..Bucket::default()
        };
        let default = "rs(4,2)".parse().unwrap();
        let found = durability_warnings(cluster.client.stripes(), &bucket, &default).unwrap();
        assert_eq!(found.len(), expected.len(), "{bucket:?}: {found:?}");
        for (line, (wide, narrow)) in found.iter().zip(expected) {
            assert!(line.starts_with(wide) && line.contains(narrow), "{line}");
        }
    }
}
