//! Histories that are right by construction: clients of atomic registers, with delays between call, effect and answer,
//! and answers that never come.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::{Call, Condition, History, ObservedObject, OperationId, Outcome, Value, Version};

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simulation {
    pub(super) clients: u32,
    pub(super) keys: u32,
    pub(super) operations: usize,
    /// Share of operations whose outcome stays unknown, 0 to 1.
    pub(super) unknown: f64,
    /// Share of operations that fail for certain, 0 to 1.
    pub(super) failed: f64,
}

/// An event at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client calls.
    Call(u32),
    /// The operation reads (or lists) the key with this number.
    Find(usize, usize),
    /// The operation writes.
    Write(usize),
    /// The answer of the operation arrives.
    Answer(usize),
}

struct Pending {
    client: u32,
    id: OperationId,
    call: Call,
    outcome: Outcome,
    /// The answer is lost or says nothing.
    unknown: bool,
    /// The object that a copy read.
    copied: Option<(Value, String)>,
}

struct World {
    rng: SmallRng,
    simulation: Simulation,
    history: History,
    names: Vec<String>,
    objects: BTreeMap<String, (Value, String)>,
    /// ETags for use in conditions.
    etags: Vec<String>,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    scheduled: usize,
    pending: Vec<Pending>,
}

/// The ETag of a value that was put or copied.
pub(super) fn etag_of(value: Value) -> String {
    format!("m{}", value.id)
}

impl Simulation {
    /// Simulates the history of one seed.
    pub(super) fn run(self, seed: u64) -> History {
        let names = (0..self.keys).map(|key| format!("k/{key}")).collect();
        let mut world = World {
            rng: SmallRng::seed_from_u64(seed),
            simulation: self,
            history: History::new(),
            names,
            objects: BTreeMap::new(),
            etags: vec!["m0".to_owned()],
            events: BinaryHeap::new(),
            scheduled: 0,
            pending: Vec::new(),
        };
        (0..self.clients).for_each(|client| world.schedule(0, Event::Call(client)));
        while let Some(Reverse((now, _, event))) = world.events.pop() {
            match event {
                Event::Call(client) if world.history.len() < self.operations => world.call(client, now),
                Event::Call(_) => {}
                Event::Find(index, key) => world.find(index, key),
                Event::Write(index) => world.write(index),
                Event::Answer(index) => world.answer(index, now),
            }
        }
        world.history
    }
}

impl World {
    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn call(&mut self, client: u32, now: u64) {
        let call = self.any_call();
        let (index, id) = (self.pending.len(), self.history.invoke(client, now, call.clone()));
        let length = if self.rng.random_bool(0.05) { 5_000 } else { 500 };
        let end = now + self.rng.random_range(10..length);
        let unknown = self.rng.random_bool(self.simulation.unknown);
        let failed = self.rng.random_bool(self.simulation.failed);
        // An unknown write may happen much later, or never.
        let last = match unknown {
            true if self.rng.random_bool(0.5) => None,
            true => Some(now + self.rng.random_range(1..20 * length)),
            false => Some(self.rng.random_range(now..=end)),
        };
        let nothing = matches!(&call, Call::Get { .. } | Call::Head { .. }).then_some(Outcome::Read(None));
        let mut outcome = nothing.unwrap_or(Outcome::Done { etag: None });
        if let Call::List { prefix, after } = &call {
            let listed = |name: &&String| name.starts_with(prefix.as_str()) && *name > after;
            let through = self.rng.random_bool(0.5);
            let through = self.names.iter().filter(listed).nth(2).cloned().filter(|_| through);
            outcome = Outcome::Listed { entries: Vec::new(), through };
        }
        match (last, failed) {
            (Some(last), false) => {
                for key in self.found_by(&call, &outcome) {
                    let at = self.rng.random_range(now..=last.min(end));
                    self.schedule(at, Event::Find(index, key));
                }
                if call.written().is_some() {
                    self.schedule(last, Event::Write(index));
                }
            }
            (_, true) if !unknown => outcome = Outcome::NotApplied,
            _ => {}
        }
        self.pending.push(Pending { client, id, call, outcome, unknown, copied: None });
        self.schedule(end, Event::Answer(index));
    }

