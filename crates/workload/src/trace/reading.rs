//! Turns the rows of a trace into operations.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::TraceError;
use super::replay::{Preload, Replay, ReplayOptions, TimedOperation};
use super::rows::{Row, RowOp};
use crate::{Objects, Operation};

/// State of a key while rows are read.
struct KeyHistory {
    first_size: u64,
    size: u64,
    first_op: RowOp,
    is_there: bool,
}

/// Rows that form one request.
#[derive(Default)]
struct Group {
    /// Empty for a row without a group.
    name: String,
    due: Duration,
    /// Index of the operation that is the group's read; `reads` are its objects.
    read: Option<usize>,
    reads: HashSet<u64>,
}

/// A trace that is being read. Objects are numbered in order of appearance until [`TraceReader::finish`].
pub(super) struct TraceReader {
    options: ReplayOptions,
    names: Vec<String>,
    numbers: HashMap<String, u64>,
    histories: Vec<KeyHistory>,
    other_sizes: HashMap<u64, Vec<u64>>,
    operations: Vec<TimedOperation>,
    start_s: Option<f64>,
    /// Group of the last row.
    group: Group,
    past_groups: HashSet<String>,
}

impl TraceReader {
    pub(super) fn new(options: ReplayOptions) -> Self {
        Self {
            options,
            names: Vec::new(),
            numbers: HashMap::new(),
            histories: Vec::new(),
            other_sizes: HashMap::new(),
            operations: Vec::new(),
            start_s: None,
            group: Group::default(),
            past_groups: HashSet::new(),
        }
    }

    pub(super) fn add(&mut self, row: Row) -> Result<(), TraceError> {
        let start_s = *self.start_s.get_or_insert(row.time_s);
        let due = Duration::try_from_secs_f64((row.time_s - start_s) / self.options.time_scale);
        let due =
            due.map_err(|_| TraceError::line(row.line, format!("{} seconds are too many", row.time_s)))?;
        let due = self.enter_group(&row, due)?;
        let object = self.object(&row)?;
        match row.op {
            RowOp::Get => self.read(object, due),
            RowOp::Put => self.put(object, due),
            RowOp::Delete => {
                self.histories[object as usize].is_there = false;
                self.push(due, Operation::Delete(object));
            }
        }
        Ok(())
    }

    /// Returns when the row is due, given its group.
    fn enter_group(&mut self, row: &Row, due: Duration) -> Result<Duration, TraceError> {
        if !row.group.is_empty() && row.group == self.group.name {
            return Ok(self.group.due);
        }
        let past =
            std::mem::replace(&mut self.group, Group { name: row.group.clone(), due, ..Group::default() });
        if !past.name.is_empty() {
            self.past_groups.insert(past.name);
        }
        if self.past_groups.contains(&row.group) {
            let reason =
                format!("group {:?} ended above; rows of a group must follow one another", row.group);
            return Err(TraceError::line(row.line, reason));
        }
        Ok(due)
    }

    /// Returns the row's object, after checking and recording its size.
    fn object(&mut self, row: &Row) -> Result<u64, TraceError> {
        let wrong = |reason: String| TraceError::line(row.line, reason);
        let key = &row.key;
        let Some(&number) = self.numbers.get(key) else {
            let size = row.size.ok_or_else(|| {
                wrong(format!(
                    "the size of {key:?} is missing, and no earlier row says it; write it in bytes"
                ))
            })?;
            let number = self.names.len() as u64;
            let is_there = self.options.preload == Preload::All || row.op != RowOp::Put;
            self.names.push(key.clone());
            self.numbers.insert(key.clone(), number);
            self.histories.push(KeyHistory { first_size: size, size, first_op: row.op, is_there });
            return Ok(number);
        };
        let history = &mut self.histories[number as usize];
        match (row.op, row.size) {
            (RowOp::Put, None) => {
                Err(wrong(format!("the size that {key:?} gets is missing; write it in bytes")))
            }
            (RowOp::Put, Some(size)) => {
                if size != history.size {
                    let sizes = self.other_sizes.entry(number).or_insert_with(|| vec![history.first_size]);
                    if !sizes.contains(&size) {
                        sizes.push(size);
                    }
                    history.size = size;
                }
                Ok(number)
            }
            (RowOp::Get, Some(size)) if size != history.size => Err(wrong(format!(
                "it reads {size} bytes of {key:?}, which has {} by then; reads are of whole objects: write that, or \
                 leave it out",
                history.size
            ))),
            _ => Ok(number),
        }
    }

    fn read(&mut self, object: u64, due: Duration) {
        if !self.group.name.is_empty() && !self.group.reads.insert(object) {
            return;
        }
        let read = self.group.read.map(|at| &mut self.operations[at].operation);
        if let Some(Operation::Read(Objects::List(list))) = read {
            list.push(object);
            return;
        }
        if !self.group.name.is_empty() {
            self.group.read = Some(self.operations.len());
        }
        self.push(due, Operation::Read(Objects::List(vec![object])));
    }

    fn put(&mut self, object: u64, due: Duration) {
        let history = &mut self.histories[object as usize];
        let was_there = std::mem::replace(&mut history.is_there, true);
        self.push(due, if was_there { Operation::Update(object) } else { Operation::Insert(object) });
    }

    fn push(&mut self, due: Duration, operation: Operation) {
        let size = match &operation {
            Operation::Insert(object) | Operation::Update(object) => self.histories[*object as usize].size,
            _ => 0,
        };
        self.operations.push(TimedOperation { due, operation, size });
    }

    /// Renumbers the objects so that the preloaded ones come first.
    pub(super) fn finish(self) -> Result<Replay, TraceError> {
        if self.operations.is_empty() {
            return Err(TraceError::File("it has no rows".to_owned()));
        }
        let is_preloaded =
            |history: &KeyHistory| self.options.preload == Preload::All || history.first_op != RowOp::Put;
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_by_key(|&number| !is_preloaded(&self.histories[number]));
        let mut renumbered = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            renumbered[old] = new as u64;
        }
        let new = |old: u64| renumbered[old as usize];
        let operations = self.operations.into_iter().map(|mut timed| {
            timed.operation = match timed.operation {
                Operation::Read(objects) => Operation::Read(Objects::List(objects.iter().map(new).collect())),
                Operation::Insert(object) => Operation::Insert(new(object)),
                Operation::Update(object) => Operation::Update(new(object)),
                Operation::ReadModifyWrite(object) => Operation::ReadModifyWrite(new(object)),
                Operation::Delete(object) => Operation::Delete(new(object)),
            };
            timed
        });
        Ok(Replay {
            operations: operations.collect(),
            preloaded: self.histories.iter().filter(|history| is_preloaded(history)).count() as u64,
            sizes: order.iter().map(|&old| self.histories[old].first_size).collect(),
            other_sizes: self.other_sizes.into_iter().map(|(old, sizes)| (new(old), sizes)).collect(),
            numbers: self.numbers.into_iter().map(|(name, old)| (name, new(old))).collect(),
            names: order.iter().map(|&old| self.names[old].clone()).collect(),
            done: 0,
        })
    }
}
