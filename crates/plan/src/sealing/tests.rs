//! Streams of coding groups that are sealed as they are written, and single plans.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::CodeSpec;

use super::*;
use crate::placement::check::racks_crossed;

fn geometry(data: usize, locality: usize) -> WideGeometry {
    WideGeometry::new(CodeSpec::Wide { data, locality, tolerance: 4 }).unwrap()
}

/// Returns the number of positions without a member.
fn holes_of(plan: &SealingPlan) -> usize {
    plan.members.iter().filter(|member| member.is_none()).count()
}

/// A cluster in which rs(6,3) groups are written, and its waiting partitions.
struct Stream {
    geometry: WideGeometry,
    candidates: Vec<Candidate>,
    rack_of: HashMap<SiteId, RackId>,
    narrow: PlacementRule,
    rng: SmallRng,
    /// Whether new groups are placed evenly.
    evenly: bool,
    pool: Vec<OpenPartition>,
    in_rack: HashMap<RackId, usize>,
    on_site: HashMap<SiteId, usize>,
    written: u64,
}

const DATA: usize = 6;

impl Stream {
    fn new(geometry: WideGeometry, racks: u32, sites_per_rack: u32, evenly: bool) -> Self {
        let candidate = |site: u32| Candidate {
            site: SiteId(site + 1),
            rack: RackId(format!("rack{:02}", site / sites_per_rack)),
            free_bytes: 1 << 40,
            queue_requests: 0,
        };
        let candidates: Vec<Candidate> = (0..racks * sites_per_rack).map(candidate).collect();
        Self {
            geometry,
            rack_of: candidates.iter().map(|of| (of.site, of.rack.clone())).collect(),
            candidates,
            narrow: PlacementRule::at_most(3, DATA + 3),
            rng: SmallRng::seed_from_u64(5),
            evenly,
            pool: Vec::new(),
            in_rack: HashMap::new(),
            on_site: HashMap::new(),
            written: 0,
        }
    }

    fn write_group(&mut self) {
        let waiting = |of: &Candidate| {
            let in_rack = self.in_rack.get(&of.rack).copied().unwrap_or(0);
            (in_rack, self.on_site.get(&of.site).copied().unwrap_or(0))
        };
        let n = self.narrow.chunks();
        let sites = match self.evenly {
            true => self.narrow.draw_sites_evenly(&mut self.rng, &self.candidates, n, waiting),
            false => self.narrow.draw_sites(&mut self.rng, &self.candidates, n),
        };
        let stripe = StripeId(self.written.into());
        self.written += 1;
        for (index, &site) in sites[..DATA].iter().enumerate() {
            let rack = self.rack_of[&site].clone();
            *self.in_rack.entry(rack.clone()).or_default() += 1;
            *self.on_site.entry(site).or_default() += 1;
            let partition = (stripe, index as u8);
            let (dead_share, is_overdue) = (self.rng.random(), false);
            self.pool.push(OpenPartition {
                partition,
                site,
                rack,
                open_siblings: DATA,
                dead_share,
                is_overdue,
            });
        }
    }

    /// Seals one wide stripe if possible. Returns the plan after checking it.
    fn seal(&mut self, most_holes: usize) -> Result<SealingPlan, NotSealed> {
        let plan = plan_sealing(&self.geometry, &self.pool, &self.candidates, most_holes)?;
        self.check(&plan, most_holes);
        let sealed: HashSet<Partition> = plan.members.iter().flatten().map(|of| of.partition).collect();
        let mut of_stripe: HashMap<StripeId, usize> = HashMap::new();
        sealed.iter().for_each(|(stripe, _)| *of_stripe.entry(*stripe).or_default() += 1);
        self.pool.retain(|of| !sealed.contains(&of.partition));
        self.pool.iter_mut().for_each(|of| {
            of.open_siblings -= of_stripe.get(&of.partition.0).copied().unwrap_or(0);
        });
        for member in plan.members.iter().flatten() {
            *self.in_rack.get_mut(&self.rack_of[&member.site]).unwrap() -= 1;
            *self.on_site.get_mut(&member.site).unwrap() -= 1;
        }
        Ok(plan)
    }

