//! A TCP proxy that breaks connections in chosen ways.

use std::net::SocketAddr;

use striate_runtime::{JoinHandle, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The treatment of the bytes of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forwards everything, held requests first.
    Forward,
    /// Forwards requests, and drops the answers; such connections end with this mode.
    LoseAnswers,
    /// Holds requests.
    Hold,
    /// Keeps holding these requests, and drops later ones.
    HoldNoMore,
    /// Forwards the held requests, and drops earlier and later ones.
    Deliver,
    /// Ends all connections and accepts no new ones.
    Cut,
}

/// A proxy in front of one server.
pub struct Proxy {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a socket has an address");
        let (mode, modes) = watch::channel(Mode::Forward);
        let accepting = Runtime::real().spawn(accept(listener, server.to_owned(), modes));
        Self { address, mode, accepting }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send(mode).expect("the proxy runs");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: String, modes: watch::Receiver<Mode>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if *modes.borrow() == Mode::Cut {
            continue;
        }
        let Ok(server) = TcpStream::connect(&server).await else { continue };
        Runtime::real().spawn(connection(client, server, modes.clone()));
    }
}

async fn connection(client: TcpStream, server: TcpStream, mut modes: watch::Receiver<Mode>) {
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (asked, answered) = (modes.clone(), modes.clone());
    tokio::select! {
        () = pass_questions(from_client, to_server, asked) => {}
        () = pass_answers(from_server, to_client, answered) => {}
        _ = modes.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn pass_questions(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let (mut bytes, mut held) = (vec![0; 64 << 10], Vec::new());
    loop {
        let mode = *modes.borrow_and_update();
        if matches!(mode, Mode::Forward | Mode::LoseAnswers | Mode::Deliver) {
            let sent = to.write_all(&std::mem::take(&mut held)).await;
            if sent.is_err() {
                return;
            }
        }
        let length = tokio::select! {
            changed = modes.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            length = from.read(&mut bytes) => length.unwrap_or(0),
        };
        match mode {
            _ if length == 0 => return,
            Mode::HoldNoMore | Mode::Deliver => {}
            _ => held.extend_from_slice(&bytes[..length]),
        }
    }
}

async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let (mut bytes, mut lost) = (vec![0; 64 << 10], false);
    loop {
        let length = tokio::select! {
            // A stream with a gap is of no use.
            _ = modes.wait_for(|mode| *mode != Mode::LoseAnswers), if lost => return,
            length = from.read(&mut bytes) => length.unwrap_or(0),
        };
        if length == 0 {
            return;
        }
        lost |= *modes.borrow() == Mode::LoseAnswers;
        if !lost && to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
