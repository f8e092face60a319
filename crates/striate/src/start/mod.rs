//! Starting a server: from directories on the command line to a running store.
//!
//! 1. [`directories`]: what each directory holds: nothing, a member of a cluster, or other files.
//! 2. [`plan`]: the decision, a pure function: first start, restart, degraded restart, or refusal. [`remains`]: files
//!    that a wipe has missed, and when they may be moved aside for a new member.
//!    [`prepare`]: the first two steps.
//! 3. [`roster`]: the file in every directory that names the cluster's members.
//! 4. [`cluster`]: opens sites and metadata, keeps rows and roster in step, admits and replaces disks.
//!
//! [`modes`] makes files that older releases left readable private.
//!
//! [`offline`] opens the metadata alone, while no server runs.
//!
//! Nothing is written before the plan is accepted; a refusal changes nothing on any disk.

pub mod attempts;
pub mod cluster;
pub mod directories;
pub mod lock;
pub mod modes;
pub mod offline;
pub mod plan;
pub mod prepare;
pub mod remains;
pub mod roster;
pub mod sealing;
pub mod site;
