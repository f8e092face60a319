//! Tests of the checker: against all orders, on right histories, and on the same histories with one defect.

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::operation::{Effect, Operation};
use super::search::{Action, OPEN, Step, search};
use super::simulation::{Simulation, etag_of};
use super::states::{ABSENT, OTHER, State, States};
use super::*;

const SMALL: Simulation = Simulation { clients: 6, keys: 3, operations: 150, unknown: 0.03, failed: 0.05 };

/// Tries every order, one by one.
fn some_order_fits(steps: &[Step], happened: u32, state: State) -> bool {
    let left = |index: &usize| happened & 1 << index == 0;
    let first_end = (0..steps.len()).filter(left).map(|index| steps[index].end).min().unwrap_or(OPEN);
    if first_end == OPEN {
        return true;
    }
    (0..steps.len()).filter(left).filter(|&index| steps[index].start < first_end).any(|index| {
        let next = |state| some_order_fits(steps, happened | 1 << index, state);
        match &steps[index].action {
            Action::Observe(states) => states.contains(state) && next(state),
            Action::Write { when, to } => when.contains(state) && to.iter().any(|&to| next(to)),
        }
    })
}

fn any_state(rng: &mut SmallRng) -> State {
    rng.random_range(0..6)
}

/// Never names [`OTHER`].
fn any_states(rng: &mut SmallRng) -> States {
    let some = (0..rng.random_range(1..3)).map(|_| any_state(rng)).filter(|&state| state != OTHER).collect();
    if rng.random_bool(0.2) { States::of(some).others() } else { States::of(some) }
}

fn any_steps(rng: &mut SmallRng) -> Vec<Step> {
    let count = rng.random_range(2..8);
    let steps = (0..count).map(|operation| {
        let start = rng.random_range(0..40) * 2;
        let end = if rng.random_bool(0.2) { OPEN } else { start + 1 + rng.random_range(0..15) * 2 };
        let action = if end != OPEN && rng.random_bool(0.5) {
            Action::Observe(any_states(rng))
        } else {
            let when = if rng.random_bool(0.6) { States::any() } else { any_states(rng) };
            let choices = if rng.random_bool(0.1) { 2 } else { 1 };
            Action::Write { when, to: (0..choices).map(|_| any_state(rng)).collect() }
        };
        Step { start, end, action, operation }
    });
    steps.collect()
}

/// The search misses no order, and allows none that does not fit.
#[test]
fn the_search_agrees_with_all_orders_tried_one_by_one() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut fitting = 0;
    for case in 0..60_000 {
        let steps = any_steps(&mut rng);
        let expected = some_order_fits(&steps, 0, ABSENT);
        assert_eq!(search(steps.clone()), expected, "case {case}: {steps:?}");
        fitting += u32::from(expected);
    }
    assert!((10_000..50_000).contains(&fitting), "{fitting} of the cases fit: they are too much alike");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn histories_of_atomic_registers_pass(
        seed: u64, clients in 1_u32..16, keys in 1_u32..6, unknown in 0.0..0.15, failed in 0.0..0.2,
    ) {
        let simulation = Simulation { clients, keys, operations: 300, unknown, failed };
        if let Err(violation) = simulation.run(seed).check() {
            panic!("{violation}");
        }
    }
}

/// The size of the histories of cluster tests.
#[test]
fn twenty_thousand_operations_of_16_clients_on_10_keys_pass() {
    let simulation = Simulation { clients: 16, keys: 10, operations: 20_000, unknown: 0.005, failed: 0.02 };
    for seed in 0..3 {
        if let Err(violation) = simulation.run(seed).check() {
            panic!("{violation}");
        }
    }
}

/// An operation that wrote a value to a key.
struct Written {
    index: usize,
    value: Value,
}

impl History {
    fn ends_before(&self, a: usize, b: usize) -> bool {
        let completed = self.operations[a].completed.as_ref();
        completed
            .is_some_and(|(at, outcome)| *outcome != Outcome::Unknown && *at < self.operations[b].invoked)
    }

