//! The command line as users type it.

use clap::{CommandFactory, Parser};
use striate::args::{Cli, Command, HostPort};

#[test]
fn the_command_line_is_consistent_and_every_command_teaches() {
    Cli::command().debug_assert();
    let mut cli = Cli::command();
    cli.build();
    let mut open = vec![cli];
    while let Some(command) = open.pop() {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            open.push(sub.clone());
        }
        let name = command.get_name().to_owned();
        let is_group = command.get_subcommands().any(|sub| sub.get_name() != "help");
        if is_group || name == "version" || name == "help" {
            continue;
        }
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("Example"), "`{name} --help` shows no example:\n{help}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{name}: {} is not explained", argument.get_id());
        }
    }
}

#[test]
fn addresses_are_read_as_people_write_them() {
    let parsed = |text: &str| text.parse::<HostPort>();
    assert_eq!(parsed(":9000").unwrap(), HostPort { host: String::new(), port: 9000 });
    assert_eq!(parsed("[::1]:80").unwrap().to_string(), "[::1]:80");
    assert_eq!(parsed("store.example:443").unwrap().host, "store.example");
    for wrong in ["9000", "host", ":99999", "::1:80", ":"] {
        assert!(parsed(wrong).unwrap_err().contains(':'), "{wrong}");
    }
}

#[test]
fn the_documented_commands_parse() {
    let lines = [
        "striate server /d{1...6} --address 127.0.0.1:0 --console-address :0 --certs /c --dev",
        "striate server /d --otlp-endpoint http://localhost:4318 --otlp-sampling 0.1",
        "striate bucket create --profile rs(4,2) photos",
        "striate bucket list --dir /d1",
        "striate cp --recursive a s3://b/",
        "striate disk replace /d3",
        "striate heal --quiet",
        "striate verify --quiet --json",
        "striate explain s3://b/k s3://b/other/key --read-policy cost-model(1) --json",
        "striate status --json",
        "striate admin keys create --description x",
        "striate admin keys rotate KEY --grace-minutes 5",
        "striate admin keys revoke KEY",
        "striate admin meta export -",
        "striate admin migrate --from embedded --to etcd://a,b/p /d{1...6}",
        "striate admin migrate --from etcd://a --to postgres://u@h/d?schema=s --quiet",
        "striate admin migrate --from embedded --cancel /d{1...6}",
        "striate admin init ca",
        "striate admin certificate site s1 --authority ca --to s1 --days 30",
        "striate site --data /d1 /d2 --rack a --identity s1 --control c1:9300,c2:9300",
        "striate gateway --metadata etcd://e1,e2,e3/striate --identity g1 --address :9000",
        "striate control --metadata etcd://e1/striate --identity c1 --profile rs(4,2)",
        "striate admin site list --control c1:9300 --identity a",
        "striate admin site drain 3 --control c1:9300 --identity a",
        "striate bench --bucket b --workload ycsb-b --objects 10000 --size 100KB --load --verify",
        "striate bench --bucket b --workload pages --size-scale 0.1 --rate 20 --duration 5 --warm-up 1 --clean",
        "striate bench --bucket b --workload trace --trace t.csv.gz --time-scale 10 --preload all",
        "striate lab run --experiment ec-store-ycsb-p",
        "striate lab --help",
        "striate version",
    ];
    for line in lines {
        let parsed = Cli::try_parse_from(line.split(' '));
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
    let parsed = Cli::try_parse_from(["striate", "server", "/a", "/b"]).unwrap();
    assert!(matches!(parsed.command, Command::Server(args) if args.directories == ["/a", "/b"]));
    for wrong in [&["s3://bucket"][..], &["key"], &[], &["s3://b/k", "--read-policy", "best"]] {
        assert!(Cli::try_parse_from(["striate", "explain"].iter().chain(wrong)).is_err(), "{wrong:?}");
    }
    for wrong in [["--otlp-endpoint", "localhost:4318"], ["--otlp-sampling", "2"]] {
        assert!(Cli::try_parse_from(["striate", "server", "/d"].iter().chain(&wrong)).is_err(), "{wrong:?}");
    }
    assert!(Cli::try_parse_from(["striate", "server"]).is_err());
    assert!(Cli::try_parse_from(["striate", "bucket", "create", "--profile", "raid5", "b"]).is_err());
}
