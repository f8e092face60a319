//! URLs of metadata engines.
//!
//! ```text
//! etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/PREFIX][?tls=on&ca=FILE&cert=FILE&key=FILE&timeout=S]
//! postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?schema=NAME&sslmode=MODE&timeout=S&…]
//! ```
//!
//! They are parsed before anything is connected, so a wrong URL is refused when the configuration is read. They are
//! shown without the password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use percent_encoding::percent_decode_str;
use striate_runtime::Runtime;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::etcd::EtcdStore;
use crate::postgres::PostgresStore;
use crate::store::{MetaError, MetaStore};

/// The address of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// An etcd cluster.
    Etcd(EtcdUrl),
    /// A server that speaks the PostgreSQL protocol.
    Postgres(Box<PostgresUrl>),
}

/// The address of an etcd, and the cluster's prefix in it.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUrl {
    /// Members as `host:port`.
    pub endpoints: Vec<String>,
    /// Prefix of the cluster's keys.
    pub prefix: String,
    /// User name and password.
    pub user: Option<(String, String)>,
    /// TLS files; `None` for connections without TLS.
    pub tls: Option<TlsFiles>,
    /// Time after which an operation that finds no server fails.
    pub timeout: Duration,
}

/// The address of a PostgreSQL database, and the cluster's schema in it.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// Hosts, database, user and password.
    pub config: tokio_postgres::Config,
    /// Schema that holds the cluster's tables.
    pub schema: String,
    /// TLS files; `None` for connections without TLS.
    pub tls: Option<TlsFiles>,
    /// Maximum number of connections.
    pub pool: usize,
    /// Time after which an operation that finds no server fails.
    pub timeout: Duration,
    /// The URL without its password.
    shown: String,
}

/// PEM files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that may sign the server's certificate; `None` for those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Certificate of this client and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The URL cannot be parsed. The message says what is wrong and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

/// Opens the engine at `url`, and creates the cluster's part of it at the first use. Any number of processes may have
/// it open.
///
/// # Errors
/// [`MetaError::Unavailable`] if the engine does not answer or refuses this client, [`MetaError::Corrupt`] if a newer
/// program created the cluster's part of it.
pub fn open<'a>(
    runtime: &'a Runtime,
    url: &'a EngineUrl,
) -> BoxFuture<'a, Result<Arc<dyn MetaStore>, MetaError>> {
    Box::pin(async move {
        let store: Arc<dyn MetaStore> = match url {
            EngineUrl::Etcd(url) => Arc::new(EtcdStore::open(runtime, url).await?),
            EngineUrl::Postgres(url) => Arc::new(PostgresStore::open(runtime, url).await?),
        };
        Ok(store)
    })
}

/// Default time after which an operation that finds no server fails.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(6);

const DEFAULT_PORT: u16 = 2379;

/// Default prefix or schema of a cluster.
const DEFAULT_NAME: &str = "striate";

/// Default for the maximum number of connections to PostgreSQL.
const DEFAULT_POOL: usize = 16;

/// Maximum length of a prefix in bytes: it is part of every key, and a transaction has many.
const MAX_PREFIX_BYTES: usize = 64;

fn invalid<T>(reason: impl Into<String>) -> Result<T, InvalidUrl> {
    Err(InvalidUrl(reason.into()))
}

fn decode(text: &str) -> Result<String, InvalidUrl> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| InvalidUrl("what it escapes with % is not UTF-8".to_owned()))?;
    Ok(decoded.into_owned())
}

/// Parts of a URL, not decoded.
struct Parts<'u> {
    user: Option<&'u str>,
    hosts: &'u str,
    path: &'u str,
    query: Vec<(&'u str, &'u str)>,
}

impl<'u> Parts<'u> {
    /// Splits what follows the scheme.
    ///
    /// # Errors
    /// If a password is not escaped, and so would be taken for a host, a path or an option, which errors name.
    fn parse(rest: &'u str) -> Result<Self, InvalidUrl> {
        let parts = Self::of(rest);
        let names = parts.query.iter().map(|(name, _)| *name);
        match std::iter::once(parts.path).chain(names).any(|text| text.contains('@')) {
            true => invalid("in a user's name or password write / as %2F, ? as %3F, & as %26 and @ as %40"),
            false => Ok(parts),
        }
    }

