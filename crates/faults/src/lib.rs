//! Random faults on a whole cluster of the real code, in virtual time.
//!
//! In the spirit of FoundationDB's simulation (Zhou et al., “FoundationDB: A Distributed Unbundled Transactional Key
//! Value Store”, SIGMOD 2021, §4) and of TigerBeetle's simulator: clients work on few contended keys while machines
//! crash, disks lose, damage and refuse data, and messages get lost; a reference model says afterwards whether the
//! answers that they got can be true. The injector knows for every stripe how many good chunks are left and never
//! takes more than the code tolerates, so *any* lost or wrong byte is a defect; then it takes more, and demands a
//! clean error.
//!
//! - [`site`], [`engine`]: machines with the real chunk store and the real metadata engine on simulated disks.
//! - [`gateway`]: processes with a client service, which are killed and started again.
//! - [`services`]: control processes, of which one leads and runs repair, scrub, collectors and movers; [`optimising`]: the
//!   mover that goes by what is asked for; [`packing`]: small objects into shared partitions, and their space back; [`sealing`]: their partitions into wide stripes; [`steps`]: what all these ask, step by step, and where they may die; [`following`]: which
//!   sites a process knows.
//! - [`shape`]: what a seed's cluster is made of. [`cluster`]: all of them on one network.
//! - [`operation`], [`reading`], [`worker`]: what is asked, and by whom.
//! - [`injector`], [`ledger`]: the faults, and how many of them the cluster must bear.
//! - [`invariants`], [`wide`], [`guard`], [`orphans`]: I1 to I14 of reliability.md as code, what holds of wide stripes, and that
//!   nothing is left behind.
//! - [`run`], [`settling`], [`campaign`]: one seed, its end, and many.
//! - [`mutation`]: defects planted on purpose, which a run must find.

pub mod campaign;
pub mod cluster;
pub mod copying;
pub mod coverage;
mod dead_space;
pub mod engine;
pub mod following;
pub mod gateway;
pub mod guard;
pub mod injector;
pub mod invariants;
pub mod ledger;
pub mod memory;
pub mod mutation;
pub mod operation;
pub mod optimising;
pub mod orphans;
pub mod packing;
pub mod reading;
pub mod run;
pub mod sealing;
pub mod services;
pub mod settling;
pub mod shape;
pub mod site;
pub mod steps;
pub mod wide;
pub mod worker;