    fn indices(&self, select: impl Fn(&Operation) -> bool) -> Vec<usize> {
        (0..self.operations.len()).filter(|&index| select(&self.operations[index])).collect()
    }

    fn answer(&mut self, index: usize) -> &mut Outcome {
        &mut self.operations[index].completed.as_mut().expect("it was answered").1
    }

    /// Acknowledged puts of `key` that ended before `by` began, and whose value no copy can have brought back.
    fn puts_before(&self, key: &str, by: usize) -> Vec<Written> {
        let copies = self.indices(|copy| {
            matches!(&copy.call, Call::Copy { to, .. } if to == key) && copy.effect() != Effect::Never
        });
        let named: Vec<&str> = self.operations.iter().filter_map(|put| put.version()?.1).collect();
        let brings = |copy: usize, value: Value| match self.operations[copy].outcome() {
            Outcome::Done { etag: Some(etag) } if named.contains(&etag.as_str()) => *etag == etag_of(value),
            _ => true,
        };
        let put = |index: usize| {
            let operation = &self.operations[index];
            let Call::Put { key: written, version: Version { value, .. }, .. } = &operation.call else {
                return None;
            };
            let acknowledged = written == key && operation.effect() == Effect::Took;
            let sole = !copies.iter().any(|&copy| brings(copy, *value));
            (acknowledged && sole && self.ends_before(index, by)).then_some(Written { index, value: *value })
        };
        (0..self.operations.len()).filter_map(put).collect()
    }

    /// Whether no delete of `key` can have taken effect since `write`.
    fn stays(&self, key: &str, write: usize) -> bool {
        let deletes = self.indices(|delete| {
            matches!(&delete.call, Call::Delete { key: deleted, .. } if deleted == key)
                && delete.effect() != Effect::Never
        });
        deletes.iter().all(|&delete| self.ends_before(delete, write))
    }

    /// A value of `key` that was certainly replaced before `by`, or with `deleted` certainly deleted.
    fn outdated(&self, key: &str, by: usize, deleted: bool) -> Option<Value> {
        let puts = self.puts_before(key, by);
        let ends: Vec<usize> = match deleted {
            false => puts.iter().map(|put| put.index).collect(),
            true => self.indices(|delete| {
                matches!(&delete.call, Call::Delete { key: deleted, condition: Condition::None } if deleted == key)
                    && delete.effect() == Effect::Took
            }),
        };
        let outdated = |put: &&Written| {
            ends.iter().any(|&end| self.ends_before(put.index, end) && self.ends_before(end, by))
        };
        puts.iter().find(outdated).map(|put| put.value)
    }

    /// Whether `key` is certainly present when `by` begins.
    fn certainly_present(&self, key: &str, by: usize) -> bool {
        self.puts_before(key, by).iter().any(|put| self.stays(key, put.index))
    }
}

/// Answered gets with their keys, in a random order.
fn gets(history: &History, rng: &mut SmallRng) -> Vec<(usize, String)> {
    let gets = history.operations.iter().enumerate().filter_map(|(index, operation)| {
        match (&operation.call, operation.outcome()) {
            (Call::Get { key }, Outcome::Read(_)) => Some((index, key.clone())),
            _ => None,
        }
    });
    let gets: Vec<_> = gets.collect();
    gets.choose_multiple(rng, gets.len()).cloned().collect()
}

/// Answered listings, with one key each.
fn lists(history: &History, rng: &mut SmallRng) -> Vec<(usize, String)> {
    let lists = history.indices(|operation| matches!(operation.outcome(), Outcome::Listed { .. }));
    let mut all = Vec::new();
    for index in lists {
        let Outcome::Listed { through, .. } = history.operations[index].outcome() else { continue };
        let keys = ["k/0", "k/1", "k/2"].into_iter().filter(|key| {
            history.operations[index].call.touches(key)
                && through.as_ref().is_none_or(|through| *key <= through.as_str())
        });
        all.extend(keys.map(|key| (index, key.to_owned())));
    }
    all.choose_multiple(rng, all.len()).cloned().collect()
}

