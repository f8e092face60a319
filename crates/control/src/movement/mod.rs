//! Moving chunks: one at a time by [`move_chunk`], for space's sake by the [`Rebalancer`]. What is moved where is decided in
//! `striate_plan::movement`.

mod mover;
mod rebalancer;
mod throttle;

pub use mover::{MoveOutcome, move_chunk};
pub use rebalancer::{RebalanceOptions, RebalanceProgress, Rebalancer};
