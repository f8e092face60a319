"""Every operation of S3's published model and every condition of it: what is not served changes nothing."""

import pytest
from conftest import KINDS, TARGET, boto
from proving.operations import Walk


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A server of its own: the whole store is compared again and again."""
    with KINDS[TARGET](tmp_path_factory.mktemp("operations")) as server:
        yield server
        assert server.process.poll() is None, f"the server died:\n{server.log_tail()}"


@pytest.fixture(scope="module")
def walk(alone):
    s3 = boto(alone, retries={"max_attempts": 1}, inject_host_prefix=False)
    others = [boto(alone.origin)] if TARGET == "front" else []

    def make(name):
        if TARGET in ("front", "volatile"):
            alone.create_bucket(name)
        else:
            s3.create_bucket(Bucket=name)

    return Walk(s3, "full-bucket", "empty-bucket", make, others)


@pytest.fixture(scope="module", autouse=True)
def filled(walk):
    walk.fill()


@pytest.mark.minio_differs("it serves other operations")
def test_every_operation_of_the_model_is_served_or_changes_nothing(walk):
    known, sent, wrong = walk.operations()
    assert known > 110 and sent > known, (known, sent)
    assert not wrong, "\n".join(wrong)


@pytest.mark.minio_differs("it ignores some conditions")
def test_every_condition_of_the_model_is_evaluated_or_refused(walk):
    walked, wrong = walk.conditions()
    assert walked > 35, walked
    assert not wrong, "\n".join(wrong)


@pytest.mark.minio_differs("it ignores some conditions")
def test_every_condition_of_http_is_evaluated_or_refused_on_every_write(walk):
    walked, wrong = walk.http_conditions()
    assert walked > 150, walked
    assert not wrong, "\n".join(wrong)


@pytest.mark.minio_differs("it ignores what it does not know")
def test_requests_of_other_dialects_change_nothing(walk, alone):
    _, wrong = walk.foreign(alone.client(timeout_s=60))
    assert not wrong, "\n".join(wrong)


def test_parameters_without_a_meaning_are_ignored(s3, bucket, raw):
    for query in ([("foo", "bar")], [("prefix", "")], [("x-id", "1"), ("id", "2")], []):
        assert raw.send("PUT", f"/{bucket}/k", query or [("x-id", "PutObject")], body=b"body").status == 200, query
        assert raw.send("GET", f"/{bucket}/k", query or [("x-id", "GetObject")]).body == b"body", query
        assert raw.send("DELETE", f"/{bucket}/k", query or [("x-id", "DeleteObject")]).status == 204, query