/// Puts with their keys and conditions.
fn conditional_puts(history: &History) -> Vec<(usize, String, Condition)> {
    let puts = history.operations.iter().enumerate().filter_map(|(index, operation)| {
        let Call::Put { key, condition, .. } = &operation.call else { return None };
        Some((index, key.clone(), condition.clone()))
    });
    puts.collect()
}

/// Plants a defect in many histories; each must be caught. `plant` returns false if it finds no place.
fn all_are_caught(invariants: &[&str], plant: impl Fn(&mut History, &mut SmallRng) -> bool) {
    let mut planted = 0;
    for seed in 0..300 {
        let mut history = SMALL.run(seed);
        assert_eq!(history.check(), Ok(()), "seed {seed}");
        if plant(&mut history, &mut SmallRng::seed_from_u64(seed)) {
            planted += 1;
            let violation = history.check().expect_err(&format!("the defect of seed {seed} is not seen"));
            assert!(invariants.contains(&violation.invariant), "seed {seed}: {violation}");
        }
    }
    assert!(planted >= 50, "only {planted} histories had a place for the defect");
}

#[test]
fn a_stale_read_is_caught() {
    all_are_caught(&["I3", "I9"], |history, rng| {
        let place = gets(history, rng)
            .into_iter()
            .find_map(|(get, key)| Some((get, history.outdated(&key, get, false)?)));
        let Some((get, value)) = place else { return false };
        *history.answer(get) = Outcome::Read(Some(ObservedObject::value(value)));
        true
    });
}

#[test]
fn a_lost_acknowledged_write_is_caught() {
    all_are_caught(&["I3"], |history, rng| {
        let place = gets(history, rng).into_iter().find(|(get, key)| history.certainly_present(key, *get));
        let Some((get, _)) = place else { return false };
        *history.answer(get) = Outcome::Read(None);
        true
    });
}

/// I3 if another write was in progress at the time.
#[test]
fn a_deleted_object_that_comes_back_is_caught() {
    all_are_caught(&["I9", "I3"], |history, rng| {
        let place = gets(history, rng)
            .into_iter()
            .find_map(|(get, key)| Some((get, history.outdated(&key, get, true)?)));
        let Some((get, value)) = place else { return false };
        *history.answer(get) = Outcome::Read(Some(ObservedObject::value(value)));
        true
    });
}

#[test]
fn a_failed_write_that_becomes_visible_is_caught() {
    all_are_caught(&["I5"], |history, rng| {
        let failed = |get: usize, key: &str| {
            history.operations.iter().enumerate().find_map(|(index, operation)| match &operation.call {
                Call::Put { key: written, version, .. }
                    if written == key
                        && *operation.outcome() == Outcome::NotApplied
                        && history.ends_before(index, get) =>
                {
                    Some(version.value)
                }
                _ => None,
            })
        };
        let place = gets(history, rng).into_iter().find_map(|(get, key)| Some((get, failed(get, &key)?)));
        let Some((get, value)) = place else { return false };
        *history.answer(get) = Outcome::Read(Some(ObservedObject::value(value)));
        true
    });
}

#[test]
fn an_if_none_match_that_is_ignored_is_caught() {
    all_are_caught(&["I3"], |history, _| {
        let place = conditional_puts(history).into_iter().find(|(put, key, condition)| {
            *condition == Condition::IfNoneMatch
                && *history.operations[*put].outcome() == Outcome::PreconditionFailed
                && history.certainly_present(key, *put)
        });
        let Some((put, ..)) = place else { return false };
        *history.answer(put) = Outcome::Done { etag: None };
        true
    });
}

