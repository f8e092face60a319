//! Repairs of lost chunks: the store's equations and trees, as tasks over the cluster's links.

use std::collections::HashMap;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom;
use striate_codec::CodecError;
use striate_core::{RackId, SiteId};
use striate_plan::{CombineTerm, CombineTree, LeastRecentlySelected, TreeShape, repair_by_racks};

use super::cluster::{Cluster, Setting};
use super::layout::Layout;
use super::simulation::Job;

/// Order in which sites are selected.
#[derive(Clone, Debug)]
enum Order {
    LeastRecently(LeastRecentlySelected<SiteId>),
    AtRandom(SmallRng),
}

impl Order {
    /// Selects one of `sites`; LRS takes the first of those that were never selected.
    fn among(&mut self, sites: &[SiteId]) -> Option<SiteId> {
        match self {
            Self::LeastRecently(order) => order.select_among(sites.iter().copied()),
            Self::AtRandom(rng) => sites.iter().copied().choose(rng),
        }
    }
}

/// Selection of the sites that make chunks (requestors), and of those that add up a rack's (repairers).
#[derive(Clone, Debug)]
pub struct Selection {
    requestors: Order,
    /// `None`: one order for both.
    repairers: Option<Order>,
}

impl Selection {
    /// Selects the least recently selected sites (§4.1), with separate orders for requestors and repairers.
    pub fn least_recently() -> Self {
        let order = || Order::LeastRecently(LeastRecentlySelected::default());
        Self { requestors: order(), repairers: Some(order()) }
    }

    /// Selects the least recently selected sites, with one order for both, as the paper draws it.
    pub fn least_recently_in_one_list() -> Self {
        Self { repairers: None, ..Self::least_recently() }
    }

    /// Selects sites at random.
    pub fn at_random(seed: u64) -> Self {
        Self { requestors: Order::AtRandom(SmallRng::seed_from_u64(seed)), repairers: None }
    }

    fn requestor(&mut self, sites: &[SiteId]) -> Option<SiteId> {
        self.requestors.among(sites)
    }

    fn repairer(&mut self, sites: &[SiteId]) -> Option<SiteId> {
        self.repairers.as_mut().unwrap_or(&mut self.requestors).among(sites)
    }
}

/// (chunk, coefficient) of each source, by the lost chunk and the stripe's rack in which it is made, if it is one of
/// the stripe's.
type Equations = HashMap<(usize, Option<usize>), Vec<(usize, u8)>>;

/// Creates the jobs of repairs.
#[derive(Debug)]
pub struct Repairs<'a> {
    cluster: &'a Cluster,
    layout: &'a Layout,
    setting: &'a Setting,
    shape: TreeShape,
    selection: Selection,
    equations: Equations,
}

impl<'a> Repairs<'a> {
    /// Creates repairs of stripes of this layout, by trees of this shape.
    pub fn new(
        cluster: &'a Cluster,
        layout: &'a Layout,
        setting: &'a Setting,
        shape: TreeShape,
        selection: Selection,
    ) -> Self {
        Self { cluster, layout, setting, shape, selection, equations: HashMap::new() }
    }

    /// Returns the equation for chunk `lost` of a stripe on `sites`, made at `at`. It depends on racks, not on the
    /// sites in them.
    ///
    /// # Errors
    /// If the other chunks do not determine it.
    pub fn equation(
        &mut self,
        sites: &[SiteId],
        lost: usize,
        at: SiteId,
    ) -> Result<&[(usize, u8)], CodecError> {
        let rack_of = |chunk: usize| self.cluster.rack_of(sites[chunk]);
        let rack_neighbour = (0..sites.len()).find(|&chunk| rack_of(chunk) == self.cluster.rack_of(at));
        let key = (lost, rack_neighbour.map(|chunk| self.layout.part_of[chunk]));
        if !self.equations.contains_key(&key) {
            let racks: Vec<&RackId> = sites.iter().map(|&site| self.cluster.rack_id(site)).collect();
            let costs = vec![Some(1.0); sites.len()];
            let repair = repair_by_racks(&self.layout.code, lost, &costs, &racks, self.cluster.rack_id(at))?;
            self.equations.insert(key, repair.equation.sources);
        }
        Ok(&self.equations[&key])
    }

    /// Returns the sites that may have chunk `lost` by the store's rule: none that has a chunk of the stripe.
    pub fn admitted(&self, sites: &[SiteId], lost: usize) -> Vec<SiteId> {
        let at = || sites.iter().enumerate().filter(|&(chunk, _)| chunk != lost);
        let racks = at().map(|(chunk, &site)| (chunk, self.cluster.rack_id(site)));
        let is_admitted =
            |rack: &usize| self.layout.rule.admits(lost, &self.cluster.racks[*rack], racks.clone());
        let admitted = (0..self.cluster.racks.len()).filter(is_admitted);
        admitted.flat_map(|rack| self.cluster.sites_of(rack)).filter(|site| !sites.contains(site)).collect()
    }

