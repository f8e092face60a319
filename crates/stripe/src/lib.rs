//! The stripe service: blocks in, chunks on sites out, by the rules of design.md §10.
//!
//! The crate has three parts over one table of stripes ([`table`]):
//! - [`sites`]: the sites as this process knows them, their queues (o_j) and the cost of a byte there (m_j);
//! - [`read`]: reads blocks of many stripes as one query, by a policy, around chunks that are missing, late or
//!   corrupt;
//! - [`write`](mod@write): encodes and writes blocks, keeps the writer's intents, changes where chunks are,
//!   releases stripes.
//!
//! This crate knows nothing of objects, keys or S3's semantics (the `client` crate), nor of when to repair or
//! move (`control`).

pub mod error;
pub mod partition;
pub mod table;

mod arriving;
mod budget;
mod holders;
mod ledger;
mod locations;
mod memory_only;
mod options;
mod read;
mod sites;
mod stripes;
mod trees;
mod write;

pub use arriving::ArrivingBlock;
pub use budget::{BudgetView, ByteBudget, PinnedShare, Share};
pub use error::StripeError;
pub use holders::{Holder, HolderRegistration, ParkedStream, Shrink};
pub use ledger::Payer;
pub use memory_only::{OWN_MEMORY, is_gone_from_memory, remove_gone_from_memory};
pub use options::StripeOptions;
pub use read::{
    BlockCache, BlockExplanation, BlocksRead, CachedExplanation, CachedForms, ChunkExplanation,
    ExtentExplanation, Histogram, HistogramView, HotBlock, Invalidation, MemoryBlock, OptionExplanation,
    OptionKind, Phase, QueryExplanation, ReadMeasures, ReadStats, Sample, SampledObject, Sampler, ServedFrom,
    SiteExplanation, Span, SplitSites, StoredBytes,
};
pub use sites::{CostPart, PushView, SiteView};
pub use striate_plan::{ChunkChoice, CoAccess, CoAccessSnapshot, CoAccessTotals};
pub use stripes::{Stripes, WeakStripes};
pub use table::{
    OpenedStripe, ProfileTexts, file_of, has_place, holders, id16, is_hole, len_of, own_locations, stripe_id,
    wide_of,
};
pub use trees::{Files, SLICE_LEN, combination, costs_in_wide, equation_in_wide};
pub use write::{
    CodingGroup, DebtEffect, DropOutcome, ExchangeOutcome, ExtraChanges, GroupWriter, MemberTransfer,
    MemberUpdate, Neighbours, NewBytes, Packer, PutSession, SegmentWriter, SeparateWriter, StoredBlock,
    StripeChange, SwitchOutcome, WidePlan, WideStep, add_garbage, is_named, pay_debt, release_and_leave_debt,
    release_stripe,
};
