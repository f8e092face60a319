//! Combine trees: which site adds up which terms on the way from the sources of a chunk to the site that makes it
//! (ECWide §4.1).
//!
//! A chunk is a sum Σ coefficient · source over GF(2⁸). Sums may be grouped in any way, so every tree yields the same
//! bytes. Trees differ in what crosses racks and in what each site receives.
//!
//! | shape | drawn | crosses racks | most streams into one site |
//! |--|--|--|--|
//! | star | every source sends to the destination | each source elsewhere | all sources |
//! | racks | a *repairer* in each rack adds up its rack's sources and sends the sum | one sum a rack | racks, or sources in a rack |
//! | chain | repairers pass their sums on from rack to rack | one sum a rack | one, and a rack's own |
//!
//! Sources in the destination's own rack send to the destination in every shape. A chain relieves the destination's
//! downlink, and takes longer to start. [`CombineTree::new`] builds a star or racks. [`CombineTree::quickest`] builds a
//! chain where that pays, for wide stripes: with combined locality, all lost chunks of a rack are made in that rack,
//! and its downlink would limit their repair if every rack sent it a sum (docs/src/ecwide.md).
//!
//! Cost: O(m log m) for m sources.

use std::collections::{BTreeMap, BTreeSet};

use striate_core::{RackId, SiteId};

/// Maximum number of hops in a chain: with its leaves and its root it stays below 32, the depth that sites accept.
const LONGEST_CHAIN: usize = 24;

/// A term of a sum: a chunk and its coefficient.
#[derive(Clone, Debug, PartialEq)]
pub struct CombineTerm {
    /// Index of the chunk in the stripe.
    pub chunk: usize,
    /// Factor of the chunk.
    pub coefficient: u8,
    /// The chunk's site.
    pub site: SiteId,
    /// The site's rack.
    pub rack: RackId,
    /// Cost of asking that site, in any unit: the cheapest site of each rack is its repairer.
    pub cost: f64,
}

/// How partial sums are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeShape {
    /// Every source sends to the destination.
    Star,
    /// Each rack sends one sum to the destination.
    Racks,
    /// Each rack sends one sum to the next rack.
    Chain,
}

/// What a site adds up: its own chunks and the sums it receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CombineTree {
    /// The site.
    pub site: SiteId,
    /// (coefficient, chunk index) of the site's own chunks.
    pub local: Vec<(u8, usize)>,
    /// The sums that the site receives.
    pub upstream: Vec<CombineTree>,
}

impl CombineTree {
    /// Builds the default tree: racks if several sources share a rack other than the destination's; a star if no rack
    /// would have anything to add up.
    pub fn new(terms: &[CombineTerm], site: SiteId, rack: &RackId) -> Self {
        let mut in_rack: BTreeMap<&RackId, usize> = BTreeMap::new();
        for term in terms.iter().filter(|term| term.rack != *rack && term.site != site) {
            *in_rack.entry(&term.rack).or_default() += 1;
        }
        let shape = if in_rack.values().any(|&count| count > 1) { TreeShape::Racks } else { TreeShape::Star };
        Self::draw(shape, terms, site, rack)
    }

    /// Builds the tree that makes a sum of `len` bytes soonest if the links between racks are the bottleneck and
    /// otherwise idle: a chain, unless its start, a slice of `slice_len` bytes for each hop, takes longer than the
    /// destination's downlink needs for a sum from each rack (ECWide §4.2, where the nodes of one rack form a chain).
    pub fn quickest(terms: &[CombineTerm], site: SiteId, rack: &RackId, len: u32, slice_len: u32) -> Self {
        let remote_terms = terms.iter().filter(|term| term.rack != *rack && term.site != site);
        let racks = remote_terms.map(|term| &term.rack).collect::<BTreeSet<_>>().len() as u64;
        let chains = racks.div_ceil(LONGEST_CHAIN as u64).max(1);
        let by_chain = chains * u64::from(len) + racks.div_ceil(chains) * u64::from(slice_len.min(len));
        match by_chain < racks * u64::from(len) {
            true => Self::draw(TreeShape::Chain, terms, site, rack),
            false => Self::new(terms, site, rack),
        }
    }