#[test]
fn an_if_match_that_is_ignored_is_caught() {
    all_are_caught(&["I3"], |history, _| {
        let place = conditional_puts(history).into_iter().find_map(|(put, key, condition)| {
            let value = history.outdated(&key, put, false)?;
            let refused = matches!(condition, Condition::IfMatch(_))
                && *history.operations[put].outcome() == Outcome::PreconditionFailed;
            refused.then_some((put, value))
        });
        let Some((put, value)) = place else { return false };
        if let Call::Put { condition, .. } = &mut history.operations[put].call {
            *condition = Condition::IfMatch(etag_of(value));
        }
        *history.answer(put) = Outcome::Done { etag: None };
        true
    });
}

/// The condition holds, but the put is refused. I2 if the value was seen by an ETag that the put did not announce.
#[test]
fn a_condition_that_is_refused_without_reason_is_caught() {
    all_are_caught(&["I3", "I5", "I2"], |history, _| {
        // Only the first writer of a key is certain that the key is absent.
        let place = conditional_puts(history).into_iter().map(|(put, ..)| put).find(|&put| {
            let key = history.operations[put].call.written();
            let writes = history.indices(|write| write.call.written() == key);
            history.operations[put].effect() == Effect::Took
                && writes.iter().all(|&write| write == put || history.ends_before(put, write))
        });
        let Some(put) = place else { return false };
        if let Call::Put { condition, .. } = &mut history.operations[put].call {
            *condition = Condition::IfNoneMatch;
        }
        *history.answer(put) = Outcome::PreconditionFailed;
        true
    });
}

#[test]
fn a_listing_that_misses_an_acknowledged_key_is_caught() {
    all_are_caught(&["I4"], |history, rng| {
        let place = lists(history, rng).into_iter().find(|(list, key)| history.certainly_present(key, *list));
        let Some((list, key)) = place else { return false };
        if let Outcome::Listed { entries, .. } = history.answer(list) {
            entries.retain(|(listed, _)| *listed != key);
        }
        true
    });
}

#[test]
fn a_listing_that_shows_a_deleted_key_is_caught() {
    all_are_caught(&["I4", "I9"], |history, rng| {
        let place = lists(history, rng)
            .into_iter()
            .find_map(|(list, key)| Some((list, history.outdated(&key, list, true)?, key)));
        let Some((list, value, key)) = place else { return false };
        if let Outcome::Listed { entries, .. } = history.answer(list) {
            entries.retain(|(listed, _)| *listed != key);
            entries.push((key, ObservedObject::etag(etag_of(value), value.len)));
        }
        true
    });
}

#[test]
fn bytes_that_nobody_wrote_and_reads_of_the_future_are_caught() {
    all_are_caught(&["I2"], |history, rng| {
        let Some((get, _)) = gets(history, rng).pop() else { return false };
        *history.answer(get) = Outcome::Read(Some(ObservedObject::value(Value { id: 1 << 40, len: 9 })));
        true
    });
    all_are_caught(&["I3", "I9"], |history, rng| {
        let place = gets(history, rng).into_iter().find_map(|(get, key)| {
            let later = conditional_puts(history).into_iter().find(|(put, written, _)| {
                *written == key
                    && history.operations[*put].effect() == Effect::Took
                    && history.ends_before(get, *put)
            });
            Some((get, later?.0))
        });
        let Some((get, put)) = place else { return false };
        let Some((value, _)) = history.operations[put].version() else { return false };
        *history.answer(get) = Outcome::Read(Some(ObservedObject::value(value)));
        true
    });
}

fn put(history: &mut History, client: u32, at_ns: u64, id: u64) -> OperationId {
    let version = Version::from(Value { id, len: 10 });
    let call = Call::Put { key: "a".to_owned(), version, condition: Condition::None };
    history.invoke(client, at_ns, call)
}

fn get(history: &mut History, client: u32, at_ns: u64, id: Option<u64>) {
    let get = history.invoke(client, at_ns, Call::Get { key: "a".to_owned() });
    let seen = id.map(|id| ObservedObject::value(Value { id, len: 10 }));
    history.complete(get, at_ns + 1, Outcome::Read(seen));
}

