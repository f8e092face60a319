//! Sites join, change and drain: rows of the metadata, whichever process asks and however often.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use striate_control::{Members, MembersError, SiteAnnouncement};
use striate_core::{ClusterId, RackId, SiteId};
use striate_meta::records::site::State;
use striate_meta::{MemoryStore, MetaStore, Transaction, TxId, keys, records};
use striate_runtime::Runtime;

const CLUSTER: ClusterId = ClusterId(7);

fn announcement(disk: u8) -> SiteAnnouncement {
    SiteAnnouncement {
        peer: format!("s{disk}"),
        disk: [disk; 16],
        site: None,
        address: format!("h{disk}:1"),
        rack: "a".to_owned(),
        capacity_bytes: 5,
    }
}

fn engine() -> (Runtime, Arc<MemoryStore>) {
    let runtime = Runtime::deterministic(1, Duration::ZERO);
    let meta = Arc::new(MemoryStore::new(runtime.clone()));
    (runtime, meta)
}

#[tokio::test(start_paused = true)]
async fn sites_that_join_at_once_get_numbers_of_their_own_and_keep_them() {
    let (runtime, meta) = engine();
    let members = Members::new(&runtime, meta.as_ref());
    assert!(matches!(members.register(&announcement(1)).await, Err(MembersError::NoCluster)));
    let wide = Some("wide(128,27,4)".parse().unwrap());
    let refused = members.found(CLUSTER, wide, "r").await.unwrap_err();
    assert!(refused.to_string().contains("cannot store objects as wide(128,27,4)"), "{refused}");
    members.found(CLUSTER, None, "r").await.unwrap();
    let announced: Vec<_> = (1..=6).map(announcement).collect();
    let numbers: Vec<_> = join_all(announced.iter().map(|site| members.register(site))).await;
    let mut numbers: Vec<u32> = numbers.into_iter().map(|number| number.unwrap().0).collect();
    let again = members.register(&announced[2]).await.unwrap();
    assert_eq!(again.0, numbers[2]);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(members.cluster(CLUSTER).await.unwrap().profile, "rs(4,2)");
    assert!(
        members.found(ClusterId(8), None, "r").await.unwrap_err().to_string().contains("belong to cluster")
    );
}

#[tokio::test(start_paused = true)]
async fn a_site_may_move_and_nobody_takes_its_place() {
    let (runtime, meta) = engine();
    let members = Members::new(&runtime, meta.as_ref());
    members.found(CLUSTER, None, "r").await.unwrap();
    let number = members.register(&announcement(1)).await.unwrap();
    let moved = SiteAnnouncement { address: "elsewhere:2".to_owned(), site: Some(number), ..announcement(1) };
    assert_eq!(members.register(&moved).await.unwrap(), number);
    let before = meta.get(&keys::site(number)).await.unwrap().unwrap();
    assert_eq!(before.record::<records::Site>().unwrap().address, "elsewhere:2");
    members.register(&moved).await.unwrap();
    let after = meta.get(&keys::site(number)).await.unwrap().unwrap();
    assert_eq!(before.version, after.version, "what has not changed is not written");

    let reason = async |site: SiteAnnouncement| members.register(&site).await.unwrap_err().to_string();
    let thief = SiteAnnouncement { peer: "s9".to_owned(), ..moved.clone() };
    assert!(reason(thief).await.contains("belongs to the process s1"));
    let misnumbered = SiteAnnouncement { site: Some(SiteId(5)), ..moved.clone() };
    assert!(reason(misnumbered).await.contains("not of site 5"));
    let unknown = SiteAnnouncement { site: Some(SiteId(1)), ..announcement(2) };
    assert!(reason(unknown).await.contains("know no site 1"));
}

#[tokio::test(start_paused = true)]
async fn a_retired_site_is_gone_for_good_and_its_disk_is_refused() {
    let (runtime, meta) = engine();
    let members = Members::new(&runtime, meta.as_ref());
    members.found(CLUSTER, None, "r").await.unwrap();
    for disk in 1..=4 {
        members.register(&announcement(disk)).await.unwrap();
    }
    let reason = async |refused: Result<(), MembersError>| refused.unwrap_err().to_string();
    assert!(reason(members.retire(SiteId(4), true).await).await.contains("admin site drain 4"));
    assert!(matches!(members.retire(SiteId(9), false).await, Err(MembersError::NoSuchSite(_))));
    members.retire(SiteId(4), false).await.unwrap();
    assert_eq!(members.sites().await.unwrap()[3].state(), State::Retired);
    assert_eq!(
        members.cluster(CLUSTER).await.unwrap().profile,
        "rs(2,1)",
        "it is for the sites that are left"
    );

    // The disk comes back, with its number or without, and an operator tries to let it take chunks again.
    for site in [None, Some(SiteId(4))] {
        let back = SiteAnnouncement { site, ..announcement(4) };
        assert!(members.register(&back).await.unwrap_err().to_string().contains("was given up for good"));
    }
    assert!(reason(members.set_draining(SiteId(4), false).await).await.contains("was given up for good"));
    // Emptied, it is another disk of the same process.
    let emptied = SiteAnnouncement { disk: [44; 16], ..announcement(4) };
    assert_eq!(members.register(&emptied).await.unwrap(), SiteId(5), "a number is never given out again");
}

