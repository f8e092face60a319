"""A real server for the tests: the one of the client suites, started once, on free ports, over fresh directories.

`STRIATE` names the program. Tests expect it to support the batch read; with `BATCH=no` they expect that it does not, and read with
single GETs.
"""

import os
import random
import shutil
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "prove"))
sys.dont_write_bytecode = True

from proving.servers import Striate  # noqa: E402
from striate import Client  # noqa: E402

KNOWS_BATCH = os.environ.get("BATCH") != "no"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("store")
    running = Striate(base)
    with running:
        yield running
        assert running.process.poll() is None, f"the server died:\n{running.log_tail()}"
    if "panicked at" in running.log_path.read_text(errors="replace"):
        pytest.fail(f"the server panicked:\n{running.log_tail()}")
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def nothing_from_outside(tmp_path_factory):
    """Hides the endpoint, keys and certificates of the user who runs the tests."""
    patch = pytest.MonkeyPatch()
    for name in list(os.environ):
        if name.startswith(("AWS_", "STRIATE_")):
            patch.delenv(name)
    patch.setenv("AWS_CONFIG_FILE", str(tmp_path_factory.mktemp("aws") / "config"))
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.environ["AWS_CONFIG_FILE"] + "-none")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    patch.undo()


@pytest.fixture(scope="session")
def options(server):
    return {
        "endpoint": server.endpoint, "access_key": server.credentials.access_key,
        "secret_key": server.credentials.secret_key,
    }


@pytest.fixture(scope="session")
def client(options):
    client = Client(**options)
    yield client
    client.close()


@pytest.fixture
def bucket(client):
    name = f"test-{uuid.uuid4().hex[:16]}"
    client.create_bucket(name)
    return name


@pytest.fixture(scope="session")
def body():
    """Incompressible bytes, the same for the same length and seed."""
    return lambda length, seed=0: random.Random(f"{seed}/{length}").randbytes(length)
