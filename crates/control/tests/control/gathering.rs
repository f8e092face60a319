//! Groups in more racks than they need are brought together again.

use std::time::Duration;

use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::RepairPace;
use striate_control::{PackOptions, RepairOutcome, SealOptions, repair_stripe, seal_bucket, verify};
use striate_core::{RackId, SiteId, StripeId};
use striate_site::{Priority, Site};
use striate_stripe::{DebtEffect, is_hole};

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
