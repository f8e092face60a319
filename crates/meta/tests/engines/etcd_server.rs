//! Real etcd clusters of one or several members.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use striate_meta::{EngineUrl, MetaStore};
use striate_runtime::Runtime;
use tempfile::TempDir;

use crate::program::{Program, free_port, installed, run};

/// A running etcd cluster.
pub struct Etcd {
    root: TempDir,
    members: Vec<Member>,
    options: Vec<String>,
}

struct Member {
    client: u16,
    peer: u16,
    program: Option<Program>,
}

/// An etcd of one member that all tests of this process share, each with its own prefix.
pub static SHARED: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(1, &[]));

impl Etcd {
    pub fn start(members: usize, options: &[&str]) -> Self {
        let member = |_| Member { client: free_port(), peer: free_port(), program: None };
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let root = TempDir::new().expect("a temporary directory can be made");
        let mut etcd = Self { root, members: (0..members).map(member).collect(), options };
        (0..members).for_each(|number| etcd.start_member(number));
        (0..members).for_each(|number| etcd.wait_for(number));
        etcd
    }

    fn log(&self, number: usize) -> PathBuf {
        self.root.path().join(format!("{number}.log"))
    }

    pub fn start_member(&mut self, number: usize) {
        let name = |number: usize| format!("m{number}");
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers = self.members.iter().enumerate();
        let cluster: Vec<_> =
            peers.map(|(number, member)| format!("{}={}", name(number), url(member.peer))).collect();
        let secure = self.options.iter().any(|option| option.starts_with("--cert-file"));
        let peer = url(self.members[number].peer);
        let client = match secure {
            true => format!("https://{}", self.endpoint(number)),
            false => url(self.members[number].client),
        };
        let options = [
            ("name", name(number)),
            ("data-dir", self.root.path().join(name(number)).display().to_string()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", cluster.join(",")),
            ("initial-cluster-token", cluster.join(",")),
            ("heartbeat-interval", "50".to_owned()),
            ("election-timeout", "500".to_owned()),
            ("logger", "zap".to_owned()),
            ("log-level", "error".to_owned()),
        ];
        let mut command = vec![installed("etcd", &[]).display().to_string()];
        command.extend(options.map(|(name, value)| format!("--{name}={value}")));
        command.extend(self.options.iter().cloned());
        self.members[number].program = Some(Program::start(&command, "KILL", false, &self.log(number)));
    }

    /// Waits until a member answers.
    fn wait_for(&mut self, number: usize) {
        loop {
            let answer = self.etcdctl(&[number]).args(["endpoint", "health"]).output().expect("etcdctl runs");
            if answer.status.success() {
                return;
            }
            let ended = self.members[number].program.as_mut().is_none_or(Program::has_ended);
            let log = || std::fs::read_to_string(self.log(number)).unwrap_or_default();
            assert!(!ended, "etcd does not start: {}", log());
        }
    }

    pub fn endpoint(&self, number: usize) -> String {
        format!("127.0.0.1:{}", self.members[number].client)
    }

    /// Returns an etcdctl command for some members.
    pub fn etcdctl(&self, members: &[usize]) -> Command {
        let mut command = Command::new(installed("etcdctl", &[]));
        let endpoints: Vec<_> = members.iter().map(|&number| self.endpoint(number)).collect();
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", endpoints.join(",")));
        for (server, client) in [("trusted-ca-file", "cacert"), ("cert-file", "cert"), ("key-file", "key")] {
            let given = self.options.iter().find_map(|option| option.strip_prefix(&format!("--{server}=")));
            command.args(given.map(|file| format!("--{client}={file}")));
        }
        command
    }

    /// Runs etcdctl at the first member and returns its output.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        run(self.etcdctl(&[0]).args(arguments))
    }

    /// Returns the newest revision.
    pub fn revision(&self) -> u64 {
        let status = self.ctl(&["endpoint", "status", "-w", "json"]);
        let status: serde_json::Value = serde_json::from_str(status.trim()).expect("etcdctl writes JSON");
        status[0]["Status"]["header"]["revision"].as_u64().expect("a status names the revision")
    }

    pub fn kill_member(&mut self, number: usize) {
        self.members[number].program = None;
    }

    pub fn restart_member(&mut self, number: usize) {
        self.start_member(number);
        self.wait_for(number);
    }

    pub fn signal(&self, number: usize, name: &str) {
        self.members[number].program.as_ref().expect("the member runs").signal(name);
    }

    /// Returns the URL of all members, with `rest`: a prefix and options.
    pub fn url(&self, rest: &str) -> EngineUrl {
        let endpoints: Vec<_> = (0..self.members.len()).map(|number| self.endpoint(number)).collect();
        url(&endpoints.join(","), rest)
    }

    pub async fn open(&self, rest: &str) -> Arc<dyn MetaStore> {
        striate_meta::open(&Runtime::real(), &self.url(rest)).await.expect("the engine opens")
    }
}

pub fn url(endpoints: &str, rest: &str) -> EngineUrl {
    format!("etcd://{endpoints}/{rest}").parse().expect("the test's URL is one")
}
