//! The closed loop: each client sends one request after another until a shared limit is reached.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::LocalSet;

use super::Operation;
use super::connection::{Connection, Endpoint};
use super::objects::Objects;

/// Pause after a failed request, so that a server that is down is not asked a hundred thousand times a second.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// When to stop sending. Requests in flight are finished and counted.
#[derive(Clone, Copy)]
pub struct Limit {
    /// Maximum number of operations.
    pub operations: Option<u64>,
    /// Time after which no new operation starts.
    pub duration: Option<Duration>,
}

/// Parameters of one run.
#[derive(Clone)]
pub struct Load {
    /// Where requests go.
    pub endpoint: Endpoint,
    /// Keys and bodies.
    pub objects: Objects,
    /// Operation to send.
    pub operation: Operation,
    /// Bytes that a GET reads; `None` reads the whole object.
    pub range: Option<usize>,
    /// Number of concurrent clients.
    pub clients: usize,
    /// Number of objects.
    pub count: u64,
    /// Index of the first object that is put.
    pub first: u64,
    /// When to stop.
    pub limit: Limit,
    /// Timeout of a request.
    pub timeout: Duration,
}

/// Results of a run.
pub struct Outcome {
    /// Latencies of the operations that succeeded, in microseconds.
    pub latency_us: Histogram<u64>,
    /// Operations that failed.
    pub errors: u64,
    /// Error text of the first failure.
    pub first_error: Option<String>,
    /// Time from the first request to the last response.
    pub elapsed: Duration,
}

/// State that the clients of one run share (all on one thread).
struct Shared {
    load: Load,
    next: Cell<u64>,
    start: Instant,
    outcome: RefCell<Outcome>,
}

impl Load {
    /// Runs all clients to the end on the current thread.
    pub async fn run(self) -> Result<Outcome, String> {
        let latency_us = Histogram::new(3).map_err(|e| e.to_string())?;
        let clients = self.clients;
        let shared = Rc::new(Shared {
            load: self,
            next: Cell::new(0),
            start: Instant::now(),
            outcome: RefCell::new(Outcome {
                latency_us,
                errors: 0,
                first_error: None,
                elapsed: Duration::ZERO,
            }),
        });
        let local = LocalSet::new();
        for _ in 0..clients {
            let shared = Rc::clone(&shared);
            local.spawn_local(async move { shared.client().await });
        }
        local.await;
        let shared = Rc::into_inner(shared).ok_or("a client is still running")?;
        let mut outcome = shared.outcome.into_inner();
        outcome.elapsed = shared.start.elapsed();
        Ok(outcome)
    }
}

impl Shared {
    /// Returns the number of the next operation, or `None` if the limit is reached.
    fn take_turn(&self) -> Option<u64> {
        let turn = self.next.get();
        let limit = self.load.limit;
        if limit.operations.is_some_and(|most| turn >= most)
            || limit.duration.is_some_and(|longest| self.start.elapsed() >= longest)
        {
            return None;
        }
        self.next.set(turn + 1);
        Some(turn)
    }

    async fn client(&self) {
        let mut connection = Connection::new(self.load.endpoint.clone());
        while let Some(turn) = self.take_turn() {
            let sent = Instant::now();
            let answer =
                match tokio::time::timeout(self.load.timeout, self.operate(&mut connection, turn)).await {
                    Ok(answer) => answer,
                    Err(_) => Err(format!("no answer within {:?}", self.load.timeout)),
                };
            let took = sent.elapsed();
            match answer {
                Ok(()) => self.outcome.borrow_mut().latency_us += took.as_micros() as u64,
                Err(error) => {
                    self.note_error(error);
                    connection.reset();
                    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    fn note_error(&self, error: String) {
        let mut outcome = self.outcome.borrow_mut();
        outcome.errors += 1;
        outcome.first_error.get_or_insert(error);
    }

    async fn operate(&self, connection: &mut Connection, turn: u64) -> Result<(), String> {
        let objects = &self.load.objects;
        match self.load.operation {
            Operation::Put => {
                let index = self.load.first + turn % self.load.count;
                connection.put(&objects.key(index), objects.body(index)).await
            }
            Operation::Get => {
                let index = Objects::visit(turn, self.load.count);
                let range = self.load.range.map(|len| objects.part(turn, len));
                connection.get(&objects.key(index), objects.body(index), range).await
            }
        }
    }
}
