//! Sets of states of one key, for conditions and observations.

/// State of a key: absent, one of the versions that matter, or some other version.
pub(super) type State = u32;

/// There is no object.
pub(super) const ABSENT: State = 0;
/// There is an object that no operation saw or named.
pub(super) const OTHER: State = 1;
/// The first of the versions that some operation saw or named.
pub(super) const FIRST_VERSION: State = 2;

/// A set of states.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum States {
    /// These states, in ascending order.
    In(Vec<State>),
    /// All states except these, in ascending order.
    NotIn(Vec<State>),
}

impl States {
    /// All states.
    pub(super) fn any() -> Self {
        Self::NotIn(Vec::new())
    }

    /// Only the absent state.
    pub(super) fn absent() -> Self {
        Self::In(vec![ABSENT])
    }

    /// All states with an object.
    pub(super) fn present() -> Self {
        Self::NotIn(vec![ABSENT])
    }

    /// Exactly these states.
    pub(super) fn of(mut states: Vec<State>) -> Self {
        states.sort_unstable();
        states.dedup();
        Self::In(states)
    }

    /// The complement.
    pub(super) fn others(self) -> Self {
        match self {
            Self::In(states) => Self::NotIn(states),
            Self::NotIn(states) => Self::In(states),
        }
    }

    /// Adds a state.
    pub(super) fn with(self, state: State) -> Self {
        match self {
            Self::In(mut states) => {
                states.push(state);
                Self::of(states)
            }
            Self::NotIn(mut states) => {
                states.retain(|&other| other != state);
                Self::NotIn(states)
            }
        }
    }

    pub(super) fn contains(&self, state: State) -> bool {
        match self {
            Self::In(states) => states.binary_search(&state).is_ok(),
            Self::NotIn(states) => states.binary_search(&state).is_err(),
        }
    }

    /// The states that the set names, as in or out.
    pub(super) fn named(&self) -> &[State] {
        let (Self::In(states) | Self::NotIn(states)) = self;
        states
    }

    /// The only state in the set, if it has exactly one.
    pub(super) fn single(&self) -> Option<State> {
        match self {
            Self::In(states) if states.len() == 1 => Some(states[0]),
            _ => None,
        }
    }

    /// The same set under other names. States without a new name become [`OTHER`]; only sets that do not name them may
    /// be asked about it.
    pub(super) fn renamed(&self, rename: impl Fn(State) -> State) -> Self {
        let named = self.named().iter().map(|&state| rename(state)).collect();
        match self {
            Self::In(_) => Self::of(named),
            Self::NotIn(_) => Self::of(named).others(),
        }
    }
}
