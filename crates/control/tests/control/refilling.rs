//! Worn sealed groups: living objects of one take the places of dead objects in another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::oneshot;
use striate_client::{ClientError, GetRequest, ObjectPart, ReadOrder, ReadRange};
use striate_control::{RepackOutcome, Repacker, collect_abandoned, resume_wide};
use striate_core::StripeId;
use striate_meta::records::{Object, Stripe, object::Body};
use striate_meta::{ScanRange, keys};

use crate::cluster::{BUCKET, content};
use crate::dying::{Death, DyingStore, Stall, dying_client};
use crate::sealed::{OBJECTS, Sealing, len, name, pack_options};

/// Two of every five neighbours die.
fn dies(key: &usize) -> bool {
    [1, 2].contains(&(key % 5))
}

impl Sealing {
    /// Starts with groups that are sealed and worn.
    async fn worn() -> Self {
        let mut sealing = Self::start().await;
        sealing.seal().await;
        sealing.collect().await;
        sealing.delete((0..OBJECTS).filter(dies)).await;
        sealing
    }

    async fn repack_with(&self, repacker: &mut Repacker) -> Vec<(StripeId, RepackOutcome)> {
        repacker.repack(self.cluster.client.stripes(), &self.packer, &pack_options()).await.unwrap()
    }

    async fn let_grace_pass(&self) {
        let stripes = self.cluster.client.stripes();
        stripes.runtime().sleep(stripes.options().garbage_grace).await;
    }

    /// Counts the partitions that have changed in place.
    async fn refilled(&self) -> usize {
        let of = |record: &Stripe| record.locations[..4].iter().filter(|at| at.content_version > 0).count();
        let stripes = self.cluster.stripes().await;
        stripes.iter().filter(|(_, record)| record.members.is_empty()).map(|(_, record)| of(record)).sum()
    }

    /// Counts the objects that were written into the places of others.
    async fn objects_in_place(&self) -> usize {
        let rows = self.cluster.meta.scan(ScanRange::prefix(&keys::objects(BUCKET)), 10_000).await.unwrap();
        let is_in_place = |row: &&striate_meta::Row| match row.record::<Object>().unwrap().body {
            Some(Body::Extent(extent)) => extent.content_version > 0,
            _ => false,
        };
        rows.iter().filter(is_in_place).count()
    }

