//! Members that die: they leave their wide stripes or others take their places, and their space is reclaimed.

use std::collections::BTreeMap;
use std::time::Duration;

use striate_client::WriteCondition;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{
    HotCopies, HotCopiesOptions, PackOptions, SealOptions, collect_abandoned, pack_bucket, repack_marked,
    repair_stripe, resume_wide, seal_bucket, verify,
};
use striate_core::StripeId;
use striate_meta::records::{PackingFigures, PackingWork, Stripe, WideState};
use striate_meta::{Commit, keys};
use striate_plan::statistics::heat::PartitionReads;
use striate_site::Site;
use striate_stripe::{ExchangeOutcome, WideStep, is_hole, wide_of};

use crate::cluster::{BUCKET, content, go_on, leave_all};
use crate::dying::{Death, DyingStore, dying_client};
use crate::sealed::{OBJECTS, Sealing, WIDE, len, name, pack_options};

impl Sealing {
    pub async fn delete(&mut self, keys: impl Iterator<Item = usize>) {
        for key in keys {
            let condition = WriteCondition::default();
            assert!(self.cluster.client.delete(BUCKET, &name(key), condition).await.unwrap());
            self.deleted.insert(key);
        }
    }

    /// Writes the deleted objects again, elsewhere.
    pub async fn put_again(&mut self) {
        for key in std::mem::take(&mut self.deleted) {
            self.cluster.put(&name(key), &content(key, len(key))).await.unwrap();
        }
    }

    pub async fn pack(&self) {
        let default = "rs(4,2)".parse().unwrap();
        let stripes = self.cluster.client.stripes();
        pack_bucket(stripes, &self.packer, BUCKET, &default, &pack_options()).await.unwrap();
    }

    pub async fn repack(&self) {
        repack_marked(self.cluster.client.stripes(), &self.packer, &pack_options()).await.unwrap();
    }

    pub async fn leave(&self) -> u64 {
        leave_all(self.cluster.client.stripes()).await
    }

    pub async fn dead(&self) -> usize {
        self.cluster.stripes().await.iter().filter(|(_, record)| record.dead).count()
    }

    pub async fn holes(&self) -> usize {
        let of = |record: &_| (0..10).filter(|&position| is_hole(record, position)).count();
        self.wide_stripes().await.iter().map(|(_, record)| of(record)).sum()
    }

    /// Loses three members of one group of each wide stripe, as many as it tolerates: the local parity and two global
    /// ones must be right.
    pub async fn assert_parities(&self) {
        for (id, record) in self.wide_stripes().await {
            let members = (5..10).filter(|&position| !is_hole(&record, position));
            for position in members.take(3) {
                let site = striate_core::SiteId(record.locations[position].site);
                self.lose(striate_stripe::file_of(id, &record, position), site);
            }
        }
        self.assert_reads().await;
        verify(self.cluster.client.stripes(), go_on).await.unwrap();
        self.heal().await;
        self.assert_clean().await;
    }

    pub async fn assert_clean(&self) {
        let verified = verify(self.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
    }
}

/// If sites cannot reach each other, this process makes it: it reads the stripe's other chunks, and holes count as
/// zeros.
#[tokio::test(start_paused = true)]
async fn a_lost_parity_of_a_wide_stripe_with_holes_is_made_where_sites_cannot() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    sealing.leave().await;
    assert!(sealing.holes().await > 0);
    sealing.collect().await;
    for (id, record) in sealing.wide_stripes().await {
        for parity in [10, 11, 12] {
            let site = striate_core::SiteId(record.locations[parity].site);
            sealing.lose(striate_stripe::file_of(id, &record, parity), site);
        }
    }
    sealing.cluster.sites.iter().for_each(|site| *site.alone.lock() = true);
    assert!(!verify(sealing.cluster.client.stripes(), go_on).await.unwrap().is_clean());
    sealing.heal().await;
    sealing.assert_whole().await;
    sealing.assert_clean().await;
}

