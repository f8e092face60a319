//! The commands' side of the admin socket.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use striate_runtime::Runtime;
use tokio::net::UnixStream;

use super::find;
use super::messages::{Line, Refusal};
use crate::args::AdminArgs;
use crate::failure::{Failure, Outcome};

/// A client of a running server, for commands.
pub struct AdminClient {
    runtime: Runtime,
    socket: std::path::PathBuf,
}

impl AdminClient {
    /// Finds the server that the arguments name.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn find(runtime: Runtime, args: &AdminArgs) -> Outcome<Self> {
        Ok(Self { runtime, socket: find::socket(args)? })
    }

    /// Sends a GET and reads the reply.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        self.read(self.send(Method::GET, path, Bytes::new()).await?).await
    }

    /// Sends a POST with a message and reads the reply.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, message: &impl Serialize) -> Outcome<T> {
        let body = serde_json::to_vec(message).expect("messages are JSON");
        self.read(self.send(Method::POST, path, body.into()).await?).await
    }

    /// Sends a POST with raw bytes and reads the reply.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub async fn post_bytes<T: DeserializeOwned>(&self, path: &str, body: Bytes) -> Outcome<T> {
        self.read(self.send(Method::POST, path, body).await?).await
    }

    /// Sends a DELETE.
    ///
    /// # Errors
    /// If the server refuses or does not answer.
    pub async fn delete(&self, path: &str) -> Outcome {
        let _: serde_json::Value = self.read(self.send(Method::DELETE, path, Bytes::new()).await?).await?;
        Ok(())
    }

    /// Starts a long operation; calls `progress` with each report of progress, and returns the final report.
    ///
    /// # Errors
    /// If the server refuses, the operation fails, or the connection breaks.
    pub async fn follow(
        &self,
        path: &str,
        progress: impl FnMut(serde_json::Value),
    ) -> Outcome<serde_json::Value> {
        self.follow_with(path, &serde_json::json!({}), progress).await
    }

    /// Starts a long operation with a message, as [`AdminClient::follow`] does.
    ///
    /// # Errors
    /// As for [`AdminClient::follow`].
    pub async fn follow_with(
        &self,
        path: &str,
        message: &impl Serialize,
        mut progress: impl FnMut(serde_json::Value),
    ) -> Outcome<serde_json::Value> {
        let mut report = None;
        let body = serde_json::to_vec(message).expect("messages are JSON");
        let answer = self.send(Method::POST, path, body.into()).await?;
        self.lines(answer, |line| {
            let line =
                serde_json::from_str(line).map_err(|error| Failure::failed(format!("{line}: {error}")))?;
            match line {
                Line::Progress(value) => progress(value),
                Line::Report(value) => report = Some(value),
                Line::Failed(reason) => return Err(Failure::failed(reason)),
            }
            Ok(())
        })
        .await?;
        report.ok_or_else(|| Failure::failed("the server stopped before the end; run the command again"))
    }

    /// Sends a GET and calls `each` with every line of the reply.
    ///
    /// # Errors
    /// If the server refuses, the connection breaks, or `each` fails.
    pub async fn get_lines(&self, path: &str, each: impl FnMut(&str) -> Outcome) -> Outcome {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        self.lines(answer, each).await
    }

    async fn lines(
        &self,
        answer: http::Response<Incoming>,
        mut each: impl FnMut(&str) -> Outcome,
    ) -> Outcome {
        let mut body = answer.into_body();
        let mut rest = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.broken(&error))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                each(String::from_utf8_lossy(&line[..end]).trim_end())?;
            }
        }
        Ok(())
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Outcome<http::Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(&error))?;
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(|error| self.broken(&error))?;
        self.runtime.spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .body(Full::new(body))
            .map_err(Failure::refused)?;
        let answer = sender.send_request(request).await.map_err(|error| self.broken(&error))?;
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| self.broken(&error))?.to_bytes();
        let refusal = serde_json::from_slice::<Refusal>(&body);
        Err(Failure::failed(refusal.map_or_else(|_| format!("the server answers {status}"), |it| it.error)))
    }

    async fn read<T: DeserializeOwned>(&self, answer: http::Response<Incoming>) -> Outcome<T> {
        let body = answer.into_body().collect().await.map_err(|error| self.broken(&error))?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| {
            Failure::failed(format!(
                "the server's answer is not understood ({error}); do the command and the server have the same version?"
            ))
        })
    }

    fn unreachable(&self, error: &std::io::Error) -> Failure {
        let way_out = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "run the command as the server's user or as root",
            _ => "is the server running? --dir names one of its directories",
        };
        Failure::failed(format!("the admin socket {}: {error}; {way_out}", self.socket.display()))
    }

    fn broken(&self, error: &hyper::Error) -> Failure {
        Failure::failed(format!("the connection to the server broke: {error}; its log says more"))
    }
}
