//! Finds the running servers of this machine.
//!
//! A server writes `<cluster id>.json` and binds `<cluster id>.sock` in the per-user run directory; a gateway uses
//! `<cluster id>-<its name>`, because there may be several. The run directory is `STRIATE_RUN_DIR`, else
//! `$XDG_RUNTIME_DIR/striate`, else `/tmp/striate-<uid>` (mode 0700, and refused if another user owns it, because any
//! user may create it first).

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use striate_core::ClusterId;

use crate::args::AdminArgs;
use crate::failure::{Failure, Outcome};

/// Name of the folder in every directory that holds the state of the running server.
pub const STATE_FOLDER: &str = ".striate";
/// Name of the admin socket in the state folder.
pub const SOCKET_NAME: &str = "admin.sock";

/// The record of a running server in the run directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Cluster of the server.
    pub cluster: ClusterId,
    /// Process id of the server.
    pub pid: u32,
    /// URL of the S3 endpoint for programs on this machine.
    pub endpoint: String,
    /// Directories of the server.
    pub directories: Vec<PathBuf>,
    /// Name that distinguishes the process from others of its cluster.
    #[serde(default)]
    pub name: Option<String>,
}

/// Returns the per-user run directory, and creates it if it does not exist.
///
/// # Errors
/// If it cannot be created, or belongs to another user.
pub fn run_directory() -> Result<PathBuf, String> {
    let chosen = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let uid = rustix::process::getuid().as_raw();
    let path = chosen("STRIATE_RUN_DIR")
        .or_else(|| chosen("XDG_RUNTIME_DIR").filter(|path| path.is_dir()).map(|path| path.join("striate")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/striate-{uid}")));
    let fail =
        |reason: String| format!("{}: {reason}; set STRIATE_RUN_DIR to a directory of yours", path.display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|error| fail(error.to_string()))?;
    let metadata = fs::symlink_metadata(&path).map_err(|error| fail(error.to_string()))?;
    if !metadata.is_dir() || metadata.uid() != uid {
        return Err(fail("it belongs to somebody else".to_owned()));
    }
    if metadata.permissions().mode() & 0o022 != 0 {
        return Err(fail("others may write to it".to_owned()));
    }
    Ok(path)
}

impl RunRecord {
    fn file(&self, extension: &str) -> String {
        match &self.name {
            Some(name) => format!("{}-{name}.{extension}", self.cluster),
            None => format!("{}.{extension}", self.cluster),
        }
    }

    /// Writes the record into the run directory; returns the path for its socket.
    ///
    /// # Errors
    /// If the run directory cannot be used.
    pub fn publish(&self, run_directory: &Path) -> std::io::Result<PathBuf> {
        let text = serde_json::to_string(self).expect("a run record is JSON");
        let path = run_directory.join(self.file("json"));
        let fresh = run_directory.join(self.file(&format!("{}.new", self.pid)));
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &path)?;
        Ok(run_directory.join(self.file("sock")))
    }

    /// Removes the record and its socket.
    pub fn withdraw(&self, run_directory: &Path) {
        for extension in ["json", "sock"] {
            // A record that cannot be removed is recognised as dead by its socket.
            let _ = fs::remove_file(run_directory.join(self.file(extension)));
        }
    }
}

/// Returns the admin socket that the arguments name, or that of the store running here.
///
/// # Errors
/// If no store runs here, or several do and the arguments do not say which.
pub fn socket(args: &AdminArgs) -> Outcome<PathBuf> {
    if let Some(socket) = &args.admin_socket {
        return Ok(socket.clone());
    }
    let running = running_servers()?;
    if let Some(dir) = &args.dir {
        return socket_of_directory(dir, &running);
    }
    let none = Failure::failed(
        "no server of this user runs on this machine; start one with `striate server DIR…`, or name one of its \
         directories with --dir (as its user, or as root)",
    );
    let several = "several stores run on this machine; name a directory of one of them with --dir";
    only_store(&running, none, several).map(|(_, socket)| socket.clone())
}

/// Returns the only store that runs here. Of several gateways of one cluster it is the first by name: each answers for
/// the whole cluster, and commands that must run once only, such as `heal`, meet the same one.
fn only_store<'a>(
    running: &'a [(RunRecord, PathBuf)],
    none: Failure,
    several: &str,
) -> Outcome<&'a (RunRecord, PathBuf)> {
    let first = running.iter().min_by(|(a, _), (b, _)| a.name.cmp(&b.name)).ok_or(none)?;
    if running.iter().all(|(record, _)| record.cluster == first.0.cluster) {
        return Ok(first);
    }
    let list: Vec<_> = running.iter().map(|(record, _)| describe(record)).collect();
    Err(Failure::refused(format!("{several}:\n  {}", list.join("\n  "))))
}