/// A record that cannot be read, because of a defect or damage, holds up only its own stripe.
#[tokio::test(start_paused = true)]
async fn a_stripe_whose_record_is_wrong_does_not_keep_others_from_leaving() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    sealing.delete(0..OBJECTS).await;
    sealing.repack().await;
    let dead = sealing.dead().await as u64;
    let (id, record) = sealing.cluster.stripes().await.into_iter().find(|(_, of)| of.dead).unwrap();
    let stripes = sealing.cluster.client.stripes().clone();
    let with_profile = async |sealing: &Sealing, profile: &str| {
        let now = sealing.cluster.stripes().await.into_iter().find(|of| of.0 == id).unwrap().1;
        let record = Stripe { profile: profile.to_owned(), ..now };
        let mut tx = stripes.transaction();
        tx.put(keys::stripe(id), striate_meta::records::encode(&record));
        assert!(matches!(stripes.meta().commit(tx).await.unwrap(), Commit::Done(_)));
    };
    with_profile(&sealing, "rs(4").await;
    resume_wide(&stripes).await.expect("each pass of packing and sealing begins with it");
    assert_eq!(sealing.leave().await, dead - 1);
    sealing.put_again().await;
    sealing.pack().await;
    sealing.repack().await;
    assert!(sealing.seal().await.sealed > 0, "nor what is written meanwhile from being sealed");
    with_profile(&sealing, &record.profile).await;
    assert_eq!(sealing.leave().await, 1);
    sealing.collect().await;
    assert_eq!((sealing.dead().await, sealing.rows(keys::CHANGES).await), (0, 0));
    sealing.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn dead_members_leave_holes_and_their_space_returns() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let before = sealing.cluster.chunk_count();
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    let dead = sealing.dead().await;
    assert!(dead > 0);
    // While they are members, they are kept and repaired.
    sealing.collect().await;
    let (id, record) = sealing.cluster.stripes().await.into_iter().find(|(_, of)| of.dead).unwrap();
    let index = record.locations.iter().position(|at| wide_of(at).is_some()).unwrap();
    let site = striate_core::SiteId(record.locations[index].site);
    sealing.lose(striate_stripe::file_of(id, &record, index), site);
    assert!(!verify(sealing.cluster.client.stripes(), go_on).await.unwrap().is_clean());
    assert_eq!(sealing.leave().await as usize, dead - 1, "what is lost is repaired first");
    sealing.heal().await;
    assert_eq!(sealing.leave().await, 1);
    sealing.collect().await;
    assert_eq!((sealing.dead().await, sealing.rows(keys::CHANGES).await), (0, 0));
    assert!(sealing.holes().await > 0);
    assert!(sealing.cluster.chunk_count() < before - 4 * dead, "their data chunks and more are gone");
    sealing.assert_whole().await;
    sealing.assert_clean().await;
    for seed in 0..6 {
        sealing.assert_bears_two_losses(seed).await;
    }
    sealing.assert_parities().await;
    // Everything dies.
    sealing.delete(OBJECTS / 2..OBJECTS).await;
    sealing.repack().await;
    sealing.leave().await;
    sealing.collect().await;
    assert_eq!((sealing.wide_stripes().await.len(), sealing.cluster.chunk_count()), (0, 0));
    assert_eq!(sealing.rows(keys::STRIPES).await, 0);
}

/// The parities are rewritten once, however many members leave.
#[tokio::test(start_paused = true)]
async fn dead_members_of_a_wide_stripe_leave_it_together() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let before: BTreeMap<_, _> = sealing.wide_stripes().await.into_iter().collect();
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    sealing.leave().await;
    let mut most_holes = 0;
    for (id, record) in sealing.wide_stripes().await {
        let holes = (0..10).filter(|&position| is_hole(&record, position)).count();
        for global in 12..14 {
            let version = |record: &Stripe| record.locations[global].content_version;
            assert_eq!(version(&record), version(&before[&id]) + u32::from(holes > 0));
        }
        most_holes = most_holes.max(holes);
    }
    assert!(most_holes > 1, "in one of {} wide stripes", before.len());
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_clean().await;
    sealing.assert_parities().await;
}