    fn of(rest: &'u str) -> Self {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        Self { user, hosts, path, query }
    }
}

impl FromStr for EngineUrl {
    type Err = InvalidUrl;

    fn from_str(url: &str) -> Result<Self, InvalidUrl> {
        match url.split_once("://") {
            Some(("etcd", rest)) => Ok(Self::Etcd(EtcdUrl::parse(&Parts::parse(rest)?)?)),
            Some(("postgres" | "postgresql", rest)) => {
                Ok(Self::Postgres(Box::new(PostgresUrl::parse(&Parts::parse(rest)?)?)))
            }
            Some((scheme, _)) => {
                invalid(format!("there is no engine '{scheme}'; use etcd:// or postgres://"))
            }
            None => invalid("an engine's URL begins with etcd:// or postgres://"),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd(url) => write!(f, "etcd://{}/{}", url.endpoints.join(","), url.prefix),
            Self::Postgres(url) => f.write_str(&url.shown),
        }
    }
}

impl fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.prefix)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl EtcdUrl {
    fn parse(parts: &Parts<'_>) -> Result<Self, InvalidUrl> {
        let endpoints = parts.hosts.split(',').map(endpoint).collect::<Result<_, _>>()?;
        let prefix = match decode(parts.path.trim_matches('/'))? {
            prefix if prefix.is_empty() => DEFAULT_NAME.to_owned(),
            prefix => prefix,
        };
        if prefix.len() > MAX_PREFIX_BYTES || prefix.contains('/') {
            return invalid(format!(
                "the prefix '{prefix}' must have at most {MAX_PREFIX_BYTES} bytes and no '/'"
            ));
        }
        let user = match parts.user.map(|user| user.split_once(':')) {
            None => None,
            Some(Some((user, password))) => Some((decode(user)?, decode(password)?)),
            Some(None) => return invalid("a user of etcd needs a password: etcd://USER:PASSWORD@HOST"),
        };
        let mut query = parts.query.clone();
        let timeout = timeout(&mut query)?;
        Ok(Self { endpoints, prefix, user, tls: tls(&query)?, timeout })
    }
}

impl PostgresUrl {
    fn parse(parts: &Parts<'_>) -> Result<Self, InvalidUrl> {
        let mut query = parts.query.clone();
        let timeout = timeout(&mut query)?;
        let mut take = |name: &str| {
            let position = query.iter().position(|(given, _)| *given == name)?;
            Some(decode(query.remove(position).1))
        };
        let schema = take("schema").transpose()?.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let pool = take("pool").transpose()?;
        let mode = take("sslmode").transpose()?;
        let files = [take("sslrootcert"), take("sslcert"), take("sslkey")].map(Option::transpose);
        let [ca, cert, key] = files;
        let files =
            TlsFiles { ca: ca?.map(Into::into), identity: identity(cert?, key?, "sslcert", "sslkey")? };
        let tls = postgres_tls(mode.as_deref(), files)?;
        let is_name =
            |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if schema.is_empty() || schema.len() > 63 || !is_name(&schema) {
            return invalid(format!("schema={schema}: 1 to 63 of a-z, 0-9 and _ are expected"));
        }
        let pool = match pool.map_or(Ok(DEFAULT_POOL), |pool| pool.parse()) {
            Ok(pool) if (2..=1_000).contains(&pool) => pool,
            _ => return invalid("pool: a number of connections from 2 to 1000 is expected"),
        };
        let user = parts.user.map(|user| format!("{user}@")).unwrap_or_default();
        let rest: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let url = format!("postgres://{user}{}/{}?{}", parts.hosts, parts.path, rest.join("&"));
        let config: tokio_postgres::Config = url.parse().map_err(|error| InvalidUrl(reason(&error)))?;
        if parts.hosts.is_empty() || config.get_dbname().is_none() {
            return invalid("host and database are expected: postgres://USER@HOST/DATABASE");
        }
        let shown = format!("postgres://{}/{}?schema={schema}", parts.hosts, parts.path);
        Ok(Self { config, schema, tls, pool, timeout, shown })
    }
}

