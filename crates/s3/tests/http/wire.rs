//! Handmade HTTP/1.1, and a signer that follows the specification for requests whose path and
//! query are already canonical.

use std::net::SocketAddr;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Clone)]
pub struct Request {
    pub method: String,
    /// Encoded path.
    pub path: String,
    /// Encoded and sorted query, without the question mark.
    pub query: String,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Payload hash that is signed; `None` for the body's SHA-256.
    pub payload: Option<String>,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            method: method.into(),
            path: path.into(),
            query: query.into(),
            headers: vec![("host".into(), "127.0.0.1".into())],
            body: Vec::new(),
            payload: None,
        }
    }

    pub fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.set(name, value);
        self
    }

    pub fn payload(mut self, payload: &str) -> Self {
        self.payload = Some(payload.into());
        self
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.into(), value.into()));
    }

    /// Returns the request's head as it is sent; it announces the body's length unless the headers do.
    pub fn head(&self) -> String {
        let query = if self.query.is_empty() { String::new() } else { format!("?{}", self.query) };
        let mut head = format!("{} {}{query} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let announces = |name: &str| self.headers.iter().any(|(known, _)| known == name);
        if !announces("content-length") && !announces("transfer-encoding") {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head + "\r\n"
    }
}

#[derive(Clone)]
pub struct Signer {
    access: String,
    secret: String,
    pub date: String,
}

impl Signer {
    pub fn new(access: &str, secret: &str, unix_seconds: u64) -> Self {
        Self { access: access.into(), secret: secret.into(), date: amz_date(unix_seconds) }
    }

    pub fn day(&self) -> &str {
        &self.date[..8]
    }

    pub fn scope(&self) -> String {
        format!("{}/us-east-1/s3/aws4_request", self.day())
    }

    pub fn credential(&self) -> String {
        format!("{}/{}", self.access, self.scope())
    }

    pub fn signature(&self, text: &str) -> String {
        let key = hmac(format!("AWS4{}", self.secret).as_bytes(), self.day());
        let key = hmac(&hmac(&hmac(&key, "us-east-1"), "s3"), "aws4_request");
        hex::encode(hmac(&key, text))
    }

    /// Signs all headers, in the Authorization header. Returns the signature.
    pub fn sign(&self, request: &mut Request) -> String {
        let payload = request.payload.clone().unwrap_or_else(|| hex::encode(Sha256::digest(&request.body)));
        request.set("x-amz-content-sha256", &payload);
        request.set("x-amz-date", &self.date);
        request.headers.sort();
        let names: Vec<&str> = request.headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let signature = self.signature(&self.string_to_sign(request, &request.query, &names, &payload));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}, SignedHeaders={names}, Signature={signature}",
            self.credential()
        );
        request.set("authorization", &authorization);
        signature
    }

    /// Signs in the query, with the host as the only signed header.
    pub fn presign(&self, request: &mut Request, expires: i64) {
        self.presign_with_hash(request, expires, "UNSIGNED-PAYLOAD");
    }

    /// As [`Signer::presign`], for a body with this hash.
    pub fn presign_with_hash(&self, request: &mut Request, expires: i64, payload: &str) {
        let mut query: Vec<String> =
            request.query.split('&').filter(|q| !q.is_empty()).map(Into::into).collect();
        query.extend([
            "X-Amz-Algorithm=AWS4-HMAC-SHA256".to_owned(),
            format!("X-Amz-Credential={}", self.credential().replace('/', "%2F")),
            format!("X-Amz-Date={}", self.date),
            format!("X-Amz-Expires={expires}"),
            "X-Amz-SignedHeaders=host".to_owned(),
        ]);
        query.sort();
        let query = query.join("&");
        let host_only = Request {
            headers: request.headers.iter().filter(|(name, _)| name == "host").cloned().collect(),
            ..request.clone()
        };
        let text = self.string_to_sign(&host_only, &query, "host", payload);
        request.query = format!("{query}&X-Amz-Signature={}", self.signature(&text));
    }

    fn string_to_sign(&self, request: &Request, query: &str, names: &str, payload: &str) -> String {
        let query: Vec<String> = query
            .split('&')
            .filter(|q| !q.is_empty())
            .map(|q| if q.contains('=') { q.to_owned() } else { format!("{q}=") })
            .collect();
        let headers: String =
            request.headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let (method, path, query) = (&request.method, &request.path, query.join("&"));
        let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{payload}");
        let hash = hex::encode(Sha256::digest(canonical));
        format!("AWS4-HMAC-SHA256\n{}\n{}\n{hash}", self.date, self.scope())
    }
}

pub fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Formats `YYYYMMDDTHHMMSSZ`, by counting years and months.
pub fn amz_date(unix_seconds: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}{:02}{:02}T{hour:02}{minute:02}{:02}Z", month + 1, days + 1, second % 60)
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the text of the first element with this name.
    pub fn element(&self, name: &str) -> &str {
        let (_, rest) = self.text().split_once(&format!("<{name}>")).unwrap_or_default();
        rest.split_once(&format!("</{name}>")).unwrap_or_default().0
    }

    /// Returns status and S3 error code.
    pub fn error(&self) -> (u16, &str) {
        (self.status, self.element("Code"))
    }
}

pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Whether the other side has reset the connection instead of closing it.
    pub is_reset: bool,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new(), is_reset: false }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        // The server may have answered and closed already; the answer says why.
        let _ = self.stream.write_all(bytes).await;
    }

    pub async fn ask(&mut self, request: &Request) -> Answer {
        self.write(&[request.head().as_bytes(), &request.body].concat()).await;
        self.answer(request.method == "HEAD").await
    }

    /// Reads until the other side closes.
    pub async fn until_closed(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.unread)
    }

    /// Reads up to and including `mark`; returns false if the other side closes before.
    pub async fn until(&mut self, mark: &[u8]) -> bool {
        loop {
            if let Some(at) = self.unread.windows(mark.len()).position(|window| window == mark) {
                self.unread.drain(..at + mark.len());
                return true;
            }
            if !self.more().await {
                return false;
            }
        }
    }

    async fn more(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer).await {
            Ok(0) => false,
            Err(error) => {
                self.is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                false
            }
            Ok(len) => {
                self.unread.extend_from_slice(&buffer[..len]);
                true
            }
        }
    }

    /// Reads one answer, after any 100 Continue.
    pub async fn answer(&mut self, is_head: bool) -> Answer {
        loop {
            let end = loop {
                if let Some(end) = self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                    break end;
                }
                assert!(self.more().await, "the connection closed without an answer: {:?}", self.unread);
            };
            let head = String::from_utf8(self.unread.drain(..end + 4).collect()).unwrap();
            let mut lines = head.lines();
            let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            if status == 100 {
                continue;
            }
            let headers: Vec<(String, String)> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let mut answer = Answer { status, headers, body: Vec::new() };
            let len = answer.header("content-length").map_or(0, |len| len.parse().unwrap());
            if !is_head && !matches!(status, 204 | 304) {
                while self.unread.len() < len && self.more().await {}
                answer.body = self.unread.drain(..len.min(self.unread.len())).collect();
                assert_eq!(answer.body.len(), len, "the answer is complete");
            }
            return answer;
        }
    }
}
