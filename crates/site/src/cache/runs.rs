//! Free runs of pages.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs of pages. Adjacent runs are merged.
#[derive(Debug, Default)]
pub(super) struct FreeRuns {
    /// Number of pages by first page.
    by_start: BTreeMap<u32, u32>,
    /// Pairs of number of pages and first page.
    by_len: BTreeSet<(u32, u32)>,
}

impl FreeRuns {
    /// Adds free pages.
    pub(super) fn insert(&mut self, mut start: u32, mut pages: u32) {
        if let Some((&before, &len)) = self.by_start.range(..start).next_back()
            && before + len == start
        {
            self.remove(before, len);
            (start, pages) = (before, len + pages);
        }
        if let Some(&len) = self.by_start.get(&(start + pages)) {
            self.remove(start + pages, len);
            pages += len;
        }
        self.by_start.insert(start, pages);
        self.by_len.insert((pages, start));
    }

    /// Takes `pages` pages from the shortest run that has as many, and returns the first one.
    /// `None` if no run is long enough.
    pub(super) fn take(&mut self, pages: u32) -> Option<u32> {
        let &(len, start) = self.by_len.range((pages, 0)..).next()?;
        self.remove(start, len);
        if len > pages {
            self.by_start.insert(start + pages, len - pages);
            self.by_len.insert((len - pages, start + pages));
        }
        Some(start)
    }

    /// Takes at most `pages` pages from the longest run, and returns the first page and their number.
    pub(super) fn take_from_longest(&mut self, pages: u32) -> Option<(u32, u32)> {
        let &(len, _) = self.by_len.last()?;
        let taken_pages = len.min(pages);
        // Takes the end of the run, so that the rest stays in place.
        let &(len, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, len);
        if len > taken_pages {
            self.by_start.insert(start, len - taken_pages);
            self.by_len.insert((len - taken_pages, start));
        }
        Some((start + len - taken_pages, taken_pages))
    }

    fn remove(&mut self, start: u32, pages: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(pages, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u32 = 64;

    proptest! {
        /// Against a map of pages: a taken run was free, a refused one would not have fit, neighbours are merged.
        #[test]
        fn runs_agree_with_a_map_of_pages(steps in prop::collection::vec((0u32..3, 1u32..9, any::<prop::sample::Index>()), 1..200)) {
            let (mut runs, mut is_free) = (FreeRuns::default(), vec![true; PAGES as usize]);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            runs.insert(0, PAGES);
            for (step, pages, which) in steps {
                let longest = is_free.split(|free| !free).map(<[bool]>::len).max().unwrap_or(0) as u32;
                let got = match step {
                    0 if !taken.is_empty() => {
                        let (start, pages) = taken.swap_remove(which.index(taken.len()));
                        runs.insert(start, pages);
                        is_free[start as usize..(start + pages) as usize].fill(true);
                        continue;
                    }
                    1 => {
                        let got = runs.take_from_longest(pages);
                        prop_assert_eq!(got.map(|(_, pages)| pages), (longest > 0).then_some(longest.min(pages)));
                        got
                    }
                    _ => {
                        let got = runs.take(pages).map(|start| (start, pages));
                        prop_assert_eq!(got.is_some(), pages <= longest);
                        got
                    }
                };
                if let Some((start, pages)) = got {
                    let range = &mut is_free[start as usize..(start + pages) as usize];
                    prop_assert!(range.iter().all(|free| *free));
                    range.fill(false);
                    taken.push((start, pages));
                }
            }
        }
    }
}
