//! How long a read waits for the last splits of a cached block.
//!
//! EC-Cache requests k + Δ splits of every block, so that no read waits for the slowest. Here a read requests k,
//! and once most of these have arrived, it waits for the others only a little longer than they took. Then it requests
//! as many others. So a split that stalls costs little from the first read on, and reads without one transfer nothing
//! in addition.

/// Number of missing splits at which the wait for them begins.
pub const LAST_SPLITS: usize = 2;

/// Maximum wait for them, as a share of the time that the read has taken so far.
pub const WAIT_SHARE: f64 = 0.1;
