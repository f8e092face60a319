"""A proxy in front of a gateway that deliberately breaks a promise: for a while it repeats answers to reads from memory."""

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class StaleProxy:
    """Serves `target` on `endpoint`, and repeats the answer to a GET for `keep_s` seconds.

    Clients must sign with the proxy as the host, which it passes on.
    """

    def __init__(self, target, keep_s=0.3):
        self.target, self.keep_s = urlsplit(target).netloc, keep_s
        self.answers = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, headers, payload = proxy.ask(self.command, self.path, dict(self.headers), body)
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def ask(self, method, path, headers, body):
        kept = self.answers.get(path) if method == "GET" else None
        if kept and time.monotonic() < kept[0]:
            return kept[1]
        connection = http.client.HTTPConnection(self.target, timeout=30)
        try:
            connection.request(method, path, body=body or None, headers=headers)
            response = connection.getresponse()
            answer = response.status, response.getheaders(), response.read()
        finally:
            connection.close()
        if method == "GET":
            self.answers[path] = time.monotonic() + self.keep_s, answer
        return answer

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