/// An unknown write may happen late, but only once, and it cannot be taken back.
#[test]
fn an_unknown_write_takes_effect_once_or_never() {
    let mut history = History::new();
    put(&mut history, 1, 0, 1);
    let second = put(&mut history, 2, 1, 2);
    history.complete(second, 2, Outcome::Done { etag: None });
    get(&mut history, 3, 10, Some(2));
    get(&mut history, 3, 20, Some(1));
    assert_eq!(history.check(), Ok(()));
    let mut again = history.clone();
    get(&mut again, 3, 30, Some(2));
    assert_eq!(again.check().unwrap_err().invariant, "I3");
    get(&mut history, 3, 30, None);
    assert_eq!(history.check().unwrap_err().invariant, "I3");
}

#[test]
fn a_violation_names_the_key_what_was_expected_and_the_operations_around() {
    let mut history = History::new();
    for (at_ns, id) in [(0, 1), (1_000, 2)] {
        let put = put(&mut history, 1, at_ns, id);
        history.complete(put, at_ns + 500, Outcome::Done { etag: Some(format!("e{id}")) });
    }
    get(&mut history, 2, 2_000, Some(2));
    get(&mut history, 3, 3_000, Some(1));
    let text = history.check().unwrap_err().to_string();
    let expected = "\
I3 broken for key \"a\": the key can only be value 2 (10 bytes), ETag e2, but the answer is: value 1 (10 bytes)
    0.000000000 to 0.000000500 s, client 1: PUT \"a\" value 1 (10 bytes) -> done, ETag e1
    0.000001000 to 0.000001500 s, client 1: PUT \"a\" value 2 (10 bytes) -> done, ETag e2
    0.000002000 to 0.000002001 s, client 2: GET \"a\" -> value 2 (10 bytes)
  > 0.000003000 to 0.000003001 s, client 3: GET \"a\" -> value 1 (10 bytes)
";
    assert_eq!(text, expected);
}

#[test]
fn one_etag_of_two_values_and_an_unannounced_etag_are_caught() {
    let mut history = History::new();
    for id in [1, 2] {
        let put = put(&mut history, 1, id * 10, id);
        history.complete(put, id * 10 + 1, Outcome::Done { etag: Some("same".to_owned()) });
    }
    assert!(history.check().unwrap_err().reason.contains("two different values"));
    let mut history = History::new();
    let version = Version { value: Value { id: 1, len: 10 }, etag: Some("right".to_owned()) };
    let call = Call::Put { key: "a".to_owned(), version, condition: Condition::None };
    let put = history.invoke(1, 0, call);
    history.complete(put, 1, Outcome::Done { etag: Some("wrong".to_owned()) });
    assert!(history.check().unwrap_err().reason.contains("another ETag"));
}

/// A copy of an unknown version brings one that its source may have had, and no other.
#[test]
fn a_copy_brings_what_its_source_had() {
    let copy = |history: &mut History, at_ns| {
        let call = Call::Copy { from: "b".to_owned(), to: "a".to_owned(), condition: Condition::None };
        history.invoke(4, at_ns, call)
    };
    let mut history = History::new();
    let version = Version::from(Value { id: 7, len: 10 });
    let call = Call::Put { key: "b".to_owned(), version, condition: Condition::None };
    let source = history.invoke(1, 0, call);
    history.complete(source, 1, Outcome::Done { etag: Some("e7".to_owned()) });
    let copied = copy(&mut history, 2);
    history.complete(copied, 3, Outcome::Done { etag: Some("e7".to_owned()) });
    copy(&mut history, 4);
    get(&mut history, 2, 10, Some(7));
    assert_eq!(history.check(), Ok(()));
    get(&mut history, 2, 20, Some(8));
    assert_eq!(history.check().unwrap_err().invariant, "I2");
}