    fn any_call(&mut self) -> Call {
        let key = self.names.choose(&mut self.rng).expect("there are keys").clone();
        let condition = match self.rng.random_range(0..10) {
            0 => Condition::IfNoneMatch,
            1 | 2 => {
                let recent = self.etags.len().saturating_sub(6);
                Condition::IfMatch(self.etags[recent..].choose(&mut self.rng).expect("there is one").clone())
            }
            _ => Condition::None,
        };
        let value = Value { id: self.history.len() as u64 + 1, len: self.rng.random_range(8..40) };
        match self.rng.random_range(0..100) {
            0..25 => {
                let etag = self.rng.random_bool(0.8).then(|| etag_of(value));
                Call::Put { key, version: Version { value, etag }, condition }
            }
            25..30 => {
                let version = Version { value, etag: Some(format!("p{}-2", value.id)) };
                Call::CompleteMultipart { key, version, condition }
            }
            30..35 if self.names.len() > 1 => {
                let from = self.names.choose(&mut self.rng).expect("there are keys").clone();
                Call::Copy { from, to: key, condition }
            }
            35..48 if condition != Condition::IfNoneMatch => Call::Delete { key, condition },
            35..80 => Call::Get { key },
            80..90 => Call::Head { key },
            _ if self.rng.random_bool(0.5) => Call::List { prefix: "k/".to_owned(), after: String::new() },
            _ => Call::List { prefix: "k/".to_owned(), after: key },
        }
    }

    /// The keys that a call reads.
    fn found_by(&self, call: &Call, outcome: &Outcome) -> Vec<usize> {
        let number = |key: &String| self.names.iter().position(|name| name == key).into_iter().collect();
        match (call, outcome) {
            (Call::Get { key } | Call::Head { key } | Call::Copy { from: key, .. }, _) => number(key),
            (Call::List { prefix, after }, Outcome::Listed { through, .. }) => {
                let listed = |name: &String| {
                    name.starts_with(prefix.as_str())
                        && name > after
                        && through.as_ref().is_none_or(|through| name <= through)
                };
                (0..self.names.len()).filter(|&number| listed(&self.names[number])).collect()
            }
            _ => Vec::new(),
        }
    }

    fn find(&mut self, index: usize, key: usize) {
        let name = &self.names[key];
        let object = self.objects.get(name).cloned();
        let with_etag = self.rng.random_bool(0.5);
        let pending = &mut self.pending[index];
        match (&pending.call, &mut pending.outcome) {
            (Call::Copy { .. }, _) => pending.copied = object,
            (Call::Get { .. }, Outcome::Read(seen)) => {
                let shown = |(value, etag): (Value, String)| ObservedObject {
                    etag: with_etag.then_some(etag),
                    ..ObservedObject::value(value)
                };
                *seen = object.map(shown);
            }
            (_, Outcome::Read(seen)) => {
                *seen = object.map(|(value, etag)| ObservedObject::etag(etag, value.len))
            }
            (_, Outcome::Listed { entries, .. }) => {
                entries.extend(
                    object.map(|(value, etag)| (name.clone(), ObservedObject::etag(etag, value.len))),
                );
                entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            _ => {}
        }
    }

    fn write(&mut self, index: usize) {
        let Pending { call, copied, .. } = &self.pending[index];
        let key = call.written().expect("a write writes a key").to_owned();
        let current = self.objects.get(&key).map(|(_, etag)| etag.as_str());
        let (condition, new) = match call {
            Call::Put { version, condition, .. } => {
                (condition, Some((version.value, etag_of(version.value))))
            }
            Call::CompleteMultipart { version, condition, .. } => {
                (condition, Some((version.value, format!("p{}-2", version.value.id))))
            }
            Call::Copy { condition, .. } => {
                (condition, copied.as_ref().map(|(value, _)| (*value, etag_of(*value))))
            }
            Call::Delete { condition, .. } => (condition, None),
            _ => unreachable!("{call} is no write"),
        };
        let delete = matches!(call, Call::Delete { .. });
        let outcome = match (condition, current) {
            _ if new.is_none() && !delete => Outcome::NoSuchKey,
            (Condition::IfNoneMatch, Some(_)) => Outcome::PreconditionFailed,
            (Condition::IfMatch(_), None) if !delete => Outcome::NoSuchKey,
            (Condition::IfMatch(etag), Some(current)) if etag != current => Outcome::PreconditionFailed,
            _ => Outcome::Done { etag: new.as_ref().map(|(_, etag)| etag.clone()) },
        };
        if matches!(outcome, Outcome::Done { .. }) {
            match new {
                Some((value, etag)) => {
                    self.etags.push(etag.clone());
                    self.objects.insert(key, (value, etag));
                }
                None => drop(self.objects.remove(&key)),
            }
        }
        self.pending[index].outcome = outcome;
    }

    fn answer(&mut self, index: usize, now: u64) {
        let Pending { client, id, unknown, outcome, .. } = &self.pending[index];
        let (client, id, unknown, outcome) = (*client, *id, *unknown, outcome.clone());
        if !unknown {
            self.history.complete(id, now, outcome);
        } else if self.rng.random_bool(0.5) {
            self.history.complete(id, now, Outcome::Unknown);
        }
        let next = now + self.rng.random_range(0..100);
        self.schedule(next, Event::Call(client));
    }
}
