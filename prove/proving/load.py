"""Runs the load generator (`striate-bench s3`) against a server and measures the cost to the server."""

import json
import os
import subprocess

from .servers import built

CLIENTS = 16


def bench_binary():
    return built("STRIATE_BENCH", "striate-bench")


def run(server, bucket, op, size, *, seconds=None, ops=None, objects=None, prefix="object-", first=0,
        keys_per_directory=None, clients=CLIENTS, range_bytes=None, strict=True):
    """Runs one load; returns the generator's figures with the server's `cpu_ms_per_operation` and `medium_bytes_per_byte`."""
    command = [bench_binary(), "s3", "--endpoint", server.endpoint, "--bucket", bucket, "--op", op,
               "--size", str(size), "--clients", str(clients), "--prefix", prefix, "--first", str(first)]
    for name, value in (("seconds", seconds), ("ops", ops), ("objects", objects),
                        ("keys-per-directory", keys_per_directory), ("range", range_bytes)):
        if value is not None:
            command += [f"--{name}", str(value)]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": server.credentials.access_key,
                   "AWS_SECRET_ACCESS_KEY": server.credentials.secret_key}
    cpu_before, read_before = server.cpu_ms(), server.medium_read_bytes()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(map(str, command[1:]))}: {done.stderr}")
    figures = json.loads(done.stdout)
    figures["cpu_ms_per_operation"] = (server.cpu_ms() - cpu_before) / max(1, figures["operations"])
    figures["medium_bytes_per_byte"] = (server.medium_read_bytes() - read_before) / max(1, figures["operations"] * size)
    if strict and figures["errors"]:
        raise RuntimeError(f"{server.name}: {figures['errors']} of the {op} operations failed, "
                           f"the first with: {figures['first_error']}")
    return figures
