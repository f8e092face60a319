//! Groups: blocks that are asked for together, moved together.
//!
//! Where the chunks of several such blocks lie on one site s, moving one of them to d may gain nothing: who reads both then
//! asks s and d. Moving all of them keeps them together. What the group gains is what its moves gain one after the other.

use super::gains::AccessGains;
use super::loads::Shift;
use super::objective::{AccessGain, Objective};
use super::state::{ChunkMove, MovementState};

/// A partner belongs to the group if so many of the requests for the block ask for it as well.
const TOGETHER: f64 = 0.5;

/// Finds what groups gain; keeps its memory.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupGains {
    gains: AccessGains,
    /// (block, index of its chunk at the source).
    members: Vec<(usize, usize)>,
}

/// A group's move.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupMove {
    pub gain: f64,
    pub moves: Vec<ChunkMove>,
}

impl GroupGains {
    /// The block and its partners that have a chunk at `source`, the most likely first. `false`: it is alone.
    pub(super) fn begin(&mut self, state: &MovementState, block: usize, source: usize, most: usize) -> bool {
        self.members.clear();
        let partners = state.blocks[block].partners.iter();
        let together =
            partners.filter(|(_, likelihood)| *likelihood >= TOGETHER).map(|(partner, _)| *partner);
        for member in std::iter::once(block).chain(together).take(most) {
            let of = &state.blocks[member];
            if let Some(index) = of.at.iter().position(|&at| at == Some(source))
                && of.is_readable()
            {
                self.members.push((member, index));
            }
        }
        self.members.len() > 1
    }

    /// How many move together at most.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// What moving all of them that `to` may take is worth; the state is the same afterwards. `None` if fewer than two
    /// may go there, or the balance would suffer.
    pub(super) fn at(
        &mut self,
        state: &mut MovementState,
        objective: Objective,
        from: usize,
        to: usize,
    ) -> Option<GroupMove> {
        let Self { gains, members } = self;
        let (mut shift, mut moves, mut of_access) = (Shift::default(), Vec::new(), 0.0);
        let (loads, leader) = (state.loads.clone(), members.first()?.0);
        let mut moved = Vec::new();
        // What is saved counts beside what requests for the first of the group cost.
        let mut before = 0.0;
        for &(member, index) in members.iter() {
            if !state.may_take(member, from, to) || !gains.begin_block(state, member, objective) {
                continue;
            }
            gains.begin_source(state, index);
            let gain = gains.at(state, to);
            before = if member == leader { gain.before } else { before };
            let gain = AccessGain { saved: gain.saved, before };
            of_access += objective.of_access(gain, state.blocks[member].popularity);
            let of_member = loads.shift_of(&state.blocks[member], from);
            shift.dynamic += of_member.dynamic;
            shift.stored += of_member.stored;
            moves.push(state.move_of(member, index, from, to));
            state.shift(member, index, to);
            moved.push((member, index));
        }
        for (member, index) in moved.into_iter().rev() {
            state.shift(member, index, from);
        }
        state.loads = loads;
        if moves.len() < 2 || before <= 0.0 {
            return None;
        }
        let gain = of_access + objective.of_balance(state, from, to, shift)?;
        Some(GroupMove { gain, moves })
    }
}
