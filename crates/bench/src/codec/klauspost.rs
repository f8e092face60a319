//! klauspost/reedsolomon in a child process that serves requests over pipes.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The running child.
pub struct Klauspost {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Klauspost {
    /// Builds the Go program that lies beside this crate and starts it with its own arena of `arena_bytes`.
    pub fn start(arena_bytes: usize) -> io::Result<Klauspost> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("klauspost");
        let directory = std::env::temp_dir().join(format!("striate-klauspost-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let program = directory.join("klauspost");
        let built =
            Command::new("go").arg("build").arg("-o").arg(&program).arg(".").current_dir(source).status()?;
        if !built.success() {
            return Err(io::Error::other("`go build` of klauspost's benchmark failed"));
        }
        let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        // The running program no longer needs its file.
        std::fs::remove_dir_all(&directory)?;
        let requests = child.stdin.take().expect("standard input is piped");
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut klauspost = Klauspost { child, requests, answers };
        klauspost.request(&format!("arena {arena_bytes}"))?;
        Ok(klauspost)
    }

    /// Sends one line and waits for the reply. It spins, so that the processor is still awake for the library timed
    /// next.
    pub fn request(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.requests, "{line}")?;
        self.requests.flush()?;
        while rustix::io::ioctl_fionread(self.answers.get_ref())? == 0 && self.child.try_wait()?.is_none() {
            std::hint::spin_loop();
        }
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(io::Error::other(format!("klauspost's process ended on {line:?}")));
        }
        Ok(answer.trim().to_string())
    }
}

impl Drop for Klauspost {
    fn drop(&mut self) {
        // The child may have exited already; either way it is gone afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
