//! Groups in more racks than they need are brought together again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{PackOptions, RepairOutcome, SealOptions, heal, repair_stripe, seal_bucket, verify};
use striate_core::{RackId, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_site::{Priority, Site};
use striate_stripe::{DebtEffect, file_of, is_hole};

use crate::cluster::{BUCKET, go_on};
use crate::sealed::{Sealing, pack_options};

/// Two groups of four chunks, each of which fills a rack.
const WIDE_OF_FULL_RACKS: &str = "wide(6,3,4)";
/// The positions of the groups' chunks. The local parity is the last one.
const GROUPS: [[usize; 4]; 2] = [[0, 1, 2, 6], [3, 4, 5, 7]];

/// Starts a cluster with objects in many small partitions, which are sealed in racks that a group fills.
async fn start_with_full_racks(profile: &str) -> Sealing {
    let options = PackOptions { partition_len: 32 << 10, ..pack_options() };
    let sealing = Sealing::start_with(profile, &options).await;
    let options = SealOptions::new(WIDE_OF_FULL_RACKS.parse().unwrap(), Duration::ZERO);
    let stripes = sealing.cluster.client.stripes();
    let report = seal_bucket(stripes, &sealing.packer, BUCKET, &options, &mut go_on).await.unwrap();
    assert!(report.sealed > 2, "{report:?}");
    sealing.collect().await;
    sealing
}

/// Repairs a stripe that is verified first. The sites take a while, so that virtual time passes and a repair that would
/// never end is noticed.
async fn repair(sealing: &Sealing, id: StripeId) -> RepairOutcome {
    sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(10));
    let (absent, pace) = (AbsentSites::default(), RepairPace::unlimited());
    let repair = repair_stripe(sealing.cluster.client.stripes(), id, &absent, &pace, true);
    let outcome = sealing.cluster.runtime.timeout(Duration::from_secs(60), repair).await;
    sealing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::ZERO);
    outcome.expect("the repair ends").unwrap()
}

/// Puts a chunk in a rack, whatever the rules say: on a site with no chunk of the given stripes.
async fn put_in_rack(sealing: &Sealing, chunk: (StripeId, usize), rack: &RackId, stripes: [StripeId; 2]) {
    let mut taken = Vec::new();
    for id in stripes {
        taken.extend(sealing.record(id).await.locations.iter().map(|at| SiteId(at.site)));
    }
    let mut in_rack = sealing.cluster.sites.iter().filter(|site| site.rack() == *rack);
    let to = in_rack.find(|site| !taken.contains(&site.id())).expect("a free site").id();
    let (stripe, index) = chunk;
    let change = sealing.cluster.client.stripes().change(stripe, Priority::Background).await;
    let mut change = change.unwrap().unwrap();
    let generation = change.open(&[(index, to)]).await.unwrap().unwrap();
    let payload = change.read_chunk(index).await.unwrap();
    change.write_chunk(index, to, generation, payload).await.unwrap();
    let replaced = change.replace(index, to, generation).into_iter().collect();
    assert!(change.swap(replaced, DebtEffect::AsItIs).await.unwrap());
}

/// A group of a wide stripe with two members of one stripe, which has its own parities again, and a rack without chunks
/// of the wide stripe.
struct Pair {
    wide: StripeId,
    /// The stripe of both members.
    own: StripeId,
    /// Their indices in it.
    pair: [usize; 2],
    /// The group's other chunks, by the stripes whose files they are.
    others: [(StripeId, usize); 2],
    home: RackId,
    spare: RackId,
}

