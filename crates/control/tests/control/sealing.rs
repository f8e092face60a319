//! Sealing: partitions become members of wide stripes in place, whatever interrupts it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use striate_control::{SealOptions, collect_abandoned, resume_wide, seal_bucket, verify};
use striate_core::{ChunkId, RackId, SiteId, StorageClass, StripeId};
use striate_meta::records::{Stripe, WideState};
use striate_meta::{ScanRange, keys};
use striate_site::Site;
use striate_stripe::{WidePlan, WideStep, file_of, wide_of};

use crate::cluster::{BUCKET, go_on};
use crate::dying::{Death, DyingStore, dying_client};
use crate::sealed::{Sealing, WIDE};

#[tokio::test(start_paused = true)]
async fn sealing_writes_no_data_chunk_and_no_objects_row_and_parities_go() {
    let sealing = Sealing::start().await;
    let rows = |sealing: &Sealing| {
        let meta = sealing.cluster.meta.clone();
        async move { meta.scan(ScanRange::prefix(&keys::objects(BUCKET)), 10_000).await.unwrap() }
    };
    let before = rows(&sealing).await;
    let data = |sealing: &Sealing| -> BTreeMap<ChunkId, SiteId> {
        let of = |site: &std::sync::Arc<crate::cluster::BreakableSite>| {
            let chunks = site.chunks.lock();
            chunks.keys().map(|chunk| (*chunk, site.id())).collect::<Vec<_>>()
        };
        sealing.cluster.sites.iter().flat_map(of).collect()
    };
    let chunks = data(&sealing);
    let report = sealing.seal().await;
    assert!(report.sealed >= 2 && report.given_up == 0, "{report:?}");
    assert_eq!(report.members, report.sealed * 10);
    assert_eq!(rows(&sealing).await, before, "no object's row has changed");
    sealing.assert_reads().await;
    sealing.collect().await;
    sealing.assert_reads().await;
    assert_eq!(sealing.assert_whole().await as u64, report.members);

    let after = data(&sealing);
    let stripes = sealing.cluster.stripes().await;
    let mut dropped = 0;
    for (id, record) in stripes.iter().filter(|(_, record)| record.profile.starts_with("packed")) {
        for index in 0..record.locations.len() {
            let file = file_of(*id, record, index);
            match record.dropped && index >= 4 {
                false => assert_eq!(after.get(&file), chunks.get(&file), "chunk {index} of {id}"),
                true => assert!(!after.contains_key(&file), "parity {index} of {id}"),
            }
        }
        dropped += u64::from(record.dropped);
    }
    assert!(dropped >= 2, "{dropped} stripes have dropped their parities: {report:?}");
    let wide = sealing.wide_stripes().await;
    assert!(wide.iter().all(|(_, record)| record.wide_state() == WideState::Complete));
    assert_eq!(sealing.rows(keys::CHANGES).await, 0);
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
    // Sealing again finds nothing more to seal.
    assert_eq!(sealing.seal().await.sealed, 0);
}

/// An object of a cold class says itself that it is cold, and what is sealed stays so.
#[tokio::test(start_paused = true)]
async fn reads_keep_what_is_cold_by_its_age_from_being_sealed() {
    let sealing = Sealing::start().await;
    let stripes = sealing.cluster.client.stripes();
    let seal = async |options: SealOptions| {
        seal_bucket(stripes, &sealing.packer, BUCKET, &options, &mut go_on).await.unwrap()
    };
    let by_age = |read: StripeId| SealOptions {
        recently_read: Some(BTreeSet::from([read])),
        ..SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO)
    };
    let packed = sealing.cluster.stripes().await;
    let packed: Vec<StripeId> =
        packed.iter().filter(|(_, of)| of.profile.starts_with("packed")).map(|(id, _)| *id).collect();
    let (read, all) = (packed[0], packed.len() as u64);
    let report = seal(by_age(read)).await;
    assert!(report.sealed > 0 && report.cold_stripes == all - 1, "{report:?}");
    assert!(sealing.record(read).await.locations.iter().all(|at| wide_of(at).is_none()));
    let classes = BTreeMap::from([(StorageClass::Standard, WIDE.parse().unwrap())]);
    let of_class = SealOptions { classes, ..by_age(read) };
    assert_eq!(seal(of_class).await.cold_stripes, all);
    let (sealed, _) = sealing.cluster.stripes().await.into_iter().find(|(_, of)| of.dropped).unwrap();
    assert_eq!(seal(by_age(sealed)).await.cold_stripes, all);
}

