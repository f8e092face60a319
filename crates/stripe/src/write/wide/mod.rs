//! Wide stripes: cold partitions of many stripes under one code (ECWide, FAST'21).
//!
//! - [`seal`]: makes partitions members, step by step: they are claimed ([`claim`]), and their own parities go
//!   ([`narrow`]).
//! - [`exchange`]: changes members together: dead ones leave ([`leave`](mod@leave)) or are replaced, and holes are
//!   filled.
//! - [`transfer`](mod@transfer): puts all members of a sparse wide stripe into holes of others.
//! - [`swap`]: moves the local parity of a group to the rack that changes most.
//! - [`update`](mod@update): changes ranges of a member in place.
//! - [`parities`]: makes new generations of the parities when members change.
//! - [`links`]: keeps the wide stripe's record in step with changes of its members' places.

mod claim;
mod exchange;
mod leave;
mod links;
mod narrow;
mod parities;
mod seal;
mod swap;
mod transfer;
mod update;

pub use exchange::ExchangeOutcome;
pub(crate) use exchange::{admits_member, exchange};
pub(crate) use leave::{dissolve, leave, release_dead};
pub(super) use links::{KnownRacks, Links, is_same_file};
pub use narrow::DropOutcome;
pub(super) use narrow::do_without_parities;
pub(crate) use narrow::{drop_parities, narrow_again};
pub use seal::{WidePlan, WideStep};
pub(crate) use seal::{abort, advance};
pub(crate) use swap::swap_local_parity;
pub use transfer::MemberTransfer;
pub(crate) use transfer::transfer;
pub(crate) use update::update;
pub use update::{ExtraChanges, MemberUpdate, NewBytes};
