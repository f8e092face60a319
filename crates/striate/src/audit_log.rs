//! The audit log: one JSON line per S3 request, sign-in on the console, and command on the admin socket that may change
//! something, which a separate thread appends to a file.
//!
//! The event loop passes entries through a bounded queue. What happens when the file is slower than the requests, or
//! takes nothing, is the operator's choice ([`AuditOverflow`]): entries are dropped and counted, and the count is
//! written as a line `{"dropped":N}`, because a full disk must not stop the store; or signed requests wait, because
//! nothing may be done that is not recorded. Requests that nobody signed get half of the queue at most: strangers can
//! neither push out what users did nor make them wait.
//!
//! Every line is written completely or not at all, so the file can be rotated without SIGHUP: it is reopened when its
//! path leads elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use striate_commands::args::AuditOverflow;
use striate_runtime::Runtime;
use striate_s3::{AuditEntry, AuditSink};
use tokio::sync::watch;

/// Maximum number of lines that wait for the file.
const WAITING_LINES: usize = 8_192;
/// Maximum number of bytes that wait for the file: the line of a batch may name thousands of keys.
const WAITING_BYTES: usize = 64 << 20;
/// Pause before a file that took nothing is tried again while requests wait for it.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How long the end of a process waits for the file.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What an operator did on the admin socket, or a user on the console. Serialises to one JSON object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommandEntry {
    /// Wall time, in milliseconds since the Unix epoch.
    pub time_unix_ms: u64,
    /// `AdminCommand` or `SignIn`.
    pub operation: &'static str,
    /// Address of the user of the console.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// The access key that signed in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key: Option<String>,
    /// The access key that a refused sign-in claimed. Anybody may claim any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_key: Option<String>,
    /// The command as the socket gets it, such as `POST /v1/keys/NAME/revoke`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// What it made or changed, if `command` does not name it: a bucket, an access key, a disk's path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Appends audit entries to a file.
pub struct AuditLog {
    lines: Sender<Vec<u8>>,
    backlog: Arc<Backlog>,
    overflow: AuditOverflow,
}

/// What waits for the file.
struct Backlog {
    lines: AtomicUsize,
    bytes: AtomicUsize,
    /// Lines that were dropped and not yet reported.
    dropped: AtomicU64,
    /// Why the file took nothing when it was last written.
    failure: Mutex<Option<String>>,
    /// Changes when lines have left the queue.
    taken: watch::Sender<()>,
}

/// The thread that writes the file.
struct Writer {
    runtime: Runtime,
    path: PathBuf,
    file: File,
    backlog: Arc<Backlog>,
    overflow: AuditOverflow,
}

impl AuditLog {
    /// Opens the file (mode 0600) and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(runtime: &Runtime, path: &Path, overflow: AuditOverflow) -> io::Result<Self> {
        let file = open(path)?;
        let (lines, waiting) = channel();
        let backlog = Arc::new(Backlog {
            lines: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            failure: Mutex::default(),
            taken: watch::Sender::new(()),
        });
        let (path, shared) = (path.to_owned(), Arc::clone(&backlog));
        let mut writer = Writer { runtime: runtime.clone(), path, file, backlog: shared, overflow };
        runtime.spawn_thread("striate-audit", move || writer.run(&waiting));
        Ok(Self { lines, backlog, overflow })
    }

    /// Records a command or a sign-in.
    pub fn record_command(&self, entry: &CommandEntry) {
        self.append(entry, entry.claimed_key.is_none());
    }

    /// Returns whether signed requests wait, and are refused, because there is no room.
    pub fn refuses(&self) -> bool {
        self.overflow == AuditOverflow::Wait && !self.backlog.has_room(1)
    }

    /// Returns what is wrong with the file, and what follows, if it cannot be written.
    pub fn trouble(&self) -> Option<String> {
        self.backlog.failure.lock().clone()
    }

    /// Waits until the file has all lines, for two seconds at most.
    pub async fn flush(&self, runtime: &Runtime) {
        let mut taken = self.backlog.taken.subscribe();
        let is_empty = |_: &()| self.backlog.lines.load(Ordering::Relaxed) == 0;
        // What the file has not taken by then is lost, as in a crash.
        let _ = runtime.timeout(FLUSH_TIMEOUT, taken.wait_for(is_empty)).await;
    }

    /// Queues a line. `is_known` is whether someone with a key did what it records.
    fn append(&self, entry: &impl Serialize, is_known: bool) {
        let mut line = serde_json::to_vec(entry).unwrap_or_default();
        line.push(b'\n');
        let has_room = self.backlog.has_room(if is_known { 1 } else { 2 });
        // Where requests wait for room, those that began before it was gone still get it.
        let waits = is_known && self.overflow == AuditOverflow::Wait;
        if has_room || waits {
            self.backlog.lines.fetch_add(1, Ordering::Relaxed);
            self.backlog.bytes.fetch_add(line.len(), Ordering::Relaxed);
            if self.lines.send(line).is_ok() {
                return;
            }
        }
        self.backlog.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl AuditSink for AuditLog {
    fn record(&self, entry: &AuditEntry) {
        self.append(entry, entry.access_key.is_some());
    }

    fn await_room(&self) -> Option<BoxFuture<'_, ()>> {
        if self.overflow == AuditOverflow::Drop || self.backlog.has_room(1) {
            return None;
        }
        let mut taken = self.backlog.taken.subscribe();
        Some(Box::pin(async move {
            // The sender lives as long as this log.
            let _ = taken.wait_for(|()| self.backlog.has_room(1)).await;
        }))
    }
}

impl Backlog {
    /// Returns whether less than one in `part` of the queue is taken.
    fn has_room(&self, part: usize) -> bool {
        self.lines.load(Ordering::Relaxed) < WAITING_LINES / part
            && self.bytes.load(Ordering::Relaxed) < WAITING_BYTES / part
    }
}

