//! The command line of `striate`, and the commands that talk to a running store.
//!
//! | module | content |
//! |--|--|
//! | [`args`], [`config`], `usage` | the command line, variables and files of all commands, and errors in them |
//! | [`run()`] | one command of a client, from its arguments to its end |
//! | [`admin`], [`operate`] | the admin socket from outside; `status`, `heal`, `verify`, `explain`, `pack`, `disk`, `bucket` |
//! | [`s3_endpoint`] | requests to any S3 store, and descriptions of refusals |
//! | [`transfer`] | `cp`, `ls`, `rm`, `cat` |
//! | `planning` | `plan`: the cost of codes on a cluster, computed without a store |
//! | [`mod@bench`] | workloads against any S3 store, measured |
//! | [`credentials`] | access keys from the environment, and shown once |
//! | [`failure`], [`interruption`] | how a command ends |
//!
//! Nothing here serves a request, so it is compiled for size (`docs/decisions/release-build.md`).

// Every `println!` here survives `| head` and moves no cursor: these macros shadow the standard library's.
#[macro_use]
pub mod output;

pub mod admin;
pub mod args;
pub mod bench;
pub mod config;
pub mod credentials;
pub mod failure;
pub mod interruption;
pub mod operate;
mod planning;
mod run;
pub mod s3_endpoint;
pub mod transfer;
mod usage;

pub use run::run;
