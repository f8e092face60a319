//! Reading pieces of stripes.
//!
//! - [`query`]: reads any number of pieces by a policy, with one request to each site.
//! - [`span`]: blocks and parts of blocks, and the pieces that they consist of.
//! - [`located`]: a query's spans with their stripes and pieces.
//! - [`cached`]: blocks that are also in the memory tier.
//! - [`gathering`]: the stripes of a query while their chunks arrive.
//! - [`planning`]: the plan of a query.
//! - [`requests`]: the requests of a query in flight, and which of them are late.
//! - [`arrival`], [`hedge_delay`], [`last_splits`]: when a chunk counts as late, by prediction, by the silence of its
//!   site, and as one of the last of a cached block.
//! - [`explain`]: the plan of a query and its reasons; [`explain_options`]: the alternatives for reading a packed
//!   object.
//! - [`probes`]: what policies learn by probing sites.
//! - [`damage`]: missing and damaged chunks that reads find become debt.
//! - [`measure`], [`sampling`]: the durations of reads, and which blocks are read together.

mod arrival;
mod cached;
mod damage;
mod detour;
mod explain;
mod explain_options;
mod gathering;
mod hedge_delay;
mod last_splits;
mod located;
mod measure;
mod planning;
mod probes;
mod query;
mod reads;
mod requests;
mod sampling;
mod span;

pub(crate) use cached::Source;
pub use cached::{BlockCache, CachedExplanation, CachedForms, Invalidation, ServedFrom};
pub use explain::{BlockExplanation, ChunkExplanation, ExtentExplanation, QueryExplanation, SiteExplanation};
pub use explain_options::{OptionExplanation, OptionKind};
pub use measure::{Histogram, HistogramView, Phase, ReadMeasures};
pub use query::{BlocksRead, ReadStats};
pub(crate) use reads::Reads;
pub use sampling::{HotBlock, Sample, SampledObject, Sampler};
pub use span::{MemoryBlock, Span, SplitSites, StoredBytes};
