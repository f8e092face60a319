use super::figures::{PUBLISHED, writes};
use super::simulation::run;
use super::theorems::{late_reads, variances};
use super::{Scheme, Setting};

#[test]
fn splits_make_the_load_vary_k_times_less() {
    for exponent in [0.0, 0.9] {
        let found = variances(exponent);
        assert!((0.9..1.1).contains(&(found.drawn / found.formula)), "{found:?}");
        assert!(found.drawn >= Setting::PAPER.splits as f64);
    }
}

#[test]
fn a_read_of_many_flows_is_late_more_often_as_the_paper_says() {
    let late = late_reads(0.01);
    assert!((late.drawn / late.formula - 1.0).abs() < 0.05, "{late:?}");
    let quiet = Setting { stalls: 0.01, delay_sigma: 0.0, clients: 1, ..Setting::PAPER };
    let saved = run(&quiet, PUBLISHED, 4_000, 3);
    assert!(saved.late < 0.1 * late.drawn, "one more flow than is needed: {saved:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let setting = Setting { has_background: true, lost: Some(0.5), ..Setting::PAPER };
    for scheme in [Scheme::SelectiveReplication, Scheme::SplitReplication, PUBLISHED, Scheme::Ours] {
        assert_eq!(run(&setting, scheme, 300, 7), run(&setting, scheme, 300, 7));
    }
}

#[test]
fn encoding_is_a_small_part_of_a_write() {
    for write in writes() {
        assert!(write.encode_s < 0.1 * write.coded_s, "{write:?}");
    }
}
