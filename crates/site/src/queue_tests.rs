//! The queue against a model that keeps every item in a plain list.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use striate_runtime::{Instant, Runtime};

use super::{CLASSES, Permit, Queue, QueueLimits, Ticket};
use crate::api::{Priority, SiteError};

#[derive(Clone, Debug)]
enum Step {
    Push {
        priority: usize,
        items: Vec<u64>,
        late: bool,
    },
    Admit {
        priority: usize,
        bytes: u64,
    },
    /// Takes the next item.
    Take,
    /// Ends the n-th item that is being served, or the n-th write.
    Finish(usize),
    Cancel(usize),
}

const PRIORITIES: [Priority; CLASSES] = [Priority::Foreground, Priority::Repair, Priority::Background];
const LIMITS: QueueLimits = QueueLimits { requests: 8, bytes: 1_000, workers: 1 };

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let items = prop::collection::vec(0u64..200, 1..4);
    let step = prop_oneof![
        4 => (0..CLASSES, items, prop::bool::weighted(0.2))
            .prop_map(|(priority, items, late)| Step::Push { priority, items, late }),
        1 => (0..CLASSES, 0u64..400).prop_map(|(priority, bytes)| Step::Admit { priority, bytes }),
        4 => Just(Step::Take),
        4 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Cancel),
    ];
    prop::collection::vec(step, 1..80)
}

/// The number of the request in the model, and the number of bytes of the item.
type Work = (usize, u64);

/// A request as the model sees it.
struct Modelled {
    priority: usize,
    waiting: VecDeque<u64>,
    served: Vec<u64>,
    late: bool,
}

impl Modelled {
    fn bytes(&self) -> u64 {
        self.waiting.iter().chain(&self.served).sum()
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.served.is_empty()
    }
}

#[derive(Default)]
struct Model {
    requests: Vec<Modelled>,
    passed_over: [u32; CLASSES],
}

impl Model {
    fn counts(&self) -> (u32, u64) {
        let present = self.requests.iter().filter(|request| !request.is_over());
        (present.count() as u32, self.requests.iter().map(Modelled::bytes).sum())
    }

    fn fits(&self, priority: usize, bytes: u64) -> bool {
        let (requests, held) = self.counts();
        let (request_limit, byte_limit) = [(8, 1_000), (6, 750), (4, 500)][priority];
        requests < request_limit && (held == 0 || held + bytes <= byte_limit)
    }

    /// Returns the request whose item is next.
    fn next(&mut self) -> Option<usize> {
        let has_work = |class| self.requests.iter().any(|r| r.priority == class && !r.waiting.is_empty());
        let working: Vec<usize> = (0..CLASSES).filter(|class| has_work(*class)).collect();
        let starved =
            working.iter().rev().find(|class| self.passed_over[**class] >= [u32::MAX, 8, 32][**class]);
        let chosen = *starved.or(working.first())?;
        for class in 0..CLASSES {
            let passed = working.contains(&class) && class != chosen;
            self.passed_over[class] = if passed { self.passed_over[class] + 1 } else { 0 };
        }
        self.requests.iter().position(|r| r.priority == chosen && !r.waiting.is_empty())
    }
}

