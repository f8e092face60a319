//! The audit log: one JSON line per S3 request, which a separate thread appends to a file.
//!
//! The event loop passes entries through a bounded queue. If the file is slower than the requests, entries are dropped
//! and counted, and the count is written as a line `{"dropped":N}`: a full disk must not stop the store. Every line is
//! written completely, so the file can be rotated without SIGHUP: it is reopened when its path leads elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use striate_runtime::Runtime;
use striate_s3::{AuditEntry, AuditSink};

/// Maximum number of lines that wait for the file.
const WAITING_LINES: usize = 8_192;

/// Appends audit entries to a file.
pub struct AuditLog {
    lines: SyncSender<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens the file (mode 0600) and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(runtime: &Runtime, path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let (lines, waiting) = sync_channel(WAITING_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let (path, counted) = (path.to_owned(), dropped.clone());
        runtime.spawn_thread("striate-audit", move || write_lines(&path, file, &waiting, &counted));
        Ok(Self { lines, dropped })
    }
}

impl AuditSink for AuditLog {
    fn record(&self, entry: &AuditEntry) {
        let mut line = serde_json::to_vec(entry).unwrap_or_default();
        line.push(b'\n');
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn write_lines(path: &Path, mut file: File, waiting: &Receiver<Vec<u8>>, dropped: &AtomicU64) {
    let mut failed = false;
    while let Ok(mut batch) = waiting.recv() {
        while let Ok(line) = waiting.try_recv() {
            batch.extend_from_slice(&line);
        }
        match dropped.swap(0, Ordering::Relaxed) {
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
