//! Levelling: moves that balance space. Drained sites give away everything. Of the other sites, those filled beyond the
//! mean share of their capacity give their surplus to those below it.
//!
//! Levelling equalises shares of capacity, not bytes, so a larger disk holds more. It begins when the fullest and the
//! emptiest site are five points apart, or nine tenths of the mean if that is less. It ends at a fifth of this
//! difference, so that it does not follow every write. A new site is more than nine tenths of the mean behind. Chance
//! alone does not separate sites with a few hundred chunks each by as much, although neighbouring blocks go to the same
//! sites. Nine tenths of a mean of a few megabytes are left alone.
//!
//! A destination is drawn in proportion to its free room below the giver's share. Many givers thus fill a new site, and
//! each giver fills many new sites.

use std::collections::BTreeMap;

use rand::Rng;
use striate_core::{RackId, SiteId};

use crate::placement::rule::PlacementRule;

/// Difference between the shares of the fullest and the emptiest site at which levelling begins.
const BEGIN: f64 = 0.05;
/// Part of the mean share that is used instead of `BEGIN` if it is less, so that a new site of a nearly empty store fills
/// up too.
const BEGIN_OF_MEAN: f64 = 0.9;
/// Lower bound of that part, in bytes of a site of mean capacity.
const LEAST_BYTES: f64 = (16 << 20) as f64;
/// A move's destination must have a share lower by at least this part of the difference at which levelling begins.
const END_OF_BEGIN: f64 = 0.2;

/// How full a site is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFill {
    /// The site's number.
    pub site: SiteId,
    /// Its failure domain.
    pub rack: RackId,
    /// Bytes of chunks stored.
    pub used_bytes: u64,
    /// Bytes it can still take.
    pub free_bytes: u64,
    /// Whether the site takes chunks.
    pub takes_chunks: bool,
    /// Whether the site is being emptied.
    pub is_drained: bool,
}

/// The fill of all sites, updated with each move.
#[derive(Clone, Debug, Default)]
pub struct Levelling {
    sites: BTreeMap<SiteId, SiteFill>,
    /// Share of the takers' capacity that all chunks would fill.
    mean: f64,
    /// Difference between shares at which levelling begins.
    begin: f64,
}

impl SiteFill {
    /// Bytes of chunks it can hold.
    fn capacity(&self) -> u64 {
        self.used_bytes.saturating_add(self.free_bytes)
    }

    /// Used share of the capacity, in [0, 1].
    fn share(&self) -> f64 {
        self.used_bytes as f64 / self.capacity().max(1) as f64
    }
}

impl Levelling {
    /// Creates the levelling of these sites.
    pub fn new(sites: impl IntoIterator<Item = SiteFill>) -> Self {
        let sites: BTreeMap<SiteId, SiteFill> = sites.into_iter().map(|fill| (fill.site, fill)).collect();
        let takers = || sites.values().filter(|fill| fill.takes_chunks);
        let used: u64 = sites
            .values()
            .filter(|fill| fill.takes_chunks || fill.is_drained)
            .map(|fill| fill.used_bytes)
            .sum();
        let capacity: u64 = takers().map(SiteFill::capacity).sum();
        let mean = used as f64 / capacity.max(1) as f64;
        let least = LEAST_BYTES * takers().count() as f64 / capacity.max(1) as f64;
        Self { begin: BEGIN.min(least.max(BEGIN_OF_MEAN * mean)), sites, mean }
    }

    /// Returns the sites with chunks to give away and how many bytes, drained sites first, then the fullest.
    pub fn givers(&self) -> Vec<(SiteId, u64)> {
        let drained = self.sites.values().filter(|fill| fill.is_drained && fill.used_bytes > 0);
        let mut givers: Vec<(SiteId, u64)> = drained.map(|fill| (fill.site, fill.used_bytes)).collect();
        if self.spread() > self.begin {
            let mut full: Vec<&SiteFill> =
                self.sites.values().filter(|fill| fill.takes_chunks && fill.share() > self.mean).collect();
            full.sort_by(|a, b| b.share().total_cmp(&a.share()));
            let surplus = |fill: &SiteFill| ((fill.share() - self.mean) * fill.capacity() as f64) as u64;
            givers.extend(full.into_iter().map(|fill| (fill.site, surplus(fill))));
        }
        givers
    }

    /// Minimum difference between the shares of a move's source and destination.
    fn end(&self) -> f64 {
        END_OF_BEGIN * self.begin
    }

    /// Returns the difference between the shares of the fullest and the emptiest site that take chunks.
    pub fn spread(&self) -> f64 {
        let shares = || self.sites.values().filter(|fill| fill.takes_chunks).map(SiteFill::share);
        let fullest = shares().fold(0.0, f64::max);
        fullest - shares().fold(fullest, f64::min)
    }

