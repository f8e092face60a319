//! Placement: which sites take the chunks of a stripe.
//!
//! Sites are drawn at random without replacement, each with a weight that grows with its free space and falls with its
//! queue (weighted reservoir sampling: Efraimidis and Spirakis, 2006). Random draws spread the chunks of many stripes
//! over all sites, so a repair has many sources. The order of the draw decides which sites hold data and which parity,
//! so reads of systematic chunks spread too.
//!
//! Cost: O(N log N) for N candidates.

pub mod check;
pub mod durability;
pub mod grouping;
pub mod hot_copies;
pub mod leaving;
pub mod making_room;
pub mod racks;
pub mod rule;
pub mod strays;

use std::collections::{HashMap, VecDeque};

use rand::Rng;
use striate_core::{RackId, SiteId};

use crate::placement::rule::PlacementRule;

/// A site that may take a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The site's number.
    pub site: SiteId,
    /// Its failure domain.
    pub rack: RackId,
    /// Bytes it can still take.
    pub free_bytes: u64,
    /// Requests waiting at the site.
    pub queue_requests: u32,
}

impl PlacementRule {
    /// Draws sites for the n chunks of a new stripe, in order, followed by sites that may replace a failing one, up to
    /// `most` in all. Returns fewer than n if candidates or racks do not suffice. If groups stay in their racks there
    /// are no spare sites: a chunk whose site fails is debt until it is repaired into its own racks.
    pub fn draw_sites(&self, rng: &mut impl Rng, candidates: &[Candidate], most: usize) -> Vec<SiteId> {
        self.take(draw_order(rng, candidates).into_iter(), most, &HashMap::new())
    }

    /// As [`Self::draw_sites`], for coding groups that wide stripes will take (`crate::sealing`). Of each two drawn
    /// sites, the one whose rack has fewer waiting partitions comes first, then the one with fewer itself. `waiting`
    /// returns both counts. Racks then fill evenly, and only a third as many partitions wait for racks that lack some.
    pub fn draw_sites_evenly(
        &self,
        rng: &mut impl Rng,
        candidates: &[Candidate],
        most: usize,
        waiting: impl Fn(&Candidate) -> (usize, usize),
    ) -> Vec<SiteId> {
        let mut drawn: VecDeque<&Candidate> = draw_order(rng, candidates).into();
        let better_first = std::iter::from_fn(|| {
            let first = drawn.pop_front()?;
            let Some(second) = drawn.pop_front() else { return Some(first) };
            let (better, other) =
                if waiting(second) < waiting(first) { (second, first) } else { (first, second) };
            drawn.push_back(other);
            Some(better)
        });
        self.take(better_first, most, &HashMap::new())
    }

    /// Returns all candidates that the rule admits beside the chunks counted in `chunks_in_rack`, in the order of a
    /// draw.
    pub(crate) fn draw_beside(
        &self,
        rng: &mut impl Rng,
        candidates: &[Candidate],
        chunks_in_rack: &HashMap<RackId, usize>,
    ) -> Vec<SiteId> {
        take_within_racks(
            draw_order(rng, candidates).into_iter(),
            candidates.len(),
            self.rack_limit(),
            chunks_in_rack,
        )
    }

    /// Draws sites for lost chunks from `candidates`, which hold no chunk of the stripe: (chunk index, destination), in
    /// the order of `lost`. `at` holds the rack of every chunk of the stripe whose place is or was known; the chunks of
    /// `lost` have their old racks. A lost chunk for which no site is left gets no destination.
    pub fn draw_targets(
        &self,
        rng: &mut impl Rng,
        candidates: &[Candidate],
        at: &[Option<RackId>],
        lost: &[usize],
    ) -> Vec<(usize, SiteId)> {
        self.targets_in_order(&draw_order(rng, candidates), at, lost)
    }

