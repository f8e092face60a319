//! A history as seen from one key: what each operation did to it or showed of it.
//!
//! Versions that no operation saw or named share one state, [`OTHER`]. An ETag stands for the value that it was first
//! seen with. A version whose ETag is not known can be the one that an ETag of the same value, or of no known value,
//! refers to.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::operation::{Call, Condition, Effect, ObservedObject, Operation, Outcome};
use super::search::{Action, OPEN, Step};
use super::states::{ABSENT, FIRST_VERSION, OTHER, State, States};
use super::{Value, Violation};

/// A value with its ETag, if known.
type Candidate<'a> = (Value, Option<&'a str>);

/// The first call to write each value.
type FirstCalls = HashMap<Value, (u64, usize)>;

/// All operations, and knowledge of values across keys.
pub(super) struct Projection<'a> {
    operations: &'a [Operation],
    /// Ranks of each operation's call and answer among all events.
    ranks: Vec<(u32, u32)>,
    /// The values that ETags stand for.
    etags: HashMap<&'a str, Value>,
    first_calls: FirstCalls,
    /// The versions that each key may have been.
    candidates: BTreeMap<&'a str, BTreeSet<Candidate<'a>>>,
}

/// One key's steps.
pub(super) struct KeySteps {
    pub(super) steps: Vec<Step>,
    /// The versions of the states from [`FIRST_VERSION`] on.
    pub(super) versions: Vec<(Value, Option<String>)>,
}

impl<'a> Projection<'a> {
    /// Prepares the operations.
    ///
    /// # Errors
    /// If one ETag stands for two values, or an answer names another ETag than its call announced.
    pub(super) fn new(operations: &'a [Operation]) -> Result<Self, Violation> {
        let etags = etags(operations)?;
        let first_calls = first_calls(operations);
        let candidates = candidates(operations, &etags, &first_calls);
        Ok(Self { operations, ranks: ranks(operations), etags, first_calls, candidates })
    }