    /// Returns each site, whether it takes chunks and whether it is drained.
    pub fn members(&self) -> Vec<(SiteId, bool, bool)> {
        self.sites.values().map(|fill| (fill.site, fill.takes_chunks, fill.is_drained)).collect()
    }

    /// Returns whether a site is being emptied.
    pub fn is_drained(&self, site: SiteId) -> bool {
        self.sites.get(&site).is_some_and(|fill| fill.is_drained)
    }

    /// Returns whether any site could take a chunk of a stripe on `holders`. If every possible taker is a holder, the
    /// caller need not examine the stripes.
    pub fn has_taker(&self, giver: SiteId, holders: &[SiteId]) -> bool {
        let Some(from) = self.sites.get(&giver) else { return false };
        let is_emptier = |to: &SiteFill| from.is_drained || from.share() - to.share() > self.end();
        self.sites.values().any(|to| to.takes_chunks && is_emptier(to) && !holders.contains(&to.site))
    }

    /// Returns the rack of a site.
    pub fn rack(&self, site: SiteId) -> Option<&RackId> {
        self.sites.get(&site).map(|of| &of.rack)
    }

    /// Draws the destination of a chunk of `len` bytes on `giver`, among the sites that `may_go` admits. `holders` are
    /// the sites of its stripe's chunks in order, 0 for a missing chunk. Returns `None` if `rule` admits no site, or no
    /// site is sufficiently emptier.
    pub fn draw_taker(
        &self,
        giver: SiteId,
        holders: &[SiteId],
        rule: &PlacementRule,
        len: u32,
        may_go: impl Fn(&SiteFill) -> bool,
        rng: &mut impl Rng,
    ) -> Option<SiteId> {
        let from = self.sites.get(&giver)?;
        let takers: Vec<(f64, SiteId)> = self
            .sites
            .values()
            .filter(|to| may_go(to))
            .filter(|to| self.may_take(to, giver, holders, rule, len))
            .map(|to| {
                let room = match from.is_drained {
                    true => to.free_bytes as f64,
                    false => (from.share() - to.share() - self.end()) * to.capacity() as f64 - f64::from(len),
                };
                (room, to.site)
            })
            .filter(|(room, _)| *room > 0.0)
            .collect();
        let mut drawn = rng.random::<f64>() * takers.iter().map(|(room, _)| room).sum::<f64>();
        for &(room, site) in &takers {
            drawn -= room;
            if drawn < 0.0 {
                return Some(site);
            }
        }
        takers.last().map(|(_, site)| *site)
    }

    fn may_take(
        &self,
        to: &SiteFill,
        giver: SiteId,
        holders: &[SiteId],
        rule: &PlacementRule,
        len: u32,
    ) -> bool {
        let index = holders.iter().position(|holder| *holder == giver);
        let places = holders.iter().enumerate();
        let places = places.filter_map(|(chunk, holder)| Some((chunk, &self.sites.get(holder)?.rack)));
        to.takes_chunks
            && to.free_bytes >= u64::from(len)
            && !holders.contains(&to.site)
            && index.is_some_and(|index| rule.admits(index, &to.rack, places))
    }

