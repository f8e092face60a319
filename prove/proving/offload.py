"""LMCache's own code over Striate's adapter, and `lmcache bench l2` beside the adapters for Redis, S3 and files.

Every figure of a claim is a ratio within one round, in which the adapters take turns in a changing order; the claim is about the
median of the rounds. A round of an adapter is a run of `lmcache bench l2` with verification, whose figure is the median of its own
rounds. No run may find an earlier run's data: the keys are the same in every run, and Striate's puts only create.

LMCache is installed once into its own environment, six gigabytes, in the user's cache directory.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass

from . import ROOT
from .claims import median, spread
from .environments import Environment
from .servers import Striate, free_port

LMCACHE = "lmcache==0.5.6"
BESIDES = ["botocore>=1.31", "fsspec>=2024.6", "zlib-ng"]
BUCKET, DURABLE_BUCKET = "kv-cache", "kv-durable"
OURS, DURABLE, REDIS, S3, FILES = "striate", "durable", "resp", "s3", "fs"
# Bars for the time of each operation, as multiples of Redis's.
BARS = {"Load": 1.5, "Lookup": 1.5, "Store": 2.0}
SHAPES = [(64, 256), (8, 8 << 10), (4, 32 << 10)]  # keys, KiB each
CACHE_MIB = 2048
# The benchmark zeroes its buffers just before it times a load. Torch's threads would then keep spinning for some milliseconds, on the
# processors that both sides of every adapter need.
VARIABLES = {
    "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "OMP_WAIT_POLICY": "PASSIVE",
}


@dataclass
class Extent:
    """The extent of a run."""

    rounds: int
    bench_rounds: int


class Cached(Striate):
    """A server over three directories that also caches its blocks in memory.

    With `by_address`, the host `127.0.1`, which is this machine, is the bucket `127`: LMCache's S3 adapter addresses buckets only as
    hosts, and names would need entries in /etc/hosts.
    """

    def __init__(self, base, by_address=False):
        super().__init__(base, directories=3)
        self.by_address = by_address

    def command(self):
        command = [*super().command(), "--cache-mib", str(CACHE_MIB), "--cache-writes"]
        return [*command, "--domain", "0.1"] if self.by_address else command

    def wait_ready(self, timeout_s=60):
        if not self.by_address:
            return super().wait_ready(timeout_s)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(self.ready_url(), timeout=2):
                    return None
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"the server was not ready:\n{self.log_tail()}")


@contextmanager
def redis_server(base):
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("there is no redis-server: apt-get install redis-server")
    port = free_port()
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(base), "--save", "", "--appendonly", "no",
         "--maxmemory", "4gb", "--maxmemory-policy", "allkeys-lru"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


class Adapters:
    """The compared adapters, each with a fresh place for every run."""

    def __init__(self, server, by_address, redis_port, folder):
        self.server, self.by_address, self.redis_port, self.folder = server, by_address, redis_port, folder
        self.runs = 0

    def striate(self, prefix="", bucket=BUCKET):
        credentials = self.server.credentials
        parameters = {
            "endpoint": self.server.endpoint, "bucket": bucket, "prefix": prefix,
            "access_key": credentials.access_key, "secret_key": credentials.secret_key,
        }
        return {
            "type": "plugin", "module_path": "striate.lmcache", "class_name": "StriateL2Adapter", "adapter_params": parameters,
        }

    @contextmanager
    def fresh(self, name):
        """Yields the adapter's description, then removes the run's data. S3's objects stay: the next run overwrites them."""
        self.runs += 1
        if name in (OURS, DURABLE):
            bucket = BUCKET if name == OURS else DURABLE_BUCKET
            yield self.striate(f"{self.runs}/", bucket)
            self.server.run("rm", "--recursive", f"s3://{bucket}/{self.runs}/")
        elif name == REDIS:
            # With LMCache's default of eight connections.
            yield {"type": "resp", "host": "127.0.0.1", "port": self.redis_port}
            subprocess.run(["redis-cli", "-p", str(self.redis_port), "flushall"], check=True, stdout=subprocess.DEVNULL)
        elif name == S3:
            credentials = self.by_address.credentials
            yield {
                "type": "s3", "s3_endpoint": f"127.0.1:{self.by_address.port}", "s3_region": "us-east-1", "disable_tls": True,
                "s3_prefer_http2": False, "aws_access_key_id": credentials.access_key,
                "aws_secret_access_key": credentials.secret_key,
            }
        else:
            path = self.folder / f"files-{self.runs}"
            yield {"type": "fs", "base_path": str(path)}
            shutil.rmtree(path, ignore_errors=True)


