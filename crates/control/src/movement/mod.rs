//! Moves chunks: [`move_chunk`] moves one, the [`Rebalancer`] moves them to balance space, and the [`Optimiser`] to
//! make reads cheaper (EC-Store §IV-D, §V-B2). `striate_plan::movement` decides what moves where. The
//! [`MovementJournal`] records their progress.

mod active_moves;
mod budget;
mod journal;
mod mover;
mod optimiser;
mod rebalancer;
mod room;
mod source;
mod state;
mod throttle;
mod unseen_load;

pub use active_moves::ActiveMoves;
pub use budget::Allowance;
pub use journal::MovementJournal;
pub use mover::{MoveOutcome, move_chunk};
pub(crate) use mover::{move_while_leaving, verify_new};
pub use optimiser::{Optimiser, OptimiserOptions, OptimiserProgress};
pub use rebalancer::{RebalanceOptions, RebalanceProgress, Rebalancer};
pub(crate) use room::{WideSearch, move_of, other_places, own_clearing_move, own_room, owner_of, places_of};
pub use source::AccessSource;
