//! Programs that end with this process.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};

use striate_runtime::Runtime;

type Work = Box<dyn FnOnce() + Send>;

/// A thread that lives as long as the process. A program is killed when the thread that started it ends, and a test's
/// own thread ends with the test.
static STARTER: LazyLock<Mutex<mpsc::Sender<Work>>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<Work>();
    Runtime::real().spawn_thread("starter", move || receiver.into_iter().for_each(|work| work()));
    Mutex::new(sender)
});

/// A running program, killed when it is dropped, or when this process ends in any way.
pub struct Program {
    child: Child,
}

/// Finds an installed program.
///
/// # Panics
/// If it is not installed.
pub fn installed(name: &str, also_in: &[PathBuf]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(also_in.iter().cloned());
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()));
    found.unwrap_or_else(|| panic!("{name} is not installed; run: tools/install.sh engines"))
}

impl Program {
    /// Starts `command`, whose output goes to `log`. It receives `signal` when this process ends.
    pub fn start(command: &[String], signal: &str, unprivileged: bool, log: &Path) -> Self {
        let mut setpriv = Command::new("setpriv");
        if unprivileged && is_root() {
            setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        setpriv.arg(format!("--pdeathsig={signal}")).args(command).stdin(Stdio::null());
        let output =
            std::fs::File::options().create(true).append(true).open(log).expect("a log can be opened");
        setpriv.stdout(output.try_clone().expect("a descriptor")).stderr(output);
        let (sender, receiver) = mpsc::channel();
        let work = Box::new(move || sender.send(setpriv.spawn()).expect("the test waits"));
        STARTER.lock().unwrap().send(work).expect("the starter lives");
        let child = receiver.recv().expect("the starter answers");
        Self { child: child.expect("setpriv (of util-linux) starts") }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(done.expect("kill runs").success());
    }

    /// Waits until the program ends.
    pub fn wait(&mut self) {
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It may end at this moment.
            let _ = self.child.kill();
            self.wait();
        }
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a port on which no process listens now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("a socket has an address").port()
}

/// Runs a program until it ends, and returns its output.
///
/// # Panics
/// If it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    text
}
