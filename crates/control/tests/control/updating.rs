//! Sealed partitions that change in place: data chunk, local parity and global ones together, and readers see the
//! change at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use striate_client::{Client, GetRequest, ReadRange};
use striate_codec::crc32c;
use striate_control::{collect_abandoned, move_chunk, resume_wide, verify};
use striate_core::{SiteId, StripeId};
use striate_meta::records::{Extent, Object, Stripe, object::Body};
use striate_meta::{Row, keys, records};
use striate_plan::movement::ChunkMove;
use striate_site::Site as _;
use striate_stripe::{ExchangeOutcome, MemberUpdate, NewBytes, Stripes, file_of, is_hole, len_of, wide_of};

use crate::cluster::{BUCKET, content, go_on};
use crate::dying::{Death, DyingStore, dying_client};
use crate::sealed::{OBJECTS, Sealing, len, name};

/// Returns an object's bytes after its partition was changed.
fn changed(key: usize) -> Vec<u8> {
    content(key + 1_000, len(key))
}

/// An object of a partition to be changed.
struct Target {
    key: usize,
    row: Row,
    object: Object,
    extent: Extent,
}

impl Sealing {
    /// Asserts that every parity of each wide stripe is what the code makes of the members, and has the checksum that
    /// its record says.
    pub async fn assert_encoded(&self) {
        for (id, record) in self.wide_stripes().await {
            let code = self.cluster.client.stripes().code(&record.profile.parse().unwrap()).unwrap();
            let chunks: Vec<Vec<u8>> = (0..code.n()).map(|at| self.chunk_of(id, &record, at)).collect();
            let mut parities = vec![vec![0; record.chunk_len as usize]; code.parity_count()];
            let data: Vec<&[u8]> = chunks[..code.k()].iter().map(Vec::as_slice).collect();
            code.encode(&data, &mut parities.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
            for (at, parity) in (code.k()..).zip(&parities) {
                assert!(chunks[at] == *parity, "parity {at} of {id}");
                assert_eq!(record.locations[at].crc32c, crc32c(parity), "parity {at} of {id}");
            }
        }
    }

    /// Returns a chunk as stored on its site, padded with zeros.
    fn chunk_of(&self, id: StripeId, record: &Stripe, at: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        if !is_hole(record, at) {
            let location = &record.locations[at];
            let site = self.cluster.sites.iter().find(|site| site.id() == SiteId(location.site));
            let (found, _) = site.unwrap().chunks.lock()[&file_of(id, record, at)].clone();
            assert_eq!((found.len() as u32, crc32c(&found)), (len_of(record, at), location.crc32c));
            payload = found.to_vec();
        }
        payload.resize(record.chunk_len as usize, 0);
        payload
    }
}

struct Updating {
    sealing: Sealing,
    /// Numbers of the objects that have changed.
    changed: BTreeSet<usize>,
}

impl Updating {
    async fn start() -> Self {
        let sealing = Sealing::start().await;
        sealing.seal().await;
        sealing.collect().await;
        Self { sealing, changed: BTreeSet::new() }
    }

    fn stripes(&self) -> &Stripes {
        self.sealing.cluster.client.stripes()
    }

    /// Returns the members that are in stripes without own parities, by wide stripe.
    async fn members(&self) -> BTreeMap<StripeId, Vec<(StripeId, usize)>> {
        let mut members: BTreeMap<StripeId, Vec<(StripeId, usize)>> = BTreeMap::new();
        for (id, record) in self.sealing.cluster.stripes().await.iter().filter(|(_, record)| record.dropped) {
            for index in 0..4 {
                let (wide, _) = wide_of(&record.locations[index]).unwrap();
                members.entry(wide).or_default().push((*id, index));
            }
        }
        members
    }

    async fn a_member(&self) -> (StripeId, usize) {
        self.members().await.values().flatten().copied().next().unwrap()
    }

    /// Returns every other object of a partition.
    async fn targets(&self, (id, index): (StripeId, usize)) -> Vec<Target> {
        let mut found = Vec::new();
        for key in 0..OBJECTS {
            let row = self.stripes().meta().get(&keys::object(BUCKET, &name(key))).await.unwrap().unwrap();
            let object: Object = row.record().unwrap();
            if let Some(Body::Extent(extent)) = object.body.clone()
                && (&extent.stripe[..], extent.index as usize) == (&id.to_bytes()[..], index)
            {
                found.push(Target { key, row, object, extent });
            }
        }
        found.into_iter().step_by(2).collect()
    }

