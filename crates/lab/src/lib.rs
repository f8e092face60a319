//! The lab: a whole cluster in one process, in virtual time, on the real code.
//!
//! What is real: the site with its queue, priorities, cancellation and load reports; the client's reads of many
//! blocks, its planner and decoder; the metadata store (the engine in memory) and its records; the codec. What
//! is modelled: disks, networks, racks, and the time that processors take. Everything runs in one thread under
//! [`striate_runtime::run_in_virtual_time`], so one seed gives one trace (I14), and an hour of a hundred sites
//! passes in minutes.
//!
//! - [`calibration`]: the constants of the models, and where they come from.
//! - [`costs`]: what planning and coding cost on this machine.
//! - [`medium`], [`contents`], [`store`]: service times, chunks without memory, and the modelled disk.
//! - [`network`]: racks, links, faults, and the modelled way to a site.
//! - [`metadata`]: the modelled way to the metadata store.
//! - [`world`]: all of it put together.
//! - [`objects`]: reads and writes of objects in it.
//! - [`movement`]: the services that move chunks for the readers' sake.
//! - [`trace`]: the event log whose hash tells two runs apart.
//! - [`faults`]: random faults on the real store, and what must hold all the same.
//! - [`workload`], [`drive`], [`latency`]: what is asked, by whom, and how long it took.
//! - [`history`]: the reference model: whether what clients were answered is what S3 allows.
//! - [`experiment`]: experiments as files, and their reports.
//! - [`reality`]: the same workload on real sites, to hold the lab against.
//! - [`repair`]: a site dies, and its chunks are rebuilt beside the clients' reads.
//! - [`speed`]: how fast the lab itself is.
//!
//! Every figure that comes out of here is in virtual time, and says so.

pub mod calibration;
pub mod contents;
pub mod costs;
pub mod drive;
pub mod experiment;
pub mod faults;
pub mod history;
pub mod medium;
pub mod metadata;
pub mod movement;
pub mod network;
pub mod objects;
pub mod reality;
pub mod repair;
pub mod resources;
pub mod speed;
pub mod store;
pub mod trace;
pub mod world;

pub use striate_workload::{self as workload, latency};
