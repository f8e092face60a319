"""Requests that the gateway does not know, and conditions: every one of S3's published model, sent with boto3 (A F1, A F3)."""

import json
import subprocess
from pathlib import Path

from . import TOOLS
from .servers import Striate


def prove_operations(ledger, folder):
    """Walks a bucket of the store and, also in the short form, one that has an origin."""
    with Striate(folder / "own") as server:
        claim(ledger, "", walked(server))
    with Striate(folder / "origin") as origin:
        keys = origin.credentials
        environment = {"STRIATE_CACHE_MIB": "128", "STRIATE_ORIGIN_ACCESS_KEY": keys.access_key,
                       "STRIATE_ORIGIN_SECRET_KEY": keys.secret_key}
        with Striate(folder / "front", directories=1, environment=environment) as front:
            make = [str(front.program), "bucket", "create", "--origin", "s3://their-NAME", "--origin-endpoint", origin.endpoint, "NAME"]
            claim(ledger, ", in a bucket with an origin", walked(front, [origin], make))


def walked(server, others=(), make=()):
    """Runs the walk with the SDK of the clients' environment, since the proving programs have none."""
    def named(server):
        return [server.endpoint, server.credentials.access_key, server.credentials.secret_key]

    asked = {"server": named(server), "others": [named(other) for other in others], "make": list(make),
             "environment": {**server.environment, "STRIATE_ENDPOINT": server.endpoint}}
    done = subprocess.run([TOOLS / "venv" / "bin" / "python", "-m", "proving.operations"], input=json.dumps(asked),
                          capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)


def claim(ledger, where, walk):
    texts = {
        "operations": f"every operation of S3's model{where}: what is not served changes nothing (A F1)",
        "foreign": f"operations of other dialects, unpaired and encoded parameters{where} (A F1)",
        "fields": f"every condition field of S3's model{where}: evaluated or refused (A F3)",
        "headers": f"every condition of HTTP and other dialects on every write{where} (A F3)",
    }
    for name, text in texts.items():
        part = walk[name]
        for wrong in part["wrong"]:
            ledger.note(wrong)
        count = f"{part['known']} operations, {part['sent']} requests" if "known" in part else f"{part['sent']} sent"
        ledger.add(text, f"{count}, {len(part['wrong'])} wrong", not part["wrong"], "0 wrong")
