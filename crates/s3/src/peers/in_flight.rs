//! Counts requests in flight by access key.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts requests in flight by access key, with a limit for each.
#[derive(Debug)]
pub(crate) struct KeyLimits {
    most: usize,
    counts: Mutex<HashMap<String, usize>>,
}

/// A request in flight; counted until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    limits: Arc<KeyLimits>,
    access_key: String,
}

impl KeyLimits {
    /// Allows at most `most` requests of each key.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, counts: Mutex::default() })
    }

    /// Counts a request whose signature was verified; `None` if its key is at the limit.
    pub fn begin(self: &Arc<Self>, access_key: &str) -> Option<InFlight> {
        let mut counts = self.counts.lock();
        match counts.get_mut(access_key) {
            Some(count) if *count >= self.most => return None,
            Some(count) => *count += 1,
            None if self.most == 0 => return None,
            None => drop(counts.insert(access_key.to_owned(), 1)),
        }
        drop(counts);
        Some(InFlight { limits: Arc::clone(self), access_key: access_key.to_owned() })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock();
        let Some(count) = counts.get_mut(&self.access_key) else { return };
        *count -= 1;
        // Keys come and go; a gateway that has seen many must not remember them all.
        if *count == 0 {
            counts.remove(&self.access_key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_own_limit_and_ended_requests_are_forgotten() {
        let limits = KeyLimits::new(2);
        let first = limits.begin("a").expect("room");
        let _second = limits.begin("a").expect("room");
        assert!(limits.begin("a").is_none());
        let other = limits.begin("b").expect("another key");
        drop((first, other));
        assert!(limits.begin("a").is_some());
        assert_eq!(limits.counts.lock().len(), 1);
    }
}
