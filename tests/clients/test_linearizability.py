"""S3's promise for concurrent clients: all answers fit one order of all operations, listings included."""

import uuid

import pytest
from proving.history import KEYS, drive
from proving.stale import StaleProxy


@pytest.fixture
def contended(server):
    name = f"contended-{uuid.uuid4().hex[:12]}"
    server.client().make_bucket(name)
    return name


def test_answers_to_many_clients_fit_one_order(server, contended, tmp_path, full):
    history = drive([server.endpoint], server.credentials, contended, tmp_path / "history.jsonl",
                    operations=20_000 if full else 4_000, timeout_s=60)
    verdict = history.judge()
    assert history.unknown == 0
    assert verdict["operations"] > history.operations and verdict["keys"] == len(KEYS)
    assert verdict["illegal"] == verdict["undecided"] == []


def test_a_stale_read_is_found(server, contended, tmp_path):
    with StaleProxy(server.endpoint) as proxy:
        history = drive([server.endpoint, proxy.endpoint], server.credentials, contended, tmp_path / "history.jsonl",
                        operations=1_000, timeout_s=60)
    assert history.judge()["illegal"]
