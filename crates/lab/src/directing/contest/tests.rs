//! The contest on short runs.

use super::super::FITS;
use super::super::prediction::{Loads, Plan};
use super::super::requests;
use super::*;

fn a3(table: Table, length_s: f64) -> Load {
    let fit = FITS[2];
    Load {
        name: "A3".to_owned(),
        seed: 1,
        fit,
        requests: requests::draw(&fit, table, length_s, 1),
        before: Sessions { fit: &fit, table, load: 1.0, day: 1 }.draw(length_s, 1),
    }
}

/// A short run of one load: the default beats all seven policies that pay for probes, copies improve it further, and
/// each load is reported.
#[test]
fn the_default_is_before_the_best_of_seven_that_pay_for_probes() {
    let contest = Contest { table: Table::Two, length_s: 80.0, is_brief: true };
    let outcome = contest.run(Case::Charged, &[a3(Table::Two, 80.0)]);
    assert_eq!(outcome.shown.len(), 9);
    let told = |policy: &str, what: &str| {
        let of = outcome.verdicts.iter().find(|verdict| verdict.policy == policy && verdict.what == what);
        of.expect("it is told").clone()
    };
    let mean = told("default", "mean over the best of seven");
    assert!(mean.median < 0.9 && mean.bar.is_some() && mean.loads == 1, "{mean:?}");
    let copied = told("default, 1% copies", "mean over the best of seven");
    assert!(copied.median < mean.median, "{copied:?}");
    let messages = told("default", "messages a second").median;
    let seen = &outcome.shown.iter().find(|shown| shown.policy == "default").unwrap().seen;
    // All 8 front ends are notified of each new task, but not of ends that they expect.
    let expected = 8.0 * seen.tasks_per_request * Table::Two.requests_per_s();
    assert!((messages / expected - 1.0).abs() < 0.2, "{messages}, not {expected}");
}

#[test]
fn more_load_is_looked_for_until_the_mean_is_reached() {
    assert!((greatest(|factor| factor <= 3.0) / 3.0 - 1.0).abs() < 0.03);
    assert_eq!(greatest(|_| false), 1.0);
    let load = a3(Table::One, 60.0);
    let more = Growth::Sessions.grow(&load, Table::One, 60.0, 2.0);
    let per_s = |requests: &[Request]| requests.len() as f64 / requests.last().unwrap().at;
    assert!((per_s(&more) / per_s(&load.requests) - 2.0).abs() < 0.3);
    let faster = Growth::Speed.grow(&load, Table::One, 60.0, 2.0);
    assert_eq!(faster.len(), load.requests.len());
    assert!((per_s(&faster) / per_s(&load.requests) - 2.0).abs() < 1e-9);
}

#[test]
fn bars_are_of_the_default_and_of_copies_only() {
    let what = "mean over the best of seven";
    assert_eq!(bar(Table::One, Case::Charged, "default", what).unwrap().value, 0.78);
    assert_eq!(bar(Table::Two, Case::Charged, "default, 1% copies", what).unwrap().value, 0.52);
    assert_eq!(bar(Table::One, Case::Charged, "default, pushed every 50 ms", what), None);
    let load = bar(Table::Two, Case::Load, "default", bars::SESSIONS).unwrap();
    assert!(load.holds(1.9) && !load.holds(1.8));
}

#[test]
fn other_skews_have_normals_mean() {
    let plan = Plan {
        table: Table::One,
        loads: Loads::Family,
        load_count: 1,
        jointly: false,
        within: 0.1,
        length_s: 60.0,
        probe_s: PROBE_S,
    };
    let contest = Contest { table: Table::One, length_s: 60.0, is_brief: true };
    for load in loads::other_skews(&plan, [1]) {
        let mean = contest.show_published(Case::Skews, "normal(2s)", &load).requests.mean;
        assert!((mean / 0.114 - 1.0).abs() < 0.05, "{}: {mean}", load.name);
        assert!(load.before != load.requests);
    }
}