    /// Checks exact combined locality, and that members are in the pool at their sites.
    fn check(&self, plan: &SealingPlan, most_holes: usize) {
        let geometry = &self.geometry;
        let rack_of = |site: SiteId| self.rack_of.get(&site);
        plan.check(geometry, rack_of).unwrap();
        let sites = plan.sites();
        assert_eq!((sites.len(), plan.members.len()), (geometry.n(), geometry.k()));
        assert!(holes_of(plan) <= most_holes && plan.parities.iter().all(|site| site.0 != 0));
        let waiting: HashMap<Partition, SiteId> =
            self.pool.iter().map(|of| (of.partition, of.site)).collect();
        let members: Vec<_> = plan.members.iter().flatten().collect();
        assert!(members.iter().all(|of| waiting.get(&of.partition) == Some(&of.site)));
        if holes_of(plan) == 0 {
            let rule = PlacementRule::of_wide(geometry);
            let racks: HashSet<&RackId> = sites.iter().filter_map(|&site| rack_of(site)).collect();
            assert_eq!(racks.len(), geometry.z());
            for group in 0..geometry.groups() {
                let crossed = geometry.group_repair_chunks(group);
                for chunk in geometry.group_data(group).chain([geometry.local_parity(group)]) {
                    assert_eq!(racks_crossed(&rule, &sites, chunk, rack_of), crossed);
                }
            }
        }
    }

    /// Returns the mean and the maximum number of waiting partitions after each of `count` wide stripes, without the
    /// first quarter.
    fn run(&mut self, count: usize) -> (f64, usize) {
        let mut waiting = Vec::new();
        while waiting.len() < count {
            self.write_group();
            while self.seal(0).is_ok() {
                waiting.push(self.pool.len());
            }
        }
        let settled = &waiting[count / 4..];
        (settled.iter().sum::<usize>() as f64 / settled.len() as f64, settled.iter().copied().max().unwrap())
    }
}

/// Runs a stream; the number of waiting partitions must be near that of the protocol's model.
fn assert_waiting(
    racks: u32,
    sites: u32,
    evenly: bool,
    (k, r): (usize, usize),
    stripes: usize,
    model: (f64, usize),
) {
    let found = Stream::new(geometry(k, r), racks, sites, evenly).run(stripes);
    println!("{racks} racks of {sites}, evenly {evenly}: {found:?} wait, {model:?} by the model");
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.3;
    assert!(near(found.0, model.0) && near(found.1 as f64, model.1 as f64), "{found:?}, expected {model:?}");
}

#[test]
fn few_partitions_wait_in_a_stream_of_groups_on_twelve_racks() {
    assert_waiting(12, 8, false, (42, 15), 600, (51.0, 102));
}

#[test]
fn few_partitions_wait_in_a_stream_of_groups_on_as_many_racks_as_a_stripe_uses() {
    assert_waiting(34, 8, false, (128, 27), 400, (304.0, 526));
}

#[test]
fn few_partitions_wait_in_a_stream_of_groups_on_forty_racks() {
    assert_waiting(40, 8, false, (128, 27), 150, (141.0, 226));
}

#[test]
fn fewer_wait_where_groups_are_placed_evenly() {
    assert_waiting(34, 8, true, (128, 27), 150, (67.0, 130));
    assert_waiting(40, 8, true, (128, 27), 150, (78.0, 116));
}

#[test]
fn thirteen_racks_of_five_sites_seal_the_code_that_is_offered_to_them() {
    let mut stream = Stream::new(geometry(42, 15), 13, 5, true);
    let (mean, _) = stream.run(60);
    assert!(mean < 100.0, "{mean} partitions wait");
}

