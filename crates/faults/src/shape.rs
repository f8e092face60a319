//! The shape of a seed's cluster: profile, sites, racks, gateways and block length, all drawn from the seed.
//!
//! There are codes of every family, because they differ in the losses that they tolerate: an LRC's tolerance depends
//! on which chunks are lost, and `none` tolerates no loss at all. Racks have several sites, because a stripe may have
//! at most f chunks in one (I6). Some blocks are long, so that chunks have several granules.
//!
//! A fifth of the seeds has *wide stripes*: racks as their codes require, and small objects that are packed and then
//! sealed. In each rack a lost chunk finds a site, wherever the other chunks of its two stripes are, even while one
//! site of the rack is gone for good.

use std::fmt;

use striate_splitmix::{SplitMix64, hash};

/// Families of profiles, as rows of the coverage table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Reed–Solomon.
    Rs,
    /// Local reconstruction codes.
    Lrc,
    /// Copies.
    Replica,
    /// No redundancy.
    None,
    /// Small objects of Reed–Solomon codes and LRCs, whose partitions become members of wide stripes.
    Wide,
}

impl Family {
    /// All families, in the order of the table.
    pub const ALL: [Self; 5] = [Self::Rs, Self::Lrc, Self::Replica, Self::None, Self::Wide];

    /// Returns the family's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs => "rs",
            Self::Lrc => "lrc",
            Self::Replica => "replica",
            Self::None => "none",
            Self::Wide => "wide",
        }
    }

    /// Returns the family with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Profiles with numbers of sites and racks; with 0 racks each site has its own rack.
    fn members(self) -> &'static [(&'static str, u32, u32)] {
        match self {
            Self::Rs => &[
                ("rs(4,2)", 6, 0),
                ("rs(4,2)", 8, 0),
                ("rs(4,2)", 6, 3),
                ("rs(4,2)", 8, 4),
                ("rs(2,2)", 6, 0),
                ("rs(2,2)", 4, 2),
                ("rs(2,1)", 4, 0),
                ("rs(6,3)", 9, 3),
            ],
            Self::Lrc => &[
                ("lrc(4,2,1)", 7, 0),
                ("lrc(4,2,1)", 8, 4),
                ("lrc(4,2,2)", 9, 0),
                ("lrc(6,2,2)", 10, 0),
                ("lrc(6,2,2)", 12, 4),
            ],
            Self::Replica => {
                &[("replica(3)", 5, 0), ("replica(3)", 6, 3), ("replica(2)", 4, 0), ("replica(2)", 4, 2)]
            }
            Self::None => &[("none", 3, 0), ("none", 4, 2)],
            Self::Wide => &[
                ("rs(2,2)", 20, 5),
                ("rs(4,2)", 20, 5),
                ("lrc(4,2,1)", 20, 5),
                ("rs(2,2)", 24, 6),
                ("rs(4,2)", 24, 6),
                ("rs(4,2)", 30, 6),
            ],
        }
    }
}

/// Returns the wide profile of clusters with this many sites.
fn wide_profile(sites: u32) -> &'static str {
    match sites {
        20 => "wide(4,2,2)",
        24 => "wide(6,3,2)",
        _ => "wide(10,5,3)",
    }
}

/// One seed in this many has wide stripes.
const WIDE_EVERY: u64 = 5;

/// The shape of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Family of the profile.
    pub family: Family,
    /// Profile of the cluster.
    pub profile: &'static str,
    /// Wide profile that cold partitions are sealed into, if any.
    pub wide: Option<&'static str>,
    /// Number of sites at the start.
    pub sites: u32,
    /// Number of racks, which sites fill in turn; 0 gives each site its own rack.
    pub racks: u32,
    /// Number of gateways.
    pub gateways: u32,
    /// Maximum block length, in bytes.
    pub block_len: u32,
    /// True if gateways also read from memory sites.
    pub has_memory: bool,
}

/// Selects seeds by the shapes of their clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeFilter {
    /// Only clusters with such profiles; `None`: with any.
    pub family: Option<Family>,
    /// Only clusters with memory sites.
    pub has_memory: bool,
}

impl ShapeFilter {
    /// Returns true if seeds with clusters of this shape are selected.
    pub fn admits(&self, shape: &Shape) -> bool {
        self.family.is_none_or(|family| shape.family == family) && (shape.has_memory || !self.has_memory)
    }

    /// Returns true if all seeds are selected.
    pub fn admits_all(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ShapeFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = if self.has_memory { " with memory sites" } else { "" };
        write!(f, "{}{memory}", self.family.map_or("all", Family::name))
    }
}

impl Shape {
    /// Block lengths to draw from.
    const BLOCK_LENS: [u32; 5] = [8 << 10, 16 << 10, 16 << 10, 64 << 10, 256 << 10];