    /// Finishes pending work and asserts that everything is consistent.
    async fn assert_settled(&self, of: usize) {
        self.leave().await;
        self.collect().await;
        self.assert_whole().await;
        assert_eq!(self.rows(keys::CHANGES).await, 0);
        self.assert_clean().await;
        self.assert_encoded().await;
        self.assert_bears_two_losses(of).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_lives_in_a_worn_group_takes_the_places_of_the_dead_in_another_that_stays_sealed() {
    let sealing = Sealing::worn().await;
    let before: BTreeSet<StripeId> = sealing.cluster.stripes().await.iter().map(|(id, _)| *id).collect();
    let mut repacker = Repacker::default();
    let done = sealing.repack_with(&mut repacker).await;
    assert!(
        done.iter().any(|(_, what)| *what == RepackOutcome::Later),
        "something has died just now: {done:?}"
    );
    assert_eq!(sealing.refilled().await, 0);
    sealing.let_grace_pass().await;
    let done = sealing.repack_with(&mut repacker).await;
    let refilled = sealing.refilled().await;
    let in_place = sealing.objects_in_place().await;
    assert!(refilled > 2 && in_place > refilled, "{in_place} objects in {refilled} partitions: {done:?}");
    assert!(done.iter().any(|(_, what)| *what == RepackOutcome::Released), "{done:?}");
    sealing.assert_reads().await;
    let stripes = sealing.cluster.stripes().await;
    let is_changed = |record: &Stripe| record.locations.iter().any(|at| at.content_version > 0);
    for (id, record) in stripes.iter().filter(|(_, of)| of.members.is_empty() && is_changed(of)) {
        assert!(before.contains(id) && record.dropped && !record.dead, "{id} is sealed as before");
        let found = striate_control::liveness(sealing.cluster.client.stripes(), *id).await.unwrap().unwrap();
        let (objects, bytes) = (found.live_objects + found.dead_objects, found.live_bytes + found.dead_bytes);
        assert_eq!((record.packed_objects, record.packed_bytes), (objects, bytes), "{id}: {found:?}");
    }
    sealing.assert_settled(1).await;
    // Later passes too: a refilled group may wear, and be refilled again.
    for _ in 0..3 {
        sealing.let_grace_pass().await;
        sealing.repack_with(&mut repacker).await;
    }
    sealing.assert_settled(2).await;
}

/// A receiver that takes little at a time keeps looked-up objects waiting for longer than the grace.
#[tokio::test(start_paused = true)]
async fn a_read_of_many_that_is_taken_slowly_never_has_bytes_of_others() {
    let mut sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    // Objects that die are looked up early, and read last.
    let (last, mut keys): (Vec<usize>, Vec<usize>) = (0..OBJECTS).partition(dies);
    keys.extend(last);
    let ranges = keys.iter().map(|&key| GetRequest {
        bucket: BUCKET.to_owned(),
        key: name(key),
        range: ReadRange::Bytes { first: 5, last: Some(len(key) as u64 - 5) },
        ..GetRequest::default()
    });
    let mut parts = sealing.cluster.client.read_many(ranges.collect(), ReadOrder::Requests);
    let mut read: BTreeMap<usize, Result<Vec<u8>, ClientError>> = BTreeMap::new();
    let mut note = |(position, part): (usize, Result<ObjectPart, ClientError>)| {
        read.insert(keys[position], part.map(|part| part.pieces.concat()));
    };
    note(parts.next().await.unwrap());
    sealing.delete((0..OBJECTS).filter(dies)).await;
    let mut repacker = Repacker::default();
    sealing.repack_with(&mut repacker).await;
    sealing.let_grace_pass().await;
    sealing.repack_with(&mut repacker).await;
    assert!(sealing.objects_in_place().await > 2, "ranges were overwritten");
    sealing.let_grace_pass().await;
    sealing.collect().await;
    while let Some(part) = parts.next().await {
        note(part);
    }
    assert_eq!(read.len(), OBJECTS);
    for (key, read) in read {
        match read {
            Ok(bytes) => assert!(bytes == content(key, len(key))[5..len(key) - 4], "object {key}"),
            Err(error) => assert!(dies(&key), "object {key}: {error}"),
        }
    }
}

/// A read of an object that is then deleted may continue for the grace.
#[tokio::test(start_paused = true)]
async fn no_range_is_overwritten_before_the_grace_has_passed_since_the_last_death() {
    let mut sealing = Sealing::worn().await;
    let mut repacker = Repacker::default();
    sealing.repack_with(&mut repacker).await;
    sealing.let_grace_pass().await;
    // One more object dies in each group.
    sealing.delete((0..OBJECTS).filter(|key| key % 10 == 3)).await;
    let done = sealing.repack_with(&mut repacker).await;
    assert_eq!(sealing.refilled().await, 0, "{done:?}");
    // Another object dies during the pass, so the group is no longer quiet.
    sealing.let_grace_pass().await;
    let runtime = sealing.cluster.runtime.clone();
    for site in &sealing.cluster.sites {
        *site.lag.lock() = Duration::from_millis(20);
    }
    let key = (0..OBJECTS).find(|key| !sealing.deleted.contains(key)).unwrap();
    let overwriting = async {
        runtime.sleep(Duration::from_millis(1_200)).await;
        sealing.cluster.put(&name(key), &content(key, len(key))).await.unwrap();
    };
    futures::join!(sealing.repack_with(&mut repacker), overwriting);
    sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::ZERO);
    sealing.assert_reads().await;
    sealing.assert_settled(3).await;
}

/// Clients overwrite and delete while groups are refilled: the clients' changes win.
#[tokio::test(start_paused = true)]
async fn a_client_that_changes_an_object_wins_over_its_place_in_another_group() {
    let sealing = Sealing::worn().await;
    let mut repacker = Repacker::default();
    sealing.repack_with(&mut repacker).await;
    sealing.let_grace_pass().await;
    for (site, at) in sealing.cluster.sites.iter().zip(1..) {
        *site.lag.lock() = Duration::from_millis(at * 13 % 60);
    }
    let runtime = sealing.cluster.runtime.clone();
    let survivors: Vec<usize> = (0..OBJECTS).filter(|key| !dies(key)).collect();
    let mut overwritten = BTreeSet::new();
    let overwriting = async {
        for key in survivors.iter().step_by(7) {
            runtime.sleep(Duration::from_millis(350)).await;
            sealing.cluster.put(&name(*key), &content(key + 5_000, len(*key))).await.unwrap();
            overwritten.insert(*key);
        }
    };
    futures::join!(sealing.repack_with(&mut repacker), overwriting);
    sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::ZERO);
    for key in survivors {
        let seed = if overwritten.contains(&key) { key + 5_000 } else { key };
        assert!(sealing.cluster.get(&name(key)).await.unwrap() == content(seed, len(key)), "object {key}");
    }
    assert!(sealing.refilled().await > 0);
    sealing.leave().await;
    sealing.collect().await;
    sealing.assert_whole().await;
    sealing.assert_clean().await;
    sealing.assert_encoded().await;
}

/// Another process has read the directories before. New entries in them must not look as if nothing lived.
#[tokio::test(start_paused = true)]
async fn who_remembers_where_an_old_directory_is_releases_nothing_that_lives() {
    let mut sealing = Sealing::worn().await;
    let elsewhere = dying_client(&sealing.cluster, &DyingStore::new(sealing.cluster.meta.clone())).await;
    let (packer, mut remembering) = (elsewhere.stripes().packer(), Repacker::default());
    remembering.repack(elsewhere.stripes(), &packer, &pack_options()).await.unwrap();
    let mut repacker = Repacker::default();
    sealing.repack_with(&mut repacker).await;
    sealing.let_grace_pass().await;
    sealing.repack_with(&mut repacker).await;
    assert!(sealing.objects_in_place().await > 0);
    // All objects die that lived in the groups before they were refilled.
    let mut old = Vec::new();
    for key in (0..OBJECTS).filter(|key| !dies(key)) {
        let row = sealing.cluster.meta.get(&keys::object(BUCKET, &name(key))).await.unwrap().unwrap();
        let is_new = |body: &Body| matches!(body, Body::Extent(extent) if extent.content_version > 0);
        if !row.record::<Object>().unwrap().body.as_ref().is_some_and(is_new) {
            old.push(key);
        }
    }
    sealing.delete(old.into_iter()).await;
    remembering.repack(elsewhere.stripes(), &packer, &pack_options()).await.unwrap();
    sealing.leave().await;
    sealing.collect().await;
    sealing.assert_reads().await;
}