def bench(environment, adapter, keys, kib, rounds):
    """Runs LMCache's benchmark; returns the median milliseconds of each operation."""
    text = environment.run(
        "lmcache", "bench", "l2", "--no-skip-verify", "--num-keys", keys, "--data-size-kb", kib, "--rounds", rounds,
        "--warmup-rounds", 2, "--lookup-max-hit-rate", 0.5, "--format", "json", "--l2-adapter", json.dumps(adapter),
    )
    if f"All {keys} keys data verified OK." not in text:
        raise RuntimeError(f"what was loaded is not what was stored: {text[-2000:]}")
    found = json.loads(text[text.index("\n{\n") + 1:text.rindex("\n}\n") + 2])["metrics"]
    operations = [found[name] for name in found if name.startswith("op_")]
    for operation in operations:
        wanted = operation.get("expected_hit_count", operation["total_keys"])
        if operation["total_success"] < wanted or operation["rounds_timed_out"]:
            raise RuntimeError(f"{operation['operation']}: {operation['total_success']} of {wanted} keys")
    return {operation["operation"]: operation["duration_p50_ms"] for operation in operations}


def run_tests(ledger, environment, what, name):
    tests = ROOT / "python" / "tests" / name
    text = environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tests).strip().splitlines()[-1]
    ledger.add(what, text, bar="all pass", holds=" passed" in text and "skipped" not in text)


def adapter_tests(ledger, environment):
    run_tests(ledger, environment, "the adapter's own tests in LMCache's environment", "test_lmcache.py")


def prove_tier(ledger):
    """Tests the tier for vLLM under vLLM's manager, if vLLM is installed: with its dependencies it takes twelve gigabytes."""
    if not os.environ.get("VLLM_VENV"):
        ledger.skip("VLLM_VENV names no environment with vLLM 0.33 and pytest")
        return
    environment = Environment("vllm", [], "VLLM_VENV", VARIABLES)
    run_tests(ledger, environment, "the tier's tests under vLLM's TieringOffloadingManager and its tier in the processor's memory", "test_vllm.py")


def storage_manager(ledger, environment, adapters):
    script = ROOT / "prove" / "proving" / "lmcache_storage.py"
    text = environment.run("python", script, json.dumps(adapters.striate("storage/")))
    found = json.loads(text.strip().splitlines()[-1])
    chunks = found["chunks"]
    ledger.record("StorageManager", found)
    ledger.add("StorageManager: chunks that come back right from the adapter", bar=f"{chunks} of {chunks}",
               measured=f"{found['right']} of {chunks}", holds=found["right"] == found["hits"] == found["deleted"] == chunks)
    ledger.add("StorageManager: chunks found under another model, rank, group or salt", bar="0",
               measured=str(sum(found["foreign"].values())), holds=not any(found["foreign"].values()))


