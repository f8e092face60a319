//! The command line as users type it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use striate_commands::args::{Cli, Command, HostPort};
use striate_control::{PackingOptions, UpkeepOptions};
use striate_core::Packing;
use striate_runtime::Runtime;
use striate_runtime::output::OUTPUT_CLOSED;

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
fn the_long_help_says_more_than_the_list_of_commands() {
    let mut cli = Cli::command();
    cli.build();
    for path in [
        "server",
        "site",
        "gateway",
        "control",
        "cp",
        "ls",
        "rm",
        "status",
        "verify",
        "explain",
        "heal",
        "bench",
        "plan wide",
        "admin migrate",
    ] {
        let find = |command: clap::Command, name: &str| command.find_subcommand(name).cloned().expect(name);
        let command = path.split(' ').fold(cli.clone(), find);
        let about =
            |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string).unwrap_or_default();
        let (short, long) = (about(command.get_about()), about(command.get_long_about()));
        assert!(long.len() > short.len(), "`striate {path} --help` says no more than {short:?}");
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
        "striate bucket create --pack 8MiB logs",
        "striate bucket set photos --pack default",
        "striate bucket list --dir /d1",
        "striate server /d{1...6} --pack off --pack-after 10m",
        "striate pack status",
        "striate pack status photos --json",
        "striate pack run --quiet",
        "striate pack run photos --now --json",
        "striate pack undo photos",
        "striate cp --recursive a s3://photos/",
        "striate disk replace /d3",
        "striate heal --quiet",
        "striate verify --quiet --json",
        "striate explain s3://photos/k s3://photos/other/key --read-policy cost-model(1) --json",
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
        "striate admin site retire 3 --control c1:9300 --identity a",
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
    for wrong in [&["s3://bucket"][..], &["key"], &[], &["s3://photos/k", "--read-policy", "best"]] {
        assert!(Cli::try_parse_from(["striate", "explain"].iter().chain(wrong)).is_err(), "{wrong:?}");
    }
    for wrong in [["--otlp-endpoint", "localhost:4318"], ["--otlp-sampling", "2"]] {
        assert!(Cli::try_parse_from(["striate", "server", "/d"].iter().chain(&wrong)).is_err(), "{wrong:?}");
    }
    let packing = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
        Command::Server(args) => UpkeepOptions::from(&args.upkeep).packing,
        other => panic!("{other:?}"),
    };
    assert_eq!(packing("striate server /d"), PackingOptions::default());
    assert_eq!(packing("striate server /d --pack off"), PackingOptions::off());
    let eight = packing("striate server /d --pack 8MiB --pack-after 10m");
    assert_eq!((eight.setting, eight.pack.settled_after.as_secs()), (Packing::Partitions(8 << 20), 600));
    let packed = ["striate", "bucket", "create", "--profile", "packed lrc(6,2,2)", "b"];
    assert!(Cli::try_parse_from(packed).is_ok());
    for wrong in [&["pack", "undo"][..], &["bucket", "set", "b"], &["bucket", "set", "b", "--pack", "3MiB"]] {
        assert!(Cli::try_parse_from(["striate"].iter().chain(wrong)).is_err(), "{wrong:?}");
    }
    assert!(Cli::try_parse_from(["striate", "server"]).is_err());
    assert!(Cli::try_parse_from(["striate", "bucket", "create", "--profile", "raid5", "b"]).is_err());
}

/// Returns a command of the program, with the environment of a store below `root`.
fn striate(root: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_striate"));
    command
        .args(arguments)
        .env("STRIATE_RUN_DIR", root.join("run"))
        .env("STRIATE_ACCESS_KEY", "tester")
        .env("STRIATE_SECRET_KEY", "a-secret-for-this-test")
        .stdin(Stdio::null());
    command
}

/// A process that is killed with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a pipe without a reader: every write to it fails.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_quietly_when_nobody_reads_their_output_and_servers_go_on() {
    let (runtime, root) = (Runtime::real(), tempfile::tempdir().unwrap());
    let root = root.path();
    std::fs::create_dir(root.join("run")).unwrap();
    let disks = root.join("disk{1...4}").display().to_string();
    let arguments = ["server", &disks, "--address", "127.0.0.1:0", "--console-address", "127.0.0.1:0"];
    // The first start of a store prints instructions on the standard output; logs go to the standard error.
    let mut server = striate(root, &arguments);
    let mut server = Running(server.stdout(closed_pipe()).stderr(closed_pipe()).spawn().unwrap());
    let run = |arguments: &[&str], output: Stdio| {
        let mut command = striate(root, arguments);
        command.stdout(output).stderr(Stdio::piped());
        runtime.run_blocking(move || command.spawn().unwrap().wait_with_output().unwrap())
    };
    while !run(&["status"], Stdio::null()).await.status.success() {
        assert!(server.0.try_wait().unwrap().is_none(), "the server stopped");
        runtime.sleep(Duration::from_millis(20)).await;
    }
    let file = root.join("file");
    std::fs::write(&file, vec![7; 5 << 20]).unwrap();
    let file = file.to_str().unwrap();
    for arguments in [&["bucket", "create", "photos"][..], &["cp", "--quiet", file, "s3://photos/key"]] {
        let done = run(arguments, Stdio::null()).await;
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    let commands = [
        &["version"][..],
        &["status"],
        &["status", "--json"],
        &["ls"],
        &["ls", "s3://photos/"],
        &["cat", "s3://photos/key"],
        &["explain", "s3://photos/key"],
        &["pack", "status"],
        &["pack", "run", "--quiet"],
        &["bucket", "list"],
        &["admin", "keys", "list"],
        &["admin", "meta", "export", "-"],
        &["verify", "--quiet"],
    ];
    for arguments in commands {
        let ended = run(arguments, closed_pipe()).await;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), said.as_str()), (Some(OUTPUT_CLOSED), ""), "{arguments:?}");
    }

    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = runtime.run_blocking(move || server.0.wait()).await.unwrap();
    assert!(ended.success(), "the server ended with {ended}");
}
