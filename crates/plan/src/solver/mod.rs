//! Optimisation problems and their solvers. Each has a problem type, an exact or bounded solver, an independent
//! checker, and instances for benchmarks.

pub mod access;
pub mod alternatives;
pub mod load_direction;
pub mod makespan;
pub mod piece_options;
mod random_sequence;
