//! Writing stripes, changing where their chunks are, and un-naming them.
//!
//! - [`put`]: encodes a block, writes its chunks, names it in a transaction.
//! - [`segment`]: the block rows of large objects.
//! - [`group`]: partitions that many objects share, and the switch of their rows.
//! - `assembly`: chunks that sites compute from others.
//! - [`intent`]: the writer's reservations of stripe names, which fence unfinished puts.
//! - [`entry`]: changes in progress, recorded before their files exist.
//! - [`change`]: new places for a stripe's chunks, for repairs and moves.
//! - `placements`: the rows of sets of sites, and how retired sites are kept out of them.
//! - `waiting`: partitions that wait for wide stripes, which guide the placement of new groups.
//! - `wide`: wide stripes, whose data chunks are those of other stripes.
//! - [`release`]: un-names stripes, which makes their chunks garbage.
//! - [`submit`](mod@submit): submits transactions until their outcome is known.

mod assembly;
mod change;
mod entry;
mod group;
mod intent;
mod placements;
mod put;
mod release;
mod segment;
mod submit;
mod waiting;
mod wide;
mod writes;

pub use change::{DebtEffect, StripeChange, pay_debt};
pub(crate) use entry::cancel_dead;
pub use entry::is_named;
pub use group::{CodingGroup, GroupWriter, Packer, SwitchOutcome};
pub(crate) use intent::Writer;
pub use put::{Neighbours, PutSession, StoredBlock};
pub use release::{add_garbage, release_and_leave_debt, release_stripe};
pub(crate) use release::{release_blocks, release_part, release_segment};
pub use segment::SegmentWriter;
pub(crate) use submit::submit;
pub use wide::{
    DropOutcome, ExchangeOutcome, ExtraChanges, MemberTransfer, MemberUpdate, NewBytes, WidePlan, WideStep,
};
pub(crate) use wide::{
    abort, admits_member, advance, dissolve, drop_parities, exchange, leave, narrow_again, release_dead,
    swap_local_parity, transfer, update,
};
pub use writes::SeparateWriter;
pub(crate) use writes::Writes;
