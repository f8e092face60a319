//! Services beside the data path.
//!
//! - [`repair`]: rebuilds lost chunks and repays debt, most endangered stripes first: automatically, on request
//!   ([`repair::heal`]), and after a search for damage ([`repair::verify`](mod@repair::verify), [`repair::scrub`]).
//! - [`movement`]: drains sites, levels how full they are, and moves chunks to where reading them costs less.
//! - [`packing`]: rewrites small objects into shared partitions, reclaims the space of dead ones, and unpacks.
//! - [`sealing`]: makes wide stripes of cold data.
//! - [`hot_copies`]: keeps whole copies of the most-read partitions.
//! - [`collection`]: removes what nothing names any more, and what dead writers left behind.
//! - [`membership`]: the cluster's sites and processes, which of them leads, and when newer formats may be written.
//! - [`statistics`]: the load of every site, ω_j; [`access`]: which blocks are requested together, over all gateways,
//!   λ_{b,i}.
//! - [`upkeep`]: starts all background services of a store together.
//!
//! All of them work on metadata and sites through the stripe service and may die at any instruction: their work is
//! idempotent, and the compare-and-swap on the stripe record decides (design.md §10.4).

pub mod access;
pub mod collection;
pub mod hot_copies;
pub mod membership;
pub mod movement;
pub mod packing;
pub mod repair;
pub mod sealing;
pub mod statistics;
pub mod upkeep;

mod object_stripes;
mod recent;
mod rows;
mod stripe_counts;
mod unreadable;

pub use access::{AccessReport, GatheredAccess, REQUESTS_TOGETHER, ReportError, ReportView};
pub use collection::abandoned::{AbandonedReport, collect_abandoned, keep_collecting};
pub use collection::garbage::GarbageCollector;
pub use collection::orphans::{OrphanReport, collect_orphans};
pub use collection::placements::{PlacementSweep, keep_sweeping_placements};
pub use collection::volatile::{VolatileReport, sweep_volatile};
pub use hot_copies::{
    CopyOutcome, HotCopies, HotCopiesOptions, drop_copies, keep_following as keep_following_copies, make_copy,
};
pub use membership::leader::Candidacy;
pub use membership::members::{Members, MembersError, SiteAnnouncement};
pub use membership::memory_members::MemoryAnnouncement;
pub use membership::upgrade::{FinalizeError, Gate, GateView, LEADER_ROLE, ProcessReport, Reader};
pub use movement::{MoveOutcome, Optimiser, Rebalancer, move_chunk};
pub use packing::repacking::{Liveness, RepackOutcome, Repacker, liveness, repack_marked};
pub use packing::run::{PackRequest, PackRunProgress, PackRunReport, WaitingObjects, pack_now};
pub use packing::service::{PackingHold, PackingOptions, PackingService};
pub use packing::setting::{PackDecision, SkipReason, decide_packing};
pub use packing::unpacking::{UnpackCallback, UnpackProgress, UnpackReport, split_packed, unpack_bucket};
pub use packing::walk::pack_bucket;
pub use packing::{PackOptions, PackReport};
pub use repair::heal::{HealProgress, HealReport, heal};
pub use repair::pace::RepairLimits;
pub use repair::returned::{SiteComparison, compare_site};
pub use repair::scrub::keep_scrubbing;
pub use repair::service::{RepairOptions, RepairService};
pub use repair::verify::{VerifyProgress, VerifyReport, verify};
pub use repair::{RepairOutcome, repair_stripe};
pub use sealing::{
    SealCallback, SealOptions, SealReport, cold_of, cold_warnings, durability_warnings, empty_wide,
    leave_dead, resume_wide, seal_bucket,
};
pub use statistics::{SiteLoadView, SiteStatistics};
pub use unreadable::{UnreadableObjects, UnreadableReport};
pub use upkeep::{Upkeep, UpkeepOptions};
