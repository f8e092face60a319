"""Striate as a cache in front of MinIO, beside MinIO alone, nginx's proxy_cache and Varnish, on one machine.

nginx and Varnish need a publicly readable bucket: a signature covers the range, which nginx's slices change, and a cache key without
the caller would give hits to everyone. Striate signs its own requests and checks the rights of each client.
"""

import http.client
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import processes, sigv4
from .bodies import numbered
from .claims import spread
from .s3 import Client
from .servers import MinIO, Server, Striate, striate_binary

MIB = 1 << 20
BUCKET = "cdn"
CACHE_MIB = 256
# Bytes in memory of an object that is replaced: more than a gateway sends ahead of its reader, less than new blocks may take.
FILLED, BLOCK = 16 * MIB, 4 * MIB
# Time for a write before the reader continues, in seconds.
BEFORE_THE_REST_S = 5

NGINX = """
worker_processes 2; error_log {base}/error.log; pid {base}/nginx.pid; daemon off;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {base}/body; proxy_temp_path {base}/proxy;
  fastcgi_temp_path {base}/fastcgi; uwsgi_temp_path {base}/uwsgi; scgi_temp_path {base}/scgi;
  proxy_cache_path {store} levels=1:2 keys_zone=s3:16m max_size={mib}m min_free=32m inactive=1h use_temp_path=off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    limit_except GET HEAD {{ deny all; }}
    slice 1m; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range;
    proxy_cache s3; proxy_cache_valid 200 206 60s; proxy_cache_valid 404 1s; proxy_cache_revalidate on;
    proxy_cache_lock on; proxy_cache_lock_timeout 5s; proxy_cache_lock_age 5s;
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Authorization ""; proxy_set_header Host $proxy_host;
    proxy_pass http://origin; }} }} }}
"""
VARNISH = """
vcl 4.1; backend s3 {{ .host = "127.0.0.1"; .port = "{origin}"; }}
sub vcl_recv {{ if (req.method != "GET" && req.method != "HEAD") {{ return (synth(405)); }}
  unset req.http.Authorization; unset req.http.Cookie; return (hash); }}
sub vcl_hash {{ hash_data(req.url); return (lookup); }}
sub vcl_backend_fetch {{ set bereq.http.Host = "127.0.0.1:{origin}"; }}
sub vcl_backend_response {{
  if (beresp.status == 200) {{ set beresp.ttl = 60s; set beresp.grace = 0s; set beresp.keep = 1h; }}
  elsif (beresp.status == 404) {{ set beresp.ttl = 1s; set beresp.grace = 0s; }}
  else {{ set beresp.uncacheable = true; set beresp.ttl = 0s; }} }}
"""


class Proxy(Server):
    """A third-party cache in front of MinIO."""

    def __init__(self, base, origin):
        super().__init__(base, directories=0)
        self.base.mkdir(parents=True, exist_ok=True)
        self.origin = origin

    def wait_ready(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/{BUCKET}/ready", timeout=2):
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"{self.name} is not ready:\n{self.log_tail()}")

    def cpu_ms(self):
        return sum(map(processes.cpu_ms, processes.with_children(self.process.pid)))

    def memory_bytes(self):
        return sum(map(processes.resident_bytes, processes.with_children(self.process.pid)))


class Nginx(Proxy):
    name = "nginx"

    def command(self):
        # The store is in memory. Its manager wakes up every ten seconds, so the store may exceed its bound.
        self.store = Path("/dev/shm") / f"striate-prove-nginx-{os.getpid()}"
        self.store.mkdir(exist_ok=True)
        path = self.base / "nginx.conf"
        path.write_text(NGINX.format(base=self.base, store=self.store, mib=CACHE_MIB, origin=self.origin.port, port=self.port))
        return ["nginx", "-c", path, "-p", self.base, "-e", self.base / "error.log"]

    def memory_bytes(self):
        store = sum(path.stat().st_blocks * 512 for path in self.store.rglob("*") if path.is_file())
        return super().memory_bytes() + store

    def stop(self, timeout_s=30):
        super().stop(timeout_s)
        shutil.rmtree(self.store, ignore_errors=True)


