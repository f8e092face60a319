"""Requests to a store that accepts connections and stops answering: how often they are sent, and over how many connections."""

import socketserver
import threading

import pytest
import striate.many
import striate.transport
from striate import Client, UnreachableError
from striate.kv import client_of

TIMEOUT_S = 0.5
NOTHING_THERE = b'{"prefix": 0, "sizes": [null]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(NOTHING_THERE), NOTHING_THERE)


class Mute(socketserver.ThreadingTCPServer):
    """Answers the first lookups, and then no request any more. Counts connections and requests."""

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), Unanswered)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers, self.connections, self.requests = answers, 0, 0

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Unanswered(socketserver.StreamRequestHandler):
    """A connection, until the client closes it."""

    def handle(self):
        self.server.connections += 1
        while self.receives():
            self.server.requests += 1
            if self.server.requests <= self.server.answers:
                self.wfile.write(ANSWER)

    def receives(self):
        """Returns whether a whole request has come."""
        length = 0
        while (line := self.rfile.readline().lower()) != b"\r\n":
            if not line:
                return False
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return len(self.rfile.read(length)) == length


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(striate.many, "BACKOFF_S", 0.001)
    monkeypatch.setattr(striate.transport, "BACKOFF_S", 0.001)


def counts_after(answers, client_to, *calls):
    """Makes calls to a server that answers the first ones; the last must fail. Returns its connections and requests."""
    with Mute(answers) as server, client_to(server.endpoint) as client:
        for call in calls[:-1]:
            call(client)
        with pytest.raises(UnreachableError):
            calls[-1](client)
        return server.connections, server.requests


def adapters(endpoint):
    return client_of(TIMEOUT_S, endpoint, access_key="a", secret_key="b")


def look_up(client):
    assert client.sizes_of("bucket", ["key"]) == [None]


def load(client):
    client.get_many_into("bucket", [("key", bytearray(1))])


def store(client):
    client.put_many("bucket", [("key", b"x")])


def head(client):
    client.head("bucket", "key")


@pytest.mark.parametrize("call", [look_up, load, store, head])
def test_what_times_out_in_an_adapter_is_sent_once(call):
    assert counts_after(0, adapters, call) == (1, 1)


@pytest.mark.parametrize("call", [look_up, load, store])
def test_what_times_out_on_a_kept_connection_of_an_adapter_is_sent_once(call):
    assert counts_after(1, adapters, look_up, call) == (1, 2)


@pytest.mark.parametrize("call", [look_up, head])
def test_what_times_out_otherwise_is_sent_once_for_each_try(call):
    def tries_three_times(endpoint):
        return Client(endpoint, access_key="a", secret_key="b", retries=2, read_timeout_s=TIMEOUT_S)

    assert counts_after(0, tries_three_times, call) == (3, 3)


def test_what_times_out_on_a_kept_connection_counts_as_a_try():
    def tries_twice(endpoint):
        return Client(endpoint, access_key="a", secret_key="b", retries=1, read_timeout_s=TIMEOUT_S)

    assert counts_after(1, tries_twice, look_up, look_up) == (2, 3)
