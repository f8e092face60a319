//! `striate ls` and `striate status` show which buckets are in memory only.

use crate::packing::Server;

#[tokio::test]
async fn ls_and_status_say_which_buckets_are_volatile() {
    let server = Server::start(3, &["--cache-mib", "64"]).await;
    server.ask(&["bucket", "create", "photos"]).await;
    server.ask(&["bucket", "create", "--volatile", "sessions"]).await;
    let listed = server.ask(&["ls"]).await;
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name).collect();
    assert_eq!(names, ["photos", "sessions  (volatile: in memory only)"]);
    let status = server.ask(&["status"]).await;
    assert!(status.contains("volatile buckets  sessions: in memory only"), "{status}");
    let status = server.json(&["status", "--json"]).await;
    assert_eq!(status["cache"]["volatile_buckets"], serde_json::json!(["sessions"]));
}

#[tokio::test]
async fn status_warns_of_volatile_buckets_without_memory_sites() {
    let server = Server::start(3, &[]).await;
    // It exits with 1 if it warns of anything.
    server.ask(&["status"]).await;
    let made = server.ask(&["bucket", "create", "--volatile", "sessions"]).await;
    assert!(made.contains("there are no memory sites yet"), "{made}");
    let status = server.run(&["status"]).await;
    assert_eq!(status.status.code(), Some(1));
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("! a volatile bucket takes no objects"), "{status}");
}
