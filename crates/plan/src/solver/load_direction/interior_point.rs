//! Problem (1) with the ℓ∞ norm, by a primal–dual interior-point method (Mehrotra's predictor and corrector).
//!
//! ```text
//! minimise T   where   s_j = S_j T − Q_j − Σ_i Σ_{o ∋ j} D_i y_io ≥ 0,   Σ_o y_io = 1,   y_io ≥ 0
//! maximise Σ_j λ_j Q_j + Σ_i μ_i   where   z_io = D_i Σ_{j ∈ o} λ_j − μ_i ≥ 0,   Σ_j S_j λ_j = 1,   λ_j ≥ 0
//! ```
//!
//! Both start in the interior, with equal shares and equal λ, and stay feasible. Each step brings the products y z and
//! s λ closer to 0, and with them T to the optimum. Newton's equations are eliminated partition by partition, except
//! those of the m nodes. A step therefore costs one Cholesky factorisation of an m × m matrix, O(m³), and O(h²) for
//! each option of a partition on h nodes. Some 20 steps suffice, whatever the demands.
//!
//! The result does not rely on the accuracy of the steps: the maximum is computed from the shares, and any λ proves a
//! bound.

use super::DirectionProblem;

/// Maximum number of steps, whatever is proven by then.
const MOST_STEPS: usize = 60;
/// Maximum number of rounds that add options, whatever is proven by then.
const MOST_ROUNDS: usize = 12;
/// Part of the distance to the boundary that a step covers.
const OF_THE_WAY: f64 = 0.995;

/// Shares, with a proven bound.
pub(super) struct Solution {
    pub(super) shares: Vec<f64>,
    pub(super) lower_bound: f64,
}

/// Returns the shares of least max (L_j + Q_j) / S_j, to within `tolerance` relative to it.
///
/// Few options get a share, and a problem with all options would pay for all of them at every step. So the problem is
/// first solved with the options that have a share in `first` and the normal reads. Options that the resulting λ makes
/// cheaper than all of these are added, and the problem is solved again (column generation).
pub(super) fn least_maximum(problem: &DirectionProblem, first: &[f64], tolerance: f64) -> Solution {
    let normal = problem.normal_shares();
    let mut takes_part: Vec<bool> = first.iter().zip(&normal).map(|(a, b)| *a > 0.0 || *b > 0.0).collect();
    let mut best = (f64::INFINITY, normal);
    let mut bound = 0.0f64;
    for _ in 0..MOST_ROUNDS {
        let part = problem.with_options(&takes_part);
        let (shares, lambda) = solve(&part, tolerance / 2.0);
        let maximum = part.maximum(&shares);
        if maximum < best.0 {
            let mut of_part = shares.into_iter();
            let all = takes_part.iter().map(|takes_part| if *takes_part { of_part.next() } else { None });
            let all = all.map(Option::unwrap_or_default).collect();
            best = (maximum, all);
        }
        bound = bound.max(problem.bound_by(&lambda));
        if best.0 - bound <= tolerance * best.0 || !problem.add_cheaper(&lambda, &mut takes_part) {
            break;
        }
    }
    Solution { shares: best.1, lower_bound: bound }
}

/// Returns the shares and λ of one problem.
fn solve(problem: &DirectionProblem, tolerance: f64) -> (Vec<f64>, Vec<f64>) {
    let mut point = Point::begin(problem);
    let mut best = (f64::INFINITY, problem.normal_shares());
    let mut bound = (0.0, point.lambda.clone());
    for _ in 0..MOST_STEPS {
        let shares = point.shares();
        let maximum = problem.maximum(&shares);
        if maximum < best.0 {
            best = (maximum, shares);
        }
        let proved = problem.bound_by(&point.lambda);
        if proved > bound.0 {
            bound = (proved, point.lambda.clone());
        }
        if best.0 - bound.0 <= tolerance * best.0 || !point.step() {
            break;
        }
    }
    (best.1, bound.1)
}