/// A pool of partitions with a birth stripe each: `counts` in each rack, on as many sites.
fn pool_of(counts: &[u32], sites_per_rack: u32) -> Stream {
    let mut stream = Stream::new(geometry(42, 15), counts.len() as u32, sites_per_rack, false);
    for (rack, &count) in counts.iter().enumerate() {
        for at in 0..count {
            let site = SiteId(rack as u32 * sites_per_rack + at % sites_per_rack + 1);
            let rack = stream.rack_of[&site].clone();
            *stream.in_rack.entry(rack.clone()).or_default() += 1;
            *stream.on_site.entry(site).or_default() += 1;
            let partition = (StripeId(stream.pool.len() as u128), 0);
            let (open_siblings, dead_share, is_overdue) = (1, 0.0, false);
            stream.pool.push(OpenPartition { partition, site, rack, open_siblings, dead_share, is_overdue });
        }
    }
    stream
}

#[test]
fn racks_that_lack_partitions_are_named() {
    // Nine racks of four, two of three and one of none are needed.
    let mut exact = pool_of(&[4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 0], 5);
    assert_eq!(exact.seal(0).map(|plan| holes_of(&plan)), Ok(0));
    assert!(exact.pool.is_empty());
    let mut short = pool_of(&[9, 4, 4, 4, 4, 4, 4, 4, 4, 3, 1, 0], 5);
    let refusal = short.seal(0).unwrap_err();
    let rack = RackId("rack10".to_owned());
    assert_eq!(refusal, NotSealed::RacksLack(vec![RackLack { rack, needed: 3, available: 1 }]));
    assert!(refusal.to_string().contains("rack10 can supply 1 of 3"), "{refusal}");
    let few = pool_of(&[5; 11], 5).seal(0).unwrap_err();
    assert_eq!(few, NotSealed::TooFewRacks { racks: 11, needed: 12 });
    assert!(few.to_string().contains("uses 12: add racks"), "{few}");
    let few = pool_of(&[3; 13], 5).seal(0).unwrap_err();
    assert_eq!(few, NotSealed::TooFewPartitions { waiting: 39, needed: 42 });
}

#[test]
fn holes_are_made_for_overdue_partitions_only() {
    let mut short = pool_of(&[9, 4, 4, 4, 4, 4, 4, 4, 4, 3, 1, 0], 5);
    assert!(matches!(short.seal(2), Err(NotSealed::RacksLack(_))), "none is overdue");
    let overdue = short.pool.iter().position(|of| of.rack.0 == "rack10").unwrap();
    short.pool[overdue].is_overdue = true;
    assert!(matches!(short.seal(1), Err(NotSealed::RacksLack(_))), "two are lacking");
    let partition = short.pool[overdue].partition;
    let plan = short.seal(2).unwrap();
    assert_eq!(holes_of(&plan), 2);
    assert!(plan.members.iter().flatten().any(|of| of.partition == partition));
}

#[test]
fn sites_that_would_be_left_over_come_first_then_the_birth_stripe_with_the_fewest_open() {
    // Rack 0 has 8 partitions on 5 sites, so at least two stripes: the three sites with two of them are in both.
    let mut stream = pool_of(&[8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4], 5);
    let site = |site| move |of: &OpenPartition| of.site == SiteId(site);
    stream.pool.iter_mut().filter(|of| of.rack.0 == "rack00").for_each(|of| of.open_siblings = 4);
    let fewest = stream.pool.iter().position(site(5)).unwrap();
    stream.pool[fewest].open_siblings = 2;
    let plan = stream.seal(0).unwrap();
    let used: HashSet<u32> =
        plan.members.iter().flatten().map(|of| of.site.0).filter(|site| *site <= 5).collect();
    assert_eq!(used, HashSet::from([1, 2, 3, 5]), "4 has one partition of a stripe with more open ones");
}

