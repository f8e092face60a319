//! Searches for an order of one key's operations that explains all answers.
//!
//! The search of Wing and Gong (J. Parallel Distrib. Comput. 17, 1993): among the operations that no other one precedes
//! in real time, it puts one that the state allows next, and backtracks if that leads nowhere. As proposed by Lowe
//! (Concurrency Computat.: Pract. Exper. 29(4), 2017), it drops a *configuration*, which is the set of operations so
//! far and the state, that was visited before.
//!
//! Properties of keys of an object store make it fast without missing any order:
//! - An observation is put in as soon as the state allows it: it changes nothing.
//! - Writes with the same condition and the same effect are interchangeable: the one that must end first goes first.
//!   Operations without an answer never need to end, so those with an answer go before them.
//! - If no remaining operation can make the state again, all operations that saw it come before the next write. This is
//!   how Gibbons and Korach (SIAM J. Comput. 26(4), 1997) decide registers with unique values in polynomial time.
//! - A write without an answer is only put in if something after it would not fit without it.
//! - Of two configurations that differ in unanswered operations only, the one that used fewer of them can do all that
//!   the other can.
//!
//! The time is about linear if few answers are missing. At worst it is exponential in the number of concurrent writes
//! with different effects. Most expensive are copies of a key to itself whose version is unknown: any earlier version
//! may be back.

use std::collections::{HashMap, HashSet};

use super::states::{ABSENT, OTHER, State, States};

/// The end of an operation that need not happen.
pub(super) const OPEN: u32 = u32::MAX;

/// One operation on the key, or an observation of it by a listing or copy.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Rank of the call among all events of the history.
    pub(super) start: u32,
    /// Rank of the event by which the step has happened, or [`OPEN`].
    pub(super) end: u32,
    /// The step's effect.
    pub(super) action: Action,
    /// Index of the operation that the step belongs to.
    pub(super) operation: usize,
}

/// What a step does at its point in the order.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Finds the key in one of these states.
    Observe(States),
    /// Finds the key in one of the states `when` and makes it one of `to`.
    Write {
        /// The condition.
        when: States,
        /// One state, except for copies of unknown versions.
        to: Vec<State>,
    },
}

impl Action {
    /// The states in which the action can happen.
    fn allowed(&self) -> &States {
        match self {
            Self::Observe(states) | Self::Write { when: states, .. } => states,
        }
    }
}

/// Whether there is an order of the steps that starts with an absent key.
pub(super) fn search(steps: Vec<Step>) -> bool {
    let search = Search::new(steps);
    let mut visited = VisitedSet::default();
    let mut stack = Vec::new();
    let start = Configuration {
        low: 0,
        done: Vec::new(),
        used: Vec::new(),
        state: ABSENT,
        idle: None,
        left: Vec::new(),
    };
    if search.enter(start, &mut visited, &mut stack) {
        return true;
    }
    while let Some((configuration, choices)) = stack.last_mut() {
        let Some((step, state)) = choices.pop() else {
            stack.pop();
            continue;
        };
        let mut next = configuration.clone();
        next.put(step, search.mandatory);
        next.idle = (step >= search.mandatory).then_some(next.state);
        search.leave(&mut next, state);
        if search.enter(next, &mut visited, &mut stack) {
            return true;
        }
    }
    false
}

/// The steps, prepared for the search.
struct Search {
    /// The steps that must happen, in order of their start, then those that need not.
    steps: Vec<Step>,
    /// Number of steps that must happen.
    mandatory: usize,
    /// Class of each step. Interchangeable writes have the same class.
    classes: Vec<u32>,
    /// For each state, the steps that must find exactly this one.
    finders: HashMap<State, Vec<usize>>,
    /// For each state, the writes that make exactly this one.
    makers: HashMap<State, Vec<usize>>,
    /// Writes that make one of several.
    undecided: Vec<usize>,
}

/// A write that may come next, and the state that it makes.
type Choice = (usize, State);

impl Search {
    fn new(mut steps: Vec<Step>) -> Self {
        narrow_choices(&mut steps);
        bring_ends_forward(&mut steps);
        drop_useless(&mut steps);
        steps.sort_by_key(|step| (step.end == OPEN, step.start));
        let mandatory = steps.iter().take_while(|step| step.end != OPEN).count();
        let mut finders: HashMap<State, Vec<usize>> = HashMap::new();
        for (index, step) in steps[..mandatory].iter().enumerate() {
            if let Some(state) = step.action.allowed().single() {
                finders.entry(state).or_default().push(index);
            }
        }
        let (makers, undecided) = makers(&steps);
        let mut kinds = HashMap::new();
        let classes = steps.iter().map(|step| {
            let Action::Write { when, to } = &step.action else { return u32::MAX };
            let next = kinds.len() as u32;
            *kinds.entry((when.clone(), to.clone())).or_insert(next)
        });
        Self { classes: classes.collect(), finders, makers, undecided, mandatory, steps }
    }

