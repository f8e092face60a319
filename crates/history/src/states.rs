//! Sets of states of one key, as conditions and observations speak of them.

/// What a key is: absent, or one of the versions that matter, or some other version.
pub(super) type State = u32;

/// There is no object.
pub(super) const ABSENT: State = 0;
/// There is an object that nobody saw or named.
pub(super) const OTHER: State = 1;
/// The first of the versions that somebody saw or named.
pub(super) const FIRST_VERSION: State = 2;

/// A set of states.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum States {
    /// These, in ascending order.
    In(Vec<State>),
    /// All but these, in ascending order.
    NotIn(Vec<State>),
}

impl States {
    /// All.
    pub(super) fn any() -> Self {
        Self::NotIn(Vec::new())
    }

    /// Only that there is no object.
    pub(super) fn absent() -> Self {
        Self::In(vec![ABSENT])
    }

    /// Any object.
    pub(super) fn present() -> Self {
        Self::NotIn(vec![ABSENT])
    }

    /// These.
    pub(super) fn of(mut states: Vec<State>) -> Self {
        states.sort_unstable();
        states.dedup();
        Self::In(states)
    }

    /// All others.
    pub(super) fn others(self) -> Self {
        match self {
            Self::In(states) => Self::NotIn(states),
            Self::NotIn(states) => Self::In(states),
        }
    }

    /// These and one more.
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

    /// The states that it names, in or out.
    pub(super) fn named(&self) -> &[State] {
        let (Self::In(states) | Self::NotIn(states)) = self;
        states
    }

    /// The only state in it, if there is one only.
    pub(super) fn single(&self) -> Option<State> {
        match self {
            Self::In(states) if states.len() == 1 => Some(states[0]),
            _ => None,
        }
    }

    /// The same sets of states under other names. States without a new name become [`OTHER`], which only sets
    /// that do not name them may be asked about.
    pub(super) fn renamed(&self, rename: impl Fn(State) -> State) -> Self {
        let named = self.named().iter().map(|&state| rename(state)).collect();
        match self {
            Self::In(_) => Self::of(named),
            Self::NotIn(_) => Self::of(named).others(),
        }
    }
}
