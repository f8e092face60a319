//! Clients that run one operation after the other and record the results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use striate_client::{ReadOrder, ReadRange};
use striate_history::{Call, Condition, History, ObservedObject, OperationId, Outcome, Value};
use striate_virtual_network::Event;

use super::cluster::Cluster;
use super::gateway::Gateway;
use super::invariants::Invariant;
use super::operation::{Answer, Kind, LONGEST, MultipartResult, Operation, Upload};

/// Keys that all clients compete for.
const KEYS: usize = 16;
/// Folders of these keys.
const FOLDERS: [&str; 3] = ["a", "a/b", "c"];
/// Folder of the small objects that are rarely written.
const COLD: &str = "w";
/// Maximum pause between two operations of a client, in most cases.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// Maximum pause in the other cases, so that a run outlasts leases and waits while keys stay contended.
const LONGEST_REST: Duration = Duration::from_millis(3_000);
/// One pause in this many is long.
const REST_EVERY: u32 = 4;
/// With wide stripes: number of small, rarely written objects that are packed and sealed.
const COLD_KEYS: usize = 80;
/// With wide stripes: one write in this many, and half of the reads, is of such an object.
const COLD_WRITE: u64 = 10;
/// Keys that are read but never exist.
const MISSING_KEYS: usize = 2;
/// Maximum number of items in a batch.
const LONGEST_BATCH: usize = 12;
/// Maximum number of open uploads.
const OPEN_UPLOADS: usize = 4;

/// State that all clients of a run share.
#[derive(Debug)]
pub struct Shared {
    /// The cluster under test.
    pub cluster: Arc<Cluster>,
    /// Calls and their outcomes.
    pub history: Mutex<History>,
    /// Number of operations begun.
    pub begun: AtomicU64,
    /// Number of operations by how they ended.
    pub answered: Mutex<OutcomeCounts>,
    operations: u64,
    next_client: AtomicU32,
    next_value: AtomicU64,
    state: Mutex<State>,
    /// True if operations are printed.
    pub verbose: bool,
}

/// Number of operations by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Operations that succeeded.
    pub done: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations without a result, because the gateway was killed.
    pub never: u64,
}

/// What clients remember.
#[derive(Debug, Default)]
struct State {
    /// Last ETag seen for each key.
    etags: BTreeMap<String, String>,
    uploads: Vec<Upload>,
}

impl Shared {
    /// Creates the state of a run with this many operations.
    pub fn new(cluster: Arc<Cluster>, operations: u64, verbose: bool) -> Self {
        Self {
            cluster,
            history: Mutex::default(),
            begun: AtomicU64::new(0),
            answered: Mutex::default(),
            operations,
            next_client: AtomicU32::new(0),
            next_value: AtomicU64::new(1),
            state: Mutex::default(),
            verbose,
        }
    }

    /// Returns true if all operations have begun.
    pub fn is_over(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.operations
    }

    /// Returns a number for a new client.
    pub fn new_client(&self) -> u32 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    fn now_ns(&self) -> u64 {
        self.cluster.runtime.uptime().as_nanos() as u64
    }

    /// Runs one operation through a gateway and records it. Returns true if the client is still alive.
    pub async fn operate(&self, client: u32, gateway: &Gateway, operation: Operation) -> bool {
        let Some(running) = gateway.running() else { return false };
        let kind = operation.kind();
        let calls = operation.calls();
        let shown_operation = self.verbose.then(|| format!("{operation:?}"));
        let invoke = |call| (self.history.lock().invoke(client, self.now_ns(), Call::clone(call)), call);
        let invoked: Vec<(OperationId, &Call)> = calls.iter().map(invoke).collect();
        self.cluster.coverage.begin(kind);
        let under_way = self.cluster.ledger.begin();
        let doing = operation.clone();
        let of_task = running.client.clone();
        let task = running.run(async move { doing.run(&of_task).await });
        let answer = self.cluster.runtime.timeout(LONGEST, task).await;
        self.cluster.ledger.end(under_way);
        self.cluster.coverage.end(kind);
        let Ok(answer) = answer else {
            self.cluster.broken.report(Invariant::I12, format!("{operation:?} has not ended in {LONGEST:?}"));
            return false;
        };
        if let Some(shown_operation) = shown_operation {
            let answer = answer.as_ref().map(|answer| (&answer.outcomes, &answer.error));
            eprintln!(
                "{:?} client {client}: {shown_operation:.150} -> {answer:?}",
                self.cluster.runtime.uptime()
            );
        }
        let Some(answer) = answer else {
            self.cluster.trace.record(Event::Answered, u64::from(client), kind as u64);
            self.answered.lock().never += 1;
            return false;
        };
        self.write_down(client, &invoked, &operation, answer);
        true
    }