#[test]
fn dead_bytes_lie_where_their_rewriting_crosses_no_rack() {
    // The third group of (48,42,15,12) has its local parity beside the global ones, and three full racks supply it.
    let mut stream = pool_of(&[4; 12], 5);
    let (some, most) = (["rack01", "rack04", "rack07"], ["rack09", "rack10", "rack11"]);
    for of in &mut stream.pool {
        let is_of = |racks: [&str; 3]| racks.contains(&&*of.rack.0);
        of.dead_share = if is_of(most) {
            0.9
        } else if is_of(some) {
            0.1
        } else {
            0.0
        };
    }
    let rack_of = stream.rack_of.clone();
    let sites = stream.seal(0).unwrap().sites();
    let racks = |chunks: std::ops::Range<usize>| -> HashSet<&str> {
        sites[chunks].iter().map(|site| &*rack_of[site].0).collect()
    };
    assert_eq!(racks(30..42), HashSet::from(some));
    assert!(racks(42..44).is_subset(&HashSet::from(most)), "beside the local parities of the other groups");
}

/// Of four full racks with dead bytes, three go to the group whose changes are sent to the global parities' rack
/// anyway. The fourth keeps a partition and gets its group's local parity, if that costs no other rack a whole part
/// later.
#[test]
fn a_full_rack_with_dead_bytes_gets_the_local_parity_of_its_group() {
    for (others, gets_it) in [(5, true), (8, true), (7, false)] {
        let counts: Vec<u32> = (0..12).map(|rack| if rack < 4 { 12 } else { others }).collect();
        let mut stream = pool_of(&counts, 5);
        for of in &mut stream.pool {
            let place = ["rack00", "rack01", "rack02", "rack03"].iter().position(|rack| *rack == of.rack.0);
            of.dead_share = place.map_or(0.0, |place| 0.9 - 0.1 * place as f64);
        }
        let rack_of = stream.rack_of.clone();
        let sites = stream.seal(0).unwrap().sites();
        let locals: Vec<&str> = sites[42..44].iter().map(|site| &*rack_of[site].0).collect();
        assert_eq!(locals.contains(&"rack03"), gets_it, "{others} elsewhere: {locals:?}");
    }
}

#[test]
fn full_sites_keep_their_members_and_get_no_parities() {
    // Each rack has one free site, except rack 3 with five: it must hold the four parities that lie together.
    let mut stream = pool_of(&[4; 13], 5);
    let roomy = |of: &Candidate| of.rack.0 == "rack03" || of.site.0.is_multiple_of(5);
    stream.candidates.retain(roomy);
    let plan = stream.seal(0).unwrap();
    let free: HashSet<SiteId> = stream.candidates.iter().map(|of| of.site).collect();
    assert!(plan.parities.iter().all(|site| free.contains(site)));
    stream.candidates.retain(|of| of.site.0.is_multiple_of(5));
    stream.pool = pool_of(&[4; 13], 5).pool;
    assert_eq!(stream.seal(0), Err(NotSealed::NoRoom { parities: 4 }));
}

proptest! {
    #[test]
    fn every_plan_has_combined_locality_whatever_waits_where(
        seed: u64, racks in 12u32..16, sites in 4u32..8, groups in 8usize..60, full in 0u32..4, holes in 0usize..4,
    ) {
        let mut stream = Stream::new(geometry(42, 15), racks, sites, seed % 2 == 0);
        stream.rng = SmallRng::seed_from_u64(seed);
        (0..groups).for_each(|_| stream.write_group());
        stream.pool.iter_mut().for_each(|of| of.is_overdue = of.partition.0.0 < 4);
        // Some sites are full.
        stream.candidates.retain(|of| of.site.0 % 7 >= full);
        let (mut pool, mut sealed) = (stream.pool.len(), 0);
        while let Ok(plan) = stream.seal(holes) {
            sealed += 1;
            pool -= 42 - holes_of(&plan);
            prop_assert_eq!(stream.pool.len(), pool);
        }
        prop_assert!(sealed > 0 || groups < 20 || full > 0 || sites < 5, "none of {groups} groups");
    }
}
