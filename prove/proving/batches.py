"""Striate's file system beside s3fs: the same batches from the same server, in alternating rounds.

Both read with `cat` of a list of paths, fsspec's call for many objects; nothing is listed. The sides take turns within a round, in
an order that changes from round to round. Every figure of a claim is a ratio within one round; the claim is about the median.
s3fs runs twice: with its default of ten connections, and with one connection for each object of a batch.
"""

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from .claims import median, spread
from .folders import fresh_folder
from .servers import Striate

KIB = 1 << 10
BUCKET = "batches"
BATCH = 64
LEAST, MOST = 10 * KIB, 100 * KIB
BAR = 3.0
OURS = "striate"
RIVALS = {"s3fs": "s3fs as it comes", "s3fs64": "s3fs with 64 connections"}


@dataclass
class Extent:
    """The extent of a run."""

    rounds: int
    seconds: float
    objects: int


def fill(server, count):
    """Writes objects of log-uniform sizes; returns their bytes by path."""
    generator = random.Random(count)
    objects = {
        f"{BUCKET}/object-{number:05}": generator.randbytes(round(exp(generator.uniform(log(LEAST), log(MOST)))))
        for number in range(count)
    }

    def put(part):
        client = server.client()
        for path in part:
            client.put(BUCKET, path.partition("/")[2], objects[path])
        client.close()

    paths = list(objects)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, [paths[start::8] for start in range(8)]))
    return objects


def file_systems(server, asynchronous):
    """Creates the sides' file systems, by name."""
    import s3fs
    from striate.fs import StriateFileSystem

    keys = {"key": server.credentials.access_key, "secret": server.credentials.secret_key,
            "endpoint_url": server.endpoint, "asynchronous": asynchronous, "skip_instance_cache": True}
    return {
        OURS: StriateFileSystem(**keys),
        "s3fs": s3fs.S3FileSystem(**keys),
        "s3fs64": s3fs.S3FileSystem(**keys, config_kwargs={"max_pool_connections": BATCH}),
    }


@dataclass
class Side:
    """The figures of one side in one round."""

    objects_per_s: float
    client_ms_per_object: float
    server_ms_per_object: float


class Comparison:
    def __init__(self, ledger, server, extent, objects):
        self.ledger, self.server, self.extent, self.objects = ledger, server, extent, objects
        self.kept = []  # s3fs closes its connections when it is collected, which must not be inside another event loop

    def batches(self, seed):
        """Yields random batches of paths, the same for every side of a round."""
        generator = random.Random(seed)
        paths = list(self.objects)
        while True:
            yield generator.sample(paths, BATCH)

    def check(self, read):
        """Raises RuntimeError if any object was read with wrong bytes."""
        for path, data in read.items():
            if data != self.objects[path]:
                raise RuntimeError(f"{path} was read wrong")

    def passes(self):
        """Returns all paths, in batches."""
        paths = list(self.objects)
        return [paths[start:start + BATCH] for start in range(0, len(paths), BATCH)]

    def orders(self, names):
        """Yields each round's number and order of sides; the starting side rotates."""
        for number in range(self.extent.rounds):
            turn = number % len(names)
            yield number, names[turn:] + names[:turn]

    def measured(self, started, count):
        wall, client, server = started
        return Side(count / (time.perf_counter() - wall), (time.process_time() - client) * 1000 / count,
                    (self.server.cpu_ms() - server) / count)

    def start(self):
        return time.perf_counter(), time.process_time(), self.server.cpu_ms()

    def synchronous(self):
        sides = file_systems(self.server, asynchronous=False)
        self.kept.append(sides)
        for fs in sides.values():
            for paths in self.passes():
                self.check(fs.cat(paths))
        rounds = []
        for number, order in self.orders(list(sides)):
            figures = {}
            for name in order:
                started, count = self.start(), 0
                for paths in self.batches(number):
                    count += len(sides[name].cat(paths))
                    if time.perf_counter() - started[0] >= self.extent.seconds:
                        break
                figures[name] = self.measured(started, count)
            rounds.append(figures)
        return rounds

    async def asynchronous(self):
        sides = file_systems(self.server, asynchronous=True)
        sessions = [await sides[name].set_session() for name in RIVALS]
        for fs in sides.values():
            for paths in self.passes():
                self.check(await fs._cat(paths))
        rounds = []
        for number, order in self.orders(list(sides)):
            figures = {}
            for name in order:
                started, count = self.start(), 0
                for paths in self.batches(number):
                    count += len(await sides[name]._cat(paths))
                    if time.perf_counter() - started[0] >= self.extent.seconds:
                        break
                figures[name] = self.measured(started, count)
            rounds.append(figures)
        for session in sessions:
            await session.close()
        await sides[OURS].client.close()
        return rounds

    def claim(self, how, rounds):
        self.ledger.record(how, [{name: vars(side) for name, side in figures.items()} for figures in rounds])
        for rival, title in RIVALS.items():
            ratios = [figures[OURS].objects_per_s / figures[rival].objects_per_s for figures in rounds]
            ours, theirs = (median([figures[name].objects_per_s for figures in rounds]) for name in (OURS, rival))
            self.ledger.add(f"{how}: objects/s over {title}", bar=f"≥ {BAR:.0f} ×", spread=spread(ratios),
                            measured=f"{median(ratios):.2f} × ({ours:.0f} against {theirs:.0f})",
                            holds=median(ratios) >= BAR)
        for what, figure in (("client", "client_ms_per_object"), ("server", "server_ms_per_object")):
            values = ", ".join(
                f"{median([getattr(figures[name], figure) for figures in rounds]):.2f} {name}" for name in (OURS, *RIVALS)
            )
            self.ledger.add(f"{how}: CPU ms of the {what} per object", values)


def compare(ledger, extent, base=None):
    with fresh_folder("striate-python-", base) as folder, Striate(Path(folder)) as server:
        server.client().make_bucket(BUCKET)
        objects = fill(server, extent.objects)
        ledger.note(f"filled with {len(objects)} objects, {sum(map(len, objects.values())) / 1e6:.0f} MB")
        comparison = Comparison(ledger, server, extent, objects)
        comparison.claim("fs.cat(list)", comparison.synchronous())
        comparison.claim("await fs._cat(list)", asyncio.run(comparison.asynchronous()))