fn check(steps: Vec<Step>, now: Instant) -> Result<(), TestCaseError> {
    let queue = Queue::new(LIMITS);
    let mut model = Model::default();
    let mut tickets: Vec<(usize, Ticket<Work>)> = Vec::new();
    let mut workers = Vec::new();
    let mut serving: Vec<(usize, u64, Permit)> = Vec::new();
    for step in steps {
        match step {
            Step::Push { priority, items, late } => {
                let request = model.requests.len();
                let bytes = items.iter().sum();
                let deadline = if late { now } else { now + Duration::from_secs(1) };
                let work = items.iter().map(|bytes| (*bytes, (request, *bytes))).collect();
                let pushed = queue.push(PRIORITIES[priority], Some(deadline), work);
                prop_assert_eq!(pushed.is_ok(), model.fits(priority, bytes));
                if let Ok((ticket, started)) = pushed {
                    prop_assert_eq!(started.len(), usize::from(workers.is_empty()), "one worker at most");
                    workers.extend(started);
                    tickets.push((request, ticket));
                    let waiting = items.into();
                    model.requests.push(Modelled { priority, waiting, served: Vec::new(), late });
                }
            }
            Step::Admit { priority, bytes } => {
                let admitted = queue.admit(PRIORITIES[priority], bytes);
                let fits = model.fits(priority, bytes);
                prop_assert_eq!(admitted.as_ref().err(), (!fits).then_some(&SiteError::Busy));
                if let Ok(permit) = admitted {
                    serving.push((model.requests.len(), bytes, permit));
                    let served = vec![bytes];
                    model.requests.push(Modelled { priority, waiting: VecDeque::new(), served, late: false });
                }
            }
            Step::Take => {
                let Some(worker) = workers.last_mut() else { continue };
                let taken = worker.next(now);
                let expected = model.next();
                prop_assert_eq!(taken.as_ref().map(|taken| taken.work.0), expected);
                let Some(taken) = taken else {
                    workers.pop();
                    continue;
                };
                let request = &mut model.requests[taken.work.0];
                prop_assert_eq!(request.waiting.pop_front(), Some(taken.work.1));
                prop_assert_eq!(taken.expired, request.late);
                request.served.push(taken.work.1);
                serving.push((taken.work.0, taken.work.1, taken.permit));
            }
            Step::Finish(which) if !serving.is_empty() => {
                let (request, bytes, permit) = serving.swap_remove(which % serving.len());
                drop(permit);
                let served = &mut model.requests[request].served;
                let position = served.iter().position(|served| *served == bytes).unwrap();
                served.swap_remove(position);
            }
            Step::Cancel(which) if !tickets.is_empty() => {
                let (request, ticket) = tickets.swap_remove(which % tickets.len());
                drop(ticket);
                model.requests[request].waiting.clear();
            }
            Step::Finish(_) | Step::Cancel(_) => {}
        }
        let waits = model.requests.iter().any(|request| !request.waiting.is_empty());
        prop_assert_eq!(queue.nothing_waits(), !waits);
        prop_assert_eq!((queue.counts().requests(), queue.counts().bytes()), model.counts());
    }
    drop((tickets, serving));
    prop_assert_eq!((queue.counts().requests(), queue.counts().bytes()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_queue_does_what_the_model_does(steps in steps()) {
        check(steps, instant())?;
    }
}

fn instant() -> Instant {
    let clock = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    clock.block_on(async { Runtime::deterministic(0, Duration::ZERO).now() })
}

#[test]
fn no_class_starves() {
    let queue = Queue::new(QueueLimits { requests: 10_000, ..LIMITS });
    let push = |priority: Priority| queue.push(priority, None, VecDeque::from([(0, priority)])).unwrap();
    let mut held = Vec::new();
    for priority in PRIORITIES {
        held.extend((0..1_000).map(|_| push(priority)));
    }
    let now = instant();
    let mut worker = held.iter_mut().find_map(|(_, workers)| workers.pop()).unwrap();
    let mut served = [0; CLASSES];
    for _ in 0..990 {
        let class = worker.next(now).unwrap().work;
        served[PRIORITIES.iter().position(|priority| *priority == class).unwrap()] += 1;
    }
    assert!(served[1] >= 990 / 12 && served[2] >= 990 / 40, "{served:?}");
    assert!(served[0] >= 800, "{served:?}");
}

#[test]
fn bytes_that_were_read_and_not_fetched_count_against_the_bound() {
    let queue = Queue::<()>::new(LIMITS);
    let buffered = queue.admit(Priority::Foreground, 900).unwrap().buffer(900);
    assert_eq!((queue.counts().requests(), queue.counts().bytes(), queue.counts().buffered()), (0, 0, 900));
    assert_eq!(queue.admit(Priority::Foreground, 101).unwrap_err(), SiteError::Busy);
    drop(buffered);
    assert!(queue.admit(Priority::Foreground, 101).is_ok());
}

/// A store's per-request cost depends on this mark, whichever worker takes the items.
#[test]
fn only_the_first_item_of_a_request_is_marked_so() {
    let queue = Queue::new(QueueLimits { workers: 2, ..LIMITS });
    let now = instant();
    let items = |count: u64| (0..count).map(|item| (1, item)).collect::<VecDeque<_>>();
    let (_first, mut workers) = queue.push(Priority::Foreground, None, items(3)).unwrap();
    let (_second, _) = queue.push(Priority::Foreground, None, items(2)).unwrap();
    let marks: Vec<bool> = (0..5).map(|i| workers[i % 2].next(now).unwrap().is_first).collect();
    assert_eq!(marks, [true, false, false, true, false]);
}
