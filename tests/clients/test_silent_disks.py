"""Commands that meet a disk that does not answer hold up nobody else."""

import os
import subprocess
import time
import urllib.request

import pytest
from conftest import TARGET
from proving.servers import Striate

pytestmark = pytest.mark.skipif(TARGET != "striate", reason="the commands are Striate's")
# Long enough for a slow machine; a server that waits for the disk does not answer at all.
PATIENCE_S = 20


@pytest.mark.parametrize("change", ["add", "replace"])
def test_a_directory_that_does_not_answer_holds_up_its_command_only(tmp_path_factory, change):
    # A short name: paths of sockets are bounded.
    folder = tmp_path_factory.mktemp(change)
    # A pipe in place of a file: a read of it waits for the writer, as for a disk that hangs.
    silent = folder / "silent"
    (silent / ".striate").mkdir(parents=True)
    pipe = silent / ".striate" / "cluster"
    os.mkfifo(pipe)
    # With one worker, a call on it that waits for a disk stops everything.
    with Striate(folder / "server", directories=3, environment={"TOKIO_WORKER_THREADS": "1"}) as server:
        client = server.client(timeout_s=PATIENCE_S)
        client.make_bucket("bucket")
        command = subprocess.Popen([server.program, "disk", change, silent], env={**os.environ, **server.environment})
        writer = open_for_writing(pipe, command)
        try:
            with urllib.request.urlopen(server.console + "/health/live", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
            client.put("bucket", "key", b"beside it")
            assert client.get("bucket", "key") == b"beside it"
        finally:
            os.close(writer)
        assert command.wait(PATIENCE_S) != 0, "the directory is no blank one"


def open_for_writing(pipe, command):
    """Waits until the server reads the pipe, and opens it."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert command.poll() is None, "the command never read the directory"
            time.sleep(0.05)
