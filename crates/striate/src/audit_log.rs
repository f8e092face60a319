//! The audit log: one JSON line per S3 request, sign-in on the console, and command on the admin socket that may change
//! something, which a separate thread appends to a file.
//!
//! The event loop passes entries through a bounded queue. If the file is slower than the requests, entries are dropped
//! and counted, and the count is written as a line `{"dropped":N}`: a full disk must not stop the store. Every line is
//! written completely, so the file can be rotated without SIGHUP: it is reopened when its path leads elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde::Serialize;
use striate_runtime::Runtime;
use striate_s3::{AuditEntry, AuditSink};

/// Maximum number of lines that wait for the file.
const WAITING_LINES: usize = 8_192;
/// Maximum number of bytes that wait for the file: the line of a batch may name thousands of keys.
const WAITING_BYTES: usize = 64 << 20;

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
    lines: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Lines that were dropped and not yet reported.
    dropped: AtomicU64,
    waiting_bytes: AtomicUsize,
}

impl AuditLog {
    /// Opens the file (mode 0600) and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(runtime: &Runtime, path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let (lines, waiting) = sync_channel(WAITING_LINES);
        let counts = Arc::<Counts>::default();
        let (path, counted) = (path.to_owned(), counts.clone());
        runtime.spawn_thread("striate-audit", move || write_lines(&path, file, &waiting, &counted));
        Ok(Self { lines, counts })
    }

    /// Records a command or a sign-in.
    pub fn record_command(&self, entry: &CommandEntry) {
        self.append(entry);
    }

    fn append(&self, entry: &impl Serialize) {
        let mut line = serde_json::to_vec(entry).unwrap_or_default();
        line.push(b'\n');
        let len = line.len();
        let before = self.counts.waiting_bytes.fetch_add(len, Ordering::Relaxed);
        let is_full = before + len > WAITING_BYTES && before > 0;
        if is_full || self.lines.try_send(line).is_err() {
            self.counts.waiting_bytes.fetch_sub(len, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AuditSink for AuditLog {
    fn record(&self, entry: &AuditEntry) {
        self.append(entry);
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn write_lines(path: &Path, mut file: File, waiting: &Receiver<Vec<u8>>, counts: &Counts) {
    let mut failed = false;
    while let Ok(mut batch) = waiting.recv() {
        while let Ok(line) = waiting.try_recv() {
            batch.extend_from_slice(&line);
        }
        counts.waiting_bytes.fetch_sub(batch.len(), Ordering::Relaxed);
        match counts.dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            count => batch.extend_from_slice(format!("{{\"dropped\":{count}}}\n").as_bytes()),
        }
        if !leads_to(path, &file)
            && let Ok(fresh) = open(path)
        {
            file = fresh;
        }
        let written = file.write_all(&batch);
        if let (Err(error), false) = (&written, failed) {
            tracing::error!(path = %path.display(), %error, "the audit log cannot be written; entries are lost");
        }
        failed = written.is_err();
    }
}

fn leads_to(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(on_disk), Ok(open)) => (on_disk.dev(), on_disk.ino()) == (open.dev(), open.ino()),
        _ => false,
    }
}
