//! Tests of the program from outside: its command line, its starts, its processes. They are one binary, because each
//! would link the whole program.

mod bench;
mod cluster_processes;
mod command_line;
mod configuration;
mod explain;
mod origins;
mod packing;
mod retiring;
mod spans;
mod start_matrix;
mod upgrade;
mod volatile;
