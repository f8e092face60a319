//! Keeps the machine's processors awake while response times of milliseconds are measured.
//!
//! An idle processor is halted, and waking it on a virtual machine takes some tens of microseconds for each message
//! between processes. Hosts that serve requests are configured not to halt. Here, loops at the scheduler's idle
//! priority have the same effect; they yield to everything else at once.

use std::process::{Child, Command, Stdio};

/// Loops until the process with the given id is gone, for whatever reason.
const LOOP: &str =
    "while kill -0 \"$0\" 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";

/// One loop per processor, until dropped.
#[derive(Debug)]
pub struct BusyLoops {
    loops: Vec<Child>,
}

impl BusyLoops {
    /// Starts the loops.
    ///
    /// # Errors
    /// If `chrt`, which is part of util-linux, cannot be run.
    pub fn start() -> std::io::Result<Self> {
        let mut awake = Self { loops: Vec::new() };
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "sh", "-c", LOOP, &std::process::id().to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            awake.loops.push(command.spawn()?);
        }
        Ok(awake)
    }

    /// Returns the process ids of the loops.
    pub fn pids(&self) -> Vec<u32> {
        self.loops.iter().map(Child::id).collect()
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.loops {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