fn reason(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// TLS is used with the server's certificate verified, or not at all: encryption to an unverified server would be a
/// false promise.
fn postgres_tls(mode: Option<&str>, files: TlsFiles) -> Result<Option<TlsFiles>, InvalidUrl> {
    match mode {
        Some("verify-full") => Ok(Some(files)),
        None if files != TlsFiles::default() => Ok(Some(files)),
        None => Ok(None),
        Some("disable") if files == TlsFiles::default() => Ok(None),
        Some("disable") => invalid("sslmode=disable contradicts the files for TLS"),
        Some(mode) => invalid(format!(
            "sslmode={mode} would not verify the server; use verify-full (with sslrootcert=FILE) or disable"
        )),
    }
}

/// Returns a client's certificate and its key, or neither.
fn identity(
    cert: Option<String>,
    key: Option<String>,
    cert_name: &str,
    key_name: &str,
) -> Result<Option<(PathBuf, PathBuf)>, InvalidUrl> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((cert.into(), key.into()))),
        (None, None) => Ok(None),
        _ => invalid(format!("a client certificate needs both {cert_name}=FILE and {key_name}=FILE")),
    }
}

fn endpoint(host: &str) -> Result<String, InvalidUrl> {
    let (name, port) = match host.rsplit_once(':') {
        // Colons inside brackets belong to an IPv6 address.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    match port.map_or(Ok(DEFAULT_PORT), str::parse::<u16>) {
        Ok(port) if !name.is_empty() => Ok(format!("{name}:{port}")),
        _ => invalid(format!("'{host}' is not HOST or HOST:PORT")),
    }
}

/// Removes the option `timeout` from `query` and parses it.
fn timeout(query: &mut Vec<(&str, &str)>) -> Result<Duration, InvalidUrl> {
    let Some(position) = query.iter().position(|(name, _)| *name == "timeout") else {
        return Ok(DEFAULT_TIMEOUT);
    };
    let (_, seconds) = query.remove(position);
    match seconds.parse::<u64>() {
        Ok(seconds) if (1..=600).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => invalid(format!("timeout={seconds}: a number of seconds from 1 to 600 is expected")),
    }
}

