//! Which options of a query's pieces cost least by EC-Store's Eq. 1 (§IV-B), if pieces have other options than "any k
//! of n".
//!
//! Asking site j costs o_j once, and each chunk from there its transfer and decoding
//! ([`crate::solver::piece_options`]):
//!
//! ```text
//! Σ_j o_j a_j + Σ z m_j and decoding, over all that is taken       a_j = 1 where anything is
//! ```
//!
//! Given the open sites, each piece takes its cheapest option, so a plan is a set of open sites.
//! [`crate::solver::access`] solves the same problem for blocks that any k chunks determine. Its prices, one for each
//! block, carry no information where one chunk is worth six others; here each piece has a price for each of its sites.
//!
//! 1. *Merge* pieces that want the same chunk (`model`), and *settle* sites that some optimal plan opens (`settle`).
//! 2. *Prices* that pieces pay for sites (`dual`) bound every plan from below: ascent, then Polyak steps.
//! 3. *Plans* (`open_sites`) close sites in the order of these prices, and exchange some.
//! 4. *Search* (`branch`) proves the best plan optimal or finds a better one, as far as the budget goes. If the budget
//!    ends first, the plan comes with the bound proven so far.
//!
//! The table shows how many of 100 queries ([`instances`]) were proven optimal within the budget of a read
//! ([`crate::solver::access::BUDGET_OF_200_US`]). In brackets: how far the plans of all 100 were above their bounds in
//! the mean, and above the plans of a run of 60,000 work units, nearly all of them proven optimal.
//!
//! | sites, pieces | 5 | 10 | 20 | 50 |
//! |--|--|--|--|--|
//! | 32, `rs(6,3)` | 100 | 98 (0.1%, 0.00%) | 68 (1.9%, 0.12%) | 19 (8%) |
//! | 32, `lrc(6,2,2)` | 100 | 90 (0.8%, 0.06%) | 14 (8%, 0.9%) | 1 (26%) |
//! | 32, the same with copies | 100 | 97 (0.2%, 0.04%) | 18 (8%, 0.9%) | 1 (29%) |
//! | 32, half split | 100 | 100 | 87 (0.5%, 0.10%) | 24 (5%) |
//! | 32, `lrc(6,2,2)`, neighbours | 100 | 100 | 100 | 91 (0.3%) |
//! | 98, `rs(6,3)` | 100 | 100 | 97 (0.05%, 0.02%) | 5 (8%) |
//! | 98, `lrc(6,2,2)` | 100 | 100 | 74 (0.7%, 0.06%) | 1 (22%) |
//! | 98, the same with copies | 100 | 100 | 76 (0.8%, 0.09%) | 0 (22%) |
//! | 98, half split | 100 | 100 | 100 | 11 (3%) |
//! | 98, `lrc(6,2,2)`, neighbours | 100 | 100 | 100 | 94 (0.2%) |
//!
//! A plan took 3 to 18 µs in the median for 5 pieces, 5 to 80 for 10 and 15 to 210 for 20, on one core of a machine
//! with other load.
//!
//! [`check_alternatives`] judges plans without knowing any of this.

mod branch;
mod check;
mod choice;
mod dual;
pub mod instances;
mod model;
mod open_sites;
mod problem;
mod settle;
mod solve;

#[cfg(test)]
mod tests;

pub use check::{AlternativesFault, check_alternatives};
pub use problem::AlternativesProblem;
pub use solve::{AlternativesPlan, AlternativesWorkspace, solve};

/// Relative precision of proofs: what sums of floating-point numbers lose.
const PRECISION: f64 = 1e-10;
