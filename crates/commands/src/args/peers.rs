//! Options that limit the resources of a client, for `server` and `gateway`.

use std::time::Duration;

use clap::Args;
use striate_listen::Networks;
use striate_listen::networks::Network;
use striate_s3::Limits;

use super::upkeep::time;

/// What a client may occupy, and how fast it must be.
#[derive(Clone, Debug, Args)]
pub struct PeerArgs {
    /// Connections at once. When all are taken, one more closes another: first one whose client has signed nothing, then an
    /// idle one, then one below the minimum rate. If there is none, the new connection is answered 503. Where the limit on
    /// open files (ulimit -n) leaves fewer, fewer are admitted, and status says so.
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..),
          env = "STRIATE_MAX_CONNECTIONS")]
    pub max_connections: u32,

    /// Connections, and so requests in flight, of one address (of IPv6: one network of 64 bits). One more closes an idle
    /// one of that address, and is answered 503 if none is idle. Behind a proxy, name it with --trusted-proxies instead
    /// of raising this.
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..),
          env = "STRIATE_MAX_CONNECTIONS_PER_ADDRESS")]
    pub max_connections_per_address: u32,

    /// Connections at once on the console's port. One more closes another: of the address with the most connections, the
    /// one that has waited longest for its client. So health checks are answered however many clients connect.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..),
          env = "STRIATE_CONSOLE_MAX_CONNECTIONS")]
    pub console_max_connections: u32,

    /// Proxies and load balancers in front of this process, as addresses or networks: `10.0.0.7,10.1.0.0/16`. Many clients
    /// come through each of them, so the limits for one address do not apply to theirs.
    #[arg(long, value_name = "NETWORK", env = "STRIATE_TRUSTED_PROXIES", value_delimiter = ',')]
    pub trusted_proxies: Vec<Network>,

    /// Requests in flight of one access key, presigned ones included; more are answered 503 SlowDown.
    #[arg(long, value_name = "N", default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(1..),
          env = "STRIATE_MAX_REQUESTS_PER_KEY")]
    pub max_requests_per_key: u32,

    /// Minimum rate in KiB a second at which a client must send its body or receive its answer, averaged over
    /// --min-rate-window. Only time in which the server waits for the client counts. A client at twice this
    /// rate is never cut off. 0 disables the check.
    #[arg(long, value_name = "KIB", default_value_t = 8, env = "STRIATE_MIN_RATE_KIB")]
    pub min_rate_kib: u32,

    /// Time over which the rate of a client is averaged, and so how long it may pause while memory is not short.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = window, env = "STRIATE_MIN_RATE_WINDOW")]
    pub min_rate_window: Duration,

    /// Time over which the rate of a client is averaged while memory for bodies is short; for clients that
    /// send, a third of it. The slowest are cut off first.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = window, env = "STRIATE_PRESSED_WINDOW")]
    pub pressed_window: Duration,

    /// How long a request waits for memory for its body (--body-memory-mib) before it is answered 503 SlowDown.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = window, env = "STRIATE_MEMORY_WAIT")]
    pub memory_wait: Duration,

    /// Unread bytes of answers that may wait in the kernel's socket buffers, in MiB. Above this, memory
    /// counts as short too: the slowest clients are cut off first.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..),
          env = "STRIATE_UNSENT_MEMORY_MIB")]
    pub unsent_memory_mib: u32,

    /// A request's head must arrive within this time, and an idle connection is kept as long.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = window, env = "STRIATE_HEAD_TIMEOUT")]
    pub head_timeout: Duration,

    /// Memory for XML and JSON documents and the fields of forms, in MiB. When it is full, requests of the key and address
    /// that hold the most are answered 503 SlowDown. Requests without a verified signature (long heads, and forms up to
    /// their signature) have a further eighth of it to themselves.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..),
          env = "STRIATE_DOCUMENT_MEMORY_MIB")]
    pub document_memory_mib: u32,
}

impl PeerArgs {
    /// Returns the addresses of proxies.
    pub fn trusted(&self) -> Networks {
        self.trusted_proxies.iter().copied().collect()
    }
}

/// What unknown peers may occupy of a site or a control process, whose peers prove with certificates who they are.
#[derive(Clone, Debug, Args)]
pub struct HandshakeArgs {
    /// Connections of one address whose peer has not yet shown a certificate of the cluster. One more closes the one that
    /// has waited longest. Raise it where very many gateways and sites come through one address.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..),
          env = "STRIATE_MAX_HANDSHAKES_PER_ADDRESS")]
    pub max_handshakes_per_address: u32,

    /// Proxies and address translation between the processes of the cluster, as addresses or networks:
    /// `10.0.0.7,10.1.0.0/16`. Many processes come through each of them, so --max-handshakes-per-address does not apply to
    /// theirs.
    #[arg(long, value_name = "NETWORK", env = "STRIATE_TRUSTED_PROXIES", value_delimiter = ',')]
    pub trusted_proxies: Vec<Network>,
}

impl HandshakeArgs {
    /// Returns the addresses of proxies.
    pub fn trusted(&self) -> Networks {
        self.trusted_proxies.iter().copied().collect()
    }
}

/// Parses a time that is not 0.
fn window(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("it must be at least 1s".to_owned()),
        window => Ok(window),
    }
}

impl From<&PeerArgs> for Limits {
    fn from(args: &PeerArgs) -> Self {
        Self {
            connections: args.max_connections as usize,
            connections_per_address: args.max_connections_per_address as usize,
            trusted_proxies: args.trusted(),
            requests_per_key: args.max_requests_per_key as usize,
            min_rate: u64::from(args.min_rate_kib) << 10,
            rate_window: args.min_rate_window,
            pressed_window: args.pressed_window,
            unsent_bytes: u64::from(args.unsent_memory_mib) << 20,
            header_timeout: args.head_timeout,
            buffered_bytes: (args.document_memory_mib as usize) << 20,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        peers: PeerArgs,
    }

    #[test]
    fn the_defaults_are_the_gateways() {
        let args = Command::parse_from(["striate"]).peers;
        assert_eq!(format!("{:?}", Limits::from(&args)), format!("{:?}", Limits::default()));
        assert_eq!(args.memory_wait, striate_stripe::StripeOptions::default().memory_wait);
        assert!(Command::try_parse_from(["striate", "--min-rate-window", "0"]).is_err());
    }
}