impl Writer {
    fn run(&mut self, waiting: &Receiver<Vec<u8>>) {
        while let Ok(mut batch) = waiting.recv() {
            let mut lines = 1;
            while let Ok(line) = waiting.try_recv() {
                batch.extend_from_slice(&line);
                lines += 1;
            }
            let bytes = batch.len();
            let dropped = self.backlog.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                batch.extend_from_slice(format!("{{\"dropped\":{dropped}}}\n").as_bytes());
            }
            if !self.write(&batch) {
                self.backlog.dropped.fetch_add(dropped + lines as u64, Ordering::Relaxed);
            }
            self.backlog.lines.fetch_sub(lines, Ordering::Relaxed);
            self.backlog.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.backlog.taken.send_replace(());
        }
    }

    /// Appends lines. Returns false if they are given up.
    fn write(&mut self, batch: &[u8]) -> bool {
        loop {
            if !leads_to(&self.path, &self.file)
                && let Ok(fresh) = open(&self.path)
            {
                self.file = fresh;
            }
            let written = append_whole(&mut self.file, batch);
            self.record(written.as_ref().err());
            if written.is_ok() {
                return true;
            }
            if self.overflow == AuditOverflow::Drop {
                return false;
            }
            self.runtime.pause_thread(RETRY_AFTER);
        }
    }
}

impl Writer {
    /// Records, and logs once, that the file cannot be written, or that it can again.
    fn record(&self, error: Option<&io::Error>) {
        let failure = error.map(|error| {
            let then = match self.overflow {
                AuditOverflow::Drop => "entries are lost",
                AuditOverflow::Wait => "when no more entries have room, requests are refused",
            };
            format!("the audit log {} cannot be written: {error}; {then}", self.path.display())
        });
        let before = std::mem::replace(&mut *self.backlog.failure.lock(), failure.clone());
        match (before, failure) {
            (None, Some(failure)) => tracing::error!("{failure}"),
            (Some(_), None) => tracing::warn!(path = %self.path.display(), "the audit log is written again"),
            _ => {}
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Appends all of `batch`, or nothing of it.
fn append_whole(file: &mut File, batch: &[u8]) -> io::Result<()> {
    let len = file.metadata()?.len();
    file.write_all(batch).inspect_err(|_| {
        // A part of a line would spoil the next one. What is no regular file has no length to set.
        let _ = file.set_len(len);
    })
}

fn leads_to(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(on_disk), Ok(open)) => (on_disk.dev(), on_disk.ino()) == (open.dev(), open.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A log whose path leads to a file that is always full.
    fn full_log(overflow: AuditOverflow) -> (tempfile::TempDir, PathBuf, AuditLog) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        symlink("/dev/full", &path).unwrap();
        let log = AuditLog::open(&Runtime::real(), &path, overflow).unwrap();
        (folder, path, log)
    }

    fn mend(path: &Path) {
        let fresh = path.with_extension("fresh");
        File::create(&fresh).unwrap();
        std::fs::rename(fresh, path).unwrap();
    }

    fn command(number: usize) -> CommandEntry {
        CommandEntry { operation: "AdminCommand", command: format!("{number}"), ..CommandEntry::default() }
    }

    fn sign_in() -> CommandEntry {
        let claimed_key = Some("somebody".to_owned());
        CommandEntry { operation: "SignIn", claimed_key, ..CommandEntry::default() }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn where_requests_wait_nothing_is_lost_while_the_file_takes_nothing() {
        let runtime = Runtime::real();
        let (_folder, path, log) = full_log(AuditOverflow::Wait);
        let mut recorded = 0;
        while log.await_room().is_none() {
            log.record_command(&command(recorded));
            recorded += 1;
        }
        assert!(recorded >= WAITING_LINES && log.refuses());
        // A request that began before, and strangers.
        log.record_command(&command(recorded));
        log.record_command(&sign_in());
        mend(&path);
        while let Some(room) = log.await_room() {
            room.await;
        }
        log.flush(&runtime).await;
        assert!(!log.refuses() && log.trouble().is_none());
        log.record_command(&command(recorded + 1));
        log.flush(&runtime).await;
        let lines = lines(&path);
        let numbers: Vec<usize> =
            lines.iter().filter_map(|line| line["command"].as_str()?.parse().ok()).collect();
        assert_eq!(numbers, (0..recorded + 2).collect::<Vec<_>>());
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        assert_eq!(dropped, 1, "the stranger's");
    }

    #[tokio::test]
    async fn what_a_full_file_does_not_take_is_counted_once_it_takes_lines_again() {
        let runtime = Runtime::real();
        let (_folder, path, log) = full_log(AuditOverflow::Drop);
        for number in 0..10 {
            log.record_command(&command(number));
            assert!(log.await_room().is_none());
        }
        log.flush(&runtime).await;
        let trouble = log.trouble().unwrap();
        assert!(trouble.contains("audit.jsonl cannot be written") && !log.refuses(), "{trouble}");
        mend(&path);
        log.record_command(&command(10));
        log.flush(&runtime).await;
        let lines = lines(&path);
        assert_eq!((&lines[0]["command"], &lines[1]["dropped"]), (&"10".into(), &10.into()), "{lines:?}");
    }

    #[test]
    fn strangers_push_out_nobody() {
        let backlog = |lines| Backlog {
            lines: AtomicUsize::new(lines),
            bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            failure: Mutex::default(),
            taken: watch::Sender::new(()),
        };
        assert!(backlog(WAITING_LINES / 2).has_room(1) && !backlog(WAITING_LINES / 2).has_room(2));
        assert!(!backlog(WAITING_LINES).has_room(1));
    }
}