fn tls(query: &[(&str, &str)]) -> Result<Option<TlsFiles>, InvalidUrl> {
    let (mut files, mut on, mut off) = (TlsFiles::default(), false, false);
    let (mut cert, mut key) = (None, None);
    for (name, value) in query {
        let value = decode(value)?;
        match (*name, &*value) {
            ("tls", "on") => on = true,
            ("tls", "off") => off = true,
            ("ca", _) => files.ca = Some(value.into()),
            ("cert", _) => cert = Some(value),
            ("key", _) => key = Some(value),
            _ => {
                return invalid(format!(
                    "'{name}' with this value is no option of etcd; there are ca, cert, key (files), tls=on or off, and timeout (seconds)"
                ));
            }
        }
    }
    files.identity = identity(cert, key, "cert", "key")?;
    let wanted = on || files != TlsFiles::default();
    match wanted && off {
        true => invalid("tls=off contradicts the other options"),
        false => Ok(wanted.then_some(files)),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

impl TlsFiles {
    pub(crate) fn for_tonic(&self) -> Result<ClientTlsConfig, String> {
        let config = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        Ok(match &self.identity {
            Some((cert, key)) => config.identity(Identity::from_pem(read(cert)?, read(key)?)),
            None => config,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(url: &str) -> EtcdUrl {
        match url.parse() {
            Ok(EngineUrl::Etcd(url)) => url,
            other => panic!("{url}: {other:?}"),
        }
    }

    fn postgres(url: &str) -> PostgresUrl {
        match url.parse() {
            Ok(EngineUrl::Postgres(url)) => *url,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn urls_of_etcd_name_members_prefix_and_tls() {
        let plain = etcd("etcd://a");
        assert_eq!((&plain.endpoints[..], &*plain.prefix), (&["a:2379".to_owned()][..], "striate"));
        assert_eq!((plain.tls, plain.user, plain.timeout), (None, None, DEFAULT_TIMEOUT));
        let full = etcd("etcd://u:p%40x@a:1,b,[::1]:3/one?ca=/c%20a&cert=/c&key=/k&timeout=9");
        assert_eq!(full.endpoints, ["a:1", "b:2379", "[::1]:3"]);
        assert_eq!(full.user, Some(("u".to_owned(), "p@x".to_owned())));
        let tls = full.tls.unwrap();
        assert_eq!(tls.ca.as_deref(), Some(Path::new("/c a")));
        assert_eq!(tls.identity, Some(("/c".into(), "/k".into())));
        assert_eq!((&*full.prefix, full.timeout), ("one", Duration::from_secs(9)));
        assert_eq!(etcd("etcd://a?tls=on").tls, Some(TlsFiles::default()));
    }

    #[test]
    fn urls_of_postgresql_name_hosts_database_schema_and_tls() {
        let plain = postgres("postgres://me@a/db");
        assert_eq!((&*plain.schema, plain.pool, plain.tls.is_none()), ("striate", DEFAULT_POOL, true));
        assert_eq!((plain.config.get_user(), plain.config.get_dbname()), (Some("me"), Some("db")));
        let full = postgres("postgresql://me:secret@a:1,b:2/db?schema=s_1&pool=4&sslrootcert=/ca&timeout=2");
        assert_eq!(full.config.get_ports(), [1, 2]);
        assert_eq!((&*full.schema, full.pool, full.timeout), ("s_1", 4, Duration::from_secs(2)));
        assert_eq!(full.tls.unwrap().ca.as_deref(), Some(Path::new("/ca")));
        assert!(postgres("postgres://me@a/db?sslmode=verify-full").tls.is_some());
    }

    #[test]
    fn passwords_are_never_shown() {
        for url in ["etcd://me:secret@a/p", "postgres://me:secret@a/db?schema=s"] {
            let url: EngineUrl = url.parse().unwrap();
            let shown = format!("{url} {url:?}");
            assert!(!shown.contains("secret"), "{shown}");
        }
        let wrong = [
            "etcd://me:secret/2@a/p",
            "etcd://me:secret?2@a/p",
            "etcd://me:%ffsecret@a/p",
            "etcd://a/p?password=secret",
            "postgres://me:secret/2@a/db",
            "postgres://me:secret?2@a/db",
            "postgres://me:secret@a:port/db",
            "postgres://me:secret@a/db?password=secret&colour=red",
        ];
        for url in wrong {
            let error = url.parse::<EngineUrl>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_is_expected() {
        let refused = [
            ("a:2379", "begins with etcd://"),
            ("redis://a", "no engine 'redis'"),
            ("etcd://", "is not HOST"),
            ("etcd://a:b", "is not HOST"),
            ("etcd://a/b/c", "no '/'"),
            ("etcd://me@a", "password"),
            ("etcd://a?cert=/c", "both cert=FILE and key=FILE"),
            ("etcd://a?tls=off&ca=/c", "contradicts"),
            ("etcd://a?colour=red", "no option of etcd"),
            ("etcd://a?timeout=0", "1 to 600"),
            ("postgres://a", "host and database"),
            ("postgres:///db", "host and database"),
            ("postgres://a/db?schema=S", "a-z"),
            ("postgres://a/db?pool=1", "2 to 1000"),
            ("postgres://a/db?sslmode=require", "verify-full"),
            ("postgres://a/db?sslmode=disable&sslrootcert=/c", "contradicts"),
            ("postgres://a/db?colour=red", "colour"),
        ];
        for (url, reason) in refused {
            let error = url.parse::<EngineUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
