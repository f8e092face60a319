"""A part of an LLM service's trace over one bucket in memory: Striate's batch calls beside s3fs and boto3 on the same server.

Rows of the trace with the same group are one request. It reads the blocks that it shares with earlier requests, the first of its
prompt, and stores the others. The sizes of the trace's blocks of 512 tokens were derived. Here each block has `BLOCK_KIB`, for a model
of 512 bytes a token: less than today's models, which favours the client with the lowest cost per request.
"""

import csv
import gzip
import json
import statistics
from pathlib import Path

from . import ROOT
from .claims import median, spread
from .environments import Environment
from .servers import Striate

TRACE = "llm-kvcache-first-half.csv.gz"
BUCKET = "kv-trace"
BLOCK_KIB = 256
CACHE_MIB = 3072
# The part that is replayed: from the second half, where most requested blocks were seen before.
FIRST, REQUESTS, FULL_REQUESTS = 5_000, 150, 400
BAR = 3.0
OURS, RIVAL = "striate", "s3fs"
PEERS = ["boto3==1.43.117", "s3fs==2026.9.0", "aiobotocore==3.10.0", "botocore==1.43.117", "aiohttp==3.14.5", "zlib-ng==1.1.0"]


def requests_of(path, first, count):
    """Returns, for each request, the numbers of the blocks that it reads and of those that it stores, in order."""
    requests = {}
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            reads, stores = requests.setdefault(int(row["group"]), ([], []))
            (reads if row["op"] == "GET" else stores).append(int(row["key"]))
    return list(requests.values())[first:first + count]


def stored_before(requests):
    """Returns the blocks that are read without having been stored by an earlier one of these requests."""
    before, stored = [], set()
    for reads, stores in requests:
        before += [block for block in dict.fromkeys(reads) if block not in stored]
        stored.update(stores)
        stored.update(reads)
    return before


def peers_environment():
    return Environment("kv-peers-" + "-".join(package.partition("==")[2] for package in PEERS[:2]), PEERS, "KV_PEERS_VENV")


def replay(environment, server, requests, rounds):
    """Replays all rounds; returns the requests of each round by way."""
    plan = {
        "endpoint": server.endpoint, "access_key": server.credentials.access_key, "secret_key": server.credentials.secret_key,
        "bucket": BUCKET, "block_bytes": BLOCK_KIB << 10, "rounds": rounds, "requests": requests,
        "before": stored_before(requests),
    }
    script = ROOT / "prove" / "proving" / "kv_replay.py"
    text = environment.run("python", script, given=json.dumps(plan), timeout_s=3600)
    return [json.loads(line) for line in text.splitlines()]


def figures_of(requests):
    """Returns the figures of one way in one round. Blocks a second are over the time that reads took."""
    reads = [request for request in requests if request["blocks"]]
    taken = sum(request["last_s"] for request in reads)
    found = {"blocks_per_s": sum(request["blocks"] for request in reads) / taken}
    for when in ("first", "last"):
        times = sorted(1000 * request[f"{when}_s"] for request in reads)
        found[f"{when}_median_ms"] = statistics.median(times)
        found[f"{when}_p99_ms"] = times[min(len(times) - 1, int(0.99 * len(times)))]
    stored = sum(request["stored"] for request in requests)
    found["stores_per_s"] = stored / sum(request["store_s"] for request in requests if request["stored"])
    return found


def claim(ledger, rounds):
    ledger.record("kv trace", rounds)
    others = [name for name in sorted(rounds[0]) if name not in (OURS, RIVAL)]
    names = [OURS, RIVAL, *others]

    def ratios(figure, other, inverse=False):
        pairs = [(figures[OURS][figure], figures[other][figure]) for figures in rounds]
        return [theirs / ours if inverse else ours / theirs for ours, theirs in pairs]

    def each(figure, digits=0):
        return ", ".join(f"{name} {median([figures[name][figure] for figures in rounds]):.{digits}f}" for name in names)

    found = ratios("blocks_per_s", RIVAL)
    ledger.add(f"blocks of {BLOCK_KIB} KiB read in a second over s3fs (cat, as it comes)", bar=f"≥ {BAR:.0f} ×", spread=spread(found),
               measured=f"{median(found):.2f} × ({each('blocks_per_s')})", holds=median(found) >= BAR)
    for other in others:
        found = ratios("blocks_per_s", other)
        ledger.add(f"   the same over {other}", f"{median(found):.2f} ×", spread=spread(found))
    for when in ("first", "last"):
        for what in ("median", "p99"):
            figure = f"{when}_{what}_ms"
            found = ratios(figure, RIVAL, inverse=True)
            ledger.add(f"   time to a request's {when} block, {what}: s3fs over Striate", spread=spread(found),
                       measured=f"{median(found):.2f} × (ms: {each(figure, 2)})")
    found = ratios("stores_per_s", RIVAL)
    ledger.add("   new blocks stored in a second over s3fs (pipe)", spread=spread(found),
               measured=f"{median(found):.2f} × ({each('stores_per_s')})")


def prove_trace(ledger, folder, workloads, rounds, full):
    path = workloads and Path(workloads) / TRACE
    if not path or not path.exists():
        ledger.skip(f"there is no {TRACE}; --workloads DIR names its folder")
        return
    requests = requests_of(path, FIRST, FULL_REQUESTS if full else REQUESTS)
    read, stored = (sum(len(request[which]) for request in requests) for which in (0, 1))
    ledger.note(f"{len(requests)} requests from the {FIRST}th on, blocks of {BLOCK_KIB} KiB: {read} read, {stored} stored; "
                f"at most {max(len(reads) for reads, _ in requests)} read by one, "
                f"{sum(len(reads) > 1 for reads, _ in requests)} of them read more than one")
    with Server(folder) as server:
        server.run("bucket", "create", "--volatile", BUCKET)
        rounds = replay(peers_environment(), server, requests, rounds)
    claim(ledger, [{name: figures_of(requests) for name, requests in figures.items()} for figures in rounds])


class Server(Striate):
    """A server with blocks in memory only, and the metadata rows that name them in three directories."""

    def __init__(self, base):
        super().__init__(base, directories=3)

    def command(self):
        return [*super().command(), "--cache-mib", str(CACHE_MIB)]
