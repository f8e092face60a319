//! Striate's single binary: the server, the processes of a cluster, and the commands that operate them. The command
//! line is [`striate_commands`].
//!
//! | module | content |
//! |--|--|
//! | [`run`] | one command, from its arguments to its end |
//! | [`start`] | from directories to a running store: identities, rosters, admission |
//! | [`server`] | everything wired together, until a signal |
//! | [`site_process`], [`gateway_process`], [`control_process`] | the processes of a cluster |
//! | [`identity`], [`membership`], [`remote_sites`] | how they identify, find and reach each other |
//! | [`admin`] | the server's side of the admin socket: status, heal, verify, disks, keys, metadata |
//! | [`administer`] | `striate admin`: a cluster's authority and sites, metadata from one engine to another |
//! | [`console`], [`metrics`], [`spans`] | the status page, health, metrics; spans for OpenTelemetry |
//! | [`logging`], [`thinning`] | structured logs, and how lines that repeat are left out |
//! | `resident` | the resident memory of the process |
//!
//! Everything here only wires other crates together; it decides nothing about codes, plans, records or S3 semantics.

// Every `println!` here survives `| head` and moves no cursor: these macros shadow the standard library's.
#[macro_use(println)]
extern crate striate_commands;

pub mod admin;
pub mod administer;
pub mod audit_log;
pub mod console;
pub mod control_process;
pub mod ellipsis;
pub mod first_key;
pub mod gateway_process;
pub mod identity;
pub mod logging;
pub mod membership;
pub mod metrics;
pub mod remote_sites;
mod resident;
pub mod run;
pub mod server;
pub mod site_process;
pub mod spans;
pub mod start;
pub mod thinning;
