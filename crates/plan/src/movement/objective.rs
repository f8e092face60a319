//! What a move is worth.

use striate_core::StripeId;

use super::loads::Shift;
use super::state::{CostScale, MovementBlock, MovementSite, MovementState, Traffic};

/// How the terms of Eq. 8 are taken and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Δ = w1·E + w2·I as published.
    Published {
        /// w1.
        access_weight: f64,
        /// w2.
        balance_weight: f64,
    },
    /// Shares of what all requests cost; see the module.
    Improved {
        /// Of the share of the cost of requests that is saved.
        access_weight: f64,
        /// Of the share of the load that moves, times how much less load it meets.
        balance_weight: f64,
        /// Requests within which a move must have saved as much as a request costs.
        pays_within: f64,
        /// Blocks that move together at most.
        group_len: usize,
    },
}

/// E or what stands for it, and the sums that it is relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AccessGain {
    /// Σ λ (cost before − cost after).
    pub saved: f64,
    /// Σ λ cost before.
    pub before: f64,
}

impl Objective {
    /// w1 = 1, w2 = 3, which the paper found best (§V-B3).
    pub fn published() -> Self {
        Self::published_with(3.0)
    }

    /// w1 = 1 and this w2, to search over it.
    pub fn published_with(balance_weight: f64) -> Self {
        Self::Published { access_weight: 1.0, balance_weight }
    }

    /// Both shares alike; twice as many blocks together as writes bring together. Moving a chunk is taken to cost as much as a
    /// request does, and pays for itself within 100,000 requests: in seconds where a store is busy, and where it is not there
    /// is time.
    pub fn improved() -> Self {
        Self::Improved { access_weight: 1.0, balance_weight: 1.0, pays_within: 100_000.0, group_len: 16 }
    }

    /// The state of these blocks on these sites, as this objective sees costs; `requests` are blocks that were asked for
    /// together, to which [`MovementBlock::requests`] points.
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

    /// Whether moves are judged by whole requests, and not by pairs of blocks.
    pub fn counts_requests(self) -> bool {
        matches!(self, Self::Improved { .. })
    }

    /// Blocks that move together at most.
    pub(super) fn group_len(self) -> usize {
        match self {
            Self::Published { .. } => 1,
            Self::Improved { group_len, .. } => group_len,
        }
    }

    /// Each move of a plan must be worth more.
    pub(super) fn least_gain(self) -> f64 {
        match self {
            Self::Published { .. } => 0.0,
            Self::Improved { pays_within, .. } => 1.0 / pays_within,
        }
    }

    /// w1 times what reads save. `popularity` is that of the block which `gain` is relative to.
    pub(super) fn of_access(self, gain: AccessGain, popularity: f64) -> f64 {
        match self {
            Self::Published { access_weight, .. } => access_weight * gain.saved,
            Self::Improved { access_weight, .. } if gain.before > 0.0 => {
                access_weight * popularity * gain.saved / gain.before
            }
            Self::Improved { .. } => 0.0,
        }
    }

    /// w2 times what the balance gains; `None` where the move is not to be made.
    pub(super) fn of_balance(
        self,
        state: &MovementState,
        from: usize,
        to: usize,
        shift: Shift,
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