    /// Puts in all observations that the state allows. Pushes the configuration with its choices if it is new. Returns
    /// true if everything has happened.
    fn enter(
        &self,
        mut configuration: Configuration,
        visited: &mut VisitedSet,
        stack: &mut Vec<(Configuration, Vec<Choice>)>,
    ) -> bool {
        let available = self.settle(&mut configuration);
        if configuration.low == self.mandatory {
            return true;
        }
        if configuration.left.len() <= self.undecided(&configuration) && visited.is_new(&configuration) {
            let choices = self.choices(&configuration, available);
            stack.push((configuration, choices));
        }
        false
    }

    /// Puts in all observations that the state allows. Returns the steps that are then available.
    fn settle(&self, configuration: &mut Configuration) -> Vec<usize> {
        loop {
            let available = self.available(configuration);
            let mut changed = false;
            for &index in &available {
                let Action::Observe(states) = &self.steps[index].action else { continue };
                if states.contains(configuration.state) {
                    configuration.idle = configuration.idle.filter(|&before| states.contains(before));
                    configuration.put(index, self.mandatory);
                    changed = true;
                }
            }
            if !changed {
                self.spend(configuration);
                return available;
            }
        }
    }

    /// The steps that no remaining step precedes.
    fn available(&self, configuration: &Configuration) -> Vec<usize> {
        let mut available = Vec::new();
        let mut horizon = OPEN;
        for index in configuration.low..self.mandatory {
            let step = &self.steps[index];
            if step.start > horizon {
                break;
            }
            if !configuration.has(index) {
                available.push(index);
                horizon = horizon.min(step.end);
            }
        }
        let open = self.mandatory..self.steps.len();
        let open = open.take_while(|&index| self.steps[index].start < horizon);
        available.extend(open.filter(|&index| !configuration.has_used(index - self.mandatory)));
        available
    }

    /// Marks unanswered writes whose condition can no longer hold as used.
    fn spend(&self, configuration: &mut Configuration) {
        for index in self.mandatory..self.steps.len() {
            let needed = self.steps[index].action.allowed().single();
            if needed
                .is_some_and(|state| state != configuration.state && !self.can_come(configuration, state))
            {
                configuration.put(index, self.mandatory);
            }
        }
    }

    /// Whether a write that has not happened can make the state.
    fn can_come(&self, configuration: &Configuration, state: State) -> bool {
        let left = |&&index: &&usize| !self.happened(configuration, index);
        let makes = |&index: &usize| match &self.steps[index].action {
            Action::Write { to, .. } => to.contains(&state),
            Action::Observe(_) => false,
        };
        self.has_maker(configuration, state) || self.undecided.iter().filter(left).any(makes)
    }

    /// Whether a write that makes exactly this state has not happened.
    fn has_maker(&self, configuration: &Configuration, state: State) -> bool {
        let makers = self.makers.get(&state).map_or(&[][..], Vec::as_slice);
        makers.iter().any(|&index| !self.happened(configuration, index))
    }

    /// Number of undecided writes that have not happened. Each state that was left too early needs one.
    fn undecided(&self, configuration: &Configuration) -> usize {
        self.undecided.iter().filter(|&&index| !self.happened(configuration, index)).count()
    }

    fn happened(&self, configuration: &Configuration, index: usize) -> bool {
        match index.checked_sub(self.mandatory) {
            None => configuration.has(index),
            Some(open) => configuration.has_used(open),
        }
    }

    /// The steps that have yet to find this state.
    fn waiting(&self, configuration: &Configuration, state: State) -> impl Iterator<Item = usize> {
        let finders = self.finders.get(&state).map_or(&[][..], Vec::as_slice);
        finders.iter().copied().filter(|&index| !configuration.has(index))
    }

    /// Changes the state after its write was put in.
    fn leave(&self, configuration: &mut Configuration, state: State) {
        let old = std::mem::replace(&mut configuration.state, state);
        if self.waiting(configuration, old).next().is_some() && !self.has_maker(configuration, old) {
            configuration.left.push(old);
        }
        configuration.left.retain(|&left| left != state);
    }

    /// The writes that may come next, the best one last.
    fn choices(&self, configuration: &Configuration, mut available: Vec<usize>) -> Vec<Choice> {
        let state = configuration.state;
        let mut waiting = self.waiting(configuration, state);
        let (waiting, more) = (waiting.next(), waiting.next().is_some());
        let may_leave =
            configuration.left.len() < self.undecided(configuration) || self.has_maker(configuration, state);
        available.sort_by_key(|&index| self.steps[index].end);
        let (mut classes, mut choices) = (Vec::new(), Vec::new());
        for index in available {
            let Action::Write { when, to } = &self.steps[index].action else { continue };
            let too_early = (more || waiting.is_some_and(|finder| finder != index)) && !may_leave;
            let idle = configuration.idle.is_some_and(|before| when.contains(before));
            if too_early || idle || !when.contains(state) || classes.contains(&self.classes[index]) {
                continue;
            }
            classes.push(self.classes[index]);
            choices.extend(to.iter().map(|&to| (index, to)));
        }
        choices.reverse();
        choices
    }
}