class Varnish(Proxy):
    name = "varnish"

    def command(self):
        path = self.base / "s3.vcl"
        path.write_text(VARNISH.format(origin=self.origin.port))
        return ["varnishd", "-j", "none", "-F", "-a", f"127.0.0.1:{self.port}", "-f", path, "-n", self.base / "work",
                "-s", f"malloc,{CACHE_MIB}m", "-s", "Transient=malloc,64m"]


class Front(Striate):
    """Striate with a bucket whose origin is another store."""

    def __init__(self, base, origin):
        super().__init__(base, directories=1, environment={
            "STRIATE_CACHE_MIB": str(CACHE_MIB), "STRIATE_CACHE_EVICTION": "s3-fifo",
            "STRIATE_ORIGIN_ACCESS_KEY": origin.credentials.access_key,
            "STRIATE_ORIGIN_SECRET_KEY": origin.credentials.secret_key})
        self.origin = origin

    def start(self, timeout_s=60):
        super().start(timeout_s)
        self.run("bucket", "create", "--origin", f"s3://{BUCKET}", "--origin-endpoint", self.origin.endpoint, BUCKET)
        return self

    def memory_bytes(self):
        return processes.resident_bytes(self.process.pid)


class Alone:
    """MinIO without a cache."""

    name = "minio"

    def __init__(self, origin):
        self.origin, self.endpoint, self.credentials = origin, origin.endpoint, origin.credentials

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def cpu_ms(self):
        return 0

    def memory_bytes(self):
        return 0


def origin_bytes(origin):
    """Returns the bytes that MinIO has written: to sockets, as long as no client writes objects."""
    return processes.written_bytes(origin.process.pid)


def open_to_all(origin):
    """Makes the bucket publicly readable, for caches that cannot sign."""
    policy = {"Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{BUCKET}/*"]}]}
    answer = origin.client().send("PUT", f"/{BUCKET}", query=[("policy", "")], body=json.dumps(policy).encode())
    if answer.status not in (200, 204):
        raise RuntimeError(f"MinIO takes no policy: {answer.status} {answer.body}")


def bench(server, workloads, objects, operations=None):
    """Runs a CDN's reads in a closed loop and returns the generator's figures; without `operations` it writes the objects."""
    report = Path(server.origin.base) / f"{server.name}.json"
    command = [striate_binary(), "bench", "--endpoint", server.endpoint, "--bucket", BUCKET, "--workload", "cdn", "--objects", objects,
               "--cdn-sizes", workloads / "meta_cdn_sizes.json", "--cdn-popularity", workloads / "meta_cdn_pop.json", "--prefix", f"cdn-{objects}/",
               "--clients", 16, "--quiet", "--json", report]
    command += ["--operations", operations] if operations else ["--load", "--duration", "0"]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": server.credentials.access_key,
                   "AWS_SECRET_ACCESS_KEY": server.credentials.secret_key}
    for name in ("STRIATE_ACCESS_KEY", "STRIATE_SECRET_KEY"):
        environment.pop(name, None)
    report.unlink(missing_ok=True)
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode != 0 and not report.exists():
        raise RuntimeError(f"{server.name}: {done.stderr[-800:]}{done.stdout[-400:]}")
    return json.loads(report.read_text()) if operations else None


def prove_front(ledger, folder, full, workloads):
    with MinIO(folder / "minio", directories=4) as origin:
        origin.client().make_bucket(BUCKET)
        open_to_all(origin)
        origin.client().put(BUCKET, "ready", b"ready")
        if workloads is None:
            ledger.skip("a CDN's reads; --workloads DIR names CacheLib's histograms")
        # One set of objects that fits into each cache, and one that does not.
        for objects, operations in ((4_000, 6_000), (60_000, 100_000) if full else (20_000, 25_000)) if workloads else ():
            compare(ledger, folder / str(objects), origin, workloads, objects, operations, 5 if full else 3)
        prove_pouring(ledger, folder, origin)
        prove_changes(ledger, folder, origin)


def compare(ledger, folder, origin, workloads, objects, operations, rounds):
    """Runs the CDN's reads through each server, interleaved."""
    alone = Alone(origin)
    bench(alone, workloads, objects)
    figures = {}
    for number in range(rounds):
        kinds = [Front(folder / f"striate-{number}", origin), Nginx(folder / f"nginx-{number}", origin),
                 Varnish(folder / f"varnish-{number}", origin), alone]
        for server in kinds[number % 4:] + kinds[:number % 4]:
            with server:
                figures.setdefault(server.name, []).append(measure(server, origin, workloads, objects, operations))
    report(ledger, figures, rounds, objects)