    /// Returns the shape of a seed's cluster. One in five has wide stripes. Of ten others, four use Reed–Solomon
    /// codes, three LRCs, two copies, and one has no redundancy.
    pub fn of(seed: u64) -> Self {
        // Other properties of a run use the seed's low bits; the shape does not depend on them.
        let is_wide = hash(hash(seed)).is_multiple_of(WIDE_EVERY);
        let mut random = SplitMix64::new(hash(seed));
        let mut draw = |end: usize| (random.next() % end as u64) as usize;
        let family = match draw(10) {
            _ if is_wide => Family::Wide,
            0..4 => Family::Rs,
            4..7 => Family::Lrc,
            7..9 => Family::Replica,
            _ => Family::None,
        };
        let members = family.members();
        let (profile, sites, racks) = members[draw(members.len())];
        let gateways = 2 + draw(2) as u32;
        // A packed object is a single block.
        let block_len = if is_wide { 64 << 10 } else { Self::BLOCK_LENS[draw(5)] };
        let wide = is_wide.then(|| wide_profile(sites));
        Self { family, profile, wide, sites, racks, gateways, block_len, has_memory: draw(3) == 0 }
    }

    /// Returns the rack of a machine with a site.
    pub fn rack_of(&self, machine: u32) -> u32 {
        if self.racks == 0 { machine } else { machine % self.racks }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { profile, sites, racks, gateways, block_len, has_memory, .. } = self;
        let sealed = self.wide.map(|wide| format!(" and {wide}"));
        write!(f, "{profile}{} on {sites} sites in ", sealed.unwrap_or_default())?;
        match racks {
            0 => write!(f, "racks of their own")?,
            racks => write!(f, "{racks} racks")?,
        }
        let memory = if *has_memory { ", memory sites" } else { "" };
        write!(f, ", {gateways} gateways{memory}, blocks of {} KiB", block_len >> 10)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use striate_core::Profile;
    use striate_plan::{PlacementRule, WideGeometry};

    use super::*;

    #[test]
    fn seeds_draw_every_member_of_every_family_and_short_campaigns_every_family() {
        let drawn: BTreeSet<_> =
            (1..=400).map(Shape::of).map(|shape| (shape.profile, shape.sites, shape.racks)).collect();
        let all = Family::ALL.iter().flat_map(|family| family.members());
        assert_eq!(drawn, all.copied().collect());
        let first: BTreeSet<_> = (1..=8).map(|seed| Shape::of(seed).family).collect();
        assert_eq!(first.len(), Family::ALL.len(), "{first:?}");
    }

    #[test]
    fn a_filter_admits_a_family_or_memory_sites_or_both() {
        let count = |family, has_memory| {
            let filter = ShapeFilter { family, has_memory };
            (1..=3_000).map(Shape::of).filter(|shape| filter.admits(shape)).count()
        };
        assert_eq!(count(None, false), 3_000);
        let (wide, memory) = (count(Some(Family::Wide), false), count(None, true));
        assert!((500..700).contains(&wide) && (900..1_100).contains(&memory), "{wide}, {memory}");
        assert!((150..250).contains(&count(Some(Family::Wide), true)));
    }

    #[test]
    fn every_shape_has_room_for_a_stripe_within_the_limit_of_its_racks() {
        for (profile, sites, racks) in Family::ALL.iter().flat_map(|family| family.members()) {
            let profile = profile.parse::<Profile>().unwrap();
            let code = profile.code.build().unwrap();
            let racks = if *racks == 0 { *sites } else { *racks };
            let limit = PlacementRule::new(&profile, &code, racks as usize).rack_limit();
            assert!(limit <= code.tolerance().max(1), "{profile} on {racks} racks");
            let in_rack = |rack: u32| limit.min((1..=*sites).filter(|site| site % racks == rack).count());
            assert!((0..racks).map(in_rack).sum::<usize>() >= code.n(), "{profile} on {racks} racks");
        }
    }
    #[test]
    fn a_fifth_of_the_seeds_has_wide_stripes_with_a_spare_rack_and_spare_sites_in_each() {
        let wide: Vec<Shape> = (1..=1_000).map(Shape::of).filter(|shape| shape.wide.is_some()).collect();
        assert!((150..250).contains(&wide.len()), "{}", wide.len());
        for shape in wide {
            let (narrow, wide): (Profile, Profile) =
                (shape.profile.parse().unwrap(), shape.wide.unwrap().parse().unwrap());
            let geometry = WideGeometry::new(wide.code).unwrap();
            let rule = PlacementRule::new(&narrow, &narrow.code.build().unwrap(), shape.racks as usize);
            assert!(shape.racks as usize > geometry.z() && rule.tolerates_rack_loss(), "{shape}");
            // Sites with other chunks of the wide stripe and of the own stripe, one for the lost chunk, and one that
            // is away.
            let taken = geometry.c() - 1 + rule.rack_limit() - 1;
            assert!((shape.sites / shape.racks) as usize >= taken + 2, "{shape}");
        }
    }
}
