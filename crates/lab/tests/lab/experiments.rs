//! Shortened experiments from file to page.

use std::path::Path;

use striate_lab::experiment::{
    BUILT_IN, Cells, Experiment, MovementUnderTest, Progress, Results, RunOptions, pages, report, run,
};
use striate_runtime::Runtime;

fn short(experiment: usize) -> Experiment {
    let (name, text) = BUILT_IN[experiment];
    let mut experiment = Experiment::parse(name, text).unwrap();
    (experiment.scale, experiment.seeds) = (10_000.0, 2);
    experiment
}

/// Runs an experiment, two worlds at a time; returns the results and how many runs were executed.
fn run_all(experiment: &Experiment, cells: Option<Cells>) -> (Results, usize) {
    let options = RunOptions { first_seed: 40, jobs: 2, cells };
    let (mut anew, mut steps) = (0, 0);
    let results = run(experiment, &options, &Runtime::real(), |progress| match progress {
        Progress::At { .. } => steps += 1,
        Progress::Done { kept, .. } => anew += usize::from(!kept),
    });
    assert!(steps >= anew * 50, "{steps} steps in {anew} runs");
    (results.unwrap_or_else(|failure| panic!("{failure}")), anew)
}

fn traces(results: &Results) -> Vec<&str> {
    results.policies.iter().flat_map(|policy| policy.seeds.iter().map(|run| run.trace.as_str())).collect()
}

#[test]
fn a_shortened_experiment_runs_compares_with_the_paper_and_replays() {
    let experiment = short(0);
    let (results, _) = run_all(&experiment, None);
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
            assert!(run.response.count > 100 && run.planned_again == 0, "{}: {run:?}", policy.name);
            assert!(run.imbalance_over_oracle >= run.imbalance_over_mean - 1e-9, "{}", policy.name);
        }
    }
    let page = report::html(&results);
    assert!(page.contains("virtual") && page.matches("<svg").count() == 5);
    assert!(page.contains("4a") && page.contains("table-2"));
    assert_eq!(page.matches("http://").count(), page.matches("http://www.w3.org").count());
    let index = pages::index(std::slice::from_ref(&results), &[]);
    for policy in &results.policies {
        assert!(index.contains(&format!("| {} |", policy.name)), "{index}");
    }

    // A run has the same trace alone or beside others.
    let mut one = experiment.clone();
    one.keep_policies(&["EC+LB".to_owned()]).unwrap();
    let (alone, _) = run_all(&one, None);
    assert!(traces(&alone).iter().all(|trace| traces(&results).contains(trace)));
}

/// An interrupted experiment resumes with the missing runs, and unreadable cells are run again.
#[test]
fn finished_runs_are_kept_by_the_same_program_under_the_same_description() {
    let folder = std::env::temp_dir().join(format!("striate-cells-{}", std::process::id()));
    let cells = |program: &str| Some(Cells::new(&folder, program));
    let mut experiment = short(0);
    experiment.policies.truncate(2);
    experiment.paper.clear();
    let (first, anew) = run_all(&experiment, cells("one"));
    assert_eq!(anew, 4);
    let (again, anew) = run_all(&experiment, cells("one"));
    assert_eq!((anew, traces(&again)), (0, traces(&first)));
    assert_eq!(report::html(&again), report::html(&first));
    assert_eq!(run_all(&experiment, cells("another")).1, 4);

    let files = |folder: &Path| -> Vec<_> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let of_experiment = folder.join(&experiment.name);
    let all = files(&of_experiment);
    assert!(all.len() == 8 && all.iter().all(|path| path.extension().is_some_and(|ending| ending == "json")));
    for path in &all[..4] {
        let text = std::fs::read(path).unwrap();
        std::fs::write(path, &text[..text.len() / 2]).unwrap();
    }
    let damaged = run_all(&experiment, cells("one")).1 + run_all(&experiment, cells("another")).1;
    assert_eq!(damaged, 4);

    experiment.scale *= 2.0;
    assert_eq!(run_all(&experiment, cells("one")).1, 4, "at another scale it is another run");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// EC-Store §VI-C4: with two of 32 services dead, every block can still be read.
#[test]
fn experiments_with_failed_sites_lose_nothing() {
    let failures = BUILT_IN.iter().position(|(name, _)| *name == "ec-store-failures-p").unwrap();
    let mut experiment = short(failures);
    (experiment.scale, experiment.seeds) = (4_000.0, 1);
    experiment.keep_policies(&["EC".to_owned(), "EC, 2 down".to_owned()]).unwrap();
    let (results, _) = run_all(&experiment, None);
    let dead = |policy: usize| {
        let run = &results.policies[policy].seeds[0];
        run.site_bytes.iter().filter(|bytes| **bytes == 0).count()
    };
    assert_eq!((dead(0), dead(1)), (0, 2));
    assert_eq!(results.comparisons.len(), 1);
}

/// The real mover moves chunks during reads, no read notices, and the same seed moves the same chunks (I14).
#[test]
fn chunks_move_under_the_readers_and_the_same_seed_moves_the_same() {
    let mut experiment = short(0);
    (experiment.scale, experiment.seeds) = (5_000.0, 1);
    experiment.keep_policies(&["EC+C".to_owned(), "EC+C+M".to_owned()]).unwrap();
    experiment.policies[0].movement = Some(movement("improved"));
    let (results, _) = run_all(&experiment, None);
    for policy in &results.policies {
        let run = &policy.seeds[0];
        let [warm_up, measured] = run.moved.expect("something moves");
        assert!(warm_up.chunks > 0 && measured.chunks > 10, "{}: {measured:?}", policy.name);
        assert!(
            measured.evaluated > measured.chunks && measured.search_s > 0.0,
            "{}: {measured:?}",
            policy.name
        );
        assert_eq!(run.planned_again, 0, "{}: old chunks stay as long as a read", policy.name);
    }
    // As published, at most one chunk per second, times the scale, plus what a round saves up.
    let [_, measured] = results.policies[1].seeds[0].moved.unwrap();
    assert!(measured.chunks as f64 <= results.measured_s * results.scale + 16.0, "{measured:?}");
    let again = run_all(&experiment, None).0;
    assert_eq!(traces(&again), traces(&results));
    experiment.policies.iter_mut().for_each(|policy| policy.movement = None);
    let (without, _) = run_all(&experiment, None);
    assert!(without.policies.iter().all(|policy| policy.seeds[0].moved.is_none()));
    assert!(traces(&without).iter().all(|trace| !traces(&results).contains(trace)));
}

fn movement(objective: &str) -> MovementUnderTest {
    MovementUnderTest {
        objective: objective.to_owned(),
        w2: None,
        chunks_per_s: None,
        window: None,
        report_s: None,
        candidates: None,
    }
}