    /// Changes objects of a partition in place, together with their rows.
    async fn update(
        &self,
        stripes: &Stripes,
        (id, index): (StripeId, usize),
        content_version: u32,
        targets: &[Target],
    ) -> ExchangeOutcome {
        assert!(targets.len() > 1, "there are some");
        let mut new: Vec<NewBytes> = targets
            .iter()
            .map(|of| NewBytes { offset: of.extent.offset, bytes: changed(of.key).into() })
            .collect();
        new.sort_by_key(|new| new.offset);
        let update = MemberUpdate {
            stripe: id,
            index,
            content_version,
            new,
            extra_changes: &|_, tx| {
                for Target { key, row, object, extent } in targets {
                    let crc32c = crc32c(&changed(*key));
                    let extent = Extent { crc32c, content_version: content_version + 1, ..extent.clone() };
                    let object = Object { body: Some(Body::Extent(extent)), ..object.clone() };
                    tx.require_unchanged(row.key.clone(), Some(row));
                    tx.put(row.key.clone(), records::encode(&object));
                }
            },
        };
        stripes.update_in_wide(&update).await.unwrap()
    }

    async fn assert_reads(&self) {
        for key in 0..OBJECTS {
            let read = self.sealing.cluster.get(&name(key)).await.unwrap();
            let expected = match self.changed.contains(&key) {
                true => changed(key),
                false => content(key, len(key)),
            };
            assert!(read == expected, "object {key}");
        }
    }

