//! Least-recently-selected choice of the sites that do the work of repairs (ECWide §4.1): the requestors that make lost
//! chunks, and the local repairers that add up the chunks of a rack for them. Concurrent repairs thus use as many
//! different sites as possible.
//!
//! A doubly linked list keeps the items in the order of their last selection, and a map finds an item in it, so each
//! operation takes O(1). A choice among a few items, such as the sites of one rack, compares their last selections, in
//! time linear in their number.

use std::collections::HashMap;
use std::hash::Hash;

/// No link: the end of the list.
const NONE: usize = usize::MAX;

/// Items in the order of their last selection.
#[derive(Clone, Debug)]
pub struct LeastRecentlySelected<T> {
    entries: Vec<Entry<T>>,
    /// Unused entries.
    free: Vec<usize>,
    at: HashMap<T, usize>,
    /// The item selected longest ago.
    first: usize,
    /// The item selected last.
    last: usize,
    /// Number of selections so far.
    selections: u64,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    item: T,
    before: usize,
    after: usize,
    /// Number of its last selection; 0 if it was never selected.
    selected: u64,
}

impl<T> Default for LeastRecentlySelected<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            at: HashMap::new(),
            first: NONE,
            last: NONE,
            selections: 0,
        }
    }
}

impl<T: Copy + Eq + Hash> FromIterator<T> for LeastRecentlySelected<T> {
    /// Collects the items as if they had been selected in this order.
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut order = Self::default();
        for item in items {
            order.select_this(item);
        }
        order
    }
}

impl<T: Copy + Eq + Hash> LeastRecentlySelected<T> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Adds an item as the next to be selected, unless it is present: a new site has nothing to do yet.
    pub fn insert(&mut self, item: T) {
        if self.at.contains_key(&item) {
            return;
        }
        let entry = Entry { item, before: NONE, after: self.first, selected: 0 };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        match self.first {
            NONE => self.last = index,
            first => self.entries[first].before = index,
        }
        self.first = index;
        self.at.insert(item, index);
    }

    /// Removes an item. Returns whether it was present.
    pub fn remove(&mut self, item: &T) -> bool {
        let Some(index) = self.at.remove(item) else { return false };
        self.unlink(index);
        self.free.push(index);
        true
    }

    /// Selects the item that was selected longest ago. Returns `None` if there are no items. O(1).
    pub fn select(&mut self) -> Option<T> {
        let item = self.entries.get(self.first)?.item;
        self.select_this(item);
        Some(item)
    }

    /// Selects the item of `among` that was selected longest ago. Items that were never selected come first, in the
    /// order of `among`. Returns `None` if `among` is empty. O(length of `among`).
    pub fn select_among(&mut self, among: impl IntoIterator<Item = T>) -> Option<T> {
        let item = among.into_iter().min_by_key(|item| self.last_selection(item))?;
        self.select_this(item);
        Some(item)
    }

    /// Records a selection made elsewhere. O(1).
    pub fn note(&mut self, item: T) {
        self.select_this(item);
    }

    /// Returns how recently an item was selected, from 0 for never to below 1.
    pub fn recency(&self, item: &T) -> f64 {
        self.last_selection(item) as f64 / (self.selections + 1) as f64
    }

    /// Returns the number of an item's last selection; 0 if it was never selected.
    pub fn last_selection(&self, item: &T) -> u64 {
        self.at.get(item).map_or(0, |&index| self.entries[index].selected)
    }

    fn select_this(&mut self, item: T) {
        self.insert(item);
        let index = self.at[&item];
        self.unlink(index);
        self.selections += 1;
        let entry = &mut self.entries[index];
        (entry.before, entry.after, entry.selected) = (self.last, NONE, self.selections);
        match self.last {
            NONE => self.first = index,
            last => self.entries[last].after = index,
        }
        self.last = index;
    }

    /// Joins the neighbours of an entry.
    fn unlink(&mut self, index: usize) {
        let Entry { before, after, .. } = self.entries[index];
        match before {
            NONE => self.first = after,
            before => self.entries[before].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.entries[after].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8),
        Remove(u8),
        Select,
        Among(Vec<u8>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let item = || 0u8..12;
        let step = prop_oneof![
            item().prop_map(Step::Insert),
            item().prop_map(Step::Remove),
            Just(Step::Select),
            Just(Step::Select),
            proptest::collection::vec(item(), 0..5).prop_map(Step::Among),
        ];
        proptest::collection::vec(step, 0..200)
    }

    /// The reference model: a list of (item, whether it was ever selected), least recently selected first.
    #[derive(Default)]
    struct Model(Vec<(u8, bool)>);

    impl Model {
        fn position(&self, item: u8) -> Option<usize> {
            self.0.iter().position(|&(other, _)| other == item)
        }

        fn select(&mut self, item: u8) -> Option<u8> {
            self.0.retain(|&(other, _)| other != item);
            self.0.push((item, true));
            Some(item)
        }

        fn apply(&mut self, step: &Step) -> Option<u8> {
            match step {
                Step::Insert(item) if self.position(*item).is_none() => self.0.insert(0, (*item, false)),
                Step::Insert(_) => {}
                Step::Remove(item) => self.0.retain(|(other, _)| other != item),
                Step::Select => return self.0.first().copied().and_then(|(item, _)| self.select(item)),
                Step::Among(among) => {
                    // Items never selected come first, in the order of `among`; then the order of the list.
                    let age =
                        |item: &u8| self.position(*item).filter(|&at| self.0[at].1).map_or(0, |at| at + 1);
                    return among.iter().copied().min_by_key(age).and_then(|item| self.select(item));
                }
            }
            None
        }
    }

    proptest! {
        #[test]
        fn it_selects_what_a_plain_list_selects(steps in steps()) {
            let (mut order, mut model) = (LeastRecentlySelected::default(), Model::default());
            for step in steps {
                let selected = match &step {
                    Step::Insert(item) => { order.insert(*item); None }
                    Step::Remove(item) => { order.remove(item); None }
                    Step::Select => order.select(),
                    Step::Among(among) => order.select_among(among.iter().copied()),
                };
                prop_assert_eq!(selected, model.apply(&step), "{:?}", step);
                prop_assert_eq!(order.len(), model.0.len());
            }
            let rest: Vec<u8> = (0..order.len()).filter_map(|_| order.select()).collect();
            prop_assert_eq!(rest, model.0.iter().map(|(item, _)| *item).collect::<Vec<_>>());
        }
    }

    #[test]
    fn recency_orders_by_the_last_selection_and_stays_below_1() {
        let mut order: LeastRecentlySelected<u32> = [4, 5, 6].into_iter().collect();
        order.note(4);
        let recency = [9, 5, 6, 4].map(|item| order.recency(&item));
        assert_eq!(recency[0], 0.0, "it was never selected");
        assert!(recency.is_sorted_by(|a, b| a < b) && recency[3] < 1.0, "{recency:?}");
        assert_eq!(order.select(), Some(5));
    }

    #[test]
    fn repairs_that_run_together_share_the_sites_evenly() {
        let mut order: LeastRecentlySelected<u32> = (0..20).collect();
        let mut counts = [0; 20];
        (0..200).for_each(|_| counts[order.select().unwrap() as usize] += 1);
        assert_eq!(counts, [10; 20]);
        // Local repairers: one of the four sites in each of five racks.
        let mut counts = [0; 20];
        for repair in 0..200 {
            let rack = repair % 5 * 4;
            counts[order.select_among(rack..rack + 4).unwrap() as usize] += 1;
        }
        assert_eq!(counts, [10; 20]);
    }
}
