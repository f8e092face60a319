//! Reading blocks.
//!
//! - [`query`]: a read of many blocks by a policy, with one request for each site.
//! - [`planning`]: the plan of such a read.
//! - [`gathering`]: a block of such a read while its chunks arrive.
//! - [`answers`]: the requests of a query that are under way, and which of them are late.
//! - [`arrival`]: when a chunk of a query should have come.
//! - [`explain`]: the plan of such a read, and why it is so.
//! - [`patience`]: how long a read waits before it asks other chunks, where nothing is predicted.
//! - [`probes`]: what the published policy learns and solves in the background.
//! - [`read`]: the normal read, and the degraded one around missing, slow or corrupt chunks.
//! - [`damage`]: what reads find missing or damaged becomes debt.
//! - [`measure`], [`sampling`]: what reads took, and what was asked for together.

mod answers;
mod arrival;
mod damage;
mod explain;
mod gathering;
mod measure;
mod patience;
mod planning;
mod probes;
mod query;
#[expect(clippy::module_inception, reason = "the read of one block")]
mod read;
mod reads;
mod sampling;

pub use explain::{BlockExplained, ChunkChoice, ChunkExplained, QueryExplained, SiteExplained};
pub use measure::{Histogram, HistogramView, Phase, ReadMeasures};
pub use query::{BlocksRead, ReadStats};
pub(crate) use reads::Reads;
pub use sampling::{HotBlock, Sample, SampledObject, Sampler};
