"""Replays a part of an LLM service's trace over a bucket, in each of several ways to read many blocks. Reads the plan, JSON, from stdin.

A request reads the blocks of its prompt's known prefix, then stores the new ones. Striate's client looks up the length of the prefix
and reads all of it with one batch read into preallocated memory. The others are given the length, look nothing up, and read each
block with a GET. Every byte is compared, after the clock has stopped.

Runs in an environment with boto3 and s3fs. Prints, for each round and way, the seconds of every request.
"""

import json
import mmap
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
import botocore.config
import s3fs
from striate import Client

CONTENT_BYTES = 1 << 20
POOL_THREADS = 10  # as many as boto3's own transfers use


class Blocks:
    """The contents of blocks: slices of the same random bytes, each from a different offset."""

    def __init__(self, size, seed):
        self.size = size
        self.bytes = memoryview(random.Random(seed).randbytes(CONTENT_BYTES + size))

    def of(self, block):
        start = block * 7919 % CONTENT_BYTES
        return self.bytes[start:start + self.size]


class Way:
    """One way of reading and storing blocks. `read` sets `first_at`, the time at which the first block could be used."""

    def __init__(self, plan):
        self.plan, self.bucket, self.first_at = plan, plan["bucket"], None

    def arrived(self, *_):
        if self.first_at is None:
            self.first_at = time.perf_counter()

    def close(self):
        pass


class Striate(Way):
    """A prefix lookup, and one batch read into the caller's buffers."""

    def __init__(self, plan, most_blocks):
        super().__init__(plan)
        self.client = Client(plan["endpoint"], access_key=plan["access_key"], secret_key=plan["secret_key"])
        size = plan["block_bytes"]
        memory = memoryview(mmap.mmap(-1, most_blocks * size))
        memory[:] = bytes(len(memory))
        self.buffers = [memory[start:start + size] for start in range(0, len(memory), size)]

    def read(self, keys, known):
        there = self.client.prefix_of(self.bucket, keys)
        wanted = list(zip(keys[:there], self.buffers))
        came = self.client.get_many_into(self.bucket, wanted, arrived=self.arrived)
        return [buffer if size == len(buffer) else None for size, (_, buffer) in zip(came, wanted)]

    def store(self, keys, views):
        if not all(outcome is True for outcome in self.client.put_many(self.bucket, list(zip(keys, views)))):
            raise RuntimeError("a new block was not created")

    def close(self):
        self.client.close()


class Noting(s3fs.S3FileSystem):
    """s3fs that reports the arrival of each object."""

    noted = None

    async def _cat_file(self, *arguments, **options):
        data = await super()._cat_file(*arguments, **options)
        self.noted()
        return data


class S3fs(Way):
    """`cat` of all paths, with s3fs's default concurrency."""

    def __init__(self, plan, _):
        super().__init__(plan)
        self.fs = Noting(key=plan["access_key"], secret=plan["secret_key"], endpoint_url=plan["endpoint"],
                         use_listings_cache=False, skip_instance_cache=True)
        self.fs.noted = self.arrived

    def read(self, keys, known):
        paths = [f"{self.bucket}/{key}" for key in keys[:known]]
        came = self.fs.cat(paths)
        return [came[path] for path in paths]

    def store(self, keys, views):
        self.fs.pipe({f"{self.bucket}/{key}": bytes(view) for key, view in zip(keys, views)})


class Boto3(Way):
    """GETs one after the other."""

    threads = 1

    def __init__(self, plan, _):
        super().__init__(plan)
        self.s3 = boto3.client(
            "s3", endpoint_url=plan["endpoint"], region_name="us-east-1", aws_access_key_id=plan["access_key"],
            aws_secret_access_key=plan["secret_key"],
            config=botocore.config.Config(max_pool_connections=POOL_THREADS),
        )
        self.pool = ThreadPoolExecutor(self.threads)

    def read(self, keys, known):
        return list(self.pool.map(self.get, keys[:known]))

    def get(self, key):
        data = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        self.arrived()
        return data

    def store(self, keys, views):
        list(self.pool.map(lambda put: self.s3.put_object(Bucket=self.bucket, Key=put[0], Body=bytes(put[1])),
                           zip(keys, views)))

    def close(self):
        self.pool.shutdown()


class Boto3Pool(Boto3):
    """As many concurrent GETs as boto3's own transfers have threads."""

    threads = POOL_THREADS


WAYS = {"striate": Striate, "s3fs": S3fs, "boto3": Boto3, "boto3 × 10": Boto3Pool}


def replay(way, plan, blocks, run):
    """Replays the requests one after the other. Returns the seconds of each, and the numbers of blocks read and stored."""
    requests, before = [], set(plan["before"])

    def key(block):
        return f"before/{block}" if block in before else f"{run}/{block}"

    for read, stored in plan["requests"]:
        keys = [key(block) for block in read + stored]
        way.first_at = None
        began = time.perf_counter()
        came = way.read(keys, len(read))
        ended = time.perf_counter()
        if len(came) != len(read):
            raise RuntimeError(f"{len(came)} of {len(read)} blocks were read")
        if not all(data is not None and memoryview(data) == blocks.of(block) for data, block in zip(came, read)):
            raise RuntimeError("a block was read wrong")
        if stored:
            way.store(keys[len(read):], [blocks.of(block) for block in stored])
        requests.append({
            "blocks": len(read), "first_s": way.first_at - began if read else None, "last_s": ended - began,
            "stored": len(stored), "store_s": time.perf_counter() - ended,
        })
    return requests


def main():
    plan = json.loads(sys.stdin.read())
    blocks = Blocks(plan["block_bytes"], seed=plan["block_bytes"])
    most = max(len(read) for read, _ in plan["requests"])
    ways = {name: way(plan, most) for name, way in WAYS.items()}
    with Client(plan["endpoint"], access_key=plan["access_key"], secret_key=plan["secret_key"]) as client:
        for start in range(0, len(plan["before"]), 64):
            part = plan["before"][start:start + 64]
            client.put_many(plan["bucket"], [(f"before/{block}", blocks.of(block)) for block in part])
        names = list(ways)
        # The first round warms up connections and interpreters, and is not counted.
        for number in range(plan["rounds"] + 1):
            turn, figures = number % len(names), {}
            for name in names[turn:] + names[:turn]:
                figures[name] = replay(ways[name], plan, blocks, f"run-{number}-{names.index(name)}")
                client.delete_many(plan["bucket"], [info.key for info in client.list(plan["bucket"], "run-")])
            if number:
                print(json.dumps(figures), flush=True)
    for way in ways.values():
        way.close()


if __name__ == "__main__":
    main()