    /// Every key that is written or shown.
    pub(super) fn keys(&self) -> BTreeSet<&'a str> {
        let mut keys = BTreeSet::new();
        for operation in self.operations {
            match &operation.call {
                Call::Get { key } | Call::Head { key } => keys.extend([key.as_str()]),
                Call::Copy { from, to, .. } => keys.extend([from.as_str(), to.as_str()]),
                call => keys.extend(call.written()),
            }
            if let Outcome::Listed { entries, .. } = operation.outcome() {
                keys.extend(entries.iter().map(|(key, _)| key.as_str()));
            }
        }
        keys
    }

    /// The steps of one key.
    pub(super) fn of(&self, key: &str) -> KeySteps {
        let table = Table::new(self.candidates.get(key), &self.etags);
        let mut steps = Vec::new();
        for index in 0..self.operations.len() {
            let (start, end) = self.ranks[index];
            let mut push = |action, end| steps.push(Step { start, end, action, operation: index });
            if let Some(states) = self.observation(&table, index, key) {
                push(Action::Observe(states), end);
            }
            if let Some(action) = self.write(&table, index, key) {
                push(action, if self.operations[index].effect() == Effect::Took { end } else { OPEN });
            }
        }
        table.keep_named(steps)
    }

    /// The states of a key that an operation shows without changing it.
    fn observation(&self, table: &Table<'_>, index: usize, key: &str) -> Option<States> {
        let operation = &self.operations[index];
        let refused = || operation.call.written() == Some(key);
        match (&operation.call, operation.outcome()) {
            (Call::Get { key: read } | Call::Head { key: read }, Outcome::Read(seen)) if read == key => {
                Some(seen.as_ref().map_or_else(States::absent, |seen| table.showing(seen)))
            }
            (Call::List { prefix, after }, Outcome::Listed { entries, through }) => {
                let entry = entries.iter().find(|(listed, _)| listed == key);
                let spoken_of = key.starts_with(prefix.as_str())
                    && key > after.as_str()
                    && through.as_ref().is_none_or(|through| key <= through.as_str());
                match entry {
                    Some((_, seen)) => Some(table.showing(seen)),
                    None => spoken_of.then(States::absent),
                }
            }
            (Call::Copy { from, .. }, Outcome::Done { .. }) if from == key => {
                let value = resolved(operation, &self.etags);
                Some(value.map_or_else(States::present, |value| table.showing(&ObservedObject::value(value))))
            }
            (Call::Copy { from, condition, .. }, Outcome::NoSuchKey) => {
                let sure = from == key && !matches!(condition, Condition::IfMatch(_));
                sure.then(States::absent)
            }
            (Call::Delete { condition: Condition::IfMatch(etag), .. }, Outcome::PreconditionFailed)
                if refused() =>
            {
                Some(table.surely(etag).with(ABSENT).others())
            }
            (call, Outcome::PreconditionFailed) if refused() => match condition(call) {
                Condition::None => None,
                Condition::IfNoneMatch => Some(States::present()),
                Condition::IfMatch(etag) => Some(table.surely(etag).others()),
            },
            (_, Outcome::NoSuchKey) if refused() => Some(States::absent()),
            _ => None,
        }
    }

    /// The action of an operation on a key.
    fn write(&self, table: &Table<'_>, index: usize, key: &str) -> Option<Action> {
        let operation = &self.operations[index];
        if operation.effect() == Effect::Never || operation.call.written() != Some(key) {
            return None;
        }
        let delete = matches!(operation.call, Call::Delete { .. });
        let when = match condition(&operation.call) {
            Condition::None => States::any(),
            Condition::IfNoneMatch => States::absent(),
            Condition::IfMatch(etag) => {
                let states =
                    table.showing(&ObservedObject { etag: Some(etag.clone()), ..ObservedObject::default() });
                if delete { states.with(ABSENT) } else { states }
            }
        };
        let to = match operation.version() {
            _ if delete => vec![ABSENT],
            Some(version) => vec![table.state(version)],
            None => {
                let copied = copied(operation, &self.etags, &self.first_calls, &self.candidates);
                copied.into_iter().map(|version| table.state(version)).chain([OTHER]).collect()
            }
        };
        // A copy of a known version can only be that one. A copy of an unknown one may be a version that is in no
        // table.
        let is_known =
            matches!(operation.call, Call::Copy { .. }) && resolved(operation, &self.etags).is_some();
        Some(Action::Write { when, to: if is_known { to[..1].to_vec() } else { to } })
    }
}

/// The condition of a write.
fn condition(call: &Call) -> &Condition {
    match call {
        Call::Put { condition, .. }
        | Call::CompleteMultipart { condition, .. }
        | Call::Copy { condition, .. }
        | Call::Delete { condition, .. } => condition,
        Call::Get { .. } | Call::Head { .. } | Call::List { .. } => &Condition::None,
    }
}

/// Ranks of calls and answers among all events. Events of one instant are in recording order.
fn ranks(operations: &[Operation]) -> Vec<(u32, u32)> {
    let mut events: Vec<_> = operations
        .iter()
        .enumerate()
        .flat_map(|(index, operation)| {
            let answered = operation.completed.as_ref().map(|(at, _)| (*at, index, false));
            [Some((operation.invoked, index, true)), answered].into_iter().flatten()
        })
        .collect();
    events.sort_unstable_by_key(|&(at, ..)| at);
    let mut ranks = vec![(0, OPEN); operations.len()];
    for (rank, (_, index, is_call)) in events.into_iter().enumerate() {
        let rank = rank as u32;
        if is_call { ranks[index].0 = rank } else { ranks[index].1 = rank }
    }
    ranks
}