def lmcache_server(ledger, environment, adapters, folder):
    """Tests `lmcache server`, which here keeps nothing in its own memory, so that everything retrieved was loaded."""
    port, http_port = free_port(), free_port()
    with open(folder / "lmcache-server.log", "wb") as log:
        process = subprocess.Popen(
            [environment.folder / "bin" / "lmcache", "server", "--port", str(port), "--http-port", str(http_port),
             "--l1-size-gb", "1", "--no-l1-use-lazy", "--eviction-policy", "LRU", "--l2-store-policy", "skip_l1",
             "--supported-transfer-mode", "auto", "--l2-adapter", json.dumps(adapters.striate("server/"))],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment.variables,
        )
        try:
            deadline = time.monotonic() + 120
            while not answers(f"http://127.0.0.1:{http_port}/healthcheck"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("lmcache server did not start")
                time.sleep(0.1)
            before = batch_reads(adapters.server)
            text = environment.run(
                "lmcache", "bench", "server", "--mode", "cpu", "--rpc-url", f"tcp://localhost:{port}",
                "--url", f"http://localhost:{http_port}", "--end", 6, "--interval", 0.1, "--num-blocks", 256,
                "--kvcache-shape-spec", "(2,256,16,8,128):float16:4", "--format", "json",
            )
            loads = batch_reads(adapters.server) - before
        finally:
            process.terminate()
            process.wait()
    results = json.loads(text[text.index("\n{\n") + 1:text.rindex("\n}\n") + 2])["metrics"]["results"]
    ledger.record("lmcache server", results)
    ledger.add("lmcache server: requests whose KV cache has the right checksum", bar="6 of 6, loaded from Striate",
               measured=f"{results['checksum_ok']} of 6, {loads} batch reads",
               holds=results["checksum_ok"] == 6 and results["checksum_fail"] == 0 and loads >= 6)


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def batch_reads(server):
    """Returns the number of batch reads that the server has answered with 2xx."""
    with urllib.request.urlopen(f"{server.console}/metrics", timeout=10) as answer:
        found = re.findall(r'striate_s3_requests_total{operation="BatchRead",class="2xx"} (\d+)', answer.read().decode())
    return sum(map(int, found))


def compare(ledger, environment, adapters, extent, keys, kib):
    size = f"{keys} × {kib} KiB" if kib < 1024 else f"{keys} × {kib >> 10} MiB"
    names, rounds = [OURS, DURABLE, REDIS, S3, FILES], []
    for number in range(extent.rounds):
        turn, figures = number % len(names), {}
        for name in names[turn:] + names[:turn]:
            with adapters.fresh(name) as adapter:
                figures[name] = bench(environment, adapter, keys, kib, extent.bench_rounds)
        rounds.append(figures)
        ledger.note(f"{size}, round {number + 1}: " + ", ".join(
            f"{name} {'/'.join(f'{figures[name][operation]:.1f}' for operation in BARS)}" for name in names))
    ledger.record(size, rounds)
    for operation, bar in BARS.items():
        ratios = [figures[OURS][operation] / figures[REDIS][operation] for figures in rounds]
        each = {name: median([figures[name][operation] for figures in rounds]) for name in names}
        ledger.add(f"{size}: {operation.lower()} as a multiple of Redis's", bar=f"≤ {bar}", spread=spread(ratios),
                   measured=f"{median(ratios):.2f} × (ms: {', '.join(f'{name} {ms:.2f}' for name, ms in each.items())})",
                   holds=median(ratios) <= bar)


def lmcache_environment():
    return Environment(LMCACHE.replace("==", "-"), [LMCACHE, *BESIDES], "LMCACHE_VENV", VARIABLES)


def prove_adapter(ledger, folder, extent):
    environment = lmcache_environment()
    server, by_address = Cached(folder / "striate"), Cached(folder / "by-address", by_address=True)
    with server, by_address, redis_server(folder) as redis_port:
        # One bucket in memory only, like Redis, and one whose objects are on disks too.
        server.run("bucket", "create", "--volatile", BUCKET)
        server.run("bucket", "create", DURABLE_BUCKET)
        by_address.run("bucket", "create", "127")
        adapters = Adapters(server, by_address, redis_port, folder)
        adapter_tests(ledger, environment)
        storage_manager(ledger, environment, adapters)
        lmcache_server(ledger, environment, adapters, folder)
        for keys, kib in SHAPES:
            ledger.section(f"lmcache bench l2, {keys} keys of {kib} KiB (load/lookup/store in ms)")
            compare(ledger, environment, adapters, extent, keys, kib)
