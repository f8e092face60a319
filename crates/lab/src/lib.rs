//! The lab: a whole cluster in one process, in virtual time, on the real code.
//!
//! The real parts are the site with its queue, priorities, cancellation and load reports; the client's reads of many
//! blocks, its planner and decoder; the metadata store (the in-memory engine) and its records; and the codec. The
//! modelled parts are disks, networks, racks, and the time that processors take. Everything runs in one thread under
//! [`striate_runtime::run_in_virtual_time`], so one seed gives one trace (I14), and an hour of a hundred sites passes
//! in minutes.
//!
//! - [`calibration`]: the constants of the models, and their origin.
//! - [`costs`]: the cost of planning and coding on this machine.
//! - [`medium`], [`contents`], [`store`]: service times, chunks without memory, and the modelled disk.
//! - [`world`]: all of it put together, on the network of [`striate_virtual_network`].
//! - [`objects`]: reads and writes of objects in it.
//! - [`movement`]: the services that move chunks to speed up reads.
//! - [`workload`], [`drive`], [`latency`]: the operations, the clients that run them, and the response times.
//! - [`experiment`]: experiments as files, and their reports.
//! - `events`, `draws`: an event queue and random draws, for the models below.
//! - [`directing`]: the experiment of Hu et al., as a queueing model.
//! - [`packed_batches`]: batch reads of packed objects, as a queueing model.
//! - [`caching`]: EC-Cache's experiments, as a model of flows.
//! - [`wide`]: ECWide's experiments, as a model of flows.
//! - [`reality`]: the same workload on real sites, for comparison with the lab.
//! - [`rack_repair`], [`rack_encode`], [`rack_update`]: a wide stripe on real sites in racks: repairing a chunk,
//!   computing the parities, updating data chunks.
//! - [`data_updates`]: how parities follow updated data chunks, in the model and on real sites.
//! - [`repair`]: a site dies, and its chunks are rebuilt while clients read.
//! - [`speed`]: the speed of the lab itself.
//! - [`args`], [`commands`], [`failure`], [`program`]: the program `striate-lab`, whose `faults` are
//!   [`striate_faults`].
//!
//! All figures from the lab are in virtual time, and say so.

// Every `println!` here survives `| head`.
#[macro_use(eprintln, print, println)]
extern crate striate_runtime;

pub mod args;
pub mod caching;
pub mod calibration;
pub mod commands;
pub mod contents;
pub mod costs;
pub mod data_updates;
pub mod directing;
mod draws;
pub mod drive;
mod events;
pub mod experiment;
pub mod failure;
pub mod medium;
pub mod movement;
pub mod objects;
pub mod packed_batches;
pub mod program;
pub mod rack_encode;
pub mod rack_repair;
pub mod rack_update;
pub mod reality;
pub mod repair;
pub mod resources;
pub mod speed;
pub mod store;
pub mod wide;
pub mod world;

pub use striate_workload::{self as workload, latency};
