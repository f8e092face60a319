//! The command line as users type it.

use clap::{CommandFactory, Parser};
use striate_lab::args::Cli;

#[test]
fn the_command_line_is_consistent_and_every_command_teaches() {
    Cli::command().debug_assert();
    for command in Cli::command().get_subcommands() {
        let help = command.clone().render_long_help().to_string();
        let name = command.get_name();
        assert!(help.contains("Example"), "`{name} --help` shows no example:\n{help}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{name}: {} is not explained", argument.get_id());
        }
    }
}

#[test]
fn the_documented_commands_parse() {
    let lines = [
        "striate-lab list",
        "striate-lab run --experiment ec-store-ycsb-p --seed 7 --seeds 2 --scale 100 --out /tmp/r",
        "striate-lab figure table-3",
        "striate-lab results --jobs 2",
        "striate-lab reality --calibration D --length 20",
        "striate-lab speed --sites 1000",
        "striate-lab repair --profile rs(6,3) --share 0.2",
        "striate-lab directing --table 2 --fit A3 --placements 5 --probe-ms 0",
        "striate-lab directing --default --case charged --placements 5 --length 400",
        "striate-lab directing --default --case trace --trace requests.csv.gz --seeds 1,2",
        "striate-lab directing --time-outs --placements 8 --length 400",
        "striate-lab packed-batches --placements 8 --load 0.5 --json",
        "striate-lab faults --seeds 10000 --out lab-results --jobs 2",
        "striate-lab wide-encode --code wide(20,5,3) --chunk-kib 1024 --host rack0,10.77.0.10,veth0 --host rack1,10.77.0.11,veth1",
        "striate-lab wide-update --code wide(20,5,3) --update-kib 4 --host rack0,10.77.0.10,veth0",
        "striate-lab wide-repair --code wide(20,5,3) --scheme combined --memory --apart --host rack0,10.77.0.10,veth0",
        "striate-lab encode-node --identity i --peers p --code wide(20,5,3) --chunk-len 1048576 --generation 1",
        "striate-lab site --number 1 --rack a --address 127.0.0.1:0 --identity i --data d --medium P",
    ];
    for line in lines {
        let parsed = Cli::try_parse_from(line.split(' '));
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
    for wrong in [
        "striate-lab site --number 0",
        "striate-lab faults --jobs many",
        "striate-lab directing --table 3",
        "striate-lab directing --case charged",
        "striate-lab directing --default --case none",
        "striate-lab",
    ] {
        assert!(Cli::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
    }
}
