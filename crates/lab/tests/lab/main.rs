//! The lab from outside: its command line, driven worlds, experiments.

mod command_line;
mod determinism;
mod driving;
mod experiments;