def reads(result):
    return next(row for row in result["operations"] if row["operation"] == "read")


def measure(server, origin, workloads, objects, operations):
    """Measures the same reads twice, cold and then warm. Costs cover both passes."""
    cpu, sent = server.cpu_ms() + origin.cpu_ms(), origin_bytes(origin)
    results = [bench(server, workloads, objects, operations) for _ in range(2)]
    throughput = [reads(result)["bytes"] / result["elapsed_s"] for result in results]
    received = sum(reads(result)["bytes"] for result in results)
    return {"cold": throughput[0], "warm": throughput[1], "cpu": (server.cpu_ms() + origin.cpu_ms() - cpu) / (received / MIB),
            "origin": (origin_bytes(origin) - sent) / received, "memory": server.memory_bytes(),
            "failed": sum(error["count"] for result in results for error in reads(result)["errors"])}


def report(ledger, figures, rounds, objects):
    middle = {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in figures.items()}
    for name, row in middle.items():
        ledger.add(f"   {objects} objects, {name}: MiB/s cold and warm; ms of processor time a MiB, the origin's included; bytes of the origin a byte; memory",
                   f"{row['cold'] / MIB:.0f} and {row['warm'] / MIB:.0f}; {row['cpu']:.2f}; {row['origin']:.2f}; {row['memory'] / MIB:.0f} MiB")
    failed = {name: sum(run["failed"] for run in runs) for name, runs in figures.items()}
    others = ", ".join(f"{name} {count}" for name, count in failed.items() if name != "striate")
    ledger.add(f"requests that failed, CDN reads of {objects} objects", f"{failed['striate']} ({others})", failed["striate"] == 0, "0")
    for other, key in (("minio", "cold"), ("minio", "warm"), ("nginx", "warm"), ("varnish", "warm"), ("nginx", "cold"), ("varnish", "cold")):
        ratios = [ours[key] / theirs[key] for ours, theirs in zip(figures["striate"], figures[other])]
        ledger.add(f"   GET throughput over that of {other}, {key}", f"{statistics.median(ratios):.2f}", spread=f"{spread(ratios)} over {rounds} rounds")
    ratios = [ours["origin"] / theirs["origin"] for ours, theirs in zip(figures["striate"], figures["varnish"])]
    ledger.add("   bytes of the origin over those with Varnish, whose store keeps to its bound", f"{statistics.median(ratios):.2f}",
               spread=f"{spread(ratios)} over {rounds} rounds")


def prove_pouring(ledger, folder, origin):
    """Reads objects of 64 KiB, three times the bound in total."""
    count = 3 * CACHE_MIB * 16
    body = os.urandom(64 << 10)
    own = threading.local()

    def with_client(endpoint, work):
        if not hasattr(own, "client") or own.endpoint != endpoint:
            own.client, own.endpoint = Client(endpoint, origin.credentials), endpoint
        return work(own.client)

    def put(number):
        with_client(origin.endpoint, lambda client: client.put(BUCKET, f"pour/{number}", number.to_bytes(8, "big") + body))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(count)))
    with Front(folder / "pouring", origin) as server, ThreadPoolExecutor(8) as pool:
        idle, most = server.memory_bytes(), 0

        def get(number):
            expected = number.to_bytes(8, "big") + body
            return with_client(server.endpoint, lambda client: client.get(BUCKET, f"pour/{number}")) != expected

        reading = [pool.submit(get, number) for number in range(count)]
        while not reading[-1].done():
            most = max(most, server.memory_bytes())
            time.sleep(0.1)
        wrong = sum(future.result() for future in reading)
        taken = (most - idle) / (CACHE_MIB * MIB)
        ledger.add(f"resident memory while {count} objects of 64 KiB pour through a bound of {CACHE_MIB} MiB, beyond the idle server, over the bound",
                   f"{taken:.2f} ({most / MIB:.0f} MiB at most)", 0.5 <= taken <= 1.05, "≤ 1.05; ≥ 0.5, or little was cached")
        ledger.add("   answers of these that were wrong", f"{wrong}", wrong == 0, "0")


