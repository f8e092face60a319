//! An archive that is only deleted from: the last members of sparse wide stripes go into holes of others, and the
//! parities are freed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::channel::oneshot;
use striate_client::WriteCondition;
use striate_control::movement::AccessSource;
use striate_control::{
    GatheredAccess, PackingOptions, PackingService, SealOptions, collect_abandoned, resume_wide, seal_bucket,
    verify,
};
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::Stripe;
use striate_plan::LeavingRacks;
use striate_stripe::{
    ExchangeOutcome, MemberTransfer, MemberUpdate, NewBytes, Stripes, file_of, is_hole, wide_of,
};

use crate::cluster::{BUCKET, Cluster, content, go_on, leave_all};
use crate::dying::{Death, DyingStore, Stall, dying_client};
use crate::interposed::{cancel_entries, move_first};
use crate::pack_service::set_profile;
use crate::sealed::{OBJECTS, Sealing, WIDE};

/// Objects of the archive, each with a stripe of its own.
const ARCHIVED: usize = 48;
/// Members that a wide stripe may have.
const K: usize = 10;
/// Parities of a wide stripe.
const PARITIES: usize = 4;

fn key_of(object: usize) -> String {
    format!("archive/{object:03}")
}

fn bytes_of(object: usize) -> Vec<u8> {
    content(object, 280_000 - 7 * object)
}

/// Whether an object is among the four in five that are deleted.
fn dies(object: usize) -> bool {
    object * 7 % 10 >= 2
}

struct Archive {
    /// None of its own objects lives.
    sealing: Sealing,
    living: BTreeSet<usize>,
}

impl Archive {
    /// Starts a cluster with sealed large objects.
    async fn start() -> Self {
        let cluster = Cluster::start(30, "rs(4,2)").await;
        cluster.spread_over_racks(6);
        for object in 0..ARCHIVED {
            cluster.put(&key_of(object), &bytes_of(object)).await.unwrap();
        }
        let packer = cluster.client.stripes().packer();
        let sealing = Sealing { cluster, packer, deleted: (0..OBJECTS).collect() };
        let this = Self { sealing, living: (0..ARCHIVED).collect() };
        assert!(this.sealing.seal().await.sealed > 10);
        this.sealing.collect().await;
        this
    }

    /// Starts one of which most was deleted, and the dead members have left.
    async fn sparse() -> Self {
        let mut this = Self::start().await;
        this.delete(dies).await;
        this.sealing.leave().await;
        this.sealing.collect().await;
        this
    }

    async fn delete(&mut self, is_deleted: impl Fn(usize) -> bool) {
        for object in (0..ARCHIVED).filter(|&object| is_deleted(object)) {
            let client = &self.sealing.cluster.client;
            assert!(client.delete(BUCKET, &key_of(object), WriteCondition::default()).await.unwrap());
            self.living.remove(&object);
        }
    }

    fn stripes(&self) -> &Stripes {
        self.sealing.cluster.client.stripes()
    }

    async fn assert_reads(&self) {
        for &object in &self.living {
            let read = self.sealing.cluster.get(&key_of(object)).await;
            assert!(read.unwrap_or_else(|error| panic!("{object}: {error}")) == bytes_of(object), "{object}");
        }
    }

    async fn assert_bears_two_losses(&self, seed: usize) {
        let sites = &self.sealing.cluster.sites;
        let set = |down: bool| {
            [seed * 7 % 30, (seed * 7 + 11) % 30].iter().for_each(|&at| *sites[at].down.lock() = down);
        };
        set(true);
        self.assert_reads().await;
        set(false);
        self.sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    }

    /// Asserts that all is consistent, no change is left, and every parity is right.
    async fn assert_settled(&self) {
        self.sealing.collect().await;
        self.sealing.assert_whole().await;
        self.assert_reads().await;
        assert_eq!(self.sealing.rows(keys::CHANGES).await, 0);
        self.sealing.assert_clean().await;
        self.sealing.assert_encoded().await;
        self.sealing.assert_parities().await;
    }