    /// Builds a tree of this shape that makes the sum of `terms` at `site`.
    pub fn draw(shape: TreeShape, terms: &[CombineTerm], site: SiteId, rack: &RackId) -> Self {
        let mut root = Self { site, local: Vec::new(), upstream: Vec::new() };
        let mut near = Vec::new();
        let mut racks: BTreeMap<&RackId, Vec<Leaf>> = BTreeMap::new();
        for leaf in leaves(terms) {
            match leaf.tree.site == site {
                true => root.local.extend(leaf.tree.local),
                false if shape == TreeShape::Star || leaf.rack == rack => near.push(leaf.tree),
                false => racks.entry(leaf.rack).or_default().push(leaf),
            }
        }
        root.upstream.append(&mut near);
        let mut sums: Vec<(f64, Self)> = racks.into_values().map(sum_of_rack).collect();
        if shape == TreeShape::Chain {
            // The cheapest repairers are next to the destination, because those add up most often.
            sums.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.site.cmp(&b.1.site)));
            let hops = sums.len().div_ceil(sums.len().div_ceil(LONGEST_CHAIN).max(1)).max(1);
            root.upstream.extend(sums.chunks(hops).filter_map(chain));
        } else {
            root.upstream.extend(sums.into_iter().map(|(_, sum)| sum));
        }
        root
    }

    /// Returns the load of each site that the sum passes, in chunks: those it reads plus the sums it receives. The
    /// destination is last.
    pub fn loads(&self) -> Vec<(SiteId, u32)> {
        let mut loads: Vec<(SiteId, u32)> = self.upstream.iter().flat_map(Self::loads).collect();
        loads.push((self.site, (self.local.len() + self.upstream.len()) as u32));
        loads
    }

    /// Returns the number of nodes on the longest path to the root, both ends included.
    pub fn depth(&self) -> usize {
        1 + self.upstream.iter().map(Self::depth).max().unwrap_or_default()
    }

    /// Returns the chunks of the sum, each with its coefficient.
    pub fn terms(&self) -> Vec<(u8, usize)> {
        let upstream = self.upstream.iter().flat_map(Self::terms);
        self.local.iter().copied().chain(upstream).collect()
    }

    /// Returns the sums sent between sites: (sender, receiver).
    pub fn streams(&self) -> Vec<(SiteId, SiteId)> {
        let direct = self.upstream.iter().map(|child| (child.site, self.site));
        direct.chain(self.upstream.iter().flat_map(Self::streams)).collect()
    }
}

/// The chunks of one site.
struct Leaf<'a> {
    rack: &'a RackId,
    cost: f64,
    tree: CombineTree,
}

/// Returns the sites with chunks of the sum, in the order of their first chunk.
fn leaves(terms: &[CombineTerm]) -> Vec<Leaf<'_>> {
    let mut leaves: Vec<Leaf<'_>> = Vec::new();
    for term in terms {
        let local_term = (term.coefficient, term.chunk);
        match leaves.iter_mut().find(|leaf| leaf.tree.site == term.site) {
            Some(leaf) => leaf.tree.local.push(local_term),
            None => {
                let tree = CombineTree { site: term.site, local: vec![local_term], upstream: Vec::new() };
                leaves.push(Leaf { rack: &term.rack, cost: term.cost, tree });
            }
        }
    }
    leaves
}

/// Returns the sum of a rack, made by its cheapest site from what its neighbours send, and the cost of asking that
/// site.
fn sum_of_rack(mut leaves: Vec<Leaf<'_>>) -> (f64, CombineTree) {
    leaves.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.tree.site.cmp(&b.tree.site)));
    let mut leaves = leaves.into_iter();
    let repairer = leaves.next().expect("a rack is there for its sources");
    let mut tree = repairer.tree;
    tree.upstream = leaves.map(|leaf| leaf.tree).collect();
    (repairer.cost, tree)
}

