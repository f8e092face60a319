//! Services beside the data path.
//!
//! - [`repair_service`]: rebuilds lost chunks and pays debt by itself, most endangered stripes first, one stripe at a time
//!   by [`repair`], at the pace of [`repair_pace`]; [`absence`] says which sites are lost.
//! - [`heal`](mod@heal): the same for somebody who waits for it.
//! - [`verify`](mod@verify): reads every chunk from its medium, queues what is damaged, and counts orphans.
//! - [`scrub`]: verifies every chunk within a cycle, by itself.
//! - [`upkeep`]: all that a store does by itself, started together.
//! - [`garbage`]: removes chunks that nothing names, after a grace.
//! - [`abandoned`]: collects what writers left behind that are gone.
//! - [`parts`]: takes down the parts of multipart uploads and objects that are gone.
//! - [`volatile`]: removes the rows of objects that were in memory only and are gone.
//! - [`orphans`]: makes garbage of chunks that nothing names.
//! - [`placements`]: removes rows of sets of sites that no stripe is on.
//! - [`packing`]: rewrites small objects into partitions that they share; [`repacking`] gives the space of dead ones back, `refilling` that of sealed ones in place;
//!   [`packing_service`] does both by itself, [`pack_run`] for somebody who waits, and [`unpacking`] undoes it.
//! - [`hot_copies`]: whole copies of the partitions that are read most.
//! - [`movement`]: drains sites, levels how full they are, and moves chunks to where reads of them cost less.
//! - [`statistics`]: the load of every site, ω_j.
//! - [`access`]: which blocks are asked for together, over all gateways, λ_{b,i}.
//! - [`members`]: the cluster's row and those of its sites; [`memory_members`]: those of the memory tier.
//! - [`retirement`]: sites that are given up for good.
//! - [`upgrade`]: what every process reads, and when newer formats may be written.
//! - [`leader`]: which process does what must happen in one place.
//!
//! All of them work on metadata and sites through the stripe service and may die at any instruction: what they do is
//! idempotent, and the compare-and-swap on the stripe record decides (design.md §10.4).

pub mod abandoned;
pub mod absence;
pub mod access;
pub mod garbage;
pub mod heal;
pub mod hot_copies;
pub mod leader;
pub mod members;
pub mod memory_members;
pub mod movement;
pub mod orphans;
pub mod pack_run;
pub mod pack_setting;
pub mod packing;
pub mod packing_service;
mod packing_turn;
pub mod parts;
pub mod placements;
pub mod repacking;
pub mod repair;
pub mod repair_pace;
pub mod repair_service;
pub mod retirement;
mod rewriting;
pub mod scrub;
pub mod sealing;
pub mod statistics;
pub mod unpacking;
pub mod upgrade;
pub mod upkeep;
pub mod verify;
pub mod volatile;

mod entries;
mod named;
mod object_stripes;
mod pace;
mod pack_figures;
mod pack_journal;
mod pack_walk;
mod recent;
mod refilling;
mod repair_progress;
mod rows;
mod switching;
mod wide_losses;
mod work_list;

pub use abandoned::{AbandonedReport, collect_abandoned, keep_collecting};
pub use access::{AccessReport, GatheredAccess, REQUESTS_TOGETHER, ReportError, ReportView};
pub use garbage::GarbageCollector;
pub use heal::{HealProgress, HealReport, heal};
pub use hot_copies::{
    CopyOutcome, HotCopies, HotCopiesOptions, drop_copies, keep_following as keep_following_copies, make_copy,
};
pub use leader::Candidacy;
pub use members::{Members, MembersError, SiteAnnouncement};
pub use memory_members::MemoryAnnouncement;
pub use movement::{MoveOutcome, Optimiser, Rebalancer, move_chunk};
pub use orphans::{OrphanReport, collect_orphans};
pub use pack_run::{PackRunProgress, PackRunReport, PackWish, StillWaiting, pack_now};
pub use pack_setting::{PackDecision, WhyNot, decide_packing};
pub use pack_walk::pack_bucket;
pub use packing::{PackOptions, PackReport};
pub use packing_service::{PackingHold, PackingOptions, PackingService};
pub use placements::{PlacementSweep, keep_sweeping_placements};
pub use repacking::{Liveness, Repacked, Repacker, liveness, repack_marked};
pub use repair::{RepairOutcome, repair_stripe};
pub use repair_pace::RepairLimits;
pub use repair_service::{RepairOptions, RepairService};
pub use scrub::keep_scrubbing;
pub use sealing::{
    SealOptions, SealReport, TellSealed, cold_of, cold_warnings, durability_warnings, leave_dead,
    resume_wide, seal_bucket,
};
pub use statistics::{SiteLoadView, SiteStatistics};
pub use unpacking::{TellUnpacked, UnpackProgress, UnpackReport, split_packed, unpack_bucket};
pub use upgrade::{FinalizeError, Gate, GateView, LEADER_ROLE, ProcessReport, Reader};
pub use upkeep::{Upkeep, UpkeepOptions};
pub use verify::{VerifyProgress, VerifyReport, verify};
pub use volatile::{VolatileReport, sweep_volatile};
