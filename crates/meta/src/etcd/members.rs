//! Calls to whichever member of an etcd answers.
//!
//! Each member has one connection, made when it is first needed. Calls go to the preferred member; when it does not
//! answer, has no leader or cannot be reached, the next one becomes preferred. Failures distinguish what the call may
//! have done: a transaction that was never sent must not be mistaken for one that may have been committed, or vice
//! versa (design.md §10.2).
//!
//! All answers must come from one etcd: an endpoint list with members of two would mix two histories.

use std::error::Error as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status};

use super::wire::{Answer, AuthClient, AuthenticateRequest};
use crate::engine_url::EtcdUrl;
use crate::store::MetaError;

/// Minimum number of unresponsive members that are tried before an operation fails.
const ATTEMPTS: u32 = 3;

/// Maximum wait between two attempts in milliseconds, once every member has been tried.
const MAX_BACKOFF_MS: u64 = 250;

/// How a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// No member received it.
    NotSent(String),
    /// A member may have executed it.
    Unclear(String),
    /// A member refused it and did nothing.
    Refused(Status),
    /// The stored state forbids it: a newer layout, or the mark of a migration.
    Fenced(MetaError),
}

impl Failure {
    /// Returns the error of a call that changes nothing, or can be repeated without harm.
    pub(super) fn into_error(self) -> MetaError {
        match self {
            Self::NotSent(reason) | Self::Unclear(reason) => {
                MetaError::Unavailable(format!("etcd: {reason}"))
            }
            Self::Fenced(error) => error,
            Self::Refused(status) if is_no_space(&status) => MetaError::NoSpace(
                "etcd's quota is used up: compact and defragment it, then disarm the alarm \
                 (docs/src/engines.md)"
                    .to_owned(),
            ),
            Self::Refused(status) => match status.code() {
                Code::PermissionDenied | Code::Unauthenticated => {
                    MetaError::Unavailable(format!("etcd refuses this user: {}", status.message()))
                }
                _ => MetaError::Unavailable(format!("etcd refuses: {}", status.message())),
            },
        }
    }

    pub(super) fn is_refused_with(&self, code: Code) -> bool {
        matches!(self, Self::Refused(status) if status.code() == code)
    }
}

fn is_no_space(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("space exceeded")
}

/// Classifies what a failed call may have done.
fn classify(status: Status) -> Failure {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return Failure::NotSent(format!("{error}: {}", root(error)));
        }
        cause = error.source();
    }
    match status.code() {
        Code::ResourceExhausted if status.message().contains("too many requests") => {
            Failure::NotSent(status.message().to_owned())
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented
        | Code::ResourceExhausted => Failure::Refused(status),
        _ => Failure::Unclear(match status.message() {
            "" => format!("{:?}", status.code()),
            message => message.to_owned(),
        }),
    }
}

