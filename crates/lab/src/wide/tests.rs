use striate_core::{RackId, SiteId};
use striate_plan::{Scheme, TreeShape, check_placement};

use super::cluster::{Cluster, GBIT, Setting};
use super::encoding::{Encoding, OWN_LOSS};
use super::figures::single_chunk_s;
use super::full_node::{self, Requestors};
use super::large::{large_setting, repair_large};
use super::layout::Layout;
use super::repair::{Repairs, Selection};
use super::sealing;
use super::updates::{Load, mean_update_s};
use crate::data_updates::UpdateMethod;

#[test]
fn stripes_lie_as_the_stores_rule_demands_and_cross_racks_as_table_4_says() {
    for name in ["wide(64,7,4)", "wide(128,27,4)", "wide(20,5,3)", "wide(64,11,2)"] {
        let layout = Layout::combined(name).unwrap();
        let Scheme::Combined(geometry) = &layout.scheme else { unreachable!() };
        let setting = Setting::cold(1.0);
        let cluster = Cluster::new(layout.parts(), geometry.c(), &setting);
        let sites = layout.fixed(&cluster);
        let rack_of = |site: SiteId| Some(cluster.rack_id(site));
        check_placement(&layout.rule, &sites, rack_of).unwrap();
        let mut repairs =
            Repairs::new(&cluster, &layout, &setting, TreeShape::Racks, Selection::least_recently());
        let job = repairs.job(&sites, 0, &[]).unwrap();
        let crossing = |uses: &[(usize, f64)]| uses.iter().any(|&(link, _)| link >= cluster.uplink(0));
        let across = job.tasks.iter().filter(|task| crossing(&task.uses)).count();
        assert_eq!(across, geometry.group_repair_chunks(0), "{name}");
    }
}

#[test]
fn a_lost_chunk_of_a_full_group_may_be_made_in_its_own_rack_alone() {
    let layout = Layout::combined("wide(16,7,4)").unwrap();
    let setting = Setting::cold(1.0);
    let cluster = Cluster::new(layout.parts() + 3, 6, &setting);
    let sites = layout.fixed(&cluster);
    let repairs = Repairs::new(&cluster, &layout, &setting, TreeShape::Racks, Selection::least_recently());
    let admitted = repairs.admitted(&sites, 0);
    assert_eq!(admitted, [cluster.site(0, 4), cluster.site(0, 5)]);
}

/// Calculated by hand: one chunk from the disk, three chunks within racks at 10 Gb/s, and one sum at 1 Gb/s.
#[test]
fn whole_chunks_wait_for_each_other_and_slices_do_not() {
    let layout = Layout::combined("wide(14,7,4)").unwrap();
    let setting = Setting::cold(1.0);
    let expected = setting.chunk * (1.0 / setting.disk + 3.0 / (10.0 * GBIT) + 1.0 / GBIT);
    let taken = single_chunk_s(&layout, &setting).unwrap();
    assert!((taken / expected - 1.0).abs() < 1e-6, "{taken} instead of {expected}");
    let sliced = single_chunk_s(&layout, &Setting { slices: 1_000, ..setting }).unwrap();
    assert!((sliced * GBIT / setting.chunk - 1.0).abs() < 0.01, "{sliced}: the gateway is the narrowest");
}

#[test]
fn both_fitted_rates_give_the_times_that_they_were_fitted_on() {
    let fastest = single_chunk_s(&Layout::topology(64, 4).unwrap(), &Setting::cold(10.0)).unwrap();
    assert!((fastest / 1.11 - 1.0).abs() < 0.01, "Fig. 10a: {fastest}");
    let heavy = single_chunk_s(&Layout::topology(128, 4).unwrap(), &Setting::hot(80.0)).unwrap();
    assert!((heavy / 0.1084 - 1.0).abs() < 0.01, "Fig. 12c: {heavy}");
}

