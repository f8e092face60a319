//! Random faults on a whole cluster of the real code, in virtual time.
//!
//! In the spirit of FoundationDB's simulation (Zhou et al., “FoundationDB: A Distributed Unbundled Transactional Key
//! Value Store”, SIGMOD 2021, §4) and of TigerBeetle's simulator, clients work on a few contended keys while machines
//! crash, disks lose, damage and refuse data, and messages are lost. Afterwards a reference model decides whether the
//! clients' answers are possible. The injector knows how many good chunks each stripe has left and never takes more
//! than the code tolerates, so *any* lost or wrong byte is a defect. Then it takes more, and demands a clean error.
//!
//! - [`site`], [`engine`]: machines with the real chunk store and the real metadata engine on simulated disks.
//! - [`gateway`]: processes with a client service, which are killed and restarted.
//! - [`services`]: control processes, of which one leads and runs repair, scrub, collectors and movers;
//!   [`optimising`]: the mover that follows demand; [`packing`]: packs small objects into shared partitions and
//!   reclaims their space; [`sealing`]: seals these partitions into wide stripes; [`steps`]: the requests of all
//!   these services, step by step, and where they may die; [`following`]: the sites that a process knows.
//! - [`shape`]: the components of a seed's cluster. [`cluster`]: all of them on one network.
//! - [`operation`], [`reading`], [`worker`]: the operations, and the clients that run them.
//! - [`injector`], [`ledger`]: the faults, and how many of them the cluster must tolerate.
//! - [`invariants`], [`wide`], [`guard`], [`orphans`]: I1 to I14 of reliability.md as code, the rules of wide
//!   stripes, and that nothing is left behind.
//! - [`run`], [`settling`], [`campaign`]: one seed, the end of its run, and many seeds.
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