fn root<'e>(mut error: &'e (dyn std::error::Error + 'static)) -> &'e (dyn std::error::Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

/// The members of one etcd.
pub(super) struct Members {
    pub(super) runtime: Runtime,
    channels: Vec<Channel>,
    preferred: AtomicUsize,
    /// Cluster id of the first answer.
    cluster: OnceLock<u64>,
    login: Option<Login>,
    /// Time after which an operation that finds no member fails.
    timeout: Duration,
}

struct Login {
    user: String,
    password: String,
    token: Mutex<Option<String>>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Members").field("members", &self.channels.len()).finish_non_exhaustive()
    }
}

impl Members {
    /// Creates the members that `url` names, without connecting to them.
    ///
    /// # Errors
    /// If an endpoint is invalid, or the TLS files cannot be used.
    pub(super) fn new(runtime: Runtime, url: &EtcdUrl) -> Result<Self, String> {
        let tls = url.tls.as_ref().map(|tls| tls.for_tonic()).transpose()?;
        let attempt = url.timeout / ATTEMPTS;
        let channels = url.endpoints.iter().map(|address| channel(address, tls.as_ref(), attempt));
        let login = url.user.as_ref().map(|(user, password)| Login {
            user: user.clone(),
            password: password.clone(),
            token: Mutex::default(),
        });
        // Spread the processes over the members.
        let first = runtime.random_u64() as usize % url.endpoints.len();
        let preferred = AtomicUsize::new(first);
        let (channels, cluster) = (channels.collect::<Result<_, _>>()?, OnceLock::new());
        Ok(Self { runtime, channels, preferred, cluster, login, timeout: url.timeout })
    }

    pub(super) fn deadline(&self) -> Instant {
        self.runtime.now() + self.timeout
    }

    /// Returns the time after which a member that does not answer is given up for another one.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.timeout / ATTEMPTS
    }

    /// Makes one call to the preferred member; if it fails, the next member becomes preferred.
    pub(super) async fn attempt<R, A, F>(
        &self,
        message: R,
        call: impl FnOnce(Channel, Request<R>) -> F,
    ) -> Result<A, Failure>
    where
        A: Answer,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (number, channel) = self.preferred();
        let patience = self.attempt_timeout();
        let answer = self.runtime.timeout(patience, async {
            let request = self.request(&channel, message).await?;
            call(channel.clone(), request).await.map_err(classify)
        });
        let answer = match answer.await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Failure::Unclear(format!("a member did not answer for {patience:?}"))),
        };
        match &answer {
            Ok(answer) => self.check_cluster(answer)?,
            Err(Failure::NotSent(_) | Failure::Unclear(_)) => self.turn_from(number),
            Err(Failure::Refused(status)) if status.code() == Code::Unauthenticated => self.forget_token(),
            Err(Failure::Refused(_) | Failure::Fenced(_)) => {}
        }
        answer
    }

    /// Calls members until one answers or refuses. Only for calls that can be repeated without harm.
    pub(super) async fn call<R: Clone, A, F>(
        &self,
        message: R,
        call: impl Fn(Channel, Request<R>) -> F,
    ) -> Result<A, Failure>
    where
        A: Answer,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let deadline = self.deadline();
        let mut attempts = 0;
        loop {
            match self.attempt(message.clone(), &call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) if self.is_final(&failure, attempts) => return Err(failure),
                Err(failure) => {
                    attempts += 1;
                    if !self.pause(attempts, deadline).await {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Returns true if another attempt would be refused as well. A token may have expired; a new one is tried once.
    fn is_final(&self, failure: &Failure, attempts: u32) -> bool {
        match failure {
            Failure::Refused(status) => {
                status.code() != Code::Unauthenticated || self.login.is_none() || attempts > 0
            }
            Failure::Fenced(_) => true,
            Failure::NotSent(_) | Failure::Unclear(_) => false,
        }
    }

    /// Waits before the next attempt, unless some members have not been tried. Returns false if the next attempt would
    /// come after the deadline.
    pub(super) async fn pause(&self, attempts: u32, deadline: Instant) -> bool {
        let rounds = attempts / self.channels.len() as u32;
        if rounds > 0 {
            let ceiling = (10 << rounds.min(6)).min(MAX_BACKOFF_MS) * 1_000;
            let pause = ceiling / 2 + self.runtime.random_u64() % (ceiling / 2);
            self.runtime.sleep(Duration::from_micros(pause)).await;
        }
        self.runtime.now() < deadline
    }

    /// Returns the number of the preferred member and its connection.
    pub(super) fn preferred(&self) -> (usize, Channel) {
        let number = self.preferred.load(Ordering::Relaxed);
        (number, self.channels[number].clone())
    }

    /// Prefers the member after `number`, unless another call has changed the preference already.
    pub(super) fn turn_from(&self, number: usize) {
        let next = (number + 1) % self.channels.len();
        // If another call won the race, the preference has changed already.
        let _ = self.preferred.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Creates a request that a member without a leader refuses at once, with the token of the user.
    pub(super) async fn request<R>(&self, channel: &Channel, message: R) -> Result<Request<R>, Failure> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.login {
            let token = login.token(channel).await?;
            let value = MetadataValue::try_from(token);
            let value = value.map_err(|_| Failure::NotSent("etcd's token is no header".to_owned()))?;
            request.metadata_mut().insert("token", value);
        }
        Ok(request)
    }

    fn forget_token(&self) {
        if let Some(login) = &self.login {
            *login.token.lock() = None;
        }
    }

    fn check_cluster(&self, answer: &impl Answer) -> Result<(), Failure> {
        let Some(header) = answer.header() else { return Ok(()) };
        let first = *self.cluster.get_or_init(|| header.cluster_id);
        match first == header.cluster_id {
            true => Ok(()),
            false => Err(Failure::Refused(Status::failed_precondition(format!(
                "the endpoints are of two etcd clusters, {first:x} and {:x}; name the members of one",
                header.cluster_id
            )))),
        }
    }
}

impl Login {
    async fn token(&self, channel: &Channel) -> Result<String, Failure> {
        if let Some(token) = self.token.lock().clone() {
            return Ok(token);
        }
        let message = AuthenticateRequest { name: self.user.clone(), password: self.password.clone() };
        let answer = AuthClient::new(channel.clone()).authenticate(message).await;
        // Whatever the outcome of the log-in, the call itself was not sent.
        let answer = answer.map_err(|status| match classify(status) {
            Failure::Unclear(reason) => Failure::NotSent(reason),
            failure => failure,
        })?;
        let token = answer.into_inner().token;
        *self.token.lock() = Some(token.clone());
        Ok(token)
    }
}

fn channel(address: &str, tls: Option<&ClientTlsConfig>, patience: Duration) -> Result<Channel, String> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let fail = |error: tonic::transport::Error| match error.source() {
        Some(cause) => format!("{address}: {error}: {cause}"),
        None => format!("{address}: {error}"),
    };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(fail)?;
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.clone()).map_err(fail)?;
    }
    let endpoint = endpoint
        .connect_timeout(patience)
        .tcp_nodelay(true)
        // etcd ends connections that ping more often than every five seconds.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5));
    Ok(endpoint.connect_lazy())
}
