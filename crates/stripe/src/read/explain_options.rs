//! The options of reading a packed object: the normal read, the local group of its chunk, and chunks of the whole stripe
//! (Hu et al., SoCC'17, §2), each with what it costs now.

use serde::{Deserialize, Serialize};
use striate_codec::{ChunkSet, Code};
use striate_core::SiteId;
use striate_plan::read::options::local_group;
use striate_plan::{NodeState, OptionMetric, QueryPiece, WantedChunk};

use crate::sites::SitesSnapshot;

/// How a packed object may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    /// From the chunk that has it.
    Normal,
    /// From a whole copy of that chunk.
    Copy,
    /// From the rest of the chunk's local group.
    Local,
    /// From chunks of the whole stripe.
    Global,
}

/// A way of reading a packed object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptionExplained {
    /// Which one.
    pub kind: OptionKind,
    /// The chunks that are asked for, each for as many bytes as the object has; from n on copies.
    pub chunks: Vec<usize>,
    /// Their sites.
    pub sites: Vec<u32>,
    /// Bytes that all of them send.
    pub bytes: u64,
    /// Eq. 1, where asking an idle site costs 1; none when a site cannot be asked.
    pub cost: Option<f64>,
    /// When the last of them would have come, in milliseconds: none when a site cannot be asked, and as long as too few reads
    /// have told what asking takes.
    pub predicted_ms: Option<f64>,
    /// It is what the plan reads.
    pub is_chosen: bool,
}

/// The options of a piece that wants one chunk, of which `chosen` are read.
pub(super) fn options_of(
    piece: &QueryPiece<'_>,
    chosen: &ChunkSet,
    sites: &SitesSnapshot,
) -> Vec<OptionExplained> {
    let mut wanted = piece.wanted.iter();
    let (Some(index), None) = (wanted.next(), wanted.next()) else { return Vec::new() };
    let options = Options { piece, index, sites };
    let local = local_group(piece.code, index);
    let n = piece.sites.len();
    let copies = (n..n + piece.copies.len()).map(|copy| (OptionKind::Copy, std::iter::once(copy).collect()));
    let normal = (OptionKind::Normal, std::iter::once(index).collect());
    let degraded = [
        local.map(|group| (OptionKind::Local, group)),
        options.least_global(local.as_ref()).map(|set| (OptionKind::Global, set)),
    ];
    let kinds = std::iter::once(normal).chain(copies).chain(degraded.into_iter().flatten());
    kinds.map(|(kind, set)| options.explain(kind, &set, chosen)).collect()
}

struct Options<'a> {
    piece: &'a QueryPiece<'a>,
    index: usize,
    sites: &'a SitesSnapshot,
}

impl Options<'_> {
    /// The degraded read of least marginal load that is not the local group.
    fn least_global(&self, local: Option<&ChunkSet>) -> Option<ChunkSet> {
        let state = |site: &SiteId| Some(NodeState::of_queue(self.sites.queue(*site)?.bytes));
        let mut nodes: Vec<Option<NodeState>> = self.piece.sites.iter().map(state).collect();
        let Some(local) = local else { return self.least(&nodes) };
        // Whatever is no local read does without one of the group.
        let mut without = |member: usize| {
            let node = nodes[member].take();
            let least = self.least(&nodes);
            nodes[member] = node;
            least.map(|set| (self.marginal_load(&set), set))
        };
        let sets = local.iter().filter_map(&mut without);
        sets.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, set)| set)
    }

    fn least(&self, nodes: &[Option<NodeState>]) -> Option<ChunkSet> {
        self.wanted(nodes).least_degraded(OptionMetric::MarginalLoad).ok()
    }

    fn wanted<'a>(&'a self, nodes: &'a [Option<NodeState>]) -> WantedChunk<'a> {
        let code: &Code = self.piece.code;
        WantedChunk { code, index: self.index, bytes: self.piece.len.into(), nodes }
    }

    fn marginal_load(&self, set: &ChunkSet) -> f64 {
        let state = |index: usize| self.sites.queue(self.piece.sites[index]).map(|queue| queue.bytes);
        let of_one = |queue: f64| NodeState::of_queue(queue).marginal_load(self.piece.len.into());
        set.iter().filter_map(state).map(of_one).sum()
    }

    fn explain(&self, kind: OptionKind, set: &ChunkSet, chosen: &ChunkSet) -> OptionExplained {
        let len = u64::from(self.piece.len);
        let sites = || set.iter().map(|index| self.piece.site_of(index));
        let decoded = match kind {
            OptionKind::Normal | OptionKind::Copy => 0,
            OptionKind::Local | OptionKind::Global => len * set.len() as u64,
        };
        let cost = |site: SiteId| {
            let cost = self.sites.cost(site)?;
            Some(cost.asking + cost.transfer(self.piece.len))
        };
        let costs: Option<Vec<f64>> = sites().map(cost).collect();
        // What is computed is computed when all have come.
        let decoding =
            sites().next().and_then(|site| self.sites.cost(site)).map_or(0.0, |cost| cost.decode_per_byte)
                * decoded as f64;
        let last = costs.as_ref().map(|costs| costs.iter().copied().fold(0.0, f64::max) + decoding);
        let predicted_ms = last.and_then(|cost| Some(cost * self.sites.unit_s()? * 1e3));
        OptionExplained {
            kind,
            chunks: set.iter().collect(),
            sites: sites().map(|site| site.0).collect(),
            bytes: len * set.len() as u64,
            cost: costs.map(|costs| costs.iter().sum::<f64>() + decoding),
            predicted_ms,
            is_chosen: set == chosen,
        }
    }
}