/// Chains the sums: the first receives that of the second, and so on.
fn chain(sums: &[(f64, CombineTree)]) -> Option<CombineTree> {
    let mut sums = sums.iter().rev().map(|(_, sum)| sum.clone());
    let last = sums.next()?;
    Some(sums.fold(last, |behind, mut sum| {
        sum.upstream.push(behind);
        sum
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;
    use striate_codec::{Code, gf256};

    use super::*;

    const SHAPES: [TreeShape; 3] = [TreeShape::Star, TreeShape::Racks, TreeShape::Chain];

    fn rack(number: u32) -> RackId {
        RackId(format!("rack{number}"))
    }

    /// Chunk i is on site i + 1, in rack `racks[i]`.
    fn terms(racks: &[u32]) -> Vec<CombineTerm> {
        let term = |(chunk, &of): (usize, &u32)| CombineTerm {
            chunk,
            coefficient: (chunk as u8).wrapping_mul(7) | 1,
            site: SiteId(chunk as u32 + 1),
            rack: rack(of),
            cost: 10.0 - chunk as f64,
        };
        racks.iter().enumerate().map(term).collect()
    }

    /// Returns what a site computes, over one byte of each chunk.
    fn evaluate(tree: &CombineTree, bytes: &[u8]) -> u8 {
        let local = tree.local.iter().fold(0, |sum, &(by, chunk)| sum ^ gf256::mul(by, bytes[chunk]));
        tree.upstream.iter().fold(local, |sum, from| sum ^ evaluate(from, bytes))
    }

    /// Returns the sums sent between racks: (from, to).
    fn crossings(tree: &CombineTree, terms: &[CombineTerm], home: &RackId) -> Vec<(RackId, RackId)> {
        let rack_of: HashMap<SiteId, &RackId> = terms.iter().map(|term| (term.site, &term.rack)).collect();
        let rack_of = |site| rack_of.get(&site).copied().unwrap_or(home).clone();
        let streams = tree.streams().into_iter().map(|(from, to)| (rack_of(from), rack_of(to)));
        streams.filter(|(from, to)| from != to).collect()
    }

    proptest! {
        /// Any tree evaluates to the equation, whatever its shape, and no rack sends more than one sum except in a
        /// star.
        #[test]
        fn every_tree_evaluates_to_the_equation(
            racks in prop::collection::vec(0..12u32, 1..80), bytes in prop::array::uniform32(any::<u8>()),
            home in 0..14u32, own: bool, shape in 0..3usize,
        ) {
            let terms = terms(&racks);
            let (site, home) = if own { (SiteId(1), rack(racks[0])) } else { (SiteId(200), rack(home)) };
            let byte = |chunk: usize| bytes[chunk % 32].wrapping_add(chunk as u8);
            let all: Vec<u8> = (0..terms.len()).map(byte).collect();
            let equation = terms.iter().fold(0, |sum, term| sum ^ gf256::mul(term.coefficient, all[term.chunk]));
            let sources: HashSet<&RackId> = terms.iter().map(|term| &term.rack).filter(|of| **of != home).collect();
            for tree in [CombineTree::draw(SHAPES[shape], &terms, site, &home), CombineTree::new(&terms, site, &home)] {
                prop_assert_eq!(tree.site, site);
                prop_assert_eq!(evaluate(&tree, &all), equation);
                let mut named = tree.terms();
                named.sort_unstable_by_key(|&(_, chunk)| chunk);
                let wanted: Vec<_> = terms.iter().map(|term| (term.coefficient, term.chunk)).collect();
                prop_assert_eq!(named, wanted);
                let (read, sent) = (terms.len(), tree.streams().len());
                prop_assert_eq!(tree.loads().iter().map(|(_, chunks)| *chunks as usize).sum::<usize>(), read + sent);
            }
            if SHAPES[shape] != TreeShape::Star {
                let tree = CombineTree::draw(SHAPES[shape], &terms, site, &home);
                let crossed = crossings(&tree, &terms, &home);
                prop_assert_eq!(crossed.len(), sources.len());
                prop_assert_eq!(crossed.iter().map(|(from, _)| from).collect::<HashSet<_>>().len(), sources.len());
            }
        }

        /// A repair of a real code by any tree yields the lost bytes.
        #[test]
        fn every_tree_repairs_a_chunk(
            data in prop::array::uniform6(any::<u8>()), lost in 0..10usize, racks in 1..8u32, shape in 0..3usize,
        ) {
            let code: Code = "lrc(6,2,2)".parse().unwrap();
            let stripe: Vec<u8> = (0..code.n())
                .map(|chunk| code.row(chunk).iter().zip(data).fold(0, |sum, (&by, of)| sum ^ gf256::mul(by, of)))
                .collect();
            let costs: Vec<_> = (0..code.n()).map(|chunk| (chunk != lost).then_some(1.0)).collect();
            let equation = code.cheapest_repair(lost, &costs).unwrap();
            let terms: Vec<_> = equation.sources.iter().map(|&(chunk, coefficient)| CombineTerm {
                chunk, coefficient, site: SiteId(chunk as u32 + 1), rack: rack(chunk as u32 % racks), cost: 1.0,
            }).collect();
            let tree = CombineTree::draw(SHAPES[shape], &terms, SiteId(99), &rack(lost as u32 % racks));
            prop_assert_eq!(evaluate(&tree, &stripe), stripe[lost]);
        }
    }

    #[test]
    fn a_rack_tree_is_drawn_where_sources_share_racks_and_a_star_elsewhere() {
        let drawn = |racks: &[u32]| {
            let tree = CombineTree::new(&terms(racks), SiteId(99), &rack(0));
            (tree.depth(), tree.upstream.len())
        };
        assert_eq!(drawn(&[1, 2, 3, 4]), (2, 4), "every site is its own rack");
        assert_eq!(drawn(&[0, 0, 0]), (2, 3), "one rack");
        assert_eq!(drawn(&[0, 0, 1, 2]), (2, 4), "only neighbours of the destination share a rack");
        assert_eq!(drawn(&[0, 1, 1, 2, 2, 2]), (3, 3), "one neighbour and a sum from each of two racks");
    }

    #[test]
    fn the_cheapest_site_of_a_rack_adds_up_and_each_site_bears_what_it_reads_and_is_sent() {
        let tree = CombineTree::new(&terms(&[1, 1, 1, 2]), SiteId(99), &rack(0));
        let repairers: Vec<SiteId> = tree.upstream.iter().map(|from| from.site).collect();
        assert_eq!(repairers, [SiteId(3), SiteId(4)], "the later ones cost less");
        let loads: HashMap<_, _> = tree.loads().into_iter().collect();
        let expected = [(SiteId(1), 1), (SiteId(2), 1), (SiteId(3), 3), (SiteId(4), 1), (SiteId(99), 2)];
        assert_eq!(loads, HashMap::from(expected));
    }

    #[test]
    fn a_move_is_a_tree_of_one_source() {
        let tree = CombineTree::new(&terms(&[1]), SiteId(99), &rack(1));
        assert_eq!((tree.depth(), tree.terms(), tree.loads().len()), (2, vec![(1, 0)], 2));
    }

    #[test]
    fn the_quickest_tree_is_a_chain_where_racks_are_many_and_the_chunk_is_long() {
        let of_racks = |count: u32| terms(&(0..4 * count).map(|chunk| chunk / 4).collect::<Vec<_>>());
        let into_root = |racks: u32, len: u32| {
            CombineTree::quickest(&of_racks(racks), SiteId(900), &rack(99), len, 1 << 18).upstream.len()
        };
        assert_eq!(into_root(33, 64 << 20), 2, "two chains: one would be too long");
        assert_eq!(into_root(6, 64 << 20), 1);
        assert_eq!(into_root(1, 64 << 20), 1);
        assert_eq!(into_root(6, 1 << 18), 6, "a chunk of one slice goes through no faster in a chain");
    }

    #[test]
    fn long_chains_are_split_so_that_sites_accept_them() {
        let racks: Vec<u32> = (1..=33).chain(1..=33).collect();
        let tree = CombineTree::draw(TreeShape::Chain, &terms(&racks), SiteId(99), &rack(0));
        assert_eq!((tree.upstream.len(), tree.depth()), (2, 1 + 17 + 1));
        let short = CombineTree::draw(TreeShape::Chain, &terms(&[1, 2, 3]), SiteId(99), &rack(0));
        assert_eq!((short.upstream.len(), short.depth()), (1, 4));
    }
}
