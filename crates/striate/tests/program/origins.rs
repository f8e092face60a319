//! A bucket in front of a store that goes away.

use crate::packing::{Server, said};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_an_origin_is_away_commands_and_status_say_so() {
    let (away, server) = (Server::start(3, &[]).await, Server::start(3, &["--cache-mib", "64"]).await);
    away.ask(&["bucket", "create", "theirs"]).await;
    let endpoint = away.json(&["status", "--json"]).await["endpoint"].as_str().unwrap().to_owned();
    let create = ["bucket", "create", "--origin", "s3://theirs", "--origin-endpoint", &endpoint, "ours"];
    server.ask(&create).await;
    // It exits with 1 if it warns of anything.
    server.ask(&["status"]).await;
    let large = [&create[..6], &["--cache-block-mib", "64", "large"][..]].concat();
    let made = server.ask(&large).await;
    assert!(made.contains("warning: blocks of 64 MiB") && made.contains("--body-memory-mib 256"), "{made}");
    // The gateway knows the bucket once it has served a request.
    server.ask(&["ls", "s3://large/"]).await;
    let status = said(&server.run(&["status"]).await);
    assert!(status.contains("! blocks of 64 MiB"), "{status}");
    drop(away);
    let failed = said(&server.run(&["cat", "s3://ours/key"]).await);
    assert!(failed.contains(&format!("the origin {endpoint} failed: ")), "{failed}");
    let status = said(&server.run(&["status"]).await);
    assert!(status.contains(&format!("! the origin {endpoint} does not answer: ")), "{status}");
    assert!(status.contains("ours: the other store does not answer"), "{status}");
}
