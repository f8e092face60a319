//! Every decision of the store, as pure functions of their arguments: no clock, no I/O, no global randomness.
//!
//! - [`access`]: which chunks of many blocks are fetched from which sites at least cost (EC-Store §IV-B).
//! - [`placement`]: which sites take a stripe's chunks (design.md §6).
//! - [`grouping`]: neighbours on the same sites.
//! - [`read`]: which chunks of a block are fetched, and what is decoded from them (design.md §5).
//! - [`query`]: which chunks of many blocks are asked of which sites, by a [`ReadPolicy`] (design.md §5).
//! - [`published`]: the same as EC-Store published it, with a heuristic and a cache of plans.
//! - [`repair`]: what a damaged stripe needs to be whole again.
//! - [`check`]: says independently whether a placement is legal (I6).
//!
//! Plans are values. The crates that execute them make no choices.

pub mod access;
pub mod check;
pub mod grouping;
pub mod placement;
pub mod published;
pub mod query;
pub mod read;
pub mod repair;

pub use check::{PlacementFault, check_placement};
pub use grouping::Grouping;
pub use placement::{Candidate, choose_sites, rack_limit};
pub use published::PublishedPlanner;
pub use query::{PlanCost, QueryBlock, QueryChunk, QueryPlan, QueryPlanner, ReadPolicy, SiteRead};
pub use read::{BlockRead, plan_block_read};
pub use repair::{ChunkState, StripeRepair, plan_repair};
