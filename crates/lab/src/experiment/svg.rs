//! Plots as self-contained SVG text: lines and stacked bars, with axes, ticks and a legend.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;
const LEGEND_ROW: f64 = 20.0;
/// Okabe and Ito's colours, which are distinguishable with any colour vision.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Lines over a common pair of axes.
#[derive(Clone, Debug, Default)]
pub struct LinePlot {
    /// Label of the horizontal axis.
    pub x_label: String,
    /// Label of the vertical axis.
    pub y_label: String,
    /// Start of the vertical axis, which ends a little above the highest point.
    pub y_from: f64,
    /// End of the horizontal axis, if not at the last point; points beyond are cut off.
    pub x_to: Option<f64>,
    /// Name and points of each line, in order of x.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Bars of parts that add up.
#[derive(Clone, Debug, Default)]
pub struct StackedBars {
    /// Label of the vertical axis.
    pub y_label: String,
    /// Names of the parts, lowest first.
    pub parts: Vec<String>,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One bar of parts.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Label under the bar.
    pub name: String,
    /// Values of the parts, lowest first.
    pub parts: Vec<f64>,
    /// Half the width of the confidence interval of the sum, drawn at the bar's top.
    pub half_width: Option<f64>,
}

/// The drawing area and its scales.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn at_x(&self, x: f64) -> f64 {
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - (y - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn open(&self, legend: usize) -> String {
        let height = HEIGHT + LEGEND_ROW * legend.div_ceil(4) as f64;
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\" role=\"img\">"
        );
        let _ = write!(svg, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>");
        svg
    }

    fn y_axis(&self, svg: &mut String, label: &str) {
        for tick in ticks(self.y) {
            let y = self.at_y(tick);
            let right = WIDTH - RIGHT;
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                number(tick)
            );
        }
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let _ = write!(
            svg,
            "<text x=\"14\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {middle})\">{}</text>",
            escape(label)
        );
    }

    fn x_axis(&self, svg: &mut String, label: &str) {
        let bottom = HEIGHT - BOTTOM;
        for tick in ticks(self.x) {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                self.at_x(tick),
                bottom + 16.0,
                number(tick)
            );
        }
        let (right, middle) = (WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2.0);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\" stroke=\"#333\"/>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 34.0,
            escape(label)
        );
    }
}

fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a String>) {
    let column = (WIDTH - LEFT - RIGHT) / 4.0;
    for (i, name) in names.enumerate() {
        let (x, y) = (LEFT + column * (i % 4) as f64, HEIGHT + LEGEND_ROW * (i / 4) as f64);
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 10.0,
            colour(i),
            x + 17.0,
            escape(name)
        );
    }
}

fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

/// Returns about five round numbers within a range.
fn ticks((from, to): (f64, f64)) -> Vec<f64> {
    let rough = (to - from) / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let (first, last) = ((from / step - 1e-9).ceil() as i64, (to / step + 1e-9).floor() as i64);
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Formats a number without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a non-empty range with a little room above.
fn with_room(from: f64, to: f64) -> (f64, f64) {
    if to > from { (from, to + (to - from) * 0.05) } else { (from, from + 1.0) }
}

impl LinePlot {
    /// Renders the plot as SVG.
    pub fn render(&self) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points.iter());
        let x_from = points().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
        let x_last = points().map(|(x, _)| *x).fold(f64::NEG_INFINITY, f64::max);
        let x_to = self.x_to.unwrap_or(x_last);
        let shown = |x: f64| x <= x_to;
        let y_to = points().filter(|(x, _)| shown(*x)).map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
        let x = if x_to > x_from { (x_from, x_to) } else { (0.0, 1.0) };
        let frame = Frame { x, y: with_room(self.y_from, y_to) };
        let mut svg = frame.open(self.lines.len());
        frame.y_axis(&mut svg, &self.y_label);
        frame.x_axis(&mut svg, &self.x_label);
        for (i, (_, points)) in self.lines.iter().enumerate() {
            let inside = points.iter().filter(|(x, y)| shown(*x) && *y >= self.y_from);
            let at = |(x, y): &(f64, f64)| format!("{:.1},{:.1}", frame.at_x(*x), frame.at_y(*y));
            let path = inside.map(at).collect::<Vec<_>>().join(" ");
            let colour = colour(i);
            let _ = write!(
                svg,
                "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
        }
        legend(&mut svg, self.lines.iter().map(|(name, _)| name));
        svg + "</svg>"
    }
}

impl StackedBars {
    /// Renders the plot as SVG.
    pub fn render(&self) -> String {
        let top = |bar: &Bar| bar.parts.iter().sum::<f64>() + bar.half_width.unwrap_or(0.0);
        let highest = self.bars.iter().map(top).fold(0.0, f64::max);
        let count = self.bars.len().max(1) as f64;
        let font_size = if self.bars.len() > 6 { 9 } else { 12 };
        let frame = Frame { x: (0.0, count), y: with_room(0.0, highest) };
        let mut svg = frame.open(self.parts.len());
        frame.y_axis(&mut svg, &self.y_label);
        for (i, Bar { name, parts, half_width }) in self.bars.iter().enumerate() {
            let (left, right) = (frame.at_x(i as f64 + 0.2), frame.at_x(i as f64 + 0.8));
            let mut below = 0.0;
            for (part, value) in parts.iter().enumerate() {
                let (bottom, top) = (frame.at_y(below), frame.at_y(below + value));
                let _ = write!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    right - left,
                    bottom - top,
                    colour(part)
                );
                below += value;
            }
            if let Some(half_width) = half_width {
                let x = (left + right) / 2.0;
                let (low, high) = (frame.at_y((below - half_width).max(0.0)), frame.at_y(below + half_width));
                let _ = write!(
                    svg,
                    "<path d=\"M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} {high:.1}h8\" stroke=\"#333\"/>",
                    x - 4.0,
                    x - 4.0
                );
            }
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"{font_size}\">{}</text>",
                (left + right) / 2.0,
                HEIGHT - BOTTOM + 16.0,
                escape(name)
            );
        }
        legend(&mut svg, self.parts.iter());
        svg + "</svg>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks((0.0, 10.0)), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks((0.9, 1.0)).len(), 6);
        assert_eq!(number(0.920_000_01), "0.92");
    }

    #[test]
    fn plots_draw_every_line_and_bar_inside_the_frame_and_escape_names() {
        let lines = vec![
            ("a<b".to_owned(), vec![(0.0, 1.0), (5.0, 3.0), (90.0, 9.0)]),
            ("c".to_owned(), vec![(0.0, 2.0), (5.0, 4.0)]),
        ];
        let svg = LinePlot { x_to: Some(10.0), lines, ..LinePlot::default() }.render();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        let points =
            svg.split("points=\"").skip(1).flat_map(|rest| rest.split('"').next().unwrap().split(' '));
        for point in points {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
        }
        let bars = StackedBars {
            parts: vec!["p".into(), "q".into()],
            bars: vec![
                Bar { name: "x".into(), parts: vec![1.0, 2.0], half_width: Some(0.5) },
                Bar { name: "y".into(), parts: vec![2.0, 0.5], half_width: None },
            ],
            ..StackedBars::default()
        };
        assert_eq!(bars.render().matches("<path").count(), 1, "one confidence interval");
        // The background, four parts, two legend entries.
        assert_eq!(bars.render().matches("<rect").count(), 7);
    }

    #[test]
    fn empty_plots_are_still_plots() {
        assert!(LinePlot::default().render().ends_with("</svg>"));
        assert!(StackedBars::default().render().ends_with("</svg>"));
    }
}