    /// As [`Self::draw_targets`], with candidates that are already in order of preference.
    pub fn targets_in_order(
        &self,
        order: &[&Candidate],
        at: &[Option<RackId>],
        lost: &[usize],
    ) -> Vec<(usize, SiteId)> {
        if !self.keeps_groups() {
            let mut chunks_in_rack: HashMap<RackId, usize> = HashMap::new();
            let kept = at.iter().enumerate().filter(|(chunk, _)| !lost.contains(chunk));
            kept.filter_map(|(_, rack)| rack.clone())
                .for_each(|rack| *chunks_in_rack.entry(rack).or_default() += 1);
            let order = order.iter().copied();
            let sites = take_within_racks(order, self.chunks(), self.rack_limit(), &chunks_in_rack);
            return lost.iter().copied().zip(sites).collect();
        }
        self.draw_targets_in_groups(order, at, lost)
    }

    /// Draws sites for the parities of a wide stripe, chunks k and above, whose members stay where they are: (chunk,
    /// site). Returns fewer if the rule admits none. A group's local parity goes to the group's racks if they have
    /// room. The global parities go together to the rack with the most room. A local parity whose group's racks are
    /// full, as where c divides r, goes to the rack of the global ones while it has room, and otherwise to another
    /// rack.
    pub fn draw_parities(
        &self,
        rng: &mut impl Rng,
        candidates: &[Candidate],
        at: &[Option<RackId>],
        k: usize,
    ) -> Vec<(usize, SiteId)> {
        let mut room = ParityRoom::new(self, draw_order(rng, candidates), at);
        let (mut globals, mut homeless) = (Vec::new(), Vec::new());
        for group in self.groups() {
            let Some(&parity) = group.iter().find(|&&chunk| chunk >= k) else { continue };
            if group.iter().all(|&chunk| chunk >= k) {
                globals = group;
                continue;
            }
            let is_own = |rack: &&RackId| {
                group.iter().any(|&chunk| chunk < k && room.at[chunk].as_ref() == Some(*rack))
            };
            let group_rack = room.admitting(parity).find(is_own);
            match group_rack {
                Some(rack) => room.put(parity, rack),
                None => homeless.push(parity),
            }
        }
        let mut common = None;
        for chunk in globals.into_iter().chain(homeless) {
            let shared_rack = common.filter(|rack| room.admitting(chunk).any(|admitting| admitting == *rack));
            let Some(rack) = shared_rack.or_else(|| room.roomiest(chunk)) else { continue };
            common.get_or_insert(rack);
            room.put(chunk, rack);
        }
        room.targets
    }

    /// Sends each lost chunk to its old rack, or to another rack of its group.
    fn draw_targets_in_groups(
        &self,
        order: &[&Candidate],
        at: &[Option<RackId>],
        lost: &[usize],
    ) -> Vec<(usize, SiteId)> {
        let mut at = at.to_vec();
        let mut targets: Vec<(usize, SiteId)> = Vec::new();
        for &chunk in lost {
            let is_home = |candidate: &&&Candidate| at[chunk].as_ref() == Some(&candidate.rack);
            let (home, away): (Vec<&Candidate>, Vec<&Candidate>) =
                order.iter().partition(|candidate| is_home(candidate));
            // A lost chunk without a new place yet keeps room in its rack, because it returns there.
            let places = || at.iter().enumerate().filter_map(|(other, rack)| Some((other, rack.as_ref()?)));
            let is_free = |site| targets.iter().all(|&(_, taken)| taken != site);
            let taker = home
                .into_iter()
                .chain(away)
                .find(|candidate| is_free(candidate.site) && self.admits(chunk, &candidate.rack, places()));
            let Some(Candidate { site, rack, .. }) = taker else { continue };
            targets.push((chunk, *site));
            at[chunk] = Some(rack.clone());
        }
        targets
    }