def open_answer(server, key):
    """Sends a GET and returns the answer with its body unread."""
    request = sigv4.Request("GET", f"/{BUCKET}/{key}", [], {}, b"")
    host = server.endpoint.removeprefix("http://")
    sigv4.sign_headers(request, server.credentials, host, payload_hash=sigv4.UNSIGNED)
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", request.target(), headers=request.headers)
    answer = connection.getresponse()
    answer.connection = connection  # kept open while the answer is read
    return answer


def prove_changes(ledger, folder, origin):
    """Changes objects at the origin during and after reads."""
    prove_replaced(ledger, folder)
    with Front(folder / "changes", origin) as server:
        prove_stale(ledger, server, origin)


class Replaced:
    """An answer whose object is replaced at the origin as soon as the client has the first MiB."""

    def __init__(self, server, origin, key, old, new):
        answer = open_answer(server, key)
        body = answer.read(MIB)
        writer = threading.Thread(target=origin.client().put, args=(BUCKET, key, new))
        writer.start()
        # An origin may make a write wait for a read that it is serving: then the reader must continue first.
        writer.join(BEFORE_THE_REST_S)
        is_early = not writer.is_alive()
        try:
            body += answer.read()
        except (OSError, http.client.HTTPException) as error:
            body += getattr(error, "partial", b"")
        writer.join()
        self.is_before_the_rest = is_early and origin.client().get(BUCKET, key) == new
        self.is_cut = len(body) < len(old)
        self.is_mixed = not old.startswith(body) and body != new


def fill_first(server, key):
    """Reads the first part of an object until it is in memory, and no more."""
    client, deadline = server.client(), time.monotonic() + 30
    for first in range(0, FILLED, BLOCK):
        while True:
            answer = client.expect("GET", f"/{BUCKET}/{key}", headers={"range": f"bytes={first}-{first + BLOCK - 1}"})
            if answer.headers.get("x-striate-cache") == "hit":
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"the first {FILLED >> 20} MiB do not come into memory")
            time.sleep(0.05)


def replace(server, origin, name, prepare):
    """Reads ten objects, each prepared first, and replaces them at the origin meanwhile. Returns the answers."""
    old, new, answers = numbered(os.urandom(MIB), 64 * MIB), numbered(os.urandom(MIB), 64 * MIB), []
    for number in range(10):
        key = f"{name}/{number}"
        origin.client().put(BUCKET, key, old)
        prepare(server, key)
        answers.append(Replaced(server, origin, key, old, new))
    return answers


def totals(answers):
    """Returns how many were cut, how many mixed versions, and of how many the object was replaced before the rest was read."""
    return [sum(getattr(answer, what) for answer in answers) for what in ("is_cut", "is_mixed", "is_before_the_rest")]


def prove_replaced(ledger, folder):
    """Replaces objects of which nothing or the beginning is in memory, at another Striate: MinIO would replace them only after the read."""
    with Striate(folder / "origin", directories=3) as origin:
        origin.client().make_bucket(BUCKET)
        for name, there, prepare in (("cold", "none of it", lambda server, key: None), ("filled", f"the first {FILLED >> 20}", fill_first)):
            with Front(folder / name, origin) as server:
                cut, mixed, before = totals(replace(server, origin, name, prepare))
            ledger.add(f"answers of 64 MiB, {there} in memory, that were cut or mixed versions when another Striate, the origin, replaced the object "
                       "after their first MiB, of 10; replaced before the rest was read", f"{cut} cut, {mixed} mixed; {before}",
                       cut == mixed == 0 and before > 0, "0 and 0; > 0")


def prove_stale(ledger, server, origin):
    server.run("bucket", "create", "--origin", f"s3://{BUCKET}", "--origin-endpoint", origin.endpoint, "--ttl", "2s", "short")
    client, cached, stale = origin.client(), 0, 0
    for number in range(5):
        key = f"stale/{number}"
        client.put(BUCKET, key, b"old")
        server.client().get("short", key)
        client.put(BUCKET, key, b"new")
        cached += server.client().get("short", key) == b"old"
        time.sleep(2.05)
        stale += server.client().get("short", key) != b"new"
    ledger.add("stale answers later than a ttl of 2 s after a write at the origin, of 5; and within it", f"{stale}; {cached}",
               stale == 0 and cached > 0, "0; > 0, or nothing was cached")