#[tokio::test(start_paused = true)]
async fn a_profile_follows_the_sites_until_somebody_chooses_one() {
    let (runtime, meta) = engine();
    let members = Members::new(&runtime, meta.as_ref());
    members.found(CLUSTER, None, "r").await.unwrap();
    let profile = async || members.cluster(CLUSTER).await.unwrap().profile;
    for disk in 1..=4 {
        members.register(&announcement(disk)).await.unwrap();
    }
    assert_eq!(profile().await, "rs(2,2)");
    members.set_draining(SiteId(4), true).await.unwrap();
    assert_eq!(profile().await, "rs(2,1)", "a site that drains takes no chunks");
    let states: Vec<State> = members.sites().await.unwrap().iter().map(records::Site::state).collect();
    assert_eq!(states, [State::Active, State::Active, State::Active, State::Draining]);
    members.register(&announcement(4)).await.unwrap();
    assert_eq!(
        members.sites().await.unwrap()[3].state(),
        State::Draining,
        "it drains until it is told otherwise"
    );
    members.set_draining(SiteId(4), false).await.unwrap();
    assert_eq!(profile().await, "rs(2,2)");
    members.found(CLUSTER, Some("replica(3)".parse().unwrap()), "r").await.unwrap();
    members.register(&announcement(5)).await.unwrap();
    assert_eq!(profile().await, "replica(3)");
    assert!(matches!(members.set_draining(SiteId(9), true).await, Err(MembersError::NoSuchSite(_))));
}

/// Chunks of a wide stripe stay in their rack while one of its sites takes chunks.
#[tokio::test(start_paused = true)]
async fn a_rack_that_is_drained_site_by_site_is_warned_of_until_all_of_it_drains() {
    let (runtime, meta) = engine();
    let members = Members::new(&runtime, meta.as_ref());
    members.found(CLUSTER, None, "r").await.unwrap();
    for disk in 1..=5 {
        members.register(&announcement(disk)).await.unwrap();
    }
    let drain = async |site: u32| {
        members.set_draining(SiteId(site), true).await.unwrap();
        members.drain_warnings().await.unwrap().remove(&RackId("a".to_owned()))
    };
    assert_eq!(drain(1).await, None);
    let cold = records::Cold { profile: "wide(10,5,3)".to_owned(), after_s: 60 };
    let bucket = records::Bucket { name: "b".to_owned(), cold: Some(cold), ..records::Bucket::default() };
    let mut tx = Transaction::new(TxId(1));
    tx.put(keys::bucket("b"), records::encode(&bucket));
    meta.commit(tx).await.unwrap();
    assert_eq!(drain(2).await, None, "three sites are left for three chunks");
    let warning = drain(3).await.unwrap();
    assert!(warning.contains("too few for the 3 chunks that a stripe of wide(10,5,3)"), "{warning}");
    assert!(warning.ends_with("to empty 1, 2, 3, drain 4, 5 too"), "{warning}");
    assert!(drain(4).await.is_some());
    assert_eq!(drain(5).await, None);
}

/// A cluster of three racks of two with the default profile that they get, and one object.
async fn three_racks_of_two(meta: &MemoryStore, members: &Members<'_>, has_object: bool) {
    members.found(CLUSTER, None, "r").await.unwrap();
    for (disk, rack) in [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "b"), (6, "c")] {
        let site = SiteAnnouncement { rack: rack.to_owned(), ..announcement(disk) };
        members.register(&site).await.unwrap();
    }
    assert_eq!(members.cluster(CLUSTER).await.unwrap().profile, "rs(4,2)");
    if has_object {
        let mut tx = Transaction::new(TxId(1));
        tx.put(keys::object("b", "k"), records::encode(&records::Object::default()));
        meta.commit(tx).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_profile_never_follows_sites_into_racks_that_lose_more() {
    // The racks of the sites that join, and the default then, with and without objects.
    let cases = [
        (&["a"][..], "rs(4,2)", "rs(4,2)"),
        (&["d"], "rs(5,2)", "rs(4,2)"),
        (&["d"; 8], "rs(6,3)", "rs(4,2)"),
        (&["a", "b", "c"], "rs(6,3)", "rs(4,2)"),
    ];
    for (racks, without_objects, with_objects) in cases {
        for (has_object, expected) in [(false, without_objects), (true, with_objects)] {
            let (runtime, meta) = engine();
            let members = Members::new(&runtime, meta.as_ref());
            three_racks_of_two(&meta, &members, has_object).await;
            for (disk, rack) in (7..).zip(racks) {
                let site = SiteAnnouncement { rack: (*rack).to_owned(), ..announcement(disk) };
                members.register(&site).await.unwrap();
            }
            let cluster = members.cluster(CLUSTER).await.unwrap();
            assert_eq!((&*cluster.profile, cluster.profile_is_chosen), (expected, has_object), "{racks:?}");
            let survivable = members.racks().await.unwrap().survivable(&cluster.profile.parse().unwrap());
            let survivable = survivable.expect("its chunks have places");
            assert!(survivable.sites >= 2 && survivable.racks >= 1, "{racks:?}: {survivable:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_objects_only_an_operator_changes_the_default_profile() {
    let (runtime, meta) = engine();
    let members = Members::new(&runtime, meta.as_ref());
    three_racks_of_two(&meta, &members, true).await;
    members.set_draining(SiteId(1), true).await.unwrap();
    assert_eq!(members.cluster(CLUSTER).await.unwrap().profile, "rs(4,2)");
    members.set_default_profile(&"rs(3,2)".parse().unwrap()).await.unwrap();
    members.set_draining(SiteId(1), false).await.unwrap();
    assert_eq!(members.cluster(CLUSTER).await.unwrap().profile, "rs(3,2)");
    let refused = members.set_default_profile(&"wide(128,27,4)".parse().unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot store objects as"), "{refused}");
}
