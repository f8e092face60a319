//! An experiment's page: one self-contained HTML file.

use std::fmt::Write;

use super::file::Plot;
use super::results::{PolicyResult, Results, SeedResult};
use super::svg::{Bar, LinePlot, StackedBars, escape};

pub(crate) const STYLE: &str = "body{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
    table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:right}\
    td:first-child,th:first-child{text-align:left}figure{margin:1.5rem 0}svg{width:100%;height:auto}\
    figcaption{color:#555}";

type Column = (&'static str, fn(&SeedResult) -> f64);

/// Renders the page.
pub fn html(results: &Results) -> String {
    let mut page = String::new();
    let title = escape(&results.title);
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1>"
    );
    page.push_str(&setting(results));
    page.push_str("<h2>The paper beside the lab</h2>");
    page.push_str(&comparisons(results));
    page.push_str("<h2>Figures of each policy</h2>");
    page.push_str(&figures(results));
    for plot in Plot::ALL {
        let (svg, caption) = (svg(results, plot), caption(results, plot));
        let _ = write!(page, "<figure>{svg}<figcaption>{}</figcaption></figure>", escape(&caption));
    }
    page.push_str("</body></html>\n");
    page
}

fn setting(results: &Results) -> String {
    let seeds: Vec<u64> =
        results.policies.iter().flat_map(|policy| policy.seeds.iter().map(|run| run.seed)).collect();
    let (first, last) = (seeds.iter().min().unwrap_or(&0), seeds.iter().max().unwrap_or(&0));
    format!(
        "<p>All times are <b>virtual</b>: a model of the machines runs the real code, nothing here was measured on \
         disks or networks. Calibration {}, scale 1/{}: {} blocks, {:.1} s measured in each run, seeds {first} to \
         {last}, commit {}. ± is the 95% confidence interval over the seeds (Student's t).</p>",
        escape(&results.calibration),
        results.scale,
        results.blocks,
        results.measured_s,
        escape(&results.commit),
    )
}

fn comparisons(results: &Results) -> String {
    let mut table = "<table><tr><th>figure</th><th>paper</th><th>lab</th><th>source</th></tr>".to_owned();
    for row in &results.comparisons {
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&row.what),
            row.paper,
            row.ours,
            escape(&row.source)
        );
    }
    table + "</table>"
}

fn figures(results: &Results) -> String {
    let columns: [Column; 11] = [
        ("mean, ms", |run| run.response.mean_ms),
        ("p50, ms", |run| run.response.percentile(50.0)),
        ("p95, ms", |run| run.response.percentile(95.0)),
        ("p99, ms", |run| run.response.percentile(99.0)),
        ("p99.9, ms", |run| run.response.percentile(99.9)),
        ("λ over the mean, %", |run| run.imbalance_over_mean),
        ("the same in the last quarter, %", |run| run.last_imbalance.unwrap_or(f64::NAN)),
        ("λ over the oracle's, %", |run| run.imbalance_over_oracle),
        ("bytes read / bytes asked", |run| run.read_amplification),
        ("sites / request", |run| run.sites_per_operation),
        ("requests / run", |run| run.response.count as f64),
    ];
    // Short runs have no last quarter.
    let is_known =
        |(_, value): &Column| results.policies.iter().all(|policy| !policy.statistic(value).mean.is_nan());
    let columns: Vec<Column> = columns.into_iter().filter(is_known).collect();
    let mut table = "<table><tr><th>policy</th>".to_owned();
    columns.iter().for_each(|(name, _)| table.push_str(&format!("<th>{}</th>", escape(name))));
    table.push_str("</tr>");
    for policy in &results.policies {
        let _ = write!(
            table,
            "<tr><td>{}<br><small>{}, {}</small></td>",
            escape(&policy.name),
            policy.profile,
            policy.read
        );
        columns
            .iter()
            .for_each(|(_, value)| table.push_str(&format!("<td>{}</td>", policy.statistic(value))));
        table.push_str("</tr>");
    }
    table + "</table>"
}

