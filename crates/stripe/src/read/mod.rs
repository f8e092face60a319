//! Reading pieces of stripes.
//!
//! - [`query`]: reads any number of pieces by a policy, with one request for each site.
//! - [`span`]: blocks and parts of blocks, and the pieces that they are made of.
//! - [`located`]: a query's spans with their stripes and pieces.
//! - [`cached`]: blocks that are in the memory tier too.
//! - [`gathering`]: the stripes of a query while their chunks arrive.
//! - [`planning`]: the plan of a query.
//! - [`requests`]: the requests of a query that are under way, and which of them are late.
//! - [`arrival`], [`patience`]: when a chunk should have come, as predicted, or where nothing is.
//! - [`explain`]: the plan of a query, and why it is so; [`explain_options`]: what else a packed object could be read from.
//! - [`probes`]: what policies learn in the background.
//! - [`damage`]: what reads find missing or damaged becomes debt.
//! - [`measure`], [`sampling`]: what reads took, and what was asked for together.

mod around;
mod arrival;
mod cached;
mod damage;
mod explain;
mod explain_options;
mod gathering;
mod located;
mod measure;
mod patience;
mod planning;
mod probes;
mod query;
mod reads;
mod requests;
mod sampling;
mod span;

pub(crate) use cached::Source;
pub use cached::{BlockCache, FoundCached, Invalidation, ServedFrom};
pub use explain::{BlockExplained, ChunkExplained, ExtentExplained, QueryExplained, SiteExplained};
pub use explain_options::{OptionExplained, OptionKind};
pub use measure::{Histogram, HistogramView, Phase, ReadMeasures};
pub use query::{BlocksRead, ReadStats};
pub(crate) use reads::Reads;
pub use sampling::{HotBlock, Sample, SampledObject, Sampler};
pub use span::{MemoryBlock, Placed, Span, Stored};