#[tokio::test(start_paused = true)]
async fn a_wide_stripe_of_which_nothing_lives_goes_and_no_parity_is_made() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    assert!(!sealing.wide_stripes().await.is_empty());
    sealing.delete(0..OBJECTS).await;
    sealing.repack().await;
    // A wide stripe that can no longer be repaired does not hold it up either.
    let (id, record) = sealing.wide_stripes().await.remove(0);
    for position in 0..8 {
        let site = striate_core::SiteId(record.locations[position].site);
        sealing.lose(striate_stripe::file_of(id, &record, position), site);
    }
    assert!(!verify(sealing.cluster.client.stripes(), go_on).await.unwrap().is_clean());
    let written = sealing.cluster.written_bytes();
    sealing.leave().await;
    assert_eq!(sealing.cluster.written_bytes(), written);
    sealing.collect().await;
    assert_eq!((sealing.wide_stripes().await.len(), sealing.dead().await), (0, 0));
    for rows in [keys::STRIPES, keys::CHANGES, keys::REVERSES] {
        assert_eq!(sealing.rows(rows).await, 0);
    }
    assert_eq!(sealing.cluster.chunk_count(), 0);
    sealing.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn cold_partitions_take_the_places_of_dead_members_and_fill_holes() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.delete(0..OBJECTS / 3).await;
    sealing.repack().await;
    sealing.leave().await;
    let holes = sealing.holes().await;
    assert!(holes > 0);
    sealing.delete(OBJECTS / 3..OBJECTS / 2).await;
    sealing.repack().await;
    assert!(sealing.dead().await > 0);
    sealing.put_again().await;
    sealing.pack().await;
    let report = sealing.seal().await;
    assert!(report.replaced > holes as u64 / 2, "{report:?} of {holes} holes and more dead");
    resume_wide(sealing.cluster.client.stripes()).await.unwrap();
    sealing.leave().await;
    let wide = sealing.wide_stripes().await;
    assert!(wide.iter().all(|(_, record)| record.wide_state() == WideState::Complete));
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_clean().await;
    for seed in 0..6 {
        sealing.assert_bears_two_losses(seed).await;
    }
    sealing.assert_parities().await;
}

/// They would wait until as many others of their length have come.
#[tokio::test(start_paused = true)]
async fn partitions_too_few_for_a_wide_stripe_of_their_length_fill_holes_in_longer_ones() {
    let long = PackOptions { partition_len: 96 << 10, ..pack_options() };
    let mut sealing = Sealing::start_with("rs(4,2)", &long).await;
    sealing.seal().await;
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    sealing.leave().await;
    assert!(sealing.holes().await > 8);
    for key in 0..30 {
        sealing.cluster.put(&name(key), &content(key, len(key))).await.unwrap();
        sealing.deleted.remove(&key);
    }
    sealing.pack().await;
    let is_short = |(_, of): &(StripeId, Stripe)| of.packed_objects > 0 && of.chunk_len == 64 << 10;
    let short: Vec<_> = sealing.cluster.stripes().await.into_iter().filter(is_short).collect();
    assert_eq!(short.len(), 1, "fewer partitions than a wide stripe takes");
    let report = sealing.seal().await;
    let why = report.held_up.as_deref().unwrap_or_default();
    assert!(report.waiting > 0 && why.starts_with("too few of one length"), "{report:?}");
    let stripe = sealing.cluster.client.stripes().find(short[0].0).await.unwrap().unwrap();
    let taken = stripe.record.locations.iter().filter(|at| wide_of(at).is_some()).count();
    assert!(report.sealed == 0 && taken > 0, "{taken} taken, {report:?}");
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_reads().await;
    sealing.assert_bears_two_losses(1).await;
    sealing.assert_parities().await;
}