/// A partition with more than one option.
struct Choice {
    /// D_i in units of the scale.
    demand: f64,
    /// Index of its first option among all options.
    first: usize,
    /// The distinct nodes of its options.
    nodes: Vec<usize>,
    /// The nodes of each option, as positions in `nodes`.
    options: Vec<Vec<usize>>,
}

/// An interior point, with the terms of Newton's equations there.
struct Point<'a> {
    problem: &'a DirectionProblem,
    choices: Vec<Choice>,
    /// y of all options, including those of partitions without a choice, which never change.
    y: Vec<f64>,
    z: Vec<f64>,
    s: Vec<f64>,
    lambda: Vec<f64>,
    /// T in units of the scale.
    maximum: f64,
    scale: f64,
}

/// A change of a point.
struct Direction {
    y: Vec<f64>,
    z: Vec<f64>,
    s: Vec<f64>,
    lambda: Vec<f64>,
    maximum: f64,
}

impl<'a> Point<'a> {
    fn begin(problem: &'a DirectionProblem) -> Self {
        let mut y = problem.normal_shares();
        let free: Vec<usize> = (0..problem.len())
            .filter(|&partition| problem.demands[partition] > 0.0 && problem.options(partition).len() > 1)
            .collect();
        for &partition in &free {
            let options = problem.options(partition);
            let share = 1.0 / options.len() as f64;
            y[options].fill(share);
        }
        // Everything is measured relative to the current maximum, so that numbers are near 1.
        let scale = problem.maximum(&y).max(f64::MIN_POSITIVE);
        let choices: Vec<Choice> =
            free.iter().map(|&partition| Choice::new(problem, partition, scale)).collect();
        let totals = problem.totals(&y);
        let rates = &problem.rates;
        let s: Vec<f64> = totals.iter().zip(rates).map(|(total, rate)| 2.0 * rate - total / scale).collect();
        let lambda = vec![1.0 / rates.iter().sum::<f64>(); rates.len()];
        let product =
            s.iter().zip(&lambda).map(|(s, lambda)| s * lambda).sum::<f64>() / s.len().max(1) as f64;
        let mut z = vec![0.0; y.len()];
        for choice in &choices {
            let prices: Vec<f64> = choice.prices(&lambda).collect();
            let least = prices.iter().copied().fold(f64::INFINITY, f64::min);
            for (option, price) in prices.iter().enumerate() {
                z[choice.first + option] = choice.demand * (price - least) + product * prices.len() as f64;
            }
        }
        Self { problem, choices, y, z, s, lambda, maximum: 2.0, scale }
    }

    /// Returns the shares, normalised to a sum of 1 for each partition.
    fn shares(&self) -> Vec<f64> {
        let mut shares = self.y.clone();
        for choice in &self.choices {
            let of = &mut shares[choice.first..choice.first + choice.options.len()];
            let sum: f64 = of.iter().sum();
            of.iter_mut().for_each(|share| *share /= sum);
        }
        shares
    }

    fn options(&self) -> impl Iterator<Item = usize> {
        self.choices.iter().flat_map(|choice| choice.first..choice.first + choice.options.len())
    }

    /// Returns the mean of all products that should become 0.
    fn mean_product(&self, along: Option<(&Direction, f64, f64)>) -> f64 {
        let none =
            Direction { y: Vec::new(), z: Vec::new(), s: Vec::new(), lambda: Vec::new(), maximum: 0.0 };
        let (direction, primal, dual) = along.unwrap_or((&none, 0.0, 0.0));
        let at = |value: f64, of: &[f64], place: usize, step: f64| {
            value + step * of.get(place).copied().unwrap_or(0.0)
        };
        let of_options = self.options().map(|option| {
            at(self.y[option], &direction.y, option, primal) * at(self.z[option], &direction.z, option, dual)
        });
        let of_nodes = (0..self.s.len()).map(|node| {
            at(self.s[node], &direction.s, node, primal)
                * at(self.lambda[node], &direction.lambda, node, dual)
        });
        let count = self.options().count() + self.s.len();
        (of_options.sum::<f64>() + of_nodes.sum::<f64>()) / count.max(1) as f64
    }