    /// Returns the sites in the racks that the repair reads from, except the lost chunk's own: where the paper's
    /// clusters of n nodes can make it. `first` is the index of the first site in a rack that does such work.
    ///
    /// # Errors
    /// As [`Self::equation`].
    pub fn near(&mut self, sites: &[SiteId], lost: usize, first: usize) -> Result<Vec<SiteId>, CodecError> {
        let cluster = self.cluster;
        let sources = self.equation(sites, lost, sites[lost])?;
        let mut racks: Vec<usize> = sources.iter().map(|&(chunk, _)| cluster.rack_of(sites[chunk])).collect();
        racks.sort_unstable();
        racks.dedup();
        let in_rack =
            |rack: usize| (first..cluster.sites_per_rack).map(move |place| cluster.site(rack, place));
        Ok(racks.into_iter().flat_map(in_rack).filter(|&site| site != sites[lost]).collect())
    }

    /// Returns the job that repairs chunk `lost` at one of `requestors`.
    ///
    /// # Errors
    /// As [`Self::equation`].
    pub fn job(&mut self, sites: &[SiteId], lost: usize, requestors: &[SiteId]) -> Result<Job, CodecError> {
        let at = self.selection.requestor(requestors).unwrap_or(sites[lost]);
        let tree = self.tree(sites, lost, at)?;
        let mut job = Job::default();
        match self.setting.slices {
            0 | 1 => {
                self.add_whole(&mut job, &tree, sites);
            }
            slices => {
                let mut uses = Vec::new();
                self.add_uses(&mut uses, &tree, sites);
                // The last slice starts when all earlier ones have been sent, and passes every hop separately.
                let filling = 1.0 + (tree.depth() - 1) as f64 / slices as f64;
                let task = job.add(merge(uses), self.setting.chunk, &[]);
                job.tasks[task].filling = filling;
            }
        }
        Ok(job)
    }

    /// Returns the tree that adds up the sources.
    fn tree(&mut self, sites: &[SiteId], lost: usize, at: SiteId) -> Result<CombineTree, CodecError> {
        let sources = self.equation(sites, lost, at)?.to_vec();
        let mut in_rack: HashMap<usize, Vec<SiteId>> = HashMap::new();
        for &(chunk, _) in &sources {
            in_rack.entry(self.cluster.rack_of(sites[chunk])).or_default().push(sites[chunk]);
        }
        let mut racks: Vec<usize> =
            in_rack.keys().copied().filter(|&rack| rack != self.cluster.rack_of(at)).collect();
        racks.sort_unstable();
        let chosen: Vec<Option<SiteId>> =
            racks.iter().map(|rack| self.selection.repairer(&in_rack[rack])).collect();
        let term = |&(chunk, coefficient): &(usize, u8)| {
            let site = sites[chunk];
            let cost = match chosen.iter().position(|&one| one == Some(site)) {
                Some(turn) => turn as f64,
                None => sites.len() as f64,
            };
            CombineTerm { chunk, coefficient, site, rack: self.cluster.rack_id(site).clone(), cost }
        };
        let terms: Vec<CombineTerm> = sources.iter().map(term).collect();
        let rack = self.cluster.rack_id(at);
        Ok(match self.shape {
            TreeShape::Chain => CombineTree::draw(self.shape, &terms, at, rack),
            TreeShape::Star | TreeShape::Racks => CombineTree::new(&terms, at, rack),
        })
    }

    /// Adds tasks for whole chunks: a site that adds up waits for all of its inputs. Returns the last tasks.
    fn add_whole(&self, job: &mut Job, tree: &CombineTree, sites: &[SiteId]) -> Vec<usize> {
        let chunk = self.setting.chunk;
        let mut tasks = Vec::new();
        for &(_, source) in &tree.local {
            tasks.push(job.add(vec![(self.cluster.disk(sites[source]), 1.0)], chunk, &[]));
        }
        for from in &tree.upstream {
            let before = self.add_whole(job, from, sites);
            tasks.push(job.add(self.cluster.send(from.site, tree.site), chunk, &before));
        }
        tasks
    }

    /// Collects all links that a tree uses at once, and its root's disk if that is written to.
    fn add_uses(&self, uses: &mut Vec<(usize, f64)>, tree: &CombineTree, sites: &[SiteId]) {
        if self.setting.writes {
            uses.push((self.cluster.disk(tree.site), 1.0));
        }
        let mut trees = vec![tree];
        while let Some(tree) = trees.pop() {
            uses.extend(tree.local.iter().map(|&(_, source)| (self.cluster.disk(sites[source]), 1.0)));
            for from in &tree.upstream {
                uses.extend(self.cluster.send(from.site, tree.site));
                trees.push(from);
            }
        }
    }
}

/// Merges the uses of each link, summing up the weights.
fn merge(mut uses: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    uses.sort_by_key(|&(link, _)| link);
    uses.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
    uses
}
