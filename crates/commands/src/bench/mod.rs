//! `striate bench`: runs workloads against any S3 store and measures them.
//!
//! | module | content |
//! |--|--|
//! | [`choice`] | from arguments to a workload |
//! | [`contents`] | the contents of objects: a function of key and seed |
//! | [`objects`] | writing the objects before, and removing them after |
//! | [`request`] | an operation as requests, and its possible failures |
//! | [`drive`] | closed and open loops |
//! | [`measured`], [`report`] | the results: counted, and printed |

mod choice;
mod contents;
mod drive;
mod measured;
mod objects;
mod report;
mod request;

use std::time::Duration;

use striate_runtime::Runtime;
use striate_workload::Workload;

use crate::args::{BenchArgs, WorkloadName};
use crate::failure::{Failure, Outcome};
use crate::transfer::{ObjectLocation, ObjectStore};

use choice::ChosenWorkload;
use contents::Contents;
use drive::{Arrivals, Driver, Limits};
use objects::ObjectSet;
use report::Report;
use request::Target;

/// Default duration of the measurement.
const DEFAULT_DURATION: Duration = Duration::from_secs(30);

/// Loads, warms up, measures and cleans, as the arguments say.
///
/// # Errors
/// If the arguments contradict each other, the store cannot be prepared, operations failed, or the user interrupted.
pub async fn run(runtime: Runtime, args: BenchArgs) -> Outcome {
    let ChosenWorkload { warm_up, measured } = choice::choose(&args)?;
    let store = ObjectStore::connect(runtime, &args.endpoint)?;
    let contents = Contents::new(args.seed);
    let place = ObjectLocation { bucket: args.bucket.clone(), key: prefix(&args) };
    let objects = ObjectSet { store: &store, place: &place, contents: &contents, args: &args };
    if args.load {
        objects.load(&*measured).await?;
    }
    let driver =
        Driver::new(target(&args, &store, &place, contents.clone()), &args, store.interruption().clone());
    let failed = measure(&driver, warm_up, measured, &args).await?;
    if store.interruption().has_happened() {
        let left =
            if args.clean { "; the objects were left: run it again with --clean --duration 0" } else { "" };
        return Err(Failure::interrupted(format!(
            "interrupted; what is printed was measured until then{left}"
        )));
    }
    if args.clean {
        // The workload that ran is gone; a new one knows the same keys.
        objects.clean(&*choice::choose(&args)?.measured).await?;
    }
    if failed { Err(Failure::attention()) } else { Ok(()) }
}

/// Warms up, measures and reports; returns whether operations failed.
async fn measure(
    driver: &Driver,
    warm_up: Option<Box<dyn Workload>>,
    measured: Box<dyn Workload>,
    args: &BenchArgs,
) -> Outcome<bool> {
    let limits = limits(args);
    if limits.length.is_some_and(|length| length.is_zero()) {
        return Ok(false);
    }
    let arrivals = match args.rate {
        Some(per_second) => Arrivals::Poisson { per_second },
        None => Arrivals::Closed { clients: args.clients },
    };
    let objects = measured.objects();
    let mut workload = measured;
    if args.warm_up > 0.0 {
        let limits = Limits { length: Some(Duration::from_secs_f64(args.warm_up)), operations: None };
        match warm_up {
            Some(other) => drop(driver.run("warming up", other, arrivals, limits).await),
            None => workload = driver.run("warming up", workload, arrivals, limits).await.0,
        }
    }
    let (_, results) = driver.run("measuring", workload, arrivals, limits).await;
    let report = Report::new(args, driver.endpoint_url(), objects, &results);
    print!("{}", report.text());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
        std::fs::write(path, text + "\n")
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(results.errors() > 0)
}

fn limits(args: &BenchArgs) -> Limits {
    let is_endless = args.workload == WorkloadName::Trace || args.operations.is_some();
    let default = (!is_endless).then_some(DEFAULT_DURATION);
    Limits { length: args.duration.map(Duration::from_secs_f64).or(default), operations: args.operations }
}

fn target(args: &BenchArgs, store: &ObjectStore, place: &ObjectLocation, contents: Contents) -> Target {
    Target {
        endpoint: store.endpoint().clone(),
        bucket: place.bucket.clone(),
        prefix: place.key.clone(),
        contents,
        verifies: args.verify,
        range: args.range,
        signs_bodies: args.sign_bodies,
        timeout: Duration::from_secs_f64(args.timeout),
    }
}

fn prefix(args: &BenchArgs) -> String {
    let default = || format!("striate-bench/{}/{}/", choice::name(args.workload), args.seed);
    args.prefix.clone().unwrap_or_else(default)
}
