//! Every decision of the store, as pure functions of their arguments: no clock, no I/O, no global randomness.
//!
//! - [`access`]: which chunks of many blocks are fetched from which sites at least cost (EC-Store §IV-B).
//! - [`alternatives`]: the same where pieces have other ways to be read than any k of their chunks.
//! - [`makespan`]: which chunks of a query are read where, so that the last comes soon and little load is added.
//! - [`piece_options`]: the ways to read the pieces of a query, as these two take them.
//! - [`movement`]: which chunk is moved where (EC-Store §IV-C, §IV-D).
//! - [`placement_rule`]: which places a stripe's chunks may have.
//! - [`placement`]: which sites take a stripe's chunks (design.md §6).
//! - [`durability`]: which chunks of a stripe must be durable before its write is acknowledged (design.md §10.1).
//! - [`grouping`]: neighbours on the same sites.
//! - [`read`]: which chunks a read asks of which sites, by a [`ReadPolicy`] (design.md §5).
//! - [`load_direction`]: at what proportions requests are read normally and degraded (Hu et al., SoCC'17, §2.3).
//! - [`cost`]: what asking a site costs, and what a chunk of it does.
//! - [`co_access`]: which blocks are asked for together, λ_{b,i} (EC-Store §IV-C, §V-A).
//! - [`heat`]: which partitions are read most.
//! - [`hot_copies`]: which of these get a whole copy, and where.
//! - [`splits`]: how a cached block is split, and where its splits are (EC-Cache §4, §7.4).
//! - [`parities`]: how many parities cached blocks have, by their popularity (EC-Cache §6.1, §7.3).
//! - [`repair`]: what a damaged stripe needs to be whole again.
//! - [`rack_repair`]: which equation for a lost chunk sends the fewest sums across racks (ECWide §4.1).
//! - [`combine_tree`]: who adds up what on the way to a chunk that is made (ECWide §4.1).
//! - [`sealing`]: which partitions become a wide stripe, and where its parities go.
//! - [`wide`]: which rack holds which part of a wide stripe, and what a cluster must have for it (ECWide §3.4).
//! - [`trade_off`]: what codes cost in space and in repair traffic (ECWide §3.5).
//! - [`lrs`]: who works for a repair: who did not for the longest time (ECWide §4.1).
//! - [`reliability`]: how long until a stripe loses data (ECWide §3.6).
//! - [`site_load`]: ω_j, the load of a site (EC-Store §IV-C, §V-A).
//! - [`check`]: says independently whether a placement is legal (I6).
//!
//! Plans are values. The crates that execute them make no choices.

pub mod access;
pub mod alternatives;
pub mod check;
pub mod co_access;
pub mod combine_tree;
pub mod cost;
mod drawing;
pub mod durability;
pub mod grouping;
pub mod heat;
pub mod hot_copies;
pub mod load_direction;
pub mod lrs;
pub mod makespan;
pub mod making_room;
pub mod movement;
pub mod parities;
pub mod piece_options;
pub mod placement;
pub mod placement_rule;
pub mod rack_repair;
pub mod read;
pub mod reliability;
pub mod repair;
pub mod sealing;
pub mod site_load;
pub mod splits;
pub mod trade_off;
pub mod wide;

pub use check::{PlacementFault, check_placement, racks_crossed};
pub use co_access::{CoAccess, CoAccessLimits, CoAccessSnapshot, CoAccessTotals, Partner, SnapshotError};
pub use combine_tree::{CombineTerm, CombineTree, TreeShape};
pub use cost::{SiteCost, SiteQueue, USUAL_PER_BYTE};
pub use durability::{DurabilityRule, chunks_to_write, fewest_sites, is_durable};
pub use grouping::Grouping;
pub use heat::{Partition, PartitionHeat, PartitionReads};
pub use hot_copies::{CopyPlan, HotPartition, plan_copies};
pub use load_direction::{DirectionProblem, LoadDirection};
pub use lrs::LeastRecentlySelected;
pub use making_room::{Place, admits_at, clearing_move};
pub use parities::{ParityBudget, PopularBlock};
pub use placement::{Candidate, draw_order};
pub use placement_rule::PlacementRule;
pub use rack_repair::{RackRepair, repair_by_racks};
pub use read::adaptive::Adaptive;
pub use read::cost_model::CostModel;
pub use read::normal::{Normal, plan_normally};
pub use read::options::{NodeState, OptionMetric, WantedChunk};
pub use read::ordered;
pub use read::piece::{PlanCost, QueryChunk, QueryPiece, QueryPlan, SiteRead};
pub use read::policy::{
    ChosenChunk, ChunkChoice, Policy, PolicyError, Probe, ProbedSite, Purpose, ReadPlanner, ReadPolicy,
    ReadQuery, name_and_extra_reads, write_with_extra_reads,
};
pub use read::price::price_plan;
pub use reliability::{Hardware, Relaxed, StripeModel};
pub use repair::{ChunkState, StripeRepair, plan_repair};
pub use sealing::{
    ChangingMember, NotSealed, OpenPartition, RackLack, SealingPlan, WideMember, plan_sealing, swap_due,
};
pub use site_load::{LoadWeights, SiteLoad, load_imbalances, site_loads};
pub use splits::MemorySite;
pub use trade_off::Scheme;
pub use wide::{Misfit, RackPart, WideError, WideGeometry, fitting_codes};
