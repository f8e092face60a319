//! Tests of the metadata engines, in one binary.

mod archive;
mod cluster;
mod crash;
mod embedded;
mod faults;
mod memory;
mod strategy;