    async fn assert_clean(&self) {
        self.sealing.collect().await;
        self.sealing.assert_whole().await;
        assert_eq!(self.sealing.rows(keys::CHANGES).await, 0);
        let verified = verify(self.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
        self.sealing.assert_encoded().await;
        self.assert_reads().await;
    }
}

/// Reads an object from its second byte to its last but one: a part, which no checksum of a row covers.
async fn middle(client: &Client, key: usize) -> Vec<u8> {
    let range = ReadRange::Bytes { first: 1, last: Some(len(key) as u64 - 2) };
    let request = GetRequest { bucket: BUCKET.to_owned(), key: name(key), range, ..GetRequest::default() };
    let pieces: Vec<Bytes> = client.get(request).await.unwrap().body.try_collect().await.unwrap();
    pieces.concat()
}

#[tokio::test(start_paused = true)]
async fn a_member_changes_in_place_with_all_its_parities_and_bears_as_many_losses() {
    let mut updating = Updating::start().await;
    let member = updating.a_member().await;
    let files = updating.sealing.cluster.chunk_count();
    for version in 0..2 {
        let targets = updating.targets(member).await;
        let before = updating.stripes().find(member.0).await.unwrap().unwrap();
        let done = updating.update(updating.stripes(), member, version, &targets).await;
        assert_eq!(done, ExchangeOutcome::Done);
        updating.changed.extend(targets.iter().map(|of| of.key));
        let after = updating.stripes().find(member.0).await.unwrap().unwrap();
        for index in 0..4 {
            let (was, is) = (&before.record.locations[index], &after.record.locations[index]);
            match index == member.1 {
                true => assert_eq!((was.site, version + 1), (is.site, is.content_version)),
                false => assert_eq!(was, is),
            }
        }
        updating.assert_reads().await;
    }
    updating.assert_clean().await;
    assert_eq!(updating.sealing.cluster.chunk_count(), files, "what was replaced is gone");
    // A content version other than the current one is refused.
    let targets = updating.targets(member).await;
    for version in [0, 1, 3] {
        assert_eq!(
            updating.update(updating.stripes(), member, version, &targets).await,
            ExchangeOutcome::NotNow,
            "{version}"
        );
    }
    // Lose as many chunks as the code tolerates, the changed member among them.
    let (wide, position) = updating.stripes().wide_stripe_of(member.0, member.1).await.unwrap().unwrap();
    let others = [(position + 1) % 5 + position / 5 * 5, 12];
    for at in [position].into_iter().chain(others) {
        updating.sealing.lose(wide.file(at), SiteId(wide.record.locations[at].site));
    }
    updating.assert_reads().await;
    assert!(!verify(updating.stripes(), go_on).await.unwrap().is_clean());
    updating.sealing.heal().await;
    updating.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn parities_that_come_back_after_a_change_are_of_what_is_there_then() {
    let mut updating = Updating::start().await;
    let member = updating.a_member().await;
    let targets = updating.targets(member).await;
    assert_eq!(updating.update(updating.stripes(), member, 0, &targets).await, ExchangeOutcome::Done);
    updating.changed.extend(targets.iter().map(|of| of.key));
    assert!(updating.stripes().narrow_again(member.0).await.unwrap());
    updating.sealing.heal().await;
    let own = updating.stripes().find(member.0).await.unwrap().unwrap();
    assert!(!own.record.dropped && own.record.locations.iter().all(|at| at.site != 0));
    updating.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn two_sites_of_its_group_may_be_away_after_a_change_and_none_that_takes_part() {
    let mut updating = Updating::start().await;
    let member = updating.a_member().await;
    let (wide, position) = updating.stripes().wide_stripe_of(member.0, member.1).await.unwrap().unwrap();
    let site = |at: usize| {
        let id = SiteId(wide.record.locations[at].site);
        updating.sealing.cluster.sites.iter().find(|site| site.id() == id).unwrap().clone()
    };
    let targets = updating.targets(member).await;
    // The local parity of its group, a global one, and itself.
    for at in [10 + position / 5, 12, position] {
        *site(at).down.lock() = true;
        let done = updating.update(updating.stripes(), member, 0, &targets).await;
        assert_eq!(done, ExchangeOutcome::NotNow, "without {at}");
        *site(at).down.lock() = false;
        updating.sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(updating.sealing.rows(keys::CHANGES).await, 0, "its entries were cancelled");
    // Other members of its group do not matter.
    let others = [(position + 1) % 5, (position + 2) % 5].map(|at| site(at + position / 5 * 5));
    others.iter().for_each(|site| *site.down.lock() = true);
    assert_eq!(updating.update(updating.stripes(), member, 0, &targets).await, ExchangeOutcome::Done);
    updating.changed.extend(targets.iter().map(|of| of.key));
    updating.assert_reads().await;
    others.iter().for_each(|site| *site.down.lock() = false);
    let (own, other) = (site(position), others[0].clone());
    for site in [&own, &other] {
        *site.down.lock() = true;
    }
    updating.sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    updating.assert_reads().await;
    for site in [&own, &other] {
        *site.down.lock() = false;
    }
    updating.sealing.cluster.runtime.sleep(Duration::from_secs(60)).await;
    updating.assert_clean().await;
}

/// A cached location leads to the old file, which exists for the grace. No checksum detects that, because a part is
/// read.
#[tokio::test(start_paused = true)]
async fn who_remembers_the_old_file_reads_the_new_bytes_as_soon_as_a_change_is_acknowledged() {
    let updating = Updating::start().await;
    let member = updating.a_member().await;
    let elsewhere =
        dying_client(&updating.sealing.cluster, &DyingStore::new(updating.sealing.cluster.meta.clone()))
            .await;
    let targets = updating.targets(member).await;
    for of in &targets {
        assert_eq!(middle(&elsewhere, of.key).await, content(of.key, len(of.key))[1..len(of.key) - 1]);
    }
    assert_eq!(updating.update(updating.stripes(), member, 0, &targets).await, ExchangeOutcome::Done);
    for of in &targets {
        assert_eq!(middle(&elsewhere, of.key).await, changed(of.key)[1..len(of.key) - 1]);
    }
    // The other chunks give the new bytes too, while the chunk's site is away.
    let (wide, position) = updating.stripes().wide_stripe_of(member.0, member.1).await.unwrap().unwrap();
    let site = SiteId(wide.record.locations[position].site);
    let site = updating.sealing.cluster.sites.iter().find(|of| of.id() == site).unwrap();
    let targets = updating.targets(member).await;
    assert_eq!(updating.update(updating.stripes(), member, 1, &targets).await, ExchangeOutcome::Done);
    *site.down.lock() = true;
    for of in &targets {
        assert_eq!(middle(&elsewhere, of.key).await, changed(of.key)[1..len(of.key) - 1]);
    }
}

/// Changes of members of one wide stripe rewrite the same parities; in half of the rounds moves take chunks away from
/// them.
#[tokio::test(start_paused = true)]
async fn changes_at_the_same_time_lose_nothing_of_each_other() {
    let mut updating = Updating::start().await;
    let lags = |updating: &Updating, seed: u64| {
        for (site, at) in updating.sealing.cluster.sites.iter().zip(1u64..) {
            *site.lag.lock() = Duration::from_millis((at * 37 + seed * 101) % 90);
        }
    };
    let (mut done, mut given_up) = (0, 0);
    for seed in 0..8 {
        let members = updating.members().await;
        let of_one: Vec<(StripeId, usize)> =
            members.values().max_by_key(|members| members.len()).unwrap().clone();
        let version = async |(id, index): (StripeId, usize)| {
            let stripe = updating.stripes().find(id).await.unwrap().unwrap();
            (stripe.record.locations[index].content_version, stripe.record.locations[index].site)
        };
        let (one, other) = (of_one[seed % of_one.len()], of_one[(seed + 1) % of_one.len()]);
        let ((of_one, site), (of_other, _)) = (version(one).await, version(other).await);
        let (first, second) = (updating.targets(one).await, updating.targets(other).await);
        lags(&updating, seed as u64);
        let runtime = &updating.sealing.cluster.runtime;
        let moving = async {
            runtime.sleep(Duration::from_millis(100 * seed as u64)).await;
            for to in updating.sealing.cluster.sites.iter().filter(|_| seed % 2 == 0) {
                let wanted = ChunkMove { stripe: one.0, index: one.1, from: SiteId(site), to: to.id() };
                let moved = move_chunk(updating.stripes(), &wanted).await.unwrap();
                if !matches!(moved, striate_control::MoveOutcome::Refused(_)) {
                    return;
                }
            }
        };
        let (a, b, ()) = futures::join!(
            updating.update(updating.stripes(), one, of_one, &first),
            updating.update(updating.stripes(), other, of_other, &second),
            moving,
        );
        for (outcome, targets) in [(a, first), (b, second)] {
            match outcome {
                ExchangeOutcome::Done => {
                    updating.changed.extend(targets.iter().map(|of| of.key));
                    done += 1;
                }
                _ => given_up += 1,
            }
        }
        lags(&updating, 0);
        updating.sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::ZERO);
        updating.assert_clean().await;
    }
    assert!(done > 2 && given_up > 2, "{done} done, {given_up} given up");
}

/// A process dies before or after any commit of a change. The whole change is made or nothing, and nothing is left
/// over.
#[tokio::test(start_paused = true)]
async fn a_process_that_dies_at_any_commit_of_a_change_leaves_all_of_it_or_nothing() {
    let (mut all, mut nothing) = (0, 0);
    for commits in 0.. {
        let mut ended = false;
        for is_made in [false, true] {
            let mut updating = Updating::start().await;
            let member = updating.a_member().await;
            let targets = updating.targets(member).await;
            let meta = DyingStore::new(updating.sealing.cluster.meta.clone());
            let dying = dying_client(&updating.sealing.cluster, &meta).await;
            *meta.death.lock() = Some(Death { commits, is_made });
            let work = updating.update(dying.stripes(), member, 0, &targets);
            let killed = updating.sealing.cluster.runtime.timeout(Duration::from_secs(100), work).await;
            ended |= killed.is_ok();
            drop(dying);
            let after = updating.stripes().find(member.0).await.unwrap().unwrap();
            match after.record.locations[member.1].content_version {
                0 => nothing += 1,
                _ => {
                    all += 1;
                    updating.changed.extend(targets.iter().map(|of| of.key));
                }
            }
            updating.assert_reads().await;
            // Its leases expire.
            updating.sealing.cluster.runtime.sleep(Duration::from_secs(600)).await;
            collect_abandoned(updating.stripes()).await.unwrap();
            resume_wide(updating.stripes()).await.unwrap();
            updating.assert_clean().await;
        }
        if ended {
            assert!(all > 0 && nothing > 3, "{all} with all, {nothing} with nothing");
            return;
        }
    }
}
