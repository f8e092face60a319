//! The engine on etcd: conformance, and failures of servers and connections.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use striate_meta::conformance::{self, Store};
use striate_meta::{Commit, EngineUrl, MetaError, MetaStore, Precondition, Transaction, keys};
use striate_runtime::Runtime;

use crate::certificates::Certificates;
use crate::etcd_server::{Etcd, SHARED, url};
use crate::load::{Counting, done, fresh_id, put, rest_and_watch_everything, value};
use crate::proxy::{Mode, Proxy};

type StoreFuture = Pin<Box<dyn Future<Output = Store> + Send>>;

/// Returns a prefix that no other test uses.
fn fresh_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn open(url: &EngineUrl) -> Result<Arc<dyn MetaStore>, MetaError> {
    striate_meta::open(&Runtime::real(), url).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_on_etcd_conforms() {
    let factory = || -> StoreFuture { Box::pin(async { SHARED.open(&fresh_prefix()).await }) };
    conformance::run_all(&Runtime::real(), &factory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_share_an_etcd_see_one_state() {
    let pair = || -> Pin<Box<dyn Future<Output = (Store, Store)> + Send>> {
        Box::pin(async {
            let prefix = fresh_prefix();
            (SHARED.open(&prefix).await, SHARED.open(&prefix).await)
        })
    };
    conformance::run_shared(&Runtime::real(), &pair).await;
}

#[tokio::test]
async fn the_engine_on_etcd_is_an_ordered_map() {
    crate::load::compare_with_the_model(async || SHARED.open(&fresh_prefix()).await).await;
}

#[tokio::test]
async fn clusters_with_other_prefixes_do_not_see_each_other() {
    let (one, other) = (SHARED.open("cluster").await, SHARED.open("cluster-2").await);
    done(one.commit(put("a", "1")).await);
    assert_eq!(value(&other, "a").await, None);
    let all = other.scan(striate_meta::ScanRange::prefix(b""), 10).await.unwrap();
    assert_eq!(all, []);
}

#[tokio::test]
async fn a_newer_layout_is_refused_and_fences_who_has_the_older_one_open() {
    let prefix = fresh_prefix();
    let store = SHARED.open(&prefix).await;
    done(store.commit(put("a", "1")).await);
    SHARED.ctl(&["put", &format!("{prefix}/v"), "2"]);
    let refused = open(&SHARED.url(&prefix)).await.unwrap_err();
    assert!(matches!(&refused, MetaError::Corrupt(reason) if reason.contains("newer striate")), "{refused}");
    let refused = store.commit(put("a", "2")).await.unwrap_err();
    assert!(refused.to_string().contains("newer striate"), "{refused}");
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn endpoints_of_two_etcds_are_refused() {
    let other = Etcd::start(1, &[]);
    let (way, other_way) = (Proxy::start(&SHARED.endpoint(0)).await, Proxy::start(&other.endpoint(0)).await);
    let both = format!("{},{}", way.address, other_way.address);
    other_way.set(Mode::Cut);
    let store = open(&url(&both, &fresh_prefix())).await.unwrap();
    other_way.set(Mode::Forward);
    way.set(Mode::Cut);
    let refused = loop {
        if let Err(refused) = store.get(b"a").await {
            break refused;
        }
    };
    assert!(refused.to_string().contains("of two etcd clusters"), "{refused}");
}

/// The answer of a commit is lost: the engine itself finds the outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_out() {
    let (prefix, proxy) = (fresh_prefix(), Proxy::start(&SHARED.endpoint(0)).await);
    let direct = SHARED.open(&prefix).await;
    let store = open(&url(&proxy.address.to_string(), &prefix)).await.unwrap();
    done(store.commit(put("before", "")).await);
    proxy.set(Mode::LoseAnswers);
    let commit = Runtime::real().spawn({
        let store = store.clone();
        let mut tx = put("a", "1");
        tx.require(Precondition::Absent("a".into()));
        async move { store.commit(tx).await }
    });
    while value(&direct, "a").await.is_none() {}
    proxy.set(Mode::Forward);
    let revision = done(commit.await.unwrap());
    assert_eq!(direct.get(b"a").await.unwrap().unwrap().version, revision);
}

/// The outcome is not found in time; the caller submits the transaction again after everything has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_unknown_outcome_is_recognised_when_it_is_submitted_again() {
    let (prefix, proxy) = (fresh_prefix(), Proxy::start(&SHARED.endpoint(0)).await);
    let direct = SHARED.open(&prefix).await;
    let store = open(&url(&proxy.address.to_string(), &format!("{prefix}?timeout=1"))).await.unwrap();
    done(store.commit(put("before", "")).await);
    proxy.set(Mode::LoseAnswers);
    let mut tx = put("a", "1");
    tx.require(Precondition::Absent("a".into()));
    let unknown = store.commit(tx.clone()).await.unwrap_err();
    assert!(matches!(unknown, MetaError::UnknownOutcome(_)), "{unknown}");
    let first = direct.get(b"a").await.unwrap().expect("it was committed").version;
    done(direct.commit(put("a", "2")).await);
    proxy.set(Mode::Forward);
    assert_eq!(store.commit(tx).await.unwrap(), Commit::Done(first));
    assert_eq!(value(&direct, "a").await.as_deref(), Some("2"), "it was not applied again");
}

/// A request is in flight for a long time. Meanwhile its transaction is submitted again over another path, and refused.
/// When the first request finally arrives and its preconditions hold again, it must not commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_with_a_conflict_never_commits_later() {
    let (prefix, runtime) = (fresh_prefix(), Runtime::real());
    let server = SHARED.endpoint(0);
    let (slow_way, other_way) = (Proxy::start(&server).await, Proxy::start(&server).await);
    let both = format!("{},{}", slow_way.address, other_way.address);
    let (direct, store) =
        (SHARED.open(&prefix).await, open(&url(&both, &format!("{prefix}?timeout=3"))).await.unwrap());
    other_way.set(Mode::Cut);
    done(store.commit(put("before", "")).await);

    slow_way.set(Mode::Hold);
    let mut tx = put("a", "late");
    tx.require(Precondition::Absent("a".into()));
    let first = runtime.spawn({
        let (store, tx) = (store.clone(), tx.clone());
        async move { store.commit(tx).await }
    });
    // The first attempt has been sent, and has not timed out yet.
    runtime.sleep(Duration::from_millis(500)).await;
    slow_way.set(Mode::HoldNoMore);
    let unknown = first.await.unwrap().unwrap_err();
    assert!(matches!(unknown, MetaError::UnknownOutcome(_)), "{unknown}");

    done(direct.commit(put("a", "other")).await);
    other_way.set(Mode::Forward);
    assert_eq!(store.commit(tx.clone()).await.unwrap(), Commit::Conflict { failed: 0 });
    let mut delete = Transaction::new(fresh_id());
    delete.delete("a");
    let deleted = done(direct.commit(delete).await);
    slow_way.set(Mode::Deliver);
    // The late request changes nothing, so nothing shows when it has arrived. Another row's transaction in the same
    // request stream would be lost with everything that came after the request.
    runtime.sleep(Duration::from_millis(500)).await;
    assert_eq!(value(&direct, "a").await, None, "it was answered with a conflict");
    let again = done(store.commit(tx).await);
    assert!(again > deleted, "a new submission may commit");
    assert_eq!(value(&direct, "a").await.as_deref(), Some("late"));
}

#[tokio::test]
async fn a_watcher_may_rest() {
    rest_and_watch_everything(&SHARED.open(&fresh_prefix()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_may_be_cut_at_any_time() {
    let (prefix, proxy) = (fresh_prefix(), Proxy::start(&SHARED.endpoint(0)).await);
    let store = open(&url(&proxy.address.to_string(), &prefix)).await.unwrap();
    let mut watch = store.watch(b"counter").await.unwrap();
    let counting = Counting::start(&store, 4);
    for _ in 0..10 {
        counting.wait_for_more(10).await;
        proxy.set(Mode::Cut);
        tokio::task::yield_now().await;
        proxy.set(Mode::Forward);
    }
    let total = counting.end(&SHARED.open(&prefix).await).await;
    let mut last = 0;
    while last < total {
        let event = watch.recv().await.expect("the watch goes on");
        let now: u64 = String::from_utf8_lossy(&event.value.unwrap()).parse().unwrap();
        assert_eq!(now, last + 1, "no event is missing and none comes twice");
        last = now;
    }
}

#[tokio::test]
async fn without_an_etcd_operations_fail_cleanly_and_recover() {
    let (prefix, proxy) = (fresh_prefix(), Proxy::start(&SHARED.endpoint(0)).await);
    let store = open(&url(&proxy.address.to_string(), &format!("{prefix}?timeout=1"))).await.unwrap();
    proxy.set(Mode::Cut);
    // The connection may break during the first commit.
    let failed = store.commit(put("a", "1")).await.unwrap_err();
    assert!(matches!(failed, MetaError::Unavailable(_) | MetaError::UnknownOutcome(_)), "{failed}");
    let failed = store.get(b"a").await.unwrap_err();
    assert!(matches!(failed, MetaError::Unavailable(_)), "{failed}");
    proxy.set(Mode::Forward);
    done(store.commit(put("a", "2")).await);
    drop(proxy);
    let nobody = open(&url("127.0.0.1:1", &format!("{prefix}?timeout=1"))).await.unwrap_err();
    assert!(matches!(nobody, MetaError::Unavailable(_)), "{nobody}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_may_be_killed_and_stopped_one_at_a_time() {
    let mut etcd = Etcd::start(3, &[]);
    let store = etcd.open("").await;
    let mut watch = store.watch(b"counter").await.unwrap();
    let counting = Counting::start(&store, 4);
    // One of them is the leader.
    for member in 0..3 {
        counting.wait_for_more(20).await;
        etcd.kill_member(member);
        counting.wait_for_more(20).await;
        etcd.restart_member(member);
    }
    for member in 0..3 {
        etcd.signal(member, "STOP");
        counting.wait_for_more(20).await;
        etcd.signal(member, "CONT");
        counting.wait_for_more(20).await;
    }
    let total = counting.end(&etcd.open("").await).await;
    for expected in 1..=total {
        let event = watch.recv().await.expect("the watch goes on");
        assert_eq!(String::from_utf8_lossy(&event.value.unwrap()), expected.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_loses_nothing() {
    let mut etcd = Etcd::start(1, &[]);
    let store = etcd.open("").await;
    let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    let tx = put("a", "1");
    let revision = done(store.commit(tx.clone()).await);
    etcd.kill_member(0);
    etcd.restart_member(0);
    let row = store.get(b"a").await.unwrap().unwrap();
    assert_eq!((row.version, &row.value[..]), (revision, &b"1"[..]));
    assert_eq!(store.commit(tx).await.unwrap(), Commit::Done(revision), "the transaction is recognised");
    assert!(store.is_alive(lease.id).await.unwrap());
    assert!(store.keep_alive(lease.id).await.unwrap());
}

#[tokio::test]
async fn a_used_up_quota_is_told_and_recovered_from() {
    let etcd = Etcd::start(1, &["--quota-backend-bytes=4194304"]);
    let store = etcd.open("").await;
    let mut number = 0_u32;
    let failed = loop {
        let mut tx = Transaction::new(fresh_id());
        tx.put(number.to_be_bytes().to_vec(), vec![7; 250_000]);
        number += 1;
        if let Err(failed) = store.commit(tx).await {
            break failed;
        }
    };
    assert!(matches!(failed, MetaError::NoSpace(_)), "{failed}");
    let row = store.get(&0_u32.to_be_bytes()).await.unwrap().expect("reads go on");
    assert_eq!(row.value.len(), 250_000);
    assert!(matches!(store.commit(put("a", "1")).await, Err(MetaError::NoSpace(_))));

    etcd.ctl(&["del", "--prefix", "striate/r"]);
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    done(store.commit(put("a", "1")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_whose_revisions_were_compacted_away_ends() {
    let (etcd, runtime) = (Etcd::start(1, &[]), Runtime::real());
    let proxy = Proxy::start(&etcd.endpoint(0)).await;
    let direct = etcd.open("").await;
    let store = open(&url(&proxy.address.to_string(), "")).await.unwrap();
    let mut watch = store.watch(b"w").await.unwrap();
    done(direct.commit(put("w", "1")).await);
    assert_eq!(watch.recv().await.expect("it is open").value.unwrap(), "1");
    proxy.set(Mode::Cut);
    let mut committed = Vec::new();
    for _ in 0..3 {
        committed.push(done(direct.commit(put("w", "2")).await));
    }
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    proxy.set(Mode::Forward);
    // The connection may have carried the first ones until it was cut.
    let mut seen = Vec::new();
    while let Some(event) = watch.recv().await {
        seen.push(event.revision);
    }
    assert!(seen.len() < committed.len() && committed.starts_with(&seen), "{seen:?} of {committed:?}");
    drop(runtime);
}

#[tokio::test]
async fn the_mark_of_a_migration_is_seen_by_every_process() {
    let prefix = fresh_prefix();
    let (one, other) = (SHARED.open(&prefix).await, SHARED.open(&prefix).await);
    let mut mark = Transaction::new(fresh_id());
    mark.put(keys::migration(), "?");
    done(one.commit(mark).await);
    assert!(matches!(other.commit(put("a", "1")).await, Err(MetaError::Moved(_))));
}

#[tokio::test]
async fn members_and_clients_prove_themselves_by_certificates() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let file = |option: &str, name: &str| format!("--{option}={}", certificates.path(name).display());
    let (ca, cert, key) =
        (file("trusted-ca-file", "ca.pem"), file("cert-file", "server.pem"), file("key-file", "server.key"));
    let etcd = Etcd::start(1, &[&ca, &cert, &key, "--client-cert-auth"]);
    let options = |authority: &Certificates, client: &Certificates| {
        let (cert, key) = (client.path("client.pem"), client.path("client.key"));
        let ca = authority.path("ca.pem");
        format!("p?timeout=1&ca={}&cert={}&key={}", ca.display(), cert.display(), key.display())
    };
    let store = open(&etcd.url(&options(&certificates, &certificates))).await.unwrap();
    done(store.commit(put("a", "1")).await);
    for (authority, client) in [(&others, &certificates), (&certificates, &others)] {
        let refused = open(&etcd.url(&options(authority, client))).await.unwrap_err();
        assert!(matches!(refused, MetaError::Unavailable(_)), "{refused}");
    }
}

#[tokio::test]
async fn users_prove_themselves_by_passwords() {
    let etcd = Etcd::start(1, &[]);
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["auth", "enable"]);
    // Checking a password takes the member a while, by design.
    let with = |user: &str| url(&format!("{user}{}", etcd.endpoint(0)), "p?timeout=9");
    let store = open(&with("root:secret@")).await.unwrap();
    done(store.commit(put("a", "1")).await);
    for user in ["root:wrong@", ""] {
        let refused = open(&with(user)).await.unwrap_err();
        assert!(matches!(refused, MetaError::Unavailable(_)), "{refused}");
    }
    // Tokens are in the member's memory only, so a new one must be requested.
    let mut etcd = etcd;
    etcd.kill_member(0);
    etcd.start_member(0);
    while let Err(error) = store.commit(put("a", "2")).await {
        assert!(matches!(error, MetaError::Unavailable(_) | MetaError::UnknownOutcome(_)), "{error}");
    }
}
