//! Optimisation problems and their solvers: each has its problem, an exact or bounded solver, a check that is independent of it, and
//! instances to measure it with.

pub mod access;
pub mod alternatives;
mod drawing;
pub mod load_direction;
pub mod makespan;
pub mod piece_options;