impl Pair {
    /// Finds a pair such that its stripe has no chunk in the spare rack except perhaps for its first parity.
    async fn find(sealing: &Sealing) -> Option<Self> {
        for (wide, record) in sealing.wide_stripes().await {
            for [a, b, c, local] in GROUPS {
                if [a, b, c].iter().any(|&position| is_hole(&record, position)) {
                    continue;
                }
                for [one, two, third] in [[a, b, c], [a, c, b], [b, c, a]] {
                    let [one, two, third] = [one, two, third].map(|at| Sealing::member(&record, at));
                    if one.0 != two.0 || third.0 == one.0 {
                        continue;
                    }
                    let others = [third, (wide, local)];
                    if let Some(found) = Self::with_spare(sealing, wide, [one, two], others).await {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    async fn with_spare(
        sealing: &Sealing,
        wide: StripeId,
        [one, two]: [(StripeId, usize); 2],
        others: [(StripeId, usize); 2],
    ) -> Option<Self> {
        let (stripes, racks, own) = (sealing.cluster.client.stripes(), sealing.racks(), one.0);
        if sealing.record(own).await.dropped {
            assert!(stripes.narrow_again(own).await.unwrap());
            sealing.heal().await;
        }
        let (wide_record, record) = (sealing.record(wide).await, sealing.record(own).await);
        let home = racks[&SiteId(record.locations[one.1].site)].clone();
        let parity = record.locations.len() - 2;
        let holds_wide = |rack: &RackId| {
            let mut sites = wide_record.locations.iter().filter(|at| at.site != 0);
            sites.any(|at| racks[&SiteId(at.site)] == *rack)
        };
        let holds_own = |rack: &RackId| {
            let mut chunks = record.locations.iter().enumerate().filter(|(index, _)| *index != parity);
            chunks.any(|(_, at)| racks[&SiteId(at.site)] == *rack)
        };
        let mut racks_of_sites = sealing.cluster.sites.iter().map(|site| site.rack());
        let spare = racks_of_sites.find(|rack| !holds_wide(rack) && !holds_own(rack))?;
        Some(Self { wide, own, pair: [one.1, two.1], others, home, spare })
    }

    /// Spreads the group over two racks: the pair in the one whose name is lower, the other chunks in the other one.
    async fn spread(&self, sealing: &Sealing) {
        let stripes = [self.wide, self.own];
        let chunks = match self.home < self.spare {
            true => self.others,
            false => self.pair.map(|index| (self.own, index)),
        };
        for chunk in chunks {
            put_in_rack(sealing, chunk, &self.spare, stripes).await;
        }
    }
}

/// Their own stripe has a parity in the rack where the two members are to go, and may have two chunks there. That
/// parity makes room for the second one.
#[tokio::test(start_paused = true)]
async fn two_members_of_one_stripe_go_where_it_has_a_parity() {
    let mut tried = 0;
    for profile in ["rs(4,2)", "rs(6,2)"] {
        let sealing = start_with_full_racks(profile).await;
        let before = sealing.crossed().await;
        let Some(pair) = Pair::find(&sealing).await else { continue };
        pair.spread(&sealing).await;
        let parity = (pair.own, sealing.record(pair.own).await.locations.len() - 2);
        let to = (&pair.home).max(&pair.spare);
        put_in_rack(&sealing, parity, to, [pair.wide, pair.own]).await;
        assert_ne!(sealing.crossed().await, before);
        let outcome = repair(&sealing, pair.wide).await;
        assert!(outcome.is_whole(), "{outcome:?}");
        assert_eq!(sealing.crossed().await, before);
        sealing.collect().await;
        sealing.assert_reads().await;
        let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
        assert!(verified.is_clean() && verified.queued == 0, "{verified:?}");
        tried += 1;
    }
    assert!(tried > 0, "no wide stripe has a group with two members of one stripe");
}

/// Starts a cluster whose wide stripes have each a group in a rack too many. Returns them with the strays: the members
/// in their first positions, or the first local parities.
async fn start_with_strays(are_members: bool) -> (Sealing, Vec<(StripeId, (StripeId, usize))>) {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (mut strays, racks) = (Vec::new(), sealing.racks());
    let has_all = |record: &Stripe| (0..record.members.len()).all(|position| !is_hole(record, position));
    for (wide, record) in sealing.wide_stripes().await.into_iter().filter(|(_, of)| has_all(of)) {
        let is_used = |rack: &RackId| {
            record.locations.iter().any(|at| at.site != 0 && racks[&SiteId(at.site)] == *rack)
        };
        let spare = sealing.cluster.sites.iter().map(|site| site.rack()).find(|rack| !is_used(rack));
        let stray = if are_members { Sealing::member(&record, 0) } else { (wide, record.members.len()) };
        put_in_rack(&sealing, stray, &spare.expect("a spare rack"), [wide, stray.0]).await;
        strays.push((wide, stray));
    }
    assert!(strays.len() > 1);
    let verified = verify(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean() && verified.queued as usize == strays.len(), "{verified:?}");
    (sealing, strays)
}

/// Returns the most racks that a repair of a chunk reads from.
async fn most_crossed(sealing: &Sealing) -> usize {
    sealing.crossed().await.into_values().max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stray_that_no_site_takes_stays_in_debt_and_goes_home_later() {
    let (sealing, strays) = start_with_strays(false).await;
    let set_full = |full: bool| sealing.cluster.sites.iter().for_each(|site| *site.full.lock() = full);
    set_full(true);
    let report = heal(sealing.cluster.client.stripes(), go_on).await.unwrap();
    assert_eq!((report.left as usize, report.unrepairable), (strays.len(), 0), "{report:?}");
    let example = &report.examples[0];
    assert!(example.contains("1 chunks in racks") && example.contains("disk is full"), "{example}");
    assert_eq!(sealing.cluster.debts().await, strays.len());
    set_full(false);
    sealing.heal().await;
    assert_eq!(most_crossed(&sealing).await, 1);
    sealing.assert_whole().await;
    sealing.collect().await;
    sealing.assert_reads().await;
}

/// The stray's own stripe is repaired first. The chunk may be rebuilt where it was.
#[tokio::test(start_paused = true)]
async fn a_stray_that_is_damaged_is_rebuilt_and_then_goes_home() {
    let (sealing, strays) = start_with_strays(true).await;
    for (_, (stripe, index)) in strays {
        let record = sealing.record(stripe).await;
        let site = SiteId(record.locations[index].site);
        let site = sealing.cluster.sites.iter().find(|of| of.id() == site).unwrap();
        site.corrupt(file_of(stripe, &record, index));
    }
    sealing.heal().await;
    assert_eq!(most_crossed(&sealing).await, 1);
    sealing.assert_whole().await;
    sealing.collect().await;
    sealing.assert_reads().await;
    assert!(verify(sealing.cluster.client.stripes(), go_on).await.unwrap().is_clean());
}

/// A parity that is lost too is rebuilt first, which does not repay the debt.
#[tokio::test(start_paused = true)]
async fn a_stray_goes_home_after_another_chunk_was_rebuilt() {
    let (sealing, strays) = start_with_strays(true).await;
    for (wide, _) in strays {
        let record = sealing.record(wide).await;
        let last = record.locations.len() - 1;
        sealing.lose(file_of(wide, &record, last), SiteId(record.locations[last].site));
    }
    sealing.heal().await;
    assert_eq!(most_crossed(&sealing).await, 1);
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// All sites of the racks where it could go are well, but drain as far as they are free.
#[tokio::test(start_paused = true)]
async fn a_stray_that_may_go_nowhere_leaves_no_debt() {
    let (sealing, strays) = start_with_strays(false).await;
    let stripes = sealing.cluster.client.stripes();
    for (wide, _) in strays {
        let record = sealing.record(wide).await;
        let is_free = |site: SiteId| record.locations.iter().all(|at| at.site != site.0);
        let sites = sealing.cluster.sites.iter().map(|site| site.id());
        let free: Vec<SiteId> = sites.filter(|&site| is_free(site)).collect();
        free.iter().for_each(|&site| stripes.set_draining(site, true));
        let outcome = repair(&sealing, wide).await;
        assert!(outcome.is_whole() && outcome.refused.is_empty(), "{outcome:?}");
        free.iter().for_each(|&site| stripes.set_draining(site, false));
    }
    assert_eq!((sealing.cluster.debts().await, most_crossed(&sealing).await), (0, 2));
}

/// A wide stripe with a stray in each of two groups.
#[tokio::test(start_paused = true)]
async fn a_wide_stripe_is_verified_once_however_many_chunks_go_home() {
    let (sealing, strays) = start_with_strays(false).await;
    let (wide, stray) = strays[0];
    let record = sealing.record(wide).await;
    let rack = sealing.racks()[&SiteId(record.locations[stray.1].site)].clone();
    put_in_rack(&sealing, (wide, stray.1 + 1), &rack, [wide, wide]).await;
    let verified =
        || -> usize { sealing.cluster.sites.iter().map(|site| site.verified.load(Ordering::Relaxed)).sum() };
    let before = verified();
    let outcome = repair(&sealing, wide).await;
    assert!(outcome.is_whole(), "{outcome:?}");
    assert_eq!(verified() - before, record.locations.len() + 2, "each once, and both in their new places");
    assert_eq!(sealing.cluster.debts().await, strays.len() - 1);
}

/// The only site open to the stray has another chunk of its own stripe, which has no parities any more. That one stays.
#[tokio::test(start_paused = true)]
async fn a_stray_may_go_where_another_chunk_of_its_stripe_is() {
    let sealing = Sealing::start().await;
    sealing.seal().await;
    sealing.collect().await;
    let (stripes, before) = (sealing.cluster.client.stripes(), sealing.crossed().await);
    let Shared { wide, member, to, others, spare } = Shared::find(&sealing).await.expect("a shared rack");
    let sites = |record: Stripe| record.locations.into_iter().map(|at| at.site).collect::<Vec<u32>>();
    let mut expected = sites(sealing.record(member.0).await);
    expected[member.1] = to.0;
    put_in_rack(&sealing, member, &spare, [wide, member.0]).await;
    assert_ne!(sealing.crossed().await, before);
    others.iter().for_each(|&site| stripes.set_draining(site, true));
    let outcome = repair(&sealing, wide).await;
    assert!(outcome.is_whole(), "{outcome:?}");
    assert_eq!(sites(sealing.record(member.0).await), expected);
    assert_eq!(sealing.crossed().await, before);
    sealing.assert_whole().await;
    sealing.assert_reads().await;
}

/// A member of a wide stripe with another chunk of its own stripe in its rack, on a site without a chunk of the wide
/// stripe.
struct Shared {
    wide: StripeId,
    member: (StripeId, usize),
    /// The site of the other chunk.
    to: SiteId,
    /// The rack's other sites where the wide stripe has no other chunk.
    others: Vec<SiteId>,
    /// A rack without chunks of the wide stripe.
    spare: RackId,
}

impl Shared {
    async fn find(sealing: &Sealing) -> Option<Self> {
        let racks = sealing.racks();
        for (wide, record) in sealing.wide_stripes().await {
            if (0..record.members.len()).any(|position| is_hole(&record, position)) {
                continue;
            }
            let used: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
            let is_spare = |rack: &&RackId| used.iter().all(|site| racks[site] != **rack);
            let spare = racks.values().find(is_spare).expect("a spare rack");
            for position in 0..record.members.len() {
                let member = Sealing::member(&record, position);
                let own = sealing.record(member.0).await;
                let is_open = |site: &SiteId| {
                    racks[site] == racks[&used[position]] && (*site == used[position] || !used.contains(site))
                };
                let (to, others): (Vec<SiteId>, Vec<SiteId>) =
                    racks.keys().copied().filter(is_open).partition(|site| {
                        *site != used[position] && own.locations.iter().any(|at| at.site == site.0)
                    });
                if let [to] = *to
                    && own.dropped
                {
                    return Some(Self { wide, member, to, others, spare: spare.clone() });
                }
            }
        }
        None
    }
}
