//! Heal, verify and collection on a cluster in memory whose sites can be broken on purpose, in virtual time.

mod classes;
mod cluster;
mod collection;
mod copies;
mod dying;
mod entries;
mod interposed;
mod journal;
mod large_cold;
mod leaving;
mod levelling;
mod losses;
mod members;
mod moving;
mod optimising;
mod orphans;
mod pack_service;
mod packing;
mod repairing;
mod scrubbing;
mod sealing;
mod statistics;
mod swapping;
mod unpacking;
mod volatile;
mod wide_codes;
