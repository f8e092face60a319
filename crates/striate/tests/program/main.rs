//! The program from outside: its command line, its starts, its processes. One binary, since each links the whole program.

mod bench;
mod cluster_processes;
mod command_line;
mod configuration;
mod explain;
mod packing;
mod retiring;
mod spans;
mod start_matrix;
mod upgrade;
mod volatile;