    /// Makes one step. Returns `false` if numerical precision allows no further one.
    fn step(&mut self) -> bool {
        let Some(newton) = self.matrix().and_then(|matrix| Newton::new(matrix, &self.problem.rates)) else {
            return false;
        };
        let mean = self.mean_product(None);
        let predicted = self.solve(&newton, |value, dual, _, _| -value * dual, None);
        let (primal, dual) = (self.way(&predicted, true), self.way(&predicted, false));
        let reached = self.mean_product(Some((&predicted, primal, dual)));
        let aim = mean * (reached / mean).powi(3);
        let corrected = |value: f64, dual: f64, by: f64, dual_by: f64| aim - value * dual - by * dual_by;
        let direction = self.solve(&newton, corrected, Some(&predicted));
        let (primal, dual) = (self.way(&direction, true), self.way(&direction, false));
        if !(primal.is_finite() && dual.is_finite()) || primal.max(dual) < 1e-10 {
            return false;
        }
        add(&mut self.y, &direction.y, OF_THE_WAY * primal);
        add(&mut self.s, &direction.s, OF_THE_WAY * primal);
        add(&mut self.z, &direction.z, OF_THE_WAY * dual);
        add(&mut self.lambda, &direction.lambda, OF_THE_WAY * dual);
        self.maximum += OF_THE_WAY * primal * direction.maximum;
        self.restore_feasibility();
        true
    }

    /// Removes rounding errors: recomputes s and z from y, T, λ and each partition's least z, unless too little of them
    /// would be left.
    fn restore_feasibility(&mut self) {
        let totals = self.problem.totals(&self.y);
        for (node, s) in self.s.iter_mut().enumerate() {
            let exact = self.problem.rates[node] * self.maximum - totals[node] / self.scale;
            if exact > 0.5 * *s {
                *s = exact;
            }
        }
        for choice in &self.choices {
            let of = &mut self.z[choice.first..choice.first + choice.options.len()];
            let prices: Vec<f64> = choice.prices(&self.lambda).collect();
            let Some(least) = (0..of.len()).min_by(|&a, &b| of[a].total_cmp(&of[b])) else { continue };
            let at_least = of[least];
            for (z, price) in of.iter_mut().zip(&prices) {
                let exact = at_least + choice.demand * (price - prices[least]);
                if exact > 0.5 * *z {
                    *z = exact;
                }
            }
        }
    }

    /// Returns the step length at which the first number reaches 0, at most 1 / [`OF_THE_WAY`].
    fn way(&self, direction: &Direction, is_primal: bool) -> f64 {
        let (of_options, of_nodes) = if is_primal { (&self.y, &self.s) } else { (&self.z, &self.lambda) };
        let (by_options, by_nodes) =
            if is_primal { (&direction.y, &direction.s) } else { (&direction.z, &direction.lambda) };
        let until = |(value, by): (f64, f64)| if by < 0.0 { -value / by } else { f64::INFINITY };
        let options = self.options().map(|option| until((of_options[option], by_options[option])));
        let nodes = of_nodes.iter().copied().zip(by_nodes.iter().copied()).map(until);
        options.chain(nodes).fold(1.0 / OF_THE_WAY, f64::min)
    }

    /// Newton's matrix for the nodes: Σ_i D_i² Σ_o θ_o (a_o − ā)(a_o − ā)ᵀ + diag(s / λ), where θ = y / z, a_o is 1 at
    /// the nodes of o, and ā is the mean of a_o weighted by θ. Returns the lower half; `None` if it is not finite.
    fn matrix(&self) -> Option<Vec<Vec<f64>>> {
        let count = self.s.len();
        let mut matrix = vec![vec![0.0; count]; count];
        for choice in &self.choices {
            choice.add_to(&mut matrix, &self.y[choice.first..], &self.z[choice.first..]);
        }
        for (node, row) in matrix.iter_mut().enumerate() {
            row[node] += self.s[node] / self.lambda[node];
        }
        matrix.iter().enumerate().all(|(node, row)| row[node].is_finite()).then_some(matrix)
    }