    fn write_down(
        &self,
        client: u32,
        invoked: &[(OperationId, &Call)],
        operation: &Operation,
        answer: Answer,
    ) {
        let Answer { outcomes, created, error, broken } = answer;
        let record = |number| {
            let what = (operation.kind() as u64) << 8 | number;
            self.cluster.trace.record(Event::Answered, u64::from(client), what);
        };
        if let Some(broken) = broken {
            self.cluster.broken.report(Invariant::I2, broken);
        }
        let mut answered = self.answered.lock();
        match error {
            None => answered.done += 1,
            Some(_) => answered.failed += 1,
        }
        drop(answered);
        if outcomes.is_empty() {
            record(0);
        }
        for (&(id, call), outcome) in invoked.iter().zip(outcomes) {
            record(outcome_number(&outcome));
            self.remember(call, &outcome);
            self.history.lock().complete(id, self.now_ns(), outcome);
        }
        self.remember_upload(operation, created);
    }

    fn remember(&self, call: &Call, outcome: &Outcome) {
        let etags = &mut self.state.lock().etags;
        let mut saw = |key: &String, etag: Option<String>| match etag {
            Some(etag) => drop(etags.insert(key.clone(), etag)),
            None => drop(etags.remove(key)),
        };
        match (call, outcome) {
            (
                Call::Put { key, .. } | Call::Copy { to: key, .. } | Call::CompleteMultipart { key, .. },
                Outcome::Done { etag },
            ) => saw(key, etag.clone()),
            (Call::Delete { key, .. }, Outcome::Done { .. }) => saw(key, None),
            (Call::Get { key, .. }, Outcome::Read(observed)) => {
                saw(key, observed.as_ref().and_then(|observed: &ObservedObject| observed.etag.clone()));
            }
            _ => {}
        }
    }

    fn remember_upload(&self, operation: &Operation, created: MultipartResult) {
        let mut state = self.state.lock();
        match (operation, created) {
            (Operation::CreateUpload { key }, MultipartResult::Upload(id)) => {
                let upload = self.plan_upload(key.clone(), id);
                state.uploads.push(upload);
            }
            (Operation::UploadPart { upload, number, .. }, MultipartResult::Part(etag)) => {
                let mut uploads = state.uploads.iter_mut();
                if let Some(open_upload) = uploads.find(|open_upload| open_upload.id == upload.id) {
                    open_upload.etags[*number as usize - 1] = Some(etag);
                }
            }
            _ => {}
        }
    }

    /// Plans one to three parts, all but the last of equal length, and sometimes one more that is left out at the end.
    fn plan_upload(&self, key: String, id: String) -> Upload {
        let parts = 1 + self.cluster.draw(3);
        let part_len = (4 << 10) + self.cluster.draw(30_000);
        let last_len = 16 + self.cluster.draw(20_000);
        let mut ends: Vec<u64> = (1..parts).map(|part| part * part_len).collect();
        ends.push((parts - 1) * part_len + last_len);
        let value = Value { id: self.new_value_id(), len: ends[ends.len() - 1] };
        let etags = vec![None; ends.len() + usize::from(self.cluster.draw(3) == 0)];
        Upload { key, id, value, ends, etags }
    }

