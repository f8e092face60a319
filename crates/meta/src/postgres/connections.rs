//! The pool of connections, and the classification of failed statements.
//!
//! Connections go to the server that accepts writes, so nothing is read from a replica. A statement that fails in
//! transit is retried on another connection until the deadline. This module only commits single statements that can be
//! run twice; the committer runs the transactions.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use striate_runtime::{Instant, Runtime};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, NoTls};

use super::tls::Tls;
use crate::engine_url::PostgresUrl;
use crate::store::MetaError;

/// Maximum wait between two attempts in milliseconds.
const MAX_BACKOFF_MS: u64 = 250;

/// Time after which the server ends a transaction whose client is silent. It bounds how long a stopped process blocks
/// the commits of the others.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(2);

/// A PostgreSQL server, and the cluster's schema on it.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) runtime: Runtime,
    pool: Pool,
    /// Name of the schema, quoted.
    schema: String,
    /// Time after which an operation that finds no server fails.
    pub(super) timeout: Duration,
}

/// How a statement or a transaction failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It has done nothing; another connection may succeed.
    Nothing(String),
    /// It may have been executed.
    Unclear(String),
    /// It has done nothing, and another attempt would fail as well.
    Refused(MetaError),
}

impl Failure {
    /// Classifies `error` for a statement that cannot have committed anything.
    pub(super) fn harmless(error: Error) -> Self {
        let Some(db) = error.as_db_error() else { return Self::Nothing(describe(&error)) };
        let code = db.code();
        let class = &code.code()[..2];
        // Serialisation failures and deadlocks, lost connections, shutdowns and starts, too many clients.
        let transient = matches!(class, "40" | "08" | "57") || is_replica(code) || too_many(code);
        match code {
            _ if transient => Self::Nothing(describe(&error)),
            code if *code == SqlState::DISK_FULL => {
                Self::Refused(MetaError::NoSpace(format!("PostgreSQL: {}", db.message())))
            }
            _ => Self::Refused(MetaError::Unavailable(format!("PostgreSQL refuses: {}", db.message()))),
        }
    }

    /// Returns the error of a call that can be repeated without harm.
    pub(super) fn into_error(self) -> MetaError {
        match self {
            Self::Nothing(reason) | Self::Unclear(reason) => {
                MetaError::Unavailable(format!("PostgreSQL: {reason}"))
            }
            Self::Refused(error) => error,
        }
    }
}

/// Returns true for a former primary or a replica.
fn is_replica(code: &SqlState) -> bool {
    *code == SqlState::READ_ONLY_SQL_TRANSACTION
}

fn too_many(code: &SqlState) -> bool {
    *code == SqlState::TOO_MANY_CONNECTIONS || *code == SqlState::OUT_OF_MEMORY
}

/// Formats an error with its cause, which tokio-postgres leaves out.
pub(super) fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Server {
    /// Creates the server that `url` names, without connecting to it.
    ///
    /// # Errors
    /// If the TLS files cannot be used.
    pub(super) fn new(runtime: Runtime, url: &PostgresUrl) -> Result<Self, String> {
        let mut config = url.config.clone();
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.application_name("striate");
        config.connect_timeout(url.timeout);
        config.keepalives_idle(Duration::from_secs(15));
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match &url.tls {
            Some(files) => {
                config.ssl_mode(SslMode::Require);
                Manager::from_config(config, Tls::new(files)?, recycling)
            }
            None => {
                config.ssl_mode(SslMode::Disable);
                Manager::from_config(config, NoTls, recycling)
            }
        };
        let settings = format!(
            "SET synchronous_commit = on; SET statement_timeout = {}; \
             SET idle_in_transaction_session_timeout = {}",
            url.timeout.as_millis(),
            IDLE_IN_TRANSACTION.as_millis()
        );
        let set_up = Hook::async_fn(move |connection, _| {
            let settings = settings.clone();
            Box::pin(async move { connection.batch_execute(&settings).await.map_err(HookError::Backend) })
        });
        let pool = Pool::builder(manager).max_size(url.pool).post_create(set_up).build();
        let pool = pool.map_err(|error| error.to_string())?;
        Ok(Self { runtime, pool, schema: format!("\"{}\"", url.schema), timeout: url.timeout })
    }

    /// Replaces each `$S` in `sql` by this cluster's schema.
    pub(super) fn sql(&self, sql: &str) -> String {
        sql.replace("$S", &self.schema)
    }

    pub(super) fn deadline(&self) -> Instant {
        self.runtime.now() + self.timeout
    }

    /// Returns a new or pooled connection.
    pub(super) async fn connection(&self) -> Result<Object, Failure> {
        match self.runtime.timeout(self.timeout, self.pool.get()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(deadpool_postgres::PoolError::Backend(error))) => Err(Failure::harmless(error)),
            Ok(Err(error)) => Err(Failure::Nothing(error.to_string())),
            Err(_) => Err(Failure::Nothing(format!("no connection within {:?}", self.timeout))),
        }
    }

    /// Runs `work` on a connection, and retries it on another one while it fails in transit: `work` must be safe to run
    /// twice.
    pub(super) async fn with<T, F>(&self, work: impl Fn(Arc<Object>) -> F) -> Result<T, MetaError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = self.deadline();
        let mut attempts = 0;
        loop {
            let failure = match self.try_with(&work).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            attempts += 1;
            let again = !matches!(failure, Failure::Refused(_));
            if !again || !self.pause(attempts, deadline).await {
                return Err(failure.into_error());
            }
        }
    }

    async fn try_with<T, F>(&self, work: impl Fn(Arc<Object>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = Arc::new(self.connection().await?);
        let failure = match self.runtime.timeout(self.timeout, work(connection.clone())).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Failure::harmless(error),
            Err(_) => Failure::Nothing(format!("no answer within {:?}", self.timeout)),
        };
        // No other clone is left.
        if let Some(connection) = Arc::into_inner(connection) {
            discard(connection);
        }
        Err(failure)
    }

    /// Waits before another attempt. Returns false if that would come after the deadline.
    pub(super) async fn pause(&self, attempts: u32, deadline: Instant) -> bool {
        if attempts > 1 {
            let ceiling = (10 << attempts.min(6)).min(MAX_BACKOFF_MS) * 1_000;
            let pause = ceiling / 2 + self.runtime.random_u64() % (ceiling / 2);
            self.runtime.sleep(Duration::from_micros(pause)).await;
        }
        self.runtime.now() < deadline
    }
}

/// Closes a connection whose state is no longer known.
pub(super) fn discard(connection: Object) {
    drop(Object::take(connection));
}
