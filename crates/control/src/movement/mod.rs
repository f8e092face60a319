//! Moving chunks: one at a time by [`move_chunk`]. What is moved where is decided in `striate_plan::movement`.

mod mover;

pub use mover::{MoveOutcome, move_chunk};
