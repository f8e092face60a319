use super::figures::{PUBLISHED, writes};
use super::noise::FAMILIES;
use super::simulation::run;
use super::theorems::{late_reads, variances};
use super::{Part, Scheme, Setting, SlowPhases};

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
    let slow_phases = Some(SlowPhases::BACKGROUND);
    let setting = Setting { slow_phases, lost: Some(0.5), ..Setting::PAPER };
    for scheme in [Scheme::SelectiveReplication, Scheme::SplitReplication, PUBLISHED, Scheme::Ours] {
        assert_eq!(run(&setting, scheme, 300, 7), run(&setting, scheme, 300, 7));
    }
}

#[test]
fn encoding_by_our_encoder_is_a_small_part_of_a_write() {
    for write in writes().iter().filter(|write| write.encoder == "ours") {
        assert!(write.encode_s < 0.1 * write.coded_s, "{write:?}");
    }
}

#[test]
fn a_stall_strikes_a_read_once_or_each_of_its_flows() {
    let late = |stalled: Part| {
        let setting = Setting { stalls: 0.01, stalled, delay_sigma: 0.0, clients: 1, ..Setting::PAPER };
        run(&setting, Scheme::EcCache { extra: 0 }, 4_000, 3).late
    };
    assert!((0.005..0.015).contains(&late(Part::Request)));
    assert!((0.08..0.12).contains(&late(Part::Flow)));
}

#[test]
fn an_open_client_does_not_wait_for_its_last_read() {
    // One read takes 0.23 s if it is alone, and more than the card carries are started.
    let alone = Setting { client_card: Setting::PAPER.stream, think_s: 0.15, clients: 1, ..Setting::PAPER };
    let mean_ms = |is_open: bool| {
        let setting = Setting { is_open, ..alone };
        run(&setting, Scheme::SelectiveReplication, 300, 3).mean_ms
    };
    assert!(mean_ms(true) > 4.0 * mean_ms(false));
}

#[test]
fn every_kind_of_noise_has_the_figures_of_selective_replication() {
    for (family, setting) in FAMILIES {
        let seen = run(&setting, Scheme::SelectiveReplication, 2_000, 1);
        assert!((seen.mean_ms / 242.0 - 1.0).abs() < 0.08, "{family}: {seen:?}");
        assert!((seen.median_ms / 238.0 - 1.0).abs() < 0.08, "{family}: {seen:?}");
    }
}