    /// Takes the first candidates that the rule admits: n for the chunks in order, then spare ones, up to `most` in
    /// all. `chunks_in_rack` counts the chunks of the stripe that racks already hold.
    pub(crate) fn take<'a>(
        &self,
        candidates: impl Iterator<Item = &'a Candidate>,
        most: usize,
        chunks_in_rack: &HashMap<RackId, usize>,
    ) -> Vec<SiteId> {
        match self.keeps_groups() {
            false => take_within_racks(candidates, most, self.rack_limit(), chunks_in_rack),
            true => self.take_by_groups(candidates).unwrap_or_default(),
        }
    }

    /// Returns sites for the n chunks, with each group in as few racks as can hold it. `None` if racks or sites do not
    /// suffice.
    fn take_by_groups<'a>(&self, candidates: impl Iterator<Item = &'a Candidate>) -> Option<Vec<SiteId>> {
        let mut racks: Vec<RackRoom<'a>> = Vec::new();
        for candidate in candidates {
            match racks.iter_mut().find(|rack_room| *rack_room.rack == candidate.rack) {
                Some(rack_room) => rack_room.free.push_back(candidate.site),
                None => racks.push(RackRoom::new(candidate, self.rack_limit())),
            }
        }
        let mut sites = vec![SiteId(0); self.chunks()];
        let mut groups = self.groups();
        groups.sort_by_key(|chunks| std::cmp::Reverse(chunks.len()));
        for group in groups {
            for part in group.chunks(self.rack_limit()) {
                let fits = racks.iter_mut().filter(|rack_room| rack_room.room() >= part.len());
                // The tightest rack that fits: whole parts get empty racks, remainders share one.
                let rack_room = fits.min_by_key(|rack_room| rack_room.limit)?;
                rack_room.limit -= part.len();
                for &chunk in part {
                    sites[chunk] = rack_room.free.pop_front()?;
                }
            }
        }
        Some(sites)
    }
}

/// The racks while the parities of a wide stripe are placed beside its members.
struct ParityRoom<'a> {
    rule: &'a PlacementRule,
    /// The racks, ascending.
    racks: Vec<&'a RackId>,
    /// The sites of each rack without a chunk of the stripe, in the order of a draw.
    free: HashMap<&'a RackId, VecDeque<SiteId>>,
    /// The rack of each placed chunk.
    at: Vec<Option<RackId>>,
    /// Parities placed so far, each with its site.
    targets: Vec<(usize, SiteId)>,
}

impl<'a> ParityRoom<'a> {
    fn new(rule: &'a PlacementRule, order: Vec<&'a Candidate>, at: &[Option<RackId>]) -> Self {
        let mut free: HashMap<&RackId, VecDeque<SiteId>> = HashMap::new();
        for candidate in order {
            free.entry(&candidate.rack).or_default().push_back(candidate.site);
        }
        let mut racks: Vec<&RackId> = free.keys().copied().collect();
        racks.sort_unstable();
        Self { rule, racks, free, at: at[..rule.chunks()].to_vec(), targets: Vec::new() }
    }

    /// Returns the racks with a free site where the rule admits `chunk`.
    fn admitting(&self, chunk: usize) -> impl Iterator<Item = &'a RackId> {
        let places = || self.at.iter().enumerate().filter_map(|(other, rack)| Some((other, rack.as_ref()?)));
        let is_free = |rack: &&RackId| !self.free[*rack].is_empty();
        self.racks.iter().copied().filter(is_free).filter(move |rack| self.rule.admits(chunk, rack, places()))
    }

    /// Returns the admitting rack that can hold the most further chunks.
    fn roomiest(&self, chunk: usize) -> Option<&'a RackId> {
        let in_rack = |rack: &RackId| self.at.iter().flatten().filter(|other| *other == rack).count();
        let free_room = |rack: &RackId| self.rule.rack_limit().saturating_sub(in_rack(rack));
        self.admitting(chunk).max_by_key(|rack| free_room(rack).min(self.free[*rack].len()))
    }

    fn put(&mut self, chunk: usize, rack: &'a RackId) {
        self.targets.extend(self.free.get_mut(rack).and_then(VecDeque::pop_front).map(|site| (chunk, site)));
        self.at[chunk] = Some(rack.clone());
    }
}

/// A rack while groups are placed.
struct RackRoom<'a> {
    rack: &'a RackId,
    /// Its sites without a chunk of the stripe.
    free: VecDeque<SiteId>,
    /// Number of chunks it may still hold.
    limit: usize,
}

impl<'a> RackRoom<'a> {
    fn new(first: &'a Candidate, limit: usize) -> Self {
        Self { rack: &first.rack, free: VecDeque::from([first.site]), limit }
    }

    fn room(&self) -> usize {
        self.limit.min(self.free.len())
    }
}