/// Returns the socket of the server that has a directory. Its own record comes first, by the path as it is written: the
/// directory may be on a disk that hangs, and every call to it then waits for the disk.
fn socket_of_directory(dir: &Path, running: &[(RunRecord, PathBuf)]) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let owner_of = |path: &Path| {
        let owner = running.iter().find(|(record, _)| record.directories.iter().any(|own| own == path));
        owner.map(|(_, socket)| socket.clone())
    };
    if let Some(socket) = owner_of(&absolute) {
        return Ok(socket);
    }
    let own = dir.join(STATE_FOLDER).join(SOCKET_NAME);
    if is_alive(&own) {
        return Ok(own);
    }
    let canonical = fs::canonicalize(&absolute).unwrap_or(absolute);
    owner_of(&canonical).ok_or_else(|| {
        Failure::failed(format!(
            "no running server answers in {}; is it one of a running server's directories, and are you its user?",
            dir.display()
        ))
    })
}

/// Returns the S3 endpoint of the store running here.
///
/// # Errors
/// If none or several are running.
pub fn local_endpoint() -> Outcome<String> {
    let none = Failure::refused(
        "no endpoint is known and no server of this user runs here; give --endpoint http://HOST:9000",
    );
    let several = "several stores run on this machine; choose one with --endpoint";
    only_store(&running_servers()?, none, several).map(|(record, _)| record.endpoint.clone())
}

fn describe(record: &RunRecord) -> String {
    let first = record.directories.first().map(|path| path.display().to_string()).unwrap_or_default();
    format!("--dir {first}  --endpoint {}", record.endpoint)
}

/// Returns the records in the run directory whose sockets accept connections.
fn running_servers() -> Outcome<Vec<(RunRecord, PathBuf)>> {
    let directory = run_directory().map_err(Failure::refused)?;
    let entries = fs::read_dir(&directory);
    let entries = entries.map_err(|error| Failure::failed(format!("{}: {error}", directory.display())))?;
    let mut running = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let record = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<RunRecord>(&bytes).ok());
        let socket = path.with_extension("sock"); // the record's name has no dot but its last
        if let Some(record) = record.filter(|_| is_alive(&socket)) {
            running.push((record, socket));
        }
    }
    Ok(running)
}

/// Returns true if a process listens on the socket.
pub fn is_alive(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cluster: u128, name: Option<&str>) -> (RunRecord, PathBuf) {
        let name = name.map(ToOwned::to_owned);
        let socket = PathBuf::from(format!("/run/{}", name.as_deref().unwrap_or("server")));
        let directories = vec![socket.clone()];
        let endpoint = "http://127.0.0.1:9000".to_owned();
        (RunRecord { cluster: ClusterId(cluster), pid: 1, endpoint, directories, name }, socket)
    }

    fn chosen(running: &[(RunRecord, PathBuf)]) -> Result<PathBuf, String> {
        let found = only_store(running, Failure::failed("none runs"), "several run");
        found.map(|(_, socket)| socket.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn any_gateway_answers_for_its_cluster_and_two_stores_are_told_apart() {
        let gateways = [record(1, Some("g2")), record(1, Some("g1")), record(1, Some("g3"))];
        assert_eq!(chosen(&gateways), Ok("/run/g1".into()));
        assert_eq!(chosen(&[record(1, None)]), Ok("/run/server".into()));
        assert_eq!(chosen(&[]), Err("none runs".to_owned()));
        let error = chosen(&[record(1, Some("g1")), record(2, None)]).unwrap_err();
        assert!(error.contains("several run") && error.contains("/run/g1"), "{error}");
        assert!(error.contains("/run/server"), "{error}");
    }
}
