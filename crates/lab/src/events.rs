//! The event queue of a simulation.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Future events in the order of their times. Events at the same time keep the order in which they were pushed.
pub(crate) struct Events<E> {
    heap: BinaryHeap<ScheduledEvent<E>>,
    pushed: u64,
}

struct ScheduledEvent<E> {
    at: f64,
    number: u64,
    event: E,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0 }
    }
}

impl<E> Events<E> {
    /// Adds an event.
    pub(crate) fn push(&mut self, at: f64, event: E) {
        self.pushed += 1;
        self.heap.push(ScheduledEvent { at, number: self.pushed, event });
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&self) -> Option<f64> {
        self.heap.peek().map(|timed| timed.at)
    }

    /// Removes the next event; returns it with its time.
    pub(crate) fn pop(&mut self) -> Option<(f64, E)> {
        self.heap.pop().map(|ScheduledEvent { at, event, .. }| (at, event))
    }
}

impl<E> Ord for ScheduledEvent<E> {
    /// The earliest event is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

impl<E> PartialOrd for ScheduledEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for ScheduledEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for ScheduledEvent<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_their_times_and_then_as_they_were_pushed() {
        let mut events = Events::default();
        for (at, event) in [(2.0, 'c'), (1.0, 'a'), (2.0, 'd'), (1.0, 'b')] {
            events.push(at, event);
        }
        assert_eq!(events.next_at(), Some(1.0));
        let all: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(all, [(1.0, 'a'), (1.0, 'b'), (2.0, 'c'), (2.0, 'd')]);
    }
}
