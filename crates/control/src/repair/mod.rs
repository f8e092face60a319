//! Repair (EC-Store §V-C, ECWide §4.1): finds lost chunks, and rebuilds them.
//!
//! [`repair_stripe`] repairs one stripe; [`heal`] repairs all of them on request, and [`service`] automatically.
//! [`scrub`] and [`verify`] read what is stored and find damage.

pub mod absence;
pub mod heal;
pub mod pace;
pub(crate) mod progress;
pub mod returned;
pub mod scrub;
pub mod service;
mod stripe;
pub mod verify;
pub(crate) mod wide_losses;
pub(crate) mod work_list;

pub(crate) use stripe::state_after;
pub use stripe::{RepairOutcome, repair_stripe};
