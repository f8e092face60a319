//! Every decision of the store, as pure functions of their arguments: no clock, no I/O, no global randomness.
//!
//! - [`read`]: which chunks a read requests from which sites, by a [`ReadPolicy`] (design.md §5).
//! - [`placement`]: which sites take a stripe's chunks (design.md §6).
//!   - [`placement::rule`]: where a stripe's chunks may be; [`placement::check`] judges a placement independently (I6).
//!   - [`placement::durability`]: which chunks of a stripe must be durable before its write is acknowledged (design.md §10.1).
//!   - [`placement::grouping`]: puts neighbouring blocks on the same sites.
//!   - [`placement::hot_copies`]: which partitions get a whole copy, and where.
//!   - [`placement::leaving`]: which racks all chunks are to leave.
//!   - [`placement::making_room`]: which chunk of a stripe moves to make room for another.
//!   - [`placement::strays`]: which chunks are in a rack that their group does not need.
//! - [`repair`]: what a damaged stripe needs to become whole again.
//!   - [`repair::by_racks`]: which equation for a lost chunk sends the fewest sums across racks (ECWide §4.1).
//!   - [`repair::combine_tree`]: which site adds up which terms on the way to a rebuilt chunk (ECWide §4.1).
//!   - [`repair::lrs`]: the site selected for repairs longest ago (ECWide §4.1).
//! - [`movement`]: which chunk moves where (EC-Store §IV-C, §IV-D).
//! - [`wide`]: wide stripes with combined locality.
//!   - [`wide::geometry`]: which rack holds which part of a stripe (ECWide §3.4).
//!   - [`wide::fitting`]: what a geometry requires of a cluster, and which codes fit.
//!   - [`wide::trade_off`]: what codes cost in space and in repair traffic (ECWide §3.5).
//!   - [`wide::reliability`]: mean time until a stripe loses data (ECWide §3.6).
//! - [`sealing`]: which partitions become a wide stripe, and where its parities go.
//! - [`cache`]: the layout of cached blocks.
//!   - [`cache::splits`]: how a block is split, and where its splits are (EC-Cache §4, §7.4).
//!   - [`cache::parities`]: how many parities blocks have, by popularity (EC-Cache §6.1, §7.3).
//! - [`statistics`]: the inputs of decisions.
//!   - [`statistics::co_access`]: which blocks are requested together, λ_{b,i} (EC-Store §IV-C, §V-A).
//!   - [`statistics::heat`]: which partitions are read most.
//!   - [`statistics::site_load`]: ω_j, the load of a site (EC-Store §IV-C, §V-A).
//! - [`cost`]: what a request to a site costs, and what a chunk of it costs.
//! - [`solver`]: optimisation problems.
//!   - [`solver::access`]: which chunks of many blocks to fetch from which sites at the least cost (EC-Store §IV-B).
//!   - [`solver::alternatives`]: the same problem where a piece can be read in other ways than any k of its chunks.
//!   - [`solver::makespan`]: which chunks of a query to read where, so that the last arrives soon and little load is added.
//!   - [`solver::piece_options`]: the ways to read the pieces of a query, as input of these two solvers.
//!   - [`solver::load_direction`]: in what proportions requests are read normally and degraded (Hu et al., SoCC'17, §2.3).
//!
//! Plans are values. The crates that execute them make no choices.

pub mod cache;
pub mod cost;
pub mod fullness;
pub mod movement;
pub mod placement;
pub mod read;
pub mod repair;
pub mod sealing;
pub mod solver;
pub mod statistics;
pub mod wide;

pub use cache::parities::{ParityBudget, PopularBlock};
pub use cache::splits::MemorySite;
pub use cost::{SiteCost, SiteQueue, USUAL_PER_BYTE};
pub use fullness::{FreeSample, time_until_full};
pub use placement::check::{PlacementFault, check_placement, racks_crossed};
pub use placement::durability::{DurabilityRule, chunks_to_write, fewest_sites, is_durable};
pub use placement::grouping::Grouping;
pub use placement::hot_copies::{CopyPlan, HotPartition, plan_copies};
pub use placement::leaving::LeavingRacks;
pub use placement::making_room::{Place, StripeRoom, first_of_two_moves};
pub use placement::racks::{RackSizes, Survivable, default_profile};
pub use placement::rule::PlacementRule;
pub use placement::strays::Stray;
pub use placement::{Candidate, draw_order};
pub use read::adaptive::Adaptive;
pub use read::cost_model::CostModel;
pub use read::normal::{Normal, plan_normally};
pub use read::options::{NodeState, OptionMetric, WantedChunk};
pub use read::ordered;
pub use read::piece::{PlanCost, QueryChunk, QueryPiece, QueryPlan, SiteRead};
pub use read::policy::{
    ChosenChunk, ChunkChoice, Policy, PolicyError, Probe, ProbedSite, ReadPlanner, ReadPolicy, ReadPurpose,
    ReadQuery, name_and_extra_reads, write_with_extra_reads,
};
pub use read::price::price_plan;
pub use repair::by_racks::{RackRepair, repair_by_racks};
pub use repair::combine_tree::{CombineTerm, CombineTree, TreeShape};
pub use repair::lrs::LeastRecentlySelected;
pub use repair::{ChunkState, StripeRepair, plan_repair};
pub use sealing::{
    ChangingMember, LeavingMember, NotSealed, OpenPartition, PlannedTransfer, RackLack, SealingPlan,
    TakingStripe, WideMember, is_sparse, plan_emptying, plan_sealing, swap_due,
};
pub use solver::load_direction::{DirectionProblem, LoadDirection};
pub use statistics::co_access::{
    CoAccess, CoAccessLimits, CoAccessSnapshot, CoAccessTotals, Partner, SnapshotError,
};
pub use statistics::heat::{Partition, PartitionHeat, PartitionReads};
pub use statistics::site_load::{LoadWeights, SiteLoad, load_imbalances, site_loads};
pub use wide::fitting::{Misfit, fitting_codes};
pub use wide::geometry::{RackPart, WideError, WideGeometry};
pub use wide::reliability::{Hardware, NeglectedEffects, StripeModel};
pub use wide::trade_off::Scheme;
