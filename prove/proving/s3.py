"""A small S3 client on http.client: one keep-alive connection, no retries."""

import http.client
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from urllib.parse import urlsplit

from . import sigv4


class S3Error(Exception):
    def __init__(self, answer):
        super().__init__(f"{answer.status} {answer.code}: {answer.body[:300]!r}")
        self.status, self.code = answer.status, answer.code


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def code(self):
        """The S3 error code in the body, or None."""
        try:
            return ElementTree.fromstring(self.body).findtext("Code")
        except ElementTree.ParseError:
            return None


class Client:
    def __init__(self, endpoint, credentials, timeout_s=60):
        self.host = urlsplit(endpoint).netloc
        self.credentials = credentials
        self.timeout_s = timeout_s
        self.connection = None

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def send(self, method, path, query=(), headers=None, body=b"", payload_hash=sigv4.UNSIGNED):
        """Signs and sends a request; returns the answer whatever its status. Network errors are raised."""
        request = sigv4.Request(method, path, list(query), dict(headers or {}), body)
        sigv4.sign_headers(request, self.credentials, self.host, payload_hash=payload_hash)
        return self.send_raw(method, request.target(), request.headers, body)

    def send_raw(self, method, target, headers, body=b""):
        """Sends a request as given, signed or not."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.host, timeout=self.timeout_s)
        try:
            self.connection.putrequest(method, target, skip_host="host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                self.connection.putheader(name, value)
            if "content-length" not in {name.lower() for name in headers}:
                self.connection.putheader("content-length", str(len(body)))
            self.connection.endheaders(body or None)
            response = self.connection.getresponse()
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
            if response.will_close:
                self.close()
            return answer
        except Exception:
            self.close()
            raise

    def expect(self, method, path, **arguments):
        answer = self.send(method, path, **arguments)
        if answer.status >= 300:
            raise S3Error(answer)
        return answer

    def make_bucket(self, bucket):
        self.expect("PUT", f"/{bucket}")

    def put(self, bucket, key, body):
        self.expect("PUT", f"/{bucket}/{key}", body=body)

    def get(self, bucket, key):
        return self.expect("GET", f"/{bucket}/{key}").body

    def list_page(self, bucket, **query):
        """Returns one page of ListObjectsV2: (keys, common prefixes, next continuation token or None)."""
        pairs = [("list-type", "2")] + [(name.replace("_", "-"), str(value)) for name, value in query.items()]
        root = ElementTree.fromstring(self.expect("GET", f"/{bucket}", query=pairs).body)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        keys = [element.text for element in root.iterfind(f"{space}Contents/{space}Key")]
        prefixes = [element.text for element in root.iterfind(f"{space}CommonPrefixes/{space}Prefix")]
        return keys, prefixes, root.findtext(f"{space}NextContinuationToken")