    /// Returns the direction that changes the product of each pair by `change` of its value, its dual, and what
    /// `before` adds to each.
    fn solve(
        &self,
        newton: &Newton,
        change: impl Fn(f64, f64, f64, f64) -> f64,
        before: Option<&Direction>,
    ) -> Direction {
        let by =
            |of: fn(&Direction) -> &Vec<f64>, place: usize| before.map_or(0.0, |before| of(before)[place]);
        let of_option = |option: usize| {
            let (by_y, by_z) = (by(|before| &before.y, option), by(|before| &before.z, option));
            change(self.y[option], self.z[option], by_y, by_z) / self.z[option]
        };
        let of_node = |node: usize| {
            let (by_s, by_lambda) = (by(|before| &before.s, node), by(|before| &before.lambda, node));
            change(self.s[node], self.lambda[node], by_s, by_lambda)
        };
        let mut right: Vec<f64> = (0..self.s.len()).map(|node| of_node(node) / self.lambda[node]).collect();
        for choice in &self.choices {
            let (sum, theta) = choice.sums(&of_option, &self.y, &self.z);
            for (place, nodes) in choice.options.iter().enumerate() {
                let option = choice.first + place;
                let value = of_option(option) - self.y[option] / self.z[option] * sum / theta;
                nodes.iter().for_each(|&at| right[choice.nodes[at]] += choice.demand * value);
            }
        }
        let (lambda, maximum) = newton.solve(&right, &self.problem.rates);
        let s =
            (0..self.s.len()).map(|node| (of_node(node) - self.s[node] * lambda[node]) / self.lambda[node]);
        let (mut y, mut z) = (vec![0.0; self.y.len()], vec![0.0; self.y.len()]);
        for choice in &self.choices {
            let (sum, theta) = choice.sums(&of_option, &self.y, &self.z);
            let prices: Vec<f64> = choice.prices(&lambda).map(|price| choice.demand * price).collect();
            let weighted =
                |place: usize| self.y[choice.first + place] / self.z[choice.first + place] * prices[place];
            let mu = ((0..prices.len()).map(weighted).sum::<f64>() - sum) / theta;
            for (place, price) in prices.iter().enumerate() {
                let option = choice.first + place;
                z[option] = price - mu;
                y[option] = of_option(option) - self.y[option] / self.z[option] * z[option];
            }
        }
        Direction { y, z, s: s.collect(), lambda, maximum }
    }
}

impl Choice {
    fn new(problem: &DirectionProblem, partition: usize, scale: f64) -> Self {
        let options = problem.options(partition);
        let mut nodes: Vec<usize> =
            options.clone().flat_map(|option| problem.option(option)).map(|&node| node as usize).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let place = |node: &u32| nodes.binary_search(&(*node as usize)).unwrap_or_else(|place| place);
        let first = options.start;
        let options = options.map(|option| problem.option(option).iter().map(place).collect()).collect();
        Self { demand: problem.demands[partition] / scale, first, nodes, options }
    }

    /// Returns Σ_{j ∈ o} λ_j of each option.
    fn prices(&self, lambda: &[f64]) -> impl Iterator<Item = f64> {
        self.options.iter().map(|nodes| nodes.iter().map(|&at| lambda[self.nodes[at]]).sum())
    }

    /// Returns the sum of a value over the options, and the sum of θ.
    fn sums(&self, value: &impl Fn(usize) -> f64, y: &[f64], z: &[f64]) -> (f64, f64) {
        let options = self.first..self.first + self.options.len();
        options.fold((0.0, 0.0), |(sum, theta), option| (sum + value(option), theta + y[option] / z[option]))
    }

