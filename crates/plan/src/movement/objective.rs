//! The value of a move.

use striate_core::StripeId;

use super::loads::LoadShift;
use super::state::{CostScale, MovementBlock, MovementSite, MovementState, Traffic};

/// How the terms of Eq. 8 are computed and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Δ = w1·E + w2·I as published.
    Published {
        /// w1.
        access_weight: f64,
        /// w2.
        balance_weight: f64,
    },
    /// Shares of the cost of all requests; see the module.
    Improved {
        /// Weight of the saved share of the cost of requests.
        access_weight: f64,
        /// Weight of the share of the load that moves, times how much lower the load at its destination is.
        balance_weight: f64,
        /// Number of requests within which a move must save as much as one request costs.
        pays_within: f64,
        /// Maximum number of blocks that move together.
        group_len: usize,
    },
}

/// E or its equivalent, with the sum it is relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AccessGain {
    /// Σ λ · (cost before − cost after).
    pub saved: f64,
    /// Σ λ · cost before.
    pub before: f64,
}

impl Objective {
    /// Returns the published objective with w1 = 1 and w2 = 3, which the paper found best (§V-B3).
    pub fn published() -> Self {
        Self::published_with(3.0)
    }

    /// Returns the published objective with w1 = 1 and this w2, for parameter searches.
    pub fn published_with(balance_weight: f64) -> Self {
        Self::Published { access_weight: 1.0, balance_weight }
    }

    /// Returns the improved objective. Both shares have equal weight, and groups have up to 16 blocks, twice as many as
    /// writes place together. Moving a chunk counts as much as one request and must pay for itself within 100,000
    /// requests: a busy store serves them in seconds, and an idle one has time.
    pub fn improved() -> Self {
        Self::Improved { access_weight: 1.0, balance_weight: 1.0, pays_within: 100_000.0, group_len: 16 }
    }

    /// Creates the state of these blocks on these sites, with this objective's costs. `requests` are sets of blocks
    /// requested together; [`MovementBlock::requests`] holds positions in it.
    pub fn state(
        self,
        sites: Vec<MovementSite>,
        blocks: Vec<MovementBlock>,
        requests: &[Vec<StripeId>],
        traffic: Traffic,
    ) -> MovementState {
        let scale = match self {
            Self::Published { .. } => CostScale::Published,
            Self::Improved { .. } => CostScale::Measured,
        };
        MovementState::new(sites, blocks, requests, traffic, scale)
    }

    /// Returns whether moves are judged by whole requests rather than by pairs of blocks.
    pub fn counts_requests(self) -> bool {
        matches!(self, Self::Improved { .. })
    }

    /// Maximum number of blocks that move together.
    pub(super) fn group_len(self) -> usize {
        match self {
            Self::Published { .. } => 1,
            Self::Improved { group_len, .. } => group_len,
        }
    }

    /// Gain that each move of a plan must exceed.
    pub(super) fn least_gain(self) -> f64 {
        match self {
            Self::Published { .. } => 0.0,
            Self::Improved { pays_within, .. } => 1.0 / pays_within,
        }
    }

    /// Returns w1 times the saving of reads. `popularity` is that of the block to which `gain` is relative.
    pub(super) fn of_access(self, gain: AccessGain, popularity: f64) -> f64 {
        match self {
            Self::Published { access_weight, .. } => access_weight * gain.saved,
            Self::Improved { access_weight, .. } if gain.before > 0.0 => {
                access_weight * popularity * gain.saved / gain.before
            }
            Self::Improved { .. } => 0.0,
        }
    }

    /// Returns w2 times the gain in balance; `None` if the move would break the balance.
    pub(super) fn of_balance(
        self,
        state: &MovementState,
        from: usize,
        to: usize,
        shift: LoadShift,
    ) -> Option<f64> {
        let (loads, total) = (&state.loads, shift.total());
        match self {
            Self::Published { balance_weight, .. } => {
                Some(balance_weight * loads.published_gain(from, to, total))
            }
            Self::Improved { balance_weight, .. } => loads
                .keeps_balance(from, to, total)
                .then(|| balance_weight * loads.square_gain(from, to, total)),
        }
    }
}
