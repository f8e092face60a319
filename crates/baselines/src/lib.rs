//! The papers' baselines: read policies and codes that exist to be measured, and that no store offers.
//!
//! - [`random`]: any sufficient set, each equally likely (EC-Store's EC and R), with extra chunks (EC+LB; EC-Cache's k
//!   + Δ).
//! - [`least_loaded`]: the chunks on the sites of least cost, one after the other.
//! - [`published`]: EC-Store's cost model as published, with its [heuristic and cache of plans](plan_cache).
//! - Hu et al. (SoCC'17, §3.1): [`normal_with_time_out`] (Normal), [`least_first`] (LLF, LMLF, LLF-PW2, LMLF-PW2),
//!   [`lmlf_lazy`], [`opt_lazy`].
//! - ECWide (FAST'21, §3.3): [`locality_codes`], the locally repairable codes that it chooses among.

pub mod least_first;
pub mod least_loaded;
pub mod lmlf_lazy;
pub mod locality_codes;
pub mod normal_with_time_out;
pub mod opt_lazy;
pub mod plan_cache;
pub mod published;
pub mod random;

mod directing;

use striate_plan::{OptionMetric, PolicyError, ReadPolicy};

use least_first::{LeastFirst, ProbeScope};
use least_loaded::LeastLoaded;
use lmlf_lazy::LmlfLazy;
use normal_with_time_out::NormalWithTimeOut;
use opt_lazy::{DegradedReads, OptLazy};
use published::PublishedPolicy;
use random::Random;

/// Parses a policy: one of these, or one that a store offers.
///
/// # Errors
/// [`PolicyError`] for any other text.
pub fn read_policy(text: &str) -> Result<ReadPolicy, PolicyError> {
    if let Some(policy) = load_directing(text) {
        return Ok(policy);
    }
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
            Ok(ReadPolicy::new(PublishedPolicy { extra_reads: extra_reads.unwrap_or(0) }))
        }
        _ => text.parse(),
    }
}

/// The policies of Hu et al.
fn load_directing(text: &str) -> Option<ReadPolicy> {
    use OptionMetric::{Latency, MarginalLoad};
    let least = |metric, probing| ReadPolicy::new(LeastFirst { metric, probing });
    Some(match text {
        "llf" => least(Latency, ProbeScope::All),
        "lmlf" => least(MarginalLoad, ProbeScope::All),
        "llf-pw2" => least(Latency, ProbeScope::PowerOfTwo),
        "lmlf-pw2" => least(MarginalLoad, ProbeScope::PowerOfTwo),
        "lmlf-lazy" => ReadPolicy::new(LmlfLazy),
        "opt-lazy" => ReadPolicy::new(OptLazy { degraded: DegradedReads::One }),
        "opt-lazy(all)" => ReadPolicy::new(OptLazy { degraded: DegradedReads::All }),
        _ => ReadPolicy::new(NormalWithTimeOut::parse(text)?),
    })
}

#[cfg(test)]
mod tests;