/// For each state, the writes that make exactly this one; and the writes that make one of several.
fn makers(steps: &[Step]) -> (HashMap<State, Vec<usize>>, Vec<usize>) {
    let (mut makers, mut undecided): (HashMap<State, Vec<usize>>, _) = (HashMap::new(), Vec::new());
    for (index, step) in steps.iter().enumerate() {
        match &step.action {
            Action::Write { to, .. } if to.len() == 1 => makers.entry(to[0]).or_default().push(index),
            Action::Write { .. } => undecided.push(index),
            Action::Observe(_) => {}
        }
    }
    (makers, undecided)
}

/// Merges the states of undecided writes that no later step looks for.
fn narrow_choices(steps: &mut [Step]) {
    let mut last_looked_for: HashMap<State, u32> = HashMap::new();
    for step in steps.iter() {
        for &state in step.action.allowed().named() {
            let last = last_looked_for.entry(state).or_default();
            *last = step.end.max(*last);
        }
    }
    for step in steps {
        let start = step.start;
        let Action::Write { to, .. } = &mut step.action else { continue };
        if to.len() > 1 {
            let looked_for = |state| last_looked_for.get(state).is_some_and(|&last| last > start);
            let renamed = to.iter().map(|state| if looked_for(state) { *state } else { OTHER });
            *to = renamed.collect();
            to.sort_unstable();
            to.dedup();
        }
    }
}

/// Brings the ends of writes forward: a write has happened by the end of a step that found what only this write can
/// have made.
fn bring_ends_forward(steps: &mut [Step]) {
    let (mut makers, undecided) = makers(steps);
    for index in undecided {
        if let Action::Write { to, .. } = &steps[index].action {
            to.iter().for_each(|state| drop(makers.remove(state)));
        }
    }
    for finder in 0..steps.len() {
        let found = steps[finder].action.allowed().single().filter(|&state| state != ABSENT);
        if let Some([maker]) = found.and_then(|state| makers.get(&state)).map(Vec::as_slice)
            && steps[finder].end < steps[*maker].end
        {
            steps[*maker].end = steps[finder].end;
        }
    }
}

/// Removes unanswered writes that cannot help: no step finds what they make, except steps that find anything.
fn drop_useless(steps: &mut Vec<Step>) {
    let everything = States::any();
    let found: HashSet<States> = steps
        .iter()
        .map(|step| step.action.allowed())
        .filter(|&states| *states != everything)
        .cloned()
        .collect();
    steps.retain(|step| match &step.action {
        Action::Write { to, .. } if step.end == OPEN => {
            to.iter().any(|&state| found.iter().any(|states| states.contains(state)))
        }
        _ => true,
    });
}

/// The steps that have happened, and the state after them.
#[derive(Clone, Debug)]
struct Configuration {
    /// All mandatory steps before this index have happened.
    low: usize,
    /// Bits of the mandatory steps that have happened, from the word of `low` on.
    done: Vec<u64>,
    /// Bits of the other steps that have happened.
    used: Vec<u64>,
    state: State,
    /// If the last write was an unanswered one that no step has needed so far: the state before it.
    idle: Option<State>,
    /// States that were left although steps had yet to find them, and that only an undecided write can make again. They
    /// follow from the other fields.
    left: Vec<State>,
}

impl Configuration {
    fn has(&self, index: usize) -> bool {
        index < self.low || has_bit(&self.done, index - self.low / 64 * 64)
    }

    fn has_used(&self, open: usize) -> bool {
        has_bit(&self.used, open)
    }

    fn put(&mut self, index: usize, mandatory: usize) {
        if index >= mandatory {
            return set_bit(&mut self.used, index - mandatory);
        }
        set_bit(&mut self.done, index - self.low / 64 * 64);
        while self.has(self.low) {
            self.low += 1;
            if self.low.is_multiple_of(64) {
                self.done.remove(0);
            }
        }
    }
}

fn has_bit(words: &[u64], bit: usize) -> bool {
    words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

fn set_bit(words: &mut Vec<u64>, bit: usize) {
    if words.len() <= bit / 64 {
        words.resize(bit / 64 + 1, 0);
    }
    words[bit / 64] |= 1 << (bit % 64);
}

/// A configuration without its `used` and `left`.
type VisitKey = (usize, Vec<u64>, State, Option<State>);

/// Configurations that were visited: for each set of mandatory steps and each state, the minimal sets of the others.
#[derive(Default)]
struct VisitedSet {
    used: HashMap<VisitKey, Vec<Vec<u64>>>,
}

impl VisitedSet {
    /// Whether no visited configuration can do all that this one can.
    fn is_new(&mut self, configuration: &Configuration) -> bool {
        let Configuration { low, done, used, state, idle, left: _ } = configuration;
        let used_sets = self.used.entry((*low, done.clone(), *state, *idle)).or_default();
        if used_sets.iter().any(|known| is_subset(known, used)) {
            return false;
        }
        used_sets.retain(|known| !is_subset(used, known));
        used_sets.push(used.clone());
        true
    }
}

fn is_subset(a: &[u64], b: &[u64]) -> bool {
    a.iter().enumerate().all(|(index, word)| word & !b.get(index).copied().unwrap_or(0) == 0)
}
