//! The lab from outside: its command line, worlds that are driven, experiments.

mod command_line;
mod determinism;
mod driving;
mod experiments;
