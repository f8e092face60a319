"""A real server for the suites, started once on free ports over six fresh directories.

`TEST_SERVER=minio` runs the same suites against MinIO, which checks the suites themselves; `TEST_SERVER=front` runs them against a
Striate whose buckets are in another server, with a cache in memory, and `TEST_SERVER=volatile` against buckets in memory only. `FULL=1`
uses full sizes. `tools/install.sh clients` installs the tools that the suites drive.
"""

import os
import random
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "prove"))
sys.dont_write_bytecode = True

import boto3  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402
from proving import TOOLS  # noqa: E402
from proving.servers import MinIO, Striate  # noqa: E402

TARGET = os.environ.get("TEST_SERVER", "striate")
FULL = bool(os.environ.get("FULL"))


class Front(Striate):
    """A server whose buckets have their origin in another server."""

    def __init__(self, base):
        self.origin = Striate(base / "origin")
        credentials = self.origin.credentials
        super().__init__(base / "front", directories=1, environment={
            "STRIATE_CACHE_MIB": "128", "STRIATE_ALLOW_SIGNATURE_V2": "true", "STRIATE_ORIGIN_ACCESS_KEY": credentials.access_key,
            "STRIATE_ORIGIN_SECRET_KEY": credentials.secret_key})

    def start(self, timeout_s=60):
        self.origin.start(timeout_s)
        return super().start(timeout_s)

    def stop(self, timeout_s=30):
        super().stop(timeout_s)
        self.origin.stop(timeout_s)

    def create_bucket(self, name):
        self.origin.client().make_bucket(f"their-{name}")
        self.run("bucket", "create", "--origin", f"s3://their-{name}", "--origin-endpoint", self.origin.endpoint, name)


class Standard(Striate):
    """A server that also accepts what boto3 presigns by default: Signature Version 2 (test_defaults.py)."""

    def __init__(self, base):
        super().__init__(base, environment={"STRIATE_ALLOW_SIGNATURE_V2": "true"})


class Volatile(Striate):
    """A server whose buckets are in memory only."""

    def __init__(self, base):
        super().__init__(base, directories=1, environment={
            "STRIATE_CACHE_MIB": "1024", "STRIATE_ALLOW_SIGNATURE_V2": "true"})

    def create_bucket(self, name):
        self.run("bucket", "create", "--volatile", name)


KINDS = {"striate": Standard, "minio": MinIO, "front": Front, "volatile": Volatile}


def pytest_configure(config):
    config.addinivalue_line("markers", "minio_differs(why): MinIO answers otherwise, so the test is for Striate only")
    config.addinivalue_line("markers", "front_differs(why): a bucket that is elsewhere answers otherwise")
    config.addinivalue_line("markers", "volatile_differs(why): a bucket in memory only answers otherwise")


def pytest_collection_modifyitems(items):
    for item in items:
        mark = item.get_closest_marker(f"{TARGET}_differs")
        if mark:
            item.add_marker(pytest.mark.skip(reason=f"{TARGET}: {mark.args[0]}"))


@pytest.fixture(scope="session")
def full():
    return FULL


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("store")
    running = KINDS[TARGET](base)
    with running:
        yield running
        assert running.process.poll() is None, f"the server died:\n{running.log_tail()}"
    if "panicked at" in running.log_path.read_text(errors="replace"):
        pytest.fail(f"the server panicked:\n{running.log_tail()}")
    subprocess.Popen(["rm", "-rf", base], stdin=subprocess.DEVNULL, start_new_session=True)  # may take a minute


def boto(server, **config):
    # By default the SDK signs URLs and forms for us-east-1 with the retired version 2.
    config.setdefault("signature_version", "s3v4")
    config.setdefault("s3", {"addressing_style": "path"})
    return boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1",
        aws_access_key_id=server.credentials.access_key, aws_secret_access_key=server.credentials.secret_key,
        config=Config(**config),
    )


@pytest.fixture(scope="session")
def s3(server):
    return boto(server)


@pytest.fixture
def raw(server):
    client = server.client(timeout_s=60)
    yield client
    client.close()


@pytest.fixture
def bucket(s3, server):
    name = f"test-{uuid.uuid4().hex[:16]}"
    if TARGET in ("front", "volatile"):
        server.create_bucket(name)
    else:
        s3.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def body():
    """Incompressible bytes, the same for the same length."""
    return lambda length, seed=0: random.Random(f"{seed}/{length}").randbytes(length)


@pytest.fixture(scope="session")
def environment(server, tmp_path_factory):
    """Environment variables for command-line clients, with their own home directory."""
    home = tmp_path_factory.mktemp("home")
    # By default, version 1 of aws-cli presigns for us-east-1 with the retired signature version 2.
    (home / "aws.ini").write_text("[default]\ns3 =\n  signature_version = s3v4\n")
    # A CA bundle in the environment is meant for other servers; with one, rclone refuses to start with its own transport.
    inherited = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    return {
        **inherited, "HOME": str(home), "AWS_ACCESS_KEY_ID": server.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": server.credentials.secret_key, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.endpoint, "AWS_CONFIG_FILE": str(home / "aws.ini"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PATH": f"{TOOLS / 'venv' / 'bin'}:{TOOLS / 'bin'}:{os.environ['PATH']}",
    }


@pytest.fixture(scope="session")
def run(environment):
    """Runs a client; returns its output, or fails with everything that it printed."""

    def call(*command, timeout_s=600, **more):
        done = subprocess.run(
            [str(part) for part in command], env={**environment, **more}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return call


def failing(code, status=None):
    """Expects an S3 error: `with failing("NoSuchKey", 404): ...`"""
    return Failing(code, status)


class Failing:
    def __init__(self, code, status):
        self.codes = code if isinstance(code, tuple) else (code,)
        self.status = status

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        assert isinstance(error, ClientError), f"expected {self.codes}, got {error!r}"
        self.response = error.response
        assert error.response["Error"]["Code"] in self.codes, error
        if self.status:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == self.status, error
        return True


def write_tree(root, body):
    """Writes a tree with empty files, depth, spaces, Unicode, and a file larger than one part."""
    files = {
        "empty": b"", "one": b"1", "a/b/c/d/e/deep": body(1000), "with space/plus+and&amp": body(17),
        "ünï/日本語.txt": body(333), "percent%20.txt": body(5), "block": body(4 << 20), "parts": body(20 << 20),
        **{f"many/{number:03}": body(number * 37, number) for number in range(60)},
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


@pytest.fixture(scope="session")
def tree(tmp_path_factory, body):
    return write_tree(tmp_path_factory.mktemp("tree"), body)


@pytest.fixture(scope="session")
def same_tree():
    def compare(left, right):
        def content(root):
            return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

        expected, found = content(left), content(right)
        assert sorted(found) == sorted(expected)
        for name, data in expected.items():
            assert found[name] == data, name

    return compare
