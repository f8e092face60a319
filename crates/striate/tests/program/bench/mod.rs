//! `striate bench` as users run it, against a store in this process that fails as the tests choose.

mod store;

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use striate_runtime::Runtime;

use store::{Fault, Store};

struct Bench {
    runtime: Runtime,
    store: Arc<Store>,
    endpoint: String,
    directory: tempfile::TempDir,
}

/// The output of a run.
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    json: Value,
}

impl Bench {
    async fn start() -> Self {
        let runtime = Runtime::real();
        let (store, endpoint) = Store::start(&runtime).await;
        Self { runtime, store, endpoint, directory: tempfile::tempdir().unwrap() }
    }

    async fn run(&self, line: &str) -> Ran {
        let json = self.directory.path().join("result.json");
        // A result of the previous run must not be mistaken for this one's.
        let _ = std::fs::remove_file(&json);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_striate"));
        command
            .args(["bench", "--bucket", "b", "--quiet", "--endpoint", &self.endpoint, "--json"])
            .arg(&json)
            .args(line.split_whitespace())
            .env("STRIATE_ACCESS_KEY", "key")
            .env("STRIATE_SECRET_KEY", "secret");
        let Output { status, stdout, stderr } =
            self.runtime.run_blocking(move || command.output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran {
            status: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
            json: read_json(&json).unwrap_or(Value::Null),
        }
    }

    fn file(&self, name: &str, contents: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path.display().to_string()
    }
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

impl Ran {
    /// Asserts that the run succeeded.
    fn well(self) -> Self {
        assert_eq!(self.status, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    /// Returns the row of one kind of operation.
    fn row(&self, operation: &str) -> &Value {
        let rows = self.json["operations"].as_array().unwrap_or_else(|| panic!("{}", self.stderr));
        rows.iter().find(|row| row["operation"] == operation).unwrap_or(&Value::Null)
    }

    fn number(&self, operation: &str, field: &str) -> f64 {
        self.row(operation).pointer(&format!("/{field}")).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_loaded_once_run_verified_and_removed_alone() {
    let bench = Bench::start().await;
    bench.store.put("b", "striate-bench/ycsb-a/1/not-ours", b"x");
    let base = "--workload ycsb-a --objects 40 --size 1000 --operations 200 --clients 4 --verify";
    let ran = bench.run(&format!("{base} --load")).await.well();
    assert!(
        ran.stderr.contains("made the bucket b") && ran.stderr.contains("loaded 40 of 40"),
        "{}",
        ran.stderr
    );
    assert_eq!(bench.store.keys().len(), 41);
    let (reads, updates) = (ran.number("read", "count"), ran.number("update", "count"));
    assert_eq!((reads + updates, ran.number("all", "bytes")), (200.0, 200_000.0));
    assert!(reads > 60.0 && updates > 60.0);
    assert_eq!(ran.number("read", "objects"), reads);

    // Only objects that are missing or of another size are written again.
    bench.store.remove("b", "striate-bench/ycsb-a/1/0000000007");
    bench.store.put("b", "striate-bench/ycsb-a/1/0000000008", b"short");
    let ran = bench.run(&format!("{base} --load")).await.well();
    assert!(ran.stderr.contains("loaded 2 of 40"), "{}", ran.stderr);

    let ran = bench.run("--workload ycsb-a --objects 40 --duration 0 --clean").await.well();
    assert!(ran.stderr.contains("removed 40") && ran.stderr.contains("1 others"), "{}", ran.stderr);
    assert_eq!(bench.store.keys(), ["b/striate-bench/ycsb-a/1/not-ours"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn inserted_objects_are_read_only_once_they_are_there_and_removed_too() {
    let bench = Bench::start().await;
    let ran = bench
        .run(
            "--workload ycsb-d --objects 20 --size 500 --operations 2000 --clients 8 --load --verify --clean",
        )
        .await
        .well();
    assert_eq!(ran.number("insert", "count") + ran.number("read", "count"), 2_000.0);
    assert!(ran.number("insert", "count") > 50.0 && ran.stderr.contains("removed "), "{}", ran.stderr);
    assert!(bench.store.keys().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_one_operation_on_many_objects() {
    let bench = Bench::start().await;
    let line = "--workload pages --objects 8 --size-scale 0.001 --operations 30 --clients 2 --load --verify";
    let ran = bench.run(line).await.well();
    assert_eq!(ran.number("read", "count"), 30.0);
    assert!(ran.number("read", "objects") >= 150.0, "{}", ran.stdout);
    assert_eq!(bench.store.gets(), ran.number("read", "objects") as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_ranges_are_read_and_verified_at_their_places() {
    let bench = Bench::start().await;
    let base = "--workload ycsb-c --objects 10 --size 50000 --operations 100 --clients 4 --verify";
    let ran = bench.run(&format!("{base} --load --range 4KiB")).await.well();
    assert_eq!((ran.number("read", "count"), ran.number("read", "bytes")), (100.0, 409_600.0));
    assert_eq!(ran.json["range_bytes"], 4_096);
    // Shorter objects are read completely.
    let ran = bench.run(&format!("{base} --range 1MB")).await.well();
    assert_eq!(ran.number("read", "bytes"), 5_000_000.0);
    // The contents are checked at the requested offset.
    let path = "striate-bench/ycsb-c/1/0000000003";
    bench.store.put("b", path, &[7; 50_000]);
    let ran = bench.run(&format!("{base} --range 100")).await;
    assert!(ran.status == Some(1) && ran.stdout.contains("wrong contents"), "{}", ran.stdout);
    bench.store.put("b", path, b"short");
    let ran = bench.run(&format!("{base} --range 100")).await;
    assert!(ran.status == Some(1) && ran.stdout.contains("InvalidRange"), "{}", ran.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_counted_by_kind_and_told() {
    let bench = Bench::start().await;
    let base = "--workload ycsb-c --objects 10 --size 2000 --operations 20 --clients 2 --verify";
    bench.run(&format!("{base} --load")).await.well();
    for (fault, kind, told) in [
        (Fault::Damage, "wrong contents", "differ from what was written"),
        (Fault::Short, "wrong size", "1999 bytes came, 2000 were expected"),
        (Fault::Busy, "SlowDown", "reduce your rate"),
        (Fault::BreakOff, "broken off", "broke off"),
        (Fault::Silence, "timeout", "--timeout allows more"),
    ] {
        bench.store.fail_every(10, fault);
        let ran = bench.run(&format!("{base} --timeout 2")).await;
        bench.store.fail_every(0, fault);
        let errors = ran.row("read")["errors"].as_array().cloned().unwrap_or_default();
        assert_eq!(ran.status, Some(1), "{fault:?}");
        assert!(
            errors.len() == 1 && errors[0]["kind"] == kind && errors[0]["count"] == 2,
            "{fault:?}: {errors:?}"
        );
        assert!(ran.stdout.contains(told) && ran.number("read", "count") == 18.0, "{}", ran.stdout);
    }
    // Objects of another seed under the same keys.
    let ran = bench.run(&format!("{base} --seed 2 --prefix striate-bench/ycsb-c/1/")).await;
    assert!(ran.status == Some(1) && ran.stdout.contains("another --seed"), "{}", ran.stdout);
}

/// One operation runs at a time, and the store stalls for half a second: a loop that omitted waiting operations would
/// see only one slow operation in some hundreds. The test has only lower bounds, so a slow machine changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stall_is_seen_by_all_that_was_due_during_it() {
    let bench = Bench::start().await;
    let base = "--workload ycsb-c --objects 10 --size 100";
    bench.run(&format!("{base} --load --duration 0")).await.well();
    bench.store.stall_once(Duration::from_millis(500));
    let ran = bench.run(&format!("{base} --rate 400 --operations 240 --max-in-flight 1")).await.well();
    let of_all = |field: &str| ran.number("read", &format!("response_ms/{field}"));
    assert_eq!(ran.number("read", "count"), 240.0);
    // Some 200 of the 240 were due during the stall, and waited half as long on average.
    assert!(of_all("max") >= 500.0 && of_all("p50") > 50.0, "{}", ran.stdout);
    assert!(
        ran.json["waited"].as_u64().unwrap() > 50 && ran.stdout.contains("--max-in-flight"),
        "{}",
        ran.stdout
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_replayed_with_its_groups_and_wrong_lines_are_refused() {
    let bench = Bench::start().await;
    let trace = "time_s,op,key,size,group\n0,GET,old,100,\n0.1,PUT,new/a,50,1\n0.1,PUT,new/b,60,1\n\
                 0.6,GET,new/a,50,2\n0.6,GET,new/b,60,2\n0.6,GET,old,100,2\n1.0,DELETE,new/a,,\n";
    let file = bench.file("trace.csv", trace);
    let line = format!("--workload trace --trace {file} --verify");
    let ran = bench.run(&format!("{line} --load --time-scale 0.5")).await.well();
    assert!(ran.stderr.contains("loaded 1 of 1"), "{}", ran.stderr);
    let counts = ["read", "insert", "delete"].map(|kind| ran.number(kind, "count"));
    assert!(ran.json["elapsed_s"].as_f64().unwrap() >= 2.0, "a second at half its speed");
    assert_eq!((counts, ran.number("read", "objects")), ([2.0, 2.0, 1.0], 4.0));
    let left: Vec<String> = ["new/b", "old"].map(|key| format!("b/striate-bench/trace/1/{key}")).into();
    assert_eq!(bench.store.keys(), left);
    bench.run(&format!("{line} --duration 0 --clean")).await.well();
    assert!(bench.store.keys().is_empty());

    let wrong = bench.file("wrong.csv", &trace.replace("0.6,GET,new/b", "0.5,GET,new/b"));
    let ran = bench.run(&format!("--workload trace --trace {wrong}")).await;
    assert!(ran.status == Some(2) && ran.stderr.contains("wrong.csv: line 6: "), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_apply_is_refused() {
    let bench = Bench::start().await;
    for (line, told) in [
        ("--workload pages --size 10KB", "--size does not apply"),
        ("--workload trace --range 4KiB", "--range does not apply"),
        ("--workload ycsb-c --range 0", "at least one byte"),
        ("--workload trace", "--trace FILE"),
        ("--workload cdn", "--cdn-sizes FILE"),
        ("--workload ycsb-a --time-scale 2", "only to trace"),
        ("--workload ycsb-a --rate 5 --clients 3", "cannot be used with"),
    ] {
        let ran = bench.run(line).await;
        assert!(ran.status == Some(2) && ran.stderr.contains(told), "{line}: {}", ran.stderr);
    }
}
