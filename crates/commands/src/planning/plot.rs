//! Plots points as text.

use std::fmt::Write;

const COLUMNS: usize = 60;
const ROWS: usize = 16;

/// A point, and the letter that marks it.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) letter: char,
}

/// Draws the points, from the least to the greatest x, and from 0 to the greatest y on a logarithmic scale. Where
/// points coincide, the last one is visible.
pub(super) fn plot(points: &[Point], x_label: &str, y_label: &str) -> String {
    let xs = || points.iter().map(|point| point.x);
    let (left, right) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    let top = points.iter().map(|point| point.y).fold(1.0, f64::max);
    let width = if right > left { right - left } else { 1.0 };
    let row_of = |y: f64| ROWS - (y.ln_1p() / top.ln_1p() * ROWS as f64).round() as usize;
    let mut grid = vec![[' '; COLUMNS]; ROWS + 1];
    for point in points {
        let column = ((point.x - left) / width * (COLUMNS - 1) as f64).round() as usize;
        grid[row_of(point.y)][column] = point.letter;
    }
    let mut labels = vec![String::new(); ROWS + 1];
    let doublings = std::iter::successors(Some(1.0), |y| Some(y * 2.0)).take_while(|y| *y <= top);
    doublings.chain([0.0]).for_each(|y| labels[row_of(y)] = format!("{y}"));
    let mut text = format!("{y_label}\n");
    for (label, cells) in labels.iter().zip(&grid) {
        let line: String = cells.iter().collect();
        writeln!(text, "{}", format!("{label:>5} |{line}").trim_end()).expect("writing to a string");
    }
    let (first, last) = (format!("{left:.3}"), format!("{right:.3}"));
    let between = COLUMNS.saturating_sub(first.len() + last.len());
    writeln!(text, "      +{}\n       {first}{x_label:^between$}{last}", "-".repeat(COLUMNS))
        .expect("writing to a string");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_their_numbers_say() {
        let point = |x, y, letter| Point { x, y, letter };
        let text = plot(&[point(1.0, 32.0, 'T'), point(1.1, 0.0, 'C'), point(1.05, 4.745, 'L')], "x", "y");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[1]), ("y", "   32 |T"));
        // √33 − 1 is halfway between 0 and 32 on the scale.
        assert_eq!(lines[9].find('L'), Some(7 + 30), "{text}");
        assert_eq!(lines[17].find('C'), Some(7 + COLUMNS - 1), "{text}");
        assert!(lines[19].contains("1.000") && lines[19].ends_with("1.100"), "{text}");
        assert_eq!(plot(&[point(1.0, 0.0, 'T')], "x", "y").matches('T').count(), 1);
    }
}
