//! The engine on PostgreSQL: conformance, and failures of servers and connections.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use striate_meta::conformance::{self, Store};
use striate_meta::{Commit, EngineUrl, MetaError, MetaStore, Precondition, Transaction};
use striate_runtime::Runtime;
use tokio_postgres::NoTls;

use crate::certificates::Certificates;
use crate::load::{Counting, done, fresh_id, put, rest_and_watch_everything, value};
use crate::postgres_server::{Postgres, SHARED, fresh_schema, url};
use crate::proxy::{Mode, Proxy};

async fn open(url: &EngineUrl) -> Result<Arc<dyn MetaStore>, MetaError> {
    striate_meta::open(&Runtime::real(), url).await
}

/// Runs SQL beside the engine.
async fn execute(sql: &str) {
    let (client, connection) =
        tokio_postgres::connect(&format!("postgres://striate@{}/postgres", SHARED.address()), NoTls)
            .await
            .expect("the server answers");
    let connection = Runtime::real().spawn(connection);
    client.batch_execute(sql).await.expect("the statements are carried out");
    drop(client);
    connection.await.expect("a connection does not panic").expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_on_postgresql_conforms() {
    let factory = || -> Pin<Box<dyn Future<Output = Store> + Send>> {
        Box::pin(async { SHARED.open(&fresh_schema()).await })
    };
    conformance::run_all(&Runtime::real(), &factory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_share_a_database_see_one_state() {
    let pair = || -> Pin<Box<dyn Future<Output = (Store, Store)> + Send>> {
        Box::pin(async {
            let schema = fresh_schema();
            (SHARED.open(&schema).await, SHARED.open(&schema).await)
        })
    };
    conformance::run_shared(&Runtime::real(), &pair).await;
}

#[tokio::test]
async fn the_engine_on_postgresql_is_an_ordered_map() {
    crate::load::compare_with_the_model(async || SHARED.open(&fresh_schema()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_open_a_new_schema_at_once_make_it_together() {
    let schema = fresh_schema();
    let tasks: Vec<_> = (0..8)
        .map(|number: u8| {
            let url = SHARED.url(&schema);
            Runtime::real().spawn(async move {
                let store = open(&url).await.expect("it opens");
                let mut tx = Transaction::new(fresh_id());
                tx.put(vec![number], "");
                done(store.commit(tx).await)
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("opening does not panic");
    }
    let store = SHARED.open(&schema).await;
    assert_eq!(store.scan(striate_meta::ScanRange::prefix(b""), 10).await.unwrap().len(), 8);
}

#[tokio::test]
async fn a_newer_format_is_refused_and_fences_who_has_the_older_one_open() {
    let schema = fresh_schema();
    let name = schema.trim_start_matches("schema=");
    let store = SHARED.open(&schema).await;
    done(store.commit(put("a", "1")).await);
    execute(&format!("UPDATE {name}.state SET format = 2")).await;
    let refused = open(&SHARED.url(&schema)).await.unwrap_err();
    assert!(matches!(&refused, MetaError::Corrupt(reason) if reason.contains("newer striate")), "{refused}");
    let refused = store.commit(put("a", "2")).await.unwrap_err();
    assert!(matches!(&refused, MetaError::Corrupt(_)), "{refused}");
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
}

/// The answer of a commit is lost: the engine itself finds the outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_out() {
    let (schema, proxy) = (fresh_schema(), Proxy::start(&SHARED.address()).await);
    let direct = SHARED.open(&schema).await;
    let store = open(&url(&proxy.address.to_string(), &format!("{schema}&timeout=2"))).await.unwrap();
    let name = schema.trim_start_matches("schema=");
    // Only the commit's own answer is lost: every statement before it is answered.
    execute(&format!(
        "CREATE FUNCTION {name}.wait() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$; \
         CREATE TRIGGER wait BEFORE INSERT ON {name}.rows FOR EACH ROW WHEN (NEW.key = '\\x61') \
         EXECUTE FUNCTION {name}.wait()"
    ))
    .await;
    let commit = Runtime::real().spawn({
        let store = store.clone();
        let mut tx = put("a", "1");
        tx.require(Precondition::Absent("a".into()));
        async move { store.commit(tx).await }
    });
    Runtime::real().sleep(Duration::from_millis(250)).await;
    proxy.set(Mode::LoseAnswers);
    while value(&direct, "a").await.is_none() {}
    proxy.set(Mode::Cut);
    proxy.set(Mode::Forward);
    let revision = done(commit.await.unwrap());
    assert_eq!(direct.get(b"a").await.unwrap().unwrap().version, revision);
}

/// The outcome is not found in time; the caller submits the transaction again after everything has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_unknown_outcome_is_recognised_when_it_is_submitted_again() {
    let (schema, proxy) = (fresh_schema(), Proxy::start(&SHARED.address()).await);
    let direct = SHARED.open(&schema).await;
    let store = open(&url(&proxy.address.to_string(), &format!("{schema}&timeout=1"))).await.unwrap();
    let name = schema.trim_start_matches("schema=");
    execute(&format!(
        "CREATE FUNCTION {name}.wait() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$; \
         CREATE TRIGGER wait BEFORE INSERT ON {name}.rows FOR EACH ROW WHEN (NEW.key = '\\x61') \
         EXECUTE FUNCTION {name}.wait()"
    ))
    .await;
    let mut tx = put("a", "1");
    tx.require(Precondition::Absent("a".into()));
    let commit = Runtime::real().spawn({
        let (store, tx) = (store.clone(), tx.clone());
        async move { store.commit(tx).await }
    });
    Runtime::real().sleep(Duration::from_millis(250)).await;
    proxy.set(Mode::LoseAnswers);
    let unknown = commit.await.unwrap().unwrap_err();
    assert!(matches!(unknown, MetaError::UnknownOutcome(_)), "{unknown}");
    let first = direct.get(b"a").await.unwrap().expect("it was committed").version;
    done(direct.commit(put("b", "2")).await);
    proxy.set(Mode::Forward);
    assert_eq!(store.commit(tx).await.unwrap(), Commit::Done(first));
}

#[tokio::test]
async fn a_watcher_may_rest() {
    rest_and_watch_everything(&SHARED.open(&fresh_schema()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_may_be_cut_at_any_time() {
    let (schema, proxy) = (fresh_schema(), Proxy::start(&SHARED.address()).await);
    let store = open(&url(&proxy.address.to_string(), &schema)).await.unwrap();
    let mut watch = store.watch(b"counter").await.unwrap();
    let counting = Counting::start(&store, 4);
    for _ in 0..10 {
        counting.wait_for_more(10).await;
        proxy.set(Mode::Cut);
        tokio::task::yield_now().await;
        proxy.set(Mode::Forward);
    }
    let total = counting.end(&SHARED.open(&schema).await).await;
    for expected in 1..=total {
        let event = watch.recv().await.expect("the watch goes on");
        assert_eq!(String::from_utf8_lossy(&event.value.unwrap()), expected.to_string());
    }
}

/// A process that holds the lock and is silent, because it was stopped or cut off, must not block the others for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_process_does_not_hold_up_the_others() {
    let schema = fresh_schema();
    let store = SHARED.open(&schema).await;
    let name = schema.trim_start_matches("schema=");
    let (client, connection) = {
        let address = format!("postgres://striate@{}/postgres", SHARED.address());
        tokio_postgres::connect(&address, NoTls).await.unwrap()
    };
    Runtime::real().spawn(connection);
    // The same settings as on the engine's own connections.
    client.batch_execute("SET idle_in_transaction_session_timeout = 2000; BEGIN").await.unwrap();
    client.query(&format!("SELECT * FROM {name}.state FOR UPDATE"), &[]).await.unwrap();
    done(store.commit(put("a", "1")).await);
}

#[tokio::test]
async fn without_a_server_operations_fail_cleanly_and_recover() {
    let (schema, proxy) = (fresh_schema(), Proxy::start(&SHARED.address()).await);
    let store = open(&url(&proxy.address.to_string(), &format!("{schema}&timeout=1"))).await.unwrap();
    proxy.set(Mode::Cut);
    let failed = store.commit(put("a", "1")).await.unwrap_err();
    assert!(matches!(failed, MetaError::Unavailable(_) | MetaError::UnknownOutcome(_)), "{failed}");
    let failed = store.get(b"a").await.unwrap_err();
    assert!(matches!(failed, MetaError::Unavailable(_)), "{failed}");
    proxy.set(Mode::Forward);
    done(store.commit(put("a", "2")).await);
    let nobody = open(&url("127.0.0.1:1", &format!("{schema}&timeout=1"))).await.unwrap_err();
    assert!(matches!(nobody, MetaError::Unavailable(_)), "{nobody}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_crash_and_start_again() {
    let mut postgres = Postgres::start();
    let store = postgres.open("").await;
    let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    let tx = put("a", "1");
    let revision = done(store.commit(tx.clone()).await);
    let mut watch = store.watch(b"counter").await.unwrap();
    let counting = Counting::start(&store, 4);
    for _ in 0..3 {
        counting.wait_for_more(50).await;
        postgres.crash();
        postgres.start_again();
    }
    counting.wait_for_more(50).await;
    let total = counting.end(&postgres.open("").await).await;
    assert_eq!(store.commit(tx).await.unwrap(), Commit::Done(revision), "the transaction is recognised");
    assert!(store.is_alive(lease.id).await.unwrap());
    for expected in 1..=total {
        let event = watch.recv().await.expect("the watch goes on");
        assert_eq!(String::from_utf8_lossy(&event.value.unwrap()), expected.to_string());
    }
}

#[tokio::test]
async fn a_watch_that_the_server_has_forgotten_ends() {
    let schema = fresh_schema();
    let name = schema.trim_start_matches("schema=");
    let store = SHARED.open(&schema).await;
    let mut watch = store.watch(b"w").await.unwrap();
    execute(&format!("DELETE FROM {name}.watches")).await;
    done(store.commit(put("w", "1")).await);
    assert_eq!(watch.recv().await, None, "a change may have been missed");
}

#[tokio::test]
async fn servers_and_clients_prove_themselves_by_certificates() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let postgres = Postgres::start_with(&certificates);
    let options = |authority: &Certificates, client: &Certificates| {
        let (cert, key) = (client.path("client.pem"), client.path("client.key"));
        let ca = authority.path("ca.pem");
        format!("timeout=2&sslrootcert={}&sslcert={}&sslkey={}", ca.display(), cert.display(), key.display())
    };
    let store = open(&postgres.url(&options(&certificates, &certificates))).await.unwrap();
    done(store.commit(put("a", "1")).await);
    for (authority, client) in [(&others, &certificates), (&certificates, &others)] {
        let refused = open(&postgres.url(&options(authority, client))).await.unwrap_err();
        assert!(matches!(refused, MetaError::Unavailable(_)), "{refused}");
    }
    let refused = open(&postgres.url("timeout=2")).await.unwrap_err();
    assert!(refused.to_string().contains("pg_hba.conf"), "{refused}");
}
