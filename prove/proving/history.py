"""A recorded history of many S3 clients' operations on a few keys through several gateways, for a checker.

Every operation is recorded with the times of its call and its return. `tests/linearizability` judges the history key by key. A
listing counts as a read of each of its keys at some time during the listing, which is also what S3 promises.
"""

import hashlib
import json
import random
import subprocess
import threading
import time
import xml.etree.ElementTree as ElementTree

from . import TOOLS
from .s3 import Client

KEYS = [f"contended/{number}" for number in range(10)]
SIZES = (100, 10_000, 150_000)  # inline in the metadata; one small stripe; chunks worth a request each
WEIGHTS = {"get": 38, "put": 18, "put_if_absent": 12, "put_if_match": 12, "delete": 12, "list": 8, "keep": 2}
SHUN_S = 5  # time for which a client avoids a gateway that broke a connection, as load balancers do
NOT_SENT = object()  # no process listens at the address
REFUSED = {404: "missing", 409: "conflict", 412: "refused"}


class History:
    """The records of all clients. Safe to use from many threads."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "w")
        self.lock = threading.Lock()
        self.operations = 0
        self.unknown = 0
        self.samples = []  # (seconds since the start, operation, seconds it took, outcome, HTTP status or None)
        self.kept = {}  # acknowledged objects that are never overwritten → MD5
        self.began = time.monotonic_ns()

    def now(self):
        """Returns the seconds since the start, as in the samples."""
        return (time.monotonic_ns() - self.began) / 1e9

    def add(self, client, operation, called, outcome, status, records):
        """Adds one operation, with a record for each contended key that it says something about."""
        returned = time.monotonic_ns()
        lines = [json.dumps({"client": client, "call": called - self.began, "return": returned - self.began, **record})
                 for record in records]
        with self.lock:
            self.operations += 1
            self.unknown += outcome == "unknown"
            self.samples.append(
                ((called - self.began) / 1e9, operation, (returned - called) / 1e9, outcome, status))
            self.file.write("".join(f"{line}\n" for line in lines))

    def close(self):
        self.file.close()

    def judge(self, timeout_s=120, picture=None):
        """Returns the checker's verdict on a closed history: operations, keys, illegal, undecided."""
        command = [TOOLS / "bin" / "linearizability", "-timeout", f"{timeout_s}s"]
        if picture:
            command += ["-picture", picture]
        done = subprocess.run([*map(str, command), str(self.path)], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the checker failed: {done.stderr}")
        return json.loads(done.stdout)


class Worker:
    """One client. It runs one operation after the other, each on any of the endpoints."""

    def __init__(self, number, endpoints, credentials, bucket, history, timeout_s):
        self.number, self.bucket, self.history = number, bucket, history
        self.clients = [Client(endpoint, credentials, timeout_s) for endpoint in endpoints]
        self.shunned = {}  # client of a gateway that broke a connection → end of its avoidance
        self.random = random.Random(number)
        self.known = {}  # key → the last value that this client saw
        self.puts = 0

    def step(self):
        """Runs one operation. Returns False if no gateway accepted it."""
        operation = self.random.choices(list(WEIGHTS), WEIGHTS.values())[0]
        client, key = self.choose(), self.random.choice(KEYS)
        if operation == "list":
            return self.list(client)
        if operation == "keep":
            return self.keep(client)
        record = {"key": key, "op": operation}
        method, headers, body = "GET", {}, b""
        if operation == "delete":
            method = "DELETE"
        elif operation != "get":
            method, body = "PUT", self.body()
            record["value"] = hashlib.md5(body).hexdigest()
        if operation == "put_if_absent":
            headers = {"if-none-match": "*"}
        elif operation == "put_if_match":
            record["match"] = self.known.get(key, "0" * 32)
            headers = {"if-match": f'"{record["match"]}"'}
        called = time.monotonic_ns()
        answer = self.ask(client, method, f"/{self.bucket}/{key}", headers=headers, body=body)
        if answer is NOT_SENT:
            return False
        record["outcome"] = self.outcome(operation, answer)
        if operation == "get" and record["outcome"] == "ok":
            record["value"] = hashlib.md5(answer.body).hexdigest()
        if record["outcome"] == "ok" and "value" in record:
            self.known[key] = record["value"]
        self.history.add(self.number, operation, called, record["outcome"], answer and answer.status, [record])
        return True

    def choose(self):
        now = time.monotonic()
        well = [client for client in self.clients if self.shunned.get(client, 0) < now]
        return self.random.choice(well or self.clients)

    def ask(self, client, method, path, **arguments):
        """Sends a request. Returns the answer, None if the connection broke (outcome unknown), or NOT_SENT if it was refused."""
        try:
            return client.send(method, path, **arguments)
        except ConnectionRefusedError:
            self.shunned[client] = time.monotonic() + SHUN_S
            return NOT_SENT
        except Exception:  # noqa: BLE001 - whatever broke the connection
            self.shunned[client] = time.monotonic() + SHUN_S
            return None

    def body(self):
        """Returns a body that no other put uses."""
        self.puts += 1
        head = f"{self.number}.{self.puts}.".encode()
        return head + self.random.randbytes(self.random.choice(SIZES) - len(head))

    @staticmethod
    def outcome(operation, answer):
        if answer is not None and answer.status < 300:
            return "ok"
        status = answer.status if answer is not None else None
        if operation == "get" and status != 404:
            return "unknown"
        if status in REFUSED and operation not in ("put", "delete"):
            return REFUSED[status]
        if status in (400, 401, 403, 404):
            raise RuntimeError(f"{operation} was answered with {answer.status} {answer.code}")
        return "unknown"

    def list(self, client):
        called = time.monotonic_ns()
        query = [("list-type", "2"), ("prefix", "contended/")]
        answer = self.ask(client, "GET", f"/{self.bucket}", query=query)
        if answer is NOT_SENT:
            return False
        if answer is None or answer.status != 200:
            self.history.add(self.number, "list", called, "unknown", answer and answer.status, [])
            return True
        listed = etags(answer.body)
        records = [{"key": key, "op": "get", "outcome": "ok", "value": listed[key]} if key in listed
                   else {"key": key, "op": "get", "outcome": "missing"} for key in KEYS]
        self.history.add(self.number, "list", called, "ok", 200, records)
        return True

    def keep(self, client):
        """Writes an object that no operation touches again."""
        body, called = self.body(), time.monotonic_ns()
        key = f"kept/{self.number}/{self.puts}"
        answer = self.ask(client, "PUT", f"/{self.bucket}/{key}", body=body)
        if answer is NOT_SENT:
            return False
        outcome = self.outcome("put", answer)
        if outcome == "ok":
            self.history.kept[key] = hashlib.md5(body).hexdigest()
        self.history.add(self.number, "keep", called, outcome, answer and answer.status, [])
        return True


def etags(body):
    """Returns the ETags of a listing's keys, without quotes."""
    root = ElementTree.fromstring(body)
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    return {entry.findtext(f"{space}Key"): entry.findtext(f"{space}ETag").strip('"')
            for entry in root.iterfind(f"{space}Contents")}


def drive(endpoints, credentials, bucket, path, *, operations, clients=16, timeout_s=3, during=None):
    """Runs `clients` on the keys and returns their history.

    They stop once `operations` have been recorded and `during`, which runs beside them with the history, has ended.
    """
    history = History(path)
    errors, is_over = [], threading.Event()

    def work(number):
        worker = Worker(number, endpoints, credentials, bucket, history, timeout_s)
        try:
            while not (is_over.is_set() and history.operations >= operations) and not errors:
                if not worker.step():
                    time.sleep(0.05)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        if during:
            during(history)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        history.close()
    if errors:
        raise errors[0]
    return history