/// It first gets copies; if it stays hot, it gets its own parities again, and drops them when it has cooled.
#[tokio::test(start_paused = true)]
async fn what_is_sealed_and_stays_hot_gets_its_own_parities_again() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let stripes = sealing.cluster.client.stripes();
    let (id, before) = sealing.cluster.stripes().await.into_iter().find(|(_, of)| of.dropped).unwrap();
    let record = || async { stripes.find(id).await.unwrap().unwrap().record };
    let work = PackingWork {
        figures: Some(PackingFigures { partition_bytes: 100 << 20, ..PackingFigures::default() }),
        ..PackingWork::default()
    };
    let mut tx = stripes.transaction();
    tx.put(keys::packing_work(), striate_meta::records::encode(&work));
    stripes.meta().commit(tx).await.unwrap();
    let copies = HotCopies::new(HotCopiesOptions { share: 0.1 });
    let hottest = [PartitionReads { partition: (id, 1), count: 1_000 }];
    copies.run_pass(stripes, &hottest, true).await.unwrap();
    assert_eq!((record().await.copies.len(), record().await.dropped), (1, true), "a copy first");
    copies.run_pass(stripes, &hottest, true).await.unwrap();
    assert!(!record().await.dropped && sealing.cluster.debts().await == 1);
    sealing.heal().await;
    let narrow = record().await;
    for index in 4..6 {
        assert_ne!(narrow.locations[index].site, 0);
        assert_eq!(narrow.locations[index].crc32c, before.locations[index].crc32c);
    }
    sealing.assert_clean().await;
    sealing.seal().await;
    assert!(!record().await.dropped, "as long as it has copies");
    // A filled place makes one of its wide stripes drop parities again, but not those of what is hot.
    let (wide, _) = wide_of(&record().await.locations[0]).unwrap();
    let mut filled = sealing.record(wide).await;
    filled.set_wide_state(WideState::Sealed);
    let mut tx = stripes.transaction();
    tx.put(keys::stripe(wide), striate_meta::records::encode(&filled));
    stripes.meta().commit(tx).await.unwrap();
    assert_eq!(stripes.advance_wide(wide).await.unwrap(), WideStep::Complete);
    assert!(!record().await.dropped, "as long as it has copies");
    copies.run_pass(stripes, &[], true).await.unwrap();
    assert!(record().await.copies.is_empty());
    sealing.seal().await;
    assert!(record().await.dropped, "it has cooled");
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_clean().await;
    sealing.assert_bears_two_losses(1).await;
}

/// A process dies before or after any commit while members leave and others come in. The data then survives the loss
/// of two sites; another process continues, and nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_an_exchange_leaves_nothing_wrong() {
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let mut sealing = Sealing::start().await;
            sealing.seal().await;
            sealing.delete(0..OBJECTS / 2).await;
            sealing.repack().await;
            sealing.put_again().await;
            sealing.pack().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            // The first commits are many and alike: every third is enough.
            *meta.death.lock() = Some(Death { commits: 3 * commits + usize::from(is_made), is_made });
            let packer = dying.stripes().packer();
            let wide = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
            let mut tell = go_on;
            let work = async {
                seal_bucket(dying.stripes(), &packer, BUCKET, &wide, &mut tell).await.unwrap();
                leave_all(dying.stripes()).await;
            };
            let killed = sealing.cluster.runtime.timeout(Duration::from_secs(200), work).await;
            ended |= killed.is_ok();
            drop((packer, dying));
            sealing.assert_bears_two_losses(commits).await;
            // Its leases expire.
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            resume_wide(sealing.cluster.client.stripes()).await.unwrap();
            sealing.seal().await;
            sealing.leave().await;
            sealing.collect().await;
            sealing.assert_whole().await;
            sealing.assert_reads().await;
            assert_eq!(sealing.rows(keys::CHANGES).await, 0, "after {commits} commits");
            sealing.assert_clean().await;
            sealing.assert_parities().await;
        }
        if ended {
            assert!(commits > 8, "it took only {commits} steps");
            return;
        }
    }
}

/// Filling its places one by one would rewrite all parities each time. The wide stripe is deleted instead, and others
/// are made.
#[tokio::test(start_paused = true)]
async fn no_partition_takes_a_place_in_a_wide_stripe_of_which_nothing_lives() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    sealing.delete(0..OBJECTS).await;
    sealing.repack().await;
    let dead: Vec<StripeId> = sealing.wide_stripes().await.into_iter().map(|(id, _)| id).collect();
    sealing.put_again().await;
    sealing.pack().await;
    let report = sealing.seal().await;
    sealing.leave().await;
    assert_eq!((report.replaced, report.swapped), (0, 0), "{report:?}");
    assert!(sealing.wide_stripes().await.iter().all(|(id, _)| !dead.contains(id)));
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_clean().await;
}