/// The values that ETags stand for.
fn etags(operations: &[Operation]) -> Result<HashMap<&str, Value>, Violation> {
    let mut etags: HashMap<&str, (Value, usize)> = HashMap::new();
    for (index, operation) in operations.iter().enumerate() {
        let announced = match &operation.call {
            Call::Put { version, .. } | Call::CompleteMultipart { version, .. } => version.etag.as_deref(),
            _ => None,
        };
        let named = match (operation.version(), operation.outcome()) {
            (Some((value, Some(etag))), _) => {
                if announced.is_some_and(|announced| announced != etag) {
                    return Err(Violation::wrong_etag(operations, index));
                }
                Some((etag, value))
            }
            (_, Outcome::Read(Some(ObservedObject { value: Some(value), etag: Some(etag), .. }))) => {
                Some((etag.as_str(), *value))
            }
            _ => None,
        };
        let Some((etag, value)) = named else { continue };
        let &mut (first_value, first) = etags.entry(etag).or_insert((value, index));
        if first_value != value {
            return Err(Violation::shared_etag(operations, first, index, etag));
        }
    }
    Ok(etags.into_iter().map(|(etag, (value, _))| (etag, value)).collect())
}

fn first_calls(operations: &[Operation]) -> FirstCalls {
    let mut first_calls = FirstCalls::new();
    for operation in operations {
        if let Some((value, _)) = operation.version() {
            let first = first_calls.entry(value).or_insert(operation.invoked);
            *first = operation.invoked.min(*first);
        }
    }
    first_calls
}

/// The value that a copy wrote, if its ETag identifies it.
fn resolved(copy: &Operation, etags: &HashMap<&str, Value>) -> Option<Value> {
    match copy.outcome() {
        Outcome::Done { etag: Some(etag) } => etags.get(etag.as_str()).copied(),
        _ => None,
    }
}

/// The versions that a copy may have written.
fn copied<'a>(
    copy: &'a Operation,
    etags: &HashMap<&str, Value>,
    first_calls: &FirstCalls,
    candidates: &BTreeMap<&str, BTreeSet<Candidate<'a>>>,
) -> Vec<Candidate<'a>> {
    let Call::Copy { from, .. } = &copy.call else { return Vec::new() };
    let etag = match copy.outcome() {
        Outcome::Done { etag } => etag.as_deref(),
        _ => None,
    };
    if let Some(value) = resolved(copy, etags) {
        return vec![(value, etag)];
    }
    let source = candidates.get(from.as_str()).into_iter().flatten();
    let in_time = |value: &Value| {
        copy.completed.as_ref().is_none_or(|(end, _)| first_calls.get(value).is_some_and(|call| call < end))
    };
    let values: BTreeSet<Value> = source.map(|&(value, _)| value).filter(in_time).collect();
    values.into_iter().map(|value| (value, etag)).collect()
}

/// The versions that each key may have been: those that were put there, and those that copies may have brought,
/// directly or through other keys.
fn candidates<'a>(
    operations: &'a [Operation],
    etags: &HashMap<&str, Value>,
    first_calls: &FirstCalls,
) -> BTreeMap<&'a str, BTreeSet<Candidate<'a>>> {
    let mut candidates: BTreeMap<&str, BTreeSet<Candidate<'_>>> = BTreeMap::new();
    let writers: Vec<_> = operations.iter().filter(|operation| operation.effect() != Effect::Never).collect();
    for operation in &writers {
        if let (Some(key), Some(version)) = (operation.call.written(), operation.version()) {
            candidates.entry(key).or_default().insert(version);
        }
    }
    loop {
        let mut grown = false;
        for operation in &writers {
            let Call::Copy { to, .. } = &operation.call else { continue };
            let versions = copied(operation, etags, first_calls, &candidates);
            let key_candidates = candidates.entry(to.as_str()).or_default();
            let before = key_candidates.len();
            key_candidates.extend(versions);
            grown |= key_candidates.len() > before;
        }
        if !grown {
            return candidates;
        }
    }
}