    fn new_value_id(&self) -> u64 {
        self.next_value.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the numbers of all keys that may exist.
    pub fn keys(&self) -> std::ops::Range<usize> {
        0..KEYS + if self.cluster.wide_profile().is_some() { COLD_KEYS } else { 0 }
    }

    /// Puts all rarely written objects.
    pub async fn fill(&self, gateway: &Gateway) {
        let client = self.new_client();
        for number in self.keys().skip(KEYS) {
            let put = self.put(key(number));
            self.operate(client, gateway, put).await;
        }
    }

    /// Draws a key. If there are small, rarely written objects, one draw in `cold` is one of theirs.
    fn draw_key(&self, cold: u64) -> String {
        let all = self.keys();
        let number = match all.len() > KEYS && self.cluster.draw(cold) == 0 {
            true => KEYS + self.cluster.draw((all.len() - KEYS) as u64) as usize,
            false => self.cluster.draw(KEYS as u64) as usize,
        };
        key(number)
    }

    fn choose(&self, rng: &mut SmallRng) -> Operation {
        let (key, read_key) = (|| self.draw_key(COLD_WRITE), || self.draw_key(2));
        match rng.random_range(0..100) {
            0..28 => self.put(key()),
            28..36 => self.conditional_put(key(), rng),
            36..48 => Operation::Get { key: read_key(), range: ReadRange::Whole },
            48..54 => Operation::Get { key: read_key(), range: range(rng) },
            54..60 => self.read_many(rng),
            60..69 => {
                let key = key();
                Operation::Delete { condition: self.if_match(&key, rng.random_range(0..4) == 0), key }
            }
            69..74 => list(rng),
            74..94 => self.upload_step(key(), rng),
            _ => self.copy(read_key(), key()),
        }
    }

    fn if_match(&self, key: &str, is_conditional: bool) -> Condition {
        let etag = self.state.lock().etags.get(key).cloned();
        etag.filter(|_| is_conditional).map_or(Condition::None, Condition::IfMatch)
    }

    fn put(&self, key: String) -> Operation {
        let kind = if self.state.lock().etags.contains_key(&key) { Kind::Overwrite } else { Kind::Put };
        let value = Value { id: self.new_value_id(), len: self.len(&key) };
        Operation::Put { key, value, condition: Condition::None, kind }
    }

    fn conditional_put(&self, key: String, rng: &mut SmallRng) -> Operation {
        let condition = match self.if_match(&key, rng.random()) {
            Condition::None => Condition::IfNoneMatch,
            condition => condition,
        };
        let value = Value { id: self.new_value_id(), len: self.len(&key) };
        Operation::Put { key, value, condition, kind: Kind::ConditionalPut }
    }

    fn copy(&self, from: String, to: String) -> Operation {
        match from == to {
            true => Operation::Get { key: from, range: ReadRange::Whole },
            false => Operation::Copy { from, to, condition: Condition::None },
        }
    }

    /// Draws a length: inline, one block, a few blocks, or as many as need a segment. Rarely written objects are
    /// small.
    fn len(&self, key: &str) -> u64 {
        match self.cluster.draw(12) {
            _ if key.starts_with(COLD) => 9_000 + self.cluster.draw(26_000),
            0..3 => 16 + self.cluster.draw(300),
            3..8 => 2_000 + self.cluster.draw(14_000),
            8..11 => 17_000 + self.cluster.draw(40_000),
            _ => 110_000 + self.cluster.draw(50_000),
        }
    }

    /// Draws a batch of objects, ranges and missing keys, in either order of results.
    fn read_many(&self, rng: &mut SmallRng) -> Operation {
        let order = if rng.random() { ReadOrder::Requests } else { ReadOrder::Completion };
        let len = rng.random_range(2..=LONGEST_BATCH);
        let mut item = || {
            let key = match rng.random_range(0..KEYS + MISSING_KEYS).checked_sub(KEYS) {
                Some(missing) => missing_key(missing),
                None => self.draw_key(2),
            };
            let range = if rng.random_range(0..3) == 0 { range(rng) } else { ReadRange::Whole };
            (key, range)
        };
        Operation::ReadMany { items: (0..len).map(|_| item()).collect(), order }
    }

    /// Returns the next step of some upload, or a new upload.
    fn upload_step(&self, key: String, rng: &mut SmallRng) -> Operation {
        let mut state = self.state.lock();
        if state.uploads.len() < OPEN_UPLOADS && rng.random_range(0..3) == 0 || state.uploads.is_empty() {
            return Operation::CreateUpload { key };
        }
        let position = rng.random_range(0..state.uploads.len());
        if rng.random_range(0..12) == 0 {
            return Operation::AbortUpload { upload: state.uploads.swap_remove(position) };
        }
        let upload = state.uploads[position].clone();
        match upload.etags.iter().position(Option::is_none) {
            Some(part) => {
                let (start, end) = match upload.ends.get(part) {
                    Some(&end) => (part.checked_sub(1).map_or(0, |before| upload.ends[before]), end),
                    None => (0, upload.ends[0]),
                };
                let bytes = upload.value.range(start, (end - start) as usize);
                Operation::UploadPart { upload, number: part as u32 + 1, bytes }
            }
            None => {
                let upload = state.uploads.swap_remove(position);
                let etag = state.etags.get(&upload.key).cloned().filter(|_| rng.random_range(0..4) == 0);
                Operation::CompleteUpload {
                    upload,
                    condition: etag.map_or(Condition::None, Condition::IfMatch),
                }
            }
        }
    }
}

/// Returns a key by its number: some are prefixes of others.
pub fn key(number: usize) -> String {
    match number < KEYS {
        true => format!("{}/{number:02}", FOLDERS[number % FOLDERS.len()]),
        false => format!("{COLD}/{number:02}"),
    }
}

/// Returns a key that never exists.
fn missing_key(number: usize) -> String {
    format!("{}/{:02}", FOLDERS[number % FOLDERS.len()], KEYS + number)
}

fn range(rng: &mut SmallRng) -> ReadRange {
    match rng.random_range(0..3) {
        0 => ReadRange::Suffix { len: rng.random_range(16..30_000) },
        1 => ReadRange::Bytes { first: rng.random_range(0..20_000), last: None },
        _ => {
            let first = rng.random_range(0..40_000);
            ReadRange::Bytes { first, last: Some(first + rng.random_range(16..20_000)) }
        }
    }
}

fn list(rng: &mut SmallRng) -> Operation {
    let prefix = ["", "a/", "a/b/", "c/"][rng.random_range(0..4)].to_owned();
    let after = if rng.random() { String::new() } else { key(rng.random_range(0..KEYS)) };
    Operation::List { prefix, after }
}

fn outcome_number(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Done { .. } => 1,
        Outcome::Read(None) => 2,
        Outcome::Read(Some(seen)) => 16 + seen.value.map_or(0, |value| value.id << 8),
        Outcome::Listed { entries, .. } => 32 + ((entries.len() as u64) << 8),
        Outcome::PreconditionFailed => 3,
        Outcome::NoSuchKey => 4,
        Outcome::NotApplied => 5,
        Outcome::Unknown => 6,
    }
}

/// Runs a client: operates through one gateway until the run is over. When the gateway is killed, another client
/// takes over as soon as it is up again.
pub async fn work(shared: Arc<Shared>, gateway: Arc<Gateway>) {
    let runtime = shared.cluster.runtime.clone();
    let mut rng = runtime.rng();
    let mut client = shared.new_client();
    while !shared.is_over() {
        let longest = if rng.random_range(0..REST_EVERY) == 0 { LONGEST_REST } else { LONGEST_PAUSE };
        runtime.sleep(longest.mul_f64(rng.random())).await;
        if gateway.running().is_none() {
            continue;
        }
        shared.begun.fetch_add(1, Ordering::Relaxed);
        let operation = shared.choose(&mut rng);
        if !shared.operate(client, &gateway, operation).await {
            client = shared.new_client();
        }
    }
}