    /// Returns a sparse wide stripe, and how all its members go into another one.
    async fn transfer(&self) -> (StripeId, Vec<MemberTransfer>) {
        let wide = self.sealing.wide_stripes().await;
        for (from, record) in &wide {
            for (to, _) in wide.iter().filter(|(to, _)| to != from) {
                let mut filled = self.stripes().find(*to).await.unwrap().unwrap();
                let mut moves = Vec::new();
                for (position, ..) in record.member_chunks() {
                    let place = &record.locations[position];
                    let admits = |&hole: &usize| {
                        record.members[position].len <= filled.record.chunk_len
                            && is_hole(&filled.record, hole)
                            && self.stripes().admits_in_wide(
                                &filled,
                                hole,
                                SiteId(place.site),
                                &LeavingRacks::default(),
                            )
                    };
                    let Some(hole) = (0..K).find(admits) else { break };
                    filled.record.locations[hole] = place.clone();
                    filled.record.members[hole] = record.members[position].clone();
                    moves.push(MemberTransfer { position, to: *to, hole });
                }
                if moves.len() == record.member_chunks().count() && moves.len() > 1 {
                    return (*from, moves);
                }
            }
        }
        panic!("no wide stripe can be emptied");
    }

    /// Begins to empty a wide stripe in a process that stalls before the commit that closes the change, and lets
    /// `meanwhile` happen.
    async fn transfer_while(
        &self,
        (from, moves): &(StripeId, Vec<MemberTransfer>),
        meanwhile: impl AsyncFnOnce(),
    ) -> ExchangeOutcome {
        let meta = DyingStore::new(self.sealing.cluster.meta.clone());
        let slow = dying_client(&self.sealing.cluster, &meta).await;
        let (go_on, until) = oneshot::channel();
        *meta.stall.lock() = Some(Stall { commits: 1, until });
        let interposed = async {
            self.sealing.cluster.runtime.sleep(Duration::from_secs(20)).await;
            assert!(meta.stall.lock().is_none(), "it is about to close");
            meanwhile().await;
            go_on.send(()).unwrap();
        };
        futures::join!(slow.stripes().transfer_wide(*from, moves), interposed).0.unwrap()
    }
}