/// Renders the plot of one figure as SVG.
pub fn svg(results: &Results, plot: Plot) -> String {
    match plot {
        Plot::OverTime => LinePlot {
            x_label: "virtual time, s".into(),
            y_label: "mean response time, ms".into(),
            lines: lines(results, |policy| response_over_time(policy, results.interval_s)),
            ..LinePlot::default()
        }
        .render(),
        Plot::Breakdown => breakdown(results).render(),
        Plot::Tail => tail(results).render(),
        Plot::Sites => LinePlot {
            x_label: "sites, from the most loaded to the least".into(),
            y_label: "MB read per virtual second".into(),
            lines: lines(results, |policy| load_of_sites(policy, results.measured_s)),
            ..LinePlot::default()
        }
        .render(),
        Plot::Imbalance => imbalance(results).render(),
    }
}

fn caption(results: &Results, plot: Plot) -> String {
    let text = match plot {
        Plot::OverTime => "Response time over time, mean over the seeds",
        Plot::Breakdown => "Where the time goes; bars are 95% confidence intervals of the mean response time",
        Plot::Tail => "The tail of response times, over all seeds",
        Plot::Sites => "Bytes read by each site, mean over the seeds",
        Plot::Imbalance => "Load imbalance λ over the actual mean load",
    };
    let of_plot = results.figures.iter().filter(|figure| figure.plot == plot);
    let names = of_plot.map(|figure| figure.name.as_str()).collect::<Vec<_>>();
    if names.is_empty() {
        format!("{text}.")
    } else {
        format!("{text} (in the paper: {}).", names.join(", "))
    }
}

fn lines(
    results: &Results,
    points: impl Fn(&PolicyResult) -> Vec<(f64, f64)>,
) -> Vec<(String, Vec<(f64, f64)>)> {
    results.policies.iter().map(|policy| (policy.name.clone(), points(policy))).collect()
}

fn tail(results: &Results) -> LinePlot {
    let p99 =
        results.policies.iter().flat_map(|policy| policy.cdf.iter().filter(|(_, share)| *share <= 0.99));
    LinePlot {
        x_label: "response time, ms".into(),
        y_label: "share of requests".into(),
        y_from: 0.9,
        x_to: Some(p99.map(|(ms, _)| *ms).fold(0.0, f64::max) * 1.5),
        lines: lines(results, |policy| policy.cdf.clone()),
    }
}

fn imbalance(results: &Results) -> StackedBars {
    let bar = |policy: &PolicyResult| {
        let lambda = policy.statistic(|run| run.imbalance_over_mean);
        Bar { name: policy.name.clone(), parts: vec![lambda.mean], half_width: lambda.half_width }
    };
    StackedBars {
        y_label: "λ over the mean, %".into(),
        parts: vec!["λ".into()],
        bars: results.policies.iter().map(bar).collect(),
    }
}

fn response_over_time(policy: &PolicyResult, interval_s: f64) -> Vec<(f64, f64)> {
    let intervals = policy.seeds.iter().map(|run| run.over_time_ms.len()).max().unwrap_or(0);
    let point = |i: usize| {
        let values: Vec<f64> =
            policy.seeds.iter().filter_map(|run| run.over_time_ms.get(i).copied().flatten()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (!values.is_empty()).then_some(((i as f64 + 0.5) * interval_s, mean))
    };
    (0..intervals).filter_map(point).collect()
}

fn breakdown(results: &Results) -> StackedBars {
    let parts: [Column; 5] = [
        ("metadata", |run| run.metadata_ms),
        ("plan", |run| run.plan_ms),
        ("retrieve", |run| run.retrieve_ms),
        ("decode", |run| run.decode_ms),
        ("client work", |run| run.client_work_ms),
    ];
    let bar = |policy: &PolicyResult| Bar {
        name: policy.name.clone(),
        parts: parts.iter().map(|(_, value)| policy.statistic(value).mean).collect(),
        half_width: policy.statistic(|run| run.response.mean_ms).half_width,
    };
    StackedBars {
        y_label: "mean response time, ms".into(),
        parts: parts.iter().map(|(name, _)| (*name).to_owned()).collect(),
        bars: results.policies.iter().map(bar).collect(),
    }
}

fn load_of_sites(policy: &PolicyResult, measured_s: f64) -> Vec<(f64, f64)> {
    let sites = policy.seeds.iter().map(|run| run.site_bytes.len()).max().unwrap_or(0);
    let mut sums = vec![0.0; sites];
    for run in &policy.seeds {
        let mut bytes = run.site_bytes.clone();
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        sums.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes as f64);
    }
    let mean = |(i, sum): (usize, f64)| (i as f64 + 1.0, sum / policy.seeds.len() as f64 / measured_s / 1e6);
    sums.into_iter().enumerate().map(mean).collect()
}