    /// Records a move.
    pub fn note(&mut self, from: SiteId, to: SiteId, len: u32) {
        let len = u64::from(len);
        if let Some(fill) = self.sites.get_mut(&from) {
            fill.used_bytes = fill.used_bytes.saturating_sub(len);
            fill.free_bytes += len;
        }
        if let Some(fill) = self.sites.get_mut(&to) {
            fill.used_bytes += len;
            fill.free_bytes = fill.free_bytes.saturating_sub(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const MIB: u64 = 1 << 20;
    /// Bytes of each moved chunk.
    const LEN: u32 = 1_000 << 20;

    fn fill(site: u32, used_mib: u64, free_mib: u64) -> SiteFill {
        let rack = RackId(format!("rack{}", site % 4));
        let (used_bytes, free_bytes) = (used_mib * MIB, free_mib * MIB);
        SiteFill { site: SiteId(site), rack, used_bytes, free_bytes, takes_chunks: true, is_drained: false }
    }

    fn drained(site: u32, used_mib: u64, free_mib: u64) -> SiteFill {
        SiteFill { takes_chunks: false, is_drained: true, ..fill(site, used_mib, free_mib) }
    }

    #[test]
    fn a_new_site_is_given_to_by_all_although_none_is_far_above_the_mean() {
        let mut sites: Vec<SiteFill> = (1..=31).map(|site| fill(site, 500, 500)).collect();
        assert!(Levelling::new(sites.clone()).givers().is_empty());
        sites.push(fill(32, 0, 1_000));
        let levelling = Levelling::new(sites);
        let givers = levelling.givers();
        assert_eq!(givers.len(), 31);
        let given: u64 = givers.iter().map(|(_, bytes)| bytes).sum();
        assert!((450 * MIB..=485 * MIB).contains(&given), "{given} of the 484 MiB that the new one lacks");
    }

    #[test]
    fn a_new_site_of_a_nearly_empty_store_is_given_to_and_a_few_megabytes_are_left_where_they_are() {
        let with_new = |used_mib: u64| {
            let old = (1..=8).map(|site| fill(site, used_mib, 250_000));
            Levelling::new(old.chain([fill(9, 0, 250_000)])).givers().len()
        };
        assert_eq!((with_new(100), with_new(10)), (8, 0));
    }

    #[test]
    fn chunks_that_were_placed_at_random_stay_where_they_are() {
        let mut rng = SmallRng::seed_from_u64(3);
        // Number of objects on nine random sites each, and MiB that each object has on each of its sites.
        for (objects, mib) in [(212, 3), (530, 3), (30_000, 1)] {
            let mut used = [0u64; 65];
            for _ in 0..objects {
                rand::seq::index::sample(&mut rng, 65, 9).iter().for_each(|site| used[site] += mib);
            }
            let spread = used.iter().max().unwrap() - used.iter().min().unwrap();
            assert!(spread > 16, "{spread} MiB lie between the fullest and the emptiest");
            let sites = used.iter().zip(1..).map(|(&mib, site)| fill(site, mib, 250_000 - mib));
            assert_eq!(Levelling::new(sites).givers(), [], "{objects} objects, {spread} MiB apart");
        }
    }

    #[test]
    fn drained_sites_give_everything_first_and_nearly_equal_ones_nothing() {
        let levelling = Levelling::new([fill(1, 50, 50), fill(2, 49, 51), drained(3, 7, 93)]);
        assert_eq!(levelling.givers(), [(SiteId(3), 7 * MIB)]);
        assert!(levelling.has_taker(SiteId(3), &[SiteId(3), SiteId(1)]));
        assert!(!levelling.has_taker(SiteId(3), &[SiteId(3), SiteId(1), SiteId(2)]));
        assert!(!levelling.has_taker(SiteId(1), &[SiteId(1), SiteId(2)]), "both hold a chunk");
        let (rule, mut rng) = (PlacementRule::at_most(2, 3), SmallRng::seed_from_u64(1));
        assert_eq!(
            levelling.draw_taker(SiteId(3), &[SiteId(3), SiteId(1)], &rule, 1, |_| true, &mut rng),
            Some(SiteId(2))
        );
        assert_eq!(
            levelling.draw_taker(SiteId(3), &[SiteId(3), SiteId(1), SiteId(2)], &rule, 1, |_| true, &mut rng),
            None
        );
        assert_eq!(
            levelling.draw_taker(SiteId(1), &[SiteId(1)], &rule, 1, |_| true, &mut rng),
            None,
            "the other is not emptier enough"
        );
    }

    proptest! {
        /// Levelling terminates with nearly equal shares. Every taker is legal, and none is ever overfilled.
        #[test]
        fn sites_of_any_size_are_levelled(
            seed: u64,
            sizes in proptest::collection::vec((0..800_u64, 200..1_000_u64), 6..20),
            with_drained: bool,
        ) {
            let mut sites: Vec<SiteFill> = sizes
                .iter()
                .enumerate()
                .map(|(site, &(used, free))| fill(site as u32 + 1, used * 1_000, free * 1_000))
                .collect();
            if with_drained {
                sites.push(drained(100, 20_000, 500_000));
            }
            let (mut levelling, mut rng) = (Levelling::new(sites.clone()), SmallRng::seed_from_u64(seed));
            let total: u64 = sites.iter().map(|fill| fill.used_bytes).sum();
            let rule = PlacementRule::at_most(1, 1);
            for _ in 0..20 {
                for (giver, bytes) in levelling.givers() {
                    for _ in 0..bytes.div_ceil(u64::from(LEN)) {
                        let holders = [giver, SiteId(1), SiteId(6)];
                        let Some(taker) = levelling.draw_taker(giver, &holders[..1], &rule, LEN, |_| true, &mut rng) else {
                            break;
                        };
                        prop_assert!(taker != giver && taker.0 != 100);
                        prop_assert!(levelling.sites[&taker].free_bytes >= u64::from(LEN));
                        levelling.note(giver, taker, LEN);
                    }
                }
            }
            prop_assert!(levelling.givers().is_empty(), "spread {}", levelling.spread());
            prop_assert_eq!(levelling.sites.values().map(|fill| fill.used_bytes).sum::<u64>(), total);
        }
    }
}
