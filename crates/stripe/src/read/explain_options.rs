//! Options for reading a packed object: the normal read, the local group of its chunk, and chunks of the whole stripe
//! (Hu et al., SoCC'17, §2), each with its present cost.

use serde::{Deserialize, Serialize};
use striate_codec::{ChunkSet, Code};
use striate_core::SiteId;
use striate_plan::read::options::local_group;
use striate_plan::{NodeState, OptionMetric, QueryPiece, WantedChunk};

use crate::sites::SitesSnapshot;

/// Kind of an option for reading a packed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    /// Reads the chunk that holds the object.
    Normal,
    /// Reads a whole copy of that chunk.
    Copy,
    /// Reads the rest of the chunk's local group.
    Local,
    /// Reads chunks of the whole stripe.
    Global,
}

/// One option for reading a packed object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptionExplanation {
    /// Kind of the option.
    pub kind: OptionKind,
    /// Chunks to ask for, each for as many bytes as the object has. Numbers from n on are copies.
    pub chunks: Vec<usize>,
    /// Sites of the chunks.
    pub sites: Vec<u32>,
    /// Bytes that the sites send in total.
    pub bytes: u64,
    /// Cost by Eq. 1, where asking an idle site costs 1; `None` when a site cannot be asked.
    pub cost: Option<f64>,
    /// Predicted time until the last chunk arrives, in milliseconds. `None` when a site cannot be asked, or while too
    /// few reads have been measured.
    pub predicted_ms: Option<f64>,
    /// True if the plan uses this option.
    pub is_chosen: bool,
}

/// Returns the options of a piece that wants one chunk; the plan reads the chunks `chosen`.
pub(super) fn options_of(
    piece: &QueryPiece<'_>,
    chosen: &ChunkSet,
    sites: &SitesSnapshot,
) -> Vec<OptionExplanation> {
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
    /// Returns the degraded read of least marginal load that is not the local group.
    fn least_global(&self, local: Option<&ChunkSet>) -> Option<ChunkSet> {
        let state = |site: &SiteId| Some(NodeState::of_queue(self.sites.queue(*site)?.bytes));
        let mut nodes: Vec<Option<NodeState>> = self.piece.sites.iter().map(state).collect();
        let Some(local) = local else { return self.least(&nodes) };
        // Every read but the local one omits a member of the group.
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
        self.wanted_chunk(nodes).least_degraded(OptionMetric::MarginalLoad).ok()
    }

    fn wanted_chunk<'a>(&'a self, nodes: &'a [Option<NodeState>]) -> WantedChunk<'a> {
        let code: &Code = self.piece.code;
        WantedChunk { code, index: self.index, bytes: self.piece.len.into(), nodes }
    }

    fn marginal_load(&self, set: &ChunkSet) -> f64 {
        let state = |index: usize| self.sites.queue(self.piece.sites[index]).map(|queue| queue.bytes);
        let of_one = |queue: f64| NodeState::of_queue(queue).marginal_load(self.piece.len.into());
        set.iter().filter_map(state).map(of_one).sum()
    }

    fn explain(&self, kind: OptionKind, set: &ChunkSet, chosen: &ChunkSet) -> OptionExplanation {
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
        // Decoding starts when all chunks have arrived.
        let decoding =
            sites().next().and_then(|site| self.sites.cost(site)).map_or(0.0, |cost| cost.decode_per_byte)
                * decoded as f64;
        let last = costs.as_ref().map(|costs| costs.iter().copied().fold(0.0, f64::max) + decoding);
        let predicted_ms = last.and_then(|cost| Some(cost * self.sites.unit_s()? * 1e3));
        OptionExplanation {
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
