//! A shortened experiment from file to page.

use striate_lab::experiment::{BUILT_IN, Experiment, report, run};
use striate_runtime::Runtime;

#[test]
fn a_shortened_experiment_runs_compares_with_the_paper_and_replays() {
    let mut experiment = Experiment::parse("short", BUILT_IN[0].1).unwrap();
    (experiment.scale, experiment.seeds) = (10_000.0, 2);
    let clock = Runtime::real();
    let results = run(&experiment, 40, &clock, |_, _| {}).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(results.policies.len(), experiment.policies.len());
    assert_eq!(results.comparisons.len(), experiment.paper.len());
    for policy in &results.policies {
        assert_eq!(policy.seeds.iter().map(|run| run.seed).collect::<Vec<_>>(), [40, 41]);
        for run in &policy.seeds {
            let parts = run.metadata_ms + run.plan_ms + run.retrieve_ms + run.decode_ms + run.client_work_ms;
            assert!(
                (parts / run.response.mean_ms - 1.0).abs() < 1e-6,
                "{}: the parts are the whole",
                policy.name
            );
            assert!(run.response.count > 100 && run.read_alone == 0, "{}: {run:?}", policy.name);
            assert!(run.imbalance_over_oracle >= run.imbalance_over_mean - 1e-9, "{}", policy.name);
        }
    }
    let page = report::html(&results);
    assert!(page.contains("virtual") && page.matches("<svg").count() == 4);
    assert!(
        !page.contains("http://")
            || page.matches("http://").count() == page.matches("http://www.w3.org").count()
    );

    let again = run(&experiment, 40, &clock, |_, _| {}).unwrap_or_else(|failure| panic!("{failure}"));
    let traces = |results: &striate_lab::experiment::Results| -> Vec<String> {
        results.policies.iter().flat_map(|policy| policy.seeds.iter().map(|run| run.trace.clone())).collect()
    };
    assert_eq!(traces(&results), traces(&again));
}
