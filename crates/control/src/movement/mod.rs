//! Moving chunks: one at a time by [`move_chunk`], for space's sake by the [`Rebalancer`], for the readers' by the
//! [`Optimiser`] (EC-Store §IV-D, §V-B2). What is moved where is decided in `striate_plan::movement`. The [`MovementJournal`]
//! writes down what they do.

mod budget;
mod journal;
mod mover;
mod optimiser;
mod rebalancer;
mod room;
mod source;
mod state;
mod throttle;
mod underway;
mod unseen;

pub use budget::Allowance;
pub use journal::MovementJournal;
pub(crate) use mover::verify_new;
pub use mover::{MoveOutcome, move_chunk};
pub use optimiser::{Optimiser, OptimiserOptions, OptimiserProgress};
pub use rebalancer::{RebalanceOptions, RebalanceProgress, Rebalancer};
pub(crate) use room::find_move_in_wide;
pub use source::AccessSource;
pub use underway::Underway;
