//! Keeps the machine's processors awake while response times of milliseconds are measured.
//!
//! A processor that has nothing to do is halted, and waking it takes long on a virtual machine: some tens of
//! microseconds for each message between processes. Hosts that serve requests are set up not to halt; here loops at
//! the scheduler's idle priority, which yield to everything else at once, have the same effect.

use std::process::{Child, Command, Stdio};

/// Counts until the process whose number it is given is gone, however that ends.
const LOOP: &str =
    "while kill -0 \"$0\" 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";

/// One loop for each processor, until this is dropped.
#[derive(Debug)]
pub struct Awake {
    loops: Vec<Child>,
}

impl Awake {
    /// Starts the loops.
    ///
    /// # Errors
    /// When `chrt` cannot be run; it is part of util-linux.
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

    /// The numbers of their processes.
    pub fn pids(&self) -> Vec<u32> {
        self.loops.iter().map(Child::id).collect()
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.loops {
            // One that has ended by itself is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