/// A process dies before or after any commit while wide stripes in which nothing lives are released. Another
/// continues, and nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_while_wide_stripes_go_leaves_nothing_over() {
    for commits in 0.. {
        let mut ended = false;
        for is_made in [false, true] {
            let mut sealing = Sealing::start().await;
            sealing.seal().await;
            sealing.delete(0..OBJECTS).await;
            sealing.repack().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits: 3 * commits + usize::from(is_made), is_made });
            let work = async { leave_all(dying.stripes()).await };
            let killed = sealing.cluster.runtime.timeout(Duration::from_secs(200), work).await;
            ended |= killed.is_ok();
            drop(dying);
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            assert!(verify(sealing.cluster.client.stripes(), go_on).await.unwrap().is_clean());
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            resume_wide(sealing.cluster.client.stripes()).await.unwrap();
            sealing.leave().await;
            sealing.collect().await;
            for rows in [keys::STRIPES, keys::CHANGES, keys::REVERSES, keys::DEBTS] {
                assert_eq!(sealing.rows(rows).await, 0, "after {commits} commits");
            }
            assert_eq!(sealing.cluster.chunk_count(), 0, "after {commits} commits");
            sealing.assert_clean().await;
        }
        if ended {
            assert!(commits > 3, "it took only {commits} steps");
            return;
        }
    }
}

/// Concurrent moves do not cancel it (design.md §10.16). The more members leave, the longer the sums take, and the
/// more moves happen meanwhile.
#[tokio::test(start_paused = true)]
async fn dead_members_leave_although_another_member_moves_meanwhile() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    let stripes = sealing.cluster.client.stripes();
    let (mut found, mut most) = (None, 0);
    for (id, record) in sealing.wide_stripes().await {
        let (mut dead, mut moves) = (0, Vec::new());
        for position in 0..10 {
            let (own, _) = Sealing::member(&record, position);
            match sealing.record(own).await.dead {
                true => dead += 1,
                false => moves = sealing.near_moves(&record, position).await,
            }
        }
        if dead > most && !moves.is_empty() {
            (found, most) = (Some((id, moves[0])), dead);
        }
    }
    let (wide, wanted) = found.unwrap();
    assert!(most > 2, "{most} dead ones");
    // Sites answer late, so that the move commits while the members leave.
    sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_secs(1));
    let moving = striate_control::move_chunk(stripes, &wanted);
    let (left, moved) = futures::future::join(stripes.leave_wide(wide), moving).await;
    let moved = moved.unwrap();
    assert!(matches!(moved, striate_control::MoveOutcome::Moved { .. }), "{moved:?}, {left:?}");
    assert_eq!(left.unwrap(), ExchangeOutcome::Done, "of {most} dead members");
}

/// It would be retried every minute, and the other parities made meanwhile would be garbage each time.
#[tokio::test(start_paused = true)]
async fn nothing_is_made_while_the_site_of_a_parity_does_not_answer() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    sealing.delete(0..OBJECTS / 2).await;
    sealing.repack().await;
    let wide = sealing.wide_stripes().await;
    let sites: Vec<u32> = wide.iter().map(|(_, record)| record.locations[12].site).collect();
    let set = |down: bool| {
        let of = sealing.cluster.sites.iter().filter(|site| sites.contains(&site.id().0));
        of.for_each(|site| *site.down.lock() = down);
    };
    set(true);
    let written = sealing.cluster.written_bytes();
    for _ in 0..5 {
        sealing.leave().await;
    }
    let in_vain = sealing.cluster.written_bytes() - written;
    set(false);
    sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    sealing.leave().await;
    assert!(sealing.holes().await > 0);
    assert_eq!(in_vain, 0, "bytes of parities that could not be named");
}

/// A dead stripe's wide stripe is released while a repair reads both.
#[tokio::test(start_paused = true)]
async fn a_repair_of_what_goes_meanwhile_has_nothing_to_say() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    sealing.delete(0..OBJECTS).await;
    sealing.repack().await;
    let all = sealing.cluster.stripes().await;
    let (id, record) = all.into_iter().find(|(_, of)| of.dead && of.dropped).unwrap();
    let site = striate_core::SiteId(record.locations[0].site);
    sealing.lose(striate_stripe::file_of(id, &record, 0), site);
    let others = sealing.cluster.client.stripes().clone();
    let meta = DyingStore::new(sealing.cluster.meta.clone());
    let client = dying_client(&sealing.cluster, &meta).await;
    let meanwhile = async move {
        leave_all(&others).await;
    };
    *meta.after_get.lock() = Some((keys::stripe(id), Box::pin(meanwhile)));
    let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
    let outcome = repair_stripe(client.stripes(), id, &absent, &pace, true).await;
    assert!(meta.after_get.lock().is_none(), "it was read");
    assert!(outcome.as_ref().is_ok_and(|outcome| outcome.unrepairable.is_none()), "{outcome:?}");
}
