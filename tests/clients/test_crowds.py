"""Crowds of connections that do nothing useful: what they must not stop, and what they must not condemn."""

import http.client
import shutil
import urllib.request

import pytest
from conftest import TARGET
from proving.crowds import MANY, ONE, Crowd
from proving.mend_descriptors import BUCKET, CONDEMNED, LIMIT, Limited, put_over, states
from proving.mend_listeners import Secured
from proving.servers import Striate

pytestmark = pytest.mark.skipif(TARGET != "striate", reason="the limits are Striate's")
# Long enough for a slow machine; 0.5.0 did not answer at all.
PATIENCE_S = 20


def ask(url, patience_s=PATIENCE_S):
    with urllib.request.urlopen(url, timeout=patience_s) as answer:
        return answer.status


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    with Striate(tmp_path_factory.mktemp("crowded"), directories=3) as server:
        yield server


@pytest.mark.parametrize("addresses", [ONE, MANY], ids=["one", "many"])
@pytest.mark.parametrize("kind", ["pipeline", "idle", "head"])
def test_health_and_metrics_are_answered_beside_a_crowd(crowded, kind, addresses):
    with Crowd(crowded.console_port, kind, 300, addresses):
        for path in ("/health/live", "/health/ready", "/metrics"):
            assert ask(crowded.console + path) == 200


def test_sign_ins_that_never_arrive_keep_nobody_from_status_and_metrics(crowded):
    with Crowd(crowded.console_port, "body", 100, MANY, "/api/sign-in"):
        for path in ("/health/ready", "/metrics", "/api/status"):
            # Less than the time for a whole request, after which these give up by themselves.
            assert ask(crowded.console + path, patience_s=10) == 200


@pytest.mark.parametrize("addresses", [ONE, MANY], ids=["one", "many"])
def test_a_want_of_descriptors_condemns_no_disk(tmp_path, addresses):
    with Limited(tmp_path, LIMIT, LIMIT) as server:
        held = server.client(timeout_s=PATIENCE_S)
        held.make_bucket(BUCKET)
        with Crowd(server.port, "idle", 2 * LIMIT, addresses):
            assert not put_over(held, "held")
            assert not put_over(server.client(timeout_s=PATIENCE_S), "new")
        assert not states(server)
        log = server.log_path.read_text()
        assert not [line for line in log.splitlines() if any(word in line for word in CONDEMNED)]


def test_too_few_descriptors_are_refused_with_the_way_out(tmp_path):
    server = Limited(tmp_path, 64, 64)
    with pytest.raises(RuntimeError, match="LimitNOFILE"):
        server.start()
    assert not any(directory.joinpath(".striate").exists() for directory in server.directories), "nothing was changed"


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_plain_http_to_a_port_with_tls_is_told_so(tmp_path):
    server = Secured(tmp_path, directories=3)
    server.certify()
    with server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 400
        assert b"https://" in answer.read()
        assert server.ask_securely(PATIENCE_S) == 200
