//! Authorisation of reads of numbers and paths on the console port.
//!
//! Object names are shown only after a sign-in. Access is granted to:
//!
//! - a request that sends the metrics token, or a token obtained by signing in, as `Authorization: Bearer …`;
//! - a program on the server's own machine, without a token, if it addresses `localhost` or a loopback address itself:
//!   the peer's address is a loopback address, the `Host` header names one too (this stops a web page that pointed its
//!   own name to 127.0.0.1), no proxy has added a header, and it is not HTTP/1.0, which nginx sends by default without
//!   such a header.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{Request, Version, header};
use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Lifetime of a sign-in.
const SESSION: Duration = Duration::from_secs(12 * 3_600);
/// Maximum number of sessions; the oldest ends when there are more.
const SESSIONS: usize = 32;
/// Headers that a proxy adds.
const PROXY_HEADERS: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Decides which requests may read.
pub struct Access {
    runtime: Runtime,
    metrics_token: Option<Zeroizing<String>>,
    sessions: Mutex<Vec<Session>>,
}

/// A sign-in that has not ended.
struct Session {
    token: Zeroizing<String>,
    access_key: String,
    until: Instant,
}

/// Compares in constant time, so that the duration does not reveal where two secrets differ.
pub fn equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

impl Access {
    /// Creates access for holders of `metrics_token`, besides sign-ins and programs on this machine.
    pub fn new(runtime: Runtime, metrics_token: Option<Zeroizing<String>>) -> Self {
        Self { runtime, metrics_token, sessions: Mutex::default() }
    }

    /// Returns true if the request may read. A header of another kind of authorisation is for a proxy in front, so such
    /// a request did not come from a program on this machine.
    pub fn allows<B>(&self, request: &Request<B>, peer: SocketAddr) -> bool {
        match bearer(request) {
            Some(token) => self.knows(token),
            None => !request.headers().contains_key(header::AUTHORIZATION) && is_local(request, peer),
        }
    }

    /// Returns the access key whose sign-in the request uses, if it uses one.
    pub fn key_of_session<B>(&self, request: &Request<B>) -> Option<String> {
        let token = bearer(request)?;
        let sessions = self.sessions.lock();
        let used = sessions.iter().find(|session| equal(&session.token, token));
        used.map(|session| session.access_key.clone())
    }

    /// Ends the sessions of an access key that is no longer accepted.
    pub fn end_sessions(&self, access_key: &str) {
        self.sessions.lock().retain(|session| session.access_key != access_key);
    }

    /// Returns true if the sender has signed in, and so may also read object names.
    pub fn is_signed_in<B>(&self, request: &Request<B>) -> bool {
        bearer(request).is_some_and(|token| self.has_session(token))
    }

    fn knows(&self, token: &str) -> bool {
        let is_metrics = self.metrics_token.as_ref().is_some_and(|metrics_token| equal(metrics_token, token));
        self.has_session(token) | is_metrics
    }

    fn has_session(&self, token: &str) -> bool {
        let now = self.runtime.now();
        let mut sessions = self.sessions.lock();
        sessions.retain(|session| now < session.until);
        sessions.iter().fold(false, |found, session| found | equal(&session.token, token))
    }

    /// Creates a token for a user who has signed in with this access key.
    pub fn new_session(&self, runtime: &Runtime, access_key: &str) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new([0; 32]);
        runtime.fill_secret(&mut bytes[..]);
        let token = Zeroizing::new(hex::encode(bytes.as_slice()));
        let mut sessions = self.sessions.lock();
        if sessions.len() >= SESSIONS {
            sessions.remove(0);
        }
        let (access_key, until) = (access_key.to_owned(), self.runtime.now() + SESSION);
        sessions.push(Session { token: token.clone(), access_key, until });
        token
    }
}

fn bearer<B>(request: &Request<B>) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    Some(value.strip_prefix("Bearer ")?.trim())
}

fn is_local<B>(request: &Request<B>, peer: SocketAddr) -> bool {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    let is_proxied = request.version() < Version::HTTP_11
        || PROXY_HEADERS.iter().any(|name| request.headers().contains_key(*name));
    peer.ip().to_canonical().is_loopback() && names_loopback(host) && !is_proxied
}

/// Returns true for `localhost`, `127.…` and `[::1]`, with or without a port.
fn names_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let build =
            |builder: http::request::Builder, (name, value): &(&str, &str)| builder.header(*name, *value);
        headers.iter().fold(Request::builder(), build).body(()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_tokens_and_direct_local_programs_are_let_in() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let access = Access::new(runtime.clone(), Some(Zeroizing::new("token".to_owned())));
        let local: SocketAddr = "127.0.0.1:5".parse().unwrap();
        let remote: SocketAddr = "10.0.0.1:5".parse().unwrap();
        let allows = |headers: &[(&str, &str)], peer| access.allows(&request(headers), peer);
        assert!(allows(&[("host", "localhost:9001")], local));
        assert!(allows(&[("host", "[::1]:9001")], "[::1]:7".parse().unwrap()));
        assert!(!allows(&[("host", "localhost:9001")], remote));
        assert!(!allows(&[("host", "evil.example:9001")], local));
        assert!(!allows(&[("host", "localhost"), ("x-forwarded-for", "1.2.3.4")], local));
        assert!(!allows(&[], local));
        let mut of_nginx = request(&[("host", "127.0.0.1:9001"), ("connection", "close")]);
        *of_nginx.version_mut() = Version::HTTP_10;
        assert!(!access.allows(&of_nginx, local));
        assert!(allows(&[("authorization", "Bearer token")], remote));
        assert!(!allows(&[("authorization", "Bearer tokem")], remote));
        assert!(!allows(&[("authorization", "Bearer tokem"), ("host", "localhost")], local));
        assert!(
            !allows(&[("authorization", "Basic YTpi"), ("host", "localhost")], local),
            "a proxy's password"
        );
        let session = access.new_session(&runtime, "key");
        let bearer = format!("Bearer {}", session.as_str());
        assert!(allows(&[("authorization", &bearer)], remote));
        assert!(access.is_signed_in(&request(&[("authorization", &bearer)])));
        assert!(!access.is_signed_in(&request(&[("authorization", "Bearer token")])), "it reads numbers");
        assert!(!access.is_signed_in(&request(&[("host", "localhost:9001")])));
        access.end_sessions("another");
        assert!(allows(&[("authorization", &bearer)], remote));
        access.end_sessions("key");
        assert!(!allows(&[("authorization", &bearer)], remote), "its key was revoked");
        let session = access.new_session(&runtime, "key");
        let bearer = format!("Bearer {}", session.as_str());
        assert_eq!(access.key_of_session(&request(&[("authorization", &bearer)])).as_deref(), Some("key"));
        runtime.sleep(SESSION).await;
        assert!(!allows(&[("authorization", &bearer)], remote));
        assert!(!access.is_signed_in(&request(&[("authorization", &bearer)])));
    }
}