/// Returns the candidates in the order of a weighted draw without replacement; the weight is free bytes over waiting
/// requests.
pub fn draw_order<'a>(rng: &mut impl Rng, candidates: &'a [Candidate]) -> Vec<&'a Candidate> {
    let mut drawn: Vec<(f64, &Candidate)> = candidates
        .iter()
        .map(|candidate| {
            let weight = candidate.free_bytes.max(1) as f64 / (1.0 + f64::from(candidate.queue_requests));
            (-f64::ln(1.0 - rng.random::<f64>()) / weight, candidate)
        })
        .collect();
    drawn.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.site.cmp(&b.1.site)));
    drawn.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Returns the first `n` candidates, with at most `rack_limit` chunks per rack, including those counted in
/// `chunks_in_rack`.
fn take_within_racks<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    n: usize,
    rack_limit: usize,
    chunks_in_rack: &HashMap<RackId, usize>,
) -> Vec<SiteId> {
    let mut in_rack = chunks_in_rack.clone();
    let mut chosen = Vec::with_capacity(n);
    for candidate in candidates {
        if chosen.len() == n {
            break;
        }
        let count = in_rack.entry(candidate.rack.clone()).or_default();
        if *count < rack_limit {
            *count += 1;
            chosen.push(candidate.site);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};
    use striate_core::Profile;

    use super::*;
    use crate::placement::check::{check_placement, racks_crossed};
    use crate::placement::leaving::LeavingRacks;
    use crate::wide::geometry::WideGeometry;

    fn candidates(sites: usize, racks: usize) -> Vec<Candidate> {
        let site = |i: usize| Candidate {
            site: SiteId(i as u32 + 1),
            rack: RackId(format!("rack{}", i % racks)),
            free_bytes: 1 << 30,
            queue_requests: 0,
        };
        (0..sites).map(site).collect()
    }

    fn rule(profile: &str, racks: usize) -> PlacementRule {
        let profile: Profile = profile.parse().unwrap();
        PlacementRule::new(&profile, &profile.code.build().unwrap(), racks)
    }

    fn rack_of(all: &[Candidate]) -> HashMap<SiteId, RackId> {
        all.iter().map(|candidate| (candidate.site, candidate.rack.clone())).collect()
    }

    const PROFILES: [&str; 8] = [
        "none",
        "replica(3)",
        "rs(4,2)",
        "lrc(6,2,2)",
        "rs(6,3) spread racks(1)",
        "rs(4,2) spread flat",
        "lrc(6,2,2) spread racks(2)",
        "lrc(12,3,2) spread racks(3)",
    ];

    /// Random repairs and moves of one stripe, each verified by the checker.
    struct Life<'a> {
        rule: &'a PlacementRule,
        all: &'a [Candidate],
        rack_of: HashMap<SiteId, RackId>,
        sites: Vec<SiteId>,
        rng: SmallRng,
    }

    impl Life<'_> {
        fn racks(&self) -> Vec<Option<RackId>> {
            self.sites.iter().map(|site| self.rack_of.get(site).cloned()).collect()
        }

        fn free(&self) -> Vec<Candidate> {
            self.all.iter().filter(|of| !self.sites.contains(&of.site)).cloned().collect()
        }

        fn repair(&mut self, losses: usize) {
            let mut lost = rand::seq::index::sample(&mut self.rng, self.sites.len(), losses).into_vec();
            lost.sort_unstable();
            let (free, at) = (self.free(), self.racks());
            for (chunk, site) in self.rule.draw_targets(&mut self.rng, &free, &at, &lost) {
                assert!(lost.contains(&chunk));
                self.sites[chunk] = site;
                lost.retain(|other| *other != chunk);
            }
            // A chunk that stays lost and no longer fits its old rack has no place.
            for chunk in lost {
                let at = self.racks();
                let places = || at.iter().enumerate().filter_map(|(of, rack)| Some((of, rack.as_ref()?)));
                if at[chunk].as_ref().is_some_and(|rack| !self.rule.admits(chunk, rack, places())) {
                    self.sites[chunk] = SiteId(0);
                }
            }
        }

        /// Rebuilds what a rack had in the others. In between some of their chunks move.
        fn leave(&mut self, rack: &RackId, together: bool) {
            let at = self.racks();
            let rule = self.rule.clone().leaving(&LeavingRacks::of([(rack.clone(), true)]));
            let mut lost: Vec<usize> =
                (0..at.len()).filter(|&chunk| at[chunk].as_ref() == Some(rack)).collect();
            lost.shuffle(&mut self.rng);
            for lost in lost.chunks(if together { lost.len().max(1) } else { 1 }) {
                let (mut free, at) = (self.free(), self.racks());
                free.retain(|of| of.rack != *rack);
                let targets = rule.draw_targets(&mut self.rng, &free, &at, lost);
                assert_eq!(targets.len(), lost.len(), "{lost:?} of {:?}", self.sites);
                targets.into_iter().for_each(|(chunk, site)| self.sites[chunk] = site);
                (0..5).for_each(|_| self.move_one(&rule));
            }
        }

        /// Moves a chunk that is in no rack that is left.
        fn move_one(&mut self, rule: &PlacementRule) {
            let chunk = self.rng.random_range(0..self.sites.len());
            let (free, at) = (self.free(), self.racks());
            let places = || at.iter().enumerate().filter_map(|(of, rack)| Some((of, rack.as_ref()?)));
            let may_take = |to: &&Candidate| !rule.leaves(&to.rack) && rule.admits(chunk, &to.rack, places());
            if at[chunk].as_ref().is_some_and(|rack| rule.leaves(rack)) {
                return;
            }
            if let Some(to) = free.iter().find(may_take) {
                self.sites[chunk] = to.site;
            }
        }

        fn check(&self) {
            check_placement(self.rule, &self.sites, |site| self.rack_of.get(&site)).unwrap();
        }
    }

    proptest! {
        #[test]
        fn every_placement_passes_the_checker_and_is_full_when_sites_suffice(
            seed: u64, sites in 1usize..40, racks in 1usize..10, profile in 0..PROFILES.len(),
        ) {
            let racks = racks.min(sites);
            let (all, rule) = (candidates(sites, racks), rule(PROFILES[profile], racks));
            let (n, limit) = (rule.chunks(), rule.rack_limit());
            let chosen = rule.draw_sites(&mut SmallRng::seed_from_u64(seed), &all, n);
            let racks_of = rack_of(&all);
            prop_assert_eq!(check_placement(&rule, &chosen, |site| racks_of.get(&site)), Ok(()));
            let room: usize = (0..racks).map(|rack| limit.min((sites - rack).div_ceil(racks))).sum();
            match rule.keeps_groups() {
                false => prop_assert_eq!(chosen.len(), n.min(room)),
                // One rack for each part of a group always suffices.
                true => prop_assert!(chosen.len() == n || racks < 7 || sites < 3 * racks),
            }
        }

        #[test]
        fn repairs_and_moves_never_violate_the_rule(
            seed: u64, per_rack in 3usize..6, racks in 1usize..10, profile in 0..PROFILES.len(),
        ) {
            let (all, rule) = (candidates(per_rack * racks, racks), rule(PROFILES[profile], racks));
            let mut rng = SmallRng::seed_from_u64(seed);
            let sites = rule.draw_sites(&mut rng, &all, rule.chunks());
            prop_assume!(sites.len() == rule.chunks());
            let mut life = Life { rule: &rule, all: &all, rack_of: rack_of(&all), sites, rng };
            for _ in 0..50 {
                let losses = life.rng.random_range(1..=life.sites.len().min(3));
                life.repair(losses);
                life.check();
                life.move_one(&rule);
                life.check();
            }
        }
    }

    #[test]
    fn locality_after_a_thousand_repairs_and_moves_equals_locality_before() {
        for (profile, racks, per_rack) in [("lrc(12,3,2) spread racks(3)", 9, 4), ("wide(128,32,4)", 40, 6)] {
            let (all, rule) = (candidates(racks * per_rack, racks), rule(profile, racks));
            let mut rng = SmallRng::seed_from_u64(7);
            let sites = rule.draw_sites(&mut rng, &all, rule.chunks());
            let mut life = Life { rule: &rule, all: &all, rack_of: rack_of(&all), sites, rng };
            let crossed = |life: &Life<'_>| -> Vec<usize> {
                (0..rule.chunks())
                    .map(|chunk| racks_crossed(&rule, &life.sites, chunk, |site| life.rack_of.get(&site)))
                    .collect()
            };
            let before = crossed(&life);
            for round in 0..1_000 {
                let began = life.sites.clone();
                life.repair(1 + round % 3);
                assert_ne!(life.sites, began, "every lost chunk finds a site");
                life.move_one(&rule);
                life.check();
            }
            assert_eq!(crossed(&life), before, "{profile}");
        }
    }

    /// One rack after the other is lost and comes back empty. Its chunks are rebuilt one at a time or together. In
    /// between some move.
    #[test]
    fn what_a_rack_had_goes_where_locality_stays_exact() {
        let profiles = ["wide(4,2,2)", "wide(6,3,2)", "wide(8,4,4)", "wide(10,5,3)", "wide(42,15,4)"];
        for (profile, seed) in profiles.into_iter().chain(["wide(128,27,4)"]).zip(1..) {
            let geometry = WideGeometry::of_profile(&profile.parse().unwrap()).unwrap();
            let racks = geometry.z() + 1;
            let (all, rule) = (candidates(racks * (geometry.c() + 1), racks), rule(profile, racks));
            let mut rng = SmallRng::seed_from_u64(seed);
            let sites = rule.draw_sites(&mut rng, &all, rule.chunks());
            let mut life = Life { rule: &rule, all: &all, rack_of: rack_of(&all), sites, rng };
            for round in 0..100 {
                let rack = RackId(format!("rack{}", life.rng.random_range(0..racks)));
                life.leave(&rack, round % 2 == 0);
                life.check();
                for _ in 0..10 {
                    life.move_one(&rule);
                    life.check();
                }
            }
        }
    }

    /// Members are placed as the geometry says, with one rack left over. In (4,2,2) and (128,32,4) each group's members
    /// fill their racks.
    #[test]
    fn every_parity_of_a_wide_stripe_has_a_site_where_its_geometry_fits() {
        for profile in
            ["wide(4,2,2)", "wide(6,3,2)", "wide(8,4,4)", "wide(10,5,3)", "wide(42,15,4)", "wide(128,32,4)"]
        {
            let geometry = WideGeometry::of_profile(&profile.parse().unwrap()).unwrap();
            let (k, part_of) = (geometry.k(), geometry.parts_of_chunks());
            let all = candidates((geometry.z() + 1) * (geometry.c() + 1), geometry.z() + 1);
            let (rule, rack_of) = (rule(profile, geometry.z() + 1), rack_of(&all));
            let mut sites = vec![SiteId(0); rule.chunks()];
            for chunk in 0..k {
                let rack = RackId(format!("rack{}", part_of[chunk]));
                let free = all.iter().find(|of| of.rack == rack && !sites.contains(&of.site));
                sites[chunk] = free.expect("a rack has more sites than chunks").site;
            }
            let at: Vec<Option<RackId>> = sites.iter().map(|site| rack_of.get(site).cloned()).collect();
            let free: Vec<Candidate> = all.iter().filter(|of| !sites.contains(&of.site)).cloned().collect();
            for seed in 0..50 {
                let mut sites = sites.clone();
                let drawn = rule.draw_parities(&mut SmallRng::seed_from_u64(seed), &free, &at, k);
                assert_eq!(drawn.len(), geometry.n() - k, "{profile}");
                drawn.into_iter().for_each(|(chunk, site)| sites[chunk] = site);
                check_placement(&rule, &sites, |site| rack_of.get(&site)).unwrap();
            }
        }
    }

    #[test]
    fn draws_follow_free_space() {
        let mut all = candidates(2, 2);
        all[0].free_bytes = 3 << 30;
        let (rule, mut rng) = (PlacementRule::at_most(1, 1), SmallRng::seed_from_u64(1));
        let first = (0..4_000).filter(|_| rule.draw_sites(&mut rng, &all, 1) == [SiteId(1)]).count();
        assert!((2_850..3_150).contains(&first), "3 of 4 draws expected, {first} of 4000 seen");
    }

    #[test]
    fn a_rack_that_holds_its_share_gets_no_more() {
        let at = [Some(RackId("rack0".into())), None, None];
        let (rule, mut rng) = (PlacementRule::at_most(1, 3), SmallRng::seed_from_u64(2));
        let targets = rule.draw_targets(&mut rng, &candidates(4, 2), &at, &[1, 2]);
        assert!(matches!(targets[..], [(1, SiteId(2 | 4))]), "{targets:?}");
    }
}