#[test]
fn two_lists_spread_requestors_and_one_list_does_not() {
    let layout = Layout::combined("wide(24,11,4)").unwrap();
    let anywhere = Requestors { clients: 0, is_at_home: false };
    let rate = |selection| full_node::rate(&layout, &Setting::cold(1.0), selection, anywhere).unwrap();
    let two = rate(Selection::least_recently());
    assert!(
        two > 1.5 * rate(Selection::least_recently_in_one_list()),
        "each repair uses a site of each rack"
    );
    let at_random: f64 = (0..5).map(|seed| rate(Selection::at_random(seed))).sum::<f64>() / 5.0;
    assert!(two > 1.02 * at_random, "{two} and {at_random}");
}

#[test]
fn several_nodes_pay_when_data_outweigh_the_parities_that_they_pass_on() {
    let setting = Setting { disk: 100e9, slices: 256, ..Setting::cold(1.0) };
    let encoding = Encoding { data: 64, parities: 3, nodes: 4, loss: OWN_LOSS };
    let from = encoding.pays_from(&setting).unwrap();
    // A hop sends f − 1 parities, while one node would encode k chunks.
    let rule = 3.0 * setting.coder / setting.card;
    assert!((from as f64 / rule - 1.0).abs() < 0.15, "{from} instead of {rule}");
    assert!(!Encoding { data: from - 1, ..encoding }.pays(&setting) && encoding.pays(&setting));
}

#[test]
fn updates_in_the_rack_are_faster_and_reading_parities_is_slower() {
    let layout = Layout::combined("wide(32,7,4)").unwrap();
    let load = Load { stripes: 20, operations: 400, clients: 4, updates: 0.5, seed: 1 };
    let ms = |way| 1e3 * mean_update_s(&layout, &Setting::hot(20.0), way, &load);
    let inner =
        |inner_global, inner_local| UpdateMethod { inner_global, inner_local, ..UpdateMethod::DELTAS };
    let times = [
        ms(UpdateMethod { reads_parities: true, ..UpdateMethod::DELTAS }),
        ms(UpdateMethod::DELTAS),
        ms(inner(false, true)),
        ms(inner(true, false)),
        ms(inner(true, true)),
    ];
    assert!(times.is_sorted_by(|slower, faster| slower > faster), "{times:?}");
}

#[test]
fn repairs_of_a_node_fill_one_downlink_unless_they_are_chains() {
    let layout = Layout::combined("wide(33,11,4)").unwrap();
    let run = |shape| repair_large(&layout, shape, Selection::least_recently(), 40, 3).unwrap();
    let (cluster, racks) = run(TreeShape::Racks);
    let downlinks = |carried: &[f64]| (0..40).map(|rack| carried[cluster.downlink(rack)]).sum::<f64>();
    assert_eq!(racks.carried[cluster.downlink(0)], downlinks(&racks.carried), "all of it");
    let (_, chains) = run(TreeShape::Chain);
    assert!(chains.carried[cluster.downlink(0)] <= 40.0 * large_setting().chunk * 1.001, "one sum each");
    assert!((downlinks(&chains.carried) / downlinks(&racks.carried) - 1.0).abs() < 1e-9, "no more in all");
    assert!(chains.all_s < racks.all_s);
    assert_eq!(run(TreeShape::Chain).1, chains, "the same seed is the same run");
}

#[test]
fn sealing_sends_as_many_sums_as_the_geometry_says() {
    for name in ["wide(128,27,4)", "wide(42,15,4)"] {
        let layout = Layout::combined(name).unwrap();
        let Scheme::Combined(geometry) = &layout.scheme else { unreachable!() };
        let cluster = Cluster::new(geometry.z() + 2, geometry.c() + 3, &large_setting());
        let plan = sealing::plan(geometry, &cluster).unwrap();
        plan.check(geometry, |site| Some(cluster.rack_id(site))).unwrap();
        let rack_of = |site| -> RackId { cluster.rack_id(site).clone() };
        assert_eq!(
            sealing::sums_across_racks(&layout, &plan.sites(), rack_of),
            geometry.sealing_chunks(),
            "{name}"
        );
    }
}