/// Returns the names of the data chunks in wide stripes and where they are.
fn places(wide: &[(StripeId, Stripe)]) -> BTreeSet<(striate_core::ChunkId, u32)> {
    let of = |(id, record): &(StripeId, Stripe)| {
        let members =
            record.member_chunks().map(|(at, ..)| (file_of(*id, record, at), record.locations[at].site));
        members.collect::<Vec<_>>()
    };
    wide.iter().flat_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn the_parities_of_an_archive_shrink_with_what_lives_in_it() {
    let archive = Archive::sparse().await;
    let before = archive.sealing.wide_stripes().await;
    let report = archive.sealing.seal().await;
    assert!(report.emptied > 5 && report.sealed == 0 && report.replaced == 0, "{report:?}");
    assert_eq!(archive.sealing.seal().await.emptied, 0, "the rest fits nowhere or is not sparse");
    let after = archive.sealing.wide_stripes().await;
    assert_eq!(after.len() as u64, before.len() as u64 - report.emptied);
    assert_eq!(places(&after), places(&before), "no data chunk has moved");
    let members = archive.sealing.assert_whole().await;
    assert_eq!(members, 4 * archive.living.len());
    // Full ones would have 4 parities for 10 members.
    assert!(after.len() * PARITIES * K <= 2 * PARITIES * members, "{} for {members} members", after.len());
    assert!(before.len() * PARITIES * K > 3 * PARITIES * members, "{} for {members} members", before.len());
    for seed in 0..6 {
        archive.assert_bears_two_losses(seed).await;
    }
    archive.assert_settled().await;
    assert_eq!(archive.sealing.cluster.chunk_count(), members + PARITIES * after.len());
}

/// The bucket declares nothing as cold any more.
#[tokio::test(start_paused = true)]
async fn the_service_empties_what_is_sealed_of_a_bucket_whose_cold_data_stays_as_it_is() {
    let mut archive = Archive::sparse().await;
    let cluster = &archive.sealing.cluster;
    cluster.put(&key_of(ARCHIVED), &bytes_of(ARCHIVED)).await.unwrap();
    archive.living.insert(ARCHIVED);
    let before = archive.sealing.wide_stripes().await;
    set_profile(cluster, "rs(4,2)").await;
    cluster.client.set_cold(BUCKET, None).await.unwrap();
    let (stripes, source) = (archive.stripes().clone(), AccessSource::Gathered(GatheredAccess::default()));
    cluster.runtime.spawn(PackingService::new(PackingOptions::off()).run(stripes, source));
    cluster.runtime.sleep(Duration::from_secs(7_200)).await;
    let after = archive.sealing.wide_stripes().await;
    assert!(after.len() + 5 < before.len(), "{} of {}", after.len(), before.len());
    assert_eq!(places(&after), places(&before), "nothing more is sealed");
    archive.assert_settled().await;
}

/// A process dies before or after any commit while it empties wide stripes. Another continues, and nothing is left over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_a_transfer_leaves_nothing_wrong() {
    let mut ended = false;
    for commits in 0.. {
        for is_made in [false, true] {
            let archive = Archive::sparse().await;
            let (from, moves) = archive.transfer().await;
            let meta = DyingStore::new(archive.sealing.cluster.meta.clone());
            let dying = dying_client(&archive.sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let work = async {
                assert_eq!(dying.stripes().transfer_wide(from, &moves).await.unwrap(), ExchangeOutcome::Done);
                dying.stripes().advance_wide(from).await.unwrap();
                dying.stripes().advance_wide(moves[0].to).await.unwrap();
            };
            let killed = archive.sealing.cluster.runtime.timeout(Duration::from_secs(200), work).await;
            ended |= killed.is_ok();
            drop(dying);
            archive.sealing.assert_whole().await;
            archive.assert_bears_two_losses(commits).await;
            // Its leases expire.
            archive.sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(archive.stripes()).await.unwrap();
            resume_wide(archive.stripes()).await.unwrap();
            archive.assert_settled().await;
        }
        if ended {
            assert!(commits > 3, "it took only {commits} commits");
            return;
        }
    }
}

/// The same while the service empties one wide stripe after the other.
#[tokio::test(start_paused = true)]
async fn a_look_that_dies_while_it_empties_wide_stripes_is_continued_by_another() {
    let mut ended = false;
    for commits in 0.. {
        let is_made = commits % 2 == 0;
        let archive = Archive::sparse().await;
        let meta = DyingStore::new(archive.sealing.cluster.meta.clone());
        let dying = dying_client(&archive.sealing.cluster, &meta).await;
        // The commits of all transfers are alike.
        *meta.death.lock() = Some(Death { commits: 5 * commits, is_made });
        let packer = dying.stripes().packer();
        let wide = SealOptions::new(WIDE.parse().unwrap(), Duration::ZERO);
        let mut tell = go_on;
        let work = seal_bucket(dying.stripes(), &packer, BUCKET, &wide, &mut tell);
        let killed = archive.sealing.cluster.runtime.timeout(Duration::from_secs(200), work).await;
        ended |= killed.is_ok();
        drop((packer, dying));
        archive.assert_bears_two_losses(commits).await;
        archive.sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
        collect_abandoned(archive.stripes()).await.unwrap();
        resume_wide(archive.stripes()).await.unwrap();
        archive.sealing.seal().await;
        archive.assert_settled().await;
        if ended {
            assert!(commits > 3, "it took only {commits} steps");
            return;
        }
    }
}

/// Lost chunks of either wide stripe are repaired before members move.
#[tokio::test(start_paused = true)]
async fn nothing_goes_out_of_or_into_a_wide_stripe_that_lacks_a_chunk_it_needs() {
    for loses_member in [true, false] {
        let archive = Archive::sparse().await;
        let (from, moves) = archive.transfer().await;
        let (of, index) = match loses_member {
            true => (from, moves[0].position),
            false => (moves[0].to, K + 3),
        };
        let record = archive.sealing.record(of).await;
        archive.sealing.lose(file_of(of, &record, index), SiteId(record.locations[index].site));
        let files = archive.sealing.cluster.chunk_count();
        let outcome = archive.stripes().transfer_wide(from, &moves).await.unwrap();
        assert_eq!(outcome, ExchangeOutcome::NotNow);
        assert_eq!(archive.sealing.cluster.chunk_count(), files, "nothing was made for it");
        archive.sealing.heal().await;
        let (from, moves) = archive.transfer().await;
        assert_eq!(archive.stripes().transfer_wide(from, &moves).await.unwrap(), ExchangeOutcome::Done);
        resume_wide(archive.stripes()).await.unwrap();
        archive.assert_settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_lost_while_the_parities_are_made_is_made_again_from_where_it_is_then() {
    let archive = Archive::sparse().await;
    let planned = archive.transfer().await;
    let record = archive.sealing.record(planned.0).await;
    let outcome = archive.transfer_while(&planned, async || {
        let position = planned.1[0].position;
        archive.sealing.lose(file_of(planned.0, &record, position), SiteId(record.locations[position].site));
        archive.assert_reads().await;
    });
    assert_eq!(outcome.await, ExchangeOutcome::Done);
    archive.assert_reads().await;
    verify(archive.stripes(), go_on).await.unwrap();
    archive.sealing.heal().await;
    resume_wide(archive.stripes()).await.unwrap();
    archive.assert_settled().await;
}

/// A member moves: the other wide stripe gets its new place. Its bytes are the same.
#[tokio::test(start_paused = true)]
async fn a_member_that_moves_meanwhile_is_known_at_its_new_place() {
    let archive = Archive::sparse().await;
    let planned = archive.transfer().await;
    let before = archive.sealing.record(planned.0).await;
    let to = archive.sealing.record(planned.1[0].to).await;
    let mut moves = archive.sealing.near_moves(&before, planned.1[0].position).await;
    moves.retain(|wanted| to.locations.iter().all(|at| at.site != wanted.to.0));
    let outcome = archive
        .transfer_while(&planned, async || assert!(move_first(archive.stripes(), &moves).await, "{moves:?}"));
    assert_eq!(outcome.await, ExchangeOutcome::Done);
    let now = archive.sealing.record(planned.1[0].to).await;
    assert_ne!(now.locations[planned.1[0].hole].site, before.locations[planned.1[0].position].site);
    resume_wide(archive.stripes()).await.unwrap();
    archive.assert_settled().await;
}

/// What another process does at the last moment.
#[derive(Clone, Copy, Debug)]
enum Interposed {
    Cancels,
    UpdatesMember,
    DeletesMember,
    FillsHole,
    EmptiesTarget,
}

#[tokio::test(start_paused = true)]
async fn a_transfer_whose_records_have_changed_is_given_up_as_a_whole() {
    use Interposed::*;
    for interposed in [Cancels, UpdatesMember, DeletesMember, FillsHole, EmptiesTarget] {
        let mut archive = Archive::sparse().await;
        if let FillsHole = interposed {
            // A stripe that waits.
            archive.sealing.cluster.put(&key_of(ARCHIVED), &bytes_of(ARCHIVED)).await.unwrap();
            archive.living.insert(ARCHIVED);
        }
        let planned = archive.transfer().await;
        let (from, moved) = (planned.0, planned.1[0]);
        let record = archive.sealing.record(from).await;
        let (stripe, index) = Sealing::member(&record, moved.position);
        let waiting: Vec<(StripeId, Stripe)> = archive.sealing.cluster.stripes().await;
        let is_free = |of: &Stripe| of.locations.iter().all(|at| wide_of(at).is_none());
        let waiting = waiting.into_iter().find(|(_, of)| of.members.is_empty() && !of.dead && is_free(of));
        let stripes = archive.stripes().clone();
        let mut died = None;
        let outcome = archive.transfer_while(&planned, async || match interposed {
            Cancels => cancel_entries(&stripes, moved.to).await,
            UpdatesMember => {
                let update = MemberUpdate {
                    stripe,
                    index,
                    content_version: record.locations[moved.position].content_version,
                    new: vec![NewBytes { offset: 5, bytes: vec![7; 100].into() }],
                    extra_changes: &|_, _| {},
                };
                assert_eq!(stripes.update_in_wide(&update).await.unwrap(), ExchangeOutcome::Done);
                died = Some(stripe);
            }
            DeletesMember => {
                for object in archive.living.clone() {
                    let client = &archive.sealing.cluster.client;
                    client.delete(BUCKET, &key_of(object), WriteCondition::default()).await.unwrap();
                }
            }
            FillsHole => {
                let (waiting, own) = waiting.clone().unwrap();
                let wide = stripes.find(from).await.unwrap().unwrap();
                let places = (0..K).filter(|&at| is_hole(&record, at));
                let fits = |&(hole, index): &(usize, usize)| {
                    stripes.admits_in_wide(
                        &wide,
                        hole,
                        SiteId(own.locations[index].site),
                        &LeavingRacks::default(),
                    )
                };
                let (hole, index) =
                    places.flat_map(|hole| (0..4).map(move |index| (hole, index))).find(fits).unwrap();
                let placed = stripes.place_in_wide(from, hole, (waiting, index)).await.unwrap();
                assert_eq!(placed, ExchangeOutcome::Done);
            }
            EmptiesTarget => {
                let before = archive.sealing.record(moved.to).await;
                let wide = archive.sealing.wide_stripes().await;
                assert!(before.member_chunks().count() > 0 && wide.len() > 2);
                cancel_entries(&stripes, moved.to).await;
                archive.sealing.seal().await;
            }
        });
        assert_eq!(outcome.await, ExchangeOutcome::NotNow, "{interposed:?}");
        if let DeletesMember = interposed {
            archive.living.clear();
            archive.sealing.leave().await;
        }
        resume_wide(archive.stripes()).await.unwrap();
        if died.is_none() {
            archive.assert_settled().await;
        } else {
            // The object's own checksum is of what it was.
            archive.sealing.collect().await;
            archive.sealing.assert_whole().await;
            archive.sealing.assert_clean().await;
            archive.sealing.assert_encoded().await;
        }
    }
}

/// It has read the chunk's own record before the transfer, and looks for the wide stripe after it.
#[tokio::test(start_paused = true)]
async fn a_read_of_a_lost_member_finds_the_wide_stripe_that_it_has_gone_to() {
    for removes in [false, true] {
        let archive = Archive::sparse().await;
        let (from, moves) = archive.transfer().await;
        let record = archive.sealing.record(from).await;
        let (stripe, index) = Sealing::member(&record, moves[0].position);
        let meta = DyingStore::new(archive.sealing.cluster.meta.clone());
        let reading = dying_client(&archive.sealing.cluster, &meta).await;
        let stripes = archive.stripes().clone();
        let transfer = async move {
            assert_eq!(stripes.transfer_wide(from, &moves).await.unwrap(), ExchangeOutcome::Done);
            if removes {
                stripes.advance_wide(from).await.unwrap();
            }
        };
        *meta.after_get.lock() = Some((keys::stripe(stripe), Box::pin(transfer)));
        let (wide, position) = reading.stripes().wide_stripe_of(stripe, index).await.unwrap().unwrap();
        assert!(wide.id != from && wide.record.has_member(position, stripe, index));
    }
}

#[tokio::test(start_paused = true)]
async fn what_died_and_what_is_half_full_is_not_transferred() {
    let mut archive = Archive::start().await;
    assert_eq!(archive.sealing.seal().await.emptied, 0, "all are full");
    archive.delete(dies).await;
    let members: BTreeMap<StripeId, usize> = archive
        .sealing
        .wide_stripes()
        .await
        .into_iter()
        .map(|(id, record)| (id, record.member_chunks().count()))
        .collect();
    assert_eq!(archive.sealing.seal().await.emptied, 0, "dead members leave first");
    leave_all(archive.stripes()).await;
    let (from, moves) = archive.transfer().await;
    assert!(members[&from] > moves.len());
    let some = &moves[1..];
    assert_eq!(archive.stripes().transfer_wide(from, some).await.unwrap(), ExchangeOutcome::Unfit);
    let elsewhere: Vec<MemberTransfer> =
        moves.iter().map(|moved| MemberTransfer { hole: moves[0].hole, ..*moved }).collect();
    assert_eq!(archive.stripes().transfer_wide(from, &elsewhere).await.unwrap(), ExchangeOutcome::Unfit);
    let own = archive.sealing.cluster.stripes().await;
    assert!(
        own.iter().any(|(_, of)| of.locations.iter().any(|at| wide_of(at).is_some_and(|(id, _)| id == from)))
    );
    archive.sealing.seal().await;
    archive.assert_settled().await;
}
