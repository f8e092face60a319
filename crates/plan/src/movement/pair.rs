//! cost(C, {b, i}): the exact cost of the cheapest plan for a query of two blocks (EC-Store Eq. 1–4).
//!
//! A chunk on a site that holds only one of the blocks costs o_j + m_j z, whatever else is read; the plan takes the
//! cheapest of these. From a site that holds both, it can read either, or both with o_j paid once. The optimum is
//! therefore in a table over the common sites, of the least cost of u chunks of one block and v of the other, completed
//! by the cheapest other sites. Cost: O(c·k_b·k_i) for c common sites, plus sorting a few numbers.

use super::state::Choice;

/// A block of the query: how many chunks it needs, and the available ones, ascending by site.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairBlock<'a> {
    pub need: usize,
    pub choices: &'a [Choice],
}

/// Computes the costs of pairs; reuses its memory.
#[derive(Clone, Debug, Default)]
pub(super) struct PairCost {
    /// Costs of chunks on sites of one block only: first each, then the sums of the cheapest 0, 1, 2, …
    one_alone: Vec<f64>,
    other_alone: Vec<f64>,
    /// o_j and both transfers of each common site.
    common: Vec<(f64, f64, f64)>,
    /// Least cost of u chunks of one and v of the other, at u·(k_other + 1) + v.
    table: Vec<f64>,
}

impl PairCost {
    /// Returns the cost of reading both; infinite if one has fewer chunks than it needs.
    pub(super) fn of(&mut self, one: PairBlock<'_>, other: PairBlock<'_>) -> f64 {
        self.split(one.choices, other.choices);
        add_up(&mut self.one_alone);
        add_up(&mut self.other_alone);
        if self.common.is_empty() {
            return cheapest(&self.one_alone, one.need) + cheapest(&self.other_alone, other.need);
        }
        self.fill_table(one.need, other.need);
        let width = other.need + 1;
        let mut least = f64::INFINITY;
        for (u, row) in self.table.chunks_exact(width).enumerate() {
            let rest_of_one = cheapest(&self.one_alone, one.need - u);
            for (v, in_common) in row.iter().enumerate() {
                let cost = in_common + rest_of_one + cheapest(&self.other_alone, other.need - v);
                least = least.min(cost);
            }
        }
        least
    }

    /// Separates common sites from the others by a merge of the two ascending lists.
    fn split(&mut self, one: &[Choice], other: &[Choice]) {
        let Self { one_alone, other_alone, common, .. } = self;
        one_alone.clear();
        other_alone.clear();
        common.clear();
        let (mut a, mut b) = (0, 0);
        while a < one.len() || b < other.len() {
            let (of_one, of_other) = (one.get(a), other.get(b));
            match (of_one, of_other) {
                (Some(x), Some(y)) if x.site == y.site => {
                    common.push((x.asking, x.transfer, y.transfer));
                    (a, b) = (a + 1, b + 1);
                }
                (Some(x), y) if y.is_none_or(|y| x.site < y.site) => {
                    one_alone.push(x.asking + x.transfer);
                    a += 1;
                }
                (_, Some(y)) => {
                    other_alone.push(y.asking + y.transfer);
                    b += 1;
                }
                (_, None) => a += 1,
            }
        }
    }

    fn fill_table(&mut self, need: usize, need_other: usize) {
        let Self { common, table, .. } = self;
        let width = need_other + 1;
        table.clear();
        table.resize((need + 1) * width, f64::INFINITY);
        table[0] = 0.0;
        for &(asking, of_one, of_other) in common.iter() {
            // From the end: entries not yet updated still exclude this site.
            for u in (0..=need).rev() {
                for v in (0..width).rev() {
                    let mut least = table[u * width + v];
                    if u > 0 {
                        least = least.min(table[(u - 1) * width + v] + asking + of_one);
                    }
                    if v > 0 {
                        least = least.min(table[u * width + v - 1] + asking + of_other);
                    }
                    if u > 0 && v > 0 {
                        least = least.min(table[(u - 1) * width + v - 1] + asking + of_one + of_other);
                    }
                    table[u * width + v] = least;
                }
            }
        }
    }
}

/// Replaces costs by the sums of the cheapest 0, 1, 2, … of them.
fn add_up(costs: &mut Vec<f64>) {
    costs.sort_unstable_by(f64::total_cmp);
    let mut sum = 0.0;
    for cost in costs.iter_mut() {
        sum += std::mem::replace(cost, sum);
    }
    costs.push(sum);
}

fn cheapest(sums: &[f64], count: usize) -> f64 {
    sums.get(count).copied().unwrap_or(f64::INFINITY)
}