#[tokio::test(start_paused = true)]
async fn partitions_on_a_site_that_does_not_answer_wait_and_others_are_sealed() {
    let sealing = Sealing::start().await;
    let partitions = |site: SiteId, stripes: &[(StripeId, Stripe)]| {
        stripes.iter().flat_map(|(_, record)| &record.locations[..4]).filter(|at| at.site == site.0).count()
    };
    let stripes = sealing.cluster.stripes().await;
    let away = sealing.cluster.sites.iter().max_by_key(|site| partitions(site.id(), &stripes)).unwrap();
    *away.down.lock() = true;
    // A read that fails reveals the silent site.
    sealing.assert_reads().await;
    let report = sealing.seal().await;
    assert!(report.sealed >= 1 && report.given_up == 0, "{report:?}");
    assert!(report.held_up.as_ref().is_some_and(|why| why.contains("do not answer")), "{report:?}");
    let holds = |record: &Stripe| record.locations.iter().any(|at| at.site == away.id().0);
    assert!(!sealing.wide_stripes().await.iter().any(|(_, record)| holds(record)));

    *away.down.lock() = false;
    sealing.cluster.client.stripes().runtime().sleep(Duration::from_secs(60)).await;
    let report = sealing.seal().await;
    assert!(!report.held_up.is_some_and(|why| why.contains("do not answer")));
    sealing.assert_reads().await;
    sealing.assert_whole().await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_partition_waits_for_its_repair_and_holds_up_no_other() {
    let sealing = Sealing::start().await;
    let stripes = sealing.cluster.stripes().await;
    let of_group = |(_, record): &&(StripeId, Stripe)| record.profile.starts_with("packed");
    let (id, record) = stripes.iter().find(of_group).unwrap().clone();
    for index in 0..2 {
        let site = SiteId(record.locations[index].site);
        let damaged = sealing.cluster.sites.iter().find(|of| of.id() == site).unwrap();
        damaged.corrupt(file_of(id, &record, index));
    }
    let report = sealing.seal().await;
    assert!(report.sealed >= 1 && report.given_up >= 1, "{report:?}");
    let open = |(_, record): (StripeId, Stripe)| {
        record.locations[..4].iter().filter(|at| wide_of(at).is_none()).count() as u64
    };
    let packed = sealing.cluster.stripes().await.into_iter();
    let packed = packed.filter(|(_, record)| record.profile.starts_with("packed"));
    assert_eq!(report.waiting, packed.map(open).sum::<u64>(), "members of what was given up wait too");
    assert_eq!(sealing.cluster.debts().await, 1, "who finds it says so");
    assert_eq!(sealing.seal().await.given_up, 0, "it waits");
    sealing.heal().await;
    assert_eq!(sealing.seal().await.given_up, 0);
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

#[tokio::test(start_paused = true)]
async fn a_wide_stripe_that_was_left_half_made_is_gone_on_with_or_given_up() {
    let sealing = Sealing::start().await;
    let stripes = sealing.cluster.client.stripes();
    let profile = WIDE.parse().unwrap();
    let packed = sealing.cluster.stripes().await;
    let packed: Vec<_> =
        packed.into_iter().filter(|(_, record)| record.profile.starts_with("packed")).collect();
    let all: Vec<_> = packed
        .iter()
        .flat_map(|(id, record)| (0..4).map(move |index| (*id, index, &record.locations[index])))
        .collect();
    let begin = async |members: Vec<_>| {
        let plan = WidePlan { profile, chunk_len: packed[0].1.chunk_len, members };
        sealing.packer.begin_wide(&plan).await.unwrap()
    };
    // The rule does not admit arbitrary members.
    let anywhere = all.iter().map(|&(id, index, _)| Some((id, index))).take(10).collect();
    assert_eq!(begin(anywhere).await, None);
    // Two members of each group are in one rack; the other positions are holes.
    let mut members = vec![None; 10];
    let racks = sealing.racks();
    let in_rack = |rack: &RackId| -> Vec<(StripeId, usize)> {
        let mut sites = BTreeSet::new();
        let here = all.iter().filter(|(_, _, at)| racks[&SiteId(at.site)] == *rack && sites.insert(at.site));
        here.map(|&(id, index, _)| (id, index)).take(2).collect()
    };
    for (group, site) in [0, 1].into_iter().enumerate() {
        let of = in_rack(&sealing.cluster.sites[site].rack());
        of.into_iter().enumerate().for_each(|(at, member)| members[5 * group + at] = Some(member));
    }
    let id = begin(members).await.unwrap();
    let verified = verify(stripes, go_on).await.unwrap();
    assert!(verified.is_clean(), "parities that are not there yet are not damaged: {verified:?}");
    assert!(stripes.abort_wide(id).await.unwrap());
    assert_eq!(resume_wide(stripes).await.unwrap(), [(id, WideStep::Aborted)]);
    assert_eq!((sealing.rows(keys::CHANGES).await, sealing.wide_stripes().await.len()), (0, 0));
    // Members chosen by the planner, from the first step on.
    let report = sealing.seal().await;
    assert!(report.sealed > 0);
    assert_eq!(sealing.assert_whole().await % 10, 0);
    sealing.assert_reads().await;
}

/// One process makes the parities. Others that look meanwhile neither make them too nor give up the wide stripe.
#[tokio::test(start_paused = true)]
async fn what_one_process_is_sealing_others_leave_alone() {
    let mut met = 0;
    for commits in 0..8 {
        let sealing = Sealing::start().await;
        let meta = DyingStore::new(sealing.cluster.meta.clone());
        let dying = dying_client(&sealing.cluster, &meta).await;
        *meta.death.lock() = Some(Death { commits, is_made: true });
        let packer = dying.stripes().packer();
        let wide = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
        let mut tell = go_on;
        let work = seal_bucket(dying.stripes(), &packer, BUCKET, &wide, &mut tell);
        let killed = sealing.cluster.runtime.timeout(Duration::from_secs(2), work).await;
        drop((killed, packer, dying));
        let is_open =
            |(_, of): &&(StripeId, Stripe)| of.wide_state() == WideState::Building && !of.entries.is_empty();
        let wide = sealing.wide_stripes().await;
        let Some((id, before)) = wide.iter().find(is_open) else { continue };
        let stripes = sealing.cluster.client.stripes();
        assert!(resume_wide(stripes).await.unwrap().contains(&(*id, WideStep::Postponed)));
        assert_eq!(sealing.record(*id).await, *before);
        // Its lease expires.
        sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
        collect_abandoned(stripes).await.unwrap();
        resume_wide(stripes).await.unwrap();
        assert!(sealing.record(*id).await.is_sealed());
        met += 1;
    }
    assert!(met > 0, "no process has died in making parities");
}

/// A process dies before or after any commit while it seals. The data then survives the loss of two sites; another
/// process continues, and nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_sealing_leaves_nothing_wrong() {
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let sealing = Sealing::start().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let packer = dying.stripes().packer();
            let wide = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
            let mut tell = go_on;
            let work = seal_bucket(dying.stripes(), &packer, BUCKET, &wide, &mut tell);
            let killed = sealing.cluster.runtime.timeout(Duration::from_secs(100), work).await;
            ended |= killed.map(|sealed| sealed.unwrap()).is_ok();
            drop((packer, dying));
            sealing.assert_bears_two_losses(commits).await;
            // Its leases expire.
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            for (id, step) in resume_wide(sealing.cluster.client.stripes()).await.unwrap() {
                assert_ne!(step, WideStep::Gone, "{id} after {commits}");
            }
            sealing.seal().await;
            assert_eq!(sealing.assert_whole().await % 10, 0);
            sealing.collect().await;
            sealing.assert_reads().await;
            assert_eq!(sealing.rows(keys::CHANGES).await, 0, "after {commits} commits");
            let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
            assert!(verified.is_clean(), "after {commits} commits: {verified:?}");
            assert_eq!((verified.orphans, verified.unexplained), (0, 0), "after {commits} commits");
        }
        if ended {
            assert!(commits > 8, "sealing took only {commits} commits");
            return;
        }
    }
}