/// Leadership passes to another process while the old leader does not know it yet: both refill the same groups.
#[tokio::test(start_paused = true)]
async fn two_processes_that_refill_the_same_groups_at_once_take_no_places_of_each_other() {
    for offset in 0..8 {
        let sealing = Sealing::worn().await;
        let elsewhere = dying_client(&sealing.cluster, &DyingStore::new(sealing.cluster.meta.clone())).await;
        let (packer, mut other) = (elsewhere.stripes().packer(), Repacker::default());
        let mut repacker = Repacker::default();
        sealing.repack_with(&mut repacker).await;
        other.repack(elsewhere.stripes(), &packer, &pack_options()).await.unwrap();
        sealing.let_grace_pass().await;
        for (site, at) in sealing.cluster.sites.iter().zip(1u64..) {
            *site.lag.lock() = Duration::from_millis(at * (7 + offset) % 40);
        }
        let later = async {
            sealing.cluster.runtime.sleep(Duration::from_millis(400 * offset)).await;
            other.repack(elsewhere.stripes(), &packer, &pack_options()).await.unwrap();
        };
        futures::join!(sealing.repack_with(&mut repacker), later);
        sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::ZERO);
        assert!(sealing.objects_in_place().await > 0);
        sealing.assert_reads().await;
        sealing.assert_settled(offset as usize).await;
    }
}

/// A process stalls before any commit, another does the same work meanwhile, and then the first one continues.
#[tokio::test(start_paused = true)]
async fn of_two_processes_that_refill_the_same_groups_none_takes_what_the_other_has_given_away() {
    for commits in 0.. {
        let sealing = Sealing::worn().await;
        let meta = DyingStore::new(sealing.cluster.meta.clone());
        let slow = dying_client(&sealing.cluster, &meta).await;
        let (packer, mut of_slow, mut quick) =
            (slow.stripes().packer(), Repacker::default(), Repacker::default());
        of_slow.repack(slow.stripes(), &packer, &pack_options()).await.unwrap();
        sealing.repack_with(&mut quick).await;
        sealing.let_grace_pass().await;
        let (go_on, until) = oneshot::channel();
        *meta.stall.lock() = Some(Stall { commits, until });
        let meanwhile = async {
            sealing.cluster.runtime.sleep(Duration::from_secs(20)).await;
            sealing.repack_with(&mut quick).await;
            let has_stalled = meta.stall.lock().is_none();
            let _ = go_on.send(());
            has_stalled
        };
        let options = pack_options();
        let (done, has_stalled) =
            futures::join!(of_slow.repack(slow.stripes(), &packer, &options), meanwhile);
        done.unwrap();
        assert!(sealing.objects_in_place().await > 0);
        sealing.assert_reads().await;
        if commits % 8 == 0 || !has_stalled {
            sealing.assert_settled(commits).await;
        }
        if !has_stalled {
            assert!(commits > 10, "it took only {commits} commits");
            return;
        }
    }
}

/// A process dies before or after any commit while it refills groups. Another continues, and nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_refilling_leaves_nothing_wrong() {
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let sealing = Sealing::worn().await;
            let meta = DyingStore::new(sealing.cluster.meta.clone());
            let dying = dying_client(&sealing.cluster, &meta).await;
            let (packer, mut repacker) = (dying.stripes().packer(), Repacker::default());
            repacker.repack(dying.stripes(), &packer, &pack_options()).await.unwrap();
            sealing.let_grace_pass().await;
            // Many commits are alike: every fifth is enough.
            *meta.death.lock() = Some(Death { commits: 5 * commits + 2 * usize::from(is_made), is_made });
            let options = pack_options();
            let work = repacker.repack(dying.stripes(), &packer, &options);
            let killed = sealing.cluster.runtime.timeout(Duration::from_secs(200), work).await;
            ended |= killed.is_ok();
            drop((packer, dying));
            sealing.assert_bears_two_losses(commits).await;
            // Its leases expire.
            sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(sealing.cluster.client.stripes()).await.unwrap();
            resume_wide(sealing.cluster.client.stripes()).await.unwrap();
            let mut repacker = Repacker::default();
            for _ in 0..3 {
                sealing.repack_with(&mut repacker).await;
                sealing.let_grace_pass().await;
            }
            sealing.assert_settled(commits).await;
        }
        if ended {
            assert!(commits > 4, "it took only {commits} steps");
            return;
        }
    }
}
