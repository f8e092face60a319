//! Striate's one binary: the command line, the server, and the tools that operate it.
//!
//! | module | what |
//! |--|--|
//! | [`args`], [`config`], [`ellipsis`] | the command line, variables and files |
//! | [`run`] | one command, from its arguments to its end |
//! | [`start`] | from directories to a running store: identities, rosters, admission |
//! | [`server`] | everything wired together, until a signal |
//! | [`site_process`], [`gateway_process`], [`control_process`] | the processes of a cluster |
//! | [`identity`], [`membership`], [`remote_sites`] | how they know, find and reach each other |
//! | [`admin`], [`operate`] | the admin socket: status, heal, verify, disks, keys, metadata; and its commands |
//! | [`console`], [`metrics`], [`spans`] | the status page, health, metrics; spans for OpenTelemetry |
//! | [`s3_client`] | a small client of any S3 store |
//! | [`transfer`] | `cp`, `ls`, `rm`, `cat` |
//! | [`mod@bench`] | workloads against any S3 store, measured |
//! | [`interruption`] | Ctrl-C |
//!
//! Everything here only wires other crates together: no code, plan, record or S3 semantics is decided here.

// Every `println!` here survives `| head`: these stand before the standard library's (`striate_runtime::output`).
#[macro_use(eprintln, print, println)]
extern crate striate_runtime;

pub mod admin;
pub mod args;
pub mod audit_log;
pub mod bench;
pub mod config;
pub mod console;
pub mod control_process;
pub mod ellipsis;
pub mod failure;
pub mod gateway_process;
pub mod identity;
pub mod interruption;
pub mod logging;
pub mod membership;
pub mod metrics;
pub mod operate;
pub mod remote_sites;
pub mod run;
pub mod s3_client;
pub mod server;
pub mod site_process;
pub mod spans;
pub mod start;
pub mod transfer;