/// The versions that one key may have been, by value and ETag.
struct Table<'a> {
    versions: Vec<Candidate<'a>>,
    by_value: HashMap<u64, Vec<State>>,
    by_etag: HashMap<&'a str, Vec<State>>,
    without_etag: Vec<State>,
    etags: &'a HashMap<&'a str, Value>,
}

impl<'a> Table<'a> {
    fn new(candidates: Option<&BTreeSet<Candidate<'a>>>, etags: &'a HashMap<&'a str, Value>) -> Self {
        let versions: Vec<_> = candidates.into_iter().flatten().copied().collect();
        let mut table = Self {
            versions,
            by_value: HashMap::new(),
            by_etag: HashMap::new(),
            without_etag: Vec::new(),
            etags,
        };
        for (state, &(value, etag)) in (FIRST_VERSION..).zip(&table.versions) {
            table.by_value.entry(value.id).or_default().push(state);
            match etag {
                Some(etag) => table.by_etag.entry(etag).or_default().push(state),
                None => table.without_etag.push(state),
            }
        }
        table
    }

    fn version(&self, state: State) -> Candidate<'a> {
        self.versions[(state - FIRST_VERSION) as usize]
    }

    /// The state of a version; [`OTHER`] if it is not in the table.
    fn state(&self, version: Candidate<'_>) -> State {
        self.versions.binary_search(&version).map_or(OTHER, |index| index as State + FIRST_VERSION)
    }

    /// The states that can look like this.
    fn showing(&self, seen: &ObservedObject) -> States {
        let states = match (&seen.value, &seen.etag) {
            (Some(value), _) => self.by_value.get(&value.id).cloned().unwrap_or_default(),
            (None, Some(etag)) => {
                let named = self.by_etag.get(etag.as_str()).into_iter().flatten();
                named.chain(&self.without_etag).copied().collect()
            }
            (None, None) => return States::present(),
        };
        States::of(states.into_iter().filter(|&state| self.looks_like(state, seen)).collect())
    }

    fn looks_like(&self, state: State, seen: &ObservedObject) -> bool {
        let (value, etag) = self.version(state);
        let etag_fits = match (etag, seen.etag.as_deref()) {
            (_, None) => true,
            (Some(etag), Some(seen)) => etag == seen,
            (None, Some(seen)) => self.etags.get(seen).is_none_or(|&named| named == value),
        };
        etag_fits
            && seen.value.is_none_or(|seen| seen == value)
            && seen.len.is_none_or(|len| len == value.len)
    }

    /// The states that certainly have this ETag.
    fn surely(&self, etag: &str) -> States {
        States::of(self.by_etag.get(etag).cloned().unwrap_or_default())
    }

    /// Merges all versions that no step names into one state.
    fn keep_named(&self, mut steps: Vec<Step>) -> KeySteps {
        let allowed = |step: &Step| match &step.action {
            Action::Observe(states) | Action::Write { when: states, .. } => states.named().to_vec(),
        };
        let named: HashSet<State> = steps.iter().flat_map(allowed).collect();
        let mut kept_states: Vec<State> = named.into_iter().filter(|&state| state >= FIRST_VERSION).collect();
        kept_states.sort_unstable();
        let rename = |state: State| match kept_states.binary_search(&state) {
            Ok(index) => index as State + FIRST_VERSION,
            Err(_) => state.min(OTHER),
        };
        for step in &mut steps {
            match &mut step.action {
                Action::Observe(states) => *states = states.renamed(rename),
                Action::Write { when, to } => {
                    *when = when.renamed(rename);
                    *to = to.iter().map(|&state| rename(state)).collect();
                    to.sort_unstable();
                    to.dedup();
                }
            }
        }
        let version = |&state: &State| {
            let (value, etag) = self.version(state);
            (value, etag.map(str::to_owned))
        };
        KeySteps { steps, versions: kept_states.iter().map(version).collect() }
    }
}