    /// Adds D² Σ_o θ_o (a_o − ā)(a_o − ā)ᵀ to the lower half of a matrix over all nodes; `y` and `z` begin at its
    /// options.
    fn add_to(&self, matrix: &mut [Vec<f64>], y: &[f64], z: &[f64]) {
        let theta = |option: usize| y[option] / z[option];
        let sum: f64 = (0..self.options.len()).map(theta).sum();
        let mut mean = vec![0.0; self.nodes.len()];
        for (option, nodes) in self.options.iter().enumerate() {
            nodes.iter().for_each(|&at| mean[at] += theta(option) / sum);
        }
        let count = self.nodes.len();
        let (mut beyond, mut own) = (vec![0.0; count], vec![0.0; count * count]);
        for (option, nodes) in self.options.iter().enumerate() {
            beyond.iter_mut().zip(&mean).for_each(|(beyond, mean)| *beyond = -mean);
            nodes.iter().for_each(|&at| beyond[at] += 1.0);
            let weight = self.demand * self.demand * theta(option);
            for (row, &value) in own.chunks_exact_mut(count).zip(&beyond) {
                add(row, &beyond, weight * value);
            }
        }
        for (row, &node) in own.chunks_exact(count).zip(&self.nodes) {
            // Nodes ascend, so entries beyond the diagonal belong to the upper half.
            let lower = self.nodes.iter().zip(row).take_while(|(other, _)| **other <= node);
            lower.for_each(|(&other, value)| matrix[node][other] += value);
        }
    }
}

/// Newton's equations with T among the unknowns: K Δλ + S ΔT = h, S · Δλ = 0.
struct Newton {
    /// L, where K = L Lᵀ.
    lower: Vec<Vec<f64>>,
    /// K⁻¹ S; `of_rates` is S · K⁻¹ S.
    by_rates: Vec<f64>,
    of_rates: f64,
}

impl Newton {
    /// Factorises the lower half of K. Returns `None` if it is not positive definite, beyond rounding errors.
    fn new(mut matrix: Vec<Vec<f64>>, rates: &[f64]) -> Option<Self> {
        for row in 0..matrix.len() {
            let (above, rest) = matrix.split_at_mut(row);
            let of = &mut rest[0];
            for (column, other) in above.iter().enumerate() {
                let product: f64 = of[..column].iter().zip(&other[..column]).map(|(a, b)| a * b).sum();
                of[column] = (of[column] - product) / other[column];
            }
            let square: f64 = of[..row].iter().map(|value| value * value).sum();
            let pivot = of[row] - square;
            // Rounding errors are at most this part of the diagonal.
            of[row] = pivot.max(of[row] * 1e-15).sqrt();
            if !of[row].is_normal() {
                return None;
            }
        }
        let mut newton = Self { lower: matrix, by_rates: Vec::new(), of_rates: 0.0 };
        newton.by_rates = newton.factors_solve(rates);
        newton.of_rates = dot(rates, &newton.by_rates);
        Some(newton)
    }

    /// Returns K⁻¹ h.
    fn factors_solve(&self, right: &[f64]) -> Vec<f64> {
        let mut x = right.to_vec();
        for row in 0..x.len() {
            let product = dot(&self.lower[row][..row], &x[..row]);
            x[row] = (x[row] - product) / self.lower[row][row];
        }
        for row in (0..x.len()).rev() {
            x[row] /= self.lower[row][row];
            let value = x[row];
            x[..row].iter_mut().zip(&self.lower[row]).for_each(|(x, lower)| *x -= lower * value);
        }
        x
    }

    /// Returns Δλ and ΔT.
    fn solve(&self, right: &[f64], rates: &[f64]) -> (Vec<f64>, f64) {
        let mut lambda = self.factors_solve(right);
        let maximum = dot(rates, &lambda) / self.of_rates;
        add(&mut lambda, &self.by_rates, -maximum);
        (lambda, maximum)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Adds `factor` times another vector.
fn add(to: &mut [f64], other: &[f64], factor: f64) {
    to.iter_mut().zip(other).for_each(|(to, other)| *to += factor * other);
}
