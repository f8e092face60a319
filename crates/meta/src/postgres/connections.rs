//! The pool of connections, and what a failed statement means.
//!
//! Connections go to the server that accepts writes, so that nothing is read from a replica. A statement
//! that fails on its way is tried again on another connection until the deadline. Nothing here commits
//! anything but single statements that can be run twice; transactions are the committer's.

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

/// The longest wait between two attempts.
const MAX_BACKOFF_MS: u64 = 250;

/// A transaction whose client is silent for so long is ended by the server. It bounds how long a stopped
/// process holds up the commits of the others.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(2);

/// A PostgreSQL server, and a cluster's schema on it.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) runtime: Runtime,
    pool: Pool,
    /// The schema, quoted.
    schema: String,
    /// An operation that finds no server for so long fails.
    pub(super) timeout: Duration,
}

/// How a statement, or a transaction, failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It has done nothing, and may do better on another connection.
    Nothing(String),
    /// It may have been carried out.
    Unclear(String),
    /// It has done nothing, and another attempt would do no better.
    Refused(MetaError),
}

impl Failure {
    /// What `error` means when nothing can have been committed by the statement.
    pub(super) fn harmless(error: Error) -> Self {
        let Some(db) = error.as_db_error() else { return Self::Nothing(describe(&error)) };
        let code = db.code();
        let class = &code.code()[..2];
        // Serialisation failures and dead locks, lost connections, shut-downs and starts, too many clients.
        let transient = matches!(class, "40" | "08" | "57") || is_replica(code) || too_many(code);
        match code {
            _ if transient => Self::Nothing(describe(&error)),
            code if *code == SqlState::DISK_FULL => {
                Self::Refused(MetaError::NoSpace(format!("PostgreSQL: {}", db.message())))
            }
            _ => Self::Refused(MetaError::Unavailable(format!("PostgreSQL refuses: {}", db.message()))),
        }
    }

    /// The error of a call that can be made again without harm.
    pub(super) fn into_error(self) -> MetaError {
        match self {
            Self::Nothing(reason) | Self::Unclear(reason) => {
                MetaError::Unavailable(format!("PostgreSQL: {reason}"))
            }
            Self::Refused(error) => error,
        }
    }
}

/// A former primary, or a replica.
fn is_replica(code: &SqlState) -> bool {
    *code == SqlState::READ_ONLY_SQL_TRANSACTION
}

fn too_many(code: &SqlState) -> bool {
    *code == SqlState::TOO_MANY_CONNECTIONS || *code == SqlState::OUT_OF_MEMORY
}

/// An error with its cause, which tokio-postgres leaves out.
pub(super) fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Server {
    /// The server that `url` names; connects to nothing yet.
    ///
    /// # Errors
    /// When the TLS files cannot be used.
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

    /// `sql` with this cluster's schema for each `$S`.
    pub(super) fn sql(&self, sql: &str) -> String {
        sql.replace("$S", &self.schema)
    }

    pub(super) fn deadline(&self) -> Instant {
        self.runtime.now() + self.timeout
    }

    /// A connection, new or used before.
    pub(super) async fn connection(&self) -> Result<Object, Failure> {
        match self.runtime.timeout(self.timeout, self.pool.get()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(deadpool_postgres::PoolError::Backend(error))) => Err(Failure::harmless(error)),
            Ok(Err(error)) => Err(Failure::Nothing(error.to_string())),
            Err(_) => Err(Failure::Nothing(format!("no connection within {:?}", self.timeout))),
        }
    }

    /// Runs `work` on a connection, and again on another one while it fails on its way: it must do no harm
    /// when it is run twice.
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
        // Nobody else has it any more.
        if let Some(connection) = Arc::into_inner(connection) {
            discard(connection);
        }
        Err(failure)
    }

    /// Waits before another attempt. `false`: it would be after the deadline.
    pub(super) async fn pause(&self, attempts: u32, deadline: Instant) -> bool {
        if attempts > 1 {
            let ceiling = (10 << attempts.min(6)).min(MAX_BACKOFF_MS) * 1_000;
            let pause = ceiling / 2 + self.runtime.random_u64() % (ceiling / 2);
            self.runtime.sleep(Duration::from_micros(pause)).await;
        }
        self.runtime.now() < deadline
    }
}

/// Closes a connection in whose state there is no trust any more.
pub(super) fn discard(connection: Object) {
    drop(Object::take(connection));
}
