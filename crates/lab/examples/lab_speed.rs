//! `cargo run --release -p striate-lab --example lab_speed -- [SITES [BLOCKS [VIRTUAL SECONDS]]]`

use std::time::Duration;

use striate_runtime::Runtime;

fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let number = |at: usize, or| numbers.get(at).copied().unwrap_or(or);
    let tokio = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let clock = tokio.block_on(async { Runtime::real() });
    let length = Duration::from_secs(u64::from(number(2, 5)));
    let speed = striate_lab::speed::measure(number(0, 32), number(1, 100_000), length, 1, &clock);
    let speed = speed.expect("the world can be built");
    println!("{speed:?}");
    println!("{:.0} chunk reads a minute", speed.chunk_reads_per_minute());
}
