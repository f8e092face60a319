//! What the papers compare with: read policies that exist to be measured, and that no store offers.
//!
//! - [`random`]: any sufficient set, each as likely (EC-Store's EC and R), with extra chunks (EC+LB; EC-Cache's k + Δ).
//! - [`least_loaded`]: the chunks on the sites of least cost, one after the other.
//! - [`published`]: EC-Store's cost model as published, with its [heuristic and cache of plans](plan_cache).

pub mod least_loaded;
pub mod plan_cache;
pub mod published;
pub mod random;

use striate_plan::{PolicyError, ReadPolicy};

use least_loaded::LeastLoaded;
use published::Published;
use random::Random;

/// Reads a policy's text: one of these, or one that a store offers.
///
/// # Errors
/// [`PolicyError`] for a text that is none of them.
pub fn read_policy(text: &str) -> Result<ReadPolicy, PolicyError> {
    let (text_of_name, keep) = match text.strip_suffix(",keep)") {
        Some(front) => (format!("{front})"), true),
        None => (text.to_owned(), false),
    };
    match (striate_plan::name_and_extra_reads(&text_of_name), keep) {
        (Some(("random", None)), false) => Ok(ReadPolicy::new(Random::default())),
        (Some(("late-binding", Some(extra_reads))), _) => Ok(ReadPolicy::new(Random {
            late_binding: Some(random::LateBinding { extra_reads, cancel: !keep }),
        })),
        (Some(("least-loaded", None)), false) => Ok(ReadPolicy::new(LeastLoaded)),
        (Some(("published", extra_reads)), false) => {
            Ok(ReadPolicy::new(Published { extra_reads: extra_reads.unwrap_or(0) }))
        }
        _ => text.parse(),
    }
}

#[cfg(test)]
mod tests;
